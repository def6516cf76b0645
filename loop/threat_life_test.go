package loop_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/module"
)

// The rows of the threat table about the life of a recommendation.

func TestThreat03NothingAppliesItself(t *testing.T) {
	policy, err := loop.ParsePolicy([]byte(`{"auto_apply_enabled":true,"auto_apply":[{"analyzer":"loop.llm","targets":["memory","query","code","host"],"max_severity":"high"},{"analyzer":"exec.module_failure","targets":["memory"],"max_severity":"high"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, proposing(lesson("Cancel first.")), func(o *loop.Options) { o.Policy = &policy })
	w.failing(12)
	for i := range 3 {
		if r := w.run(pinned().Add(day(i)), loop.RunOptions{FullSweep: true}); r.AutoApplied != 0 {
			t.Errorf("auto_applied %d", r.AutoApplied)
		}
	}
	for _, c := range w.cases() {
		if c.Status.State != loop.StatePending {
			t.Errorf("%s is %s", c.Rec.Analyzer, c.Status.State)
		}
	}
	if n := liveItems(t, w); n != 0 {
		t.Errorf("%d items of knowledge", n)
	}
}

// code makes a world with an evalset on the tool pay.refund and a pending code
// revision, and returns the evalset's hash and the recommendation's.
func code(t *testing.T) (w *world, evalset, rec string) {
	t.Helper()
	w = newWorld(t, proposing(on("tool:pay.refund", `,"proposal":{"kind":"code_revision","source":"def refund():\n    pass\n"}`)), onlyLLM,
		withPolicy(func(p *loop.Policy) { p.Code = true }))
	w.failing(12)
	evalset = w.evalset("pay.refund", 2)
	w.run(pinned(), loop.RunOptions{})
	cases := w.llm()
	if len(cases) != 1 || cases[0].Rec.EvalsetHash != evalset {
		t.Fatalf("no pinned code revision: %+v", cases)
	}
	w.approve(cases[0].Hash)
	return w, evalset, cases[0].Hash
}

// evalset puts an evalset into the store, as an operator does.
func (w *world) evalset(tool string, cases int) string {
	w.t.Helper()
	list := []any{}
	for i := range cases {
		list = append(list, map[string]any{"name": fmt.Sprint("case ", i), "inputs": map[string]any{}, "want": map[string]any{}})
	}
	hash, err := w.engine.PutEvalset(w.t.Context(), pinned(), root(), tool, list)
	if err != nil {
		w.t.Fatal(err)
	}
	return hash
}

func TestThreat24CodeGate(t *testing.T) {
	w, evalset, rec := code(t)
	apply := func() error {
		_, err := w.engine.Apply(t.Context(), pinned(), rex(), rec, "now", loop.ApplyOptions{})
		return err
	}
	run := func(candidate string, passed, failed int) {
		t.Helper()
		if err := w.engine.JournalEval(t.Context(), loop.EvalRun{Evalset: evalset, Candidate: candidate, RunID: "r", AtMS: 1, Passed: passed, Failed: failed}); err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, apply(), "LOOP_GATED") // never run
	run(strings.Repeat("a", 64), 2, 0)
	wantCode(t, apply(), "LOOP_GATED") // another candidate
	run(rec, 0, 0)
	wantCode(t, apply(), "LOOP_GATED") // an empty run
	run(rec, 1, 0)
	wantCode(t, apply(), "LOOP_GATED") // not every case
	run(rec, 1, 1)
	wantCode(t, apply(), "LOOP_GATED") // one failed
	run(rec, 2, 1)
	wantCode(t, apply(), "LOOP_GATED") // as many as there are passed, and yet one failed
	run(rec, 2, 0)
	if err := apply(); err != nil {
		t.Fatal(err)
	}
	c, err := w.engine.Case(t.Context(), rec)
	if err != nil || c.Status.History[len(c.Status.History)-2].Gating == nil {
		t.Errorf("the audit does not say what it was allowed by: %v", err)
	}

	w, evalset, rec = code(t)
	run(rec, 2, 0)
	w.evalset("pay.refund", 2)
	wantCode(t, apply(), "LOOP_GATED") // the evalset was replaced, by one of as many cases
}

// A body that was written by hand and breaks Rule E1 is no recommendation.
func TestThreat24RuleE1WhenLoading(t *testing.T) {
	w, _, rec := code(t)
	good, err := w.engine.Case(t.Context(), rec)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*loop.Recommendation){
		"no pin":                  func(r *loop.Recommendation) { r.EvalsetHash = "" },
		"pin without code":        func(r *loop.Recommendation) { r.Proposal.Ops[0].Type = loop.ItemSkill },
		"code under another flag": func(r *loop.Recommendation) { r.Action = loop.ActionRecord },
		"code on memory":          func(r *loop.Recommendation) { r.Target = "entity:a/b" },
		"the evalset itself": func(r *loop.Recommendation) {
			gate := r.Proposal.Ops[0]
			gate.Type = loop.ItemEvalset
			r.Proposal.Ops = append(r.Proposal.Ops, gate)
		},
		"operations that are none": func(r *loop.Recommendation) { r.Proposal.Ops[0].Op = "sudo" },
		"advice that acts":         func(r *loop.Recommendation) { r.Proposal.Kind, r.Rollbackable = loop.ChangeNone, false },
		"forget without saying so": func(r *loop.Recommendation) {
			r.Proposal.Ops[0].Op, r.Proposal.Ops[0].Replaces, r.Rollbackable = loop.OpForget, strings.Repeat("a", 64), false
		},
		"forget and yet undo": func(r *loop.Recommendation) {
			r.Proposal.Ops[0].Op, r.Proposal.Ops[0].Replaces, r.Destructive = loop.OpForget, strings.Repeat("a", 64), true
		},
	} {
		r := *good.Rec
		r.Proposal.Ops = append([]loop.Op{}, r.Proposal.Ops...)
		change(&r)
		if _, _, err := r.Encode(); err == nil {
			t.Errorf("%s: stamped", name)
		}
		body, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := loop.DecodeRecommendation(contextwire.EvidenceHash(body), body); err == nil {
			t.Errorf("%s: loaded", name)
		}
	}
	body, hash, err := good.Rec.Encode()
	if err != nil || hash != rec {
		t.Fatalf("the good one: %v", err)
	}
	if _, err := loop.DecodeRecommendation(hash, append(body, ' ')); err == nil {
		t.Error("another body under the same hash was loaded")
	}
}

func TestThreat25SelfApproval(t *testing.T) {
	w := newWorld(t, proposing(lesson("Cancel first.")))
	w.failing(12)
	w.run(pinned(), loop.RunOptions{Trigger: ana()})
	llm := w.llm()[0].Hash
	_, err := w.engine.Approve(t.Context(), pinned(), ana(), llm, "mine")
	wantCode(t, err, "LOOP_SELF_APPROVAL")
	forged := ana()
	forged.ID = "engine:loop.llm/1"
	_, err = w.engine.Approve(t.Context(), pinned(), forged, llm, "mine")
	wantCode(t, err, "LOOP_SCOPE")
	if _, err := w.engine.Approve(t.Context(), pinned(), rex(), llm, "not mine"); err != nil {
		t.Errorf("another person: %v", err)
	}
	for _, c := range w.cases() {
		if c.Rec.ByLLM() {
			continue
		}
		if _, err := w.engine.Approve(t.Context(), pinned(), ana(), c.Hash, "an analyzer found it"); err != nil {
			t.Errorf("who triggered a run may approve what an analyzer found: %v", err)
		}
	}
	w = newWorld(t, proposing(lesson("Cancel first.")))
	w.failing(12)
	w.run(pinned(), loop.RunOptions{Trigger: ana()})
	if _, err := w.engine.Reject(t.Context(), pinned(), ana(), w.llm()[0].Hash, "mine, and wrong"); err != nil {
		t.Errorf("the creator may reject: %v", err)
	}
	_, err = w.engine.Run(t.Context(), pinned(), loop.RunOptions{})
	wantCode(t, err, "LOOP_SCOPE") // nobody triggered it
}

// together holds appends back until so many wait, so that all of them have read the
// same.
type together struct {
	loop.Store
	waiting atomic.Int32
	open    chan struct{}
}

func (s *together) Append(ctx context.Context, log string, entry []byte, after uint64) (uint64, error) {
	if s.waiting.Add(-1) == 0 {
		close(s.open)
	}
	<-s.open
	return s.Store.Append(ctx, log, entry, after)
}

func TestThreat26RacingReviewers(t *testing.T) {
	for range 20 {
		w := newWorld(t, nil)
		w.failing(12)
		w.run(pinned(), loop.RunOptions{})
		s := &together{Store: w.store, open: make(chan struct{})}
		s.waiting.Store(4)
		w.engine = w.open(s)
		hash := w.cases()[0].Hash
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			wg.Go(func() {
				decide := w.engine.Approve
				if i%2 == 1 {
					decide = w.engine.Reject
				}
				_, errs[i] = decide(t.Context(), pinned(), rex(), hash, "me")
			})
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			switch module.CodeOf(err) {
			case "":
				won++
			case module.CodeLoopConflict, module.CodeLoopIllegal:
			default:
				t.Errorf("%v", err)
			}
		}
		c, err := w.engine.Case(t.Context(), hash)
		if err != nil || won != 1 || len(c.Status.History) != 2 {
			t.Fatalf("%d won, %v", won, err)
		}
	}
}

// Of several people who apply at once one does it, and the others learn that they
// lost. One and the same person may ask several times.
func TestRacingAppliesMakeOneOutcome(t *testing.T) {
	for _, alone := range []bool{false, true} {
		for range 10 {
			w, hash := plans(t)
			var wg sync.WaitGroup
			var mu sync.Mutex
			won := 0
			for i := range 4 {
				who := rex()
				if !alone {
					who.ID += strconv.Itoa(i)
				}
				wg.Go(func() {
					_, err := w.engine.Apply(t.Context(), pinned(), who, hash, "now", loop.ApplyOptions{})
					mu.Lock()
					defer mu.Unlock()
					switch module.CodeOf(err) {
					case "":
						won++
					case module.CodeLoopConflict, module.CodeLoopIllegal, module.CodeLoopStale: // by when they came
					default:
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if got, n := state(t, w, hash), liveItems(t, w); won == 0 || won > 1 && !alone || got != loop.StateApplied || n != 2 {
				t.Fatalf("%d applies, %s, %d items", won, got, n)
			}
			c, err := w.engine.Case(t.Context(), hash)
			if err != nil {
				t.Fatal(err)
			}
			events := map[loop.AuditEvent]int{}
			for _, e := range c.Status.History {
				events[e.Event]++
			}
			if events[loop.EventApplyIntent] != 1 || events[loop.EventApplied] != 1 {
				t.Fatalf("history %v", events)
			}
		}
	}
}

func TestThreat27ForgedEntries(t *testing.T) {
	w := newWorld(t, nil)
	w.failing(12)
	w.run(pinned(), loop.RunOptions{})
	c := w.cases()[0]
	// Somebody who can write the log slips in an approval that does not chain.
	forged := fmt.Sprintf(`{"v":1,"rec_hash":%q,"event":"approved","from":"pending","to":"approved","actor":"rex","observer_type":"human","because":"x","previous_audit_hash":%q,"at_ms":1}`, c.Hash, strings.Repeat("0", 64))
	if _, err := w.store.Append(t.Context(), c.Hash, []byte(forged), c.Status.Last); err != nil {
		t.Fatal(err)
	}
	_, err := w.engine.Case(t.Context(), c.Hash)
	wantCode(t, err, "LOOP_INVALID")
	_, err = w.engine.Apply(t.Context(), pinned(), rex(), c.Hash, "now", loop.ApplyOptions{})
	wantCode(t, err, "LOOP_INVALID")
	for name, tt := range map[string]struct{ event, rec, code string }{
		"applied, which nobody approved": {"applied", "", "LOOP_ILLEGAL_TRANSITION"},
		"of another recommendation":      {"approved", strings.Repeat("a", 64), "LOOP_INVALID"},
	} {
		w := newWorld(t, nil)
		w.failing(12)
		w.run(pinned(), loop.RunOptions{})
		c := w.cases()[0]
		// This one chains.
		forged := fmt.Sprintf(`{"v":1,"rec_hash":%q,"event":%q,"from":"pending","to":%q,"actor":"rex","observer_type":"human","because":"x","previous_audit_hash":%q,"at_ms":1}`, cmp.Or(tt.rec, c.Hash), tt.event, tt.event, c.Status.LastHash)
		if _, err := w.store.Append(t.Context(), c.Hash, []byte(forged), c.Status.Last); err != nil {
			t.Fatal(err)
		}
		if _, err := w.engine.Case(t.Context(), c.Hash); module.CodeOf(err) != module.Code(tt.code) {
			t.Errorf("an entry %s: %v, want %s", name, err, tt.code)
		}
	}
	// Writing is neither reviewing nor applying, reviewing is not applying, and agents
	// and schedules do neither.
	reviewer, applier := rex(), rex()
	reviewer.Scopes, applier.Scopes = []loop.Scope{loop.ScopeReview}, []loop.Scope{loop.ScopeApply}
	_, err = w.engine.Apply(t.Context(), pinned(), reviewer, c.Hash, "x", loop.ApplyOptions{})
	wantCode(t, err, "LOOP_SCOPE")
	_, err = w.engine.Rollback(t.Context(), pinned(), reviewer, c.Hash, "x")
	wantCode(t, err, "LOOP_SCOPE")
	_, err = w.engine.Approve(t.Context(), pinned(), applier, c.Hash, "x")
	wantCode(t, err, "LOOP_SCOPE")
	for _, who := range []loop.Actor{
		{ID: "w", Observer: loop.ObserverHuman, Scopes: []loop.Scope{loop.ScopeWrite, loop.ScopeRead}},
		{ID: "s", Observer: loop.ObserverSystem, Scopes: []loop.Scope{loop.ScopeReview, loop.ScopeApply, loop.ScopeAdmin}},
		{ID: "a", Observer: loop.ObserverAgent, Scopes: []loop.Scope{loop.ScopeAdmin}},
		{Observer: loop.ObserverHuman, Scopes: []loop.Scope{loop.ScopeAdmin}},
	} {
		_, err := w.engine.Approve(t.Context(), pinned(), who, c.Hash, "x")
		wantCode(t, err, "LOOP_SCOPE")
		_, err = w.engine.Apply(t.Context(), pinned(), who, c.Hash, "x", loop.ApplyOptions{})
		wantCode(t, err, "LOOP_SCOPE")
		_, err = w.engine.Rollback(t.Context(), pinned(), who, c.Hash, "x")
		wantCode(t, err, "LOOP_SCOPE")
	}
}

func TestThreat28Because(t *testing.T) {
	w := newWorld(t, nil)
	w.failing(12)
	w.run(pinned(), loop.RunOptions{})
	hash := w.cases()[0].Hash
	for _, reason := range []string{"", " \t\n", strings.Repeat("x", 501), "\u200b\u202e"} {
		for name, f := range map[string]func() error{
			"approve": func() error { _, err := w.engine.Approve(t.Context(), pinned(), rex(), hash, reason); return err },
			"reject":  func() error { _, err := w.engine.Reject(t.Context(), pinned(), rex(), hash, reason); return err },
			"apply": func() error {
				_, err := w.engine.Apply(t.Context(), pinned(), rex(), hash, reason, loop.ApplyOptions{})
				return err
			},
			"rollback": func() error { _, err := w.engine.Rollback(t.Context(), pinned(), rex(), hash, reason); return err },
		} {
			if err := f(); module.CodeOf(err) != module.CodeLoopInvalid {
				t.Errorf("%s with %.10q: %v", name, reason, err)
			}
		}
	}
	if _, err := w.engine.Approve(t.Context(), pinned(), rex(), hash, strings.Repeat("ä", 500)); err != nil {
		t.Errorf("500 characters: %v", err)
	}
}

func TestThreat29Policies(t *testing.T) {
	for _, raw := range []string{
		`{"llm_cmd":"rm -rf /"}`, `{"Deny":[]}`, `{"skills":{"enabled":true,"command":"x"}}`, `{"auto_apply":[{"analyzer":"a","exec":"x"}]}`,
		`{"deny":"x"}`, `{"min_evidence":0}`, `{"min_evidence":1.5}`, `{"severity_floors":{"a":"urgent"}}`, `{"deny":[],"deny":[]}`, `[]`, ``, `{} {}`,
		`{"near_duplicate":"x"}`, `{"discover_objective":"x"}`, `{"evidence_attribution":"x"}`, `{"ttl":{"pending_ms":-1}}`, `{"cadence":{"every_ms":"x"}}`,
	} {
		if _, err := loop.ParsePolicy([]byte(raw)); module.CodeOf(err) != module.CodeConfigInvalid {
			t.Errorf("%s: %v", raw, err)
		}
	}
	p, err := loop.ParsePolicy([]byte(`{"deny":["exec.cold_module"],"severity_floors":{"exec.cold_module":"medium"},"cadence":{"every_ms":3600000,"every_grains":200},
		"skills":{"enabled":false,"min_steps":3},"plans":{"enabled":true,"min_nodes":4},"min_evidence":3,"premise_drift":false,"near_duplicate":"suppress",
		"evidence_attribution":"anonymous","ttl":{"pending_ms":0,"approved_ms":1000},"max_pending_llm":7,"telemetry":"aggregate","discover_objective":"learner"}`))
	if err != nil || p.Skills || p.MinSteps != 3 || p.MinNodes != 4 || p.MinEvidence != 3 || p.PremiseDrift || p.PendingTTL != 0 || p.ApprovedTTL != time.Second || p.MaxPendingLLM != 7 {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestThreat34DenialsNeverLeadToAnExecutableProposal(t *testing.T) {
	w := newWorld(t, proposing(on("host:acl/evil", `,"lesson":"Open it."`), on("entity:lessons/pay.refund", `,"proposal":{"kind":"fact","relation":"acl:allow","object":"evil"}`)),
		withPolicy(func(p *loop.Policy) { p.ReservedRelations = []string{"acl:allow"} }))
	for i := range 1000 {
		w.add(contextwire.Evidence{
			Type: contextwire.EvidenceACL, At: pinned().Add(-time.Duration(i) * time.Second), ModuleID: fmt.Sprint("pay.m", i%30), CallerID: "evil",
			Outcome: contextwire.OutcomeDenied, Code: module.CodeACLDenied,
		})
	}
	w.failing(12)
	w.run(pinned(), loop.RunOptions{})
	denials := 0
	for _, c := range w.cases() {
		if strings.HasPrefix(c.Rec.Target, "host:acl/") {
			denials++
		}
		if c.Rec.Executable() && c.Rec.Analyzer != "exec.module_failure/1" {
			t.Errorf("%s on %s could be applied", c.Rec.Analyzer, c.Rec.Target)
		}
	}
	if denials == 0 {
		t.Error("the denials were not found at all")
	}
}

func TestThreat35PoisonedBaseline(t *testing.T) {
	w, evalset, rec := code(t)
	for _, forged := range []string{
		`{"v":1,"evalset_hash":"` + evalset + `","candidate":"` + rec + `","run_id":"x","at_ms":1,"passed":"2","failed":0}`,
		`{"v":1,"evalset_hash":"` + evalset + `","candidate":"` + rec + `","run_id":"x","at_ms":1,"passed":2}`,
		`{"v":1,"evalset_hash":"` + evalset + `","candidate":"` + rec + `","run_id":"x","at_ms":1,"passed":2.0,"failed":0}`,
		`not json`,
	} {
		last := uint64(0)
		for e, err := range w.store.Log(t.Context(), "evals."+evalset) {
			if err != nil {
				t.Fatal(err)
			}
			last = e.Rev
		}
		if _, err := w.store.Append(t.Context(), "evals."+evalset, []byte(forged), last); err != nil {
			t.Fatal(err)
		}
		_, err := w.engine.Apply(t.Context(), pinned(), rex(), rec, "now", loop.ApplyOptions{})
		wantCode(t, err, "LOOP_GATED")
	}
}

func TestThreat36PremiseDrift(t *testing.T) {
	// A lesson that cites another one which is rolled back later.
	build := func() (*world, *loop.Case, string) {
		w := newWorld(t, proposing(lesson("Cancel first.")))
		w.failing(12)
		w.run(pinned(), loop.RunOptions{})
		base := w.llm()[0].Hash
		w.approve(base)
		w.apply(pinned(), base)
		w.model.discover = func(req map[string]any) string {
			for _, item := range req["evidence"].([]any) {
				if e := item.(map[string]any); e["grain_type"] == "lesson" {
					return discovery(`{"summary":"It follows","target":"entity:lessons/pay.charge","evidence":["` + e["id"].(string) + `"],"confidence":0.8,"lesson":"Charge after the refund."}`)
				}
			}
			return `{}`
		}
		w.engine = w.open(w.store, withPolicy(func(p *loop.Policy) { p.MinEvidence = 1 }))
		w.run(pinned().Add(time.Hour), loop.RunOptions{FullSweep: true})
		for _, c := range w.llm() {
			if c.Hash != base {
				return w, c, base
			}
		}
		t.Fatal("the second lesson was not stored")
		return nil, nil, ""
	}
	w, second, base := build()
	w.approve(second.Hash)
	w.apply(pinned().Add(time.Hour), second.Hash)
	w.model.discover = nil
	if r := w.run(pinned().Add(2*time.Hour), loop.RunOptions{}); r.Drifted != 0 {
		t.Errorf("its own apply counts as drift: %+v", r)
	}
	// Nor is it one that the same is said again, about the same, by another way.
	w.model.discover = func(map[string]any) string {
		return discovery(on("entity:notes/pay.refund", `,"lesson":"Cancel first."`))
	}
	w.run(pinned().Add(2*time.Hour), loop.RunOptions{FullSweep: true})
	again := w.llm()[slices.IndexFunc(w.llm(), func(c *loop.Case) bool { return c.Status.State == loop.StatePending })].Hash
	w.approve(again)
	w.apply(pinned().Add(2*time.Hour), again)
	w.model.discover = nil
	if r := w.run(pinned().Add(150*time.Minute), loop.RunOptions{}); r.Drifted != 0 {
		t.Errorf("the same again counts as drift: %+v", r)
	}
	if _, err := w.engine.Rollback(t.Context(), pinned(), rex(), again, "once is enough"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.engine.Rollback(t.Context(), pinned(), rex(), base, "wrong"); err != nil {
		t.Fatal(err)
	}
	r := w.run(pinned().Add(3*time.Hour), loop.RunOptions{})
	var revert *loop.Case
	for _, c := range w.cases() {
		if c.Rec.Proposal.Kind == loop.ChangeRevert {
			revert = c
		}
	}
	if r.Drifted != 1 || revert == nil || revert.Rec.Proposal.RevertOf != second.Hash {
		t.Fatalf("no revert was proposed: %+v", r)
	}
	if again := w.run(pinned().Add(4*time.Hour), loop.RunOptions{}); again.Drifted != 0 || again.Stored != 0 {
		t.Errorf("the same drift counts again: %+v", again)
	}

	w, second, base = build()
	w.model.discover = nil
	if _, err := w.engine.Rollback(t.Context(), pinned(), rex(), base, "wrong"); err != nil {
		t.Fatal(err)
	}
	if r := w.run(pinned().Add(2*time.Hour), loop.RunOptions{}); r.Withdrawn != 1 || state(t, w, second.Hash) != loop.StateWithdrawn {
		t.Errorf("an open one was not withdrawn: %+v", r)
	}
}

func TestThreat38PendingTextReachesNobody(t *testing.T) {
	w := newWorld(t, proposing(lesson("PENDING TEXT")))
	w.failing(12)
	w.run(pinned(), loop.RunOptions{})
	if g := w.guidance("pay.refund"); len(g) != 0 {
		t.Errorf("guidance while pending: %+v", g)
	}
	w.approve(w.llm()[0].Hash)
	if g := w.guidance("pay.refund"); len(g) != 0 {
		t.Errorf("guidance while approved: %+v", g)
	}
}
