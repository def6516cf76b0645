package main

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/apbus/apbus/contextwire"
)

// glance is what all nodes said at one time.
type glance struct {
	at    time.Time
	nodes []contextwire.NodeStats
}

// topView is what happened between two glances.
type topView struct {
	at            time.Time
	over          time.Duration
	nodes         []topNode
	modules       []topModule
	left          int     // modules that are not shown
	calls, errors float64 // a second, in all
}

type topNode struct {
	stats                  contextwire.NodeStats
	calls, errors, refused float64 // a second
}

// topModule is a module over all nodes.
type topModule struct {
	id                string
	hosts             int
	inFlight, waiting int
	calls, errors     float64 // a second
	latency           []contextwire.LatencyBucket
}

// viewOf compares two glances, process by process: counts of a process that was not
// there before say nothing about the time between.
func viewOf(before, now glance) *topView {
	v := &topView{at: now.at, over: now.at.Sub(before.at)}
	seconds := max(v.over.Seconds(), 1e-3)
	modules := map[string]*topModule{}
	for _, n := range now.nodes {
		old := earlier(before.nodes, n)
		if old == nil {
			old = &n
		}
		row := topNode{stats: n, refused: float64(sum(n.Refused)-sum(old.Refused)) / seconds}
		for _, m := range n.Modules {
			t := modules[m.ModuleID]
			if t == nil {
				t = &topModule{id: m.ModuleID}
				modules[m.ModuleID] = t
			}
			t.hosts++
			t.inFlight += m.InFlight
			t.waiting += m.Waiting
			was := moduleOf(old, m.ModuleID)
			calls, errors := float64(m.Calls-was.Calls)/seconds, float64(m.Failed()-was.Failed())/seconds
			t.calls += calls
			t.errors += errors
			row.calls += calls
			row.errors += errors
			t.latency = contextwire.LatencySum(t.latency, contextwire.LatencySince(m.Latency, was.Latency))
		}
		v.calls += row.calls
		v.errors += row.errors
		v.nodes = append(v.nodes, row)
	}
	for _, t := range modules {
		v.modules = append(v.modules, *t)
	}
	slices.SortFunc(v.modules, func(a, b topModule) int {
		return cmp.Or(cmp.Compare(b.calls, a.calls), cmp.Compare(b.inFlight+b.waiting, a.inFlight+a.waiting), cmp.Compare(a.id, b.id))
	})
	return v
}

// earlier finds the same process in an earlier glance.
func earlier(nodes []contextwire.NodeStats, n contextwire.NodeStats) *contextwire.NodeStats {
	for i := range nodes {
		if nodes[i].Node == n.Node && nodes[i].Boot == n.Boot {
			return &nodes[i]
		}
	}
	return nil
}

// moduleOf finds a module of a process; one that was not there has counted nothing.
func moduleOf(n *contextwire.NodeStats, id string) contextwire.ModuleStats {
	for _, m := range n.Modules {
		if m.ModuleID == id {
			return m
		}
	}
	return contextwire.ModuleStats{}
}

func sum[K comparable](counts map[K]int64) int64 {
	var n int64
	for _, c := range counts {
		n += c
	}
	return n
}

// document is the view for programs: rates a second, latencies in milliseconds,
// null without calls.
func (v *topView) document() map[string]any {
	nodes := make([]any, len(v.nodes))
	for i, n := range v.nodes {
		nodes[i] = map[string]any{
			"node": n.stats.Node, "boot": n.stats.Boot, "draining": n.stats.Draining,
			"capacity": int64(n.stats.Capacity), "in_flight": int64(n.stats.InFlight), "backlog": int64(n.stats.Waiting), "debt": int64(n.stats.Debt),
			"calls_per_s": rounded(n.calls), "errors_per_s": rounded(n.errors), "refused_per_s": rounded(n.refused),
		}
	}
	modules := make([]any, len(v.modules))
	for i, m := range v.modules {
		modules[i] = map[string]any{
			"module_id": m.id, "nodes": int64(m.hosts), "in_flight": int64(m.inFlight), "backlog": int64(m.waiting),
			"calls_per_s": rounded(m.calls), "errors_per_s": rounded(m.errors),
			"p50_ms": millis(m.latency, .5), "p99_ms": millis(m.latency, .99),
		}
	}
	return map[string]any{
		"at": v.at.UTC().Format(time.RFC3339Nano), "interval_ms": v.over.Milliseconds(),
		"calls_per_s": rounded(v.calls), "errors_per_s": rounded(v.errors), "nodes": nodes, "modules": modules,
	}
}

func rounded(v float64) float64 { return math.Round(v*1000) / 1000 }

func millis(buckets []contextwire.LatencyBucket, q float64) any {
	if len(buckets) == 0 {
		return nil
	}
	return float64(contextwire.Quantile(buckets, q).Microseconds()) / 1000
}
