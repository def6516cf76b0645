package task

import "slices"

// apply puts a changed record in the place of the present one and moves everything
// that depends on it. The record is not written. w is locked.
func (w *Writer) apply(it *item, next *Record) {
	w.swap(it, next)
	it.number = next.Number
	if next.Lease == nil {
		it.written()
	}
	if it.place == inAwaiting {
		w.unwait(it)
	}
	was, now := it.place, placeOf(next)
	w.settle(it, now)
	if now == inAwaiting {
		w.await(it, next.ApprovalID)
	}
	if was.owned() && !now.owned() && it.q.settings.Concurrency > 0 {
		w.offer(it.q)
	}
	w.arm(it, next.wakeAt(it.doing().until))
	it.notify()
	it.rest()
}

// settle moves it to another place and everything that is counted or waits there. w
// is locked.
func (w *Writer) settle(it *item, now place) {
	was, q := it.place, it.q
	if was == inQueued {
		q.dequeue(it)
	}
	it.place = now
	q.count[was]--
	q.count[now]++
	if was.active() != now.active() {
		if now.active() {
			w.active++
		} else {
			w.active--
		}
	}
	switch now {
	case inQueued:
		q.enqueue(it, w.turn)
		w.offer(q)
	case inClaimed, inRunning: // keep the share of the key
	default:
		if it.keyed {
			q.leave(it, w.turn)
			w.offer(q)
		}
	}
	if now.terminal() {
		w.count(now)
	}
}

// swap replaces the record that is held. w is locked.
func (w *Writer) swap(it *item, next *Record) {
	if it.rec != nil {
		w.held -= int64(sizeOf(it.rec))
	}
	if next != nil {
		w.held += int64(sizeOf(next))
	}
	it.rec = next
}

// arm makes the timers look at it at a time, 0 for never. w is locked.
func (w *Writer) arm(it *item, at Stamp) {
	first := w.timers.first()
	w.timers.set(it, at)
	if f := w.timers.first(); f != 0 && (first == 0 || f < first) {
		poke(w.rearm)
	}
}

func (w *Writer) count(p place) {
	switch p {
	case inCompleted:
		w.stats.Completed++
	case inFailed, inDead:
		w.stats.Failed++
	case inCancelled:
		w.stats.Cancelled++
	}
}

// change applies next and writes it into b. w is locked.
func (w *Writer) change(b *batch, it *item, next *Record) {
	if p := it.doing().progress; p != nil && it.place == inRunning && (next.Progress == nil || next.Progress.Number < p.Number) {
		next.Progress = p // the last word stays with the record
	}
	if w.opts.Evidence != nil {
		if e := evidenceOf(it.rec, next); e != nil {
			b.ended = append(b.ended, e)
		}
	}
	w.apply(it, next)
	it.written()
	w.write(b, it)
}

// await notes that it waits for an approval. w is locked.
func (w *Writer) await(it *item, approval string) {
	it.busy().approval = approval
	set := w.approvals[approval]
	if set == nil {
		set = make(map[*item]struct{})
		w.approvals[approval] = set
	}
	set[it] = struct{}{}
	select {
	case w.doubt <- approval:
	default: // runDoubts looks at all of them from time to time
	}
}

func (w *Writer) unwait(it *item) {
	b := it.busy()
	set := w.approvals[b.approval]
	delete(set, it)
	if len(set) == 0 {
		delete(w.approvals, b.approval)
	}
	b.approval = ""
}

// queueOf returns the queue of a module, made when it is new. w is locked.
func (w *Writer) queueOf(moduleID string) *queue {
	q := w.queues[moduleID]
	if q == nil {
		q = &queue{id: moduleID, asked: make(map[string]Stamp)}
		w.queues[moduleID] = q
	}
	return q
}

// itemOf makes the item of a record, which is not in the index yet. w is locked.
func (w *Writer) itemOf(id taskID, r *Record) *item {
	it := &item{id: id, order: r.Order, number: r.Number, q: w.queueOf(r.ModuleID), priority: uint8(r.Priority)}
	if r.IdempotencyKey != "" {
		x := it.more()
		x.idem, x.hasIdem = idemOf(r.ModuleID, r.IdempotencyKey), true
		x.digest = digestOf(r.InputDigest)
	}
	if r.ConcurrencyKey != "" {
		it.more().keyName = r.ConcurrencyKey
	}
	return it
}

// enlist adds an item that is younger than all others to the index, in a place that
// counts for nothing. w is locked.
func (w *Writer) enlist(it *item) {
	w.items.put(it)
	w.all.add(it)
	it.q.all.add(it)
	if x := it.extra; x != nil && x.hasIdem {
		w.idem[x.idem] = it
	}
	it.place = inAside
	it.q.count[inAside]++
}

// insert adds an item that is younger than all others to the index, with its record.
// w is locked.
func (w *Writer) insert(it *item, r *Record) {
	w.enlist(it)
	if parent, ok := parseTaskID(r.Parent); ok && w.items.get(parent) != nil {
		it.more().child = !r.Detached
		w.children[parent] = addChild(w.children[parent], it) // until the parent goes
	}
	w.apply(it, r)
}

// addChild adds a child to those of its parent, in place of those that are gone: a
// parent may live long and submit without end.
func addChild(children []*item, it *item) []*item {
	if len(children) == cap(children) {
		children = slices.DeleteFunc(children, func(c *item) bool { return c.gone })
		children = slices.Grow(children, len(children)+1)
	}
	return append(children, it)
}

// drop takes it out of the index for good. w is locked.
func (w *Writer) drop(it *item) {
	if it.gone {
		return
	}
	switch it.place {
	case inQueued:
		it.q.dequeue(it)
	case inAwaiting:
		w.unwait(it)
	case inAside:
		w.aside--
	}
	if it.keyed {
		it.q.leave(it, w.turn)
	}
	if it.place.active() {
		w.active--
	}
	it.q.count[it.place]--
	w.swap(it, nil)
	w.timers.remove(it)
	it.gone = true
	w.items.remove(it.id)
	w.all.dropped()
	it.q.all.dropped()
	if x := it.extra; x != nil {
		if x.hasIdem && w.idem[x.idem] == it {
			delete(w.idem, x.idem)
		}
	}
	delete(w.children, it.id)
	it.notify()
	if q := it.q; len(q.all.items) == q.all.gone && !q.stored && len(q.pollers) == 0 && len(q.asked) == 0 {
		delete(w.queues, q.id)
	}
}
