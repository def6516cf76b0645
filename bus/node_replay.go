package bus

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/cancel"
)

const (
	// keepFor is how long a terminal frame is kept for a caller that does not ask.
	keepFor = 30 * time.Second
	// settledAfter is the age at which a caller's ping that does not list the
	// call proves that it has the answer: the ping before would have listed it.
	settledAfter = 3 * tick
	// keepBytes bounds all kept frames; beyond it the oldest go.
	keepBytes = 64 << 20
	// maxOpen and maxCallers bound what peers can make a node remember. A caller
	// beyond them is served all the same, but must do without replay.
	maxOpen    = 100_000
	maxCallers = 10_000
)

// replay keeps terminal frames until their callers are known to have them, and
// what each caller says it waits for (wire protocol sections 4 and 5).
type replay struct {
	mu      sync.Mutex
	frames  map[cancel.Key]*kept
	order   []*kept // oldest first; dropped ones stay until they come to the front
	callers map[string]*callerState
	bytes   int
}

type kept struct {
	key     cancel.Key
	issuer  string
	to      string
	frame   image
	at      time.Time
	dropped bool
}

func (k *kept) size() int { return len(k.to) + len(k.frame) + 256 }

func (k *kept) message() *nats.Msg { return k.frame.message(k.to) }

// callerState is what one caller waits for, and the frames kept for it.
type callerState struct {
	open      map[cancel.Key]bool
	frames    []*kept
	compactAt int
	seen      time.Time
}

func newReplay() *replay {
	return &replay{frames: map[cancel.Key]*kept{}, callers: map[string]*callerState{}}
}

func (p *replay) callerLocked(issuer string) *callerState {
	c := p.callers[issuer]
	if c == nil {
		c = &callerState{open: map[cancel.Key]bool{}, compactAt: 1024}
		if len(p.callers) < maxCallers {
			p.callers[issuer] = c
		}
	}
	c.seen = time.Now()
	return c
}

// keep keeps a copy of m.
func (p *replay) keep(issuer string, key cancel.Key, m *nats.Msg) {
	if _, token, ok := strings.Cut(m.Subject[len(issuer):], "."); ok && strings.HasPrefix(token, key.Call) {
		key.Call = token[:len(key.Call)] // the same text, without the headers that it came in
	}
	k := &kept{key: key, issuer: issuer, to: m.Subject, frame: imageOf(m), at: time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frames[key] = k
	p.order = append(p.order, k)
	c := p.callerLocked(issuer)
	if c.frames = append(c.frames, k); len(c.frames) >= c.compactAt {
		c.frames = slices.DeleteFunc(c.frames, func(k *kept) bool { return k.dropped })
		c.compactAt = max(1024, 2*len(c.frames))
	}
	p.bytes += k.size()
	for p.bytes > keepBytes && len(p.order) > 0 {
		p.popLocked()
	}
}

// popLocked forgets the oldest frame.
func (p *replay) popLocked() {
	k := p.order[0]
	p.order[0] = nil
	p.order = p.order[1:]
	p.dropLocked(k)
}

func (p *replay) dropLocked(k *kept) {
	if k.dropped {
		return
	}
	k.dropped = true
	p.bytes -= k.size()
	k.frame = nil
	if p.frames[k.key] == k {
		delete(p.frames, k.key)
	}
}

// expire forgets what is too old, and callers that are silent.
func (p *replay) expire(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.order) > 0 && (p.order[0].dropped || now.Sub(p.order[0].at) > keepFor) {
		p.popLocked()
	}
	for issuer, c := range p.callers {
		if now.Sub(c.seen) > 2*keepFor {
			delete(p.callers, issuer)
		}
	}
}

// again sends the terminal frame of a call that has ended here, if it is kept.
func (p *replay) again(n *Node, key cancel.Key) bool {
	p.mu.Lock()
	var m *nats.Msg
	if k := p.frames[key]; k != nil {
		m = k.message()
	}
	p.mu.Unlock()
	if m == nil {
		return false
	}
	n.resend(m)
	return true
}

// finished reports whether the end of the call is still kept.
func (p *replay) finished(call string, attempt int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if attempt != 0 {
		return p.frames[cancel.Key{Call: call, Attempt: attempt}] != nil
	}
	for n := 1; n <= maxAttempts; n++ {
		if p.frames[cancel.Key{Call: call, Attempt: n}] != nil {
			return true
		}
	}
	return false
}

// told updates what a caller waits for. It returns the frames to send again,
// and the calls of which no end is kept; the node knows whether those run.
func (p *replay) told(issuer string, opened, closed []cancel.Key) (resend []*nats.Msg, unsettled []cancel.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.callerLocked(issuer)
	for _, k := range opened {
		if len(c.open) < maxOpen {
			c.open[k] = true
		}
	}
	for _, k := range closed {
		delete(c.open, k)
	}
	for key := range c.open {
		if k := p.frames[key]; k != nil {
			resend = append(resend, k.message())
		} else {
			unsettled = append(unsettled, key)
		}
	}
	p.settleLocked(c)
	return resend, unsettled
}

// settleLocked forgets the frames that the caller is known to have.
func (p *replay) settleLocked(c *callerState) {
	now, rest := time.Now(), c.frames[:0]
	for _, k := range c.frames {
		switch {
		case k.dropped:
		case !c.open[k.key] && now.Sub(k.at) > settledAfter:
			p.dropLocked(k)
		default:
			rest = append(rest, k)
		}
	}
	clear(c.frames[len(rest):])
	c.frames = rest
	for len(p.order) > 0 && p.order[0].dropped {
		p.order[0] = nil
		p.order = p.order[1:]
	}
}
