package executor

import (
	"time"

	"github.com/apbus/apbus/module"
)

// Map returns the wire form of the trace: module_id, strategy_name, steps, hooks,
// total_duration_ms, success, error (null or a coded error) and, where there are
// any, remote, calls (traces, each with its offset_ms) and calls_dropped. Durations
// are milliseconds with a fraction. It holds no inputs and no outputs.
func (t *Trace) Map() map[string]any {
	steps := make([]any, len(t.Steps))
	for i := range t.Steps {
		steps[i] = t.Steps[i].fields()
	}
	hooks := make([]any, len(t.Hooks))
	for i := range t.Hooks {
		hooks[i] = t.Hooks[i].fields()
	}
	m := map[string]any{
		"module_id": t.ModuleID, "strategy_name": t.Strategy, "steps": steps, "hooks": hooks,
		"total_duration_ms": millis(t.Duration), "success": t.Success, "error": nil,
	}
	if t.Error != nil {
		m["error"] = t.Error.Map()
	}
	if t.Remote != nil {
		m["remote"] = t.Remote
	}
	if len(t.Calls) > 0 {
		calls := make([]any, len(t.Calls))
		for i, c := range t.Calls {
			call := c.Map()
			call["offset_ms"] = millis(c.Offset)
			calls[i] = call
		}
		m["calls"] = calls
	}
	if t.CallsDropped > 0 {
		m["calls_dropped"] = int64(t.CallsDropped)
	}
	return m
}

func (s *StepTrace) fields() map[string]any {
	m := map[string]any{
		"name": s.Name, "duration_ms": millis(s.Duration), "result": nil, "skipped": s.Skipped,
		"decision_point": s.DecisionPoint, "skip_reason": nullable(s.SkipReason), "error_code": nullable(string(s.Error)),
	}
	if s.Result != nil {
		m["result"] = s.Result.fields()
	}
	return m
}

func (r *StepResult) fields() map[string]any {
	m := map[string]any{
		"action": r.Action.String(), "skip_to": nullable(r.Target), "explanation": nullable(r.Explanation),
		"confidence": nil, "alternatives": nil,
	}
	if r.Confidence != nil {
		m["confidence"] = *r.Confidence
	}
	if r.Alternatives != nil {
		list := make([]any, len(r.Alternatives))
		for i, a := range r.Alternatives {
			list[i] = a
		}
		m["alternatives"] = list
	}
	return m
}

func (h *HookTrace) fields() map[string]any {
	m := map[string]any{
		"middleware": h.Middleware, "hook": h.Hook, "step": nullable(h.Step), "duration_ms": millis(h.Duration),
		"replaced": h.Replaced, "recovery": nullable(h.Recovery), "error_code": nil,
	}
	if h.Err != nil {
		m["error_code"] = string(module.CodeOf(h.Err))
	}
	return m
}

// String returns the action as the protocol spells it.
func (a Action) String() string {
	switch a {
	case SkipTo:
		return "skip_to"
	case Abort:
		return "abort"
	default:
		return "continue"
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
