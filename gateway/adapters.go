package gateway

import (
	"context"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/module"
)

var (
	_ Invoker   = InvokerFuncs{}
	_ Streamer  = StreamerFunc(nil)
	_ Catalog   = CatalogFunc(nil)
	_ Fleet     = FleetFuncs{}
	_ Calls     = CallsFuncs{}
	_ Readiness = ReadyFunc(nil)

	_ Governance = GovernanceFunc(nil)
	_ Approvals  = noApprovals{}
)

// InvokerFuncs makes an [Invoker] of functions; a nil one is
// GENERAL_NOT_IMPLEMENTED.
type InvokerFuncs struct {
	InvokeFunc func(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error)
	CheckFunc  func(ctx context.Context, req *contextwire.Request) (*module.PreflightResult, error)
}

// Invoke calls f.InvokeFunc.
func (f InvokerFuncs) Invoke(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
	if f.InvokeFunc == nil {
		return nil, notImplemented("calling")
	}
	return f.InvokeFunc(ctx, req)
}

// Check calls f.CheckFunc.
func (f InvokerFuncs) Check(ctx context.Context, req *contextwire.Request) (*module.PreflightResult, error) {
	if f.CheckFunc == nil {
		return nil, notImplemented("checking")
	}
	return f.CheckFunc(ctx, req)
}

// StreamerFunc makes a [Streamer] of a function; a nil one is
// GENERAL_NOT_IMPLEMENTED.
type StreamerFunc func(ctx context.Context, req *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error)

// InvokeStream calls f.
func (f StreamerFunc) InvokeStream(ctx context.Context, req *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error) {
	if f == nil {
		return nil, notImplemented("streaming")
	}
	return f(ctx, req, send)
}

// CatalogFunc makes a [Catalog] of a function that lists the modules.
type CatalogFunc func() []Module

// Modules calls f.
func (f CatalogFunc) Modules() []Module {
	if f == nil {
		return nil
	}
	return f()
}

// Module looks id up in the list.
func (f CatalogFunc) Module(id string) (Module, bool) {
	for _, m := range f.Modules() {
		if m.Descriptor.ID == id {
			return m, true
		}
	}
	return Module{}, false
}

// FleetFuncs makes a [Fleet] of functions; a nil one knows no node.
type FleetFuncs struct {
	NodesFunc func() []Node
	DrainFunc func(ctx context.Context, node string, grace time.Duration, by string) (inFlight int, err error)
}

// Nodes calls f.NodesFunc.
func (f FleetFuncs) Nodes() []Node {
	if f.NodesFunc == nil {
		return nil
	}
	return f.NodesFunc()
}

// Drain calls f.DrainFunc.
func (f FleetFuncs) Drain(ctx context.Context, node string, grace time.Duration, by string) (inFlight int, err error) {
	if f.DrainFunc == nil {
		return 0, notImplemented("draining")
	}
	return f.DrainFunc(ctx, node, grace, by)
}

// CallsFuncs makes a [Calls] of functions; a nil one knows no call.
type CallsFuncs struct {
	CallsFunc  func(ctx context.Context) ([]contextwire.CallRecord, error)
	CancelFunc func(ctx context.Context, sel cancel.Selector, reason, by string) (CancelResult, error)
}

// Calls calls f.CallsFunc.
func (f CallsFuncs) Calls(ctx context.Context) ([]contextwire.CallRecord, error) {
	if f.CallsFunc == nil {
		return nil, nil
	}
	return f.CallsFunc(ctx)
}

// Cancel calls f.CancelFunc.
func (f CallsFuncs) Cancel(ctx context.Context, sel cancel.Selector, reason, by string) (CancelResult, error) {
	if f.CancelFunc == nil {
		return CancelResult{State: StateUnknown}, nil
	}
	return f.CancelFunc(ctx, sel, reason, by)
}

// ReadyFunc makes a [Readiness] of a function; nil is always ready.
type ReadyFunc func(ctx context.Context) error

// Ready calls f.
func (f ReadyFunc) Ready(ctx context.Context) error {
	if f == nil {
		return nil
	}
	return f(ctx)
}

// GovernanceFunc makes a [Governance] of a function; a nil one is
// GENERAL_NOT_IMPLEMENTED.
type GovernanceFunc func(ctx context.Context) ([]NodeGovernance, error)

// Governance calls f.
func (f GovernanceFunc) Governance(ctx context.Context) ([]NodeGovernance, error) {
	if f == nil {
		return nil, notImplemented("governance")
	}
	return f(ctx)
}

// noApprovals are those of a gateway that has no store for them.
type noApprovals struct{}

func (noApprovals) Get(context.Context, string) (approval.Record, error) {
	return approval.Record{}, notImplemented("deciding about approvals")
}

func (noApprovals) List(context.Context, approval.Filter) (approval.Page, error) {
	return approval.Page{}, notImplemented("deciding about approvals")
}

func (noApprovals) Decide(context.Context, string, approval.Decision) (approval.Record, error) {
	return approval.Record{}, notImplemented("deciding about approvals")
}

func notImplemented(what string) error {
	return module.Errorf(module.CodeNotImplemented, "%s is not available here", what)
}
