package cancel

import (
	"sync"
	"sync/atomic"
	"time"
)

// Expiry cancels a token with reason Timeout when a given time is over. Most work
// ends long before and watches nothing, so no timer runs until somebody watches the
// token or polls it; whoever runs the work asks [Expiry.Over] when it returned. The
// zero value is ready for [Expiry.Begin]; it must not be copied after that.
//
// All methods but Begin may be called from several goroutines at once.
//
// Source: core-executor seed, Dual-Timeout.
type Expiry struct {
	token *Token
	at    time.Time
	text  string
	cause atomic.Pointer[Cause]

	state atomic.Int32 // one of the states below; armed becomes stopped only under mu
	mu    sync.Mutex
	timer *time.Timer // guarded by mu
}

// The states of an Expiry.
const (
	expiryIdle int32 = iota
	expiryArmed
	expiryStopped
)

// Begin gives t until at; text is what the cause says. A token has one Expiry in
// its life at a time: a later one takes the place of the one before, which must be
// stopped.
func (e *Expiry) Begin(t *Token, at time.Time, text string) {
	e.token, e.at, e.text = t, at, text
	t.expiry.Store(e)
	if t.watched.Load() { // by somebody who came before
		e.Arm()
	}
}

// At returns when the time is over.
func (e *Expiry) At() time.Time { return e.at }

// Over reports whether the time is over at now, and if so sees to it that the token
// is cancelled when it returns.
func (e *Expiry) Over(now time.Time) bool {
	if e.cause.Load() == nil && now.Before(e.at) {
		return false
	}
	e.ring()
	return true
}

// Arm starts the timer, if none was started before; a time that is over already
// cancels the token at once.
func (e *Expiry) Arm() {
	// The load keeps those who poll from taking the line from each other.
	if e.state.Load() != expiryIdle || !e.state.CompareAndSwap(expiryIdle, expiryArmed) {
		return
	}
	left := time.Until(e.at)
	if left <= 0 {
		e.ring()
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state.Load() == expiryArmed {
		e.timer = time.AfterFunc(left, e.ring)
	}
}

// Stop ends the watch: nothing is cancelled or armed any more, except by Over.
func (e *Expiry) Stop() {
	if e.state.CompareAndSwap(expiryIdle, expiryStopped) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.state.Store(expiryStopped)
	if e.timer != nil {
		e.timer.Stop()
	}
}

// Rang reports whether cause, compared by identity, is the one that e gave its
// token.
func (e *Expiry) Rang(cause error) bool {
	c, ok := cause.(*Cause) //nolint:errorlint // identity is what counts
	return ok && c != nil && c == e.cause.Load()
}

// ring may run twice at once, from the timer and from Over: both give the one cause
// and return only when the token is cancelled.
func (e *Expiry) ring() {
	e.cause.CompareAndSwap(nil, Because(Timeout, "", e.text))
	e.token.Cancel(e.cause.Load())
}
