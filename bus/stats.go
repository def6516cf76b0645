package bus

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// What a node and a client count is always counted: atomic additions into memory
// that is there, without an allocation. Whoever wants to see it asks for a copy, so
// nothing is in the way of a call whether anybody looks or not.

const (
	// maxCountedModules bounds the modules told apart; further ones are counted
	// together under an empty ID.
	maxCountedModules = 4096
	// maxCountedCodes bounds the codes told apart of one module, which may make up
	// codes; further ones are counted as otherCode.
	maxCountedCodes = 64

	otherCode module.Code = "OTHER"
)

// histogram counts values in buckets, four for each doubling, so that a bucket is
// never wider than a quarter of its values.
type histogram struct {
	sum     atomic.Uint64
	buckets [histogramSize]atomic.Uint64
}

const histogramSize = 4 * 42 // up to 2^42, which is fifty days of microseconds or 4 TiB

func (h *histogram) observe(v int64) {
	u := uint64(max(v, 0)) //nolint:gosec // not negative
	h.sum.Add(u)
	h.buckets[bucketOf(u)].Add(1)
}

func bucketOf(v uint64) int {
	if v < 4 {
		return int(v) //nolint:gosec // small
	}
	e := bits.Len64(v) - 3
	return min(4*e+int(v>>e), histogramSize-1) //nolint:gosec // v>>e is below 8
}

// bucketEnd is the largest value in a bucket.
func bucketEnd(i int) int64 {
	if i < 4 {
		return int64(i)
	}
	e := i/4 - 1
	return int64(i%4+5)<<e - 1
}

// Distribution is a copy of a histogram.
type Distribution struct {
	// Count and Sum are of all values.
	Count, Sum int64
	// Buckets are those with values, in ascending order.
	Buckets []DistributionBucket
}

// DistributionBucket counts the values up to UpTo and above the bucket before.
type DistributionBucket struct{ UpTo, Count int64 }

func (h *histogram) read() Distribution {
	d := Distribution{Sum: int64(h.sum.Load())} //nolint:gosec // a sum
	for i := range h.buckets {
		if n := int64(h.buckets[i].Load()); n > 0 { //nolint:gosec // a count
			d.Count += n
			d.Buckets = append(d.Buckets, DistributionBucket{bucketEnd(i), n})
		}
	}
	return d
}

// codeCounts counts by code.
type codeCounts struct {
	mu     sync.Mutex
	counts map[module.Code]int64
}

func (c *codeCounts) add(code module.Code) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[module.Code]int64{}
	}
	if _, have := c.counts[code]; !have && len(c.counts) >= maxCountedCodes {
		code = otherCode
	}
	c.counts[code]++
}

func (c *codeCounts) read() map[module.Code]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.counts)
}

// moduleCounts are the calls of one module that have ended.
type moduleCounts struct {
	calls  atomic.Int64
	took   histogram // microseconds
	errors codeCounts
}

// counters are what node and client count alike.
type counters struct {
	byModule sync.Map // string → *moduleCounts
	modules  atomic.Int64
	// in and out are the sizes of message bodies, in bytes.
	in, out histogram
}

func (c *counters) of(id string) *moduleCounts {
	if v, ok := c.byModule.Load(id); ok {
		return v.(*moduleCounts)
	}
	if c.modules.Load() >= maxCountedModules {
		id = ""
	}
	v, had := c.byModule.LoadOrStore(id, &moduleCounts{})
	if !had {
		c.modules.Add(1)
	}
	return v.(*moduleCounts)
}

func (c *counters) ended(id string, took time.Duration, e *module.Error) {
	m := c.of(id)
	m.calls.Add(1)
	m.took.observe(took.Microseconds())
	if e != nil {
		m.errors.add(e.Code)
	}
}

// ModuleCalls are the calls of one module that have ended, as one process saw them.
type ModuleCalls struct {
	ModuleID string
	Calls    int64
	Errors   map[module.Code]int64
	// Micros are the durations in microseconds.
	Micros Distribution
}

// moduleCalls are sorted by ID.
func (c *counters) moduleCalls() []ModuleCalls {
	var out []ModuleCalls
	c.byModule.Range(func(id, v any) bool {
		m := v.(*moduleCounts)
		out = append(out, ModuleCalls{ModuleID: id.(string), Calls: m.calls.Load(), Errors: m.errors.read(), Micros: m.took.read()})
		return true
	})
	slices.SortFunc(out, func(a, b ModuleCalls) int { return cmp.Compare(a.ModuleID, b.ModuleID) })
	return out
}

// nodeCounts are what only a node counts.
type nodeCounts struct {
	counters
	refused       codeCounts
	cancelsObeyed atomic.Int64
	stalls        atomic.Int64
	stalled       atomic.Int64 // nanoseconds
}

// NodeStats is what a node counts. All but the gauges only grow.
type NodeStats struct {
	// InFlight calls hold a slot, Waiting wait for one, Debt are modules that run on
	// although their call has ended; Capacity is how many may run at once.
	InFlight, Waiting, Debt, Capacity int
	Draining                          bool
	Modules                           []ModuleCalls
	// Refused counts calls that were answered without being entered, by code.
	Refused map[module.Code]int64
	// CancelsObeyed counts calls that a cancel notice found here.
	CancelsObeyed int64
	// CreditStalls counts waits of a stream for its reader, CreditStalled sums them.
	CreditStalls  int64
	CreditStalled time.Duration
	// Received and Sent are the sizes of message bodies in bytes.
	Received, Sent Distribution
}

// Stats returns a copy of the node's counters. It may be called at any time.
func (n *Node) Stats() NodeStats {
	s := NodeStats{
		Debt: n.host.Debt(), Capacity: n.opts.MaxInFlight, Draining: n.isDraining(),
		Modules: n.counts.moduleCalls(), Refused: n.counts.refused.read(), CancelsObeyed: n.counts.cancelsObeyed.Load(),
		CreditStalls: n.counts.stalls.Load(), CreditStalled: time.Duration(n.counts.stalled.Load()),
		Received: n.counts.in.read(), Sent: n.counts.out.read(),
	}
	s.InFlight, s.Waiting = n.gate.load()
	return s
}

// report is the answer to the control request "stats".
func (n *Node) report() *contextwire.NodeStats {
	s, table := n.Stats(), n.table.Stats()
	out := &contextwire.NodeStats{
		Node: n.opts.ID, Boot: n.boot, NS: n.subjects.ns, Version: n.opts.Version, Protocol: contextwire.ProtocolVersion,
		Draining: s.Draining, Capacity: s.Capacity, InFlight: s.InFlight, Waiting: s.Waiting, Debt: s.Debt,
		Tombstones: table.Tombstones, TombstonesEvicted: int64(table.Evicted), Calls: int64(table.Begun), //nolint:gosec // counts
		Refused: s.Refused, CancelsObeyed: s.CancelsObeyed, CreditStalls: s.CreditStalls, CreditStalled: s.CreditStalled,
	}
	holding, queued := n.gate.byModule()
	seen := map[string]bool{}
	for _, m := range s.Modules {
		if m.ModuleID == "" {
			continue
		}
		seen[m.ModuleID] = true
		one := contextwire.ModuleStats{
			ModuleID: m.ModuleID, InFlight: holding[m.ModuleID], Waiting: queued[m.ModuleID], Calls: m.Calls, Errors: m.Errors,
		}
		for _, b := range m.Micros.Buckets {
			one.Latency = append(one.Latency, contextwire.LatencyBucket{UpTo: time.Duration(b.UpTo) * time.Microsecond, Count: b.Count})
		}
		out.Modules = append(out.Modules, one)
	}
	for _, d := range n.host.Descriptors() { // those that have not ended a call yet
		if !seen[d.ID] {
			out.Modules = append(out.Modules, contextwire.ModuleStats{ModuleID: d.ID, InFlight: holding[d.ID], Waiting: queued[d.ID]})
		}
	}
	slices.SortFunc(out.Modules, func(a, b contextwire.ModuleStats) int { return cmp.Compare(a.ModuleID, b.ModuleID) })
	return out
}

// clientCounts are what only a client counts.
type clientCounts struct {
	counters
	retries     codeCounts
	lost        atomic.Int64
	cancelsSent atomic.Int64
}

// ClientStats is what a client counts. All but InFlight only grow.
type ClientStats struct {
	InFlight int
	Modules  []ModuleCalls
	// Retries counts attempts that were followed by another, by the code they ended
	// with; Lost those whose process was lost.
	Retries map[module.Code]int64
	Lost    int64
	// CancelsSent counts notices about calls that ended on this side, and cancels
	// that somebody asked for.
	CancelsSent int64
	// Received and Sent are the sizes of message bodies in bytes.
	Received, Sent Distribution
}

// Stats returns a copy of the client's counters. It may be called at any time.
func (c *Client) Stats() ClientStats {
	c.mu.Lock()
	inFlight := len(c.calls)
	c.mu.Unlock()
	return ClientStats{
		InFlight: inFlight, Modules: c.counts.moduleCalls(), Retries: c.counts.retries.read(),
		Lost: c.counts.lost.Load(), CancelsSent: c.counts.cancelsSent.Load(),
		Received: c.counts.in.read(), Sent: c.counts.out.read(),
	}
}

// ConnStats is the state of one connection.
type ConnStats struct {
	// Name is calls, control or jetstream.
	Name       string
	Connected  bool
	Reconnects int64
}

// Stats returns the state of the connections, for those that NATS made.
func (c *Conns) Stats() []ConnStats {
	out := make([]ConnStats, 0, len(c.nats))
	for i, name := range []string{connCalls, connControl, connJetStream}[:len(c.nats)] {
		nc := c.nats[i]                                                                                                 // in the order in which Connect opened them
		out = append(out, ConnStats{Name: name, Connected: nc.IsConnected(), Reconnects: int64(nc.Stats().Reconnects)}) //nolint:gosec // a count
	}
	return out
}
