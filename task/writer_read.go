package task

import (
	"context"
	"encoding/json"
	"time"

	"github.com/apbus/apbus/module"
)

// Get returns one record, redacted; see [Service].
func (w *Writer) Get(ctx context.Context, id string) (Record, error) {
	if err := w.enter(ctx); err != nil {
		return Record{}, err
	}
	it, err := w.find(id)
	if err != nil {
		w.mu.Unlock()
		return Record{}, err
	}
	v := w.look(it)
	w.mu.Unlock()
	r, err := w.show(ctx, v)
	if err != nil {
		return Record{}, err
	}
	return r, w.still()
}

// still reports whether what was read may be told: nobody else led meanwhile.
func (w *Writer) still() error {
	if w.opts.Leading() {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.noWriter()
}

// sight is a record as it was when somebody looked, and what has to be durable
// before it may be shown.
type sight struct {
	it       *item
	rec      *Record // nil when it has to be read
	until    Stamp
	progress *Progress
	blocked  string
	batch    *batch
}

// look takes a sight. w is locked.
func (w *Writer) look(it *item) sight {
	doing := it.doing()
	v := sight{it: it, rec: it.rec, until: doing.until, progress: doing.progress, batch: w.settled(it.dirty)}
	v.blocked = w.blockedBy(it)
	return v
}

// blockedBy says why a queued item cannot run as things are. w is locked.
func (w *Writer) blockedBy(it *item) string {
	if it.place != inQueued {
		return ""
	}
	switch q := it.q; {
	case q.settings.Paused:
		return BlockedPaused
	case q.hosts(At(time.Now())) == 0 && w.shapes.recall(q.id).hosts == 0:
		return BlockedNoHost
	}
	return ""
}

// show waits for what has to be durable and makes the redacted record.
func (w *Writer) show(ctx context.Context, v sight) (Record, error) {
	r, err := w.raw(ctx, v)
	if err != nil {
		return Record{}, err
	}
	if r.BlockedBy != "" && r.Inputs == nil { // set aside
		return *r, nil
	}
	sh := w.shapes.of(r.ModuleID)
	out := redactor{w.opts.Redactor}.record(r, sh)
	if v.progress != nil {
		out.Progress = v.progress
	}
	if r.Lease != nil && v.until != 0 {
		lease := *r.Lease
		lease.Until = v.until
		out.Lease = &lease
	}
	if v.blocked != "" && (v.blocked != BlockedNoHost || sh.hosts == 0) {
		out.Detail, out.BlockedBy = Blocked, v.blocked
	}
	return out, nil
}

// raw waits for what has to be durable and returns the record itself.
func (w *Writer) raw(ctx context.Context, v sight) (*Record, error) {
	if err := w.durable(ctx, v.batch); err != nil {
		return nil, err
	}
	if v.rec != nil {
		return v.rec, nil
	}
	r, err := w.fetch(ctx, v.it, false)
	if err != nil {
		return nil, err
	}
	// It may have changed since, and that change must be durable too.
	w.mu.Lock()
	b := w.settled(v.it.dirty)
	if it := v.it; it.rec == nil && !it.gone && it.number == r.Number { // whoever asks asks again
		w.swap(it, r)
		w.letGo(it)
	}
	w.mu.Unlock()
	return r, w.durable(ctx, b)
}

// Result waits for the end of a task; see [Service].
func (w *Writer) Result(ctx context.Context, req ResultRequest) (Result, error) {
	it, err := w.awaitEnd(ctx, req)
	if err != nil {
		return Result{}, err
	}
	w.mu.Lock()
	v := w.look(it)
	w.mu.Unlock()
	r, err := w.raw(ctx, v)
	if err != nil {
		return Result{}, err
	}
	v.rec, v.batch = r, nil
	task, err := w.show(ctx, v)
	if err != nil {
		return Result{}, err
	}
	out := Result{Status: r.Status, Task: task}
	switch {
	case r.Status == Completed && r.ResultRef != nil && r.ResultRef.Store == InLog:
		e, found, err := w.log.Get(ctx, KeyResult+r.TaskID)
		switch {
		case err != nil:
			return Result{}, module.Errorf(module.CodeTaskStoreUnavailable, "the result cannot be read: %w", err)
		case !found:
			return Result{}, expired(it.id)
		}
		out.Output = e.Body
	case r.Status == Completed:
		out.Output, out.Ref = r.Result, r.ResultRef
	case r.Status.Terminal():
		out.Error = r.Error
	}
	return out, w.still()
}

// awaitEnd waits until a task is over, or for as long as the request says.
func (w *Writer) awaitEnd(ctx context.Context, req ResultRequest) (*item, error) {
	var over <-chan time.Time
	for {
		if err := w.enter(ctx); err != nil {
			return nil, err
		}
		it, err := w.usable(req.TaskID)
		if err != nil || it.place.terminal() || req.WaitMS <= 0 {
			w.mu.Unlock()
			return it, err
		}
		news, leave := w.watch(it)
		w.mu.Unlock()
		if over == nil {
			timer := time.NewTimer(waitOf(req.WaitMS))
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-news:
		case <-w.stopped:
		case <-over:
			leave()
			return it, nil
		case <-ctx.Done():
			leave()
			return nil, unanswered(ctx)
		}
	}
}

func waitOf(ms int64) time.Duration {
	return time.Duration(min(max(ms, 0), maxWait.Milliseconds())) * time.Millisecond
}

// watch returns a channel that is closed by the next news of it, and how to stop
// waiting for them. w is locked; leave is called without the lock.
func (w *Writer) watch(it *item) (news <-chan struct{}, leave func()) {
	ch := make(chan struct{})
	x := it.busy()
	x.watchers = append(x.watchers, ch)
	return ch, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for i, c := range x.watchers {
			if c == ch {
				x.watchers = append(x.watchers[:i], x.watchers[i+1:]...)
				return
			}
		}
	}
}

// RawInputs returns the inputs as they were submitted; see [Service].
func (w *Writer) RawInputs(ctx context.Context, id, by string) (json.RawMessage, error) {
	if err := w.enter(ctx); err != nil {
		return nil, err
	}
	it, err := w.usable(id)
	if err == nil {
		err = w.hold(ctx, it)
	}
	if err == nil && it.gone {
		err = expired(it.id)
	}
	if err != nil {
		w.mu.Unlock()
		return nil, err
	}
	next := it.rec.next()
	next.mark(w.moment(), by, "", "inputs_read")
	inputs := next.Inputs
	b := w.room(1)
	w.change(b, it, next)
	w.unlockAndKick()
	w.slog.Info("raw inputs of a task are read", "task_id", id, "module_id", next.ModuleID, "by", by)
	return inputs, w.durable(ctx, b)
}
