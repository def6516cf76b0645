package middleware

import (
	"context"
	"time"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// Priorities. Recommended bands (protocol §11): 900-1000 framework, 800-899
// security, 700-799 logging, 600-699 validation, below that everything else.
const (
	MinPriority     = 0
	DefaultPriority = 100
	MaxPriority     = 1000
)

// Middleware wraps calls by implementing at least one of [BeforeHook],
// [AfterHook], [ErrorHook], [EndHook] and [TimeLimiter]. Name and Priority are read once,
// when it is registered. It must be comparable, as pointers are, since it is
// removed by instance.
type Middleware interface {
	// Name says in errors and logs which one it was.
	Name() string
	// Priority is within MinPriority and MaxPriority; higher runs first.
	Priority() int
}

// BeforeHook runs before input validation. A non-nil map replaces the inputs
// entirely; nil leaves them. An error ends the call.
type BeforeHook interface {
	Before(ctx context.Context, call *Call) (map[string]any, error)
}

// AfterHook runs after output validation, which does not see what it returns. A
// non-nil map replaces the output entirely; nil leaves it. An error ends the call.
type AfterHook interface {
	After(ctx context.Context, call *Call, output map[string]any) (map[string]any, error)
}

// ErrorHook runs when a call it had entered failed, except by cancellation. An
// error of its own is logged and the next hook is tried.
type ErrorHook interface {
	OnError(ctx context.Context, call *Call, err *module.Error) (Recovery, error)
}

// EndHook is told that a run of the pipeline it had entered is over, whatever
// ended it: a result, a failure, a recovery by another hook, a cancellation, which
// the other hooks do not see. It comes last, exactly once for each run, in reverse
// order; a retry is another run. It changes nothing and must not block.
type EndHook interface {
	// End gets the failure of this run, nil when the call succeeds, be it through a
	// recovery. ctx may have ended.
	End(ctx context.Context, call *Call, err *module.Error)
}

// Single is a middleware of which a list holds at most one of its type. A second
// one is refused.
type Single interface{ Single() }

// TimeLimiter gives calls one more deadline, beside those of the module and the
// executor. It is asked once per call, before the first Before.
type TimeLimiter interface {
	Limit(call *Call) (deadline time.Time, ok bool)
}

// Enricher is a middleware that is declared to change inputs. Changes by others
// after a call was approved make the executor refuse it, since nobody approved
// them; the reviewer is told the enrichers' names.
type Enricher interface {
	EnrichesInputs() bool
}

// Call is what hooks see of one call. They may read it and use its state; only
// the chain changes Inputs, and nobody may modify the map in place.
type Call struct {
	ModuleID string
	// Inputs are the inputs as the hooks so far left them.
	Inputs map[string]any
	// Context is never nil.
	Context *module.Context
	// Descriptor describes the module; nil for a module on another node.
	Descriptor *module.Descriptor

	ctx                  context.Context // handed from a before hook to the executor, see Derive
	original             map[string]any
	failure              *module.Error
	state                []callState
	starts               []callStart // apart from state, which would put every time on the heap
	enriched, undeclared []string
	guarded              bool
	watch                func(HookEvent)
}

// InputChanges names the middlewares that replaced the inputs in the latest
// Before, those that are declared enrichers apart from those that are not.
func (c *Call) InputChanges() (declared, undeclared []string) {
	if c == nil {
		return nil, nil
	}
	return c.enriched, c.undeclared
}

// Guard makes Before look at the inputs around every hook, so that InputChanges
// also names a middleware that changed them in place, which none may do. It is for
// calls that were approved.
func (c *Call) Guard() { c.guarded = true }

// digest identifies the inputs of a guarded call, "" otherwise.
func (c *Call) digest() string {
	if !c.guarded {
		return ""
	}
	return schema.ContentHash(c.Inputs)
}

// Derive replaces the context of the rest of the call, for later hooks, the steps
// that follow and the module. ctx must be derived from the one that the hook was
// given, and it is for before hooks only: a span that nested calls shall find is
// the use for it.
func (c *Call) Derive(ctx context.Context) { c.ctx = ctx }

// Derived returns the context that before hooks made, or else ctx.
func (c *Call) Derived(ctx context.Context) context.Context {
	if c.ctx != nil {
		return c.ctx
	}
	return ctx
}

// Original returns the inputs as they were before the first hook, which is what a
// retry wants: the hooks run over them again.
func (c *Call) Original() map[string]any {
	if c.original != nil {
		return c.original
	}
	return c.Inputs
}

// Failure returns the error that the error hooks were asked about in this run, also
// when one of them recovered it, or nil.
func (c *Call) Failure() *module.Error { return c.failure }

type callState struct{ key, value any }

// begin notes when the call reached the middleware of that key.
func (c *Call) begin(key any) { c.starts = append(c.starts, callStart{key, time.Now()}) }

// begun returns what begin noted.
func (c *Call) begun(key any) (at time.Time, ok bool) {
	for i := range c.starts {
		if c.starts[i].key == key {
			return c.starts[i].at, true
		}
	}
	return time.Time{}, false
}

type callStart struct {
	key any
	at  time.Time
}

// SetState keeps a value for the rest of this call. The key should be the
// middleware instance or a type of its own, as with context.WithValue. Not safe
// for concurrent use, which hooks of one call never need.
func (c *Call) SetState(key, value any) {
	for i := range c.state {
		if c.state[i].key == key {
			c.state[i].value = value
			return
		}
	}
	c.state = append(c.state, callState{key, value})
}

// State returns what SetState kept under key, or nil.
func (c *Call) State(key any) any {
	for i := range c.state {
		if c.state[i].key == key {
			return c.state[i].value
		}
	}
	return nil
}

// Recovery is what an [ErrorHook] offers instead of the error. The zero value
// offers nothing; setting both fields is a fault of the hook.
type Recovery struct {
	// Output, when non-nil, becomes the call's final output.
	Output map[string]any
	// Retry, when non-nil, re-runs the pipeline with these inputs.
	Retry map[string]any
}

// Recovered reports whether r offers anything.
func (r Recovery) Recovered() bool { return r.Output != nil || r.Retry != nil }
