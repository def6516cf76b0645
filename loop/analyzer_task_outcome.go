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
		tasks: newTable[taskCell](maxTasks),
	}
}

// taskCell is the last attempt of one task.
type taskCell struct {
	attempt int
	last    cited
	outcome string
	code    string
	module  string
}

type taskModule struct {
	ended, failed int
	codes         tally
	sample        sample
}

type taskPass struct {
	w        window
	span     time.Duration
	minCount int
	minShare float64
	tasks    table[taskCell]
	names    names
	key      []byte
}

func (p *taskPass) Since() time.Time { return p.w.since() }

func (p *taskPass) Add(r *Record) {
	e := r.Evidence
	if !p.w.holds(r) || e.TaskID == "" {
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
	if t.before(e.TaskAttempt, s.list[0]) {
		*t = taskCell{e.TaskAttempt, s.list[0], p.names.of(e.Outcome), p.names.of(string(e.Code)), p.names.of(e.ModuleID)}
	}
}

// before reports whether an attempt comes after the one in the cell.
func (t *taskCell) before(attempt int, at cited) bool {
	return t.last == cited{} || attempt > t.attempt || attempt == t.attempt && compareCited(at, t.last) < 0
}

func (p *taskPass) cuts() []int64 { return p.w.cuts() }

func (p *taskPass) merge(o mergeable) {
	p.tasks.merge(&o.(*taskPass).tasks, func(t, o *taskCell) {
		if t.before(o.attempt, o.last) {
			*t = *o
		}
	})
}

func (p *taskPass) settle() int { return p.tasks.settle(nil) }

func (p *taskPass) Drafts(context.Context) ([]Draft, error) {
	modules := newTable[taskModule](maxCells / 4)
	for _, t := range p.tasks.cells {
		if t.last == (cited{}) || t.outcome == contextwire.OutcomeCancelled || t.outcome == contextwire.OutcomePending {
			continue
		}
		m := modules.at([]byte(t.module))
		if m == nil {
			continue
		}
		if m.ended++; t.outcome != contextwire.OutcomeOK {
			m.failed++
			m.codes.add(t.code)
			m.sample.take(t.last)
		}
	}
	var drafts []Draft
	scale := p.tasks.scale()
	for _, id := range modules.sorted() {
		m := modules.cells[id]
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
