package executor

import (
	"context"
	"fmt"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// Trace is what happened to one call, step by step (protocol §12.2).
type Trace struct {
	ModuleID string
	Strategy string
	Steps    []StepTrace
	// Hooks are the middleware hooks that ran, in order: those of the call's
	// middlewares and those of the strategy's step middlewares.
	Hooks    []HookTrace
	Duration time.Duration
	Success  bool
	// Error is what the call failed with, nil for a success.
	Error *module.Error
	// Remote is the owner's own trace in its wire form, where the module lives on
	// another node that sent one.
	Remote map[string]any
	// Offset is how long after its caller's this call began, 0 for the outermost.
	Offset time.Duration
	// Calls are the calls that were made inside this one and ended before it, by when
	// they began: those of its module, its middlewares and its steps.
	Calls []*Trace
	// CallsDropped is how many more there were: beyond what a trace holds, or still
	// under way when this call ended.
	CallsDropped int
}

// HookTrace is one hook of a [Trace].
type HookTrace struct {
	// Step is the step around which a step middleware's hook ran, "" for a hook of
	// the call's middlewares.
	Step string
	middleware.HookEvent
}

// StepTrace is one step of a [Trace]. SkipReason is no_match, remote (the
// owner runs it), error_ignored (the step ran, so Skipped is false), or empty for
// a step that was jumped over.
type StepTrace struct {
	Name          string
	Duration      time.Duration
	Result        *StepResult
	Skipped       bool
	SkipReason    string
	DecisionPoint bool
	// Error is the code the step failed with, "" for none.
	Error module.Code
}

// CallWithTrace is [Executor.Call] that also tells what each step did. Errors,
// recovery and side effects are those of Call (decision D-19); the trace is never
// nil, and of a call that a middleware had run again it holds every run.
func (x *Executor) CallWithTrace(ctx context.Context, id string, inputs map[string]any, opts ...module.CallOption) (map[string]any, *Trace, error) {
	s := x.strategy.Load()
	p := x.pipeline(id, s)
	for _, o := range opts {
		o(&p.opts)
	}
	finish := p.watch(x.nestOf(ctx))
	t := p.trace
	if err := p.admit(inputs); err != nil {
		finish(err)
		return nil, t, err
	}
	p.parent = module.FromContext(ctx)
	defer x.enterRoot(p.parent)()
	out, err := p.run(ctx)
	finish(err)
	return out, t, err
}

// watchHook notes a hook of the call's middlewares. What its error says is made
// fit to be seen, as that of the call is.
func (p *Pipeline) watchHook(e middleware.HookEvent) {
	if e.Err != nil {
		ref := p.ref()
		e.Err = ref.scrub(module.Propagate(e.Err, p.moduleID, p.mctx))
	}
	p.trace.Hooks = append(p.trace.Hooks, HookTrace{HookEvent: e})
}

// watchStepHook notes a hook of a step middleware, if anybody looks.
func (p *Pipeline) watchStepHook(s *Step, m StepMiddleware, hook string, started time.Time, recovered bool, err error) {
	if p.trace == nil {
		return
	}
	e := middleware.HookEvent{Middleware: fmt.Sprintf("%T", m), Hook: hook, Duration: time.Since(started)}
	if err != nil {
		ref := p.ref()
		e.Err = ref.scrub(module.Propagate(err, p.moduleID, p.mctx))
	}
	if recovered {
		e.Recovery = middleware.RecoveryOutput
	}
	p.trace.Hooks = append(p.trace.Hooks, HookTrace{Step: s.Name, HookEvent: e})
}

// adoptTrace keeps the owner's trace.
func (p *Pipeline) adoptTrace(r *contextwire.Reply) {
	if p.trace == nil || r == nil || r.Trace == nil {
		return
	}
	p.trace.Remote = r.Trace
	if n := contextwire.CountTraceCalls(r.Trace); n > 0 && !p.nest.take(n) {
		p.trace.Remote = contextwire.WithoutTraceCalls(r.Trace)
	}
}

// skipped and ran may be called on a nil Trace, which records nothing.
func (t *Trace) skipped(s *Step, reason string) {
	if t != nil {
		t.Steps = append(t.Steps, StepTrace{Name: s.Name, Skipped: true, SkipReason: reason})
	}
}

func (t *Trace) ran(s *Step, started time.Time, r *StepResult, reason string, err error) {
	if t == nil {
		return
	}
	t.Steps = append(t.Steps, StepTrace{
		Name: s.Name, Duration: time.Since(started), Result: r, SkipReason: reason,
		DecisionPoint: r != nil && r.Confidence != nil, Error: module.CodeOf(err),
	})
}
