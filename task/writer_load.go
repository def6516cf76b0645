package task

import (
	"bytes"
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

// loaded is a task that the log has: its item, when somebody has to look at it, and
// its record where the index needs more than the item holds.
type loaded struct {
	order int64
	it    *item
	wake  Stamp
	rec   *Record
}

// load reads the log and builds the index (durable design, takeover). Attempts that
// were running are left to their nodes for one lease. What is read is made an item at
// once: a million records at a time would need a gigabyte.
func (w *Writer) load(ctx context.Context) error {
	var tasks []loaded
	var odd []*Record // set aside
	read := indexing{texts: make(map[string]string)}
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
			r, err := read.record(name, e.Body)
			switch {
			case !ok || err != nil || r.V > RecordVersion || r.TaskID != name:
				odd = append(odd, setAside(name, r, err, e.Seq))
			case r.Status.Terminal() && r.ExpiresAt <= now:
			default:
				tasks = append(tasks, w.loadTask(id, r))
			}
		}
	}
	slices.SortFunc(tasks, func(a, b loaded) int {
		return cmp.Or(cmp.Compare(a.order, b.order), bytes.Compare(a.it.id[:], b.it.id[:]))
	})

	w.mu.Lock()
	defer w.mu.Unlock()
	now = At(time.Now())
	w.number = int64(now)
	for i := range tasks {
		w.number = max(w.number, tasks[i].it.number, tasks[i].order)
	}
	w.number += takeoverGap
	for i := range tasks {
		w.restore(&tasks[i], now)
	}
	for _, r := range odd {
		w.putAside(r)
	}
	return nil
}

// indexing reads records for the index.
type indexing struct {
	texts map[string]string // those that many records have
	short Record
}

// record reads as much of a record as the index needs. It is good until the next
// call.
func (x *indexing) record(name string, body []byte) (*Record, error) {
	if x.short = (Record{}); decodeIndex(body, &x.short, name, x.texts) {
		return &x.short, nil
	}
	return decodeRecord(body)
}

// loadTask makes the item of a record that the log had.
func (w *Writer) loadTask(id taskID, r *Record) loaded {
	if r.Detail == Claimed { // never meant to be stored
		r.Detail, r.Lease = Queued, nil
	}
	w.mu.Lock()
	it := w.itemOf(id, r)
	w.mu.Unlock()
	l := loaded{order: r.Order, it: it}
	if r.Lease != nil || r.Parent != "" || placeOf(r) == inAwaiting {
		whole := *r
		l.rec = &whole
		return l
	}
	it.place, l.wake = placeOf(r), r.wakeAt(0)
	return l
}

// restore adds a task that the log had to the index. w is locked.
func (w *Writer) restore(l *loaded, now Stamp) {
	it, r := l.it, l.rec
	if r == nil {
		place := it.place
		w.enlist(it)
		w.settle(it, place)
		w.arm(it, l.wake)
		return
	}
	w.insert(it, r)
	if r.Timeline == nil { // only what the index needs was read
		w.swap(it, nil)
	}
	if r.Lease != nil {
		b := it.busy()
		b.until, b.heard = now.Add(w.opts.Lease), true
		w.arm(it, r.wakeAt(b.until))
	}
	l.rec = nil
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
	if !ok || w.items.get(id) != nil {
		// Under a key that no task has: visible under an ID of its own making only.
		id = taskID{}
		copy(id[:], r.TaskID)
		if w.items.get(id) != nil {
			return
		}
	}
	it := &item{id: id, order: r.Order, q: w.queueOf(r.ModuleID), place: inAside, rec: r}
	w.items.put(it)
	w.all.items = slices.Insert(w.all.items, w.all.after(it.order), it)
	it.q.all.items = slices.Insert(it.q.all.items, it.q.all.after(it.order), it)
	it.q.count[inAside]++
	w.aside++
	w.held += int64(sizeOf(r))
}
