package loop

import (
	"context"
	"time"
)

// duplicateModule finds modules that look the same under two names.
type duplicateModule struct{}

func (duplicateModule) Manifest() Manifest {
	return Manifest{
		ID: "exec.duplicate_module/1", Title: "Duplicate modules", Cadence: "slow", DefaultOn: true,
		Description: "Two modules with equal schemas and nearly equal descriptions.",
		Types:       []Type{TypeModule},
		Params: []Param{
			ratioParam("jaccard", 0.9, "which share of the words of both descriptions is common"),
		},
		Templates: map[string]string{
			"exec.duplicate_module": "Module {module} has the schemas and the description of {other}",
		},
	}
}

func (duplicateModule) Begin(in Input) Pass {
	return &duplicatePass{now: in.Now, least: in.Params.Float("jaccard"), modules: newTable[duplicateCell](4096)}
}

type duplicateCell struct {
	digest, description string
	cited               sample
}

type duplicatePass struct {
	now     time.Time
	least   float64
	modules table[duplicateCell]
}

func (p *duplicatePass) Since() time.Time { return p.now }

func (p *duplicatePass) Add(r *Record) {
	id, digest := r.Text("module_id"), r.Text("digest")
	if id == "" || digest == "" || r.Bool("system") {
		return
	}
	c := p.modules.at([]byte(id))
	if c == nil {
		return
	}
	c.cited.add(r)
	// Of several hosts one form is compared, the same in any order.
	if description := Cap(r.Text("description"), 2000); digest > c.digest || (digest == c.digest && description > c.description) {
		c.digest, c.description = copied(digest), copied(description)
	}
}

func (p *duplicatePass) Drafts(context.Context) ([]Draft, error) {
	type first struct {
		id    string
		words map[string]bool
	}
	seen := map[string][]first{} // by digest
	var drafts []Draft
	for _, id := range p.modules.sorted() {
		c := p.modules.cells[id]
		own := words(c.description)
		other := ""
		for _, f := range seen[c.digest] {
			if jaccard(own, f.words) >= p.least {
				other = f.id
				break
			}
		}
		if other == "" {
			if len(seen[c.digest]) < maxListed {
				seen[c.digest] = append(seen[c.digest], first{id, own})
			}
			continue
		}
		evidence := p.modules.cells[other].cited
		c.cited.merge(&evidence)
		drafts = append(drafts, Draft{
			Target: "host:module/" + targetName(id), Action: ActionFlag, Severity: SeverityInfo,
			Summary:  Summary{"exec.duplicate_module", map[string]any{"module": shown(id), "other": shown(other)}},
			Evidence: c.cited.hashes(), Confidence: 0.7, Importance: 0.2,
		})
	}
	return ordered(drafts), nil
}
