package loop

import (
	"context"
	"time"

	"github.com/apbus/apbus/contextwire"
)

// maxTasks is how many tasks one pass follows; beyond it samples them.
const maxTasks = 128 << 10

// taskOutcome finds kinds of tasks that mostly fail.
type taskOutcome struct{}

func (taskOutcome) Manifest() Manifest {
	return Manifest{
		ID: "exec.task_outcome/1", Title: "Task outcomes", Cadence: "fast", DefaultOn: true,
		Description: "Tasks of one module that end in failure more often than not.",
		Types:       []Type{TypeTask},
		Params: []Param{
			intParam("min_count", 5, 1, 10_000, "how many tasks that ended at least"),
			ratioParam("min_share", 0.5, "which share of them failed"),
			windowParam(7 * day),
		},
		Templates: map[string]string{
			"exec.task_outcome": "{failed} of {count} tasks of {module} failed ({percent} %), most with {code}",
		},
	}
}

func (taskOutcome) Begin(in Input) Pass {
	p := in.Params
	return &taskPass{
		w: windowOf(in.Now, p.Duration("window_ms")), span: p.Duration("window_ms"),
		minCount: int(p.Int("min_count")), minShare: p.Float("min_share"),
		tasks: newTable[taskCell](maxTasks), modules: newTable[taskModule](maxCells / 4),
	}
}

// taskCell is the last attempt of one task.
type taskCell struct {
	attempt int
	last    cited
	outcome string
	code    string
	module  *taskModule
}

// taskModule is shared by its tasks, so that their cells are small.
type taskModule struct {
	names         map[string]string // of outcomes and codes, one copy each
	ended, failed int
	codes         tally
	sample        sample
}

func (m *taskModule) name(s string) string {
	if n, ok := m.names[s]; ok {
		return n
	}
	if m.names == nil {
		m.names = map[string]string{}
	}
	if len(m.names) >= maxListed*10 {
		return "other"
	}
	n := string([]byte(s))
	m.names[n] = n
	return n
}

type taskPass struct {
	w        window
	span     time.Duration
	minCount int
	minShare float64
	tasks    table[taskCell]
	modules  table[taskModule]
	key      []byte
}

func (p *taskPass) Since() time.Time { return p.w.since() }

func (p *taskPass) Add(r *Record) {
	e := r.Evidence
	if !p.w.holds(r) || e.TaskID == "" {
		return
	}
	m := p.modules.at([]byte(e.ModuleID))
	if m == nil {
		return
	}
	p.key = joinKey(p.key[:0], e.TaskID)
	t := p.tasks.at(p.key)
	if t == nil {
		return
	}
	var s sample
	if s.add(r); len(s.list) == 0 {
		return
	}
	if t.module != nil && (e.TaskAttempt < t.attempt || (e.TaskAttempt == t.attempt && compareCited(s.list[0], t.last) >= 0)) {
		return
	}
	*t = taskCell{e.TaskAttempt, s.list[0], m.name(e.Outcome), m.name(string(e.Code)), m}
}

func (p *taskPass) Drafts(context.Context) ([]Draft, error) {
	for _, id := range p.tasks.sorted() {
		t := p.tasks.cells[id]
		switch {
		case t.module == nil || t.outcome == contextwire.OutcomeCancelled || t.outcome == contextwire.OutcomePending:
		case t.outcome == contextwire.OutcomeOK:
			t.module.ended++
		default:
			t.module.ended++
			t.module.failed++
			t.module.codes.add(t.code)
			t.module.sample.list = append(t.module.sample.list, t.last)
			if len(t.module.sample.list) >= 2*MaxDraftEvidence {
				t.module.sample.trim()
			}
		}
	}
	var drafts []Draft
	scale := p.tasks.scale()
	for _, id := range p.modules.sorted() {
		m := p.modules.cells[id]
		if m.ended == 0 {
			continue
		}
		share := float64(m.failed) / float64(m.ended)
		if m.ended*scale < p.minCount || share < p.minShare {
			continue
		}
		drafts = append(drafts, Draft{
			Target: "host:task/" + targetName(id), Action: ActionFlag, Severity: SeverityHigh,
			Summary: Summary{"exec.task_outcome", map[string]any{
				"module": shown(id), "failed": int64(m.failed * scale), "count": int64(m.ended * scale),
				"percent": percent(share), "code": shown(m.codes.dominant()),
			}},
			Evidence: m.sample.hashes(), EvidenceQuery: queryOf("task", id, "", p.w),
			Metric: &Metric{
				Kind: MetricTaskFailureRate, ModuleID: id, Baseline: share, N: m.ended * scale,
				Window: p.span, MinN: 20, MinEffect: 0.02,
			},
			Confidence: share, Importance: 0.6,
		})
	}
	return ordered(drafts), nil
}
