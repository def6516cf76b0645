package middleware

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/apbus/apbus/module"
)

// Chain is an ordered set of middlewares that never changes, so a call that
// started on it is not affected by later registrations. A nil or empty Chain
// does nothing at no cost. Safe for concurrent use.
type Chain struct {
	entries  []entry
	limiters []TimeLimiter
	logger   *slog.Logger
	// The flags spare a walk over middlewares that lack the hook.
	hasBefore, hasAfter, hasError, hasEnd bool
}

// entry is a middleware with its hooks looked up once; a nil hook is absent.
type entry struct {
	m        Middleware
	name     string
	priority int
	enriches bool
	before   BeforeHook
	after    AfterHook
	onError  ErrorHook
	end      EndHook
	site     string // where it was registered, for List
	distinct bool   // registered as a duplicate on purpose
}

// NewChain checks and orders the middlewares, given in registration order. A
// nil logger is slog.Default; it hears of failing error hooks only. See
// [List.Use] for what is refused, with GENERAL_INVALID_INPUT.
func NewChain(logger *slog.Logger, middlewares ...Middleware) (*Chain, error) {
	entries := make([]entry, 0, len(middlewares))
	for _, m := range middlewares {
		e, err := newEntry(m)
		if err != nil {
			return nil, err
		}
		if err := refuseSecond(entries, e); err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return chainOf(logger, entries), nil
}

// chainOf sorts a copy of entries, which are in registration order.
func chainOf(logger *slog.Logger, entries []entry) *Chain {
	if logger == nil {
		logger = slog.Default()
	}
	c := &Chain{entries: slices.Clone(entries), logger: logger}
	slices.SortStableFunc(c.entries, func(a, b entry) int { return cmp.Compare(b.priority, a.priority) })
	for _, e := range c.entries {
		c.hasBefore = c.hasBefore || e.before != nil
		c.hasAfter = c.hasAfter || e.after != nil
		c.hasError = c.hasError || e.onError != nil
		c.hasEnd = c.hasEnd || e.end != nil
		if l, ok := e.m.(TimeLimiter); ok {
			c.limiters = append(c.limiters, l)
		}
	}
	return c
}

// Len returns the number of middlewares.
func (c *Chain) Len() int {
	if c == nil {
		return 0
	}
	return len(c.entries)
}

// Enrichers names the middlewares that are declared to change inputs, in before
// order.
func (c *Chain) Enrichers() []string {
	if c == nil {
		return nil
	}
	var names []string
	for _, e := range c.entries {
		if e.enriches {
			names = append(names, e.name)
		}
	}
	return names
}

// Names lists the middlewares in before order.
func (c *Chain) Names() []string {
	if c == nil {
		return nil
	}
	return executedNames(c.entries, len(c.entries))
}

// Limit returns the earliest deadline that a [TimeLimiter] sets for call.
func (c *Chain) Limit(call *Call) (deadline time.Time, ok bool) {
	if c == nil {
		return time.Time{}, false
	}
	for _, l := range c.limiters {
		if at, set := c.limitOf(l, call); set && (!ok || at.Before(deadline)) {
			deadline, ok = at, true
		}
	}
	return deadline, ok
}

// limitOf takes a limiter that panics for one without a limit: the executor's
// own limits still hold.
func (c *Chain) limitOf(l TimeLimiter, call *Call) (deadline time.Time, ok bool) {
	defer func() {
		if recover() != nil {
			deadline, ok = time.Time{}, false
			c.logger.Error("middleware time limit panicked, ignored", callAttrsAny(call)...)
		}
	}()
	return l.Limit(call)
}

// Before runs the before hooks. It returns the inputs as the last hook left
// them, also kept in call.Inputs, and how many middlewares were entered, to be
// given to OnError. A failure is a [*ChainError]; the failing middleware counts
// as entered.
func (c *Chain) Before(ctx context.Context, call *Call) (inputs map[string]any, entered int, err error) {
	call.original, call.failure = call.Inputs, nil
	if c == nil || !c.hasBefore {
		return call.Inputs, c.Len(), nil
	}
	call.enriched, call.undeclared = nil, nil // a retry starts over
	for i := range c.entries {
		e := &c.entries[i]
		if e.before == nil {
			continue
		}
		started, given := call.started(), call.digest()
		replaced, err := e.runBefore(call.Derived(ctx), call)
		call.ran(e, "before", started, replaced != nil, Recovery{}, err)
		if err != nil {
			return call.Inputs, i + 1, c.failed(e, "before", i+1, err)
		}
		switch {
		case replaced != nil:
			call.replaceInputs(e, replaced)
		case call.digest() != given:
			call.replaceInputs(e, call.Inputs) // in place
		}
	}
	return call.Inputs, len(c.entries), nil
}

func (c *Call) replaceInputs(e *entry, inputs map[string]any) {
	c.Inputs = inputs
	if e.enriches {
		c.enriched = append(c.enriched, e.name)
	} else {
		c.undeclared = append(c.undeclared, e.name)
	}
}

// After runs the after hooks in reverse and returns the output as the last one
// left it. It stops at the first error, a [*ChainError].
func (c *Chain) After(ctx context.Context, call *Call, output map[string]any) (map[string]any, error) {
	if c == nil || !c.hasAfter {
		return output, nil
	}
	for i := len(c.entries) - 1; i >= 0; i-- {
		e := &c.entries[i]
		if e.after == nil {
			continue
		}
		started := call.started()
		replaced, err := e.runAfter(ctx, call, output)
		call.ran(e, "after", started, replaced != nil, Recovery{}, err)
		if err != nil {
			return output, c.failed(e, "after", len(c.entries), err)
		}
		if replaced != nil {
			output = replaced
		}
	}
	return output, nil
}

// OnError runs the error hooks in reverse over the first entered middlewares.
// The first recovery wins and ends the walk; the zero Recovery means that err
// stands. A hook that fails is logged and skipped. Cancellation must not be
// brought here (core-executor seed, Cancellation Short-Circuit).
func (c *Chain) OnError(ctx context.Context, call *Call, entered int, err *module.Error) Recovery {
	call.failure = err
	if c == nil || !c.hasError {
		return Recovery{}
	}
	for i := min(entered, len(c.entries)) - 1; i >= 0; i-- {
		e := &c.entries[i]
		if e.onError == nil {
			continue
		}
		started := call.started()
		r, failure := e.runOnError(ctx, call, err)
		call.ran(e, "on_error", started, false, r, failure)
		if failure != nil {
			c.logFailedHook(ctx, e, call, failure)
			continue
		}
		if r.Recovered() {
			return r
		}
	}
	return Recovery{}
}

// End tells the first entered middlewares, in reverse, how this run ended; see
// [EndHook]. A hook that panics is logged.
func (c *Chain) End(ctx context.Context, call *Call, entered int, err *module.Error) {
	if c == nil || !c.hasEnd {
		return
	}
	for i := min(entered, len(c.entries)) - 1; i >= 0; i-- {
		if e := &c.entries[i]; e.end != nil {
			if failure := e.runEnd(ctx, call, err); failure != nil {
				c.logFailedHook(ctx, e, call, failure)
			}
		}
	}
}

func (c *Chain) failed(e *entry, hook string, entered int, err error) *ChainError {
	return &ChainError{Original: err, Executed: executedNames(c.entries, entered), Failed: e.name, Hook: hook}
}

// logFailedHook leaves the error's text out: it often wraps the module's error,
// whose text may hold values of the call.
func (c *Chain) logFailedHook(ctx context.Context, e *entry, call *Call, err error) {
	attrs := append(callAttrs(call),
		slog.String("middleware", e.name),
		slog.String("code", string(module.CodeOf(err))),
		slog.String("cause", fmt.Sprintf("%T", err)))
	c.logger.LogAttrs(ctx, slog.LevelError, "middleware error hook failed, skipped", attrs...)
}

func callAttrs(call *Call) []slog.Attr {
	attrs := append(make([]slog.Attr, 0, 8), slog.String("module_id", call.ModuleID))
	if c := call.Context; c != nil {
		attrs = append(attrs, slog.String("trace_id", c.TraceID()))
		if id := c.Call().ID; id != "" {
			attrs = append(attrs, slog.String("call_id", id))
		}
	}
	return attrs
}

func (e *entry) runBefore(ctx context.Context, call *Call) (inputs map[string]any, err error) {
	defer e.guard("before", &err)
	return e.before.Before(ctx, call)
}

func (e *entry) runAfter(ctx context.Context, call *Call, output map[string]any) (replaced map[string]any, err error) {
	defer e.guard("after", &err)
	return e.after.After(ctx, call, output)
}

func (e *entry) runOnError(ctx context.Context, call *Call, cause *module.Error) (r Recovery, err error) {
	defer e.guard("on_error", &err)
	r, err = e.onError.OnError(ctx, call, cause)
	if err == nil && r.Output != nil && r.Retry != nil {
		err = module.Errorf(module.CodeInternal, "middleware %s offers both an output and a retry", e.name)
	}
	return r, err
}

func (e *entry) runEnd(ctx context.Context, call *Call, cause *module.Error) (err error) {
	defer e.guard("end", &err)
	e.end.End(ctx, call, cause)
	return nil
}

// guard turns a panic into GENERAL_INTERNAL_ERROR.
func (e *entry) guard(hook string, err *error) {
	if v := recover(); v != nil {
		*err = module.Wrap(module.CodeInternal,
			&PanicError{Middleware: e.name, Hook: hook, Value: v, Stack: debug.Stack()},
			"middleware "+e.name+" panicked in "+hook)
	}
}
