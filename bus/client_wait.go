package bus

import (
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/module"
)

// waiter is what a call waits with. It is used again for another call, also while
// somebody is about to poke it for the one before: who wakes up looks for what has
// happened, and may find nothing.
type waiter struct {
	wake  chan struct{} // capacity 1
	timer *time.Timer   // stopped unless a call has armed it
}

func (w *waiter) poke() {
	select {
	case w.wake <- struct{}{}:
	default: // it is awake already
	}
}

// waiters are those that no call uses. The zero value is ready.
type waiters struct{ pool sync.Pool }

func (p *waiters) take() *waiter {
	if w, ok := p.pool.Get().(*waiter); ok {
		select {
		case <-w.wake: // for the call before
		default:
		}
		return w
	}
	w := &waiter{wake: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	w.timer.Stop()
	return w
}

func (p *waiters) give(w *waiter) {
	w.timer.Stop()
	p.pool.Put(w)
}

// limits are the moments at which an attempt gives up waiting, zero for never.
type limits struct {
	waiter   *waiter
	silence  time.Time // without any frame
	backstop time.Time // without the end
	armed    time.Time // what the timer is set to
}

// due returns the channel of the next moment, nil when there is none.
func (l *limits) due() <-chan time.Time {
	next := l.silence
	if next.IsZero() || (!l.backstop.IsZero() && l.backstop.Before(next)) {
		next = l.backstop
	}
	if next.IsZero() {
		return nil
	}
	if !next.Equal(l.armed) {
		l.armed = next
		l.waiter.timer.Reset(time.Until(next))
	}
	return l.waiter.timer.C
}

// maxFrames is how many frames of a call that is no stream may wait to be read.
const maxFrames = 4

// mailbox is what has come for an attempt and was not looked at yet.
type mailbox struct {
	mu     sync.Mutex
	room   [maxFrames]*nats.Msg
	frames []*nats.Msg
	lost   *module.Error // why the owner is believed to be gone
}

// deliver is called by the reply subscription and never blocks: an attempt
// expects few frames, and of those only progress may be left out.
func (a *attempt) deliver(m *nats.Msg) {
	if a.in != nil {
		a.in.deliver(m)
	} else {
		a.mail.put(m)
	}
	a.out.wait.poke()
}

func (b *mailbox) put(m *nats.Msg) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.frames) == maxFrames {
		if !mustArrive(m) {
			return
		}
		b.frames = append(b.room[:0], b.frames[1:]...) // progress nobody has read yet makes room for the end
	}
	if b.frames == nil {
		b.frames = b.room[:0]
	}
	b.frames = append(b.frames, m)
}

// fail ends the attempt because its owner is gone.
func (a *attempt) fail(e *module.Error) {
	a.mail.mu.Lock()
	if a.mail.lost == nil {
		a.mail.lost = e
	}
	a.mail.mu.Unlock()
	a.out.wait.poke()
}

// next takes the oldest frame, nil when there is none. lost is why there will be no
// more, as far as is known.
func (a *attempt) next() (m *nats.Msg, lost *module.Error) {
	if a.in != nil {
		if m = a.in.next(); m != nil {
			return m, nil
		}
	}
	b := &a.mail
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.frames) > 0 {
		m = b.frames[0]
		copy(b.frames, b.frames[1:])
		b.frames[len(b.frames)-1] = nil
		b.frames = b.frames[:len(b.frames)-1]
		return m, nil
	}
	return nil, b.lost
}
