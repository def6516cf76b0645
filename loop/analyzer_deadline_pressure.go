package loop

import (
	"cmp"
	"context"
	"slices"
	"time"
	"unsafe"
)

// maxHops is how many calls of trees one pass looks at; beyond it samples trees.
const maxHops = 128 << 10

// maxHopNames is how many nested modules of one entry are told apart.
const maxHopNames = 256

// deadlinePressure finds trees of calls whose inner calls begin when hardly any time
// is left.
type deadlinePressure struct{}

func (deadlinePressure) Manifest() Manifest {
	return Manifest{
		ID: "exec.deadline_pressure/1", Title: "Deadline pressure", Cadence: "batch", DefaultOn: true,
		Description: "Nested calls that start with little of their caller's time left.",
		Types:       []Type{TypeCall},
		Params: []Param{
			intParam("min_count", 30, 1, 1_000_000, "how many such calls at least"),
			ratioParam("min_share", 0.25, "in which share of the nested calls"),
			ratioParam("left", 0.1, "which share of the caller's time counts as little"),
			windowParam(day),
		},
		Templates: map[string]string{
			"exec.deadline_pressure": "{count} nested calls under {entry} ({percent} %) began with less than {left} % of their caller's time; slowest hops: {hops}",
		},
	}
}

func (deadlinePressure) Begin(in Input) Pass {
	p := in.Params
	return &deadlinePass{
		w: windowOf(in.Now, p.Duration("window_ms")), minCount: int(p.Int("min_count")),
		minShare: p.Float("min_share"), left: p.Float("left"),
		// One more than there can be: trees are sampled by how many calls they hold.
		trees: newTable[tree](maxHops + 1), entries: newTable[entryCell](maxCells / 4),
	}
}

// tree is what is known of the calls of one trace.
type tree struct {
	calls  []treeCall
	nested []nested
}

// treeCall is how much time a call had, in ms, by its chain.
type treeCall struct {
	chain  uint64
	budget int64
}

type nested struct {
	caller uint64 // chain of the caller
	budget int64
	entry  string
	cited  cited
}

type entryCell struct {
	nested, late int
	sample       sample
	hops         table[hop]
}

type hop struct {
	n     int
	total time.Duration
}

type deadlinePass struct {
	w              window
	minCount       int
	minShare, left float64
	trees          table[tree]
	entries        table[entryCell]
	names          names
	held           int
	key            []byte
}

func (p *deadlinePass) Since() time.Time { return p.w.since() }

func (p *deadlinePass) Add(r *Record) {
	e := r.Evidence
	if !p.w.holds(r) || e.Budget <= 0 || len(e.CallChain) == 0 || e.TraceID == "" {
		return
	}
	p.hop(r)
	p.key = joinKey(p.key[:0], e.TraceID)
	t := p.trees.at(p.key)
	if t == nil {
		return
	}
	t.calls = append(t.calls, treeCall{digestText(e.CallChain...), e.Budget.Milliseconds()})
	var s sample
	if n := len(e.CallChain); n > 1 {
		if s.add(r); len(s.list) > 0 {
			t.nested = append(t.nested, nested{digestText(e.CallChain[:n-1]...), e.Budget.Milliseconds(), p.names.of(e.CallChain[0]), s.list[0]})
		}
	}
	p.held++
	p.bound()
}

// bound halves the trees as often as they hold too many calls.
func (p *deadlinePass) bound() {
	for ; p.held > maxHops; p.count() {
		p.trees.halve()
	}
}

func (p *deadlinePass) cuts() []int64 { return p.w.cuts() }

func (p *deadlinePass) merge(o mergeable) {
	with := o.(*deadlinePass)
	halved := p.trees.halved
	p.trees.merge(&with.trees, func(t, o *tree) {
		t.calls, t.nested = append(t.calls, o.calls...), append(t.nested, o.nested...)
		p.held += len(o.calls)
	})
	if p.trees.halved != halved {
		p.count()
	}
	p.bound()
	p.entries.merge(&with.entries, func(c, o *entryCell) {
		if c.hops.cells == nil {
			c.hops = newTable[hop](maxHopNames)
		}
		c.hops.merge(&o.hops, func(h, o *hop) { h.n, h.total = h.n+o.n, h.total+o.total })
	})
}

func (p *deadlinePass) settle() int {
	return p.trees.settle(func(t *tree) int {
		t.calls, t.nested = slices.Clip(t.calls), slices.Clip(t.nested)
		return len(t.calls)*int(unsafe.Sizeof(treeCall{})) + len(t.nested)*int(unsafe.Sizeof(nested{}))
	}) + p.entries.settle(func(c *entryCell) int { return c.hops.settle(nil) })
}

// count is how many calls the trees hold.
func (p *deadlinePass) count() {
	p.held = 0
	for _, t := range p.trees.cells {
		p.held += len(t.calls)
	}
}

// hop counts the time of one call for its entry module.
func (p *deadlinePass) hop(r *Record) {
	e := r.Evidence
	c := p.entries.at([]byte(e.CallChain[0]))
	if c == nil || len(e.CallChain) < 2 {
		return
	}
	if c.hops.cells == nil {
		c.hops = newTable[hop](maxHopNames)
	}
	if h := c.hops.at([]byte(e.ModuleID)); h != nil {
		h.n++
		h.total += e.Duration
	}
}

func (p *deadlinePass) Drafts(context.Context) ([]Draft, error) {
	for _, trace := range p.trees.sorted() {
		t := p.trees.cells[trace]
		had := map[uint64]int64{} // the most time that a call of a chain had
		for _, c := range t.calls {
			had[c.chain] = max(had[c.chain], c.budget)
		}
		for i := range t.nested {
			n := &t.nested[i]
			had := had[n.caller]
			c := p.entries.cells[n.entry]
			if had == 0 || c == nil {
				continue
			}
			c.nested++
			if float64(n.budget) < p.left*float64(had) {
				c.late++
				c.sample.take(n.cited)
			}
		}
	}
	var drafts []Draft
	for _, entry := range p.entries.sorted() {
		c := p.entries.cells[entry]
		count := c.late * p.trees.scale()
		if c.late == 0 || count < p.minCount || float64(c.late)/float64(c.nested) < p.minShare {
			continue
		}
		drafts = append(drafts, Draft{
			Target: "host:deadline/" + targetName(entry), Action: ActionFlag, Severity: SeverityMedium,
			Summary: Summary{"exec.deadline_pressure", map[string]any{
				"count": int64(count), "entry": shown(entry), "percent": percent(float64(c.late) / float64(c.nested)),
				"left": percent(p.left), "hops": c.slowest(),
			}},
			Evidence: c.sample.hashes(), EvidenceQuery: queryOf("call", "", "", p.w),
			Confidence: 0.7, Importance: 0.5,
		})
	}
	return ordered(drafts), nil
}

// slowest names the three nested modules that took longest on average.
func (c *entryCell) slowest() []string {
	names := c.hops.sorted()
	mean := func(name string) time.Duration { h := c.hops.cells[name]; return h.total / time.Duration(h.n) }
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(mean(b), mean(a)) })
	var out []string
	for _, n := range names[:min(len(names), 3)] {
		out = append(out, shown(n)+" "+mean(n).Round(time.Millisecond).String())
	}
	return out
}
