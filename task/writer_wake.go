package task

import (
	"context"
	"time"
)

// earlyWake is a decision that nobody waited for yet.
type earlyWake struct {
	ask WakeAsk
	at  Stamp
}

// maxEarly bounds the decisions that are remembered.
const maxEarly = 10_000

// Wake tells of a decision on an approval; see [Service].
func (w *Writer) Wake(ctx context.Context, ask WakeAsk) (WakeAnswer, error) {
	switch ask.Decision {
	case DecisionApproved, DecisionRejected, DecisionExpired:
	default:
		return WakeAnswer{}, bad("decision", "must be approved, rejected or expired")
	}
	if ask.ApprovalID == "" || len(ask.ApprovalID) > maxName {
		return WakeAnswer{}, bad("approval_id", "must be given")
	}
	if err := w.enter(ctx); err != nil {
		return WakeAnswer{}, err
	}
	var waiting []*item
	for it := range w.approvals[ask.ApprovalID] {
		waiting = append(waiting, it)
	}
	var answer WakeAnswer
	var last *batch
	for _, it := range waiting {
		if err := w.hold(ctx, it); err != nil {
			w.unlockAndKick()
			return answer, err
		}
		if it.gone || it.place != inAwaiting {
			continue
		}
		next := it.rec.next()
		if !w.rules.decide(next, w.moment(), ask) {
			continue
		}
		last = w.room(1)
		w.change(last, it, next)
		answer.Woken++
	}
	if answer.Woken == 0 {
		w.rememberWake(ask)
	}
	w.unlockAndKick()
	return answer, w.durable(ctx, last)
}

// rememberWake keeps a decision for a task that is about to wait for it. w is
// locked.
func (w *Writer) rememberWake(ask WakeAsk) {
	now := At(time.Now())
	if len(w.wakes) >= maxEarly {
		for id, e := range w.wakes {
			if now.Sub(e.at) > wakeMemory {
				delete(w.wakes, id)
			}
		}
	}
	if len(w.wakes) < maxEarly {
		w.wakes[ask.ApprovalID] = earlyWake{ask, now}
	}
}

// runDoubts finds out about approvals that were decided before their task waited,
// and while nobody led.
func (w *Writer) runDoubts(ctx context.Context) {
	const every = 30 * time.Second
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case id := <-w.doubt:
			w.resolve(ctx, id)
		case <-timer.C:
			for _, id := range w.awaited() {
				w.resolve(ctx, id)
			}
			timer.Reset(every)
		case <-ctx.Done():
			return
		}
	}
}

// awaited lists the approvals that tasks wait for.
func (w *Writer) awaited() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make([]string, 0, len(w.approvals))
	for id := range w.approvals {
		ids = append(ids, id)
	}
	return ids
}

func (w *Writer) resolve(ctx context.Context, approvalID string) {
	w.mu.Lock()
	early, known := w.wakes[approvalID]
	delete(w.wakes, approvalID)
	w.mu.Unlock()
	ask := early.ask
	if known && At(time.Now()).Sub(early.at) > wakeMemory {
		known = false
	}
	if !known && w.opts.Decided != nil {
		var err error
		if ask, known, err = w.opts.Decided(ctx, approvalID); err != nil {
			w.slog.Warn("an approval that a task waits for cannot be looked up", "cause", err)
			return
		}
		ask.ApprovalID = approvalID
	}
	if !known {
		return
	}
	if _, err := w.Wake(ctx, ask); err != nil && ctx.Err() == nil {
		w.slog.Warn("a task could not be woken", "cause", err)
	}
}
