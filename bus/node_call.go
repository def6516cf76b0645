package bus

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// running is one call or check on this node, from its arrival to its end.
type running struct {
	node *Node
	kind string
	head contextwire.Head
	body []byte
	req  contextwire.Request // once the body is decoded
	// identity is who makes the call, once that is known; pushedOut what a call is
	// told that left the queue for another module's. Both belong to the gate.
	identity   string
	identified bool
	pushedOut  time.Duration
	held       int64 // bytes of body that count against the node's limit
	key        cancel.Key
	issuer     string // inbox prefix of the caller
	arrived    time.Time
	turn       chan struct{} // made for a queued call, closed when it gets its slot
	doubt      bool

	ctx   context.Context
	token *cancel.Token
	entry *cancel.Entry
	reply replier
	flow  *outflow // of a stream, once it is admitted

	span    trace.Span      // nil without tracing
	spanned context.Context // ctx with the span in it

	mu         sync.Mutex
	callerID   string // known once the body is decoded
	identityID string
	traceID    string
}

func (r *running) root() string {
	if r.head.Root != "" {
		return r.head.Root
	}
	return r.key.Call
}

// streams reports whether the output is wanted in parts. A check runs nothing,
// whatever the mode of the call it is about.
func (r *running) streams() bool { return r.kind == kindCall && r.head.Stream }

func (r *running) mode() string {
	if r.streams() {
		return contextwire.ModeStream
	}
	return contextwire.ModeUnary
}

// issuerOf is the inbox prefix of a reply subject: all but its last token.
func issuerOf(reply string) string {
	if i := strings.LastIndexByte(reply, '.'); i > 0 {
		return reply[:i]
	}
	return reply
}

// receive looks at a request in the subscription's goroutine, so it does only
// what must be done in order of arrival: check the headers, enter the call into
// the table (a cancel finds it from here on), admit it. Decoding and running
// happen in the call's own goroutine.
func (n *Node) receive(kind string, m *nats.Msg) {
	if m.Reply == "" {
		n.calm.warn("ignoring a request without a reply subject", "subject", m.Subject)
		return
	}
	n.counts.in.observe(int64(len(m.Data)))
	moduleID := n.subjects.moduleOf(m.Subject, kind)
	r := &running{node: n, kind: kind, body: m.Data, arrived: time.Now(), issuer: issuerOf(m.Reply)}
	head := &r.head
	if err := head.Parse(moduleID, contextwire.Header(m.Header), n.opts.Limits); err != nil {
		n.refuseUnread(m, err)
		return
	}
	r.key = cancel.Key{Call: head.CallID, Attempt: head.Attempt}
	r.doubt = n.doubtful()
	if r.key.Call == "" { // a bare request names no call
		r.key = cancel.Key{Call: contextwire.NewCallID(), Attempt: 1}
	}
	if head.TraceParent != nil {
		r.traceID = head.TraceParent.TraceID
	}
	r.reply.node, r.reply.to, r.reply.call, r.reply.bare, r.reply.ct = n, m.Reply, r.key.Call, head.Bare, head.Accept
	r.reply.stream = r.streams()
	if e := r.precheck(); e != nil {
		r.reply.fail(e.NotExecuted())
		return
	}
	if kind == kindCall && !head.Bare && n.replay.again(n, r.key) {
		return // it ran already; the caller gets the same end again
	}
	n.enter(r)
}

// refuseUnread answers a message whose headers cannot be used.
func (n *Node) refuseUnread(m *nats.Msg, err error) {
	h := contextwire.Header(m.Header)
	rp := &replier{node: n, to: m.Reply, bare: !h.Has(contextwire.HeaderVersion), ct: contextwire.JSON}
	if call := h.Get(contextwire.HeaderCall); contextwire.ValidCallID(call) {
		rp.call = call
	}
	rp.fail(module.Propagate(err, "", nil).NotExecuted())
}

// precheck refuses what can be refused without reading the body.
func (r *running) precheck() *module.Error {
	n := r.node
	switch {
	case module.ValidateID(r.head.ModuleID) != nil:
		return module.AsError(module.ValidateID(r.head.ModuleID))
	case len(r.body) > n.opts.Limits.MaxBody:
		return contextwire.TooLarge(int64(len(r.body)), int64(n.opts.Limits.MaxBody))
	case r.head.BudgetExhausted:
		return module.Errorf(module.CodeBusBudgetExhausted, "the call arrived without any time left")
	case r.streams() && n.streams == nil:
		return module.Errorf(module.CodeNotImplemented, "this node does not stream")
	case r.head.BodyRef != nil && n.conns.JS == nil:
		return module.Errorf(module.CodeNotImplemented, "this node has no object store to read bodies from")
	case n.isDraining():
		return drainingError()
	case r.doubt && r.head.Bare:
		return module.Errorf(module.CodeBusOverloaded, "the node was away and does not know whether the caller still waits")
	}
	return nil
}

func drainingError() *module.Error {
	return module.Errorf(module.CodeBusOverloaded, "the node is draining").WithDetail("draining", true).NotExecuted()
}

func (n *Node) isDraining() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.draining
}

// enter registers and admits r.
func (n *Node) enter(r *running) {
	// Not below the node's life, in whose list every call would have to be: teardown
	// cancels what is in the list of running calls.
	r.ctx, r.token = cancel.Join(context.Background(), nil)
	entry, err := n.table.Begin(cancel.Call{
		Key: r.key, Root: r.root(), Parent: r.head.Parent, Trace: r.traceID, ModuleID: r.head.ModuleID,
		Issuer: r.issuer, Mode: r.mode(), StartedAt: r.arrived, Budget: r.head.Budget, Token: r.token,
	})
	if err != nil {
		r.token.Release()
		if buried, ok := errors.AsType[*cancel.Tombstoned](err); ok {
			r.reply.fail(module.Wrap(module.CodeExecutionCancelled, buried.Cause, "the call was cancelled before it arrived").
				WithDetail("module_id", r.head.ModuleID).NotExecuted())
		}
		return // else the same attempt is running; its end will answer
	}
	r.entry = entry
	if r.kind == kindCall && !r.head.Bare && n.replay.again(n, r.key) {
		r.entry.End() // it ended between the look in receive and Begin
		r.token.Release()
		return
	}
	n.mu.Lock()
	if n.draining { // since precheck; nobody would wait for it
		n.mu.Unlock()
		r.entry.End()
		r.token.Release()
		r.reply.fail(drainingError())
		return
	}
	n.running[r.key] = r
	n.work.Add(1)
	n.mu.Unlock()

	switch v, after := n.gate.enter(r); v {
	case admitted, queued:
		if r.streams() {
			r.openFlow()
		} else {
			n.accepts.add(r)
		}
		n.workers.run(r)
	case entangled:
		if r.head.BodyRef == nil {
			r.refuseEntangled()
			return
		}
		n.wg.Go(r.refuseEntangled) // it reads the body
	case refused:
		r.reply.overloaded(after)
		r.end()
		n.work.Done()
	}
}

// refuseEntangled refuses a call that would wait for itself, naming the chain.
func (r *running) refuseEntangled() {
	defer r.node.work.Done()
	defer r.end()
	e := entangledError()
	if req, err := r.decode(); err == nil {
		e = r.naming(e, req.Context)
	}
	r.reply.fail(e.NotExecuted())
}

// naming adds the chain of the call to an error.
func (r *running) naming(e *module.Error, c *module.Context) *module.Error {
	chain := []any{}
	for _, id := range c.ChainView() {
		chain = append(chain, id)
	}
	return e.WithDetail("call_chain", append(chain, r.head.ModuleID))
}

// claim takes a place among the calls of the caller's identity, and waits for
// one. All calls without an identity count as one.
func (r *running) claim(c *module.Context) *module.Error {
	if r.node.opts.MaxPerIdentity == 0 {
		return nil
	}
	who := ""
	if id := c.Identity(); id != nil {
		who = id.Type() + ":" + id.ID()
	}
	switch v, after := r.node.gate.claim(r, who); v {
	case queued:
		return r.awaitTurn()
	case refused:
		return overloadedError(after)
	case entangled:
		return r.naming(entangledError(), c).NotExecuted()
	}
	return nil
}

func entangledError() *module.Error {
	return module.Errorf(module.CodeBusOverloaded, "the call would wait for a slot that its own call chain holds").
		WithRetryable(module.False)
}

func overloadedError(after time.Duration) *module.Error {
	return module.Errorf(module.CodeBusOverloaded, "the node has no free slot").
		WithDetail("retry_after_ms", max(after.Milliseconds(), 1)).NotExecuted()
}

func (r *running) decode() (*contextwire.Request, error) {
	if err := r.fetch(); err != nil {
		return nil, err
	}
	head := r.head
	head.BodyRef = nil // fetch has checked it
	if err := head.DecodeRequest(&r.req, r.body, r.node.opts.Limits); err != nil {
		return nil, err
	}
	return &r.req, nil
}

// end forgets the call everywhere. Its terminal frame is kept by then.
func (r *running) end() {
	n := r.node
	r.closeFlow()
	r.forgetBody()
	r.entry.End()
	n.mu.Lock()
	delete(n.running, r.key)
	n.mu.Unlock()
	r.token.Release()
}

// serve is run for a worker.
func (r *running) serve() {
	defer r.node.work.Done()
	r.run()
}

// run waits for a slot, makes sure that somebody still waits for the call, and
// runs it.
func (r *running) run() {
	failure := r.awaitTurn()
	started := time.Now()
	r.startServe()
	var output map[string]any
	if failure == nil {
		output, failure = r.execute()
	}
	if r.flow != nil {
		r.reply.sent = r.flow.count()
	}
	msg := r.reply.terminal(r.ctx, output, failure)
	if r.kind == kindCall {
		n := r.node
		n.counts.ended(r.head.ModuleID, time.Since(r.arrived), failure)
	}
	r.endServe(failure)
	if msg != nil && r.kind == kindCall && !r.head.Bare {
		r.node.replay.keep(r.issuer, r.key, &msg.msg)
	}
	r.end()
	r.node.gate.leave(r, time.Since(started))
	r.reply.send(msg)
}

// awaitTurn waits for the slot of a queued call, not longer than there is time.
// When it fails, the call has left the queue or the slot is given back in run.
func (r *running) awaitTurn() *module.Error {
	if r.turn != nil {
		var over <-chan time.Time
		if r.head.Budget > 0 {
			t := time.NewTimer(r.head.Budget - time.Since(r.arrived))
			defer t.Stop()
			over = t.C
		}
		select {
		case <-r.turn:
			if r.pushedOut > 0 {
				return overloadedError(r.pushedOut)
			}
		case <-over:
			r.node.gate.abandon(r)
			return r.tooLate()
		case <-r.ctx.Done():
			r.node.gate.abandon(r)
		}
	}
	if r.ctx.Err() != nil {
		return r.cancelledBefore()
	}
	return nil
}

func (r *running) tooLate() *module.Error {
	return module.Errorf(module.CodeBusBudgetExhausted, "no time was left when the call got its turn").NotExecuted()
}

func (r *running) cancelledBefore() *module.Error {
	return module.Wrap(module.CodeExecutionCancelled, context.Cause(r.ctx), "the call was cancelled before it started").
		WithDetail("module_id", r.head.ModuleID).NotExecuted()
}

// execute decodes and runs the call in its slot.
func (r *running) execute() (map[string]any, *module.Error) {
	if r.doubt || (r.turn != nil && r.node.doubtful()) {
		if e := r.stillWanted(); e != nil {
			return nil, e.NotExecuted()
		}
	}
	req, err := r.decode()
	if err != nil {
		return nil, r.unread(err)
	}
	req.CallID, req.Attempt, req.ModuleID = r.key.Call, r.key.Attempt, r.head.ModuleID
	r.note(req.Context)
	if e := r.claim(req.Context); e != nil {
		return nil, e
	}
	if r.head.Budget > 0 {
		if req.Budget = r.head.Budget - time.Since(r.arrived); req.Budget <= 0 {
			return nil, r.tooLate()
		}
	}
	r.adoptTrace(req.Context)
	if r.span != nil && r.span.SpanContext().IsValid() {
		req.TraceParent = traceParentOf(r.span.SpanContext())
	}
	if r.kind == kindCheck {
		res, err := r.node.host.Check(r.ctx, req)
		if err != nil {
			return nil, module.Propagate(err, r.head.ModuleID, req.Context)
		}
		return res.Map(), nil
	}
	req.Progress = r.reply.progress
	reply, err := r.invoke(req)
	if req.Trace && reply != nil && reply.Trace != nil {
		r.reply.trace(reply.Trace)
	}
	if r.flow != nil {
		if e := r.flow.broken(err); e != nil {
			return nil, e.At(req.Context, r.head.ModuleID)
		}
	}
	if err != nil {
		e := module.Propagate(err, r.head.ModuleID, req.Context)
		if e.Remote || (r.flow != nil && r.flow.count() > 0) {
			// What was not executed is a call further down, not this one.
			e = started(e)
		}
		return nil, e
	}
	return reply.Output, nil
}

func (r *running) invoke(req *contextwire.Request) (*contextwire.Reply, error) {
	if r.flow != nil {
		return r.node.streams.InvokeStream(r.context(), req, r.flow.send)
	}
	return r.node.host.Invoke(r.context(), req)
}

// note remembers what the list of calls shows.
func (r *running) note(c *module.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.traceID = c.TraceID()
	if chain := c.ChainView(); len(chain) > 0 {
		r.callerID = chain[len(chain)-1]
	}
	if id := c.Identity(); id != nil {
		r.identityID = id.ID()
	}
}

// record shows the call to operators.
func (r *running) record() contextwire.CallRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := cancel.StateRunning
	if r.entry.Cancelling() {
		state = cancel.StateCancelling
	}
	return contextwire.CallRecord{
		Call: r.key.Call, Attempt: r.key.Attempt, Root: r.root(), Parent: r.head.Parent,
		ModuleID: r.head.ModuleID, Node: r.node.opts.ID, Boot: r.node.boot,
		CallerID: r.callerID, IdentityID: r.identityID, TraceID: r.traceID,
		Mode: r.mode(), StartedAt: r.arrived.UTC(), BudgetMS: r.head.Budget.Milliseconds(), State: state,
	}
}
