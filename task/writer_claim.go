package task

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

const (
	maxSlots   = 10_000
	maxModules = 10_000
	maxName    = 256
)

// poller is one claim that waits.
type poller struct {
	node, boot string
	wake       chan struct{}
	gone       bool
	told       bool
	// sent is set when the claim is to be answered with nothing: an attempt of its
	// process was lost, and who still lives asks again.
	sent bool
}

// Claim waits for work; see [WorkSource]. What it grants is durable as far as
// having been submitted; that it was granted is known to memory only.
func (w *Writer) Claim(ctx context.Context, req ClaimRequest) (ClaimAnswer, error) {
	none := ClaimAnswer{Grants: []Grant{}}
	if err := checkClaim(req); err != nil {
		return none, err
	}
	var over <-chan time.Time
	arrived := time.Now()
	for {
		rerun := w.rerunnable(req)
		if err := w.enter(ctx); err != nil {
			return none, err
		}
		queues := w.asks(req, rerun)
		granted, missing := w.pick(req, queues, rerun)
		if len(granted) > 0 {
			return w.hand(ctx, time.Since(arrived), granted)
		}
		if len(missing) > 0 {
			w.mu.Unlock()
			if err := w.fetchAll(ctx, missing); err != nil {
				return none, err
			}
			continue
		}
		if req.WaitMS <= 0 {
			w.mu.Unlock()
			return none, w.still()
		}
		p := &poller{node: req.Node, boot: req.Boot, wake: make(chan struct{}, 1)}
		for _, q := range queues {
			q.waits(p)
		}
		w.mu.Unlock()
		if over == nil {
			timer := time.NewTimer(waitOf(req.WaitMS))
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-p.wake:
		case <-w.stopped:
		case <-over:
			w.leave(p, queues)
			return none, w.still()
		case <-ctx.Done():
			w.leave(p, queues)
			return none, unanswered(ctx)
		}
		if w.leave(p, nil); p.sent {
			return none, w.still()
		}
	}
}

func checkClaim(req ClaimRequest) error {
	switch {
	case req.Node == "" || len(req.Node) > maxName || len(req.Boot) > maxName:
		return bad("node", "must be named")
	case req.Slots < 1 || req.Slots > maxSlots:
		return bad("slots", fmt.Sprintf("must be between 1 and %d", maxSlots))
	case len(req.Modules) > maxModules || len(req.Rerun) > maxModules:
		return bad("modules", fmt.Sprintf("must be at most %d", maxModules))
	}
	for _, id := range req.Modules {
		if err := module.ValidateID(id); err != nil {
			return err
		}
	}
	return nil
}

// rerunnable says which modules of a claim may run twice: by the word of the node,
// which is the one that runs them.
func (w *Writer) rerunnable(req ClaimRequest) map[string]bool {
	rerun := make(map[string]bool, len(req.Modules))
	for _, id := range req.Modules {
		rerun[id] = w.shapes.of(id).rerun && req.Rerun == nil
	}
	for _, id := range req.Rerun {
		rerun[id] = true
	}
	return rerun
}

// asks returns the queues of a claim and notes that the node hosts them. w is
// locked.
func (w *Writer) asks(req ClaimRequest, rerun map[string]bool) []*queue {
	now := At(time.Now())
	w.forgetIdle(now)
	queues := make([]*queue, 0, len(req.Modules))
	for _, id := range req.Modules {
		q := w.queueOf(id)
		q.ask(req.Node, now, rerun[id])
		queues = append(queues, q)
	}
	return queues
}

// forgetIdle drops queues that nodes asked for once and nobody has work in, as often
// as their number has doubled: claims name any module. w is locked.
func (w *Writer) forgetIdle(now Stamp) {
	if len(w.queues) < w.lookAt {
		return
	}
	maps.DeleteFunc(w.queues, func(_ string, q *queue) bool { return q.idle(now) })
	w.lookAt = 2*len(w.queues) + maxModules
}

// waits adds a poller to those of q.
func (q *queue) waits(p *poller) {
	if len(q.pollers) >= 16 {
		kept := q.pollers[:0]
		for _, o := range q.pollers {
			if !o.gone && !o.told {
				kept = append(kept, o)
			}
		}
		clear(q.pollers[len(kept):])
		q.pollers = kept
	}
	q.pollers = append(q.pollers, p)
}

// offer wakes a poller when q has something to grant. w is locked.
func (w *Writer) offer(q *queue) {
	if !q.open() {
		return
	}
	for len(q.pollers) > 0 {
		p := q.pollers[0]
		q.pollers[0] = nil
		q.pollers = q.pollers[1:]
		if p.gone || p.told {
			continue
		}
		p.told = true
		p.wake <- struct{}{}
		return
	}
	q.pollers = nil
}

// sendAway answers the waiting claims of a process that has lost an attempt of q. It
// may be gone, and what it would be granted would be held for nobody; a process that
// lives asks again at once. w is locked.
func (w *Writer) sendAway(q *queue, node, boot string) {
	for _, p := range q.pollers {
		if p.node == node && p.boot == boot && !p.gone && !p.told {
			p.told, p.sent = true, true
			p.wake <- struct{}{}
		}
	}
}

// leave takes a poller out. One that was woken and goes away hands the turn on.
func (w *Writer) leave(p *poller, queues []*queue) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.gone = true
	if p.told {
		for _, q := range queues {
			w.offer(q)
		}
	}
}

// pick grants up to as many tasks as the claim has slots, in turn over all its
// queues and priorities. missing are records to be read before anything can be
// granted. w is locked.
func (w *Writer) pick(req ClaimRequest, queues []*queue, rerun map[string]bool) (granted, missing []*item) {
	for len(granted) < req.Slots {
		var best *queue
		var lane int
		var least float64
		for _, q := range queues {
			if !q.open() {
				continue
			}
			if p, pass := q.lanes.first(); p >= 0 && (best == nil || pass < least || pass == least && p > lane) {
				best, lane, least = q, p, pass
			}
		}
		if best == nil {
			break
		}
		it := best.lanes.peek(lane)
		if it.rec == nil {
			if len(granted) == 0 {
				missing = best.upcoming(lane, min(req.Slots, readAhead))
			}
			break
		}
		w.turn = max(w.turn, least)
		best.lanes.charge(it)
		w.grant(it, req, rerun[best.id])
		granted = append(granted, it)
	}
	if len(granted) > 0 {
		for _, q := range queues { // others may have what this one left
			w.offer(q)
		}
	}
	return granted, missing
}

// readAhead is how many records are read for one claim before any is granted.
const readAhead = 256

// upcoming returns the next items of a lane whose records are not in memory.
func (q *queue) upcoming(priority, n int) []*item {
	var items []*item
	lane := &q.lanes.lane[priority]
	for _, e := range lane.entries[lane.head:] {
		if e.it != nil && e.it.ticket == e.ticket && e.it.rec == nil {
			if items = append(items, e.it); len(items) == n {
				break
			}
		}
	}
	return items
}

// newEpoch makes a number that was not given before, by whatever writer: 53 random
// bits, which every JSON reader can hold. They need not rise.
func newEpoch() int64 { return rand.Int64N(1<<53-1) + 1 }

// grant gives the attempt of a queued item to a node, in memory. w is locked.
func (w *Writer) grant(it *item, req ClaimRequest, rerun bool) {
	m := w.moment()
	next := it.rec.next()
	w.rules.grant(next, m, owner{node: req.Node, boot: req.Boot, call: contextwire.NewCallID(), epoch: newEpoch(), rerun: rerun})
	busy := it.busy()
	busy.until, busy.heard, busy.unborn = next.Lease.Until, false, true
	if rerun {
		w.rules.start(next, m)
	}
	w.apply(it, next)
	w.stats.Granted++
	if rerun && w.opts.WriteBehind >= 0 {
		at := m.now.Add(w.opts.WriteBehind)
		w.behind = append(w.behind, behindEntry{it, next.Lease.Epoch, at})
		if len(w.behind) == 1 {
			poke(w.rearm)
		}
	} else if rerun {
		it.written()
		w.write(w.room(1), it)
	}
}

// hand makes the answer of a claim once all that was granted is durable. w is
// locked.
func (w *Writer) hand(ctx context.Context, waited time.Duration, granted []*item) (ClaimAnswer, error) {
	answer := ClaimAnswer{Grants: make([]Grant, 0, len(granted)), WaitedMS: waited.Milliseconds()}
	var last *batch
	refs := make([]LeaseRef, 0, len(granted))
	for _, it := range granted {
		r := it.rec
		g := Grant{
			LeaseRef: LeaseRef{TaskID: r.TaskID, Attempt: r.Attempt, Epoch: r.Lease.Epoch},
			ModuleID: r.ModuleID, Call: r.Lease.Call, Context: r.Context, Inputs: r.Inputs,
			Confirm: !r.Rerun, LeaseMS: w.rules.firstLease().Milliseconds(), AttemptMS: r.Timeouts.AttemptMS,
			IdempotencyKey: r.IdempotencyKey, Checkpoint: r.Checkpoint, Priority: r.Priority,
		}
		if r.Approved {
			g.ApprovalToken = r.ApprovalID
		}
		refs = append(refs, g.LeaseRef)
		answer.Grants = append(answer.Grants, g)
		if b := w.settled(it.dirty); b != nil && (last == nil || b.n > last.n) {
			last = b
		}
	}
	w.unlockAndKick()
	err := w.durable(ctx, last)
	if err == nil {
		err = w.still()
	}
	if err != nil {
		w.takeBack(refs)
		return ClaimAnswer{Grants: []Grant{}}, err
	}
	return answer, nil
}

// Undelivered takes back grants whose answer has reached nobody, as of a node that
// died while it waited for work. What its node has spoken of meanwhile is left alone.
func (w *Writer) Undelivered(refs []LeaseRef) { w.takeBack(refs) }

// takeBack undoes grants that nobody was told of.
func (w *Writer) takeBack(refs []LeaseRef) {
	w.mu.Lock()
	defer w.unlockAndKick()
	if !w.serving {
		return
	}
	for _, ref := range refs {
		// Who has spoken of an attempt has been told of it, whatever else is said.
		if id, ok := parseTaskID(ref.TaskID); ok && w.items.get(id) != nil && w.items.get(id).doing().heard {
			continue
		}
		w.release(ref, "not delivered")
	}
}
