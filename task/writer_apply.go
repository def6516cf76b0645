package task

// apply puts a changed record in the place of the present one and moves everything
// that depends on it. The record is not written. w is locked.
func (w *Writer) apply(it *item, next *Record) {
	was := it.place
	now := placeOf(next)
	q := it.q
	w.swap(it, next)
	it.number = next.Number
	if was == inQueued {
		q.dequeue(it)
	}
	if was == inAwaiting {
		w.unwait(it)
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
	if next.Lease == nil && it.extra != nil {
		it.extra.unborn = false
	}
	switch now {
	case inQueued:
		q.enqueue(it, w.turn)
		w.offer(q)
	case inClaimed, inRunning: // keep the share of the key
	case inAwaiting:
		w.await(it, next.ApprovalID)
		fallthrough
	default:
		if it.keyed {
			q.leave(it, w.turn)
			w.offer(q)
		}
	}
	if now.terminal() {
		w.count(now)
	}
	if !now.owned() && it.extra != nil {
		it.extra.progress = nil
	}
	if was.owned() && !now.owned() && q.settings.Concurrency > 0 {
		w.offer(q)
	}
	it.wake = next.wakeAt(it.until)
	w.arm(it)
	it.notify()
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

// arm makes the timers look at it in time. w is locked.
func (w *Writer) arm(it *item) {
	first := w.timers.first()
	w.timers.set(it, it.wake)
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
	if it.extra != nil && it.extra.progress != nil && it.place == inRunning && (next.Progress == nil || next.Progress.Number < it.extra.progress.Number) {
		next.Progress = it.extra.progress // the last word stays with the record
	}
	if w.opts.Evidence != nil {
		if e := evidenceOf(it.rec, next); e != nil {
			b.ended = append(b.ended, e)
		}
	}
	w.apply(it, next)
	if it.extra != nil {
		it.extra.unborn = false
	}
	w.write(b, it)
}

// await notes that it waits for an approval. w is locked.
func (w *Writer) await(it *item, approval string) {
	it.more().approval = approval
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
	set := w.approvals[it.extra.approval]
	delete(set, it)
	if len(set) == 0 {
		delete(w.approvals, it.extra.approval)
	}
	it.extra.approval = ""
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

// insert adds a record that is younger than all others to the index. w is locked.
func (w *Writer) insert(id taskID, r *Record) *item {
	it := &item{id: id, order: r.Order, number: r.Number, q: w.queueOf(r.ModuleID), priority: uint8(r.Priority)}
	w.items[id] = it
	w.all.add(it)
	it.q.all.add(it)
	if r.IdempotencyKey != "" {
		x := it.more()
		x.idem, x.hasIdem = idemOf(r.ModuleID, r.IdempotencyKey), true
		x.digest = digestOf(r.InputDigest)
		w.idem[x.idem] = it
	}
	if r.ConcurrencyKey != "" {
		it.more().keyName = r.ConcurrencyKey
	}
	if parent, ok := parseTaskID(r.Parent); ok && w.items[parent] != nil {
		it.more().child = !r.Detached
		w.children[parent] = append(w.children[parent], it) // until the parent goes
	}
	// As if it came from a place that counts for nothing.
	it.place = inAside
	it.q.count[inAside]++
	w.apply(it, r)
	return it
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
	delete(w.items, it.id)
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
