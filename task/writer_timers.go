package task

import (
	"context"
	"time"
)

// runTimers does what time alone brings about: due tasks, limits, leases,
// schedules, retention, and the writing of attempts that last.
func (w *Writer) runTimers(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next := w.fire(ctx)
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-w.rearm:
		case <-ctx.Done():
			return
		}
	}
}

// fire does what is due, and returns when to look again.
func (w *Writer) fire(ctx context.Context) time.Duration {
	for {
		w.mu.Lock()
		if !w.serving {
			w.mu.Unlock()
			return time.Hour
		}
		m := w.moment()
		more, missing := w.fireItems(m)
		w.fireBehind(m)
		schedules := w.dueSchedules(m)
		next := w.nextWake(m.now)
		w.unlockAndKick()
		for _, s := range schedules {
			w.fireSchedule(ctx, s)
		}
		if len(missing) > 0 && w.fetchAll(ctx, missing) != nil {
			return time.Second // the log does not answer; they are still armed
		}
		if !more && len(missing) == 0 && len(schedules) == 0 {
			return next
		}
	}
}

// fireItems handles up to a chunk of due items. missing are those whose records have
// to be read first; they stay armed. w is locked.
func (w *Writer) fireItems(m moment) (more bool, missing []*item) {
	defer func() {
		for _, it := range missing {
			w.timers.set(it, m.now)
		}
	}()
	for range scanChunk / 4 {
		it, wake := w.timers.pop(m.now)
		if it == nil {
			return false, missing
		}
		if it.rec != nil {
			wake = it.rec.wakeAt(it.doing().until)
		}
		switch {
		case wake > m.now || wake == 0:
			w.timers.set(it, wake)
		case it.place.terminal():
			w.stats.Expired++
			w.drop(it)
		case it.rec == nil:
			missing = append(missing, it)
		default:
			w.tick(it, w.moment())
		}
	}
	return true, missing
}

// tick is the time of a record that is held. w is locked.
func (w *Writer) tick(it *item, m moment) {
	next := it.rec.next()
	lease, running := next.Lease, next.Status == Running
	doing := it.doing()
	if !w.rules.tick(next, m, doing.until, doing.heard) {
		w.arm(it, it.rec.wakeAt(doing.until))
		return
	}
	b := w.room(1)
	if lease != nil {
		w.stats.Lapsed++
		if next.Status.Terminal() || running {
			b.signals = append(b.signals, signalOf(it, it.rec, true))
		}
		w.slog.Warn("the owner of a task attempt was lost", "task_id", next.TaskID, "module_id", next.ModuleID,
			"node", lease.Node, "attempt", next.Attempt)
		w.sendAway(it.q, lease.Node, lease.Boot)
	}
	w.change(b, it, next)
}

// signalOf tells the owner of r, which is about to change.
func signalOf(it *item, r *Record, lost bool) Signal {
	return Signal{
		LeaseRef: LeaseRef{TaskID: it.id.String(), Attempt: r.Attempt, Epoch: r.Lease.Epoch},
		Node:     r.Lease.Node, Boot: r.Lease.Boot, Call: r.Lease.Call, Lost: lost, Cancel: r.CancelRequested,
	}
}

// behindEntry is an attempt that runs and that the log does not know.
type behindEntry struct {
	it    *item
	epoch int64
	at    Stamp
}

// fireBehind writes the attempts that have lasted long enough. w is locked.
func (w *Writer) fireBehind(m moment) {
	n := 0
	for n < len(w.behind) && w.behind[n].at <= m.now {
		e := w.behind[n]
		if e.it.unwritten() && e.it.rec != nil && e.it.rec.Lease != nil && e.it.rec.Lease.Epoch == e.epoch {
			e.it.written()
			w.write(w.room(1), e.it)
		}
		n++
	}
	clear(w.behind[:n])
	w.behind = w.behind[n:]
	if len(w.behind) == 0 {
		w.behind = nil
	}
}

// nextWake is how long nothing is due. w is locked.
func (w *Writer) nextWake(now Stamp) time.Duration {
	at := w.timers.first()
	sooner := func(s Stamp) {
		if s != 0 && (at == 0 || s < at) {
			at = s
		}
	}
	if len(w.behind) > 0 {
		sooner(w.behind[0].at)
	}
	for _, s := range w.schedules {
		if !s.Paused {
			sooner(s.NextAt)
		}
	}
	if at == 0 {
		return time.Hour
	}
	return min(max(at.Sub(now), 0), time.Hour)
}
