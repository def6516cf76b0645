package loop

import (
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/apbus/apbus/contextwire"
)

// nodeSkew finds nodes on which a module fails far more often than on the others.
type nodeSkew struct{}

func (nodeSkew) Manifest() Manifest {
	return Manifest{
		ID: "exec.node_skew/1", Title: "Node skew", Cadence: "fast", DefaultOn: true,
		Description: "A module that fails more on one node than on the rest, by more than chance explains.",
		Types:       []Type{TypeCall, TypeStream},
		Params: []Param{
			floatParam("factor", 3, 1, 100, "times the failure rate of the rest"),
			intParam("min_calls", 20, 1, 1_000_000, "how many calls on either side"),
			intParam("min_failures", 5, 1, 1_000_000, "how many failures on the node"),
			floatParam("min_sigma", 3, 0, 10, "how many standard deviations the rates are apart"),
			windowParam(day),
		},
		Templates: map[string]string{
			"exec.node_skew": "Node {node} fails more than the others: {modules}",
		},
	}
}

func (nodeSkew) Begin(in Input) Pass {
	p := in.Params
	return &skewPass{
		w: windowOf(in.Now, p.Duration("window_ms")), factor: p.Float("factor"), sigma: p.Float("min_sigma"),
		minCalls: int(p.Int("min_calls")), minFailures: int(p.Int("min_failures")), cells: newTable[skewCell](maxCells),
	}
}

type skewCell struct {
	n, failed int
	sample    sample
}

type skewPass struct {
	w                     window
	factor, sigma         float64
	minCalls, minFailures int
	cells                 table[skewCell] // module, node
	key                   []byte
}

func (p *skewPass) Since() time.Time { return p.w.since() }

func (p *skewPass) Add(r *Record) {
	e := r.Evidence
	failed := ownFailure(e)
	if !p.w.holds(r) || e.Node == "" || e.MadeHere || (!failed && e.Outcome != contextwire.OutcomeOK) {
		return
	}
	p.key = joinKey(p.key[:0], e.ModuleID, e.Node)
	c := p.cells.at(p.key)
	if c == nil {
		return
	}
	if c.n++; failed {
		c.failed++
		c.sample.add(r)
	}
}

func (p *skewPass) cuts() []int64 { return p.w.cuts() }

func (p *skewPass) merge(o mergeable) {
	p.cells.merge(&o.(*skewPass).cells, func(c, o *skewCell) {
		c.n, c.failed = c.n+o.n, c.failed+o.failed
		c.sample.merge(&o.sample)
	})
}

func (p *skewPass) settle() int {
	return p.cells.settle(func(c *skewCell) int { return c.sample.settle() })
}

func (p *skewPass) Drafts(context.Context) ([]Draft, error) {
	keys := p.cells.sorted()
	all := map[string]*skewCell{}
	for _, key := range keys {
		id, _, _ := strings.Cut(key, string(rune(unitSeparator)))
		sum := all[id]
		if sum == nil {
			sum = &skewCell{}
			all[id] = sum
		}
		sum.n += p.cells.cells[key].n
		sum.failed += p.cells.cells[key].failed
	}
	type finding struct {
		modules tally
		sample  sample
	}
	found := map[string]*finding{}
	for _, key := range keys {
		c := p.cells.cells[key]
		id, node, _ := strings.Cut(key, string(rune(unitSeparator)))
		if !p.skewed(c, all[id]) {
			continue
		}
		f := found[node]
		if f == nil {
			f = &finding{modules: tally{}}
			found[node] = f
		}
		f.modules[id] = c.failed
		f.sample.merge(&c.sample)
	}
	var drafts []Draft
	for _, node := range slices.Sorted(maps.Keys(found)) {
		f := found[node]
		drafts = append(drafts, Draft{
			Target: "host:node/" + targetName(node), Action: ActionFlag, Severity: SeverityMedium,
			Summary:  Summary{"exec.node_skew", map[string]any{"node": shown(node), "modules": listed(f.modules.names())}},
			Evidence: f.sample.hashes(), EvidenceQuery: queryOf("call,stream", "", "", p.w), Confidence: 0.8, Importance: 0.5,
		})
	}
	return ordered(drafts), nil
}

// skewed compares a node with all the others: by the ratio of the rates, and by
// whether the difference is more than chance (two proportions, pooled).
func (p *skewPass) skewed(c, all *skewCell) bool {
	n, failed := all.n-c.n, all.failed-c.failed
	if c.n < p.minCalls || n < p.minCalls || c.failed < p.minFailures {
		return false
	}
	here, rest := float64(c.failed)/float64(c.n), float64(failed)/float64(n)
	pooled := float64(all.failed) / float64(all.n)
	deviation := math.Sqrt(pooled * (1 - pooled) * (1/float64(c.n) + 1/float64(n)))
	return here >= p.factor*rest && here-rest >= p.sigma*deviation
}
