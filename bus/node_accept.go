package bus

import (
	"sync"
	"time"

	"github.com/apbus/apbus/contextwire"
)

// acceptAfter is how long a unary call may take before its caller is told who
// has it.
const acceptAfter = 20 * time.Millisecond

// accepts tells callers who has their call once it is acceptAfter old. One timer
// serves the whole node: nearly every call is over by then, and arming a timer
// for each would cost more than the rest of its admission.
type accepts struct {
	mu     sync.Mutex
	due    []*running // oldest first
	timer  *time.Timer
	armed  bool
	closed bool
}

// add puts r on the list.
func (a *accepts) add(r *running) {
	if r.head.Bare {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.due = append(a.due, r)
	if !a.armed && !a.closed {
		a.armLocked(acceptAfter)
	}
}

func (a *accepts) armLocked(wait time.Duration) {
	a.armed = true
	if a.timer == nil {
		a.timer = time.AfterFunc(wait, a.fire)
		return
	}
	a.timer.Reset(wait)
}

// fire sends what is due and waits for the next.
func (a *accepts) fire() {
	for _, r := range a.take(time.Now()) {
		r.reply.interim(&contextwire.Frame{Kind: contextwire.FrameAccept, Grace: r.node.opts.CallGrace()})
	}
}

// take removes and returns the calls that are due and not over.
func (a *accepts) take(now time.Time) []*running {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*running
	i := 0
	for ; i < len(a.due) && now.Sub(a.due[i].arrived) >= acceptAfter; i++ {
		if r := a.due[i]; !r.reply.isOver() {
			out = append(out, r)
		}
	}
	rest := copy(a.due, a.due[i:])
	clear(a.due[rest:])
	a.due = a.due[:rest]
	a.armed = false
	if rest > 0 && !a.closed {
		a.armLocked(acceptAfter - now.Sub(a.due[0].arrived))
	}
	return out
}

func (a *accepts) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.timer != nil {
		a.timer.Stop()
	}
}
