package executor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// debts counts goroutines that were given up and have not returned.
type debts struct {
	mu      sync.Mutex
	count   int
	settled chan struct{} // made by waiters, closed when count reaches zero
}

func (d *debts) add() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count++
}

func (d *debts) done() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count--
	if d.count == 0 && d.settled != nil {
		close(d.settled)
		d.settled = nil
	}
}

// pending returns a channel that is closed when nothing is owed, nil when nothing
// is.
func (d *debts) pending() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.count == 0 {
		return nil
	}
	if d.settled == nil {
		d.settled = make(chan struct{})
	}
	return d.settled
}

// Debt returns how many abandoned goroutines, of modules, handlers and steps that
// did not stop when told to, have not returned yet.
func (x *Executor) Debt() int {
	x.debt.mu.Lock()
	defer x.debt.mu.Unlock()
	return x.debt.count
}

// Settle waits until every abandoned goroutine has returned. Calls under way are
// not waited for; their callers do that. The error wraps ctx's cause.
func (x *Executor) Settle(ctx context.Context) error {
	for {
		settled := x.debt.pending()
		if settled == nil {
			return nil
		}
		select {
		case <-settled:
		case <-ctx.Done():
			return fmt.Errorf("wait for %d abandoned goroutines: %w", x.Debt(), context.Cause(ctx))
		}
	}
}

// The states of a task, decided once.
const (
	taskRunning int32 = iota
	taskFinished
	taskAbandoned
)

// outcome is what a task came to.
type outcome[T any] struct {
	value T
	err   error
}

// await runs f in a goroutine and waits for it until ctx ends, and then for the
// settling time. finished false
// means that f is abandoned: it is counted as debt until it returns, and its
// outcome is dropped. An outcome that is there when ctx ends counts.
func await[T any](ctx context.Context, x *Executor, moduleID string, f func(context.Context) (T, error)) (got outcome[T], finished bool) {
	var state atomic.Int32
	done := make(chan outcome[T], 1)
	go func() {
		var o outcome[T]
		defer func() {
			// Deferred, so that a goroutine that exits in f is not waited for in vain.
			if state.CompareAndSwap(taskRunning, taskFinished) {
				done <- o
				return
			}
			x.debt.done()
			x.log.LogAttrs(ctx, levelWarn, "late result discarded", moduleAttr(moduleID))
		}()
		o.err = errExited
		o.value, o.err = f(ctx)
	}()
	select {
	case got = <-done:
		return got, true
	case <-ctx.Done():
	}
	timer := time.NewTimer(settleTime)
	defer timer.Stop()
	select {
	case got = <-done:
		return got, true
	case <-timer.C:
	}
	x.debt.add()
	if state.CompareAndSwap(taskRunning, taskAbandoned) {
		return got, false
	}
	x.debt.done()
	return <-done, true
}

// errExited stands for a goroutine that ended without returning.
var errExited = errors.New("the goroutine exited")
