package executor

import (
	"context"
	"time"

	"github.com/apbus/apbus/module"
)

// Trace is what happened to one call, step by step (protocol §12.2).
type Trace struct {
	ModuleID string
	Strategy string
	Steps    []StepTrace
	Duration time.Duration
	Success  bool
}

// StepTrace is one step of a [Trace]. SkipReason is no_match, remote (the
// owner runs it), error_ignored (the step ran, so Skipped is false), or empty for
// a step that was jumped over.
type StepTrace struct {
	Name          string
	Duration      time.Duration
	Result        *StepResult
	Skipped       bool
	SkipReason    string
	DecisionPoint bool
}

// CallWithTrace is [Executor.Call] that also tells what each step did. Errors,
// recovery and side effects are those of Call (decision D-19); the trace is never
// nil, and of a call that a middleware had run again it holds every run.
func (x *Executor) CallWithTrace(ctx context.Context, id string, inputs map[string]any, opts ...module.CallOption) (map[string]any, *Trace, error) {
	t := &Trace{ModuleID: id, Strategy: x.strategy.Name()}
	p := &Pipeline{x: x, moduleID: id, strategy: x.strategy, trace: t}
	for _, o := range opts {
		o(&p.opts)
	}
	started := time.Now()
	defer func() { t.Duration = time.Since(started) }()
	if err := p.admit(inputs); err != nil {
		return nil, t, err
	}
	p.parent = module.FromContext(ctx)
	defer x.enterRoot(p.parent)()
	out, err := p.run(ctx)
	t.Success = err == nil
	return out, t, err
}

// skipped and ran may be called on a nil Trace, which records nothing.
func (t *Trace) skipped(s *Step, reason string) {
	if t != nil {
		t.Steps = append(t.Steps, StepTrace{Name: s.Name, Skipped: true, SkipReason: reason})
	}
}

func (t *Trace) ran(s *Step, started time.Time, r *StepResult, reason string) {
	if t == nil {
		return
	}
	t.Steps = append(t.Steps, StepTrace{
		Name: s.Name, Duration: time.Since(started), Result: r, SkipReason: reason,
		DecisionPoint: r != nil && r.Confidence != nil,
	})
}
