package loop

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/apbus/apbus/module"
)

// unknownModule finds names that are called though nothing is there.
type unknownModule struct{}

func (unknownModule) Manifest() Manifest {
	return Manifest{
		ID: "exec.unknown_module/1", Title: "Unknown modules", Cadence: "fast", DefaultOn: true,
		Description: "Calls of a name that no module has.",
		Types:       []Type{TypeCall, TypeStream, TypeModule},
		Params: []Param{
			intParam("min_count", 3, 1, 1000, "how often at least"),
			ratioParam("min_share", 0.8, "which share of the calls of that name"),
			intParam("max_distance", 2, 0, 5, "how many letters a hint may differ"),
			windowParam(7 * day),
		},
		Templates: map[string]string{
			"exec.unknown_module":      "Module {module} was called {count} times and does not exist",
			"exec.unknown_module_near": "Module {module} was called {count} times and does not exist; near it: {near}",
		},
	}
}

func (unknownModule) Begin(in Input) Pass {
	p := in.Params
	return &unknownPass{
		w: windowOf(in.Now, p.Duration("window_ms")), minCount: int(p.Int("min_count")),
		minShare: p.Float("min_share"), distance: int(p.Int("max_distance")),
		called: newTable[unknownCell](maxCells), known: newTable[struct{}](maxCells),
	}
}

type unknownCell struct {
	missed, found int
	sample        sample
}

type unknownPass struct {
	w        window
	minCount int
	minShare float64
	distance int
	called   table[unknownCell]
	known    table[struct{}]
	key      []byte
}

func (p *unknownPass) Since() time.Time { return p.w.since() }

func (p *unknownPass) Add(r *Record) {
	if r.Type == TypeModule {
		p.known.at([]byte(r.Text("module_id")))
		return
	}
	e := r.Evidence
	if !p.w.holds(r) || e.Origin != "" {
		return
	}
	p.key = joinKey(p.key[:0], e.ModuleID)
	c := p.called.at(p.key)
	switch {
	case c == nil:
	case e.Code == module.CodeModuleNotFound:
		c.missed++
		c.sample.add(r)
	default:
		c.found++
	}
}

func (p *unknownPass) cuts() []int64 { return p.w.cuts() }

func (p *unknownPass) merge(o mergeable) {
	p.called.merge(&o.(*unknownPass).called, func(c, o *unknownCell) {
		c.missed, c.found = c.missed+o.missed, c.found+o.found
		c.sample.merge(&o.sample)
	})
}

func (p *unknownPass) settle() int {
	return p.called.settle(func(c *unknownCell) int { return c.sample.settle() })
}

func (p *unknownPass) Drafts(context.Context) ([]Draft, error) {
	known := p.known.sorted()
	var drafts []Draft
	for _, id := range p.called.sorted() {
		c := p.called.cells[id]
		_, exists := p.known.cells[id]
		if exists || c.missed < p.minCount || float64(c.missed)/float64(c.missed+c.found) < p.minShare {
			continue
		}
		s := Summary{"exec.unknown_module", map[string]any{"module": shown(id), "count": int64(c.missed)}}
		near := nearest(id, known, p.distance)
		if len(near) > 0 {
			s.TemplateID, s.Args["near"] = "exec.unknown_module_near", listed(near)
		}
		drafts = append(drafts, Draft{
			Target: "entity:coverage/" + targetName(id), Action: ActionFlag, Severity: SeverityMedium, Summary: s,
			Evidence: c.sample.hashes(), EvidenceQuery: queryOf("call,stream", id, string(module.CodeModuleNotFound), p.w),
			Confidence: 0.8, Importance: 0.5,
		})
	}
	return ordered(drafts), nil
}

// nearest lists names within an edit distance, the nearest first, at most three.
func nearest(id string, names []string, limit int) []string {
	type match struct {
		name string
		d    int
	}
	var found []match
	for _, n := range names {
		if d := editDistance(id, n, limit); d <= limit {
			found = append(found, match{n, d})
		}
	}
	slices.SortFunc(found, func(a, b match) int { return cmp.Or(cmp.Compare(a.d, b.d), cmp.Compare(a.name, b.name)) })
	var out []string
	for _, m := range found[:min(len(found), 3)] {
		out = append(out, m.name)
	}
	return out
}

// editDistance counts the letters to add, take or replace; beyond limit it may give
// any number above it.
func editDistance(a, b string, limit int) int {
	if len(a)-len(b) > limit || len(b)-len(a) > limit || len(a) > maxTargetName || len(b) > maxTargetName {
		return limit + 1
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		least := row[0]
		for j := range len(b) {
			d := diagonal
			if a[i] != b[j] {
				d++
			}
			diagonal = row[j+1]
			row[j+1] = min(d, diagonal+1, row[j]+1)
			least = min(least, row[j+1])
		}
		if least > limit {
			return limit + 1
		}
	}
	return row[len(b)]
}
