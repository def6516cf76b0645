package task

import (
	"context"
	"time"

	"github.com/apbus/apbus/cancel"
)

// runRenewals keeps the leases of all attempts, a third of a lease apart (rule 4).
func (w *Worker) runRenewals(work context.Context) {
	for {
		every := w.shortestLease() / 3
		if every == 0 { // nothing is owned
			select {
			case <-w.renew:
				continue
			case <-work.Done():
				return
			}
		}
		timer := time.NewTimer(every)
		select {
		case <-timer.C:
		case <-work.Done():
			timer.Stop()
			return
		}
		for !w.renewAll(work) {
			// Nobody answered: again soon, until the leases are over by themselves.
			select {
			case <-time.After(min(every/4, time.Second)):
			case <-work.Done():
				return
			}
		}
	}
}

// length is how long its lease is.
func (a *attempt) length() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lease
}

func (w *Worker) shortestLease() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	var least time.Duration
	for _, a := range w.attempts {
		if lease := a.length(); least == 0 || lease < least {
			least = lease
		}
	}
	return least
}

// renewAll renews the leases of all attempts; false when nobody answered.
func (w *Worker) renewAll(work context.Context) bool {
	w.mu.Lock()
	owned := make([]*attempt, 0, len(w.attempts))
	refs := make([]LeaseRef, 0, len(w.attempts))
	var least time.Duration
	for ref, a := range w.attempts {
		if a.lost() {
			continue
		}
		owned, refs = append(owned, a), append(refs, ref)
		if lease := a.length(); least == 0 || lease < least {
			least = lease
		}
	}
	w.mu.Unlock()
	if len(refs) == 0 {
		return true
	}
	sent := time.Now()
	ctx, stop := context.WithTimeout(work, least/3)
	defer stop()
	answer, err := w.src.Renew(ctx, RenewRequest{Node: w.opts.Node, Refs: refs})
	if err != nil || len(answer.Verdicts) != len(owned) {
		w.log.Debug("leases could not be renewed yet", "node", w.opts.Node, "cause", err)
		return false
	}
	for i, a := range owned {
		switch v := answer.Verdicts[i]; {
		case v.Lost:
			a.lose()
		default:
			a.extend(sent, time.Duration(v.LeaseMS)*time.Millisecond)
			if v.Cancel != nil {
				a.cancel(causeOf(v.Cancel))
			}
		}
	}
	return true
}

// finishUp ends the worker (rule 12): attempts get their grace, then a cancellation
// with the cause shutdown, then a moment to be reported.
func (w *Worker) finishUp() error {
	const flush = 900 * time.Millisecond
	w.mu.Lock()
	w.draining = true
	for _, a := range w.attempts {
		a.mu.Lock()
		if a.handler == handlerWaits { // granted and not begun
			a.cancel(cancel.Because(cancel.Shutdown, w.opts.Node, ""))
		}
		a.mu.Unlock()
	}
	w.mu.Unlock()
	if w.opts.Grace > 0 && w.settle(w.opts.Grace) {
		return nil
	}
	w.mu.Lock()
	for _, a := range w.attempts {
		a.cancel(cancel.Because(cancel.Shutdown, w.opts.Node, "the grace is over"))
	}
	w.mu.Unlock()
	if w.settle(flush / 2) {
		return nil
	}
	// What still runs will not be waited for: say so, so that it can go on elsewhere.
	w.mu.Lock()
	left := make([]*attempt, 0, len(w.attempts))
	for _, a := range w.attempts {
		left = append(left, a)
	}
	w.mu.Unlock()
	for _, a := range left {
		w.owned.Go(func() { w.reportFor(a, FinishReport{Outcome: OutcomeAborted, Cause: string(cancel.Shutdown)}, flush/2) })
	}
	if w.settle(flush / 2) {
		return nil
	}
	return unreported(len(left))
}

// settle waits until no attempt is left, for at most d.
func (w *Worker) settle(d time.Duration) bool {
	w.mu.Lock()
	if len(w.attempts) == 0 {
		w.mu.Unlock()
		return true
	}
	if w.empty == nil {
		w.empty = make(chan struct{})
	}
	empty := w.empty
	w.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-empty:
		return true
	case <-timer.C:
		return false
	}
}

// forget takes an attempt off the worker's hands, once.
func (w *Worker) forget(a *attempt, count func(*WorkerStats)) bool {
	a.mu.Lock()
	first := !a.done
	a.done = true
	if a.alarm != nil {
		a.alarm.Stop()
	}
	a.mu.Unlock()
	if !first {
		return false
	}
	close(a.gone)
	a.end(nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.attempts, a.g.LeaseRef)
	count(&w.stats)
	if len(w.attempts) == 0 && w.empty != nil {
		close(w.empty)
		w.empty = nil
	}
	poke(w.free)
	return true
}
