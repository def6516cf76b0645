package executor

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/apbus/apbus/cancel"
)

// alarm cancels a call's token when the call's time is over, and is the context
// that shows when that will be. context.WithDeadlineCause would put a second
// cancellable context below the token's; here the two are one, which costs a third
// as much and lets nested calls see that they hang on this very token. The price:
// a context derived from it reports Canceled and not DeadlineExceeded; the cause
// is the same *cancel.Cause of reason timeout.
type alarm struct {
	context.Context
	deadline time.Time
	limit    time.Duration // what a timeout reports
	token    *cancel.Token
	timer    *time.Timer
	cause    atomic.Pointer[cancel.Cause]
	room     *execution // for the run of the module, nil once it is taken
}

// armed is an alarm and the execution that most of them wait for, in one piece.
type armed struct {
	alarm
	execution
}

func newAlarm(ctx context.Context, token *cancel.Token, deadline time.Time, left, limit time.Duration) *alarm {
	both := &armed{alarm: alarm{Context: ctx, deadline: deadline, limit: limit, token: token}}
	a := &both.alarm
	a.room = &both.execution
	if left <= 0 {
		a.ring()
		return a
	}
	a.timer = time.AfterFunc(left, a.ring)
	return a
}

// ring is the end of the call's time.
func (a *alarm) ring() {
	cause := cancel.Because(cancel.Timeout, "", "the time of the call is over")
	a.cause.Store(cause)
	a.token.Cancel(cause)
}

// rang reports whether cause is this alarm's.
func (a *alarm) rang(cause error) bool {
	c, ok := cause.(*cancel.Cause) //nolint:errorlint // identity is what counts
	return ok && c != nil && c == a.cause.Load()
}

func (a *alarm) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
}

// Deadline returns when the call's time is over.
func (a *alarm) Deadline() (time.Time, bool) { return a.deadline, true }

// Err tells a deadline from a cancellation, as contexts with one do.
func (a *alarm) Err() error {
	err := a.Context.Err()
	if err != nil && cancel.ReasonOf(context.Cause(a.Context)) == cancel.Timeout {
		return context.DeadlineExceeded
	}
	return err
}
