package loop_test

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
	"github.com/google/go-cmp/cmp"
)

// dump is everything a store holds, as text.
func dump(t *testing.T, s *loop.MemStore) string {
	t.Helper()
	var b strings.Builder
	show := func(name string, entries iter.Seq2[loop.Entry, error]) {
		for e, err := range entries {
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "%s %s %s\n", name, e.Key, e.Value)
		}
	}
	for _, bucket := range []loop.Bucket{loop.BucketRecs, loop.BucketState, loop.BucketKnowledge} {
		show(string(bucket), s.List(t.Context(), bucket))
	}
	show("log", s.Log(t.Context(), ""))
	return b.String()
}

func TestIllegalTransitions(t *testing.T) {
	w := newWorld(t, nil)
	w.failing(12)
	w.run(pinned(), loop.RunOptions{})
	hash := w.cases()[0].Hash
	act := map[string]func() error{
		"approve": func() error { _, err := w.engine.Approve(t.Context(), pinned(), rex(), hash, "x"); return err },
		"reject":  func() error { _, err := w.engine.Reject(t.Context(), pinned(), rex(), hash, "x"); return err },
		"apply": func() error {
			_, err := w.engine.Apply(t.Context(), pinned(), rex(), hash, "x", loop.ApplyOptions{})
			return err
		},
		"rollback": func() error { _, err := w.engine.Rollback(t.Context(), pinned(), rex(), hash, "x"); return err },
	}
	refuse := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if err := act[name](); err == nil {
				t.Errorf("%s of one that is %s", name, state(t, w, hash))
			} else {
				wantCode(t, err, "LOOP_ILLEGAL_TRANSITION")
			}
		}
	}
	do := func(name string) {
		t.Helper()
		if err := act[name](); err != nil {
			t.Fatal(err)
		}
	}
	refuse("apply", "rollback")
	do("approve")
	refuse("approve", "reject", "rollback")
	do("apply")
	refuse("approve", "reject", "apply")
	do("rollback")
	refuse("approve", "reject", "apply", "rollback")
	for _, hash := range []string{strings.Repeat("a", 64), "", "x", strings.Repeat("A", 64)} {
		_, err := w.engine.Case(t.Context(), hash)
		wantCode(t, err, "LOOP_NOT_FOUND")
	}
}

func TestAdvisoryCannotBeAppliedAndPreflightSaysSo(t *testing.T) {
	w := newWorld(t, proposing(draft("")))
	w.failing(12)
	w.run(pinned(), loop.RunOptions{})
	hash := w.llm()[0].Hash
	before := dump(t, w.store)
	wantCode(t, w.engine.Preflight(t.Context(), rex(), hash, loop.ApplyOptions{}), "LOOP_ILLEGAL_TRANSITION")
	if dump(t, w.store) != before {
		t.Error("asking changed something")
	}
	w.approve(hash)
	_, err := w.engine.Apply(t.Context(), pinned(), rex(), hash, "x", loop.ApplyOptions{})
	wantCode(t, err, "LOOP_ILLEGAL_TRANSITION")
	// Its only ways out of approved: time, or a premise that moves.
	if r := w.run(pinned().Add(day(14)), loop.RunOptions{}); r.Expired != 2 && state(t, w, hash) != loop.StateExpired {
		t.Errorf("%+v", r)
	}
}

func TestTimeToLive(t *testing.T) {
	w := newWorld(t, nil)
	w.failing(12)
	w.run(pinned(), loop.RunOptions{})
	hash := w.cases()[0].Hash
	w.run(pinned().Add(day(30)-time.Millisecond), loop.RunOptions{})
	if got := state(t, w, hash); got != loop.StatePending {
		t.Errorf("before its time it is %s", got)
	}
	if r := w.run(pinned().Add(day(30)), loop.RunOptions{}); r.Expired != 1 || state(t, w, hash) != loop.StateExpired {
		t.Errorf("at its time: %+v", r)
	}
}

func TestCooldownDoublesAndRevertsStrike(t *testing.T) {
	w := newWorld(t, nil)
	now := pinned()
	for i, rest := range []int{7, 14, 28, 56, 90, 90} {
		failAt(w, now)
		r := w.run(now, loop.RunOptions{})
		if r.Stored != 1 {
			t.Fatalf("round %d: stored %d", i, r.Stored)
		}
		for _, c := range w.cases() {
			if c.Status.State == loop.StatePending {
				if _, err := w.engine.Reject(t.Context(), now, rex(), c.Hash, "no"); err != nil {
					t.Fatal(err)
				}
			}
		}
		early := now.Add(day(rest) - time.Millisecond)
		failAt(w, early)
		if r := w.run(early, loop.RunOptions{}); r.Stored != 0 {
			t.Fatalf("round %d: proposed again before %d days", i, rest)
		}
		now = now.Add(day(rest))
	}
}

// failAt adds failures just before now that module_failure finds.
func failAt(w *world, now time.Time) {
	for i := range 12 {
		w.fail("pay.refund", now.Add(-time.Duration(i)*time.Minute), "refund was refused")
	}
}

// regress has the module_failure finding applied, and the failures come back worse.
func TestRegressionLeadsToARevertAndARest(t *testing.T) {
	w := newWorld(t, nil)
	for i := range 30 { // 12 of 30 fail
		at := pinned().Add(-time.Duration(i) * time.Minute)
		if i < 12 {
			w.fail("pay.refund", at, "refund was refused")
		} else {
			w.ok("pay.refund", at)
		}
	}
	w.run(pinned(), loop.RunOptions{})
	first := w.cases()[0]
	if first.Rec.Metric == nil || first.Rec.Metric.Baseline != 0.4 {
		t.Fatalf("metric %+v", first.Rec.Metric)
	}
	w.approve(first.Hash)
	w.apply(pinned(), first.Hash)
	if g := w.guidance("pay.refund"); len(g) != 1 || g[0].Kind != "fact" {
		t.Errorf("guidance %+v", g)
	}
	// Too few calls to measure: it stays due.
	for i := range 10 {
		w.fail("pay.refund", pinned().Add(time.Duration(i+1)*time.Minute), "refund was refused")
	}
	if r := w.run(pinned().Add(day(1)), loop.RunOptions{}); r.Measured != 0 {
		t.Errorf("measured over 10 calls: %+v", r)
	}
	for i := range 20 {
		w.fail("pay.refund", pinned().Add(day(1)+time.Duration(i)*time.Minute), "refund was refused")
	}
	r := w.run(pinned().Add(day(2)), loop.RunOptions{})
	if r.Measured != 1 || r.Stored != 1 {
		t.Fatalf("the regression: %+v", r)
	}
	if again := w.run(pinned().Add(day(2)), loop.RunOptions{}); again.Measured != 0 || again.Stored != 0 {
		t.Errorf("measured twice for one horizon: %+v", again)
	}
	revert := w.cases()[0]
	if revert.Rec.Proposal.RevertOf != first.Hash || revert.Rec.Rollbackable || revert.Rec.Severity != loop.SeverityHigh {
		t.Fatalf("the revert: %+v", revert.Rec)
	}
	w.approve(revert.Hash)
	w.apply(pinned().Add(day(2)), revert.Hash)
	if got := state(t, w, first.Hash); got != loop.StateRolledBack || len(w.guidance("pay.refund")) != 0 {
		t.Errorf("it is %s with guidance %v", got, w.guidance("pay.refund"))
	}
	_, err := w.engine.Rollback(t.Context(), pinned(), rex(), revert.Hash, "x")
	wantCode(t, err, "LOOP_ILLEGAL_TRANSITION")
	// Row 37: what was reverted rests.
	if r := w.run(pinned().Add(day(2)+time.Hour), loop.RunOptions{}); r.Stored != 0 {
		t.Errorf("the reverted one was proposed again: %+v", r)
	}
}

func TestThreat37RevertLoop(t *testing.T) { TestRegressionLeadsToARevertAndARest(t) }

func TestCrashWhileReverting(t *testing.T) {
	var first, revert string
	eachCrash(t,
		func(t *testing.T) *world {
			w := newWorld(t, nil)
			w.failing(24)
			w.run(pinned(), loop.RunOptions{})
			first = w.cases()[0].Hash
			w.approve(first)
			w.apply(pinned(), first)
			for i := range 30 {
				w.fail("pay.refund", pinned().Add(time.Duration(i+1)*time.Minute), fmt.Sprintf("refund of order %d was refused", i))
			}
			w.run(pinned().Add(day(1)), loop.RunOptions{})
			for _, c := range w.cases() {
				if c.Rec.Proposal.RevertOf == first {
					revert = c.Hash
				}
			}
			w.approve(revert)
			return w
		},
		func(ctx context.Context, _ *world, e *loop.Engine) error {
			_, err := e.Apply(ctx, pinned(), rex(), revert, "back", loop.ApplyOptions{})
			return err
		},
		func(t *testing.T, w *world, n int, after bool) {
			recoverAll(t, w)
			if n == 1 && !after {
				w.apply(later(), revert)
			}
			if a, b, items := state(t, w, first), state(t, w, revert), liveItems(t, w); a != loop.StateRolledBack || b != loop.StateApplied || items != 0 {
				t.Errorf("first %s, revert %s, %d items", a, b, items)
			}
		})
}

func TestGates(t *testing.T) {
	w := newWorld(t, nil)
	w.failing(12) // 16 records, 12 of them failures
	for _, tt := range []struct {
		name string
		o    loop.RunOptions
		skip string
	}{
		{"too few records", loop.RunOptions{MinNew: 17}, loop.SkipMinNew},
		{"too few failures", loop.RunOptions{MinNewErrors: 13}, loop.SkipMinNew},
		{"one of two suffices", loop.RunOptions{MinNew: 17, MinNewErrors: 12}, ""},
		{"never again at once", loop.RunOptions{MinNew: 1}, loop.SkipMinNew},
		{"not stale", loop.RunOptions{IfStale: time.Hour}, loop.SkipStale},
		{"unconditional", loop.RunOptions{}, ""},
	} {
		if r := w.run(pinned(), tt.o); r.SkipReason != tt.skip || (r.Outcome == "skipped") != (tt.skip != "") {
			t.Errorf("%s: %+v", tt.name, r)
		}
	}
	if r := w.run(pinned().Add(time.Hour), loop.RunOptions{IfStale: time.Hour}); r.Outcome != "ran" {
		t.Errorf("stale: %+v", r)
	}
	unlock, err := w.store.Lock(t.Context(), "run.all", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if r := w.run(pinned(), loop.RunOptions{}); r.SkipReason != loop.SkipLocked {
		t.Errorf("locked: %+v", r)
	}
	if err := unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.engine = w.open(w.store, withPolicy(func(p *loop.Policy) { p.CadenceEvery, p.CadenceGrains = 2*time.Hour, 5 }))
	if r := w.run(pinned().Add(2*time.Hour), loop.RunOptions{}); r.SkipReason != loop.SkipCadence {
		t.Errorf("cadence: %+v", r)
	}
	if r := w.run(pinned().Add(2*time.Hour), loop.RunOptions{FullSweep: true}); r.Outcome != "ran" {
		t.Errorf("a full sweep overrides it: %+v", r)
	}
}

func TestConfigurationRestricts(t *testing.T) {
	w := newWorld(t, nil)
	w.failing(12)
	const family = "exec.module_failure"
	wantCode(t, w.engine.Configure(t.Context(), rex(), family, loop.AnalyzerConfig{}), "LOOP_SCOPE")
	wantCode(t, w.engine.Configure(t.Context(), root(), "exec.nothing", loop.AnalyzerConfig{}), "LOOP_NOT_FOUND")
	wantCode(t, w.engine.Configure(t.Context(), root(), family, loop.AnalyzerConfig{Params: map[string]any{"min_count": int64(0)}}), "GENERAL_INVALID_INPUT")
	for _, c := range []loop.AnalyzerConfig{
		{Enabled: new(false)}, {SeverityFloor: loop.SeverityHigh, Params: map[string]any{"min_rate": 0.4}}, {Params: map[string]any{"min_count": int64(13)}},
	} {
		if c.SeverityFloor == loop.SeverityHigh { // 12 of 16 is high; so raise what counts by another way
			c.Params = map[string]any{"min_count": int64(12), "min_rate": 0.8}
		}
		if err := w.engine.Configure(t.Context(), root(), family, c); err != nil {
			t.Fatal(err)
		}
		if r := w.run(pinned(), loop.RunOptions{}); r.Stored != 0 {
			t.Errorf("%+v: stored %d", c, r.Stored)
		}
	}
	if err := w.engine.Configure(t.Context(), root(), family, loop.AnalyzerConfig{}); err != nil {
		t.Fatal(err)
	}
	w.engine = w.open(w.store, withPolicy(func(p *loop.Policy) { p.Deny = []string{family} }))
	if r := w.run(pinned(), loop.RunOptions{}); r.Stored != 0 || !cmp.Equal(r.AnalyzersSkipped, []loop.Skipped{{ID: family + "/1", Reason: "denied by policy"}}) {
		t.Errorf("denied: %+v", r.AnalyzersSkipped)
	}
}

func TestQueryRevisionSelectsWhatTheModelSees(t *testing.T) {
	w := newWorld(t, proposing(on("query:discover", `,"proposal":{"kind":"query_revision","body":"module=pay.*"}`)), onlyLLM)
	w.failing(12)
	w.add(contextwire.Evidence{At: pinned(), ModuleID: "other.m", Outcome: contextwire.OutcomeError, Message: "x"})
	sees := func(after time.Duration) bool {
		w.model.requests = nil
		w.run(pinned().Add(after), loop.RunOptions{FullSweep: true})
		return strings.Contains(w.model.requests[0], "other.m")
	}
	if !sees(0) {
		t.Fatal("the model did not see it to begin with")
	}
	hash := w.llm()[0].Hash
	w.approve(hash)
	w.apply(pinned(), hash)
	if sees(time.Hour) {
		t.Error("the query has no effect")
	}
	if _, err := w.engine.Rollback(t.Context(), pinned(), rex(), hash, "back"); err != nil {
		t.Fatal(err)
	}
	if !sees(2 * time.Hour) {
		t.Error("the rollback has no effect")
	}
}

func TestLLMWatermarkWaitsForAnAnswer(t *testing.T) {
	m := &fakeModel{fail: map[string]error{"discover": errDown}}
	w := newWorld(t, m, onlyLLM)
	w.failing(12)
	w.run(pinned(), loop.RunOptions{})
	m.fail, m.discover = nil, func(map[string]any) string { return "garbage" }
	w.run(pinned().Add(time.Hour), loop.RunOptions{})
	m.discover = nil
	w.run(pinned().Add(2*time.Hour), loop.RunOptions{})
	w.run(pinned().Add(3*time.Hour), loop.RunOptions{})
	if n := len(m.asked("discover")); n != 3 {
		t.Errorf("evidence was shown %d times, want again until an answer could be read, 3", n)
	}
}
