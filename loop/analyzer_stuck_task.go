package loop

import (
	"context"
	"time"

	"github.com/apbus/apbus/contextwire"
)

// stuckTask finds tasks that run far longer than others of their kind and show no
// progress.
type stuckTask struct{}

func (stuckTask) Manifest() Manifest {
	return Manifest{
		ID: "exec.stuck_task/1", Title: "Stuck tasks", Cadence: "fast", DefaultOn: true,
		Description: "A task that runs much longer than its like, without a sign of progress.",
		Types:       []Type{TypeRunning, TypeTask},
		Params: []Param{
			floatParam("factor", 3, 1, 100, "times the slowest twentieth of its kind"),
			durationParam("min_running_ms", 15*time.Minute, "how long it runs at least"),
			durationParam("silent_ms", 5*time.Minute, "for how long it has shown no progress"),
			windowParam(7 * day),
		},
		Templates: map[string]string{
			"exec.stuck_task": "Task {task} of {module} has run for {running} on {node}, without progress for {silent}; p95 of its kind is {p95}",
		},
	}
}

func (stuckTask) Begin(in Input) Pass {
	p := in.Params
	return &stuckPass{
		now: in.Now.UnixMilli(), w: windowOf(in.Now, p.Duration("window_ms")),
		factor: p.Float("factor"), least: p.Int("min_running_ms"), silent: p.Int("silent_ms"),
		modules: newTable[histogram](maxCells / 4), running: newTable[runningTask](maxCells),
	}
}

type runningTask struct {
	module, node, hash string
	started, progress  int64
}

type stuckPass struct {
	now           int64
	w             window
	factor        float64
	least, silent int64
	modules       table[histogram]
	running       table[runningTask]
}

func (p *stuckPass) Since() time.Time { return p.w.since() }

func (p *stuckPass) Add(r *Record) {
	if r.Type == TypeRunning {
		id, started := r.Text("task_id"), r.Int("started_ms")
		if id == "" || started <= 0 {
			return
		}
		if t := p.running.at([]byte(id)); t != nil && started >= t.started {
			*t = runningTask{copied(r.Text("module_id")), copied(r.Text("node")), copied(r.Hash), started, max(started, r.Int("progress_ms"))}
		}
		return
	}
	if e := r.Evidence; p.w.holds(r) && e.Outcome == contextwire.OutcomeOK {
		if h := p.modules.at([]byte(e.ModuleID)); h != nil {
			h.add(float64(e.Duration) / float64(time.Millisecond))
		}
	}
}

func (p *stuckPass) cuts() []int64 { return p.w.cuts() }

func (p *stuckPass) merge(o mergeable) {
	p.modules.merge(&o.(*stuckPass).modules, (*histogram).merge)
}

func (p *stuckPass) settle() int { return p.modules.settle((*histogram).settle) }

// copied is a copy of a text that does not hold on to the record around it.
func copied(s string) string { return string([]byte(s)) }

func (p *stuckPass) Drafts(context.Context) ([]Draft, error) {
	var drafts []Draft
	for _, id := range p.running.sorted() {
		t := p.running.cells[id]
		p95 := 0.0
		if h := p.modules.cells[t.module]; h != nil {
			p95 = h.quantile(0.95)
		}
		running, silent := p.now-t.started, p.now-t.progress
		if running <= p.least || float64(running) <= p.factor*p95 || silent < p.silent {
			continue
		}
		drafts = append(drafts, Draft{
			Target: "host:task/" + targetName(id), Action: ActionFlag, Severity: SeverityMedium,
			Summary: Summary{"exec.stuck_task", map[string]any{
				"task": shown(id), "module": shown(t.module), "node": shown(t.node),
				"running": millis(float64(running)), "silent": millis(float64(silent)), "p95": millis(p95),
			}},
			Evidence: []string{t.hash}, Confidence: 0.8, Importance: 0.5,
		})
	}
	return ordered(drafts), nil
}
