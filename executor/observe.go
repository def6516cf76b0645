package executor

import (
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/apbus/apbus/module"
)

// Observer is told how calls ended, exactly once for each call of a module that
// this process owns, whatever the outcome: success, denial, cancellation,
// timeout. A retry that a middleware asked for is part of its call. Observe runs
// in the caller's goroutine just before the call returns, so it must not block:
// hand the work over and drop what does not fit. It must be safe for concurrent
// use.
type Observer interface {
	Observe(c Completion)
}

// ObserverFunc is a function as an [Observer].
type ObserverFunc func(c Completion)

// Observe calls f.
func (f ObserverFunc) Observe(c Completion) { f(c) }

// Completion is how one call ended. Read the redacted views inside Observe:
// afterwards the maps behind them belong to the caller again.
type Completion struct {
	ModuleID string
	// Descriptor is nil when the call ended before the module was looked up.
	Descriptor *module.Descriptor
	// Context is the call's own: its chain holds the module. Call tells the bus
	// call it belongs to, attempt included.
	Context *module.Context
	// Err is nil for a success.
	Err *module.Error
	// Started is when the call entered the executor; Duration ends with Observe.
	Started  time.Time
	Duration time.Duration
	// Executed is true when the module's code was started.
	Executed bool
	// Retries counts how often a middleware had the pipeline run again.
	Retries int
	// Abandoned is true when the module was still running.
	Abandoned bool
	// Chunks counts what a stream delivered. PostError is what failed once its last
	// chunk was out, which the caller was not told: Err is nil then.
	Chunks    int
	PostError *module.Error
	// Stream is true when chunks were asked for.
	Stream bool
	// Foreign is true when Err was made by the module, a middleware or a handler, or
	// came from a call that one of them made.
	Foreign bool
	// Limit is the module's limit that was in force, Budget the time its caller and
	// the whole call tree had left when it entered; 0 for none.
	Limit, Budget time.Duration

	raw map[string]any // the inputs, whose size is looked at before they are redacted
}

// Inputs returns the redacted inputs, nil before lookup.
func (c Completion) Inputs() map[string]any { return c.Context.RedactedInputs() }

// Output returns the redacted output, nil unless the module produced one.
func (c Completion) Output() map[string]any { return c.Context.RedactedOutput() }

func (p *Pipeline) complete(err *module.Error) {
	x := p.x
	if x.observer == nil || p.remote || p.mctx == nil {
		return
	}
	if p.entry == nil {
		// The call ended before its lookup; it is ours only if the module is.
		if _, own := x.reg.Get(p.moduleID); !own {
			return
		}
	}
	defer func() {
		if v := recover(); v != nil {
			x.log.LogAttrs(p.ctx, slog.LevelError, "observer panicked", p.attrs(slog.String("stack", string(debug.Stack())))...)
		}
	}()
	c := Completion{
		ModuleID: p.moduleID, Context: p.mctx, Err: err,
		Started: p.started, Duration: time.Since(p.started),
		Executed: p.executed, Retries: p.retries, Abandoned: p.abandoned,
		Chunks: p.chunks, PostError: p.postError,
		Stream: p.sink != nil, Foreign: p.foreign, Limit: p.clock.limit, Budget: p.clock.whole,
		raw: p.inputs,
	}
	if p.entry != nil {
		c.Descriptor = p.entry.Descriptor
	}
	x.observer.Observe(c)
}
