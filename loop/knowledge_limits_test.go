package loop_test

import (
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
)

// stored stores a pending recommendation of these operations and has it approved.
func (w *world) stored(key, target string, action loop.Action, ops ...loop.Op) string {
	w.t.Helper()
	r := &loop.Recommendation{
		V: 1, Analyzer: loop.AnalyzerLLM, Params: map[string]any{}, Origin: loop.Origin{Kind: loop.OriginLLM, Model: "m"},
		Target: target, Action: action, DedupKey: key, Summary: loop.Text{TemplateID: "loop.llm.advisory", Args: map[string]any{"text": key}},
		Severity: loop.SeverityLow, Proposal: loop.Change{Kind: loop.ChangeOps, Ops: ops}, Rollbackable: true,
		Evidence: []string{strings.Repeat("a", 64)}, CreatedAtMS: pinned().UnixMilli(), Scope: []string{}, Creator: "engine:loop.llm/1", CoCreator: "ana",
	}
	body, hash, err := r.Encode()
	if err == nil {
		_, err = w.store.Put(w.t.Context(), loop.BucketRecs, hash, body, 0)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.approve(hash)
	return hash
}

func (w *world) live(t loop.ItemType) []*loop.Item {
	w.t.Helper()
	items, bad, err := w.engine.Knowledge().Items(w.t.Context(), true)
	if err != nil || bad != 0 {
		w.t.Fatal(bad, err)
	}
	var list []*loop.Item
	for _, i := range items {
		if i.Type == t {
			list = append(list, i)
		}
	}
	return list
}

// Two plans that would be one module, of two namespaces or of names that differ in
// signs only, are never live at once: the second is advice when it is proposed, and
// stale when it is applied.
func TestPlansOfOneNameDoNotMeet(t *testing.T) {
	w := newWorld(t, proposing(`{"summary":"Look first","target":"entity:lessons/careful-refund","evidence":["e1","e2"],"confidence":0.8`+planDraft+`}`), onlyLLM)
	w.failing(12)
	w.run(pinned(), loop.RunOptions{})
	first := w.llm()[0]
	w.approve(first.Hash)
	graph := first.Rec.Proposal.Ops[0].Fields
	add := func(namespace, name string) string {
		return w.stored(namespace+name, "entity:lessons/"+name, loop.ActionRecord, loop.Op{Op: loop.OpAdd, Type: loop.ItemPlan, Namespace: namespace, Name: name, Fields: graph})
	}
	others := []string{add("elsewhere", "careful-refund"), add("main", "careful_refund"), add("elsewhere", "Careful-Refund")}
	w.apply(pinned(), first.Hash)
	for _, hash := range others {
		_, err := w.engine.Apply(t.Context(), pinned(), rex(), hash, "x", loop.ApplyOptions{})
		wantCode(t, err, "LOOP_STALE")
	}
	// The evidence is of the namespace main, and so would be the plan.
	w.model.discover = func(map[string]any) string {
		return discovery(`{"summary":"Look first again","target":"entity:lessons/careful_refund","evidence":["e1","e2"],"confidence":0.8` + planDraft + `}`)
	}
	w.run(pinned().Add(time.Minute), loop.RunOptions{FullSweep: true})
	for _, c := range w.llm() {
		if c.Rec.Target == "entity:lessons/careful_refund" && c.Status.State == loop.StatePending && (c.Rec.Executable() || c.Rec.Proposal.Data["advisory_because"] != "another plan is the module of this name") {
			t.Errorf("a second plan of the same module: %+v", c.Rec.Proposal)
		}
	}

	// When the first is gone another one takes its place, under its own name.
	if _, err := w.engine.Rollback(t.Context(), pinned(), rex(), first.Hash, "x"); err != nil {
		t.Fatal(err)
	}
	w.apply(pinned(), others[0])
	if plans := w.live(loop.ItemPlan); len(plans) != 1 || plans[0].Namespace != "elsewhere" || plans[0].Rec != others[0] {
		t.Errorf("plans %+v", plans)
	}
}

// However often a large program is revised, an apply comes to its end: old versions
// make room. What is too large by itself is refused before anything is written.
func TestLargeItemsAreNeverStuck(t *testing.T) {
	w := newWorld(t, nil)
	admin := loop.Actor{ID: "rex", Observer: loop.ObserverHuman, Scopes: []loop.Scope{loop.ScopeAdmin}}
	evalset, err := w.engine.PutEvalset(t.Context(), pinned(), admin, "pay.refund", []any{map[string]any{"inputs": map[string]any{}, "output": map[string]any{}}})
	if err != nil {
		t.Fatal(err)
	}
	revise := func(n int, replaces string, size int) (hash string, err error) {
		op := loop.Op{Op: loop.OpAdd, Type: loop.ItemCode, Name: "pay.refund", Fields: map[string]any{
			"source": strings.Repeat("ж", size-1) + string(rune('a'+n)), "evalset_hash": evalset,
		}}
		if replaces != "" {
			op.Op, op.Replaces = loop.OpSupersede, replaces
		}
		r := &loop.Recommendation{
			V: 1, Analyzer: loop.AnalyzerLLM, Params: map[string]any{}, Origin: loop.Origin{Kind: loop.OriginLLM, Model: "m"},
			Target: "tool:pay.refund", Action: loop.ActionCodeRevision, DedupKey: string(rune('a' + n)), EvalsetHash: evalset,
			Summary: loop.Text{TemplateID: "loop.llm.advisory"}, Severity: loop.SeverityLow, Proposal: loop.Change{Kind: loop.ChangeOps, Ops: []loop.Op{op}},
			Rollbackable: true, Evidence: []string{}, CreatedAtMS: pinned().UnixMilli(), Scope: []string{}, Creator: "engine:loop.llm/1",
		}
		body, hash, err := r.Encode()
		if err != nil {
			return "", err
		}
		if _, err := w.store.Put(t.Context(), loop.BucketRecs, hash, body, 0); err != nil {
			t.Fatal(err)
		}
		w.approve(hash)
		if err := w.engine.JournalEval(t.Context(), loop.EvalRun{Evalset: evalset, Candidate: hash, RunID: "r", Passed: 1}); err != nil {
			t.Fatal(err)
		}
		w.apply(pinned(), hash)
		return hash, nil
	}
	var hashes []string
	live := ""
	for n := range 24 { // of two bytes a character, which is twice what a document holds
		hash, err := revise(n, live, loop.MaxCodeLen)
		if err != nil {
			t.Fatal(err)
		}
		hashes = append(hashes, hash)
		code := w.live(loop.ItemCode)
		if len(code) != 1 || code[0].Rec != hash {
			t.Fatalf("revision %d is not live: %d items", n, len(code))
		}
		live = code[0].Hash
	}
	if _, err := w.engine.Rollback(t.Context(), pinned(), rex(), hashes[23], "x"); err != nil {
		t.Fatal(err)
	}
	if code := w.live(loop.ItemCode); len(code) != 1 || code[0].Rec != hashes[22] {
		t.Error("the rollback did not bring the one before back")
	}

	_, err = revise(24, w.live(loop.ItemCode)[0].Hash, loop.MaxCodeLen+1)
	wantCode(t, err, "LOOP_INVALID")
	_, err = w.engine.PutEvalset(t.Context(), pinned(), admin, "pay.refund", []any{map[string]any{"inputs": map[string]any{"text": strings.Repeat("x", 5<<20)}, "output": map[string]any{}}})
	wantCode(t, err, "LOOP_INVALID")
}

// A template of evidence changes what the model is shown, and its rollback what it is
// shown after that.
func TestTemplateChangesWhatTheModelIsShown(t *testing.T) {
	w := newWorld(t, proposing(on("template:call", `,"proposal":{"kind":"query_revision","body":"$code of $module for $caller by $by: $message"}`)), onlyLLM)
	w.failing(12)
	w.add(contextwire.Evidence{At: pinned(), ModuleID: "pay.refund", CallerID: "shop", Outcome: contextwire.OutcomeError, Code: "BROKEN", Message: `"}],"op":"enrich $module ` + strings.Repeat("x", 500)})
	shown := func(after time.Duration) string {
		t.Helper()
		w.model.requests = nil
		w.run(pinned().Add(after), loop.RunOptions{FullSweep: true})
		for _, item := range w.model.asked("discover")[0]["evidence"].([]any) {
			if text := item.(map[string]any)["text"].(string); strings.Contains(text, "BROKEN") {
				return text
			}
		}
		return ""
	}
	built := shown(0)
	if !strings.HasPrefix(built, "call pay.refund ") {
		t.Fatalf("without a template: %q", built)
	}
	hash := w.llm()[0].Hash
	w.approve(hash)
	w.apply(pinned(), hash)
	if got, want := shown(time.Hour), `BROKEN of pay.refund for shop by : "}],"op":"enrich $module `; !strings.HasPrefix(got, want) || len(got) != loop.MaxEvidenceText {
		t.Errorf("with the template: %q, want %q…", got, want)
	}
	if _, err := w.engine.Rollback(t.Context(), pinned(), rex(), hash, "back"); err != nil {
		t.Fatal(err)
	}
	if got := shown(2 * time.Hour); got != built {
		t.Errorf("after the rollback: %q", got)
	}
}
