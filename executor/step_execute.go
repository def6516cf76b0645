package executor

import (
	"context"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

// executeStep is step 8: the module, or the way to where it lives.
func executeStep() *Step {
	return &Step{
		Name: StepExecute, Description: "run the module",
		Replaceable: true, Requires: []string{"module"}, Provides: []string{"output"}, kind: kindExecute, Run: runExecute,
	}
}

func runExecute(ctx context.Context, p *Pipeline) (*StepResult, error) {
	timed := ctx != p.ctx
	if p.remote {
		if timed {
			defer p.limitTo(ctx)()
		}
		return nil, p.forward()
	}
	now := p.startClock()
	if timed {
		defer p.limitTo(ctx)()
	}
	if p.entry == nil {
		return nil, registry.NotFound(p.moduleID) // the lookup was configured away or ignored
	}
	// The last look before the module: whatever ended the call meanwhile keeps it
	// from being run (core-executor seed, Cancel Token Mid-Pipeline Check).
	if p.over(now) {
		return nil, p.ended(p.ctx).NotExecuted() //nolint:contextcheck // the call's end, not the step's, is asked for
	}
	if err := p.unapproved(ctx); err != nil {
		return nil, err // step 7 may have been left out, or a step after it changed them
	}
	if p.sink != nil && p.entry.Streamer != nil {
		return nil, p.stream()
	}
	output, err := p.execute(now)
	if err != nil {
		return nil, err
	}
	p.output = output
	return nil, nil
}

// limitTo puts the step's own limit, which ctx carries, on top of the clock.
func (p *Pipeline) limitTo(ctx context.Context) (restore func()) { //nolint:contextcheck // p.ctx gets the limit that the step's ctx has
	at, ok := ctx.Deadline()
	if !ok {
		return func() {}
	}
	without := p.ctx
	limited, stop := context.WithDeadlineCause(without, at, cancel.Because(cancel.Timeout, "", "the time of step execute is over"))
	p.ctx = limited
	return func() {
		stop()
		p.ctx = without
	}
}

// accept makes a module's result the call's output.
func (p *Pipeline) accept(output map[string]any, err error) (map[string]any, error) {
	if err != nil {
		p.foreign = true
		return nil, err
	}
	if output == nil {
		return nil, module.Errorf(module.CodeModuleExecuteError, "module %s returned nothing", p.moduleID)
	}
	normal, err := module.NormalizeMap(output)
	if err != nil {
		return nil, module.Wrap(module.CodeModuleExecuteError, err, "module "+p.moduleID+" returned an output without a json form")
	}
	return normal, nil
}

// forward sends the call to its owner: the parent's Context, whose chain does not
// hold the target yet, and the inputs as they came, an approval token included.
// The time that is left goes along as the budget and is the owner's to enforce, so
// that its own answer is what arrives.
func (p *Pipeline) forward() error {
	req, err := p.remoteRequest()
	if err != nil {
		return err
	}
	if p.sink != nil {
		return p.forwardStream(req)
	}
	reply, err := p.x.remote.Invoke(p.ctx, req)
	p.adoptTrace(reply)
	if err != nil {
		if p.ctx.Err() != nil && module.AsError(err) == nil {
			return p.ended(p.ctx)
		}
		return err
	}
	if reply == nil || reply.Output == nil {
		return module.Errorf(module.CodeInternal, "module %s: the remote returned nothing", p.moduleID)
	}
	p.output = reply.Output
	return nil
}

func (p *Pipeline) remoteRequest() (*contextwire.Request, error) {
	info := p.parent.Call()
	root := info.Root
	if root == "" {
		root = info.ID
	}
	req := &contextwire.Request{
		ModuleID: p.moduleID, Root: root, Parent: info.ID, Version: p.opts.VersionHint,
		Context: p.remoteContext(), Inputs: p.raw, Stream: p.sink != nil, Trace: p.trace != nil,
		Progress: p.opts.Progress, Node: p.opts.Node,
	}
	budget, limited := p.remaining(time.Now())
	if !limited {
		return req, nil
	}
	if budget <= 0 {
		cause := cancel.Because(cancel.Timeout, "", "the time of the call is over")
		p.token.Cancel(cause)
		return nil, p.ended(p.ctx).NotExecuted()
	}
	req.Budget = budget
	return req, nil
}

// remaining is the time left for a remote call.
func (p *Pipeline) remaining(now time.Time) (left time.Duration, limited bool) {
	tighten := func(d time.Duration) {
		if !limited || d < left {
			left, limited = d, true
		}
	}
	if at := p.clock.deadline; !at.IsZero() {
		tighten(at.Sub(now))
	}
	if at, ok := p.ctx.Deadline(); ok {
		tighten(at.Sub(now))
	}
	if t := p.opts.Timeout; t != nil && *t > 0 {
		tighten(*t)
	}
	return left, limited
}

// remoteContext is the parent's Context, changed where the call's options say so.
func (p *Pipeline) remoteContext() *module.Context {
	id, trace := p.mctx.Identity(), p.mctx.TraceID()
	if id == p.parent.Identity() && trace == p.parent.TraceID() {
		return p.parent
	}
	w := p.parent.Wire()
	w.Identity, w.TraceID = id, trace
	return module.RestoreContext(w)
}
