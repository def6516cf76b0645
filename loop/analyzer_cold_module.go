package loop

import (
	"context"
	"time"
)

// coldModule finds modules that nobody calls. It says so only when the evidence
// goes back far enough to know.
type coldModule struct{}

func (coldModule) Manifest() Manifest {
	return Manifest{
		ID: "exec.cold_module/1", Title: "Cold modules", Cadence: "slow", DefaultOn: true,
		Description: "A module that is registered for long and was never called in that time.",
		Types:       []Type{TypeModule, TypeCall, TypeStream, TypeTask},
		Params:      []Param{windowParam(30 * day)},
		Templates: map[string]string{
			"exec.cold_module": "Module {module} is registered since {since} and was not called for {days} days",
		},
	}
}

func (coldModule) Begin(in Input) Pass {
	d := in.Params.Duration("window_ms")
	return &coldPass{w: windowOf(in.Now, d), days: int64(d / day), modules: newTable[coldCell](maxCells), called: newTable[struct{}](maxCells)}
}

type coldCell struct {
	since  int64
	spared bool
	cited  sample
}

type coldPass struct {
	w       window
	days    int64
	oldest  int64
	modules table[coldCell]
	called  table[struct{}]
}

// Since is a day before the window, so that older evidence shows that the window is
// covered.
func (p *coldPass) Since() time.Time { return p.w.since().Add(-day) }

func (p *coldPass) Add(r *Record) {
	if r.Evidence != nil {
		if r.CreatedAtMS >= p.Since().UnixMilli() && (p.oldest == 0 || r.CreatedAtMS < p.oldest) {
			p.oldest = r.CreatedAtMS
		}
		if p.w.holds(r) {
			p.called.at([]byte(r.Evidence.ModuleID))
		}
		return
	}
	id, since := r.Text("module_id"), r.Int("since_ms")
	if id == "" || since <= 0 {
		return
	}
	c := p.modules.at([]byte(id))
	if c == nil {
		return
	}
	if c.since == 0 || since < c.since {
		c.since = since
	}
	c.spared = c.spared || r.Bool("system") || r.Bool("gate")
	c.cited.add(r)
}

func (p *coldPass) cuts() []int64 { return append(p.w.cuts(), p.Since().UnixMilli()) }

func (p *coldPass) merge(o mergeable) {
	with := o.(*coldPass)
	if p.oldest == 0 || with.oldest != 0 && with.oldest < p.oldest {
		p.oldest = with.oldest
	}
	p.called.merge(&with.called, func(_, _ *struct{}) {})
}

func (p *coldPass) settle() int { return p.called.settle(nil) }

func (p *coldPass) Drafts(context.Context) ([]Draft, error) {
	if p.oldest == 0 || p.oldest > p.w.from || p.called.halved > 0 {
		return nil, nil // it cannot be known
	}
	var drafts []Draft
	for _, id := range p.modules.sorted() {
		c := p.modules.cells[id]
		if _, called := p.called.cells[id]; called || c.spared || c.since > p.w.from {
			continue
		}
		drafts = append(drafts, Draft{
			Target: "host:module/" + targetName(id), Action: ActionFlag, Severity: SeverityLow,
			Summary:  Summary{"exec.cold_module", map[string]any{"module": shown(id), "since": dateOf(c.since), "days": p.days}},
			Evidence: c.cited.hashes(), Confidence: 0.8, Importance: 0.2,
		})
	}
	return ordered(drafts), nil
}
