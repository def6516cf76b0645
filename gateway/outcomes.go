package gateway

import (
	"sync"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// outcomes keeps the detached calls: those that run, and for a while the
// outcomes of those that ended. Number and bytes are bounded.
type outcomes struct {
	ttl         time.Duration
	maxRunning  int
	maxFinished int
	maxBytes    int64

	mu       sync.Mutex
	closed   bool
	calls    map[string]*detachedCall
	running  int
	finished []*detachedCall // in the order they ended, which is that of expiry
	bytes    int64
	timer    *time.Timer
}

// detachedCall is one detached call. What is below the line changes once, when
// it ends, under the lock of outcomes; readers get copies.
type detachedCall struct {
	call, moduleID, traceID string
	identity                *module.Identity
	startedAt               time.Time
	budget                  time.Duration

	finishedAt time.Time // zero while it runs
	ending
}

// ending is how a call ended: exactly one of output and failure, as JSON.
type ending struct {
	output, failure []byte
	// node and boot ran the call, attempt is the one that counted; empty when
	// it failed.
	node, boot string
	attempt    int
}

func newOutcomes(l Limits) *outcomes {
	return &outcomes{
		ttl: l.OutcomeTTL, maxRunning: l.MaxDetached, maxFinished: l.MaxOutcomes, maxBytes: l.MaxOutcomeBytes,
		calls: map[string]*detachedCall{},
	}
}

// begin enters d and starts run, a function that returns at once, unless the
// limit of running calls is reached or the gateway closes.
func (o *outcomes) begin(d *detachedCall, run func()) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return overloaded("the router shuts down", time.Second)
	case o.running >= o.maxRunning:
		return overloaded("too many detached calls at once", time.Second)
	}
	o.calls[d.call] = d
	o.running++
	run() // under the lock, so that close comes before it or sees it
	return nil
}

// end records how a call ended. An outcome over the limit of all outcomes is
// replaced by BUS_PAYLOAD_TOO_LARGE.
func (o *outcomes) end(call string, how ending) {
	if size := how.size(); size > o.maxBytes {
		e := contextwire.TooLarge(size, o.maxBytes).WithMessage("the outcome is too large to be kept")
		how.output = nil
		how.failure, _ = contextwire.EncodeCanonical(contextwire.JSON, e.Map()) // integers and text always encode
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	d := o.calls[call]
	o.running--
	d.finishedAt, d.ending = time.Now(), how
	o.finished = append(o.finished, d)
	o.bytes += d.size()
	for len(o.finished) > o.maxFinished || o.bytes > o.maxBytes && len(o.finished) > 1 {
		o.dropOldestLocked()
	}
	o.scheduleLocked()
}

func (e *ending) size() int64 { return int64(len(e.output) + len(e.failure)) }

// get returns a copy of a call, as long as it is kept.
func (o *outcomes) get(call string) (detachedCall, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := o.calls[call]
	if d == nil || o.expiredLocked(d) {
		return detachedCall{}, false
	}
	return *d, true
}

func (o *outcomes) expiredLocked(d *detachedCall) bool {
	return !d.finishedAt.IsZero() && time.Since(d.finishedAt) >= o.ttl
}

func (o *outcomes) dropOldestLocked() {
	d := o.finished[0]
	o.finished[0] = nil
	o.finished = o.finished[1:]
	o.bytes -= d.size()
	delete(o.calls, d.call)
}

// scheduleLocked has the timer fire when the oldest outcome expires.
func (o *outcomes) scheduleLocked() {
	if o.timer != nil || len(o.finished) == 0 || o.closed {
		return
	}
	o.timer = time.AfterFunc(max(time.Until(o.finished[0].finishedAt.Add(o.ttl)), 0), o.sweep)
}

// sweep lets go of what has expired.
func (o *outcomes) sweep() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.finished) > 0 && o.expiredLocked(o.finished[0]) {
		o.dropOldestLocked()
	}
	o.timer = nil
	o.scheduleLocked()
}

// close refuses new calls and stops the timer.
func (o *outcomes) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
}

func (o *outcomes) isClosed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closed
}
