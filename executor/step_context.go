package executor

import (
	"context"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/module"
)

// contextStep is step 1: the call's own Context, its token below the caller's, and
// the deadline of the whole tree, which the root sets and the others inherit.
func contextStep() *Step {
	return &Step{
		Name: StepContextCreation, Description: "derive the call's context, token and deadline",
		Pure: true, Provides: []string{"context"}, kind: kindContext, Run: runContext,
	}
}

func runContext(_ context.Context, p *Pipeline) (*StepResult, error) {
	now := time.Now()
	if p.started.IsZero() {
		p.started = now
	}
	var scope module.CallScope
	var budget time.Duration
	scope.Progress = p.opts.Progress
	if p.bus != nil {
		scope.Call, scope.Progress, budget = p.bus.info, p.bus.report, p.bus.budget
	}
	var global time.Time
	var above *cancel.Token
	if p.parent != nil {
		global, above = p.parent.GlobalDeadline(), p.parent.Token()
		scope.Identity = p.opts.Identity
		scope.TraceID = p.otherTrace()
	}
	if global.IsZero() && p.set.global > 0 {
		// From the first run, so that a retry does not start the time again.
		global = p.started.Add(p.set.global)
	}
	p.clock.begin(p.started, global, p.set.global, budget)
	scope.GlobalDeadline = global

	// From p.ctx and not from the step's own context, whose timer ends with it.
	p.clock.free = p.ctx.Done() == nil && above == nil
	// A token of its own, also for a call that came with one over the bus: while
	// the module cleans up after its own time, the caller may still leave.
	p.ctx, p.token = p.room.takeJoint().Join(p.ctx, above)
	scope.Token = p.token
	if p.parent == nil {
		o := module.ContextOptions{Identity: p.opts.Identity, TraceParent: p.opts.TraceParent}
		if o.TraceParent == nil {
			o.TraceParent = traceOf(p.outer) //nolint:contextcheck // the caller's own context, without what the steps made of it
		}
		p.parent, p.mctx = module.EnterRoot(o, p.moduleID, scope)
		p.opts.Identity, p.opts.TraceParent = nil, nil // they are in it now, also for a retry
	} else {
		p.mctx = p.parent.Enter(p.moduleID, scope)
	}
	if p.nest != nil {
		p.ctx = context.WithValue(p.ctx, nestKey{}, p.nest)
	}
	p.ctx = p.mctx.Carry(p.ctx)
	return nil, p.mctx.BindExecutor(p.x)
}

// otherTrace is the trace that a call option asks for inside a tree, "" for none.
func (p *Pipeline) otherTrace() string {
	tp := p.opts.TraceParent
	if tp == nil {
		return ""
	}
	if module.ValidTraceID(tp.TraceID) {
		return tp.TraceID
	}
	p.x.log.Warn("trace parent is malformed, using a fresh trace id", "module_id", p.moduleID)
	return module.NewTraceID()
}
