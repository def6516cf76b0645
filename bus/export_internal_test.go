package bus

import (
	"strings"
	"time"
)

// Stall makes n believe that its process stood still for d until now. A bubble
// cannot stop a process.
func (n *Node) Stall(d time.Duration) { n.beat.Store(time.Now().Add(-d).UnixNano()) }

// Tables counts what a node remembers of calls.
type Tables struct{ Running, InFlight, Holding, Waiting, Kept, KeptOrder, Callers, Flows int }

// Tables returns what n remembers now.
func (n *Node) Tables() Tables {
	n.mu.Lock()
	running := len(n.running)
	n.mu.Unlock()
	n.replay.mu.Lock()
	kept, order, callers := len(n.replay.frames), len(n.replay.order), len(n.replay.callers)
	n.replay.mu.Unlock()
	holding, waiting := n.gate.load()
	n.flows.mu.Lock()
	flows := len(n.flows.open)
	n.flows.mu.Unlock()
	return Tables{running, n.table.Len(), holding, waiting, kept, order, callers, flows}
}

// Tables returns how many attempts and calls c waits for, how many processes it
// has an entry for, and how many open and told calls those hold.
func (c *Client) Tables() (pending, calls, hosts, open int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.hosts {
		h.mu.Lock()
		open += h.open + len(h.told)
		h.mu.Unlock()
	}
	for _, o := range c.calls {
		if o.current != nil {
			pending++
		}
	}
	return pending, len(c.calls), len(c.hosts), open
}

// Fetched is how many bytes of bodies from the object store n holds.
func (n *Node) Fetched() int64 { return n.fetched.Load() }

// BucketOf and BucketEnd are those of a histogram.
func BucketOf(v int64) int { return bucketOf(uint64(v)) }

// BucketEnd is the largest value of a bucket.
func BucketEnd(i int) int64 { return bucketEnd(i) }

// CountOne returns a function that counts a call of a module that was seen before.
func CountOne() func() {
	var c counters
	id := strings.Clone("mod.x") // not a constant, which the compiler would box for free
	c.ended(id, time.Second, nil)
	return func() {
		c.in.observe(100)
		c.ended(id, time.Millisecond, nil)
		c.out.observe(100)
	}
}
