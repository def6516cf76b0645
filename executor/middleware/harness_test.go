package middleware_test

import (
	"context"
	"sync"
	"testing"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// callOf is a fresh call of a module that may be retried, from caller ("" for the
// top level).
func callOf(moduleID, caller string) *middleware.Call {
	c := module.NewContext(module.ContextOptions{})
	if caller != "" {
		c = c.Child(caller)
	}
	return &middleware.Call{
		ModuleID: moduleID, Inputs: obj{"n": int64(1)}, Context: c.Child(moduleID),
		Descriptor: &module.Descriptor{ID: moduleID, Annotations: module.Annotations{Idempotent: true}},
	}
}

// driven is what became of a call.
type driven struct {
	output obj
	err    *module.Error
	runs   int // of the module
}

// drive runs a call through a chain as the executor does: before, the module, after
// or on_error, end, and again when a hook asks for it. run gives the module's result,
// nil for success.
func drive(ctx context.Context, c *middleware.Chain, call *middleware.Call, run func(ctx context.Context, n int) *module.Error) driven {
	var d driven
	original := *call
	for {
		_, entered, err := c.Before(ctx, call)
		var failure *module.Error
		if err != nil {
			failure = module.Propagate(err, call.ModuleID, call.Context)
		} else {
			d.runs++
			failure = run(call.Derived(ctx), d.runs)
		}
		if failure == nil {
			d.output, err = c.After(ctx, call, obj{"ok": true})
			if failure = module.Propagate(err, call.ModuleID, call.Context); failure == nil {
				c.End(ctx, call, entered, nil)
				return d
			}
		}
		var r middleware.Recovery
		if failure.Code != module.CodeExecutionCancelled {
			r = c.OnError(ctx, call, entered, failure)
		}
		if r.Output != nil {
			c.End(ctx, call, entered, nil)
			d.output = r.Output
			return d
		}
		c.End(ctx, call, entered, failure)
		if r.Retry == nil {
			d.err = failure
			return d
		}
		*call = original
		call.Inputs = r.Retry
	}
}

func failing(code module.Code) func(context.Context, int) *module.Error {
	return func(context.Context, int) *module.Error { return module.Errorf(code, "no") }
}

func working(context.Context, int) *module.Error { return nil }

// bell keeps the events that it is told.
type bell struct {
	mu     sync.Mutex
	events []module.Event
}

func (b *bell) ring(e module.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, e)
}

func (b *bell) types() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	for _, e := range b.events {
		out = append(out, e.Type)
	}
	return out
}

// made panics on a configuration that a test got wrong.
func made[T any](m T, err error) T {
	if err != nil {
		panic(err)
	}
	return m
}

func wantInvalid(t *testing.T, what string, err error, code module.Code) {
	t.Helper()
	if module.CodeOf(err) != code {
		t.Errorf("%s: %v, want %s", what, err, code)
	}
}
