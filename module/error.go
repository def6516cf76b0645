package module

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Error is the one coded failure of a call (protocol §8.1). It keeps its cause
// behind [errors.Unwrap]. An Error handed to others is not modified; the With
// methods return copies.
type Error struct {
	Code    Code
	Message string
	// Timestamp is when the error was made, UTC.
	Timestamp time.Time
	// Details holds JSON data model values under snake_case keys; nil when empty.
	Details map[string]any
	// TraceID and ModuleID are filled in by the executor when they are empty.
	TraceID  string
	ModuleID string
	// CallChain is a copy of the chain the error travelled through, outermost first.
	CallChain []string
	// Retryable and UserFixable start with the code's defaults.
	Retryable   Tri
	UserFixable Tri
	AIGuidance  string
	Suggestion  string
	// Remote is true when a peer sent the error and false when this process made it.
	Remote bool
	// Unexecuted is true when the module was certainly not started, so that
	// another attempt cannot run it twice.
	Unexecuted bool

	cause error
	// causeText stands for the cause of an error that came over the wire.
	causeText string
}

// Errorf makes an error with the code's defaults. A %w verb keeps its operand
// as the cause; several are joined.
func Errorf(code Code, format string, args ...any) *Error {
	wrapped := fmt.Errorf(format, args...)
	info := code.Info()
	e := &Error{
		Code: code, Message: wrapped.Error(), Timestamp: time.Now().UTC(),
		Retryable: info.Retryable, UserFixable: info.UserFixable,
		cause: errors.Unwrap(wrapped),
	}
	if several, ok := wrapped.(interface{ Unwrap() []error }); ok {
		e.cause = errors.Join(several.Unwrap()...)
	}
	return e
}

// Wrap makes an error with a message of its own over a cause that the message
// does not repeat.
func Wrap(code Code, cause error, message string) *Error {
	e := Errorf(code, "%s", message)
	e.cause = cause
	return e
}

// Error returns "CODE: message".
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Unwrap returns the cause, or nil.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether target is an *Error of the same code without a message,
// as in errors.Is(err, &module.Error{Code: module.CodeACLDenied}).
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error) // target itself: errors.Is walks the chain
	return ok && t != nil && t.Message == "" && t.Code == e.Code
}

// CauseText returns the cause's message, also for an error that came over the
// wire; empty when there is none.
func (e *Error) CauseText() string {
	if e.cause != nil {
		return e.cause.Error()
	}
	return e.causeText
}

// clone shares nothing that either side may write; the values under Details are
// shared.
func (e *Error) clone() *Error {
	c := *e
	c.Details, c.CallChain = maps.Clone(e.Details), slices.Clone(e.CallChain)
	return &c
}

// WithDetail returns a copy with one more detail.
func (e *Error) WithDetail(key string, value any) *Error {
	c := e.clone()
	if c.Details == nil {
		c.Details = map[string]any{}
	}
	c.Details[key] = value
	return c
}

// WithDetails returns a copy whose details are a copy of those given, replacing
// earlier ones.
func (e *Error) WithDetails(details map[string]any) *Error {
	c := e.clone()
	c.Details = maps.Clone(details)
	return c
}

// WithCause returns a copy with another cause.
func (e *Error) WithCause(cause error) *Error {
	c := e.clone()
	c.cause, c.causeText = cause, ""
	return c
}

// WithCauseText returns a copy whose cause is known by its text only, as after
// a hop or after its text was scrubbed of sensitive values.
func (e *Error) WithCauseText(text string) *Error {
	c := e.clone()
	c.cause, c.causeText = nil, text
	return c
}

// WithMessage returns a copy with another message.
func (e *Error) WithMessage(message string) *Error {
	c := e.clone()
	c.Message = message
	return c
}

// WithRetryable returns a copy with an explicit answer, Unset included.
func (e *Error) WithRetryable(t Tri) *Error {
	c := e.clone()
	c.Retryable = t
	return c
}

// WithUserFixable returns a copy with an explicit answer, Unset included.
func (e *Error) WithUserFixable(t Tri) *Error {
	c := e.clone()
	c.UserFixable = t
	return c
}

// WithGuidance returns a copy that tells the calling model what to do.
func (e *Error) WithGuidance(text string) *Error {
	c := e.clone()
	c.AIGuidance = text
	return c
}

// WithSuggestion returns a copy that tells a person what to do.
func (e *Error) WithSuggestion(text string) *Error {
	c := e.clone()
	c.Suggestion = text
	return c
}

// NotExecuted returns a copy that says the module was certainly not started.
func (e *Error) NotExecuted() *Error {
	c := e.clone()
	c.Unexecuted = true
	return c
}

// At returns a copy that carries where it happened, for each part that was still
// unknown; when nothing was, it returns e itself. The chain is copied. An error
// made without [Errorf] gets its timestamp here.
func (e *Error) At(c *Context, moduleID string) *Error {
	needsModule := e.ModuleID == "" && moduleID != ""
	needsTrace := c != nil && e.TraceID == "" && c.traceID != ""
	needsChain := c != nil && e.CallChain == nil && len(c.chain) > 0
	if !needsModule && !needsTrace && !needsChain && !e.Timestamp.IsZero() {
		return e
	}
	out := e.clone()
	if needsModule {
		out.ModuleID = moduleID
	}
	if needsTrace {
		out.TraceID = c.traceID
	}
	if needsChain {
		out.CallChain = slices.Clone(c.chain)
	}
	if out.Timestamp.IsZero() {
		out.Timestamp = time.Now().UTC()
	}
	return out
}

// Propagate turns any error of a module or middleware into an *Error that knows
// where it happened (algorithm A11): a coded error anywhere in err's chain keeps
// its code, a deadline becomes MODULE_TIMEOUT, everything else
// MODULE_EXECUTE_ERROR with the original as cause. A nil err gives nil.
func Propagate(err error, moduleID string, c *Context) *Error {
	if err == nil {
		return nil
	}
	if coded := AsError(err); coded != nil {
		return coded.At(c, moduleID)
	}
	code := CodeModuleExecuteError
	if errors.Is(err, context.DeadlineExceeded) {
		code = CodeModuleTimeout
	}
	what := "the call"
	if moduleID != "" {
		what = "module " + moduleID
	}
	e := Errorf(code, "%s failed: %w", what, err)
	if moduleID != "" {
		e.Details = map[string]any{"module_id": moduleID}
	}
	return e.At(c, moduleID)
}

// AsError finds the coded error in err's chain. It returns nil when there is none.
func AsError(err error) *Error {
	coded, _ := errors.AsType[*Error](err)
	return coded
}

// CodeOf returns the code of err: its own, GENERAL_INTERNAL_ERROR for an error
// without one, and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e := AsError(err); e != nil {
		return e.Code
	}
	return CodeInternal
}

// timestampLayout has exactly three fraction digits (decision D-120).
const timestampLayout = "2006-01-02T15:04:05.000Z"

// Map returns the sparse wire form: keys without a value are absent, never null
// (protocol §8.1). Changing the map and its details leaves e alone.
func (e *Error) Map() map[string]any {
	m := map[string]any{"code": string(e.Code), "message": e.Message}
	if !e.Timestamp.IsZero() {
		m["timestamp"] = e.Timestamp.UTC().Format(timestampLayout)
	}
	if len(e.Details) > 0 {
		m["details"] = maps.Clone(e.Details)
	}
	if text := e.CauseText(); text != "" {
		m["cause"] = text
	}
	if e.TraceID != "" {
		m["trace_id"] = e.TraceID
	}
	if e.ModuleID != "" {
		m["module_id"] = e.ModuleID
	}
	if v, ok := e.Retryable.Bool(); ok {
		m["retryable"] = v
	}
	if v, ok := e.UserFixable.Bool(); ok {
		m["user_fixable"] = v
	}
	if e.AIGuidance != "" {
		m["ai_guidance"] = e.AIGuidance
	}
	if e.Suggestion != "" {
		m["suggestion"] = e.Suggestion
	}
	return m
}

// ErrorFromMap reads the wire form. Only code is needed; what is missing stays
// unset and what is malformed is left out. The error is marked Remote. ok is
// false when m holds no code.
func ErrorFromMap(m map[string]any) (e *Error, ok bool) {
	code, _ := m["code"].(string)
	if code == "" {
		return nil, false
	}
	text := func(key string) string { s, _ := m[key].(string); return s }
	tri := func(key string) Tri {
		if b, ok := m[key].(bool); ok {
			return TriOf(b)
		}
		return Unset
	}
	e = &Error{
		Code: Code(code), Message: text("message"), TraceID: text("trace_id"), ModuleID: text("module_id"),
		Retryable: tri("retryable"), UserFixable: tri("user_fixable"),
		AIGuidance: text("ai_guidance"), Suggestion: text("suggestion"),
		Remote: true, causeText: text("cause"),
	}
	if details, _ := m["details"].(map[string]any); len(details) > 0 {
		e.Details = details
	}
	if at, err := time.Parse(time.RFC3339Nano, text("timestamp")); err == nil {
		e.Timestamp = at.UTC()
	}
	return e, true
}
