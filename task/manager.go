package task

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// ManagerOptions configure a [Manager]. The zero value is valid.
type ManagerOptions struct {
	// MaxConcurrent is how many tasks run at once; default 10.
	MaxConcurrent int
	// MaxTasks bounds the tasks that are pending or running; default 1000.
	MaxTasks int
	// Store keeps the records; a new [MemStore] when nil.
	Store Store
	// Logger gets the failures that have no caller; slog.Default() when nil.
	Logger *slog.Logger
}

// Manager is apcore's AsyncTaskManager: background calls of one process, over a
// store that may outlive it. For tasks that survive their process, with leases and
// one writer, see [Writer]. Its methods may be called from several goroutines. Every
// failure of the store is passed on, as TASK_STORE_UNAVAILABLE where the store
// says so.
type Manager struct {
	run   module.Executor
	opts  ManagerOptions
	log   *slog.Logger
	slots chan struct{}
	// turn is held while a record is read and written back, so that no two changes in
	// this process overtake each other.
	turn  chan struct{}
	owned sync.WaitGroup

	mu     sync.Mutex
	closed bool
	runs   map[string]context.CancelCauseFunc
	reaper *Reaper
}

// NewManager makes a manager that runs tasks with an executor.
func NewManager(run module.Executor, opts ManagerOptions) (*Manager, error) {
	number(&opts.MaxConcurrent, 10)
	number(&opts.MaxTasks, 1000)
	if run == nil || opts.MaxConcurrent < 0 || opts.MaxTasks < 0 {
		return nil, module.Errorf(module.CodeInvalidInput, "a task manager needs an executor and limits above 0")
	}
	if opts.Store == nil {
		opts.Store = NewMemStore()
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	return &Manager{
		run: run, opts: opts, log: opts.Logger,
		slots: make(chan struct{}, opts.MaxConcurrent), turn: make(chan struct{}, 1),
		runs: make(map[string]context.CancelCauseFunc),
	}, nil
}

// Store returns the store.
func (m *Manager) Store() Store { return m.opts.Store }

// Job is what [Manager.Submit] takes. Only ModuleID is required.
type Job struct {
	ModuleID string
	Inputs   map[string]any
	// Context is the parent of the calls; nil is a fresh one for each.
	Context *module.Context
	// Retry is none when zero; fields that are zero beside MaxRetries have apcore's
	// defaults.
	Retry Retry
}

func (r Retry) withDefaults() Retry {
	def := DefaultRetry()
	number(&r.RetryDelayMS, def.RetryDelayMS)
	number(&r.MaxRetryDelayMS, def.MaxRetryDelayMS)
	if r.BackoffMultiplier == 0 {
		r.BackoffMultiplier = def.BackoffMultiplier
	}
	return r
}

// take holds the turn; give gives it back.
func (m *Manager) take(ctx context.Context) error {
	select {
	case m.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return unanswered(ctx)
	}
}

func (m *Manager) give() { <-m.turn }

// Submit starts a background call and returns its task ID at once. An unknown or
// malformed module ID is no error here: the task fails. The errors are
// TASK_LIMIT_EXCEEDED and those of the store.
func (m *Manager) Submit(ctx context.Context, job Job) (string, error) {
	if err := m.take(ctx); err != nil {
		return "", err
	}
	defer m.give()
	active := 0
	for _, s := range []Status{Pending, Running} {
		list, err := m.opts.Store.List(ctx, s)
		if err != nil {
			return "", err
		}
		active += len(list)
	}
	if active >= m.opts.MaxTasks {
		return "", module.Errorf(module.CodeTaskLimitExceeded, "%d tasks are not over yet, which is the limit", active).
			WithDetail("limit", int64(m.opts.MaxTasks))
	}
	var id taskID
	rand.Read(id[:])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	t := Info{
		TaskID: id.String(), ModuleID: job.ModuleID, Status: Pending, SubmittedAt: At(time.Now()), MaxRetries: max(job.Retry.MaxRetries, 0),
	}
	work, end := context.WithCancelCause(context.WithoutCancel(ctx))
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		end(nil)
		return "", module.Errorf(module.CodeTaskStoreUnavailable, "the task manager is shut down")
	}
	m.runs[t.TaskID] = end
	m.mu.Unlock()
	if err := m.opts.Store.Save(ctx, t); err != nil {
		m.finished(t.TaskID)
		return "", err
	}
	job.Inputs = maps.Clone(job.Inputs)
	m.owned.Go(func() {
		defer m.finished(t.TaskID)
		m.work(work, t.TaskID, job)
	})
	return t.TaskID, nil
}

func (m *Manager) finished(id string) {
	m.mu.Lock()
	end := m.runs[id]
	delete(m.runs, id)
	m.mu.Unlock()
	if end != nil {
		end(nil)
	}
}

// change reads a record and writes it back changed, unless it is over or gone; false
// is that.
func (m *Manager) change(ctx context.Context, id string, edit func(*Info)) (bool, error) {
	if err := m.take(ctx); err != nil {
		return false, err
	}
	defer m.give()
	t, err := m.opts.Store.Get(ctx, id)
	if err != nil || t == nil || t.Status.Terminal() {
		return false, err
	}
	edit(t)
	return true, m.opts.Store.Save(ctx, *t)
}

// work runs a task to its end: attempt after attempt, each with a slot.
func (m *Manager) work(ctx context.Context, id string, job Job) {
	store := context.WithoutCancel(ctx) // what became of it is written in any case
	retry := job.Retry.withDefaults()
	for n := 0; ; n++ {
		select {
		case m.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		again, err := m.attempt(ctx, store, id, job)
		<-m.slots
		if err != nil {
			m.log.Warn("a background task could not be written", "task_id", id, "module_id", job.ModuleID, "cause", err)
		}
		if !again || err != nil {
			return
		}
		timer := time.NewTimer(time.Duration(retry.DelayMS(n)) * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// attempt runs a task once; again says that it may be run once more after a while.
func (m *Manager) attempt(ctx, store context.Context, id string, job Job) (again bool, err error) {
	ok, err := m.change(store, id, func(t *Info) {
		t.Status = Running
		if t.StartedAt == 0 {
			t.StartedAt = At(time.Now())
		}
	})
	if err != nil || !ok || ctx.Err() != nil {
		return false, err
	}
	call := ctx
	if job.Context != nil {
		call = module.WithContext(ctx, job.Context)
	}
	out, failure := m.call(call, job)
	_, err = m.change(store, id, func(t *Info) {
		switch {
		case failure == nil:
			t.Status, t.Result = Completed, out
		case t.RetryCount < t.MaxRetries && ctx.Err() == nil:
			t.Status = Pending
			t.RetryCount++
			again = true
			return
		default:
			text := failure.Error()
			t.Status, t.Error = Failed, &text
		}
		t.CompletedAt = At(time.Now())
	})
	return again, err
}

// call makes the call; what a caller throws is an error like any other.
func (m *Manager) call(ctx context.Context, job Job) (out json.RawMessage, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = module.Errorf(module.CodeModuleExecuteError, "the task panicked")
		}
	}()
	output, err := m.run.Call(ctx, job.ModuleID, maps.Clone(job.Inputs))
	if err != nil {
		return nil, err
	}
	body, err := contextwire.Encode(contextwire.JSON, output)
	if err != nil {
		return nil, module.Errorf(module.CodeTaskResultInvalid, "the output has no JSON form").WithCause(err)
	}
	return body, nil
}

// Status returns a record, nil for an unknown ID.
func (m *Manager) Status(ctx context.Context, id string) (*Info, error) {
	return m.opts.Store.Get(ctx, id)
}

// Result returns the output of a completed task. An unknown one is TASK_NOT_FOUND,
// one that is not completed TASK_STATE_CONFLICT.
func (m *Manager) Result(ctx context.Context, id string) (map[string]any, error) {
	t, err := m.opts.Store.Get(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case t == nil:
		return nil, module.Errorf(module.CodeTaskNotFound, "Task not found: %s", id)
	case t.Status != Completed:
		return nil, module.Errorf(module.CodeTaskStateConflict, "Task %s is not completed (status=%s)", id, t.Status)
	case len(t.Result) == 0 || string(t.Result) == "null":
		return nil, nil
	}
	out, err := contextwire.DecodeMap(contextwire.JSON, t.Result, contextwire.Limits{})
	if err != nil {
		return nil, module.Errorf(module.CodeInternal, "the stored output cannot be read: %w", err)
	}
	return out, nil
}

// List returns the records of a status in the order of submission, all when it is
// empty.
func (m *Manager) List(ctx context.Context, status Status) ([]Info, error) {
	return m.opts.Store.List(ctx, status)
}

// Cancel ends a task: one that is pending never starts, one that runs is told to
// stop, one that waits to be tried again is not. It returns false for one that is
// unknown or over, and never true when the record could not be written. A task of
// another process that shares the store is written as cancelled too.
func (m *Manager) Cancel(ctx context.Context, id string) (bool, error) {
	return m.cancel(ctx, id, cancel.Because(cancel.Caller, "", ""))
}

func (m *Manager) cancel(ctx context.Context, id string, cause *cancel.Cause) (bool, error) {
	done, err := m.change(ctx, id, func(t *Info) {
		t.Status, t.CompletedAt = Cancelled, At(time.Now())
	})
	if err != nil || !done {
		return false, err
	}
	m.mu.Lock()
	end := m.runs[id]
	m.mu.Unlock()
	if end != nil {
		end(cause)
	}
	return true, nil
}

// Cleanup removes the records that have been over for maxAge or longer, and returns
// how many; 0 is those that are over, negative the default of an hour.
func (m *Manager) Cleanup(ctx context.Context, maxAge time.Duration) (int, error) {
	if maxAge < 0 {
		maxAge = time.Hour
	}
	list, err := m.opts.Store.List(ctx, "")
	if err != nil {
		return 0, err
	}
	now := At(time.Now())
	n := 0
	for _, t := range list {
		since := t.CompletedAt
		if since == 0 {
			since = t.SubmittedAt
		}
		if !t.Status.Terminal() || now.Sub(since) < maxAge {
			continue
		}
		if err := m.opts.Store.Delete(ctx, t.TaskID); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// Shutdown stops the reaper, cancels every task that is not over, also those that
// only the store knows, and waits for what runs here until ctx ends. All are
// attempted; the first failure is returned. A second call does no more.
func (m *Manager) Shutdown(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	reaper := m.reaper
	ids := slices.Collect(maps.Keys(m.runs))
	m.mu.Unlock()
	if reaper != nil {
		reaper.Stop()
	}
	var first error
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	for _, s := range []Status{Pending, Running} {
		list, err := m.opts.Store.List(ctx, s)
		note(err)
		for _, t := range list {
			ids = append(ids, t.TaskID)
		}
	}
	slices.Sort(ids)
	cause := cancel.Because(cancel.Shutdown, "", "")
	for _, id := range slices.Compact(ids) {
		_, err := m.cancel(ctx, id, cause)
		note(err)
	}
	m.mu.Lock()
	for _, end := range m.runs { // whatever the store said
		end(cause)
	}
	m.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.owned.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		note(unanswered(ctx))
	}
	return first
}

// ReaperOptions configure [Manager.StartReaper].
type ReaperOptions struct {
	// TTL is how long records are kept once they are over; default 1 h.
	TTL time.Duration
	// Interval is the time between two sweeps; default 5 min.
	Interval time.Duration
}

// Reaper removes old records from time to time.
type Reaper struct {
	stop  context.CancelFunc
	owned sync.WaitGroup
}

// StartReaper begins to remove records that are over and old. While one runs, a
// second is REAPER_ALREADY_RUNNING. A sweep that fails is logged and made up for by
// the next one.
func (m *Manager) StartReaper(opts ReaperOptions) (*Reaper, error) {
	number(&opts.TTL, time.Hour)
	number(&opts.Interval, 5*time.Minute)
	if opts.TTL < 0 || opts.Interval < 0 {
		return nil, module.Errorf(module.CodeInvalidInput, "a reaper's times must be above 0")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reaper != nil {
		return nil, module.Errorf(module.CodeReaperAlreadyRunning, "a reaper is running")
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &Reaper{stop: stop}
	m.reaper = r
	r.owned.Go(func() {
		ticker := time.NewTicker(opts.Interval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				if err := m.sweep(ctx, opts.TTL); err != nil && ctx.Err() == nil {
					m.log.Warn("old task records could not be removed", "cause", err)
				}
			case <-ctx.Done():
				m.mu.Lock()
				m.reaper = nil
				m.mu.Unlock()
				return
			}
		}
	})
	return r, nil
}

func (m *Manager) sweep(ctx context.Context, ttl time.Duration) error {
	list, err := m.opts.Store.ListExpired(ctx, At(time.Now()).Add(-ttl))
	if err != nil {
		return err
	}
	var failures []error
	for _, t := range list {
		failures = append(failures, m.opts.Store.Delete(ctx, t.TaskID))
	}
	return errors.Join(failures...)
}

// Stop ends the reaper and waits for a sweep under way. It may be called again.
func (r *Reaper) Stop() {
	r.stop()
	r.owned.Wait()
}
