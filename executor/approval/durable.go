package approval

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/apbus/apbus/module"
)

// Options configures [NewDurable]. The zero value is usable.
type Options struct {
	// Wait is how long a call is held for a decision (approval.wait), at most until
	// shortly before the call's own time is over; 0 answers pending at once. The attempt
	// of a task is never held: a task waits without a slot (durable design, section 2).
	Wait time.Duration
	// Expiry is how long a request can be decided, 24 hours by default.
	Expiry time.Duration
	// TokenExpiry is how long an approval can be used, 1 hour by default.
	TokenExpiry time.Duration
	// OnDecision, when set, is told of every decision that this process stored, once,
	// before Decide returns, outside locks: for evidence and audit. The record says
	// who decided, when and why, and holds redacted inputs only. It should not block.
	OnDecision func(ctx context.Context, r Record)
	// Logger is slog.Default when nil.
	Logger *slog.Logger
}

// Durable runs the life of requests over a [Store] (durable design, section 2).
// As a [Handler] it stores requests and claims tokens; with Decide, Get and List
// it serves reviewers. The two may be different processes over the same store. It
// is safe for concurrent use, starts no goroutine and needs no shutdown.
type Durable struct {
	store Store
	o     Options
}

var _ Handler = (*Durable)(nil)

// NewDurable makes a handler over store; what it keeps lives as long as that.
func NewDurable(store Store, o Options) *Durable {
	if o.Expiry <= 0 {
		o.Expiry = 24 * time.Hour
	}
	if o.TokenExpiry <= 0 {
		o.TokenExpiry = time.Hour
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Durable{store: store, o: o}
}

// NewMemory is NewDurable over a [MemStore]: everything is lost with the process,
// and nobody outside it can decide.
func NewMemory(o Options) *Durable { return NewDurable(NewMemStore(0), o) }

const (
	// lookAgain is how long a wait trusts the store's watch, which may be deaf for a
	// while after the loss of a server.
	lookAgain = 10 * time.Second
	// afterFailure is the pause before a store that failed is asked again.
	afterFailure = time.Second
	// withdrawLimit bounds the withdrawal of a request whose caller has left.
	withdrawLimit = 2 * time.Second
	// casLimit is how often a lost compare-and-set is tried again. Few processes
	// meet on one record, and each round one of them wins.
	casLimit = 64
)

// RequestApproval stores the request, then waits up to the configured time. Only
// a stored request is ever answered as pending. It fails with
// TASK_LIMIT_EXCEEDED, BUS_PAYLOAD_TOO_LARGE or TASK_STORE_UNAVAILABLE when the
// store cannot take it; then nobody is asked and the call must not run. When ctx
// ends first the request is withdrawn, since its caller never learns its ID, and
// the error is the context's cause.
func (d *Durable) RequestApproval(ctx context.Context, r *Request) (*Result, error) {
	b, err := Bind(r)
	if err != nil {
		return nil, err
	}
	rec := d.newRecord(r, b)
	if _, err := d.store.Create(ctx, rec); err != nil {
		return nil, ended(ctx, err)
	}
	result := &Result{Status: Pending, ApprovalID: rec.ID}
	if _, isTask := module.TaskOf(ctx); isTask || d.o.Wait <= 0 {
		return result, nil
	}
	result, err = d.await(ctx, rec.ID, b, result)
	if err != nil && ctx.Err() != nil {
		d.withdraw(ctx, rec)
	}
	return result, err
}

// CheckApproval claims the token when its request was approved; while it is
// pending it waits like RequestApproval. Whoever claims first wins: of any number
// of calls, on any number of nodes, one runs. A claim whose outcome is not known
// is an error, and the token may be spent.
func (d *Durable) CheckApproval(ctx context.Context, approvalID string, r *Request) (*Result, error) {
	b, err := Bind(r)
	if err != nil {
		return nil, err
	}
	return d.await(ctx, approvalID, b, nil)
}

// Decide settles a pending request and returns the record as it stands then,
// also with an error, so that a loser sees who won. See [Record.Decide] for the
// errors; an unknown ID is GENERAL_INVALID_INPUT wrapping [ErrNotFound]. It needs
// neither the node that asked nor the caller. That the decider may decide is for
// the caller of Decide to check.
func (d *Durable) Decide(ctx context.Context, id string, decision Decision) (Record, error) {
	rec, err := d.transition(ctx, id, func(r Record, now time.Time) (Record, error) { return r.Decide(decision, now) })
	if err != nil {
		d.o.Logger.LogAttrs(ctx, slog.LevelWarn, "approval decision refused", append(d.attrs(id, rec),
			slog.String("by", decision.by()), slog.String("code", string(module.CodeOf(err))), slog.Any("cause", err))...)
		return rec, err
	}
	d.o.Logger.LogAttrs(ctx, slog.LevelInfo, "approval request decided", append(d.attrs(id, rec),
		slog.String("state", string(rec.State)), slog.String("by", rec.DecidedBy), slog.String("reason", rec.BecauseOf))...)
	if d.o.OnDecision != nil {
		d.o.OnDecision(context.WithoutCancel(ctx), rec.copy())
	}
	return rec, nil
}

// Get returns a record as it stands now, or GENERAL_INVALID_INPUT wrapping
// [ErrNotFound].
func (d *Durable) Get(ctx context.Context, id string) (Record, error) {
	e, err := d.store.Get(ctx, id)
	if errors.Is(err, ErrNotFound) {
		err = refused(module.CodeInvalidInput, ErrNotFound)
	}
	return e.Record.At(time.Now()), err
}

// List returns matching records, newest first, a page at a time.
func (d *Durable) List(ctx context.Context, f Filter) (Page, error) { return d.store.List(ctx, f) }

func (d *Durable) attrs(id string, r Record) []slog.Attr {
	return []slog.Attr{
		slog.String("approval_id", id), slog.String("module_id", r.Binding.ModuleID), slog.String("trace_id", r.TraceID),
	}
}

// await claims, or waits until the record settles, its time or the configured
// wait is over, or ctx ends. known is the last answer, nil when there is none. A
// store that fails meanwhile is asked again as long as there is time.
func (d *Durable) await(ctx context.Context, id string, b Binding, known *Result) (*Result, error) {
	until := d.until(ctx)
	for {
		entry, result, err := d.claim(ctx, id, b)
		switch {
		case ctx.Err() != nil && err != nil:
			return nil, context.Cause(ctx)
		case err == nil && result.Status != Pending:
			return result, nil
		case err == nil:
			known = result
		case known == nil:
			return nil, err // nothing is known of this token
		}
		left := time.Until(until)
		if left <= 0 {
			return known, nil
		}
		if err != nil {
			d.o.Logger.WarnContext(ctx, "cannot look for the approval decision", "approval_id", id, "module_id", b.ModuleID, "cause", err)
			pause(ctx, min(left, afterFailure))
		} else {
			limit := min(left, lookAgain, time.Until(entry.Record.ExpiresAt))
			if !d.settled(ctx, entry, limit) && limit == left && ctx.Err() == nil {
				return known, nil // another look would take what time the answer has
			}
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// until is when a wait ends: a little before the call itself does, so that its
// caller learns the ID to come back with instead of a timeout.
func (d *Durable) until(ctx context.Context) time.Time {
	until := time.Now().Add(d.o.Wait)
	if _, isTask := module.TaskOf(ctx); isTask {
		return time.Now()
	}
	if end, ok := ctx.Deadline(); ok {
		if before := end.Add(-min(time.Until(end)/10, time.Second)); before.Before(until) {
			return before
		}
	}
	return until
}

// settled returns when the record is no longer as it was, or after limit; false when
// the time was over first.
func (d *Durable) settled(ctx context.Context, e Entry, limit time.Duration) bool {
	began := time.Now()
	window, stop := context.WithTimeoutCause(ctx, limit, errors.New("time to look again"))
	defer stop()
	for next, err := range d.store.Watch(window, e.Record.ID, e.Revision) {
		if err != nil {
			pause(ctx, min(limit-time.Since(began), afterFailure))
			return true // who knows
		}
		if next.Record.State != StatePending {
			return true
		}
	}
	return window.Err() == nil
}

func pause(ctx context.Context, limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// claim uses the token up by compare-and-set.
func (d *Durable) claim(ctx context.Context, id string, b Binding) (entry Entry, result *Result, err error) {
	err = d.compareAndSet(ctx, id, func(e Entry) (Record, bool) {
		entry = e
		var next Record
		next, result = e.Record.Claim(b, time.Now().UTC())
		return next, result.Status == Approved
	})
	if errors.Is(err, ErrNotFound) {
		return entry, &Result{Status: Rejected, Reason: "the approval token is unknown"}, nil
	}
	return entry, result, err
}

func (d *Durable) transition(ctx context.Context, id string, f func(Record, time.Time) (Record, error)) (rec Record, err error) {
	var refusal error
	err = d.compareAndSet(ctx, id, func(e Entry) (Record, bool) {
		rec, refusal = f(e.Record, time.Now().UTC())
		return rec, refusal == nil
	})
	switch {
	case errors.Is(err, ErrNotFound):
		return Record{}, refused(module.CodeInvalidInput, ErrNotFound)
	case err != nil:
		return rec, err
	}
	return rec, refusal
}

// compareAndSet replaces a record by what f makes of it, from the beginning when
// somebody else was faster. It stores nothing when f says no.
func (d *Durable) compareAndSet(ctx context.Context, id string, f func(Entry) (Record, bool)) error {
	for try := 1; ; try++ {
		e, err := d.store.Get(ctx, id)
		if err != nil {
			return ended(ctx, err)
		}
		next, store := f(e)
		if !store {
			return nil
		}
		_, err = d.store.Update(ctx, next, e.Revision)
		if err == nil || !errors.Is(err, ErrConflict) {
			return ended(ctx, err)
		}
		if try == casLimit {
			return module.Wrap(module.CodeTaskStoreUnavailable, err, "the approval request is changed all the time")
		}
		// A read that is behind would lose again at once.
		pause(ctx, time.Duration(try)*time.Millisecond)
	}
}

// withdraw settles a request nobody can use any more. Should it fail the request
// stays until it expires, and its token is known to nobody.
func (d *Durable) withdraw(ctx context.Context, r Record) {
	ctx, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), withdrawLimit, errors.New("the store did not answer"))
	defer stop()
	err := d.compareAndSet(ctx, r.ID, func(e Entry) (Record, bool) { return e.Record.Withdraw(time.Now()) })
	if err != nil {
		d.o.Logger.LogAttrs(ctx, slog.LevelWarn, "approval request not withdrawn", append(d.attrs(r.ID, r), slog.Any("cause", err))...)
	}
}

// ended prefers the reason why ctx ended over what a store made of it.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && module.AsError(err) == nil {
		return context.Cause(ctx)
	}
	return err
}
