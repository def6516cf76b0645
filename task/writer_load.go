package task

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// takeoverGap is how many numbers a new writer leaves out, so that what it tells
// comes after what its predecessor told and did not write, even when the clock of that
// one was ahead by as many microseconds.
const takeoverGap = 10_000_000

// load reads the log and builds the index (durable design, takeover). Attempts that
// were running are left to their nodes for one lease.
func (w *Writer) load(ctx context.Context) error {
	type loaded struct {
		id  taskID
		rec *Record
	}
	var tasks []loaded
	var odd []*Record // set aside
	now := At(time.Now())
	for e, err := range w.log.Load(ctx, KeyTask, KeySchedule, KeyQueue) {
		if err != nil {
			return fmt.Errorf("read the task log: %w", err)
		}
		prefix, name := SplitKey(e.Key)
		switch prefix {
		case KeySchedule:
			w.loadSchedule(name, e)
		case KeyQueue:
			w.loadQueue(name, e)
		case KeyTask:
			id, ok := parseTaskID(name)
			r, err := indexed(e.Body)
			switch {
			case !ok || err != nil || r.V > RecordVersion || r.TaskID != name:
				odd = append(odd, setAside(name, r, err, e.Seq))
			case r.Status.Terminal() && r.ExpiresAt <= now:
			default:
				tasks = append(tasks, loaded{id, r})
			}
		}
	}
	slices.SortFunc(tasks, func(a, b loaded) int {
		return cmp.Or(cmp.Compare(a.rec.Order, b.rec.Order), cmp.Compare(a.rec.TaskID, b.rec.TaskID))
	})

	w.mu.Lock()
	defer w.mu.Unlock()
	now = At(time.Now())
	w.number = int64(now)
	for i := range tasks {
		w.number = max(w.number, tasks[i].rec.Number, tasks[i].rec.Order)
	}
	w.number += takeoverGap
	for i := range tasks {
		w.restore(tasks[i].id, tasks[i].rec, now)
		tasks[i].rec = nil
	}
	for _, r := range odd {
		w.putAside(r)
	}
	return nil
}

// indexed reads as much of a record as the index needs.
func indexed(body []byte) (*Record, error) {
	if r, ok := decodeIndex(body); ok {
		return r, nil
	}
	return decodeRecord(body)
}

// restore adds a record that the log had. w is locked.
func (w *Writer) restore(id taskID, r *Record, now Stamp) {
	if r.Detail == Claimed { // never meant to be stored
		r.Detail, r.Lease = Queued, nil
	}
	it := w.insert(id, r)
	if r.Timeline == nil { // only what the index needs was read
		w.swap(it, nil)
	}
	if r.Lease != nil {
		it.until, it.heard = now.Add(w.opts.Lease), true
		it.wake = r.wakeAt(it.until)
		w.timers.remove(it)
		w.arm(it)
	}
	w.letGo(it)
}

// setAside makes the record that stands for one that cannot be used. Of what could
// be read, only what names it is taken.
func setAside(name string, r *Record, err error, seq uint64) *Record {
	aside := &Record{
		V: RecordVersion, TaskID: name, Status: Pending, Detail: Blocked, BlockedBy: BlockedUnreadable,
		Order: int64(seq), Timeline: []Transition{},
	}
	if err == nil && r != nil {
		aside.ModuleID, aside.SubmittedAt = r.ModuleID, r.SubmittedAt
		if r.V > RecordVersion {
			aside.V, aside.BlockedBy = r.V, BlockedNewer
		}
	}
	return aside
}

// putAside makes a record visible that cannot be used (rule 14). It is never
// written. w is locked.
func (w *Writer) putAside(r *Record) {
	w.slog.Warn("a task record is set aside", "task_id", r.TaskID, "cause", r.BlockedBy)
	id, ok := parseTaskID(r.TaskID)
	if !ok || w.items[id] != nil {
		// Under a key that no task has: visible under an ID of its own making only.
		id = taskID{}
		copy(id[:], r.TaskID)
		if w.items[id] != nil {
			return
		}
	}
	it := &item{id: id, order: r.Order, q: w.queueOf(r.ModuleID), place: inAside, rec: r}
	w.items[id] = it
	w.all.items = slices.Insert(w.all.items, w.all.after(it.order), it)
	it.q.all.items = slices.Insert(it.q.all.items, it.q.all.after(it.order), it)
	it.q.count[inAside]++
	w.aside++
	w.held += int64(sizeOf(r))
}
