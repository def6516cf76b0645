package module_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/apbus/apbus/module"
)

var at = time.Date(2026, 9, 16, 12, 30, 0, 123_987_654, time.FixedZone("", 7200))

func TestErrorMap(t *testing.T) {
	bare := module.Errorf(module.CodeContextBindingError, "bad input").WithRetryable(module.Unset)
	bare.Timestamp = at
	full := module.Errorf(module.CodeModuleTimeout, "module timed out: %w", io.ErrUnexpectedEOF).
		WithDetail("module_id", "executor.email.send_email").WithDetail("timeout_ms", int64(5000)).
		WithGuidance("retry the call after a short delay").WithSuggestion("wait").WithUserFixable(module.True)
	full.Timestamp, full.TraceID, full.ModuleID = at, "4bf92f3577b34da6a3ce929d0e0e4736", "executor.email.send_email"
	full.CallChain, full.Unexecuted = []string{"a"}, true
	made := module.Errorf(module.CodeACLDenied, "no")
	made.Timestamp = at
	for _, tt := range []struct {
		name string
		err  *module.Error
		want obj
	}{
		{"sparse", bare, obj{"code": "CONTEXT_BINDING_ERROR", "message": "bad input", "timestamp": "2026-09-16T10:30:00.123Z"}},
		{"full", full, obj{
			"code": "MODULE_TIMEOUT", "message": "module timed out: unexpected EOF", "timestamp": "2026-09-16T10:30:00.123Z",
			"cause": "unexpected EOF", "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "module_id": "executor.email.send_email",
			"retryable": true, "user_fixable": true, "ai_guidance": "retry the call after a short delay", "suggestion": "wait",
			"details": obj{"module_id": "executor.email.send_email", "timeout_ms": int64(5000)},
		}},
		{"false is an answer", made, obj{"code": "ACL_DENIED", "message": "no", "timestamp": "2026-09-16T10:30:00.123Z", "retryable": false, "user_fixable": false}},
		{"empty details are absent", bare.WithDetails(obj{}), obj{"code": "CONTEXT_BINDING_ERROR", "message": "bad input", "timestamp": "2026-09-16T10:30:00.123Z"}},
		{"no timestamp is not the year 1", &module.Error{Code: "X"}, obj{"code": "X", "message": ""}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			equal(t, "map", tt.err.Map(), tt.want)
			got, ok := module.ErrorFromMap(hop(t, tt.err.Map()))
			if !ok || !got.Remote {
				t.Fatalf("ok %v, remote %v", ok, got.Remote)
			}
			equal(t, "map after a hop", got.Map(), tt.want)
			if got.Unwrap() != nil || got.CauseText() != tt.err.CauseText() {
				t.Errorf("cause %v, text %q", got.Unwrap(), got.CauseText())
			}
		})
	}
}

func TestErrorTimestampAlwaysHasThreeDigits(t *testing.T) {
	form := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`)
	e := module.Errorf(module.CodeInternal, "x")
	for _, ts := range []time.Time{e.Timestamp, at, at.Truncate(time.Second), at.Add(10 * time.Hour)} {
		e.Timestamp = ts
		if s, _ := e.Map()["timestamp"].(string); !form.MatchString(s) {
			t.Errorf("timestamp %q", s)
		}
	}
}

func TestErrorFromMapIsForgiving(t *testing.T) {
	for _, m := range []obj{nil, {}, {"code": ""}, {"code": int64(1)}, {"message": "x"}} {
		if e, ok := module.ErrorFromMap(m); ok || e != nil {
			t.Errorf("ErrorFromMap(%v) = %v, %v", m, e, ok)
		}
	}
	e, ok := module.ErrorFromMap(obj{
		"code": "ODD", "message": int64(1), "timestamp": "yesterday", "details": "x", "cause": obj{}, "trace_id": true,
		"retryable": "yes", "user_fixable": nil, "unknown": 1,
	})
	if !ok {
		t.Fatal("a code is all it takes")
	}
	equal(t, "map", e.Map(), obj{"code": "ODD", "message": ""})
	// The defaults of a code are the sender's to state.
	e, _ = module.ErrorFromMap(obj{"code": "MODULE_TIMEOUT"})
	if e.Retryable != module.Unset || e.UserFixable != module.Unset {
		t.Errorf("retryable %d, user fixable %d", e.Retryable, e.UserFixable)
	}
}

func TestErrorfDefaults(t *testing.T) {
	e := module.Errorf(module.CodeExecutionCancelled, "n = %d", 4)
	if e.Error() != "EXECUTION_CANCELLED: n = 4" || e.Retryable != module.True || e.UserFixable != module.Unset {
		t.Errorf("%v, retryable %d, user fixable %d", e, e.Retryable, e.UserFixable)
	}
	if e.Timestamp.Location() != time.UTC || e.Unwrap() != nil || e.CauseText() != "" || e.Details != nil || e.Remote || e.Unexecuted {
		t.Errorf("%+v", e)
	}
	if e := e.WithRetryable(module.Unset); e.Map()["retryable"] != nil {
		t.Error("an explicit unset must beat the default of the code")
	}
}

func TestErrorChain(t *testing.T) {
	path := &fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}
	one := module.Errorf(module.CodeConfigNotFound, "no config: %w", path)
	two := module.Errorf(module.CodeInternal, "%w and %w", io.EOF, path)
	wrapped := module.Wrap(module.CodeModuleLoadError, path, "100% sure it did not load")
	outer := fmt.Errorf("outer: %w", one)
	for _, tt := range []struct {
		name string
		err  error
		is   error
		want bool
	}{
		{"cause", one, fs.ErrNotExist, true},
		{"several causes, first", two, io.EOF, true},
		{"several causes, second", two, fs.ErrNotExist, true},
		{"wrap", wrapped, fs.ErrNotExist, true},
		{"code", outer, &module.Error{Code: module.CodeConfigNotFound}, true},
		{"other code", outer, &module.Error{Code: module.CodeInternal}, false},
		{"an error with a message is itself only", outer, module.Errorf(module.CodeConfigNotFound, "no config"), false},
		{"itself", outer, one, true},
		{"code of the cause", module.Errorf(module.CodeInternal, "%w", one), &module.Error{Code: module.CodeConfigNotFound}, true},
		{"nil target", outer, (*module.Error)(nil), false},
		{"foreign", one, io.EOF, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := errors.Is(tt.err, tt.is); got != tt.want {
				t.Errorf("errors.Is = %v", got)
			}
		})
	}
	if wrapped.Message != "100% sure it did not load" || wrapped.CauseText() != path.Error() {
		t.Errorf("message %q, cause %q", wrapped.Message, wrapped.CauseText())
	}
	if got, ok := errors.AsType[*fs.PathError](outer); !ok || got != path {
		t.Errorf("errors.As finds %v", got)
	}
	if module.AsError(outer) != one || module.AsError(io.EOF) != nil || module.AsError(nil) != nil {
		t.Error("AsError")
	}
	for _, tt := range []struct {
		err  error
		want module.Code
	}{{nil, ""}, {io.EOF, module.CodeInternal}, {outer, module.CodeConfigNotFound}} {
		hasCode(t, tt.err, tt.want)
	}
}

func TestErrorCopiesAreIndependent(t *testing.T) {
	base := module.Errorf(module.CodeInvalidInput, "bad: %w", io.EOF).WithDetail("a", int64(1))
	base.CallChain = []string{"x"}
	before := *base
	before.Details, before.CallChain = obj{"a": int64(1)}, []string{"x"}
	given := obj{"b": int64(2)}
	for name, e := range map[string]*module.Error{
		"detail": base.WithDetail("b", 1), "details": base.WithDetails(given), "cause": base.WithCause(io.ErrNoProgress),
		"cause text": base.WithCauseText("t"), "message": base.WithMessage("m"), "retryable": base.WithRetryable(module.True),
		"user fixable": base.WithUserFixable(module.False), "guidance": base.WithGuidance("g"), "suggestion": base.WithSuggestion("s"),
		"not executed": base.NotExecuted(), "at": base.At(module.NewContext(module.ContextOptions{}), "m"),
	} {
		if e == base {
			t.Errorf("%s: not a copy", name)
		}
		e.Details["z"] = true
		e.CallChain[0] = "changed"
		if diff := cmp.Diff(&before, base, cmpopts.IgnoreUnexported(module.Error{})); diff != "" {
			t.Errorf("%s changed the original (-want +got):\n%s", name, diff)
		}
	}
	if len(given) != 1 {
		t.Errorf("the given details changed: %v", given)
	}
	base.Map()["details"].(obj)["a"] = "changed"
	equal(t, "details after a change of the map", base.Details, obj{"a": int64(1)})
	if base.CauseText() != "EOF" || base.WithCause(nil).CauseText() != "" || base.WithCauseText("t").CauseText() != "t" || base.WithCauseText("t").Unwrap() != nil {
		t.Error("causes")
	}
	if !base.NotExecuted().Unexecuted || base.Unexecuted {
		t.Error("NotExecuted")
	}
}

func TestPropagate(t *testing.T) {
	c := module.RestoreContext(module.ContextWire{TraceID: "t1", CallChain: []string{"outer"}}).Enter("inner", module.CallScope{})
	chain := []string{"outer", "inner"}
	coded := module.Errorf("ORDERS_OUT_OF_STOCK", "none left").WithDetail("sku", "x")
	placed := coded.At(c, "deep")
	for _, tt := range []struct {
		name     string
		err      error
		code     module.Code
		moduleID string
		message  string
		details  obj
	}{
		{"coded keeps its code", coded, "ORDERS_OUT_OF_STOCK", "inner", "none left", obj{"sku": "x"}},
		{"wrapped coded keeps its code", fmt.Errorf("charging: %w", coded), "ORDERS_OUT_OF_STOCK", "inner", "none left", obj{"sku": "x"}},
		{"where it happened stays", placed, "ORDERS_OUT_OF_STOCK", "deep", "none left", obj{"sku": "x"}},
		{"deadline", fmt.Errorf("read: %w", context.DeadlineExceeded), module.CodeModuleTimeout, "inner", "module inner failed: read: context deadline exceeded", obj{"module_id": "inner"}},
		{"foreign", io.EOF, module.CodeModuleExecuteError, "inner", "module inner failed: EOF", obj{"module_id": "inner"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := module.Propagate(tt.err, "inner", c)
			if got.Code != tt.code || got.ModuleID != tt.moduleID || got.TraceID != "t1" || got.Message != tt.message {
				t.Errorf("got %s, module %s, trace %s, message %q", got.Code, got.ModuleID, got.TraceID, got.Message)
			}
			equal(t, "chain", got.CallChain, chain)
			equal(t, "details", got.Details, tt.details)
			if module.AsError(tt.err) == nil && !errors.Is(got, tt.err) {
				t.Error("the cause is lost")
			}
			got.CallChain[0] = "changed"
			equal(t, "chain of the context", c.CallChain(), chain)
		})
	}
	if module.Propagate(nil, "a", c) != nil {
		t.Error("nil must stay nil")
	}
	if again := module.Propagate(placed, "inner", c); again != placed {
		t.Error("an error that lacks nothing must be the same object")
	}
	if got := module.Propagate(io.EOF, "", nil); got.Message != "the call failed: EOF" || got.Details != nil || got.ModuleID != "" {
		t.Errorf("without a module: %+v", got)
	}
}

func TestErrorAtFillsWhatIsUnknown(t *testing.T) {
	c := module.RestoreContext(module.ContextWire{TraceID: "t1", CallChain: []string{"a"}})
	literal := &module.Error{Code: "X", TraceID: "own"}
	got := literal.At(c, "m")
	if got.TraceID != "own" || got.ModuleID != "m" || got.Timestamp.IsZero() {
		t.Errorf("%+v", got)
	}
	equal(t, "chain", got.CallChain, []string{"a"})
	if got.At(c, "other") != got || got.At(nil, "other") != got {
		t.Error("nothing was unknown, so nothing is to be copied")
	}
	if !literal.Timestamp.IsZero() || literal.ModuleID != "" {
		t.Error("the original changed")
	}
}
