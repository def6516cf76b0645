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
func (x *Executor) Invoke(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
	p := x.incoming(req)
	if err := p.admit(req.Inputs); err != nil {
		return nil, err
	}
	out, err := p.run(ctx)
	if err != nil {
		return nil, err
	}
	return &contextwire.Reply{Output: out, Attempt: req.Attempt}, nil
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
	return &Pipeline{
		x: x, moduleID: req.ModuleID, strategy: x.strategy, owned: true,
		opts:   module.CallOptions{VersionHint: req.Version},
		parent: req.Context, budget: req.Budget, report: req.Progress,
		info: module.CallInfo{
			ID: req.CallID, Attempt: req.Attempt, Root: root, Parent: req.Parent, IdempotencyKey: req.IdempotencyKey,
		},
	}
}
