package gateway

import (
	"context"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/module"
)

// internalMessage is all that the outside learns of an internal error; the log
// has the rest under the same trace ID.
const internalMessage = "internal error; the logs know more under this trace id"

// coded turns what an Invoker or another port returned into a coded error.
func coded(err error) *module.Error {
	if e := module.AsError(err); e != nil {
		return e
	}
	switch cancel.ReasonOf(err) {
	case "":
		return module.Wrap(module.CodeInternal, err, internalMessage)
	case cancel.Timeout:
		return module.Wrap(module.CodeModuleTimeout, err, "the call ran out of time")
	}
	return module.Wrap(module.CodeExecutionCancelled, err, "the call was cancelled")
}

// outward is e as the outside may see it: an internal error shows its code and
// trace only, and a failure of this process keeps its cause to itself.
func outward(e *module.Error, traceID string) *module.Error {
	if e.TraceID == "" && traceID != "" {
		seen := *e
		seen.TraceID = traceID
		e = &seen
	}
	if e.Code == module.CodeInternal {
		return &module.Error{
			Code: e.Code, Message: internalMessage, Timestamp: e.Timestamp,
			TraceID: e.TraceID, ModuleID: e.ModuleID, Retryable: e.Retryable, UserFixable: e.UserFixable,
		}
	}
	if !e.Remote && StatusOf(e.Code) >= 500 {
		return e.WithCauseText("")
	}
	return e
}

// retryAfter reads details.retry_after_ms as the Retry-After header, whole
// seconds rounded up; "" when there is none.
func retryAfter(e *module.Error) string {
	var ms float64
	switch v := e.Details["retry_after_ms"].(type) {
	case int64:
		ms = float64(v)
	case int:
		ms = float64(v)
	case uint64:
		ms = float64(v)
	case float64:
		ms = v
	default:
		return ""
	}
	if seconds := math.Ceil(ms / 1000); seconds >= 0 && seconds <= 1e9 {
		return strconv.FormatInt(int64(seconds), 10)
	}
	return ""
}

func invalid(format string, args ...any) *module.Error {
	return module.Errorf(module.CodeInvalidInput, format, args...)
}

func denied(reason, message string) *module.Error {
	return module.Errorf(module.CodeACLDenied, "%s", message).WithDetail("reason", reason)
}

func notFound(format string, args ...any) *module.Error {
	e := module.Errorf(CodeNotFound, format, args...)
	return e.WithRetryable(module.False)
}

// overloaded refuses before anything ran.
func overloaded(what string, after time.Duration) *module.Error {
	return module.Errorf(module.CodeBusOverloaded, "%s", what).
		WithDetail("retry_after_ms", after.Milliseconds()).NotExecuted()
}

// endOf is the error of a port, with the cause of ctx where the port only says
// that ctx ended.
func endOf(ctx context.Context, err error) error {
	if module.AsError(err) == nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return context.Cause(ctx)
	}
	return err
}
