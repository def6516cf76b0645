package system

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/module"
)

// Peer is one process of the fleet.
type Peer struct{ Node, Boot string }

// Members are the processes of the fleet, as one module sees them.
type Members struct {
	// Hosting are the live processes that host it, Absent those that do not.
	Hosting, Absent []Peer
	// Lost hosted it until lately, when they stopped to answer. They are not asked.
	Lost []Peer
}

// Peers tells who is there for a module.
type Peers func(moduleID string) Members

// Defaults of [FleetOptions].
const (
	defaultReadPatience    = 2 * time.Second
	defaultControlPatience = time.Minute
)

// FleetOptions configures [NewFleet].
type FleetOptions struct {
	// Groups are those that Descriptors lists; nil means [ReadGroups]. Invoke
	// answers for all of them whatever they are.
	Groups []Group
	// ReadPatience is how long the nodes may take to answer about themselves when
	// the call brings no time of its own; 2 s when zero. ControlPatience is that of
	// the control modules, which wait for calls and people; a minute when zero.
	ReadPatience, ControlPatience time.Duration
}

// Fleet answers calls of system modules for all nodes at once: it calls each node
// that hosts the module and puts the answers together. Everything else, and what
// names its node, goes on as it came. The nodes govern: each asks its own ACL,
// approvals and schemas, with the caller's Context as it came.
//
// An answer holds nodes, a row {node, boot, output or error} for each that answered;
// silent, a row {node, boot, error} for each that did not, those among them that were
// lost before; and absent, the nodes that do not host the module. Those of the summaries of health and usage and of the full
// manifest also hold what a node's answer holds, merged; those of control modules
// hold success. When no node gave an output, the call fails with the error of the
// first of them, whose details hold the rows.
//
// It is safe for concurrent use, and the goroutines of a call end with it.
type Fleet struct {
	remote        executor.Remote
	peers         Peers
	read, control time.Duration
	descriptors   map[string]module.Descriptor
	listed        []module.Descriptor
}

// NewFleet makes a fleet of the nodes that remote reaches.
func NewFleet(remote executor.Remote, peers Peers, o FleetOptions) (*Fleet, error) {
	groups := o.Groups
	if groups == nil {
		groups = ReadGroups()
	}
	f := &Fleet{
		remote: remote, peers: peers, descriptors: map[string]module.Descriptor{},
		read: cmp.Or(o.ReadPatience, defaultReadPatience), control: cmp.Or(o.ControlPatience, defaultControlPatience),
	}
	for _, g := range groups {
		if !g.known() {
			return nil, module.Errorf(module.CodeInvalidInput, "unknown group of system modules %.64q", string(g))
		}
	}
	for _, g := range append(ReadGroups(), Control) {
		for _, m := range (&Modules{}).group(g) { // only described, never run
			d := ofFleet(g, m.Descriptor())
			f.descriptors[d.ID] = d
			if slices.Contains(groups, g) {
				f.listed = append(f.listed, d)
			}
		}
	}
	slices.SortFunc(f.listed, func(a, b module.Descriptor) int { return cmp.Compare(a.ID, b.ID) })
	return f, nil
}

// ofFleet describes a module as the fleet answers it.
func ofFleet(g Group, d module.Descriptor) module.Descriptor {
	d.Description = strings.ReplaceAll(d.Description, "of this process", "of the fleet") + " Every node is asked."
	d.OutputSchema = fleetSchema(g, d.ID, d.OutputSchema)
	return d
}

// Descriptor describes a system module as the fleet answers it; false for any other
// module.
func (f *Fleet) Descriptor(id string) (module.Descriptor, bool) {
	d, ok := f.descriptors[id]
	return d, ok
}

// Descriptors lists the modules of the fleet's groups, sorted by ID.
func (f *Fleet) Descriptors() []module.Descriptor { return f.listed }

// OnChange does nothing: the list does not change.
func (f *Fleet) OnChange(func()) (stop func()) { return func() {} }

// Debt is 0: what a fleet calls runs on the nodes.
func (f *Fleet) Debt() int { return 0 }

// Check validates a call on one of the nodes.
func (f *Fleet) Check(ctx context.Context, req *contextwire.Request) (*module.PreflightResult, error) {
	return f.remote.Check(ctx, req) //nolint:wrapcheck // the node's answer is the answer
}

// Invoke answers a call of a system module for the fleet.
func (f *Fleet) Invoke(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
	if _, ours := f.descriptors[req.ModuleID]; !ours || req.Node != "" {
		return f.remote.Invoke(ctx, req) //nolint:wrapcheck // the node's answer is the answer
	}
	members := f.peers(req.ModuleID)
	hosting := members.Hosting
	if len(hosting) == 0 {
		return f.remote.Invoke(ctx, req) //nolint:wrapcheck // it says that nobody has it
	}
	several := slices.ContainsFunc(hosting, func(p Peer) bool { return p.Node != hosting[0].Node })
	if _, has := req.Inputs[approvalToken]; has && several && groupOf(req.ModuleID) == Control {
		return nil, module.Errorf(module.CodeInvalidInput, "an approval is good for one node: name the node that asked for it").NotExecuted()
	}
	g := f.gather(ctx, req, hosting)
	g.absent = members.Absent
	g.miss(members.Lost)
	out, err := g.answer()
	reply := &contextwire.Reply{Output: out, Attempt: req.Attempt}
	if req.Trace {
		reply.Trace = g.trace(err)
	}
	if err != nil && reply.Trace == nil {
		return nil, err
	}
	return reply, err
}

// approvalToken is the input under which an approval comes (protocol §7.7).
const approvalToken = "_approval_token"

// groupOf is the group of a system module.
func groupOf(id string) Group {
	rest, _ := strings.CutPrefix(id, "system.")
	name, _, _ := strings.Cut(rest, ".")
	return Group(name)
}

// gathering is what the nodes said to one call.
type gathering struct {
	req     *contextwire.Request
	started time.Time
	rows    []*outcome // sorted by node
	absent  []Peer
}

// outcome is what one node said.
type outcome struct {
	Peer
	output map[string]any
	err    *module.Error // nil for an output
	silent bool          // the error is not the node's
	offset time.Duration // when it was asked
	took   time.Duration
	trace  map[string]any
}

// patience is how long the nodes may take: a little less than the caller waits.
func (f *Fleet) patience(ctx context.Context, req *contextwire.Request) time.Duration {
	left, limited := req.Budget, req.Budget > 0
	if at, ok := ctx.Deadline(); ok {
		if until := time.Until(at); !limited || until < left {
			left, limited = until, true
		}
	}
	switch {
	case limited:
		return less(left)
	case groupOf(req.ModuleID) == Control:
		return f.control
	}
	return f.read
}

// less leaves a tenth of d, but no more than a quarter of a second, for the way back.
func less(d time.Duration) time.Duration { return d - min(d/10, 250*time.Millisecond) }

// gather asks all peers at once, with one deadline.
func (f *Fleet) gather(ctx context.Context, r *contextwire.Request, peers []Peer) *gathering {
	g := &gathering{req: r, started: time.Now()}
	ask := *r
	ask.CallID, ask.Attempt, ask.Parent, ask.Root = "", 0, r.CallID, cmp.Or(r.Root, r.CallID)
	ask.Progress, ask.Accepted, ask.Stream, ask.Inputs = nil, nil, false, fleetInputs(r)
	if ask.Context == nil {
		ask.Context = module.NewContext(module.ContextOptions{})
	}
	patience := f.patience(ctx, r)
	ask.Budget = less(patience) // so that what a node says at the end of its time is heard
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// An owner's answer to the end of its time is awaited beyond it; to a caller that
	// leaves nobody needs to answer.
	late := time.AfterFunc(patience, func() { stop(cancel.Because(cancel.Caller, "", tooLate)) })

	seen := map[string]bool{}
	var wg sync.WaitGroup
	for _, peer := range peers {
		if seen[peer.Node] {
			continue // another life of the node
		}
		seen[peer.Node] = true
		row := &outcome{Peer: peer}
		g.rows = append(g.rows, row)
		wg.Go(func() {
			req := ask
			req.Node = peer.Node
			row.offset = time.Since(g.started)
			row.hear(f.remote.Invoke(ctx, &req))
			row.took = time.Since(g.started) - row.offset
		})
	}
	wg.Wait()
	if !late.Stop() {
		g.timedOut()
	}
	slices.SortFunc(g.rows, byNode)
	return g
}

func byNode(a, b *outcome) int { return cmp.Compare(a.Node, b.Node) }

// miss adds those that were lost before anybody could ask them.
func (g *gathering) miss(lost []Peer) {
	for _, peer := range lost {
		err := module.Errorf(module.CodeBusNodeLost, "the node was lost before this call").NotExecuted().At(g.req.Context, g.req.ModuleID)
		g.rows = append(g.rows, &outcome{Peer: peer, err: err, silent: true})
	}
	slices.SortFunc(g.rows, byNode)
}

const tooLate = "the node did not answer in time"

// timedOut tells the end that the deadline brought about by its name.
func (g *gathering) timedOut() {
	for _, o := range g.rows {
		if o.silent && o.err.Code == module.CodeExecutionCancelled {
			o.err = module.Errorf(module.CodeModuleTimeout, tooLate).At(g.req.Context, g.req.ModuleID)
		}
	}
}

// hear notes what a node said.
func (o *outcome) hear(reply *contextwire.Reply, err error) {
	if reply != nil {
		o.output, o.trace = reply.Output, reply.Trace
		o.Boot = cmp.Or(reply.Boot, o.Boot)
	}
	if err == nil && o.output != nil {
		return
	}
	if o.output, o.err = nil, module.AsError(err); o.err == nil {
		o.err = module.Errorf(module.CodeInternal, "the node gave neither an output nor a coded error")
	}
	o.silent = !o.err.Remote
}

// answer is the fleet's answer.
func (g *gathering) answer() (map[string]any, error) {
	if !slices.ContainsFunc(g.rows, func(o *outcome) bool { return o.err == nil }) {
		return nil, g.failure()
	}
	out := g.merged()
	out["nodes"], out["silent"] = g.tell(false), g.tell(true)
	absent := []any{}
	for _, p := range g.absent {
		absent = append(absent, map[string]any{"node": p.Node, "boot": p.Boot})
	}
	out["absent"] = absent
	return out, nil
}

// tell lists those that answered, or those that were silent.
func (g *gathering) tell(silent bool) []any {
	rows := []any{}
	for _, o := range g.rows {
		if o.silent != silent {
			continue
		}
		row := map[string]any{"node": o.Node, "boot": o.Boot}
		if o.err != nil {
			row["error"] = shownError(o.err)
		} else {
			row["output"] = o.shownOutput(g.req.ModuleID)
		}
		rows = append(rows, row)
	}
	return rows
}

// shownError is the wire form of a node's error; of an internal one only its code, as
// at any door.
func shownError(e *module.Error) map[string]any {
	if e.Code == module.CodeInternal {
		e = &module.Error{Code: e.Code, Message: "internal error of the node", Timestamp: e.Timestamp, Retryable: e.Retryable}
	}
	return e.Map()
}

// failure is the error of a call to which no node gave an output: that of the first
// node that has what is asked about, else of the first that was silent, else of the
// first.
func (g *gathering) failure() error {
	first := g.rows[0]
	weigh := func(o *outcome) int {
		switch {
		case o.silent:
			return 1
		case o.err.Code == module.CodeModuleNotFound:
			return 2
		}
		return 0
	}
	for _, o := range g.rows {
		if weigh(o) < weigh(first) {
			first = o
		}
	}
	details := map[string]any{}
	for k, v := range first.err.Details {
		if k != "approval_id" || len(g.rows) == 1 { // each node has one of its own
			details[k] = v
		}
	}
	details["nodes"], details["silent"] = g.tell(false), g.tell(true)
	e := first.err.WithDetails(details)
	e.Unexecuted = !slices.ContainsFunc(g.rows, func(o *outcome) bool { return !o.err.Unexecuted })
	if len(g.rows) > 1 {
		e = e.WithMessage("no node gave a result; " + first.Node + ": " + e.Message)
	}
	return e
}

// trace is the trace of the fleet's call: those of the nodes, as nested calls.
func (g *gathering) trace(err error) map[string]any {
	t := &executor.Trace{
		ModuleID: g.req.ModuleID, Strategy: "fleet", Duration: time.Since(g.started), Success: err == nil, Error: module.AsError(err),
	}
	for _, o := range g.rows {
		t.Calls = append(t.Calls, &executor.Trace{
			ModuleID: g.req.ModuleID, Strategy: "remote", Offset: o.offset, Duration: o.took, Success: o.err == nil, Error: o.err, Remote: o.trace,
		})
	}
	return t.Map()
}
