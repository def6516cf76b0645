package bus

import (
	"context"
	"maps"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

const (
	// fetchedBodies is how many of the largest bodies a node holds at once; calls
	// beyond that are refused as overload.
	fetchedBodies = 8
	// replyTime is how long storing a large output may take, whatever the budget.
	replyTime = 30 * time.Second
)

// fetch reads the body of a call that is in the object store, in the call's slot
// and its time.
func (r *running) fetch() error {
	ref := r.head.BodyRef
	if ref == nil || r.held > 0 {
		return nil
	}
	n := r.node
	limit := fetchedBodies * int64(n.opts.Limits.MaxBody)
	if total := n.fetched.Add(ref.Size); total > limit && total > ref.Size {
		n.fetched.Add(-ref.Size)
		return module.Errorf(module.CodeBusOverloaded, "the node holds too many large bodies").
			WithDetail("retry_after_ms", time.Second.Milliseconds())
	}
	r.held = ref.Size
	ctx := r.ctx
	if r.head.Budget > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadlineCause(ctx, r.arrived.Add(r.head.Budget), cancel.Because(cancel.Timeout, n.opts.ID, "the time of the call is over"))
		defer stop()
	}
	body, err := n.conns.bodies().get(ctx, ref)
	if err != nil {
		return err
	}
	r.body = body
	return nil
}

// unread is how a call ends whose body cannot be read or understood.
func (r *running) unread(err error) *module.Error {
	if coded := module.AsError(err); coded == nil {
		if r.ctx.Err() != nil {
			return r.cancelledBefore()
		}
		if isTimeout(err) {
			return r.tooLate()
		}
	}
	return module.Propagate(err, r.head.ModuleID, nil).NotExecuted()
}

// forgetBody lets go of what fetch read.
func (r *running) forgetBody() {
	r.node.fetched.Add(-r.held)
	r.held = 0
}

// outsource moves the body of a last frame to the object store when it is too
// large for a message: under the name of the reply subject, so that the caller,
// who owns it, knows it whatever becomes of the frame. The caller deletes it.
func (n *Node) outsource(ctx context.Context, m *nats.Msg) error {
	if err := n.opts.Limits.CheckSize(len(m.Data)); err != nil {
		return err
	}
	store := n.conns.storeFor(len(m.Data))
	if store == nil {
		return nil
	}
	if !nameable(m.Subject) {
		return nil // the reply must fit
	}
	storing, stop := context.WithTimeoutCause(ctx, replyTime, errBodyLate)
	defer stop()
	ref, left, err := store.put(storing, m.Subject, m.Data)
	if err == nil {
		m.Header = maps.Clone(m.Header) // which belongs to the encoder
		m.Header[contextwire.HeaderBodyRef] = []string{ref.String()}
		m.Data = nil
		return nil
	}
	n.discard(store, left) //nolint:contextcheck // a body is deleted though its call is over
	if module.AsError(err) != nil {
		return err
	}
	if ctx.Err() != nil {
		return module.Wrap(module.CodeExecutionCancelled, context.Cause(ctx), "the call was cancelled before its output had been stored")
	}
	return module.Errorf(module.CodeBusDisconnected, "store the output: %w", err)
}

// learnPayloads follows the max_payload of the other nodes, for what goes into a
// message.
func (n *Node) learnPayloads(ctx context.Context, cat *catalogue) error {
	err := n.subscribe(n.conns.Control, nodeRecordSubject(n.subjects.ns), "", func(m *nats.Msg) {
		if r, err := decodeRecord(m.Data); err == nil { // a deletion has no record
			n.conns.floor.note(r.MaxPayload)
		}
	})
	if err != nil {
		return err
	}
	records, err := cat.records(ctx, n.subjects.ns)
	if err != nil {
		return module.Wrap(module.CodeBusDisconnected, err, "cannot read the catalogue")
	}
	for _, r := range records {
		n.conns.floor.note(r.MaxPayload)
	}
	return nil
}

// sweepBodies tidies the object store while the node lives.
func (n *Node) sweepBodies() {
	store := n.conns.bodies()
	if store == nil {
		return
	}
	s := &sweeper{store: store, every: nodeSweep, ask: n.askCaller, log: n.log, away: func() bool {
		return !n.conns.Control.Connected() || n.reconnectedAt.within(settleTime) || n.doubtful()
	}}
	n.wg.Go(func() { s.run(n.life) })
}

// discard deletes what an upload left that nobody is going to be told of.
func (n *Node) discard(store *bodyStore, left *leftover) {
	n.wg.Go(func() {
		ctx, stop := context.WithTimeoutCause(context.Background(), discardLimit, errDiscardLate)
		defer stop()
		if err := store.discard(ctx, left); err != nil {
			n.calm.warn("cannot delete a large body, the sweep will", "cause", err)
		}
	})
}
