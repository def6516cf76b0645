package task

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// Invoker runs one call on this node; an executor is one.
type Invoker interface {
	Invoke(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error)
}

// InvokerFunc is a function as an [Invoker].
type InvokerFunc func(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error)

// Invoke calls f.
func (f InvokerFunc) Invoke(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
	return f(ctx, req)
}

// WorkerOptions configure a [Worker]. Node and Modules are required.
type WorkerOptions struct {
	// Node and Boot name the process.
	Node, Boot string
	// Modules lists the IDs of the modules that the node hosts now; it is asked before
	// every claim and must not block.
	Modules func() []string
	// Rerun lists those of them that do no harm when they run twice, as their annotations
	// say. nil leaves that to what the writer knows of them, which is nothing where it
	// has just begun and heard of no node yet.
	Rerun func() []string
	// Slots is how many attempts run at once; default 16.
	Slots int
	// DebtCap is how many handlers that ignore their cancellation are replaced by fresh
	// slots before the worker takes less and reports itself unhealthy; default Slots.
	DebtCap int
	// Debt tells how many abandoned handlers the invoker itself still has; nil is none.
	Debt func() int
	// Grace is how long attempts may go on after the end of Run's context; default 10 s.
	// They are then cancelled with the cause shutdown, and Run returns within one
	// second. Negative is none.
	Grace time.Duration
	// ClaimWait is how long one claim waits; default 30 s.
	ClaimWait time.Duration
	// ProgressEvery is the shortest time between two progress reports of one attempt;
	// default 200 ms.
	ProgressEvery time.Duration
	// InlineResult is the largest output, in bytes of JSON, that goes along with the
	// report; default 512 KiB. A larger one is given to PutResult, up to MaxResult,
	// default 64 MiB. Beyond that, and without PutResult, the task fails with
	// TASK_RESULT_INVALID.
	InlineResult, MaxResult int
	// PutResult stores an output that is too large for a report, for as long as a
	// completed task is kept at least.
	PutResult func(ctx context.Context, ref LeaseRef, output []byte) (*ResultRef, error)
	// Logger gets what operators should know; slog.Default() when nil.
	Logger *slog.Logger
}

// Worker runs attempts of tasks on a node: it claims as much as it has free slots,
// keeps its leases, stops what is no longer its own, and reports until somebody has
// heard it (durable design, rules 3, 4, 7 and 12).
type Worker struct {
	src  WorkSource
	run  Invoker
	opts WorkerOptions
	log  *slog.Logger

	free  chan struct{} // a slot may be free
	renew chan struct{} // there is something to renew
	drain chan struct{} // closed by Drain

	owned sync.WaitGroup // goroutines of attempts, but for handlers that were given up

	mu       sync.Mutex
	started  bool
	draining bool
	attempts map[LeaseRef]*attempt
	debt     int           // handlers that were given up
	empty    chan struct{} // closed when there is no attempt; made by who waits
	stats    WorkerStats
}

// WorkerStats counts what a worker did.
type WorkerStats struct {
	Claimed, Completed, Failed, Released, Lost, Unreported uint64
}

// WorkerState is how a worker is.
type WorkerState struct {
	Slots, Running int
	// Debt counts handlers that were told to stop and have not.
	Debt     int
	Draining bool
	// Healthy is false when the debt is over its cap, so that slots are missing.
	Healthy bool
	Stats   WorkerStats
}

// NewWorker makes a worker. Missing and impossible options are
// GENERAL_INVALID_INPUT.
func NewWorker(src WorkSource, run Invoker, opts WorkerOptions) (*Worker, error) {
	if src == nil || run == nil || opts.Modules == nil || opts.Node == "" {
		return nil, module.Errorf(module.CodeInvalidInput, "a worker needs a source of work, an invoker, modules and a node name")
	}
	number(&opts.Slots, 16)
	number(&opts.DebtCap, opts.Slots)
	number(&opts.Grace, 10*time.Second)
	number(&opts.ClaimWait, 30*time.Second)
	number(&opts.ProgressEvery, 200*time.Millisecond)
	number(&opts.InlineResult, 512<<10)
	number(&opts.MaxResult, 64<<20)
	if opts.Slots < 1 || opts.Slots > maxSlots || opts.DebtCap < 0 || opts.InlineResult < 0 || opts.MaxResult < 0 {
		return nil, module.Errorf(module.CodeInvalidInput, "a limit of the worker is out of its range")
	}
	if opts.Debt == nil {
		opts.Debt = func() int { return 0 }
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	return &Worker{
		src: src, run: run, opts: opts, log: opts.Logger,
		free: make(chan struct{}, 1), renew: make(chan struct{}, 1), drain: make(chan struct{}),
		attempts: make(map[LeaseRef]*attempt),
	}, nil
}

// Run claims and runs tasks until ctx ends or [Worker.Drain] is called, then gives
// what runs its grace and reports the rest. It returns nil when every attempt was
// reported. A second call fails.
func (w *Worker) Run(ctx context.Context) error {
	w.mu.Lock()
	again := w.started
	w.started = true
	w.mu.Unlock()
	if again {
		return module.Errorf(module.CodeInternal, "a worker runs once")
	}
	// Attempts outlive ctx by their grace.
	work, stopWork := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopWork(cancel.Because(cancel.Shutdown, w.opts.Node, ""))
	var owned sync.WaitGroup
	owned.Go(func() { w.runRenewals(work) })
	ctx, stopClaims := context.WithCancel(ctx)
	defer stopClaims()
	owned.Go(func() {
		select {
		case <-w.drain:
			stopClaims()
		case <-work.Done():
		}
	})

	w.runClaims(ctx, work)
	err := w.finishUp() //nolint:contextcheck // the end of an attempt is reported though the work is over
	stopWork(cancel.Because(cancel.Shutdown, w.opts.Node, ""))
	owned.Wait()
	if err == nil {
		w.owned.Wait()
	}
	return err
}

// Drain makes Run finish as at the end of its context.
func (w *Worker) Drain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.draining {
		w.draining = true
		close(w.drain)
	}
}

// State returns how the worker is.
func (w *Worker) State() WorkerState {
	abandoned := w.opts.Debt()
	w.mu.Lock()
	defer w.mu.Unlock()
	debt := w.debt + abandoned
	return WorkerState{
		Slots: w.opts.Slots, Running: len(w.attempts), Debt: debt, Draining: w.draining,
		Healthy: debt <= w.opts.DebtCap, Stats: w.stats,
	}
}

// Signal takes a message that the writer sent besides the record.
func (w *Worker) Signal(s Signal) {
	w.mu.Lock()
	a := w.attempts[s.LeaseRef]
	w.mu.Unlock()
	if a == nil {
		return
	}
	switch {
	case s.Cancel != nil:
		a.cancel(causeOf(s.Cancel))
	case s.Lost:
		a.lose()
	}
}

func causeOf(c *CancelRequest) *cancel.Cause { return cancel.Because(cancel.Caller, c.By, c.Reason) }

// slots returns how many attempts may start now.
func (w *Worker) slots() int {
	abandoned := w.opts.Debt()
	w.mu.Lock()
	defer w.mu.Unlock()
	// A handler that was given up leaves its slot to another one, up to the cap.
	over := max(w.debt+abandoned-w.opts.DebtCap, 0)
	return w.opts.Slots - len(w.attempts) - over
}

// runClaims asks for work while there are free slots.
func (w *Worker) runClaims(ctx, work context.Context) {
	const least, most = 100 * time.Millisecond, 2 * time.Second
	pause := least
	for {
		if ctx.Err() != nil {
			return
		}
		n, modules := w.slots(), w.opts.Modules()
		if n < 1 || len(modules) == 0 {
			// The debt of the invoker and the modules change without a word.
			if !w.idle(ctx, time.Second) {
				return
			}
			continue
		}
		sent := time.Now()
		answer, err := w.src.Claim(ctx, ClaimRequest{
			Node: w.opts.Node, Boot: w.opts.Boot, Modules: modules, Rerun: w.rerunnable(), Slots: n, WaitMS: w.opts.ClaimWait.Milliseconds(),
		})
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			w.log.Debug("no work could be claimed", "node", w.opts.Node, "cause", err)
			if !w.idle(ctx, pause) {
				return
			}
			pause = min(pause*2, most)
			continue
		}
		pause = least
		w.accept(ctx, work, answer, sent)
	}
}

// rerunnable are the modules that may run twice, nil when nobody can say.
func (w *Worker) rerunnable() []string {
	if w.opts.Rerun == nil {
		return nil
	}
	return append([]string{}, w.opts.Rerun()...)
}

// idle waits until a slot may be free, for at most d; false when ctx is over.
func (w *Worker) idle(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-w.free:
	case <-timer.C:
	case <-ctx.Done():
		return false
	}
	return true
}
