package task

import (
	"context"

	"github.com/apbus/apbus/module"
)

// Retry runs a failed or cancelled task again; see [Service].
func (w *Writer) Retry(ctx context.Context, ask ActAsk) (Record, error) {
	return w.act(ctx, ActionRetry, ask)
}

// Requeue gives back a task from the dead letter, or makes one that waits for a time
// due now; see [Service].
func (w *Writer) Requeue(ctx context.Context, ask ActAsk) (Record, error) {
	return w.act(ctx, ActionRequeue, ask)
}

func (w *Writer) act(ctx context.Context, action string, ask ActAsk) (Record, error) {
	if err := w.enter(ctx); err != nil {
		return Record{}, err
	}
	it, err := w.usable(ask.TaskID)
	if err == nil && !fits(action, it.place) {
		err = module.Errorf(module.CodeTaskStateConflict, "a task that is %s cannot be given to %s", describePlace(it.place), action).
			WithDetails(map[string]any{"task_id": ask.TaskID, "status": string(it.place.status())})
	}
	if err == nil {
		err = w.hold(ctx, it)
	}
	if err == nil && it.gone {
		err = expired(it.id)
	}
	if err == nil {
		err = w.roomFor(it)
	}
	if err != nil {
		w.mu.Unlock()
		return Record{}, err
	}
	w.actOn(it, action, ask.By)
	v := w.look(it)
	w.unlockAndKick()
	return w.show(ctx, v)
}

// fits reports whether an action makes sense for a task in a place.
func fits(action string, p place) bool {
	switch action {
	case ActionCancel:
		return p.active()
	case ActionRetry:
		return p == inFailed || p == inDead || p == inCancelled
	case ActionRequeue:
		return p == inDead || p == inBackingOff || p == inScheduled
	}
	return false
}

func describePlace(p place) string {
	if d := p.detail(); d != "" {
		return string(d)
	}
	return string(p.status())
}

// roomFor refuses to make one more task active than there may be. w is locked.
func (w *Writer) roomFor(it *item) error {
	if !it.place.active() && w.active >= w.opts.MaxTasks {
		return w.full()
	}
	return nil
}

// actOn retries or requeues it, whose record is held. w is locked.
func (w *Writer) actOn(it *item, action, by string) *batch {
	m := w.moment()
	next := it.rec.next()
	b := w.room(2)
	if it.place.terminal() {
		if next.ResultRef != nil && next.ResultRef.Store == InLog {
			b.put(Entry{Key: KeyResult + next.TaskID, Delete: true})
		}
		w.rules.again(next, m, by, action)
	} else {
		w.rules.queue(next, m, by, "", action)
	}
	w.change(b, it, next)
	return b
}

// Delete removes a task that is over; see [Service].
func (w *Writer) Delete(ctx context.Context, id, by string) error {
	if err := w.enter(ctx); err != nil {
		return err
	}
	it, err := w.usable(id)
	if err == nil && !it.place.terminal() {
		err = module.Errorf(module.CodeTaskStateConflict, "a task that is %s cannot be deleted", describePlace(it.place)).
			WithDetail("task_id", id)
	}
	if err != nil {
		w.mu.Unlock()
		return err
	}
	b := w.room(2)
	gone := Entry{Key: KeyTask + id, Delete: true}
	if it.dirty == b.n { // a key occurs once in a batch
		b.changes[it.dirtyAt] = change{Entry: gone}
	} else {
		b.put(gone)
	}
	b.put(Entry{Key: KeyResult + id, Delete: true})
	w.drop(it)
	w.unlockAndKick()
	w.slog.Info("a task is deleted", "task_id", id, "by", by)
	return w.durable(ctx, b)
}

// Bulk does one thing to many tasks; see [Service].
func (w *Writer) Bulk(ctx context.Context, req BulkRequest) (BulkAnswer, error) {
	answer := BulkAnswer{Action: req.Action, DryRun: req.DryRun, TaskIDs: []string{}}
	switch req.Action {
	case ActionCancel, ActionRetry, ActionRequeue:
	default:
		return answer, bad("action", "must be cancel, retry or requeue")
	}
	f := req.Filter
	if f.ModuleID == "" && f.Status == "" && f.Detail == "" && f.Query == "" && len(f.IDs) == 0 && f.Parent == "" {
		return answer, bad("filter", "must select something")
	}
	if req.Limit < 0 {
		return answer, bad("limit", "must not be negative")
	}
	s, err := newScan(f, "", false)
	if err != nil {
		return answer, err
	}
	if err := w.askHosts(ctx, s); err != nil {
		return answer, err
	}
	var last *batch
	for more := true; more; {
		if err := w.enter(ctx); err != nil {
			return answer, err
		}
		var found []*item
		found, more = w.next(s, bulkChunk)
		more = more && w.possible(s)
		for _, it := range found {
			if it.gone {
				continue
			}
			if !fits(req.Action, it.place) {
				answer.Skipped++
				continue
			}
			if req.Limit > 0 && answer.Matched == req.Limit {
				more = false
				break
			}
			answer.Matched++
			if len(answer.TaskIDs) < 100 {
				answer.TaskIDs = append(answer.TaskIDs, it.id.String())
			}
			if req.DryRun {
				continue
			}
			b, err := w.bulkOne(ctx, it, req)
			if err != nil {
				w.unlockAndKick()
				return answer, err
			}
			if b != nil {
				answer.Changed++
				last = b
			}
		}
		w.unlockAndKick()
		// A chunk is durable before the next one: a large one does not run ahead of the log.
		if err := w.durable(ctx, last); err != nil {
			return answer, err
		}
	}
	return answer, w.still()
}

// bulkChunk is how many tasks are changed under one lock.
const bulkChunk = 256

// bulkOne does it to one task; nil is that it no longer fitted. w is locked, and
// unlocked meanwhile where the record has to be read.
func (w *Writer) bulkOne(ctx context.Context, it *item, req BulkRequest) (*batch, error) {
	if req.Action == ActionCancel {
		ask := CancelRequest{By: req.By, Reason: req.Reason}
		b, state, err := w.cancelOne(ctx, it, ask)
		if err != nil || state != CancelAccepted {
			return nil, err
		}
		_, cb, err := w.cancelChildren(ctx, it, ask)
		if cb != nil {
			b = cb
		}
		if b == nil { // it was asked for before, and that is durable
			return nil, err
		}
		return b, err
	}
	if err := w.hold(ctx, it); err != nil {
		return nil, err
	}
	if it.gone || !fits(req.Action, it.place) {
		return nil, nil
	}
	if err := w.roomFor(it); err != nil {
		return nil, err
	}
	return w.actOn(it, req.Action, req.By), nil
}
