package task

import (
	"context"
	"errors"
	"sync"

	"github.com/apbus/apbus/module"
)

// fetch reads the record of it from the log when memory does not have it, and
// returns it; keep puts it into memory. w is not locked. A record that is gone
// meanwhile is TASK_EXPIRED.
func (w *Writer) fetch(ctx context.Context, it *item, keep bool) (*Record, error) {
	for range 100 {
		w.mu.Lock()
		rec, number, gone := it.rec, it.number, it.gone
		w.mu.Unlock()
		switch {
		case gone:
			return nil, expired(it.id)
		case rec != nil:
			return rec, nil
		}
		r, err := w.read(ctx, it, number, keep)
		if err != nil {
			return nil, err
		}
		if r != nil {
			return r, nil
		}
	}
	return nil, module.Errorf(module.CodeTaskStoreUnavailable, "the task log keeps answering with another record")
}

// read gets the record of it from the log. It is nil when the item has changed, so
// that the caller looks again.
func (w *Writer) read(ctx context.Context, it *item, number int64, keep bool) (*Record, error) {
	e, found, err := w.log.Get(ctx, KeyTask+it.id.String())
	if err != nil {
		if ctx.Err() != nil {
			return nil, unanswered(ctx)
		}
		return nil, module.Errorf(module.CodeTaskStoreUnavailable, "the task log cannot be read: %w", err)
	}
	var r *Record
	if found {
		r, err = decodeRecord(e.Body)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.LogReads++
	switch {
	case it.gone || it.rec != nil || it.number != number:
		return nil, nil
	case err != nil:
		return nil, w.spoiled(it, err)
	case r == nil && it.place.terminal(): // its time in the log is over
		w.drop(it)
		return nil, expired(it.id)
	case r == nil:
		return nil, w.spoiled(it, errors.New("it is missing from the log"))
	case r.Number != number:
		return nil, nil
	}
	if keep {
		w.swap(it, r)
	}
	return r, nil
}

// spoiled sets an item aside whose record turned out to be of no use after all, so
// that it stops nobody else. w is locked.
func (w *Writer) spoiled(it *item, err error) error {
	id := it.id.String()
	w.slog.Error("a task record cannot be used", "task_id", id, "module_id", it.q.id, "cause", err)
	aside := setAside(id, &Record{V: RecordVersion, ModuleID: it.q.id}, nil, uint64(it.order))
	w.drop(it)
	w.putAside(aside)
	return module.Errorf(module.CodeTaskUnreadable, "the task record cannot be read").WithCause(err).WithDetail("task_id", id)
}

// fetchAll brings several into memory; the first error is returned.
func (w *Writer) fetchAll(ctx context.Context, items []*item) error {
	_, errs := w.fetchEach(ctx, items, true)
	for _, err := range errs {
		if e := module.AsError(err); e != nil && e.Code != module.CodeTaskExpired && e.Code != module.CodeTaskUnreadable {
			return err
		}
	}
	return nil
}

// fetchEach reads several at once.
func (w *Writer) fetchEach(ctx context.Context, items []*item, keep bool) ([]*Record, []error) {
	recs, errs := make([]*Record, len(items)), make([]error, len(items))
	var owned sync.WaitGroup
	const readers = 32 // on their way; a log answers them one after the other
	for n := range min(readers, len(items)) {
		owned.Go(func() {
			for i := n; i < len(items); i += readers {
				recs[i], errs[i] = w.fetch(ctx, items[i], keep)
			}
		})
	}
	owned.Wait()
	return recs, errs
}

// hold locks w with the record of it in memory, unless err says why not. what is
// locked is unlocked by the caller.
func (w *Writer) hold(ctx context.Context, it *item) error {
	for range 100 {
		if it.rec != nil || it.gone {
			return nil
		}
		number := it.number
		w.mu.Unlock()
		_, err := w.read(ctx, it, number, true)
		w.mu.Lock()
		if err != nil {
			return err
		}
		if !w.serving {
			return w.noWriter()
		}
	}
	if it.rec == nil && !it.gone {
		return module.Errorf(module.CodeTaskStoreUnavailable, "the task log keeps answering with another record")
	}
	return nil
}

// find returns the item of an ID. w is locked.
func (w *Writer) find(id string) (*item, error) {
	t, ok := parseTaskID(id)
	if ok {
		if it := w.items.get(t); it != nil {
			return it, nil
		}
		return nil, w.missing(t)
	}
	var odd taskID
	copy(odd[:], id)
	if it := w.items.get(odd); it != nil && it.place == inAside && it.rec.TaskID == id {
		return it, nil
	}
	return nil, notFound(id)
}

// usable is find without records that were set aside. w is locked.
func (w *Writer) usable(id string) (*item, error) {
	it, err := w.find(id)
	if err == nil && it.place == inAside {
		return nil, module.Errorf(module.CodeTaskUnreadable, "the task record is set aside: %s", it.rec.BlockedBy).
			WithDetail("task_id", id)
	}
	return it, err
}
