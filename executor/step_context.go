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
	if p.bus != nil {
		scope.Call, scope.Progress, budget = p.bus.info, p.bus.report, p.bus.budget
	}
	if p.parent == nil {
		p.parent = module.NewContext(module.ContextOptions{Identity: p.opts.Identity, TraceParent: p.opts.TraceParent})
		p.opts.Identity, p.opts.TraceParent = nil, nil // they are in it now, also for a retry
	} else {
		scope.Identity = p.opts.Identity
		scope.TraceID = p.otherTrace()
	}
	global := p.parent.GlobalDeadline()
	if global.IsZero() && p.x.set.global > 0 {
		// From the first run, so that a retry does not start the time again.
		global = p.started.Add(p.x.set.global)
	}
	p.clock.begin(p.started, global, p.x.set.global, budget)
	scope.GlobalDeadline = global

	// From p.ctx and not from the step's own context, whose timer ends with it.
	p.clock.free = p.ctx.Done() == nil && p.parent.Token() == nil
	if own := p.arrivedToken(); own != nil {
		p.token, p.lent = own, true
	} else {
		p.ctx, p.token = cancel.Join(p.ctx, p.parent.Token())
	}
	scope.Token = p.token
	p.mctx = p.parent.Enter(p.moduleID, scope)
	p.ctx = module.WithContext(p.ctx, p.mctx)
	return nil, p.mctx.BindExecutor(p.x)
}

// arrivedToken is the token that a call over the bus came with, already joined
// with its context. It serves one run, so it is left alone where a middleware
// might ask for another.
func (p *Pipeline) arrivedToken() *cancel.Token {
	if p.bus == nil || p.parent.Token() != nil || p.x.chain.Chain().Len() > 0 {
		return nil
	}
	own := p.bus.token
	p.bus.token = nil
	return own
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
