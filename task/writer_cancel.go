package task

import "context"

// Cancel asks a task to stop; see [Service]. The request is durable when the answer
// comes, and the node that runs the task is told afterwards (rule 8).
func (w *Writer) Cancel(ctx context.Context, ask CancelAsk) (CancelAnswer, error) {
	answer := CancelAnswer{TaskID: ask.TaskID, State: CancelUnknown}
	if err := w.enter(ctx); err != nil {
		return answer, err
	}
	it, err := w.find(ask.TaskID)
	if err != nil {
		w.mu.Unlock()
		return answer, nil
	}
	if it.place == inAside {
		_, err := w.usable(ask.TaskID)
		w.mu.Unlock()
		return answer, err
	}
	req := CancelRequest{By: ask.By, Reason: ask.Reason}
	b, state, err := w.cancelOne(ctx, it, req)
	if err != nil {
		w.mu.Unlock()
		return answer, err
	}
	answer.State, answer.Status = state, it.place.status()
	if state == CancelAccepted {
		children, cb, err := w.cancelChildren(ctx, it, req)
		if err != nil {
			w.mu.Unlock()
			return answer, err
		}
		answer.Children = children
		if cb != nil {
			b = cb
		}
	}
	w.unlockAndKick()
	return answer, w.durable(ctx, b)
}

// cancelOne cancels one task. The batch is what the answer has to wait for. w is
// locked, and unlocked meanwhile where the record has to be read.
func (w *Writer) cancelOne(ctx context.Context, it *item, req CancelRequest) (*batch, string, error) {
	if it.place.terminal() {
		return w.settled(it.dirty), CancelAlreadyTerminal, nil
	}
	if err := w.hold(ctx, it); err != nil {
		return nil, "", err
	}
	if it.gone || it.place.terminal() {
		return w.settled(it.dirty), CancelAlreadyTerminal, nil
	}
	if it.place == inRunning && it.rec.CancelRequested != nil {
		return w.settled(it.dirty), CancelAccepted, nil
	}
	before := it.rec
	next := it.rec.next()
	w.rules.cancel(next, w.moment(), req)
	b := w.room(1)
	w.change(b, it, next)
	if it.place.owned() {
		it.busy().cancelIn = b.n
	}
	if before.Lease != nil {
		s := signalOf(it, before, next.Status.Terminal())
		s.Cancel = next.CancelRequested
		b.signals = append(b.signals, s)
	}
	return b, CancelAccepted, nil
}

// cancelChildren cancels what a task submitted, and what that submitted. w is
// locked.
func (w *Writer) cancelChildren(ctx context.Context, it *item, req CancelRequest) (n int, last *batch, err error) {
	req.Reason = "the task that submitted it was cancelled"
	todo := []*item{it}
	seen := map[*item]bool{it: true}
	for len(todo) > 0 {
		parent := todo[0]
		todo = todo[1:]
		for _, c := range append([]*item(nil), w.children[parent.id]...) {
			if c.gone || seen[c] || c.extra == nil || !c.extra.child {
				continue
			}
			seen[c] = true
			todo = append(todo, c)
			if !c.place.active() {
				continue
			}
			b, state, err := w.cancelOne(ctx, c, req)
			if err != nil {
				return n, last, err
			}
			if state == CancelAccepted {
				n++
			}
			if b != nil {
				last = b
			}
		}
	}
	return n, last, nil
}
