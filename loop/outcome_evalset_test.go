package loop_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/module"
)

const outcomeHash = "e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5"

// ran journals a run over what is live.
func (w *world) ran(id string, at time.Time, passed, failed int, ms int64) {
	w.t.Helper()
	run := loop.EvalRun{Evalset: outcomeHash, RunID: id, AtMS: at.UnixMilli(), Passed: passed, Failed: failed, DurationMS: ms}
	if err := w.engine.JournalEval(w.t.Context(), run); err != nil {
		w.t.Fatal(err)
	}
}

// measuredBy has a lesson drafted, applied and measured under a policy.
func measuredBy(t *testing.T, policy string, before func(w *world), after func(w *world, hash string)) {
	t.Helper()
	p, err := loop.ParsePolicy([]byte(`{"outcome_evalset":{"hash":"` + outcomeHash + `",` + policy + `}}`))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, proposing(lesson("Cancel first.")), onlyLLM, func(o *loop.Options) { o.Policy = &p })
	w.failing(12)
	before(w)
	w.run(pinned(), loop.RunOptions{})
	hash := w.llm()[0].Hash
	w.approve(hash)
	w.apply(pinned(), hash)
	after(w, hash)
}

func (w *world) measured(hash string) []loop.Measured {
	w.t.Helper()
	c, err := w.engine.Case(w.t.Context(), hash)
	if err != nil {
		w.t.Fatal(err)
	}
	return c.Status.Measured
}

func TestOutcomeEvalsetVerdicts(t *testing.T) {
	const passed = `"field":"passed","higher_is_better":true,"checkpoints":[{"after_runs":1}],`
	for _, tt := range []struct {
		name, policy   string
		passed, failed int
		ms             int64
		want           string // verdict, baseline, its kind and run
	}{
		{"better", passed + `"min_effect":{"count":5}`, 95, 5, 10, "held 80 newest b2"},
		{"worse by the effect", passed + `"min_effect":{"count":5}`, 75, 25, 10, "held 80 newest b2"},
		{"worse by more", passed + `"min_effect":{"count":5}`, 74, 26, 10, "regressed 80 newest b2"},
		{"best before", passed + `"min_effect":{"count":5},"baseline":"high_water"`, 80, 20, 10, "regressed 90 high_water b1"},
		{"points, at", passed + `"min_effect":{"points":2}`, 39, 11, 10, "held 80 newest b2"},
		{"points, above", passed + `"min_effect":{"points":2}`, 38, 12, 10, "regressed 80 newest b2"},
		{"lower is better", `"field":"failed","higher_is_better":false,"checkpoints":[{"after_runs":1}]`, 79, 21, 10, "regressed 20 newest b2"},
		{"cost, at", passed + `"cost":{"field":"duration_ms","max_increase_ratio":1.5}`, 80, 20, 150, "held 80 newest b2"},
		{"cost, above", passed + `"cost":{"field":"duration_ms","max_increase_ratio":1.5}`, 80, 20, 151, "held_costlier 80 newest b2"},
		{"worse and dearer", passed + `"cost":{"field":"duration_ms","max_increase_ratio":1.5}`, 79, 21, 151, "regressed 80 newest b2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			measuredBy(t, tt.policy, func(w *world) {
				w.ran("b1", pinned().Add(-2*time.Hour), 90, 10, 100)
				w.ran("b2", pinned().Add(-time.Hour), 80, 20, 100)
			}, func(w *world, hash string) {
				w.run(pinned().Add(time.Minute), loop.RunOptions{FullSweep: true})
				if m := w.measured(hash); len(m) != 0 {
					t.Fatalf("measured by a run before the apply: %+v", m)
				}
				w.ran("a1", pinned().Add(time.Hour), tt.passed, tt.failed, tt.ms)
				w.engine = w.open(w.store) // with all analyzers
				r := w.run(pinned().Add(2*time.Hour), loop.RunOptions{FullSweep: true})
				m := w.measured(hash)
				if len(m) != 1 || m[0].CurrentRunID != "a1" || r.Measured != 1 {
					t.Fatalf("measured %+v", m)
				}
				if got := fmt.Sprint(m[0].Verdict, " ", m[0].Baseline, " ", m[0].BaselineKind, " ", m[0].BaselineRunID); got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
				reverts, flags := 0, 0
				for _, c := range w.cases() {
					if c.Rec.Analyzer == "exec.outcome_review/1" {
						if c.Rec.Proposal.Kind == loop.ChangeRevert && c.Rec.Proposal.RevertOf == hash {
							reverts++
						} else {
							flags++
						}
					}
				}
				if (reverts == 1) != strings.HasPrefix(tt.want, "regressed") || (flags == 1) != strings.HasPrefix(tt.want, "held_costlier") {
					t.Errorf("%d reverts and %d flags were proposed", reverts, flags)
				}
				if r := w.run(pinned().Add(3*time.Hour), loop.RunOptions{FullSweep: true}); r.Measured != 0 {
					t.Error("measured twice at one checkpoint")
				}
			})
		})
	}
}

// Each checkpoint is measured once, when it is reached and there is a run since the
// apply; what cannot be measured stays due.
func TestOutcomeEvalsetCheckpoints(t *testing.T) {
	policy := `"field":"passed","higher_is_better":true,"checkpoints":[604800000,{"after_runs":2},{"after_runs":2},{"after_grains":3}]`
	measuredBy(t, policy, func(w *world) { w.ran("b", pinned(), 8, 2, 1) }, func(w *world, hash string) {
		pass := func(after time.Duration, want int) {
			t.Helper()
			if r := w.run(pinned().Add(after), loop.RunOptions{FullSweep: true}); r.Measured != want {
				t.Errorf("after %v: %d measured, want %d", after, r.Measured, want)
			}
		}
		for i := range 3 {
			w.ok("pay.refund", pinned().Add(time.Duration(i+1)*time.Minute))
		}
		pass(day(8), 0) // time and records are there, a run is not
		w.ran("a1", pinned().Add(day(8)), 8, 2, 1)
		pass(day(8)+time.Minute, 2)
		w.ran("a2", pinned().Add(day(9)), 7, 3, 1)
		pass(day(9)+time.Minute, 1)
		pass(day(30), 0)
		if m := w.measured(hash); m[len(m)-1].Checkpoint.AfterRuns != 2 || m[len(m)-1].CurrentRunID != "a2" {
			t.Errorf("measured %+v", m)
		}
	})
}

// Without a run before it, and without a policy, a draft is honestly unmeasured; runs
// of candidates, and runs without whole numbers or without cases, count for nothing.
func TestOutcomeEvalsetUnmeasured(t *testing.T) {
	measuredBy(t, `"field":"passed","higher_is_better":true`, func(w *world) {
		w.ran("empty", pinned(), 0, 0, 1)
		run := loop.EvalRun{Evalset: outcomeHash, Candidate: strings.Repeat("a", 64), RunID: "c", AtMS: 1, Passed: 3}
		if err := w.engine.JournalEval(w.t.Context(), run); err != nil {
			t.Fatal(err)
		}
		_, err := w.store.Append(w.t.Context(), "evals."+outcomeHash, []byte(`{"v":1,"evalset_hash":"`+outcomeHash+`","candidate":"","run_id":"x","at_ms":1,"passed":"9","failed":0}`), 2)
		if err != nil {
			t.Fatal(err)
		}
	}, func(w *world, hash string) {
		c, err := w.engine.Case(t.Context(), hash)
		if err != nil || c.Rec.Metric != nil {
			t.Errorf("metric %+v, %v", c.Rec.Metric, err)
		}
	})
}

// What took no measurable time has no cost to compare with, and a run that was under
// way at the apply is evidence of neither side.
func TestOutcomeEvalsetWithoutABasis(t *testing.T) {
	const policy = `"field":"passed","higher_is_better":true,"checkpoints":[{"after_runs":1}],"cost":{"field":"duration_ms","max_increase_ratio":1.5}`
	measuredBy(t, policy, func(w *world) { w.ran("b", pinned().Add(-time.Hour), 80, 20, 0) }, func(w *world, hash string) {
		w.ran("under way", pinned().Add(time.Second), 10, 90, 600_000)
		w.run(pinned().Add(2*time.Hour), loop.RunOptions{FullSweep: true})
		if m := w.measured(hash); len(m) != 0 {
			t.Errorf("measured by a run that began before the apply: %+v", m)
		}
		w.ran("since", pinned().Add(time.Hour), 80, 20, 1)
		w.run(pinned().Add(3*time.Hour), loop.RunOptions{FullSweep: true})
		if m := w.measured(hash); len(m) != 1 || m[0].Verdict != loop.VerdictHeld || m[0].CurrentRunID != "since" || m[0].BaselineRunID != "b" {
			t.Errorf("measured %+v", m)
		}
	})
}

func TestOutcomeEvalsetPolicies(t *testing.T) {
	const hash = `"hash":"` + outcomeHash + `",`
	for _, tt := range []struct {
		policy string
		ok     bool
	}{
		{hash + `"field":"passed","higher_is_better":true`, true},
		{hash + `"field":"passed","higher_is_better":true,"checkpoints":[{"after_runs":1},604800000],"min_effect":{"count":5}`, true},
		{hash + `"field":"passed"`, false},
		{hash + `"higher_is_better":true`, false},
		{`"field":"passed","higher_is_better":true`, false},
		{hash + `"field":"novelty","higher_is_better":true`, false},
		{hash + `"field":"passed","higher_is_better":true,"min_effect":{}`, false},
		{hash + `"field":"passed","higher_is_better":true,"min_effect":{"count":1,"points":1}`, false},
		{hash + `"field":"passed","higher_is_better":true,"min_effect":{"count":-1}`, false},
		{hash + `"field":"passed","higher_is_better":true,"cost":{"field":"duration_ms"}`, false},
		{hash + `"field":"passed","higher_is_better":true,"cost":{"max_increase_ratio":2}`, false},
		{hash + `"field":"passed","higher_is_better":true,"checkpoints":[0]`, false},
		{hash + `"field":"passed","higher_is_better":true,"checkpoints":[{"after_runs":1,"after_ms":1}]`, false},
		{hash + `"field":"passed","higher_is_better":true,"checkpoints":[{"after_lunch":1}]`, false},
		{hash + `"field":"passed","higher_is_better":true,"baseline":"luck"`, false},
		{hash + `"field":"passed","higher_is_better":true,"command":"rm"`, false},
	} {
		if _, err := loop.ParsePolicy([]byte(`{"outcome_evalset":{` + tt.policy + `}}`)); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.policy, err)
		}
	}
}

func TestRunEvalset(t *testing.T) {
	w := newWorld(t, nil)
	admin := loop.Actor{ID: "rex", Observer: loop.ObserverHuman, Scopes: []loop.Scope{loop.ScopeAdmin}}
	one := func(n int64) map[string]any { return map[string]any{"n": n} }
	hash, err := w.engine.PutEvalset(t.Context(), pinned(), admin, "math.twice", []any{
		map[string]any{"inputs": one(1), "output": one(2)}, map[string]any{"inputs": one(2), "output": one(4)}, map[string]any{"inputs": one(3), "output": one(7)},
	})
	if err != nil {
		t.Fatal(err)
	}
	now := pinned()
	clock := func() time.Time { now = now.Add(time.Second); return now }
	call := func(_ context.Context, id string, in map[string]any) (map[string]any, error) {
		if n := in["n"].(int64); n != 2 {
			return one(2 * n), nil
		}
		return nil, errDown
	}
	run, err := w.engine.RunEvalset(t.Context(), clock, admin, "math.twice", "r1", call)
	want := &loop.EvalRun{V: 1, Evalset: hash, RunID: "r1", AtMS: pinned().UnixMilli() + 2000, Passed: 1, Failed: 2, DurationMS: 1000}
	if diff := cmp.Diff(want, run); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	// That the module could not be asked says nothing of it.
	for _, refusal := range []*module.Error{
		module.Errorf(module.CodeBusNoResponders, "nobody"), module.Errorf(module.CodeACLDenied, "not you"),
		module.Errorf(module.CodeApprovalPending, "ask"), module.Errorf(module.CodeModuleTimeout, "no time left to send it").NotExecuted(),
	} {
		run, err := w.engine.RunEvalset(t.Context(), clock, admin, "math.twice", "down", func(context.Context, string, map[string]any) (map[string]any, error) {
			return nil, refusal
		})
		if run != nil || module.CodeOf(err) != refusal.Code {
			t.Errorf("%s: journaled %+v, %v", refusal.Code, run, err)
		}
	}
	slow, err := w.engine.RunEvalset(t.Context(), clock, admin, "math.twice", "slow", func(context.Context, string, map[string]any) (map[string]any, error) {
		return nil, module.Errorf(module.CodeModuleTimeout, "too slow")
	})
	if err != nil || slow.Failed != 3 {
		t.Errorf("a module that is too slow: %+v, %v", slow, err)
	}
	_, err = w.engine.RunEvalset(t.Context(), clock, ana(), "math.twice", "r2", call)
	wantCode(t, err, "LOOP_SCOPE")
	_, err = w.engine.RunEvalset(t.Context(), clock, admin, "math.thrice", "r2", call)
	wantCode(t, err, "LOOP_NOT_FOUND")
}
