package loop_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
)

// The rows of the threat table about what a draft may become.

// one runs one draft and returns what was stored of it, nil for nothing.
func one(t *testing.T, d string, opts ...option) (*world, *loop.Case, *loop.Funnel) {
	t.Helper()
	w := newWorld(t, proposing(d), opts...)
	w.failing(12)
	f := w.run(pinned(), loop.RunOptions{}).Funnel
	switch list := w.llm(); len(list) {
	case 0:
		return w, nil, f
	case 1:
		return w, list[0], f
	default:
		t.Fatalf("%d recommendations of one draft", len(list))
		return nil, nil, nil
	}
}

func on(target, more string) string {
	return `{"summary":"s","target":` + quoted(target) + `,"evidence":["e1","e2"],"confidence":0.8` + more + `}`
}

func TestThreat14UnknownKindPlusLesson(t *testing.T) {
	for _, more := range []string{
		`,"lesson":"Cancel first.","proposal":{"kind":"teleport"}`,
		`,"lesson":"Cancel first.","proposal":{"lesson":"x"}`,
		`,"lesson":"Cancel first.","proposal":"lesson"`,
		`,"lesson":"Cancel first.","proposal":{"kind":"skill"}`,
		`,"lesson":"Cancel first.","proposal":{"kind":"lesson","lesson":"  "}`,
		`,"lesson":"` + strings.Repeat("x", 241) + `"`,
	} {
		_, c, _ := one(t, draft(more))
		if c == nil || c.Rec.Executable() || c.Rec.Action != loop.ActionFlag {
			t.Errorf("%.80s: %+v, want advisory", more, c)
		}
	}
	_, c, _ := one(t, draft(`,"lesson":"Cancel first.","proposal":null`))
	if c == nil || c.Rec.Kind != loop.KindLesson {
		t.Errorf("null proposal: %+v, want the lesson", c)
	}
}

func TestThreat15ModelCannotNameItsScope(t *testing.T) {
	_, c, _ := one(t, draft(`,"namespace":"secret","proposal":{"kind":"lesson","lesson":"Cancel first.","namespace":"secret","subject":"other","evalset_hash":"`+strings.Repeat("a", 64)+`"}`))
	if c == nil || len(c.Rec.Proposal.Ops) != 1 {
		t.Fatalf("%+v", c)
	}
	op := c.Rec.Proposal.Ops[0]
	if op.Namespace != "main" || op.Name != "pay.refund" || c.Rec.EvalsetHash != "" || len(op.Fields) != 3 {
		t.Errorf("the draft chose %+v", op)
	}
	// The namespace is the most frequent among the cited records.
	w := newWorld(t, proposing(`{"summary":"s","target":"entity:x/y","evidence":["e1","e2","e3"],"confidence":0.8,"lesson":"Cancel first."}`), onlyLLM)
	for i, ns := range []string{"b", "b", "a"} { // a is cited first
		w.add(contextwire.Evidence{NS: ns, At: pinned().Add(time.Duration(i-3) * time.Second), ModuleID: "m.x", Outcome: contextwire.OutcomeError, Message: "x"})
	}
	w.run(pinned(), loop.RunOptions{})
	if got := w.llm()[0].Rec.Proposal.Ops[0].Namespace; got != "b" {
		t.Errorf("namespace %q, want b", got)
	}
}

func TestThreat16TargetClasses(t *testing.T) {
	for _, target := range []string{
		"doc:readme", "host:acl/x", "evalset:" + strings.Repeat("a", 64), "model:m", "bogus:x", "", "entity:", "entity", ":x", "tool:pay.refund",
		"entity:a b", "entity:a/", "entity:a\u202eb", "query:\x1b", "entity:" + strings.Repeat("x", 300), " entity:a/b",
	} {
		w, c, f := one(t, on(target, `,"lesson":"Cancel first."`), withPolicy(func(p *loop.Policy) { p.Code = true }))
		if c != nil || f.DroppedTarget != 1 || len(w.model.asked("ground")) != 0 {
			t.Errorf("%q: %+v, %+v", target, c, f)
		}
	}
}

func TestThreat17ControlAndBidi(t *testing.T) {
	nasty := "a\u202eb\x1b[31mc\nd\u200be\u2028f"
	for _, d := range []string{
		`{"summary":` + quoted(nasty) + `,"guidance":` + quoted(nasty) + `,"target":"entity:l/x","evidence":["e1","e2"],"confidence":0.8,"lesson":` + quoted(nasty) + `}`,
		on("entity:l/x", `,"proposal":{"kind":"fact","relation":"r","object":`+quoted(nasty)+`}`),
		on("entity:l/x", `,"proposal":{"kind":"skill","description":`+quoted(nasty)+`,"when_to_use":`+quoted(nasty)+`,"steps":[`+quoted(nasty)+`,`+quoted(nasty)+`]}`),
		on("entity:l/x", strings.Replace(planDraft, `look.ok == true`, "look.ok == \\\"a\u202eb\\\"", 1)),
	} {
		w, c, _ := one(t, d)
		if c == nil {
			t.Fatal("dropped")
		}
		body, _, err := c.Rec.Encode()
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{string(body), w.engine.Render(c.Rec)} {
			if strings.ContainsAny(text, "\u202e\x1b\u200b\u2028\n") {
				t.Errorf("it kept what must go: %q", text)
			}
		}
	}
	// A note of ENRICH goes to the reviewer too, and a program has several lines.
	m := &fakeModel{enrich: func(map[string]any) string {
		return `{"notes":[{"target":"entity:lessons/pay.refund","guidance":` + quoted(nasty) + `}]}`
	}}
	noted := newWorld(t, m)
	noted.failing(12)
	noted.run(pinned(), loop.RunOptions{})
	if got := noted.cases()[0].Rec.Guidance; got == "" || strings.ContainsAny(got, "\u202e\x1b\u200b\u2028\n") {
		t.Errorf("the note is %q", got)
	}
	program := newWorld(t, proposing(on("tool:pay.refund", `,"proposal":{"kind":"code_revision","source":`+quoted("if x:\r\n\tpass # \u202ea\x1b[31m\u200b")+`}`)), onlyLLM,
		withPolicy(func(p *loop.Policy) { p.Code = true }))
	program.failing(12)
	program.evalset("pay.refund", 1)
	program.run(pinned(), loop.RunOptions{})
	if got := program.llm()[0].Rec.Proposal.Ops[0].Fields["source"]; got != "if x:\n\tpass # a[31m" {
		t.Errorf("the program is %q", got)
	}
	for _, relation := range []string{"a b", "a\nb", "", "mg:x", "LOOP:y", "lesson", strings.Repeat("r", 65), "ä"} {
		if _, c, _ := one(t, on("entity:l/x", `,"proposal":{"kind":"fact","relation":`+quoted(relation)+`,"object":"o"}`)); c == nil || c.Rec.Executable() {
			t.Errorf("relation %q was accepted", relation)
		}
	}
}

func TestThreat18QueryBodies(t *testing.T) {
	for _, tt := range []struct {
		target, body string
		ok           bool
	}{
		{"query:discover", "type=call module=pay.*", true},
		{"query:discover", "code=purged_at", true},
		{"template:call", "Look for purged_at in $message", true},
		{"template:call", "x } FORGET h { $message", false},
		{"template:call", "x } then { $message", false},
		{"template:call", "please purge older $message", false},
		{"template:call", "a,DROP,b $message", false},
		{"template:call", "define $message", false},
		{"template:call", "$inputs", false},
		{"template:call", "nothing of the record", false},
		{"template:call", "$message " + strings.Repeat("x", 400), false},
		{"template:t", "$message", false},
		{"query:discover", "x } FORGET h {", false},
		{"query:discover", "code=forget", false},
		{"query:discover", "anything goes", false},
		{"query:discover", strings.Repeat("type=call ", 201), false},
		{"query:a b", "type=call", false},
		{"query:a\"b", "type=call", false},
		{"template:t}{", "text", false},
		{"entity:l/x", "type=call", false},
	} {
		_, c, _ := one(t, on(tt.target, `,"proposal":{"kind":"query_revision","body":`+quoted(tt.body)+`}`))
		if got := c != nil && c.Rec.Executable(); got != tt.ok {
			t.Errorf("%s %.40q: executable %v, want %v", tt.target, tt.body, got, tt.ok)
		}
	}
}

func TestThreat19JudgesSeeEverythingThatIsWritten(t *testing.T) {
	for _, tt := range []struct{ name, d, want string }{
		{"skill steps", on("entity:l/x", `,"proposal":{"kind":"skill","description":"d","when_to_use":"w","steps":["one","HIDDEN STEP"]}`), "HIDDEN STEP"},
		{"plan steps", on("entity:l/x", strings.ReplaceAll(planDraft, "Refund it", "HIDDEN STEP")), "HIDDEN STEP"},
		{"plan conditions", on("entity:l/x", strings.ReplaceAll(planDraft, "look.ok == true", "hidden.cond")), "hidden.cond"},
		{"fact", on("entity:l/x", `,"proposal":{"kind":"fact","relation":"r","object":"HIDDEN"}`), "HIDDEN"},
		{"query", on("query:discover", `,"proposal":{"kind":"query_revision","body":"module=hidden.m"}`), "hidden.m"},
	} {
		w, c, _ := one(t, tt.d)
		if c == nil || !c.Rec.Executable() {
			t.Errorf("%s: %+v", tt.name, c)
			continue
		}
		ground := w.model.asked("ground")[0]["claims"].([]any)[0].(map[string]any)["claim"].(string)
		verify := w.model.asked("verify")[0]["findings"].([]any)[0].(map[string]any)["summary"].(string)
		if !strings.Contains(ground, tt.want) || ground != verify || !strings.Contains(w.engine.Render(c.Rec), tt.want) {
			t.Errorf("%s: ground %q, verify %q, review %q", tt.name, ground, verify, w.engine.Render(c.Rec))
		}
	}
	// What rests on something that is live.
	revised, hash := plans(t)
	revised.apply(pinned(), hash)
	revised.model.discover = func(map[string]any) string {
		return discovery(on("grain:"+livePlan(t, revised), `,"proposal":{"kind":"plan_revision","edits":[{"path":"retries.do","from":null,"to":2}]}`))
	}
	revised.run(pinned().Add(day(1)), loop.RunOptions{FullSweep: true})
	piled, hashes := pile(t)
	piled.model.discover = func(map[string]any) string { return discovery(consolidation(hashes)) }
	piled.run(pinned().Add(time.Hour), loop.RunOptions{FullSweep: true})
	coded, _, _ := code(t)
	for _, tt := range []struct {
		name string
		w    *world
		want string
	}{
		{"plan edits", revised, "null -> 2"},
		{"lessons that are replaced", piled, "alpha one"},
		{"code", coded, "+    pass"},
	} {
		asked := tt.w.model.asked("ground")
		claim := asked[len(asked)-1]["claims"].([]any)[0].(map[string]any)["claim"].(string)
		shown := ""
		for _, c := range tt.w.llm() {
			shown += tt.w.engine.Render(c.Rec)
		}
		if !strings.Contains(claim, tt.want) || !strings.Contains(shown, tt.want) {
			t.Errorf("%s: ground %q, review %q", tt.name, claim, shown)
		}
	}
}

// livePlan is the hash of the live plan.
func livePlan(t *testing.T, w *world) string {
	t.Helper()
	items, _, err := w.engine.Knowledge().Items(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range items {
		if i.Type == loop.ItemPlan {
			return i.Hash
		}
	}
	t.Fatal("no plan")
	return ""
}

func TestThreat20InventedTools(t *testing.T) {
	for _, tt := range []struct {
		name, first, second string
		want                loop.Kind
	}{
		{"all seen", "pay.refund", "PAY.REFUND", loop.KindPlan},
		{"one invented", "pay.refund", "rm.everything", loop.KindSkill},
		{"all invented", "rm.everything", "rm.more", ""},
		{"none", "", "", ""},
	} {
		d := strings.Replace(strings.Replace(planDraft, `"tool":"pay.refund"`, `"tool":`+quoted(tt.first), 1), `"tool":"pay.refund"`, `"tool":`+quoted(tt.second), 1)
		if tt.first == "pay.refund" {
			d = strings.Replace(planDraft, `"do","tool":"pay.refund"`, `"do","tool":`+quoted(tt.second), 1)
		}
		_, c, _ := one(t, on("entity:l/x", d))
		if c == nil || c.Rec.Kind != tt.want {
			t.Errorf("%s: %+v, want %q", tt.name, c, tt.want)
		}
	}
	// Seen once, and gone since.
	_, c, _ := one(t, on("entity:l/x", planDraft), func(o *loop.Options) { o.Registered = func(string) bool { return false } })
	if c == nil || c.Rec.Executable() {
		t.Errorf("a plan over modules that are not there: %+v", c)
	}
}

func TestThreat21UnboundedGraphs(t *testing.T) {
	loopEdge := func(more string) string {
		return strings.Replace(planDraft, `"edges":[`, `"edges":[{"src":"do","dst":"look"`+more+`},`, 1)
	}
	for _, tt := range []struct {
		name, d string
		skills  bool
		want    loop.Kind
	}{
		{"a bounded cycle", loopEdge(`,"max_cycles":3`), true, loop.KindPlan},
		{"no bound", loopEdge(``), true, loop.KindSkill},
		{"a bound of zero", loopEdge(`,"max_cycles":0`), true, loop.KindSkill},
		{"a bound of 101", loopEdge(`,"max_cycles":101`), true, loop.KindSkill},
		{"unknown node", strings.Replace(planDraft, `"dst":"do"`, `"dst":"gone"`, 1), true, loop.KindSkill},
		{"unreachable", strings.Replace(planDraft, `"dst":"do"`, `"dst":"look","max_cycles":1`, 1), true, loop.KindSkill},
		{"condition outside the grammar", strings.Replace(planDraft, `look.ok == true`, `look.ok < 1`, 1), true, loop.KindSkill},
		{"no skills to fall back to", loopEdge(``), false, ""},
	} {
		_, c, _ := one(t, on("entity:l/x", tt.d), withPolicy(func(p *loop.Policy) { p.Skills = tt.skills }))
		if c == nil || c.Rec.Kind != tt.want {
			t.Errorf("%s: %+v, want %q", tt.name, c, tt.want)
		}
	}
}

func TestThreat22StalePlanEdits(t *testing.T) {
	w, hash := plans(t)
	w.apply(pinned(), hash)
	planHash := func() string { return livePlan(t, w) }
	first := planHash()
	edit := func(from, to string) string {
		return on("grain:"+first, `,"proposal":{"kind":"plan_revision","edits":[{"path":"retries.do","from":`+from+`,"to":`+to+`}]}`)
	}
	w.model.discover = func(map[string]any) string { return discovery(edit("7", "2")) }
	w.run(pinned().Add(day(1)), loop.RunOptions{FullSweep: true})
	w.model.discover = func(map[string]any) string { return discovery(edit("null", "2"), edit("null", "3")) }
	w.run(pinned().Add(day(2)), loop.RunOptions{FullSweep: true})
	var edits []string
	stale := 0
	for _, c := range w.llm() {
		switch {
		case c.Rec.Kind == loop.KindPlanRevision:
			edits = append(edits, c.Hash)
			w.approve(c.Hash)
		case !c.Rec.Executable():
			stale++
		}
	}
	if len(edits) != 2 || stale != 1 {
		t.Fatalf("%d revisions, %d advisory; want 2 and the stale one", len(edits), stale)
	}
	w.apply(pinned(), edits[0])
	if planHash() == first {
		t.Error("the plan did not change")
	}
	_, err := w.engine.Apply(t.Context(), pinned(), rex(), edits[1], "second", loop.ApplyOptions{})
	wantCode(t, err, "LOOP_STALE")
	if got := state(t, w, edits[1]); got != loop.StateApproved {
		t.Errorf("the refused one is %s", got)
	}
	// A plan that was replaced is edited by nobody.
	w.model.discover = func(map[string]any) string { return discovery(edit("null", "5")) }
	before := len(w.llm())
	if r := w.run(pinned().Add(day(3)), loop.RunOptions{FullSweep: true}); r.Funnel.AdvisoryProposal != 1 {
		t.Errorf("an edit of a plan that is gone: %+v, %d more", r.Funnel, len(w.llm())-before)
	}
	w.model.discover = nil
	if _, err := w.engine.Rollback(t.Context(), pinned(), rex(), edits[0], "back"); err != nil || planHash() != first {
		t.Errorf("the plan before is not live again: %v", err)
	}
	w.apply(pinned(), edits[1])
}

// pile makes a world with nine live lessons on pay.refund and returns their hashes.
func pile(t *testing.T) (*world, []string) {
	t.Helper()
	w := newWorld(t, &fakeModel{})
	w.failing(12)
	texts := []string{"alpha one", "beta two", "gamma three", "delta four", "epsilon five", "zeta six", "eta seven", "theta eight", "iota nine"}
	for i, text := range texts {
		w.model.discover = func(map[string]any) string { return discovery(on("entity:main/pay.refund", `,"lesson":`+quoted(text))) }
		w.run(pinned().Add(time.Duration(i)*time.Minute), loop.RunOptions{FullSweep: true})
	}
	for _, c := range w.llm() {
		w.approve(c.Hash)
		w.apply(pinned(), c.Hash)
	}
	items, _, err := w.engine.Knowledge().Items(t.Context(), true)
	if err != nil || len(items) != len(texts) {
		t.Fatalf("%d lessons, %v", len(items), err)
	}
	var hashes []string
	for _, i := range items {
		hashes = append(hashes, i.Hash)
	}
	return w, hashes
}

func consolidation(hashes []string) string {
	list := make([]string, len(hashes))
	for i, h := range hashes {
		list[i] = quoted(h)
	}
	return on("entity:main/pay.refund", `,"proposal":{"kind":"consolidation","lesson":"One rule for all.","supersedes":[`+strings.Join(list, ",")+`]}`)
}

func TestThreat23Consolidation(t *testing.T) {
	w, hashes := pile(t)
	try := func(list []string) *loop.Case {
		w.model.discover = func(map[string]any) string { return discovery(consolidation(list)) }
		w.run(pinned().Add(time.Hour), loop.RunOptions{FullSweep: true})
		for _, c := range w.llm() {
			if c.Rec.Kind == loop.KindConsolidation {
				return c
			}
		}
		return nil
	}
	foreign := append([]string{strings.Repeat("a", 64)}, hashes[1:]...)
	for name, list := range map[string][]string{"a foreign hash": foreign, "one member": hashes[:1], "fewer than the pile": hashes[1:], "none": nil} {
		if c := try(list); c != nil {
			t.Fatalf("%s was accepted", name)
		}
	}
	// Nor on another subject than the finding's.
	w.model.discover = func(map[string]any) string {
		return discovery(strings.Replace(consolidation(hashes), "entity:main/pay.refund", "entity:main/pay.charge", 1))
	}
	w.run(pinned().Add(time.Hour), loop.RunOptions{FullSweep: true})
	if slices.ContainsFunc(w.llm(), func(c *loop.Case) bool { return c.Rec.Kind == loop.KindConsolidation }) {
		t.Fatal("a consolidation about another subject was accepted")
	}
	c := try(hashes)
	if c == nil {
		t.Fatal("the pile itself was refused")
	}
	w.approve(c.Hash)
	w.apply(pinned(), c.Hash)
	if g := w.guidance("pay.refund"); len(g) != 1 || g[0].Text != "One rule for all." {
		t.Errorf("guidance %+v", g)
	}
	// It cites lessons that its own apply replaced, which is no drift (row 36).
	w.model.discover = nil
	if r := w.run(pinned().Add(2*time.Hour), loop.RunOptions{}); r.Drifted != 0 || !slices.ContainsFunc(c.Rec.Evidence, func(h string) bool { return slices.Contains(hashes, h) }) {
		t.Errorf("its own apply counts as drift: %+v", r)
	}
	if _, err := w.engine.Rollback(t.Context(), pinned(), rex(), c.Hash, "no"); err != nil {
		t.Fatal(err)
	}
	if g := w.guidance("pay.refund"); len(g) != 9 {
		t.Errorf("%d lessons are live again, want 9", len(g))
	}
}

func TestCrashWhileConsolidating(t *testing.T) {
	var hash string
	eachCrash(t,
		func(t *testing.T) *world {
			w, hashes := pile(t)
			w.model.discover = func(map[string]any) string { return discovery(consolidation(hashes)) }
			w.run(pinned().Add(time.Hour), loop.RunOptions{FullSweep: true})
			for _, c := range w.llm() {
				if c.Rec.Kind == loop.KindConsolidation {
					hash = c.Hash
				}
			}
			w.approve(hash)
			return w
		},
		func(ctx context.Context, _ *world, e *loop.Engine) error {
			_, err := e.Apply(ctx, pinned(), rex(), hash, "now", loop.ApplyOptions{})
			return err
		},
		func(t *testing.T, w *world, n int, after bool) {
			recoverAll(t, w)
			want := 1
			if n == 1 && !after {
				want = 9
			}
			if got := len(w.guidance("pay.refund")); got != want {
				t.Errorf("%d lessons, want %d", got, want)
			}
		})
}

func TestThreat30FloodAndTheCeiling(t *testing.T) {
	w := newWorld(t, proposing(lesson("Cancel first."), on("entity:l/x", "")))
	w.failing(12)
	for i := range 100 {
		w.run(pinned().Add(time.Duration(i)*time.Minute), loop.RunOptions{FullSweep: true})
	}
	if n := len(w.cases()); n != 3 {
		t.Errorf("%d recommendations after 100 passes over the same evidence, want 3", n)
	}
	// The same twice in one answer, in other words about it, is one.
	twice := newWorld(t, proposing(lesson("Cancel first."), strings.Replace(lesson("Cancel first."), "Refunds are refused", "They refuse refunds", 1)))
	twice.failing(12)
	twice.run(pinned(), loop.RunOptions{})
	if n := len(twice.llm()); n != 1 {
		t.Errorf("%d recommendations of the same draft", n)
	}
	n := 0
	w.model.discover = func(map[string]any) string {
		var drafts []string
		for range 7 { // of which the ceiling is no multiple, with the two there are
			n++
			drafts = append(drafts, on(fmt.Sprintf("entity:l/flood%d", n), ""))
		}
		return discovery(drafts...)
	}
	for i := range 20 {
		w.run(pinned().Add(time.Duration(i)*time.Hour), loop.RunOptions{FullSweep: true})
	}
	if n := len(w.llm()); n != 50 {
		t.Errorf("%d pending drafts, want 50 at most", n)
	}
}

func TestThreat31Rephrasing(t *testing.T) {
	w := newWorld(t, proposing(lesson("Always cancel the order before refunding it.")))
	w.failing(12)
	w.run(pinned(), loop.RunOptions{})
	first := w.llm()[0].Hash
	if _, err := w.engine.Reject(t.Context(), pinned(), rex(), first, "not so"); err != nil {
		t.Fatal(err)
	}
	// The same words with other punctuation rest with the rejected one.
	w.model.discover = func(map[string]any) string {
		return discovery(lesson("ALWAYS cancel: the order, before refunding it!"))
	}
	w.run(pinned().Add(day(1)), loop.RunOptions{FullSweep: true})
	if n := len(w.llm()); n != 1 {
		t.Errorf("%d drafts, want the rejected one only", n)
	}
	// Other words that say the same are marked.
	w.model.discover = func(map[string]any) string { return discovery(lesson("Always cancel the order before you refund it.")) }
	w.run(pinned().Add(day(2)), loop.RunOptions{FullSweep: true})
	var marked []loop.NearDuplicate
	for _, c := range w.llm() {
		if c.Hash != first {
			marked = c.Rec.NearDuplicateOf
		}
	}
	if len(marked) != 1 || marked[0].Hash != first || marked[0].State != loop.StateRejected || marked[0].Method != "jaccard" {
		t.Errorf("marks %+v", marked)
	}
	// Or dropped, if the policy says so.
	w.engine = w.open(w.store, withPolicy(func(p *loop.Policy) { p.NearDuplicate = loop.NearDuplicateSuppress }))
	w.model.discover = func(map[string]any) string {
		return discovery(lesson("Always cancel the order before the refund of it."))
	}
	if r := w.run(pinned().Add(day(3)), loop.RunOptions{FullSweep: true}); r.Funnel.DroppedNearDuplicate != 1 || len(w.llm()) != 2 {
		t.Errorf("funnel %+v", r.Funnel)
	}
	// What is live counts as what was rejected does.
	w = newWorld(t, proposing(lesson("Always cancel the order before refunding it.")))
	w.failing(12)
	w.run(pinned(), loop.RunOptions{})
	w.approve(w.llm()[0].Hash)
	w.apply(pinned(), w.llm()[0].Hash)
	w.model.discover = func(map[string]any) string { return discovery(lesson("Always cancel the order before you refund it.")) }
	w.run(pinned().Add(day(1)), loop.RunOptions{FullSweep: true})
	for _, c := range w.llm() {
		if near := c.Rec.NearDuplicateOf; c.Status.State == loop.StatePending && (len(near) != 1 || near[0].State != "") {
			t.Errorf("a lesson near a live one is marked %+v", near)
		}
	}
	if len(w.llm()) != 2 {
		t.Errorf("%d drafts, want 2", len(w.llm()))
	}
}
