package gateway

import (
	"context"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/module"
)

// Invoker runs and checks calls. Every error is, or wraps, a *module.Error.
// Cancelling ctx cancels the work wherever it runs and returns at once; ctx's
// deadline is the call's budget. With req.Trace a failed call may have a reply that
// holds its trace beside the error. req.Progress and req.Accepted are called while
// Invoke runs.
type Invoker interface {
	Invoke(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error)
	Check(ctx context.Context, req *contextwire.Request) (*module.PreflightResult, error)
}

// Streamer runs calls whose output comes in parts. It is [Invoker].Invoke but for
// send, which gets every chunk in order, one at a time, and holds the module back
// while it blocks. An error of send ends the call: a coded one is its error, any
// other the cause of EXECUTION_CANCELLED. The reply's output is the merged value.
type Streamer interface {
	InvokeStream(ctx context.Context, req *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error)
}

// Catalog knows the modules that live processes host.
type Catalog interface {
	// Modules lists them sorted by ID.
	Modules() []Module
	Module(id string) (Module, bool)
}

// Module is a module as callers see it.
type Module struct {
	Descriptor module.Descriptor
	// Hash is the descriptor's content hash.
	Hash string
	// Hosts are the live processes that host it.
	Hosts []Host
}

// Host is one process that hosts a module.
type Host struct {
	Node, Boot string
	// Version is the module's version there.
	Version  string
	Draining bool
}

// Fleet knows the processes of the namespace.
type Fleet interface {
	// Nodes lists them sorted by node ID.
	Nodes() []Node
	// Drain tells a node to finish what it has within grace and to take nothing
	// new, and returns how many calls it still has. It does not wait for them.
	Drain(ctx context.Context, node string, grace time.Duration, by string) (inFlight int, err error)
}

// Node is one process as the catalogue knows it.
type Node struct {
	contextwire.NodeRecord
	// SeenAt is when its record was last written.
	SeenAt time.Time
	// Stale is true when the record is overdue.
	Stale bool
}

// Governance knows what stands in front of the modules of each process.
type Governance interface {
	// Governance lists the live nodes, sorted by node ID.
	Governance(ctx context.Context) ([]NodeGovernance, error)
}

// NodeGovernance is what one process says of itself.
type NodeGovernance struct {
	Node, Boot string
	// State holds the nine booleans of the protocol under their names; nil when the
	// node did not say.
	State map[string]any
}

// Calls knows the calls in flight in the namespace.
type Calls interface {
	Calls(ctx context.Context) ([]contextwire.CallRecord, error)
	// Cancel stops the calls that sel names. Nobody knowing one is the state
	// [StateUnknown] and no error.
	Cancel(ctx context.Context, sel cancel.Selector, reason, by string) (CancelResult, error)
}

// CancelResult says who answered a cancel.
type CancelResult struct {
	Nodes, Calls []string
	// State is cancelling, finished, tombstoned or unknown.
	State string
}

// The states of a cancel and of a call.
const (
	StateRunning    = "running"
	StateCancelling = "cancelling"
	StateFinished   = "finished"
	StateTombstoned = "tombstoned"
	StateUnknown    = "unknown"
)

// Approvals knows the requests that wait for a person, and takes decisions. An
// unknown ID is approval.ErrNotFound; the other causes of a refused decision are
// those of approval.Record, and come with the record as it stands.
type Approvals interface {
	Get(ctx context.Context, id string) (approval.Record, error)
	List(ctx context.Context, f approval.Filter) (approval.Page, error)
	Decide(ctx context.Context, id string, d approval.Decision) (approval.Record, error)
}

// Readiness says whether a call could pass: nil when a probe went through the
// bus and back.
type Readiness interface {
	Ready(ctx context.Context) error
}
