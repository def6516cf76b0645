package loop

import (
	"context"
	"time"

	"github.com/apbus/apbus/contextwire"
)

// skillStall finds skills that do not help: while they were in force the calls of the
// modules they name mostly failed.
type skillStall struct{}

func (skillStall) Manifest() Manifest {
	return Manifest{
		ID: "exec.skill_stall/1", Title: "Stalled skills", Cadence: "slow", DefaultOn: true,
		Description: "A skill while which was in force the calls it is about mostly failed.",
		Types:       []Type{TypeSkill, TypeCall, TypeStream},
		Params: []Param{
			intParam("min_uses", 5, 1, 10_000, "how many uses at least"),
			ratioParam("max_success", 0.4, "up to which share of them succeed"),
			windowParam(30 * day),
		},
		Templates: map[string]string{
			"exec.skill_stall": "Of {count} calls while the skill {skill} was in force, {percent} % succeeded",
		},
	}
}

func (skillStall) Begin(in Input) Pass {
	p := in.Params
	return &stallPass{
		w: windowOf(in.Now, p.Duration("window_ms")), minUses: int(p.Int("min_uses")), maxSuccess: p.Float("max_success"),
		skills: newTable[skillCell](maxCells / 4), uses: newTable[skillUse](maxCells),
	}
}

type skillCell struct {
	name  string
	cited sample
}

type skillUse struct {
	ok, failed int
	sample     sample
}

type stallPass struct {
	w          window
	minUses    int
	maxSuccess float64
	skills     table[skillCell] // by hash
	uses       table[skillUse]  // by the hash of what was in force
}

func (p *stallPass) Since() time.Time { return p.w.since() }

func (p *stallPass) Add(r *Record) {
	if r.Type == TypeSkill {
		if !r.Live() {
			return
		}
		if c := p.skills.at([]byte(r.Hash)); c != nil {
			c.name = copied(r.Text("name"))
			c.cited.add(r)
		}
		return
	}
	e := r.Evidence
	failed := Failed(e.Outcome)
	if len(e.Guidance) == 0 || e.MadeHere || !p.w.holds(r) || (!failed && e.Outcome != contextwire.OutcomeOK) {
		return
	}
	for i, ref := range e.Guidance {
		if has(e.Guidance[:i], ref) {
			continue
		}
		if u := p.uses.at([]byte(ref)); u != nil {
			if !failed {
				u.ok++
				continue
			}
			u.failed++
			u.sample.add(r)
		}
	}
}

func (p *stallPass) cuts() []int64 { return p.w.cuts() }

func (p *stallPass) merge(o mergeable) {
	p.uses.merge(&o.(*stallPass).uses, func(u, o *skillUse) {
		u.ok, u.failed = u.ok+o.ok, u.failed+o.failed
		u.sample.merge(&o.sample)
	})
}

func (p *stallPass) settle() int {
	return p.uses.settle(func(u *skillUse) int { return u.sample.settle() })
}

func (p *stallPass) Drafts(context.Context) ([]Draft, error) {
	var drafts []Draft
	for _, hash := range p.skills.sorted() {
		c, u := p.skills.cells[hash], p.uses.cells[hash]
		if u == nil {
			continue
		}
		n := u.ok + u.failed
		share := float64(u.ok) / float64(n)
		if n < p.minUses || share > p.maxSuccess {
			continue
		}
		u.sample.merge(&c.cited)
		drafts = append(drafts, Draft{
			Target: "entity:skills/" + targetName(c.name), Action: ActionFlag, Severity: SeverityMedium,
			Summary:  Summary{"exec.skill_stall", map[string]any{"count": int64(n), "skill": shown(c.name), "percent": percent(share)}},
			Evidence: u.sample.hashes(), Confidence: 0.8, Importance: 0.4,
		})
	}
	return ordered(drafts), nil
}
