package cancel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// ErrCancelled is matched by the error of [Token.Check] and by [Tombstoned].
var ErrCancelled = errors.New("cancelled")

// Token is one node of a tree of cancellations. Cancelling a token cancels
// everything below it and nothing above it.
//
// A Token is made by [NewToken], [Token.Child] or [Join] and must not be
// copied. All methods may be called from several goroutines at once. A token
// that nobody watches costs one allocation.
//
// Source: core-executor seed, Cooperative cancellation and Cancel Token
// Mid-Pipeline Check.
type Token struct {
	// verdict is nil while the token is live.
	verdict atomic.Pointer[verdict]

	// parent, ctx and stop do not change after the token was made. The context
	// is kept although contexts are not to be stored: a joined token is the
	// other face of that context and lives exactly as long.
	parent   *Token
	ctx      context.Context
	stop     context.CancelCauseFunc
	finished *Cause // what Release tells a joined context; filled by it

	// detached is set once ctx no longer speaks for the token, after Release
	// or Reset. It changes only under mu.
	detached atomic.Bool

	// expiry is the limit of the token's time, nil for none, and watched whether
	// anybody has asked to be told of a cancellation: only then it needs a timer.
	expiry  atomic.Pointer[Expiry]
	watched atomic.Bool

	// Locks are taken from parent to child, never the other way, and before
	// any lock inside a context.
	mu       sync.Mutex
	released bool
	done     chan struct{}         // made by Done, closed by cancelling
	watchers map[*watcher]struct{} // made by AfterFunc
	unhook   func() bool           // set once ctx is watched for the sake of others
	children *Token                // first of the list of children

	// Place in the parent's list of children, guarded by parent.mu.
	linked     bool
	prev, next *Token
}

// verdict is why a token was cancelled.
type verdict struct{ cause error }

// watcher is one registered AfterFunc.
type watcher struct{ f func(cause error) }

// NewToken returns a live token without a parent.
func NewToken() *Token { return &Token{} }

// Child returns a new token below t. It is born cancelled when t is cancelled
// already, and also when t was released: whatever comes after the end of the
// work of t must not run.
//
// Call Release on the child when its work is over.
func (t *Token) Child() *Token {
	c := &Token{parent: t}
	t.adopt(c)
	return c
}

// Cancel cancels t and every live token below it with the given cause, nil
// standing for [Because](Caller, "", ""). The first cause wins: it returns
// true when this call cancelled t, false when t was cancelled or released
// before. In both cases everything below t is cancelled when Cancel returns.
// Descendants carry the cause of the token that was cancelled, unchanged. Where
// the context of a joined token ends at the same instant, its cause may be the
// first one.
func (t *Token) Cancel(cause error) bool {
	if cause == nil {
		cause = Because(Caller, "", "")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	// A context that ended first has the first word.
	t.settleLocked()
	if t.released || t.verdict.Load() != nil {
		return false
	}
	t.cancelLocked(cause)
	return true
}

// IsCancelled reports whether t is cancelled.
func (t *Token) IsCancelled() bool { return t.current() != nil }

// Cause returns why t was cancelled, or nil while it is live.
func (t *Token) Cause() error {
	if v := t.current(); v != nil {
		return v.cause
	}
	return nil
}

// Check returns nil while t is live. Afterwards it returns an error that
// matches [ErrCancelled] and wraps the cause.
func (t *Token) Check() error {
	if v := t.current(); v != nil {
		return fmt.Errorf("%w: %w", ErrCancelled, v.cause)
	}
	return nil
}

// Done returns a channel that is closed when t is cancelled. For a joined token
// it is the channel of its context, which is also closed when the token is
// released. The channel is made on the first call.
func (t *Token) Done() <-chan struct{} {
	t.watch()
	if t.ctx != nil && !t.detached.Load() {
		return t.ctx.Done()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx != nil && t.released && t.done == nil {
		return t.ctx.Done()
	}
	if t.done == nil {
		t.done = make(chan struct{})
		if t.verdict.Load() != nil {
			close(t.done)
		}
	}
	return t.done
}

// Reset makes a cancelled token live again; a live or released token is left as
// it is. The Token stays the same one, so everybody who holds it sees it live,
// and it keeps its place in the tree: a later cancel from above reaches it,
// while the one that is past does not come again.
//
// What the first cancel has already done stays done. A channel handed out by
// Done stays closed, and Done returns a fresh one from now on. Functions given
// to AfterFunc have run and must be registered anew. Tokens below t stay
// cancelled until they are reset themselves. The context of a joined token
// cannot come back: it stays cancelled and t no longer follows it.
func (t *Token) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settleLocked()
	if t.released || t.verdict.Load() == nil {
		return
	}
	// The context comes off first: a reader between the two stores must not
	// take its end for a new verdict.
	t.detached.Store(true)
	t.verdict.Store(nil)
	t.done = nil
}

// AfterFunc arranges for f to be called with the cause, in a goroutine of its
// own, once t is cancelled, or at once when it is already. f runs at most
// once. The returned stop function takes f off again and reports whether it
// thereby kept f from running. Releasing t drops f.
func (t *Token) AfterFunc(f func(cause error)) (stop func() bool) {
	t.watch()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settleLocked()
	if v := t.verdict.Load(); v != nil {
		go f(v.cause)
		return func() bool { return false }
	}
	if t.released {
		return func() bool { return false }
	}
	w := &watcher{f}
	if t.watchers == nil {
		t.watchers = make(map[*watcher]struct{})
	}
	t.watchers[w] = struct{}{}
	t.watchLocked()
	return func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		_, waiting := t.watchers[w]
		delete(t.watchers, w)
		return waiting
	}
}

// Release ends the life of t: it leaves its parent, so nothing keeps it in
// memory, and keeps the verdict it has for good; a later Cancel or Reset does
// nothing. Tokens still below t are cancelled with reason Parent, as is the
// context of a joined token, since work that outlives its call must not go on
// unseen. Release may be called more than once.
func (t *Token) Release() {
	if t.parent != nil {
		t.parent.unlink(t)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.released {
		return
	}
	t.settleLocked()
	t.released = true
	t.detached.Store(true)
	t.watchers = nil
	t.unhookLocked()
	if t.children == nil && t.stop == nil {
		return
	}
	finished := t.finished
	if finished == nil {
		finished = &Cause{}
	}
	*finished = Cause{Reason: Parent, Text: "the calling work has finished", At: time.Now()}
	t.cancelChildrenLocked(finished)
	if t.stop != nil {
		t.stop(finished)
	}
}

// current returns the verdict, after asking the joined context, which is
// cancelled without a word to the token.
func (t *Token) current() *verdict {
	if v := t.verdict.Load(); v != nil {
		return v
	}
	if e := t.expiry.Load(); e != nil {
		e.Arm() // for the next who asks, and for this one when the time is over
		if v := t.verdict.Load(); v != nil {
			return v
		}
	}
	if t.ctx == nil || t.detached.Load() || t.ctx.Err() == nil {
		return nil
	}
	t.settle()
	return t.verdict.Load()
}

// watch notes that somebody waits for the end of t. The note comes before the look:
// a limit that is set meanwhile sees the one or is seen by the other.
func (t *Token) watch() {
	if !t.watched.Load() {
		t.watched.Store(true)
	}
	if e := t.expiry.Load(); e != nil {
		e.Arm()
	}
}

// settle makes the end of the joined context the end of the token.
func (t *Token) settle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settleLocked()
}

func (t *Token) settleLocked() {
	if t.ctx == nil || t.detached.Load() || t.verdict.Load() != nil || t.ctx.Err() == nil {
		return
	}
	t.cancelLocked(context.Cause(t.ctx))
}

// cancelLocked cancels t if it is live, and in any case everything below it.
// The lock is held on the way down, so that nobody finds t cancelled by a
// finished Cancel and a token below it still live.
func (t *Token) cancelLocked(cause error) {
	if t.verdict.Load() == nil && !t.released {
		t.unhookLocked()
		if t.stop != nil {
			t.stop(cause)
			if !t.detached.Load() {
				// The context may have ended for a reason of its own between
				// the last look and stop. Both faces tell the same story.
				cause = context.Cause(t.ctx)
			}
		}
		t.verdict.Store(&verdict{cause})
		if t.done != nil {
			close(t.done)
		}
		for w := range t.watchers {
			go w.f(cause)
		}
		t.watchers = nil
	}
	t.cancelChildrenLocked(cause)
}

func (t *Token) cancelChildrenLocked(cause error) {
	for c := t.children; c != nil; c = c.next {
		c.mu.Lock()
		c.settleLocked()
		c.cancelLocked(cause)
		c.mu.Unlock()
	}
}

// watchLocked makes sure that the end of the joined context is noticed without
// anybody asking.
func (t *Token) watchLocked() {
	if t.ctx != nil && t.unhook == nil && !t.detached.Load() {
		t.unhook = context.AfterFunc(t.ctx, t.settle)
	}
}

func (t *Token) unhookLocked() {
	if t.unhook != nil {
		t.unhook()
		t.unhook = nil
	}
}

// adopt puts the new token c below t. When t is over c is cancelled at once; it
// is still put below a cancelled t, which may be reset.
func (t *Token) adopt(c *Token) {
	t.watch()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settleLocked()
	v := t.verdict.Load()
	switch {
	case v != nil:
		c.Cancel(v.cause)
	case t.released:
		c.Cancel(Because(Parent, "", "the calling work has finished"))
	}
	if t.released {
		return
	}
	c.linked = true
	c.next = t.children
	if c.next != nil {
		c.next.prev = c
	}
	t.children = c
	t.watchLocked()
}

// unlink takes c out of the list of children of t, if it is in it.
func (t *Token) unlink(c *Token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !c.linked {
		return
	}
	c.linked = false
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		t.children = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
}
