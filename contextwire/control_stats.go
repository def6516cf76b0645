package contextwire

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/apbus/apbus/module"
)

// NodeStats answers the control request "stats": what a process is doing, and what
// it has done since it started. All counts only grow, so that the difference of
// two answers of one boot tells of the time between them.
type NodeStats struct {
	Node, Boot, NS, Version string
	Protocol                int
	Draining                bool
	// Capacity is how many calls run at once; InFlight do, Waiting wait for a slot.
	Capacity, InFlight, Waiting int
	// Debt counts modules that run on although their call has ended.
	Debt int
	// Tombstones are kept now, TombstonesEvicted were dropped before their time.
	Tombstones        int
	TombstonesEvicted int64
	// Calls counts what was entered, refused calls apart.
	Calls int64
	// Refused counts what was answered without being entered, by code.
	Refused map[module.Code]int64
	// CancelsObeyed counts calls that a cancel notice found.
	CancelsObeyed int64
	// CreditStalls counts waits of a stream for its reader, CreditStalled sums them.
	CreditStalls  int64
	CreditStalled time.Duration
	// Modules are sorted by ID.
	Modules []ModuleStats
}

// ModuleStats is the part of [NodeStats] that one module has.
type ModuleStats struct {
	ModuleID          string
	InFlight, Waiting int
	// Calls counts calls that have ended, Errors those of them that failed, by code.
	Calls  int64
	Errors map[module.Code]int64
	// Latency is from a call's arrival to its end.
	Latency []LatencyBucket
}

// LatencyBucket counts the calls that took no longer than UpTo and longer than the
// bucket before. Buckets without calls are left out.
type LatencyBucket struct {
	UpTo  time.Duration
	Count int64
}

// Failed is the sum of Errors.
func (m *ModuleStats) Failed() int64 {
	var n int64
	for _, count := range m.Errors {
		n += count
	}
	return n
}

// Quantile is the time that a share of the calls took at most, q between 0 and 1;
// 0 for no calls. It is the upper end of a bucket.
func Quantile(buckets []LatencyBucket, q float64) time.Duration {
	var all int64
	for _, b := range buckets {
		all += b.Count
	}
	rank := max(int64(q*float64(all)+0.999999), 1)
	for _, b := range buckets {
		if rank -= b.Count; rank <= 0 {
			return b.UpTo
		}
	}
	return 0
}

// LatencySince is what later counts beyond earlier, both of one process and
// module; what does not fit together counts from later alone.
func LatencySince(later, earlier []LatencyBucket) []LatencyBucket {
	return mergeLatency(later, earlier, -1)
}

// LatencySum adds the counts of two processes.
func LatencySum(a, b []LatencyBucket) []LatencyBucket { return mergeLatency(a, b, 1) }

func mergeLatency(a, b []LatencyBucket, sign int64) []LatencyBucket {
	counts := make(map[time.Duration]int64, len(a))
	for _, bucket := range a {
		counts[bucket.UpTo] += bucket.Count
	}
	for _, bucket := range b {
		counts[bucket.UpTo] += sign * bucket.Count
		if counts[bucket.UpTo] < 0 {
			return a
		}
	}
	out := make([]LatencyBucket, 0, len(counts))
	for upTo, n := range counts {
		if n > 0 {
			out = append(out, LatencyBucket{upTo, n})
		}
	}
	slices.SortFunc(out, func(x, y LatencyBucket) int { return cmp.Compare(x.UpTo, y.UpTo) })
	return out
}

// Map returns the wire form. Latencies are pairs of microseconds and a count.
func (s *NodeStats) Map() map[string]any {
	m := map[string]any{
		"node": s.Node, "boot": s.Boot, "ns": s.NS, "version": s.Version, "protocol": int64(s.Protocol), "draining": s.Draining,
		"capacity": int64(s.Capacity), "in_flight": int64(s.InFlight), "waiting": int64(s.Waiting), "debt": int64(s.Debt),
		"tombstones": int64(s.Tombstones), "tombstones_evicted": s.TombstonesEvicted, "calls": s.Calls,
		"refused": countsMap(s.Refused), "cancels_obeyed": s.CancelsObeyed,
		"credit_stalls": s.CreditStalls, "credit_stalled_ms": s.CreditStalled.Milliseconds(),
	}
	modules := make([]any, len(s.Modules))
	for i := range s.Modules {
		modules[i] = s.Modules[i].Map()
	}
	m["modules"] = modules
	return m
}

// Map returns the wire form.
func (m *ModuleStats) Map() map[string]any {
	latency := make([]any, len(m.Latency))
	for i, b := range m.Latency {
		latency[i] = []any{b.UpTo.Microseconds(), b.Count}
	}
	return map[string]any{
		"module_id": m.ModuleID, "in_flight": int64(m.InFlight), "waiting": int64(m.Waiting),
		"calls": m.Calls, "errors": countsMap(m.Errors), "latency_us": latency,
	}
}

func countsMap(counts map[module.Code]int64) map[string]any {
	m := make(map[string]any, len(counts))
	for code, n := range counts {
		m[string(code)] = n
	}
	return m
}

// NodeStatsFromMap reads the body of an answering frame. A process of an older
// version tells of no modules.
func NodeStatsFromMap(m map[string]any) (*NodeStats, error) {
	return readNodeStats(&record{what: "stats", m: m})
}

// DecodeNodeStats reads a [NodeStats].
func DecodeNodeStats(body []byte, ct ContentType, lim Limits) (*NodeStats, error) {
	r, err := readRecord("stats", body, ct, lim)
	if err != nil {
		return nil, err
	}
	return readNodeStats(r)
}

const maxCount = 1<<63 - 1

func readNodeStats(r *record) (*NodeStats, error) {
	s := &NodeStats{
		Node: r.need("node"), Boot: r.text("boot"), NS: r.text("ns"), Version: r.text("version"),
		Protocol: r.count("protocol"), Draining: r.boolean("draining"),
		Capacity: r.count("capacity"), InFlight: r.count("in_flight"), Waiting: r.count("waiting"), Debt: r.count("debt"),
		Tombstones: r.count("tombstones"), TombstonesEvicted: r.integer("tombstones_evicted", 0, maxCount),
		Calls: r.integer("calls", 0, maxCount), Refused: r.counts("refused"),
		CancelsObeyed: r.integer("cancels_obeyed", 0, maxCount), CreditStalls: r.integer("credit_stalls", 0, maxCount),
		CreditStalled: time.Duration(r.integer("credit_stalled_ms", 0, maxMillis)) * time.Millisecond,
	}
	r.records("modules", func(item *record) {
		s.Modules = append(s.Modules, ModuleStats{
			ModuleID: item.need("module_id"), InFlight: item.count("in_flight"), Waiting: item.count("waiting"),
			Calls: item.integer("calls", 0, maxCount), Errors: item.counts("errors"), Latency: item.latency("latency_us"),
		})
	})
	return done(r, s)
}

// counts reads counts by code.
func (r *record) counts(key string) map[module.Code]int64 {
	switch v := r.m[key].(type) {
	case nil:
	case map[string]any:
		sub := &record{what: r.what + " " + key, m: v}
		out := make(map[module.Code]int64, len(v))
		for _, code := range slices.Sorted(maps.Keys(v)) {
			out[module.Code(code)] = sub.integer(code, 0, maxCount)
		}
		if sub.err != nil {
			r.fail(key, "holds something else than counts")
		}
		if len(out) > 0 {
			return out
		}
	default:
		r.fail(key, "is not a map")
	}
	return nil
}

// latency reads pairs of microseconds and a count, in ascending order.
func (r *record) latency(key string) []LatencyBucket {
	var out []LatencyBucket
	var last int64 = -1
	for _, item := range r.list(key) {
		pair, _ := item.([]any)
		if len(pair) != 2 {
			r.fail(key, "has an item that is no pair")
			return nil
		}
		upTo, ok1 := pair[0].(int64)
		n, ok2 := pair[1].(int64)
		if !ok1 || !ok2 || upTo <= last || n < 0 || upTo > maxMillis*1000 {
			r.fail(key, "has a pair that is out of order or no count")
			return nil
		}
		out = append(out, LatencyBucket{time.Duration(upTo) * time.Microsecond, n})
		last = upTo
	}
	return out
}
