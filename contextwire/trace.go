package contextwire

import "maps"

// CountTraceCalls counts the nested calls that a PipelineTrace holds, at any depth.
func CountTraceCalls(trace map[string]any) int { return countTrace(trace, DefaultLimits().MaxDepth) }

func countTrace(trace map[string]any, depth int) int {
	if trace == nil || depth <= 0 {
		return 0
	}
	inner, _ := trace["remote"].(map[string]any)
	n := countTrace(inner, depth-1)
	calls, _ := trace["calls"].([]any)
	for _, c := range calls {
		call, _ := c.(map[string]any)
		n += 1 + countTrace(call, depth-1)
	}
	return n
}

// WithoutTraceCalls is a PipelineTrace without its nested calls, which are counted
// instead.
func WithoutTraceCalls(trace map[string]any) map[string]any {
	n := CountTraceCalls(trace)
	seen := maps.Clone(trace)
	delete(seen, "calls")
	if inner, ok := seen["remote"].(map[string]any); ok {
		seen["remote"] = WithoutTraceCalls(inner)
		n -= CountTraceCalls(inner)
	}
	if n > 0 {
		dropped, _ := trace["calls_dropped"].(int64)
		seen["calls_dropped"] = dropped + int64(n)
	}
	return seen
}
