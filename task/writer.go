package task

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/apbus/apbus/module"
)

// Writer decides every change of the tasks of a namespace while it leads. Make one
// with [NewWriter] each time leadership is won, over a log that is fenced by it, and
// call Run. Its methods may be called at any time: they wait until the log has been
// read, and fail with TASK_STORE_UNAVAILABLE once Run has returned.
type Writer struct {
	log   Log
	opts  WriterOptions
	rules rules
	slog  *slog.Logger

	ready   chan struct{} // closed when the log has been read
	stopped chan struct{} // closed when Run is about to return
	kick    chan struct{} // something is to be committed
	rearm   chan struct{} // the next timer may be earlier
	doubt   chan string   // approvals that may have been decided
	shapes  shapes

	// The room for the entries of a commit, which only the committer uses.
	entries []Entry
	bodies  []byte

	mu      sync.Mutex
	started bool
	serving bool
	why     error // why it stopped

	number    int64 // last number given
	items     table
	all       ordered
	queues    map[string]*queue
	lookAt    int // how many queues make claims look for idle ones
	idem      map[idemKey]*item
	children  map[taskID][]*item
	approvals map[string]map[*item]struct{}
	wakes     map[string]earlyWake
	schedules map[string]*scheduled
	timers    timers
	behind    []behindEntry
	turn      float64 // how far the lane is that was served last
	active    int
	aside     int
	held      int64
	// What changed or was asked for last, oldest first.
	recent      []recentEntry
	recentBytes int64

	batches   []*batch // not committed yet, the last one still open
	lastBatch uint64
	committed uint64
	stats     WriterStats
}

// WriterStats counts what a writer did.
type WriterStats struct {
	Tasks, Active, Unreadable  int
	Commits, Entries           uint64
	Submitted, Granted         uint64
	Completed, Failed          uint64
	Cancelled, Expired         uint64
	Stale, Lapsed, Retried     uint64
	CommitErrors, LogReads     uint64
	HeldBytes                  int64
	QueuedTasks, RunningTasks  int
	ScheduledTasks, DeadTasks  int
	AwaitingTasks, BackoffWait int
}

// NewWriter makes a writer over a log. Options out of their range are
// GENERAL_INVALID_INPUT.
func NewWriter(log Log, opts WriterOptions) (*Writer, error) {
	if log == nil {
		return nil, module.Errorf(module.CodeInvalidInput, "a writer needs a log")
	}
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	w := &Writer{
		log: log, opts: opts, slog: opts.Logger,
		rules: rules{
			lease: opts.Lease, maxDeliveries: opts.MaxDeliveries, queueWait: opts.QueueWait,
			keep: opts.Retention, jitter: opts.Jitter,
		},
		ready: make(chan struct{}), stopped: make(chan struct{}),
		kick: make(chan struct{}, 1), rearm: make(chan struct{}, 1), doubt: make(chan string, 1024),
		queues: make(map[string]*queue), idem: make(map[idemKey]*item),
		children: make(map[taskID][]*item), approvals: make(map[string]map[*item]struct{}),
		wakes: make(map[string]earlyWake), schedules: make(map[string]*scheduled),
	}
	w.shapes.init(opts.Describe)
	return w, nil
}

// Run reads the log, then serves until ctx ends or the log says that another writer
// leads. What was decided before ctx ended is still committed, for up to two
// seconds. It returns the cause of ctx, ErrDeposed, or why the log could not be read. A
// second call fails.
func (w *Writer) Run(ctx context.Context) error {
	w.mu.Lock()
	again := w.started
	w.started = true
	w.mu.Unlock()
	if again {
		return module.Errorf(module.CodeInternal, "a writer runs once")
	}
	err := w.load(ctx)
	if err == nil {
		err = w.serve(ctx)
	}
	w.stop(err)
	return err
}

// Ready is closed once the log has been read and methods are served.
func (w *Writer) Ready() <-chan struct{} { return w.ready }

// Stopped is closed when Run is about to return.
func (w *Writer) Stopped() <-chan struct{} { return w.stopped }

func (w *Writer) serve(ctx context.Context) error {
	w.mu.Lock()
	w.serving = true
	close(w.ready)
	w.mu.Unlock()

	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var owned sync.WaitGroup
	owned.Go(func() { w.runTimers(ctx) })
	owned.Go(func() { w.runDoubts(ctx) })
	err := w.runCommits(ctx)
	stop(err)
	owned.Wait()
	return err
}

// stop fails whoever still waits.
func (w *Writer) stop(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.serving, w.why = false, err
	for _, b := range w.batches {
		b.err = w.noWriter()
		close(b.done)
	}
	w.batches = nil
	close(w.stopped)
}

// noWriter is the answer of a writer that does not serve.
func (w *Writer) noWriter() error {
	e := module.Errorf(module.CodeTaskStoreUnavailable, "no writer leads here; another one takes over")
	if w.why != nil {
		e = e.WithCause(w.why)
	}
	if errors.Is(w.why, ErrDeposed) {
		e = e.WithDetail("reason", "deposed")
	}
	return e
}

// enter waits until the writer serves and locks it; the caller unlocks.
func (w *Writer) enter(ctx context.Context) error {
	select {
	case <-w.ready:
	case <-w.stopped:
	case <-ctx.Done():
		return unanswered(ctx)
	}
	w.mu.Lock()
	if w.serving && w.opts.Leading() {
		return nil
	}
	defer w.mu.Unlock()
	return w.noWriter()
}

// unanswered is the error of a caller whose time is over before there was an answer.
func unanswered(ctx context.Context) error {
	return module.Errorf(module.CodeTaskStoreUnavailable, "the task store did not answer in time").WithCause(context.Cause(ctx))
}

// moment gives the present time and the next number. w is locked.
func (w *Writer) moment() moment {
	now := At(time.Now())
	w.number = max(w.number+1, int64(now))
	return moment{now, w.number}
}

// Stats returns counters, and gauges of what is stored now.
func (w *Writer) Stats() WriterStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	s.Tasks, s.Active, s.Unreadable, s.HeldBytes = w.items.n, w.active, w.aside, w.held
	for _, q := range w.queues {
		s.QueuedTasks += q.count[inQueued]
		s.RunningTasks += q.count[inRunning] + q.count[inClaimed]
		s.ScheduledTasks += q.count[inScheduled]
		s.BackoffWait += q.count[inBackingOff]
		s.AwaitingTasks += q.count[inAwaiting]
		s.DeadTasks += q.count[inDead]
	}
	return s
}

var (
	_ Service    = (*Writer)(nil)
	_ WorkSource = (*Writer)(nil)
)
