package loop

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// fieldDuration is how long a run took, 0 when nobody measured it.
const fieldDuration = "duration_ms"

// OutcomeEvalset has what a model drafted measured, after it was applied, by the runs
// of an evalset over what is live (loop specification, sections 3.9 and 6). A draft is
// measured only if such a run was journaled before it was drafted.
type OutcomeEvalset struct {
	// Hash is that of the evalset, Field what counts of its runs: passed, failed,
	// duration_ms.
	Hash, Field    string
	HigherIsBetter bool
	// HighWater compares with the best run before the apply, not with the newest.
	HighWater bool
	// Checkpoints are when it is measured, each once; after 1, 7 and 30 days when empty.
	Checkpoints []Checkpoint
	// MinEffect is the change that counts, in the unit of the field, or, with Points, in
	// percentage points of the cases.
	MinEffect float64
	Points    bool
	// CostField, when not "", is what may rise to CostRatio times what it was before; a
	// change that holds and costs more is flagged.
	CostField string
	CostRatio float64
}

// Checkpoint is when an outcome is measured: some time, some runs of the evalset, or
// some records of evidence after the apply. One of the three is set.
type Checkpoint struct {
	AfterMS     int64 `json:"after_ms,omitempty"`
	AfterRuns   int   `json:"after_runs,omitempty"`
	AfterGrains int   `json:"after_grains,omitempty"`
}

func (c Checkpoint) compare(o Checkpoint) int {
	return cmp.Or(cmp.Compare(c.AfterMS, o.AfterMS), cmp.Compare(c.AfterRuns, o.AfterRuns), cmp.Compare(c.AfterGrains, o.AfterGrains))
}

func evalField(name string) bool {
	return name == "passed" || name == "failed" || name == fieldDuration
}

func (o *OutcomeEvalset) check() bool {
	for _, c := range o.Checkpoints {
		set := 0
		for _, n := range []int64{c.AfterMS, int64(c.AfterRuns), int64(c.AfterGrains)} {
			if n < 0 {
				return false
			}
			if n > 0 {
				set++
			}
		}
		if set != 1 {
			return false
		}
	}
	return len(o.Hash) == 64 && isHex(o.Hash) && evalField(o.Field) && len(o.Checkpoints) <= 16 && o.MinEffect >= 0 &&
		(o.CostField == "" || evalField(o.CostField) && o.CostRatio > 0) && !(o.Points && o.Field == fieldDuration)
}

// outcomeEvalset reads the block of a policy.
func (r *policyReader) outcomeEvalset(p *Policy) {
	r.sub("outcome_evalset", func(s *policyReader) {
		o := &OutcomeEvalset{}
		if _, given := s.m["higher_is_better"].(bool); !given {
			s.fail("higher_is_better", "is required")
		}
		take(s, "hash", &o.Hash)
		take(s, "field", &o.Field)
		take(s, "higher_is_better", &o.HigherIsBetter)
		baseline := "newest"
		if take(s, "baseline", &baseline); baseline != "newest" && baseline != "high_water" {
			s.fail("baseline", "is neither newest nor high_water")
		}
		o.HighWater = baseline == "high_water"
		var list []any
		take(s, "checkpoints", &list)
		for _, v := range list {
			o.Checkpoints = append(o.Checkpoints, s.checkpoint(v))
		}
		slices.SortFunc(o.Checkpoints, Checkpoint.compare)
		o.Checkpoints = slices.Compact(o.Checkpoints)
		s.sub("min_effect", func(e *policyReader) {
			_, count := e.m["count"]
			_, o.Points = e.m["points"]
			if count == o.Points {
				e.fail("min_effect", "has one of count and points")
			}
			e.float("count", &o.MinEffect)
			e.float("points", &o.MinEffect)
		})
		s.sub("cost", func(e *policyReader) {
			take(e, "field", &o.CostField)
			e.float("max_increase_ratio", &o.CostRatio)
			if o.CostField == "" {
				e.fail("field", "is required")
			}
		})
		p.OutcomeEvalset = o
	})
}

// checkpoint is a number of milliseconds, or one of after_ms, after_runs, after_grains.
func (r *policyReader) checkpoint(v any) (c Checkpoint) {
	switch v := v.(type) {
	case int64:
		c.AfterMS = v
	case map[string]any:
		s := &policyReader{m: v, path: r.path + ".checkpoints"}
		take(s, "after_ms", &c.AfterMS)
		s.number("after_runs", &c.AfterRuns)
		s.number("after_grains", &c.AfterGrains)
		if s.end(); r.err == nil {
			r.err = s.err
		}
	default:
		r.fail("checkpoints", "is no list of checkpoints")
	}
	return c
}

// float is a number, whole or not.
func (r *policyReader) float(key string, dst *float64) {
	switch v, _ := r.take(key); v := v.(type) {
	case nil:
	case int64:
		*dst = float64(v)
	case float64:
		*dst = v
	default:
		r.fail(key, "is no number")
	}
}

// metricEvalset is the name of the metric; the evalset and the field follow.
const metricEvalset = "evalset:"

// outcomeRuns are the journaled runs over what is live of an evalset, oldest first.
func (e *Engine) outcomeRuns(ctx context.Context, evalset string) ([]EvalRun, error) {
	var runs []EvalRun
	for entry, err := range e.store.Log(ctx, evalLog(evalset)) {
		if err != nil {
			return nil, storeError("reading the eval journal", err)
		}
		if run, ok := readEvalRun(entry.Value); ok && run.Candidate == "" && run.Evalset == evalset && run.Passed+run.Failed > 0 {
			runs = append(runs, run)
		}
	}
	slices.SortStableFunc(runs, func(a, b EvalRun) int { return cmp.Compare(a.AtMS, b.AtMS) })
	return runs, nil
}

// value is a field of a run, in percentage points of its cases if so asked.
func (r *EvalRun) value(field string, points bool) float64 {
	n := 0.0
	switch field {
	case "passed":
		n = float64(r.Passed)
	case "failed":
		n = float64(r.Failed)
	case fieldDuration:
		n = float64(r.DurationMS)
	}
	if points {
		n = 100 * n / float64(r.Passed+r.Failed)
	}
	return n
}

// outcomeMetric is how a draft of this pass is measured, nil where no run is there to
// compare with.
func (p *pass) outcomeMetric() *MetricSnapshot {
	o := p.policy.OutcomeEvalset
	if o == nil || len(p.evals) == 0 {
		return nil
	}
	before := p.evals[len(p.evals)-1]
	m := &MetricSnapshot{
		Metric: metricEvalset + o.Hash + ":" + o.Field, Baseline: before.value(o.Field, o.Points), N: before.Passed + before.Failed,
		MinEffect: o.MinEffect, HigherIsBetter: o.HigherIsBetter, Points: o.Points, HighWater: o.HighWater, Checkpoints: o.Checkpoints,
		CostField: o.CostField, CostRatio: o.CostRatio, HorizonsMS: []int64{},
	}
	if len(m.Checkpoints) == 0 {
		for _, h := range horizons() {
			m.Checkpoints = append(m.Checkpoints, Checkpoint{AfterMS: h})
		}
	}
	return m
}

// evalset is the evalset and the field of a metric; ok is false for others.
func (m *MetricSnapshot) evalset() (hash, field string, ok bool) {
	rest, ok := strings.CutPrefix(m.Metric, metricEvalset)
	hash, field, also := strings.Cut(rest, ":")
	return hash, field, ok && also && evalField(field)
}

// measureEvalsets measures what is applied and has an evalset for it, at each
// checkpoint once, by the newest run since the apply. Without one it stays due.
func (p *pass) measureEvalsets(ctx context.Context) error {
	for _, c := range p.cases {
		if c.Status.State != StateApplied || c.Rec.Metric == nil {
			continue
		}
		hash, field, ok := c.Rec.Metric.evalset()
		if !ok {
			continue
		}
		due := slices.DeleteFunc(slices.Clone(c.Rec.Metric.Checkpoints), c.Status.checkedAt)
		if len(due) == 0 {
			continue
		}
		runs, err := p.runsOf(ctx, hash)
		if err != nil {
			return err
		}
		before, since := around(runs, c.Status.AppliedAtMS)
		if len(since) == 0 {
			continue
		}
		for _, point := range due {
			reached, err := p.reached(ctx, c, point, len(since))
			if err != nil {
				return err
			}
			if !reached {
				continue
			}
			m := judge(c.Rec.Metric, field, before, since[len(since)-1])
			m.Checkpoint = &point
			done, err := p.note(ctx, c, "outcome_review", AuditEntry{Event: EventMeasured, Because: "measured as planned", Measured: m})
			if err != nil {
				return err
			}
			if done {
				p.result.Measured++
			}
		}
	}
	return nil
}

// around tells runs that were over when something was applied from those that began
// afterwards. One that was under way is evidence of neither.
func around(runs []EvalRun, appliedMS int64) (before, since []EvalRun) {
	for _, r := range runs {
		switch {
		case r.AtMS <= appliedMS:
			before = append(before, r)
		case r.AtMS-r.DurationMS > appliedMS:
			since = append(since, r)
		}
	}
	return before, since
}

// reached reports whether a checkpoint is due.
func (p *pass) reached(ctx context.Context, c *Case, at Checkpoint, runs int) (bool, error) {
	switch {
	case at.AfterMS > 0:
		return p.now.UnixMilli() >= c.Status.AppliedAtMS+at.AfterMS, nil
	case at.AfterRuns > 0:
		return runs >= at.AfterRuns, nil
	}
	if p.grains == nil {
		var err error
		if p.grains, err = p.seen.since(ctx, p.reader, p.awaitGrains()); err != nil {
			return false, err
		}
	}
	return p.grains[c.Hash] >= at.AfterGrains, nil
}

// awaitGrains are the applied recommendations that wait for records of evidence, and
// when they were applied.
func (p *pass) awaitGrains() map[string]int64 {
	waiting := make(map[string]int64)
	for _, c := range p.cases {
		if c.Status.State != StateApplied || c.Rec.Metric == nil {
			continue
		}
		if slices.ContainsFunc(c.Rec.Metric.Checkpoints, func(at Checkpoint) bool { return at.AfterGrains > 0 && !c.Status.checkedAt(at) }) {
			waiting[c.Hash] = c.Status.AppliedAtMS
		}
	}
	return waiting
}

// runsOf is [Engine.outcomeRuns], read once a pass.
func (p *pass) runsOf(ctx context.Context, evalset string) ([]EvalRun, error) {
	if runs, read := p.journals[evalset]; read {
		return runs, nil
	}
	runs, err := p.outcomeRuns(ctx, evalset)
	if err != nil {
		return nil, err
	}
	if p.journals == nil {
		p.journals = make(map[string][]EvalRun)
	}
	p.journals[evalset] = runs
	return runs, nil
}

// judge compares a run with those before the apply, or, without any, with what was
// true when it was drafted. Everything that it went by is in the receipt.
func judge(metric *MetricSnapshot, field string, before []EvalRun, current EvalRun) *Measured {
	m := &Measured{
		Baseline: metric.Baseline, BaselineKind: "snapshot", Current: current.value(field, metric.Points),
		CurrentRunID: current.RunID, N: current.Passed + current.Failed, Tolerance: metric.MinEffect, Verdict: VerdictHeld,
	}
	var base *EvalRun
	for i := range before {
		v := before[i].value(field, metric.Points)
		better := i == 0 || regressed(m.BestBefore, v, 0, metric.HigherIsBetter)
		if better {
			m.BestBefore = v
		}
		if !metric.HighWater || better {
			base = &before[i]
		}
	}
	if base != nil {
		m.Baseline, m.BaselineKind, m.BaselineRunID = base.value(field, metric.Points), "newest", base.RunID
		if metric.HighWater {
			m.BaselineKind = "high_water"
		}
	}
	switch {
	case regressed(m.Current, m.Baseline, metric.MinEffect, metric.HigherIsBetter):
		m.Verdict = VerdictRegress
	case metric.CostField != "" && base != nil:
		m.CostBefore, m.Cost = base.value(metric.CostField, false), current.value(metric.CostField, false)
		// A duration of 0 was not measured, and nothing can be compared with it.
		if (m.CostBefore > 0 || metric.CostField != fieldDuration) && m.Cost > metric.CostRatio*m.CostBefore {
			m.Verdict = VerdictCostlier
		}
	}
	return m
}

// RunEvalset runs the cases of a module's evalset over what is live, with call, and
// journals what they came to. Where the module could not be asked, or a person must be
// asked first, the error is the call's and nothing is journaled: that says nothing of
// the module. It makes real calls, so it needs the scope admin, as
// setting the cases does. clock is read at its begin and end.
func (e *Engine) RunEvalset(ctx context.Context, clock func() time.Time, who Actor, tool, runID string,
	call func(ctx context.Context, moduleID string, inputs map[string]any) (map[string]any, error),
) (*EvalRun, error) {
	if err := who.can(ScopeAdmin); err != nil {
		return nil, err
	}
	evalset, err := e.evalsetOf(ctx, tool)
	if err != nil {
		return nil, err
	}
	if evalset == nil {
		return nil, module.Errorf(module.CodeLoopNotFound, "the module has no evalset")
	}
	begun := clock()
	run := EvalRun{V: 1, Evalset: evalset.Hash, RunID: runID}
	cases, _ := evalset.Fields["cases"].([]any)
	for _, item := range cases {
		c, _ := item.(map[string]any)
		inputs, _ := c["inputs"].(map[string]any)
		got, err := call(ctx, tool, inputs)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if unmeasurable(err) {
			return nil, fmt.Errorf("run the evalset of %s: %w", tool, err)
		}
		if err == nil && schema.ContentHash(got) == schema.ContentHash(c["output"]) {
			run.Passed++
		} else {
			run.Failed++
		}
	}
	end := clock()
	run.AtMS, run.DurationMS = end.UnixMilli(), max(0, end.Sub(begun).Milliseconds())
	return &run, e.JournalEval(ctx, run)
}

// unmeasurable reports whether a call failed before its module ran or without its
// answer.
func unmeasurable(err error) bool {
	e := module.AsError(err)
	if e == nil {
		return false
	}
	switch e.Code {
	case module.CodeACLDenied, module.CodeApprovalPending, module.CodeApprovalDenied, module.CodeApprovalTimeout,
		module.CodeModuleNotFound, module.CodeExecutionCancelled:
		return true
	}
	return e.Unexecuted || strings.HasPrefix(string(e.Code), "BUS_")
}
