package loop_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/module"
)

// What a pass over one namespace has seen, a pass over another has not.
func TestNamespacesHaveWatermarksOfTheirOwn(t *testing.T) {
	w := newWorld(t, &fakeModel{}, onlyLLM)
	for _, ns := range []string{"a", "b"} {
		w.add(contextwire.Evidence{NS: ns, At: pinned(), ModuleID: "m." + ns, Outcome: contextwire.OutcomeError, Message: "x"})
	}
	shown := func(ns ...string) string {
		w.model.requests = nil
		w.run(pinned(), loop.RunOptions{Namespaces: ns})
		return strings.Join(w.model.requests, "")
	}
	if got := shown("a"); !strings.Contains(got, "m.a") || strings.Contains(got, "m.b") {
		t.Errorf("namespace a shows %s", got)
	}
	if got := shown("b"); !strings.Contains(got, "m.b") || strings.Contains(got, "m.a") {
		t.Errorf("namespace b shows %s", got)
	}
	if got := shown("a"); strings.Contains(got, "m.a") {
		t.Error("what was seen is shown again")
	}
	if got := shown("b", "a", "b"); !strings.Contains(got, "m.a") || !strings.Contains(got, "m.b") {
		t.Errorf("both show %s", got)
	}
}

// Two routers run the loop at once: one runs and the other is told so, or they run
// one after the other; nothing is stored twice.
func TestRoutersRunTheLoopAtOnce(t *testing.T) {
	for range 10 {
		w := newWorld(t, nil)
		w.failing(12)
		var wg sync.WaitGroup
		for range 4 {
			e := w.open(w.store)
			wg.Go(func() {
				r, err := e.Run(t.Context(), pinned(), loop.RunOptions{})
				if err != nil || r.Outcome == "skipped" && r.SkipReason != loop.SkipLocked {
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
		wg.Wait()
		if n := len(w.cases()); n != 1 {
			t.Fatalf("%d recommendations, want 1", n)
		}
	}
}

// A pass whose lock ran out while another committed does not commit over it.
func TestPassThatLostItsLockDoesNotCommit(t *testing.T) {
	m := &fakeModel{}
	w := newWorld(t, m, onlyLLM)
	w.failing(12)
	other := loop.NewMemStore() // whose locks are not those of the store
	m.discover = func(map[string]any) string {
		e := w.open(unlocked{w.store, other}, onlyLLM, func(o *loop.Options) { o.Backend = nil })
		if _, err := e.Run(t.Context(), pinned(), loop.RunOptions{}); err != nil {
			t.Error(err)
		}
		return "{}"
	}
	_, err := w.engine.Run(t.Context(), pinned(), loop.RunOptions{Trigger: ana()})
	if module.CodeOf(err) != module.CodeLoopConflict {
		t.Errorf("got %v, want LOOP_CONFLICT", err)
	}
}

// unlocked takes its locks from elsewhere.
type unlocked struct {
	loop.Store
	locks loop.Store
}

func (u unlocked) Lock(ctx context.Context, name string, ttl time.Duration) (func(context.Context) error, error) {
	return u.locks.Lock(ctx, name, ttl)
}

func TestGuidanceOfAModule(t *testing.T) {
	skill := func(name, step string) *loop.Item {
		return &loop.Item{Hash: name, Type: loop.ItemSkill, Name: name, Live: true, Rec: "r", AppliedAtMS: 1, Fields: map[string]any{
			"description": "d", "when_to_use": "w", "steps": []any{step},
		}}
	}
	fact := func(hash, subject, relation, object string, at int64) *loop.Item {
		return &loop.Item{Hash: hash, Type: loop.ItemFact, Name: subject, Live: true, Rec: "r", AppliedAtMS: at, Fields: map[string]any{"relation": relation, "object": object}}
	}
	items := []*loop.Item{
		fact("1", "pay.refund", "lesson", "Cancel first.", 3), fact("2", "pay.refund", "fails_with", "TIMEOUT", 2), fact("3", "pay.refunds", "lesson", "x", 9),
		skill("named", "Call pay.refund, then wait."), skill("at-the-end", "Do pay.refund."), skill("longer", "Call pay.refund.all"), skill("part", "Call xpay.refund"),
	}
	var got []string
	for _, g := range loop.GuidanceOf(items, "pay.refund") {
		got = append(got, g.Kind+" "+g.Hash)
	}
	if want := "lesson 1|fact 2|skill at-the-end|skill named"; strings.Join(got, "|") != want {
		t.Errorf("guidance %q, want %q", strings.Join(got, "|"), want)
	}
	for i := range 50 {
		items = append(items, fact(string(rune('A'+i)), "pay.refund", "lesson", "more", 5))
	}
	if n := len(loop.GuidanceOf(items, "pay.refund")); n != loop.MaxGuidance {
		t.Errorf("%d pieces of guidance, want %d", n, loop.MaxGuidance)
	}
}
