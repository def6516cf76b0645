package executor

import (
	"context"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// Invoke runs a call that came over the bus on the module's owner. req.Context is
// the parent's, restored from the wire; nil means a fresh one. A req.Budget above
// zero is one more deadline, counted from now. What was not started says so
// (Error.Unexecuted): the module is not registered here, its version does not fit
// (BUS_VERSION_MISMATCH), or one of the steps before it refused the call. It is
// never sent on to a [Remote].
//
// With req.Trace the reply's Trace holds the wire form of the call's [Trace]. Then,
// and only then, a failed call has a reply beside its error, with nothing but that.
func (x *Executor) Invoke(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
	return x.incoming(req).reply(ctx, req)
}

// reply runs the call, with a trace where one is asked for.
func (p *Pipeline) reply(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
	finish := func(error) {}
	if req.Trace {
		finish = p.watch(nil)
	}
	var out map[string]any
	err := p.admit(req.Inputs)
	if err == nil {
		out, err = p.run(ctx)
	}
	finish(err)
	var trace map[string]any
	if p.trace != nil {
		trace = p.trace.Map()
	}
	switch {
	case err == nil:
		return &contextwire.Reply{Output: out, Attempt: req.Attempt, Trace: trace}, nil
	case trace != nil:
		return &contextwire.Reply{Attempt: req.Attempt, Trace: trace}, err
	}
	return nil, err
}

// Check validates a call that came over the bus without running it. The error is
// always nil for now; what is wrong with the call stands in the result.
func (x *Executor) Check(ctx context.Context, req *contextwire.Request) (*module.PreflightResult, error) {
	return x.incoming(req).validate(ctx, req.Inputs), nil
}

func (x *Executor) incoming(req *contextwire.Request) *Pipeline {
	root := req.Root
	if root == "" {
		root = req.CallID
	}
	p := x.pipeline(req.ModuleID, x.strategy.Load())
	p.owned, p.opts.VersionHint, p.parent = true, req.Version, req.Context
	p.bus = &arrival{
		budget: req.Budget, report: req.Progress,
		info: module.CallInfo{
			ID: req.CallID, Attempt: req.Attempt, Root: root, Parent: req.Parent, IdempotencyKey: req.IdempotencyKey,
			TraceParent: req.TraceParent,
		},
	}
	return p
}
