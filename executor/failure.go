package executor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

const (
	levelError = slog.LevelError
	levelWarn  = slog.LevelWarn
)

// StepError says in which step a call failed. errors.As finds it around the
// coded error that Call returns; errors.Is matches it as PIPELINE_STEP_ERROR
// (core-executor seed, Fail-Fast Error Handling).
type StepError struct {
	Step string
	// Err is the original error.
	Err error
}

// Error names the step and says what the original error says.
func (e *StepError) Error() string { return "step " + e.Step + ": " + e.Err.Error() }

// Unwrap returns the original error.
func (e *StepError) Unwrap() error { return e.Err }

// Is reports whether target is an *Error of code PIPELINE_STEP_ERROR without a
// message.
func (e *StepError) Is(target error) bool {
	t, ok := target.(*module.Error) // Is must look at target itself, errors.Is walks the chain
	return ok && t.Message == "" && t.Code == module.CodePipelineStep
}

// surface makes the one coded error of a failed run: the original cause, never
// one of the wrappers around it (decision D-22).
func (p *Pipeline) surface(step *StepError) *module.Error {
	err := step.Err
	if chain, ok := errors.AsType[*middleware.ChainError](err); ok {
		err = chain.Original
		if v, ok := errors.AsType[*middleware.PanicError](err); ok {
			p.x.log.LogAttrs(p.ctx, levelError, "middleware panicked", p.attrs(
				slog.String("middleware", v.Middleware), slog.String("hook", v.Hook), slog.String("stack", string(v.Stack)))...)
		}
	}
	coded := module.AsError(err)
	if coded == nil && p.ctx.Err() != nil && isContextError(err) {
		return p.ended(p.ctx).At(p.mctx, p.moduleID)
	}
	coded = module.Propagate(err, p.moduleID, p.mctx)
	if coded.Code == module.CodeModuleExecuteError && coded.Retryable == module.Unset && p.entry != nil &&
		p.entry.Descriptor.Annotations.Idempotent {
		coded = coded.WithRetryable(module.True)
	}
	if p.foreign {
		ref := p.ref()
		coded = ref.scrub(coded)
	}
	if coded.Unexecuted && !p.unexecuted(coded.Code) {
		c := *coded
		c.Unexecuted = false
		coded = &c
	}
	return coded
}

// unexecuted reports whether an error may say that the module was not started.
// Clients take that as leave to try again, so it is kept to failures that another
// attempt can mend, and it is never handed on from a call that the module or a
// middleware made itself.
func (p *Pipeline) unexecuted(code module.Code) bool {
	if p.foreign {
		return false
	}
	switch code {
	case module.CodeExecutionCancelled, module.CodeModuleNotFound, module.CodeModuleDisabled, module.CodeBusVersionMismatch:
		return true
	}
	return p.remote
}

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, cancel.ErrCancelled)
}

// ended is the error of a call whose context ctx has ended: MODULE_TIMEOUT when
// time was the reason and EXECUTION_CANCELLED otherwise.
func (p *Pipeline) ended(ctx context.Context) *module.Error {
	cause := context.Cause(ctx)
	reason := cancel.ReasonOf(cause)
	if reason == cancel.Timeout {
		ms := p.clock.allowed(ctx, p.started).Milliseconds()
		return module.Wrap(module.CodeModuleTimeout, cause, fmt.Sprintf("module %s exceeded its time of %d ms", p.moduleID, ms)).
			WithDetails(map[string]any{"module_id": p.moduleID, "timeout_ms": ms})
	}
	if reason == "" {
		reason = cancel.Caller
	}
	return module.Wrap(module.CodeExecutionCancelled, cause, "execution of "+p.moduleID+" was cancelled, reason "+string(reason)).
		WithDetails(map[string]any{"module_id": p.moduleID, "reason": string(reason)})
}

// ceilMillis rounds up, so that a limit that was just missed reads as it was set.
func ceilMillis(d time.Duration) time.Duration {
	if r := d % time.Millisecond; r > 0 {
		d += time.Millisecond - r
	}
	return max(d, 0)
}
