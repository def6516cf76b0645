package executor

import (
	"context"
	"time"

	"github.com/apbus/apbus/cancel"
)

// alarm cancels a call's token when the call's time is over, and is the context
// that shows when that will be. context.WithDeadlineCause would put a second
// cancellable context below the token's and start a timer for every call; here the
// two are one, and the timer waits for somebody who watches. The price: a context
// derived from it reports Canceled and not DeadlineExceeded; the cause is the same
// *cancel.Cause of reason timeout.
type alarm struct {
	context.Context
	expiry cancel.Expiry
	limit  time.Duration // what a timeout reports
}

// set makes a the alarm of a run.
func (a *alarm) set(ctx context.Context, token *cancel.Token, deadline time.Time, limit time.Duration) {
	a.Context, a.limit = ctx, limit
	a.expiry.Begin(token, deadline, "the time of the call is over")
}

// Done returns the channel that is closed when the call ends, by whatever.
func (a *alarm) Done() <-chan struct{} {
	a.expiry.Arm()
	return a.Context.Done()
}

// Deadline returns when the call's time is over.
func (a *alarm) Deadline() (time.Time, bool) { return a.expiry.At(), true }

// Err tells a deadline from a cancellation, as contexts with one do.
func (a *alarm) Err() error {
	if a.Context.Err() == nil {
		a.expiry.Arm() // rings when the time is over
	}
	return a.err()
}

// err is Err without a look at the clock.
func (a *alarm) err() error {
	err := a.Context.Err()
	if err != nil && cancel.ReasonOf(context.Cause(a.Context)) == cancel.Timeout {
		return context.DeadlineExceeded
	}
	return err
}

// over reports whether the call has ended at now. Unlike p.ctx.Err it needs no
// timer for that.
func (p *Pipeline) over(now time.Time) bool {
	a := p.clock.alarm
	if a == nil {
		return p.ctx.Err() != nil
	}
	if a.expiry.Over(now) {
		return true
	}
	if p.ctx == context.Context(a) {
		return a.err() != nil
	}
	return p.ctx.Err() != nil
}
