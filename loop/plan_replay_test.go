package loop_test

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/loop/plan"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// memRuns is a journal of plan runs in memory.
type memRuns struct {
	runs []*loop.JournaledRun
	err  error
}

// It gives runs of all versions, which nobody has to look at.
func (m *memRuns) PlanRuns(context.Context, string) iter.Seq2[*loop.JournaledRun, error] {
	return func(yield func(*loop.JournaledRun, error) bool) {
		for _, r := range m.runs {
			if !yield(r, nil) {
				return
			}
		}
		if m.err != nil {
			yield(nil, m.err)
		}
	}
}

// theatre is a world with a live plan and a journal of its runs.
type theatre struct {
	*world
	journal *memRuns
	item    *loop.Item
	live    *plan.Plan
}

// newTheatre applies a plan: look, then do if look.ok.
func newTheatre(t *testing.T, policy string) *theatre {
	t.Helper()
	w, hash := plans(t)
	w.apply(pinned(), hash)
	s := &theatre{world: w, journal: &memRuns{}}
	s.find()
	s.reopen(policy)
	return s
}

func (s *theatre) find() {
	s.t.Helper()
	items, _, err := s.engine.Knowledge().Items(s.t.Context(), true)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, i := range items {
		if i.Type == loop.ItemPlan {
			s.item = i
			if s.live, err = loop.PlanOf(i); err != nil {
				s.t.Fatal(err)
			}
		}
	}
}

// reopen goes on under a policy.
func (s *theatre) reopen(policy string) {
	s.t.Helper()
	p, err := loop.ParsePolicy([]byte(policy))
	if err != nil {
		s.t.Fatal(err)
	}
	s.engine = s.open(s.store, onlyLLM, func(o *loop.Options) { o.Policy, o.PlanRuns = &p, s.journal })
}

// plays journals runs of the live plan whose do fails so often, with an ending for each.
func (s *theatre) plays(failures ...int) {
	s.t.Helper()
	redactor, err := schema.NewRedactor(schema.RedactOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	hide := &plan.Redaction{Redactor: redactor, Schemas: func(string, map[string]any) (in, out *schema.Compiled, known bool) { return nil, nil, true }}
	for _, times := range failures {
		n := -1 // both nodes call one module, look once
		res, err := plan.Run(s.t.Context(), s.live, nil, func(context.Context, string, map[string]any) (map[string]any, error) {
			if n++; n == 0 {
				return map[string]any{"ok": true, "n": int64(times)}, nil
			}
			if n <= times {
				return nil, module.Errorf(module.CodeModuleExecuteError, "no")
			}
			return map[string]any{}, nil
		}, plan.Options{Trace: true})
		about := plan.RunAbout{Plan: "plan.x", PlanHash: s.item.Hash}
		id := fmt.Sprintf("r%d", len(s.journal.runs)+1)
		s.journal.runs = append(s.journal.runs, &loop.JournaledRun{ID: id, RunRecord: plan.NewRunRecord(s.live, about, res, err, hide)})
	}
}

// revise has the model draft one edit and returns what became of it.
func (s *theatre) revise(n int, path, from, to string) *loop.Case {
	s.t.Helper()
	known := map[string]bool{}
	for _, c := range s.llm() {
		known[c.Hash] = true
	}
	s.model.discover = func(map[string]any) string {
		return discovery(on("grain:"+s.item.Hash, `,"proposal":{"kind":"plan_revision","edits":[{"path":"`+path+`","from":`+from+`,"to":`+to+`}]}`))
	}
	s.run(pinned().Add(day(n)), loop.RunOptions{FullSweep: true})
	for _, c := range s.llm() {
		if !known[c.Hash] {
			return c
		}
	}
	s.t.Fatal("nothing came of it")
	return nil
}

const strictReplay = `{"plan_replay":{}}`

func TestPlanReplay(t *testing.T) {
	const always, never = `"look.ok == true"`, `"look.ok == false"`
	for _, tt := range []struct {
		name, policy string
		retries      int   // of the plan that is revised
		failures     []int // of each run
		edit         [3]string
		want         loop.Rehearsal
		executable   bool
	}{
		{
			name: "without a say it is told", policy: `{}`, failures: []int{0}, edit: [3]string{"edges.0.cond", always, never},
			want: loop.Rehearsal{Runs: 1, Worse: 1, CallsBefore: 2, CallsAfter: 1, WorseRuns: []string{"r1"}}, executable: true,
		},
		{
			name: "too few runs", policy: strictReplay, failures: []int{0, 0}, edit: [3]string{"edges.0.cond", always, never},
			want: loop.Rehearsal{
				Runs: 2, Worse: 2, CallsBefore: 4, CallsAfter: 2, WorseRuns: []string{"r1", "r2"},
				Verdict: loop.RehearsalAbstained, Because: "2 runs are journaled, it takes 3 to judge",
			}, executable: true,
		},
		{
			name: "no run would get to its end", policy: strictReplay, failures: []int{0, 0, 1}, edit: [3]string{"edges.0.cond", always, never},
			want: loop.Rehearsal{
				Runs: 3, Same: 1, Worse: 2, CallsBefore: 6, CallsAfter: 3, WorseRuns: []string{"r1", "r2"},
				Verdict: loop.RehearsalRefused, Because: "2 of 3 journaled runs would end worse",
			},
		},
		{
			name: "worse is allowed", policy: `{"plan_replay":{"require_no_worse":false}}`, failures: []int{0, 0, 1}, edit: [3]string{"edges.0.cond", always, never},
			want: loop.Rehearsal{
				Runs: 3, Same: 1, Worse: 2, CallsBefore: 6, CallsAfter: 3, WorseRuns: []string{"r1", "r2"}, Verdict: loop.RehearsalPassed,
			}, executable: true,
		},
		{
			name: "the same, said otherwise", policy: strictReplay, failures: []int{0, 0, 1}, edit: [3]string{"edges.0.cond", always, `"look.ok"`},
			want: loop.Rehearsal{Runs: 3, Same: 3, CallsBefore: 6, CallsAfter: 6, NoWorse: true, Verdict: loop.RehearsalPassed}, executable: true,
		},
		{
			name: "retries, of which the journal knows half", policy: strictReplay, failures: []int{0, 0, 1, 1}, edit: [3]string{"retries.do", "null", "2"},
			want: loop.Rehearsal{Runs: 4, Same: 2, OutOfSupport: 2, CallsBefore: 4, CallsAfter: 4, NoWorse: true, Verdict: loop.RehearsalPassed}, executable: true,
		},
		{
			name: "retries, of which the journal knows less", policy: strictReplay, failures: []int{0, 1, 1}, edit: [3]string{"retries.do", "null", "2"},
			want: loop.Rehearsal{
				Runs: 3, Same: 1, OutOfSupport: 2, CallsBefore: 2, CallsAfter: 2, NoWorse: true,
				Verdict: loop.RehearsalRefused, Because: "of 2 of 3 journaled runs the journal cannot tell how they would end",
			},
		},
		{
			name: "as much unknown as is allowed", policy: `{"plan_replay":{"max_out_of_support":1}}`, failures: []int{1, 1, 1}, edit: [3]string{"retries.do", "null", "2"},
			want: loop.Rehearsal{Runs: 3, OutOfSupport: 3, NoWorse: true, Verdict: loop.RehearsalPassed}, executable: true,
		},
		{
			name: "fewer retries than runs needed", policy: strictReplay, retries: 2, failures: []int{0, 1, 0, 2}, edit: [3]string{"retries.do", "2", "1"},
			want: loop.Rehearsal{
				Runs: 4, Same: 3, Worse: 1, CallsBefore: 11, CallsAfter: 10, WorseRuns: []string{"r4"},
				Verdict: loop.RehearsalRefused, Because: "1 of 4 journaled runs would end worse",
			},
		},
		{
			name: "no runs", policy: strictReplay, edit: [3]string{"retries.do", "null", "2"},
			want: loop.Rehearsal{NoWorse: true, Verdict: loop.RehearsalAbstained, Because: "0 runs are journaled, it takes 3 to judge"}, executable: true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newTheatre(t, `{}`)
			if tt.retries > 0 {
				c := s.revise(1, "retries.do", "null", fmt.Sprint(tt.retries))
				s.approve(c.Hash)
				s.apply(pinned(), c.Hash)
				s.find()
			}
			s.reopen(tt.policy)
			s.plays(tt.failures...)
			c := s.revise(2, tt.edit[0], tt.edit[1], tt.edit[2])
			if c.Rec.Replay == nil {
				t.Fatalf("no report: %+v", c.Rec)
			}
			if diff := cmp.Diff(tt.want, *c.Rec.Replay); diff != "" {
				t.Error(diff)
			}
			if c.Rec.Executable() != tt.executable {
				t.Fatalf("executable %v, want %v", c.Rec.Executable(), tt.executable)
			}
			if tt.executable {
				return
			}
			if c.Rec.Action != loop.ActionFlag || c.Rec.Importance != 0.4 || c.Rec.Proposal.Data["advisory_because"] != tt.want.Because {
				t.Errorf("a refused revision: %+v", c.Rec)
			}
		})
	}
}

// A run that was cut short says nothing, nor does one of another version; and without
// runs and without a say nothing is told.
func TestPlanReplayOfNothing(t *testing.T) {
	s := newTheatre(t, `{}`)
	s.plays(0, 0)
	s.journal.runs[0].Outcome, s.journal.runs[1].PlanHash = plan.OutcomeCancelled, strings.Repeat("0", 64)
	if c := s.revise(1, "retries.do", "null", "2"); c.Rec.Replay != nil || !c.Rec.Executable() {
		t.Errorf("%+v", c.Rec.Replay)
	}
	// A record that does not come to what it says it came to.
	s.plays(0)
	s.journal.runs[2].Outcome = plan.OutcomeError
	if c := s.revise(2, "retries.do", "null", "3"); c.Rec.Replay == nil || c.Rec.Replay.OutOfSupport != 1 || c.Rec.Replay.LeftOut != 1 {
		t.Errorf("%+v", c.Rec.Replay)
	}
}

// A journal that cannot be read aborts the pass, as everything does that cannot be
// measured; the next one does it again.
func TestPlanReplayWithoutAJournal(t *testing.T) {
	s := newTheatre(t, strictReplay)
	s.plays(0, 0, 0)
	before := len(s.llm())
	s.journal.err = errDown
	s.model.discover = func(map[string]any) string {
		return discovery(on("grain:"+s.item.Hash, `,"proposal":{"kind":"plan_revision","edits":[{"path":"retries.do","from":null,"to":2}]}`))
	}
	if _, err := s.engine.Run(t.Context(), pinned().Add(day(1)), loop.RunOptions{FullSweep: true, Trigger: ana()}); module.CodeOf(err) != module.CodeLoopStore {
		t.Errorf("a pass without the journal: %v", err)
	}
	if n := len(s.llm()); n != before {
		t.Errorf("%d recommendations were stored", n-before)
	}
	s.journal.err = nil
	s.run(pinned().Add(day(1)), loop.RunOptions{})
	if n := len(s.llm()); n != before+1 {
		t.Errorf("%d recommendations were stored with the journal", n-before)
	}
	p, err := loop.ParsePolicy([]byte(strictReplay))
	if err != nil {
		t.Fatal(err)
	}
	_, err = loop.New(loop.Options{Store: s.store, Reader: s.reader, Policy: &p})
	wantCode(t, err, module.CodeConfigInvalid)
}

// What was drafted when there were few runs is rehearsed again before it is applied.
func TestPlanReplayGatesTheApply(t *testing.T) {
	s := newTheatre(t, strictReplay)
	s.plays(0)
	c := s.revise(1, "edges.0.cond", `"look.ok == true"`, `"look.ok == false"`)
	s.approve(c.Hash)
	s.plays(0, 0)
	_, err := s.engine.Apply(t.Context(), pinned(), rex(), c.Hash, "as reviewed", loop.ApplyOptions{})
	wantCode(t, err, module.CodeLoopGated)
	if err == nil || !strings.Contains(err.Error(), "3 of 3 journaled runs would end worse") {
		t.Errorf("%v", err)
	}
	s.journal.err = errDown
	_, err = s.engine.Apply(t.Context(), pinned(), rex(), c.Hash, "as reviewed", loop.ApplyOptions{})
	wantCode(t, err, module.CodeLoopStore)
	if got := state(t, s.world, c.Hash); got != loop.StateApproved {
		t.Errorf("what was refused is %s", got)
	}
	s.journal.err = nil
	good := s.revise(2, "retries.do", "null", "2")
	s.approve(good.Hash)
	s.apply(pinned(), good.Hash)
	found := false
	for e, err := range s.store.Log(t.Context(), good.Hash) {
		if err != nil {
			t.Fatal(err)
		}
		found = found || strings.Contains(string(e.Value), `"apply_intent"`) && strings.Contains(string(e.Value), `"replay":{`) && strings.Contains(string(e.Value), `"verdict":"passed"`)
	}
	if !found {
		t.Error("the audit log does not say by which rehearsal it was applied")
	}
}

func TestPlanReplayPolicy(t *testing.T) {
	for _, tt := range []struct {
		policy string
		want   *loop.PlanReplay // nil for refused
	}{
		{`{"plan_replay":{}}`, &loop.PlanReplay{MinRuns: 3, RequireNoWorse: true, MaxOutOfSupport: 0.5}},
		{`{"plan_replay":{"min_runs":10,"require_no_worse":false,"max_out_of_support":1}}`, &loop.PlanReplay{MinRuns: 10, MaxOutOfSupport: 1}},
		{`{"plan_replay":{"max_out_of_support":0}}`, &loop.PlanReplay{MinRuns: 3, RequireNoWorse: true}},
		{`{"plan_replay":{"max_out_of_support":1.1}}`, nil},
		{`{"plan_replay":{"max_out_of_support":-0.1}}`, nil},
		{`{"plan_replay":{"min_runs":0}}`, nil},
		{`{"plan_replay":{"min_runs":"3"}}`, nil},
		{`{"plan_replay":{"more":1}}`, nil},
		{`{"plan_replay":true}`, nil},
	} {
		p, err := loop.ParsePolicy([]byte(tt.policy))
		if (err == nil) != (tt.want != nil) {
			t.Errorf("%s: %v", tt.policy, err)
		} else if err == nil {
			if diff := cmp.Diff(tt.want, p.PlanReplay); diff != "" {
				t.Errorf("%s: %s", tt.policy, diff)
			}
		}
	}
}
