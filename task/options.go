package task

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// Durability modes, as receipts name them (durable design, durability modes).
const (
	PowerSafe   = "power-safe"
	ProcessSafe = "process-safe"
)

// WriterOptions configure a [Writer]. The zero value is valid.
type WriterOptions struct {
	// Namespace is part of every task ID, so that an ID of another namespace is
	// TASK_NOT_FOUND and never TASK_EXPIRED.
	Namespace string
	// Durability is what receipts say; PowerSafe when empty. It is the log's promise.
	Durability string
	// MaxTasks bounds the tasks that are not over; default 1,000,000.
	MaxTasks int
	// Lease is how long a node owns an attempt without renewing it; default 15 s, at
	// least 1 s.
	Lease time.Duration
	// MaxDeliveries is how many attempts may lose their node; default 5.
	MaxDeliveries int
	// QueueWait is the queue-wait limit of submissions that name none; default 24 h.
	QueueWait time.Duration
	// Retention is how long records are kept once they are over.
	Retention Retention
	// MaxInput and MaxResult bound inputs and outputs in bytes of JSON; default 512 KiB
	// each. MaxCheckpoint defaults to 64 KiB.
	MaxInput, MaxResult, MaxCheckpoint int
	// InlineResult is the largest output that stays in the record; default 32 KiB. A
	// larger one has an entry of its own.
	InlineResult int
	// HeldBytes bounds, roughly, the records kept in memory besides those that are
	// owned; default 64 MiB, a quarter of it for what changed or was asked for last.
	// Others are read from the log when they are needed.
	HeldBytes int64
	// MaxBatch is how many entries one commit may have; default 1,000, at least 2. A
	// submission of more tasks than this with All set is refused.
	MaxBatch int
	// WriteBehind is how long an attempt of a module that may run twice goes unwritten;
	// default 100 ms, negative writes at once.
	WriteBehind time.Duration

	// Describe tells what is known of a module: nil, or false, is nothing. It must not
	// block.
	Describe func(moduleID string) (Described, bool)
	// Leading reports whether this writer still leads for certain. It is asked before
	// every answer that no commit stands behind, so that a writer that was frozen and
	// deposed meanwhile tells nobody anything. nil is always.
	Leading func() bool
	// Signal tells a node at once what it would learn by its next renewal. It is called
	// after the commit and must not block. nil is nobody.
	Signal func(Signal)
	// Evidence is told of every attempt that has ended, once it is durable that it has:
	// type task, with task and attempt, outcome, code and duration, the node as By. It
	// must not block. nil is nobody. A writer that dies between the two tells nobody.
	Evidence func(*contextwire.Evidence)
	// Decided tells whether an approval was decided; false when not yet. It is asked
	// when a task begins to wait and when a writer takes over.
	Decided func(ctx context.Context, approvalID string) (WakeAsk, bool, error)
	// Redactor masks what readers get; the default one when nil.
	Redactor *schema.Redactor
	// Jitter returns numbers in [0, 1) for backoff; a random source when nil.
	Jitter func() float64
	// Logger gets what operators should know; slog.Default() when nil.
	Logger *slog.Logger
}

// Described is what a writer knows of a module.
type Described struct {
	Descriptor module.Descriptor
	// Hosts is how many nodes host it now.
	Hosts int
}

const (
	// hostMemory is how long a node that asked for a module's work counts as its host.
	hostMemory = 30 * time.Second
	// describeFor is how long an answer of Describe is used.
	describeFor = time.Second
	// wakeMemory is how long a decision that nobody waited for is remembered.
	wakeMemory = time.Hour
	// progressEvery is how often progress is given to the log.
	progressEvery = 5 * time.Second
	// maxWait bounds every wait that a caller asks for.
	maxWait = 10 * time.Minute
	// maxBatchBytes is when a batch is full, roughly.
	maxBatchBytes = 4 << 20
	// scanChunk is how many items are looked at under one lock.
	scanChunk = 2048
)

func (o WriterOptions) withDefaults() (WriterOptions, error) {
	if o.Durability == "" {
		o.Durability = PowerSafe
	}
	number(&o.MaxTasks, 1_000_000)
	number(&o.Lease, 15*time.Second)
	number(&o.MaxDeliveries, 5)
	number(&o.QueueWait, 24*time.Hour)
	number(&o.MaxInput, 512<<10)
	number(&o.MaxResult, 512<<10)
	number(&o.MaxCheckpoint, 64<<10)
	number(&o.InlineResult, 32<<10)
	number(&o.HeldBytes, 64<<20)
	number(&o.MaxBatch, 1000)
	if o.WriteBehind == 0 {
		o.WriteBehind = 100 * time.Millisecond
	}
	o.Retention = o.Retention.withDefaults()
	if o.Lease < time.Second {
		return o, module.Errorf(module.CodeInvalidInput, "a lease must be at least 1 s")
	}
	if o.MaxBatch < 2 {
		return o, module.Errorf(module.CodeInvalidInput, "a batch must have room for 2 entries")
	}
	for _, n := range []int{o.MaxTasks, o.MaxDeliveries, o.MaxInput, o.MaxResult, o.MaxCheckpoint, o.InlineResult} {
		if n < 0 {
			return o, module.Errorf(module.CodeInvalidInput, "a limit of tasks must not be negative")
		}
	}
	if o.QueueWait < 0 || o.QueueWait > maxSpan {
		return o, module.Errorf(module.CodeInvalidInput, "the queue wait must be between 0 and a year")
	}
	if o.Leading == nil {
		o.Leading = func() bool { return true }
	}
	if o.Signal == nil {
		o.Signal = func(Signal) {}
	}
	if o.Describe == nil {
		o.Describe = func(string) (Described, bool) { return Described{}, false }
	}
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Redactor == nil {
		r, err := schema.NewRedactor(schema.RedactOptions{})
		if err != nil {
			return o, module.Errorf(module.CodeInternal, "default redactor: %w", err)
		}
		o.Redactor = r
	}
	return o, nil
}

// number gives v its default when it is zero.
func number[T int | int64 | time.Duration](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}
