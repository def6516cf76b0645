package loop

import (
	"context"
	"strings"
	"time"

	"github.com/apbus/apbus/module"
)

// callGraph finds trees of calls that go in circles, too deep or too often.
type callGraph struct{}

func (callGraph) Manifest() Manifest {
	return Manifest{
		ID: "exec.call_graph/1", Title: "Call graphs", Cadence: "fast", DefaultOn: true,
		Description: "Calls that the guard stopped: circles, too deep a chain, too many of one kind.",
		Types:       []Type{TypeCall, TypeStream},
		Params: []Param{
			intParam("min_circles", 2, 1, 1000, "how often one circle or deep chain"),
			intParam("min_frequent", 10, 1, 10_000, "how often too frequent calls"),
			durationParam("frequent_ms", time.Hour, "within which time, for those"),
			windowParam(7 * day),
		},
		Templates: map[string]string{
			"exec.call_circle":   "Calls under {root} were stopped {count} times with {code}: {chain}",
			"exec.call_frequent": "Calls under {root} were stopped {count} times within {span} for being too many",
		},
	}
}

func (callGraph) Begin(in Input) Pass {
	p := in.Params
	span := p.Duration("frequent_ms")
	return &graphPass{
		w: windowOf(in.Now, p.Duration("window_ms")), recent: windowOf(in.Now, span), span: span,
		circles: int(p.Int("min_circles")), frequent: int(p.Int("min_frequent")),
		chains: newTable[graphCell](maxCells), roots: newTable[graphCell](maxCells),
	}
}

type graphCell struct {
	n      int
	sample sample
}

type graphPass struct {
	w, recent         window
	span              time.Duration
	circles, frequent int
	chains            table[graphCell] // root, code, chain
	roots             table[graphCell]
	key               []byte
}

func (p *graphPass) Since() time.Time {
	if p.recent.from < p.w.from {
		return p.recent.since()
	}
	return p.w.since()
}

func (p *graphPass) Add(r *Record) {
	e := r.Evidence
	if e.Origin != "" || len(e.CallChain) == 0 {
		return
	}
	var c *graphCell
	switch e.Code {
	case module.CodeCircularCall, module.CodeCallDepthExceeded:
		if p.w.holds(r) {
			p.key = joinKey(p.key[:0], e.CallChain[0], string(e.Code), chainSignature(e.CallChain))
			c = p.chains.at(p.key)
		}
	case module.CodeCallFrequencyExceeded:
		if p.recent.holds(r) {
			c = p.roots.at([]byte(e.CallChain[0]))
		}
	}
	if c != nil {
		c.n++
		c.sample.add(r)
	}
}

// chainSignature is the modules of a chain in the order in which they first appear,
// so that a circle is the same however often it was run through.
func chainSignature(chain []string) string {
	var names []string
	for _, id := range chain {
		if !has(names, id) && len(names) < maxListed {
			names = append(names, id)
		}
	}
	return strings.Join(names, " → ")
}

func (p *graphPass) cuts() []int64 { return append(p.w.cuts(), p.recent.cuts()...) }

func (p *graphPass) merge(o mergeable) {
	with := o.(*graphPass)
	p.chains.merge(&with.chains, (*graphCell).merge)
	p.roots.merge(&with.roots, (*graphCell).merge)
}

func (c *graphCell) merge(o *graphCell) {
	c.n += o.n
	c.sample.merge(&o.sample)
}

func (p *graphPass) settle() int {
	inner := func(c *graphCell) int { return c.sample.settle() }
	return p.chains.settle(inner) + p.roots.settle(inner)
}

func (p *graphPass) Drafts(context.Context) ([]Draft, error) {
	var drafts []Draft
	add := func(root string, c *graphCell, code module.Code, s Summary) {
		drafts = append(drafts, Draft{
			Target: "host:callgraph/" + targetName(root), Action: ActionFlag, Severity: SeverityMedium, Summary: s,
			Evidence: c.sample.hashes(), EvidenceQuery: queryOf("call,stream", "", string(code), p.w), Confidence: 0.9, Importance: 0.5,
		})
	}
	for _, key := range p.chains.sorted() {
		c := p.chains.cells[key]
		if c.n < p.circles {
			continue
		}
		parts := strings.SplitN(key, string(rune(unitSeparator)), 3)
		add(parts[0], c, module.Code(parts[1]), Summary{"exec.call_circle", map[string]any{
			"root": shown(parts[0]), "count": int64(c.n), "code": parts[1], "chain": shown(parts[2]),
		}})
	}
	for _, root := range p.roots.sorted() {
		if c := p.roots.cells[root]; c.n >= p.frequent {
			add(root, c, module.CodeCallFrequencyExceeded, Summary{"exec.call_frequent", map[string]any{
				"root": shown(root), "count": int64(c.n), "span": p.span.String(),
			}})
		}
	}
	return ordered(drafts), nil
}
