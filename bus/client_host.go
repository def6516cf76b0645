package bus

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

const (
	// tick is how often a process with open calls is pinged, and a client probed.
	tick = 500 * time.Millisecond
	// pingPatience is how long one ping waits for its pong; less than a tick, so
	// that pings of one process do not overlap.
	pingPatience = 450 * time.Millisecond
	// lateTick tells our own stall from a peer's silence.
	lateTick = tick + tick/2
	// goneApart is the least time between the two 503s that prove a process gone.
	goneApart = 400 * time.Millisecond
	// missedPings in a row prove a process frozen or cut off.
	missedPings = 4
)

// host is what a client knows of one process it calls, and the watch over it:
// while calls are open there the process is pinged, one ping however many calls
// (wire protocol section 5, Lost host).
type host struct {
	client *Client
	proc   proc

	mu       sync.Mutex
	first    *attempt            // of the list of open calls
	open     int                 // its length
	told     map[cancel.Key]bool // what the process knows us to wait for
	watching bool
	active   bool // a call was opened since the last ping
	latency  time.Duration
	sampled  time.Time // when latency was last fed
	until    time.Time // suspect until then
}

// hostOf returns the entry for p.
func (c *Client) hostOf(p proc) *host {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.hosts[p]
	if h == nil {
		for old, idle := range c.hosts {
			if !c.dir.has(old) && idle.isIdle() {
				delete(c.hosts, old) // an earlier life of some node
			}
		}
		h = &host{client: c, proc: p, told: map[cancel.Key]bool{}}
		c.hosts[p] = h
	}
	return h
}

func (h *host) add(a *attempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a.prevOpen, a.nextOpen = nil, h.first
	if h.first != nil {
		h.first.prevOpen = a
	}
	h.first = a
	h.open++
	h.active = true
	if !h.watching {
		h.watching = true
		h.client.wg.Go(h.watch)
	}
}

// isIdle reports whether nobody uses or watches the process.
func (h *host) isIdle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.watching && h.open == 0
}

func (h *host) remove(a *attempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case a.prevOpen != nil:
		a.prevOpen.nextOpen = a.nextOpen
	case h.first == a:
		h.first = a.nextOpen
	default:
		return // it is in no list
	}
	if a.nextOpen != nil {
		a.nextOpen.prevOpen = a.prevOpen
	}
	a.prevOpen, a.nextOpen = nil, nil
	h.open--
}

// openLocked goes through the open calls.
func (h *host) openLocked() iter.Seq[*attempt] {
	return func(yield func(*attempt) bool) {
		for a := h.first; a != nil && yield(a); a = a.nextOpen {
		}
	}
}

// byKeyLocked finds the open calls by their keys, for who looks for several.
func (h *host) byKeyLocked() map[cancel.Key]*attempt {
	all := make(map[cancel.Key]*attempt, h.open)
	for a := range h.openLocked() {
		all[a.key] = a
	}
	return all
}

func (h *host) suspect(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if until := time.Now().Add(d); until.After(h.until) {
		h.until = until
	}
}

func (h *host) isSuspect(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return now.Before(h.until)
}

// answered feeds the smoothed latency.
func (h *host) answered(took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.latency = h.agedLocked()
	h.sampled = time.Now()
	if h.latency == 0 {
		h.latency = took
		return
	}
	h.latency += (took - h.latency) / 8
}

func (h *host) load() float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return float64(h.agedLocked()+time.Microsecond) * float64(h.open+1)
}

// agedLocked is the smoothed latency, halved for every second without an answer:
// what is not called is not measured, and one bad moment would keep calls away
// from a host for good.
func (h *host) agedLocked() time.Duration {
	return h.latency >> min(uint64(max(time.Since(h.sampled), 0)/time.Second), 62)
}

// watch pings until a whole tick passed without a call. It ends with a last
// ping that tells the process that nothing is open, so that it can forget the
// answers it keeps.
func (h *host) watch() {
	t := time.NewTicker(tick)
	defer t.Stop()
	w := watcher{host: h, last: time.Now()}
	for {
		select {
		case <-h.client.life.Done():
			return
		case <-t.C:
		}
		now := time.Now()
		late := now.Sub(w.last) > lateTick
		w.last = now
		opened, closed, idle := h.changes(now)
		if idle {
			return
		}
		w.ping(opened, closed, late)
	}
}

// changes returns what to tell the process. Calls younger than a tick are left
// out: their request may still be on its way on the other connection. idle ends
// the watch.
func (h *host) changes(now time.Time) (opened, closed []cancel.Key, idle bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open == 0 && len(h.told) == 0 && !h.active {
		h.watching = false
		return nil, nil, true
	}
	h.active = false
	for a := range h.openLocked() {
		if k := a.key; !h.told[k] && now.Sub(a.started) >= tick && !a.in.hasEnd() {
			opened = append(opened, k)
		}
	}
	if len(h.told) == 0 {
		return opened, closed, false
	}
	open := h.byKeyLocked()
	for k := range h.told {
		if a := open[k]; a == nil || a.in.hasEnd() {
			closed = append(closed, k)
		}
	}
	return opened, closed, false
}

// watcher is the memory of one watch.
type watcher struct {
	host   *host
	last   time.Time
	missed int
	gone   time.Time // when the first 503 in a row came
}

func (w *watcher) ping(opened, closed []cancel.Key, late bool) {
	h, c := w.host, w.host.client
	ctx, stop := context.WithTimeoutCause(c.life, pingPatience, errors.New("no pong"))
	defer stop()
	up := c.conns.Control.Connected()
	body, err := ask(ctx, c.conns.Control, c.subjects.node(h.proc.node, h.proc.boot, verbPing),
		&contextwire.Ping{Client: c.inbox, Open: formatKeys(opened), Closed: formatKeys(closed)})
	switch {
	case err == nil:
		w.missed, w.gone = 0, time.Time{}
		h.onPong(body, opened, closed)
	case c.life.Err() != nil:
	case late || !up || !c.conns.Control.Connected() || c.reconnectedAt.within(settleTime):
		// Our own side was away; that says nothing about the process.
		w.missed, w.gone = 0, time.Time{}
	case errors.Is(err, ErrNoResponders):
		h.suspect(2 * tick)
		now := time.Now()
		if w.gone.IsZero() {
			w.gone = now
		} else if now.Sub(w.gone) >= goneApart {
			h.lose("the process that took the call is gone")
		}
	default:
		h.suspect(2 * tick)
		w.gone = time.Time{}
		if w.missed++; w.missed >= missedPings {
			h.lose("the process that took the call does not answer")
		}
	}
}

// onPong ends the calls that the process does not know.
func (h *host) onPong(body map[string]any, opened, closed []cancel.Key) {
	pong, err := contextwire.PongFromMap(body)
	if err != nil {
		h.client.dir.calm.warn("ignoring a malformed pong", "node", h.proc.node, "cause", err)
		return
	}
	h.mu.Lock()
	for _, k := range opened {
		h.told[k] = true
	}
	for _, k := range closed {
		delete(h.told, k)
	}
	var strangers []*attempt
	var open map[cancel.Key]*attempt
	if len(pong.Unknown) > 0 {
		open = h.byKeyLocked()
	}
	for _, s := range pong.Unknown {
		call, n, ok := contextwire.ParseKey(s)
		if !ok {
			continue
		}
		key := cancel.Key{Call: call, Attempt: n}
		switch a := open[key]; {
		case a == nil:
		case a.denied:
			strangers = append(strangers, a)
		default:
			// Where everything is slow the request may still be on its way, which is
			// another connection's: the second time counts.
			a.denied = true
		}
		h.told[key] = true // so that the next ping takes it back
	}
	h.mu.Unlock()
	for _, a := range strangers {
		a.fail(h.client.lostError(a, h.proc, "the process that took the call does not know it"))
	}
}

// lose ends every call on the process with BUS_NODE_LOST.
func (h *host) lose(why string) {
	h.mu.Lock()
	lost := slices.Collect(h.openLocked())
	clear(h.told)
	h.mu.Unlock()
	ends := make([]*module.Error, len(lost))
	for i, a := range lost {
		ends[i] = h.client.lostError(a, h.proc, why)
	}
	// Forgotten only now: it may be the only one that says what its modules are.
	h.client.dir.drop(h.proc)
	for i, a := range lost {
		a.fail(ends[i])
	}
}

// lostError is how an attempt ends whose owner is gone: it may be tried again
// when its module says that this is safe.
func (c *Client) lostError(a *attempt, p proc, why string) *module.Error {
	details := map[string]any{"module_id": a.req.ModuleID}
	if p != (proc{}) {
		details["node"], details["boot"] = p.node, p.boot
	}
	e := module.Errorf(module.CodeBusNodeLost, "%s", why).WithDetails(details)
	e.Retryable = c.repeatable(a.req.ModuleID)
	return e.At(a.req.Context, a.req.ModuleID)
}

func formatKeys(keys []cancel.Key) []string {
	out := make([]string, len(keys))
	for i, k := range keys {
		out[i] = contextwire.FormatKey(k.Call, k.Attempt)
	}
	return out
}
