package task

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/apbus/apbus/contextwire"
)

// batch is what goes into the log at once.
type batch struct {
	n       uint64
	changes []change
	at      map[string]int // of entries that are no tasks
	signals []Signal
	ended   []*contextwire.Evidence // of attempts
	bytes   int
	sealed  bool          // in the hands of the committer
	done    chan struct{} // closed when it is committed, or never will be
	err     error         // set before done is closed
}

// change is one entry to be.
type change struct {
	it  *item
	rec *Record // nil for entries that are ready
	Entry
}

// room returns the batch that takes n more entries, all of one. w is locked.
func (w *Writer) room(n int) *batch {
	if last := len(w.batches) - 1; last >= 0 {
		if b := w.batches[last]; !b.sealed && len(b.changes)+n <= w.opts.MaxBatch && b.bytes < maxBatchBytes {
			return b
		}
	}
	w.lastBatch++
	b := &batch{n: w.lastBatch, done: make(chan struct{})}
	w.batches = append(w.batches, b)
	return b
}

// write puts the record of it into b. w is locked.
func (w *Writer) write(b *batch, it *item) {
	if it.dirty == b.n {
		b.changes[it.dirtyAt].rec = it.rec
		return
	}
	it.dirty, it.dirtyAt = b.n, int32(len(b.changes))
	b.changes = append(b.changes, change{it: it, rec: it.rec})
	b.bytes += sizeOf(it.rec)
}

// put puts an entry that is no task into b, in place of an earlier one of its key.
func (b *batch) put(e Entry) {
	if i, ok := b.at[e.Key]; ok {
		b.changes[i].Entry = e
		return
	}
	if b.at == nil {
		b.at = make(map[string]int)
	}
	b.at[e.Key] = len(b.changes)
	b.changes = append(b.changes, change{Entry: e})
	b.bytes += len(e.Body)
}

// unlockAndKick lets go of the lock and has the committer look.
func (w *Writer) unlockAndKick() {
	w.mu.Unlock()
	poke(w.kick)
}

// poke wakes the one reader of ch.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// durable waits for a batch. w is not locked.
func (w *Writer) durable(ctx context.Context, b *batch) error {
	if b == nil {
		return nil
	}
	select {
	case <-b.done:
		return b.err
	default:
	}
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return unanswered(ctx)
	}
}

// settled returns the batch that has to be committed before what it says may be
// shown, nil when it is. w is locked.
func (w *Writer) settled(n uint64) *batch {
	if n <= w.committed {
		return nil
	}
	for _, b := range w.batches {
		if b.n == n {
			return b
		}
	}
	return nil
}

// runCommits commits one batch after the other. The next one takes whatever comes
// while one is under way; nobody waits for a batch to fill.
func (w *Writer) runCommits(ctx context.Context) error {
	for {
		b := w.take()
		if b == nil {
			select {
			case <-w.kick:
				continue
			case <-ctx.Done():
				return w.flush(ctx)
			}
		}
		if err := w.commit(ctx, b); err != nil {
			return err
		}
	}
}

// flush commits what was decided before ctx ended.
func (w *Writer) flush(ctx context.Context) error {
	cause := context.Cause(ctx)
	w.mu.Lock()
	w.serving = false
	w.mu.Unlock()
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer stop()
	for b := w.take(); b != nil; b = w.take() {
		if err := w.commit(ctx, b); err != nil {
			break
		}
	}
	return cause
}

// take seals the first batch, nil when there is nothing to commit.
func (w *Writer) take() *batch {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.batches) == 0 {
		return nil
	}
	b := w.batches[0]
	b.sealed = true
	return b
}

// commit stores a sealed batch, again and again until that succeeds, another writer
// leads or ctx ends. Trying the very same entries again does no harm, whatever
// became of them the first time.
func (w *Writer) commit(ctx context.Context, b *batch) error {
	entries := w.encode(b)
	for wait := 10 * time.Millisecond; ; wait = min(wait*2, time.Second) {
		err := w.log.Commit(ctx, entries)
		if err == nil {
			break
		}
		if errors.Is(err, ErrDeposed) {
			return err
		}
		w.mu.Lock()
		w.stats.CommitErrors++
		w.mu.Unlock()
		w.slog.Warn("tasks could not be stored yet", "cause", err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
	w.mu.Lock()
	w.committed = b.n
	w.batches = w.batches[1:]
	w.stats.Commits++
	w.stats.Entries += uint64(len(entries))
	for _, c := range b.changes {
		if c.rec != nil {
			w.letGo(c.it)
		}
	}
	w.mu.Unlock()
	close(b.done)
	for _, s := range b.signals {
		w.opts.Signal(s)
	}
	for _, e := range b.ended {
		w.opts.Evidence(e)
	}
	return nil
}

// encode makes the entries of a batch. Their bodies lie in the room of those before,
// since the log keeps none. Only the committer calls it.
func (w *Writer) encode(b *batch) []Entry {
	clear(w.entries)
	w.entries = slices.Grow(w.entries[:0], len(b.changes))
	if cap(w.bodies) > keptBodies { // after a batch that was unusually large
		w.bodies = nil
	}
	bodies := slices.Grow(w.bodies[:0], min(b.bytes, keptBodies))
	now := At(time.Now())
	for _, c := range b.changes {
		e := c.Entry
		if c.rec != nil {
			start := len(bodies)
			bodies = appendRecord(bodies, c.rec) // what lay in a smaller room stays valid there
			e = Entry{Key: KeyTask + c.it.id.String(), Body: bodies[start:len(bodies):len(bodies)], TTL: ttl(c.rec.ExpiresAt, now)}
		}
		w.entries = append(w.entries, e)
	}
	w.bodies = bodies
	return w.entries
}

// keptBodies is the largest room that is kept for the bodies of a batch.
const keptBodies = 4 << 20

// ttl is how long an entry is kept whose record goes at a time, in whole seconds.
func ttl(expires, now Stamp) time.Duration {
	if expires == 0 {
		return 0
	}
	return max(expires.Sub(now)+time.Second-1, time.Second).Truncate(time.Second)
}

// letGo drops the record of it from memory where nobody needs it there: the log has
// it. Tasks that wait keep theirs while there is room, the first ones first. Of the
// others, the latest stay a while, since they are asked for. w is locked.
func (w *Writer) letGo(it *item) {
	if it.rec == nil || it.dirty > w.committed || it.place.owned() || it.place == inAside {
		return
	}
	limit := w.opts.HeldBytes / 4
	if !it.place.terminal() && w.held <= w.opts.HeldBytes-limit {
		return
	}
	w.recent = append(w.recent, recentEntry{it, it.rec})
	w.recentBytes += int64(sizeOf(it.rec))
	for w.recentBytes > limit {
		old := w.recent[0]
		w.recent[0] = recentEntry{}
		w.recent = w.recent[1:]
		w.recentBytes -= int64(sizeOf(old.rec))
		if old.it.rec == old.rec && old.it.dirty <= w.committed {
			w.swap(old.it, nil)
		}
	}
}

// recentEntry is a record that is kept a while.
type recentEntry struct {
	it  *item
	rec *Record
}

// sizeOf is roughly what a record takes in memory.
func sizeOf(r *Record) int {
	return 900 + len(r.Inputs) + len(r.Context) + len(r.Checkpoint) + len(r.Result) + 112*len(r.Timeline)
}
