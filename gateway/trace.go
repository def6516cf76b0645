package gateway

import (
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// outwardTrace is the pipeline trace of a reply as the outside may see it: the
// errors in it say no more than the answer itself would. nil when there is none.
func outwardTrace(reply *contextwire.Reply, traceID string) map[string]any {
	if reply == nil {
		return nil
	}
	seen := outwardPipeline(reply.Trace, traceID, maxTraceDepth)
	if _, err := contextwire.EncodeCanonical(contextwire.JSON, seen); err != nil {
		return nil // no answer fails for its trace
	}
	return seen
}

// maxTraceDepth bounds how many traces may lie in each other.
const maxTraceDepth = 64

func outwardPipeline(trace map[string]any, traceID string, depth int) map[string]any {
	if trace == nil || depth == 0 {
		return nil
	}
	seen := make(map[string]any, len(trace))
	for key, v := range trace {
		inner, isMap := v.(map[string]any)
		switch {
		case key == "remote" && isMap:
			seen[key] = outwardPipeline(inner, traceID, depth-1)
		case key == "calls":
			seen[key] = outwardCalls(v, traceID, depth-1)
		case key == "error" && isMap:
			seen[key] = nil
			if e, ok := module.ErrorFromMap(inner); ok {
				seen[key] = outward(e, traceID).Map()
			}
		default:
			seen[key] = v
		}
	}
	return seen
}

func outwardCalls(v any, traceID string, depth int) []any {
	calls, _ := v.([]any)
	seen := make([]any, 0, len(calls))
	for _, c := range calls {
		if call, ok := c.(map[string]any); ok && depth > 0 {
			seen = append(seen, outwardPipeline(call, traceID, depth))
		}
	}
	return seen
}

// traced is the answer of a call whose trace was asked for: the output as it is,
// and the trace.
func traced(output []byte, trace map[string]any) ([]byte, error) {
	body := append([]byte(`{"output":`), output...)
	body = append(body, `,"trace":`...)
	raw := []byte("null")
	if trace != nil {
		var err error
		if raw, err = contextwire.EncodeCanonical(contextwire.JSON, trace); err != nil {
			return nil, module.Errorf(module.CodeInternal, "encode the trace: %w", err)
		}
	}
	return append(append(body, raw...), '}'), nil
}
