package loop

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
)

// maxHops is how many calls of trees one pass looks at; beyond it samples trees.
const maxHops = 128 << 10

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
		trees: newTable[tree](maxHops / 2), entries: newTable[entryCell](maxCells / 4),
	}
}

// tree is what is known of the calls of one trace.
type tree struct {
	n       int              // calls
	budgets map[uint64]int64 // by chain: the most time a call of it had, in ms
	nested  []nested
}

type nested struct {
	caller uint64 // chain of the caller
	budget int64
	entry  string
	cited  sample
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
	names          map[string]string
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
	if t.budgets == nil {
		t.budgets = map[uint64]int64{}
	}
	t.n++
	chain := digestText(e.CallChain...)
	t.budgets[chain] = max(t.budgets[chain], e.Budget.Milliseconds())
	if n := len(e.CallChain); n > 1 {
		item := nested{caller: digestText(e.CallChain[:n-1]...), budget: e.Budget.Milliseconds(), entry: p.name(e.CallChain[0])}
		item.cited.add(r)
		t.nested = append(t.nested, item)
	}
	for p.held++; p.held > maxHops; p.count() {
		p.trees.halve()
	}
}

// count is how many calls the trees hold.
func (p *deadlinePass) count() {
	p.held = 0
	for _, t := range p.trees.cells {
		p.held += t.n
	}
}

// name is one copy of a name, however often it is kept.
func (p *deadlinePass) name(s string) string {
	if n, ok := p.names[s]; ok {
		return n
	}
	if p.names == nil || len(p.names) > maxCells {
		p.names = map[string]string{}
	}
	n := strings.Clone(s)
	p.names[n] = n
	return n
}

// hop counts the time of one call for its entry module.
func (p *deadlinePass) hop(r *Record) {
	e := r.Evidence
	c := p.entries.at([]byte(e.CallChain[0]))
	if c == nil || len(e.CallChain) < 2 {
		return
	}
	if c.hops.cells == nil {
		c.hops = newTable[hop](256)
	}
	if h := c.hops.at([]byte(e.ModuleID)); h != nil {
		h.n++
		h.total += e.Duration
	}
}

func (p *deadlinePass) Drafts(context.Context) ([]Draft, error) {
	for _, trace := range p.trees.sorted() {
		t := p.trees.cells[trace]
		for i := range t.nested {
			n := &t.nested[i]
			had := t.budgets[n.caller]
			c := p.entries.cells[n.entry]
			if had == 0 || c == nil {
				continue
			}
			c.nested++
			if float64(n.budget) < p.left*float64(had) {
				c.late++
				c.sample.merge(&n.cited)
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
