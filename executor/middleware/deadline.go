package middleware

import (
	"context"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/apbus/apbus/module"
)

// Deadline honours data["x-deadline"], an absolute time in Unix seconds that
// crosses processes with the call (core-executor seed, global_deadline
// distributed semantics). A call that begins after it fails with MODULE_TIMEOUT
// before its module starts; for an earlier one the executor applies it as one
// more deadline. A value that is no number sets no limit and is logged once.
type Deadline struct {
	logger *slog.Logger
	warned atomic.Bool
}

var (
	_ BeforeHook  = (*Deadline)(nil)
	_ TimeLimiter = (*Deadline)(nil)
)

// NewDeadline makes the middleware. A nil logger is slog.Default.
func NewDeadline(logger *slog.Logger) *Deadline {
	if logger == nil {
		logger = slog.Default()
	}
	return &Deadline{logger: logger}
}

// Name returns "deadline".
func (*Deadline) Name() string { return "deadline" }

// Priority returns 950: a late call should cost nothing else.
func (*Deadline) Priority() int { return 950 }

// Before fails with MODULE_TIMEOUT when the deadline has passed.
func (d *Deadline) Before(_ context.Context, call *Call) (map[string]any, error) {
	at, ok := d.Limit(call)
	if !ok || time.Now().Before(at) {
		return nil, nil
	}
	return nil, module.Errorf(module.CodeModuleTimeout, "the caller's deadline has passed").
		WithDetails(map[string]any{"module_id": call.ModuleID, "timeout_ms": int64(0)}).NotExecuted()
}

// Limit returns the deadline of call, if it has one.
func (d *Deadline) Limit(call *Call) (time.Time, bool) {
	if call.Context == nil {
		return time.Time{}, false
	}
	v, ok := call.Context.Data().Get(module.DataDeadline)
	if !ok || v == nil {
		return time.Time{}, false
	}
	at, ok := unixSeconds(v)
	if !ok && d.warned.CompareAndSwap(false, true) {
		d.logger.Warn("x-deadline is not a time in unix seconds, ignored", callAttrsAny(call)...)
	}
	return at, ok
}

// maxUnixSeconds is where arithmetic on time.Time still works, far beyond any
// deadline that means something.
const maxUnixSeconds = 1 << 40

func unixSeconds(v any) (time.Time, bool) {
	var s float64
	switch n := v.(type) {
	case int64:
		s = float64(n)
	case uint64:
		s = float64(n)
	case int:
		s = float64(n)
	case float64:
		s = n
	default:
		return time.Time{}, false
	}
	if math.IsNaN(s) {
		return time.Time{}, false
	}
	s = min(max(s, -maxUnixSeconds), maxUnixSeconds)
	whole, frac := math.Modf(s)
	return time.Unix(int64(whole), int64(frac*float64(time.Second))), true
}

func callAttrsAny(call *Call) []any {
	attrs := callAttrs(call)
	out := make([]any, len(attrs))
	for i, a := range attrs {
		out[i] = a
	}
	return out
}
