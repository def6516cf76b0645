package loop_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/loop/looptest"
)

// eachCrash runs act once with a store that dies at each of its writes, before and
// after it, and has check look at what another process finds later.
func eachCrash(t *testing.T, prepare func(t *testing.T) *world, act func(ctx context.Context, w *world, e *loop.Engine) error, check func(t *testing.T, w *world, n int, after bool)) {
	t.Helper()
	for _, after := range []bool{false, true} {
		for n := 1; ; n++ {
			died := false
			t.Run(fmt.Sprintf("write %d after=%v", n, after), func(t *testing.T) {
				w := prepare(t)
				faulty := looptest.NewFaulty(w.store, n, after)
				err := act(t.Context(), w, w.open(faulty))
				if died = faulty.Died(); !died {
					if err != nil {
						t.Fatalf("without a crash: %v", err)
					}
					return
				}
				if err == nil {
					t.Fatal("the crash was not noticed")
				}
				check(t, w, n, after)
			})
			if !died || t.Failed() {
				break
			}
			if n > 50 {
				t.Fatal("it never ends")
			}
		}
	}
}

// later is when another process takes over what a crash left.
func later() time.Time { return pinned().Add(6 * time.Minute) }

func recoverAll(t *testing.T, w *world) {
	t.Helper()
	if _, err := w.engine.Recover(t.Context(), later()); err != nil {
		t.Fatal(err)
	}
	n, err := w.engine.Recover(t.Context(), later())
	if err != nil || n != 0 {
		t.Errorf("a second recovery found %d, %v", n, err)
	}
}

const planDraft = `,"proposal":{"kind":"plan","description":"Refund an order","when_to_use":"a refund is asked for",
	"nodes":[{"id":"look","tool":"pay.refund","step":"Look it up"},{"id":"do","tool":"pay.refund","step":"Refund it"}],
	"edges":[{"src":"look","dst":"do","cond":"look.ok == true"}]}`

// plans has a plan approved, whose apply makes two items.
func plans(t *testing.T) (*world, string) {
	t.Helper()
	w := newWorld(t, proposing(`{"summary":"Refunds need a look first","target":"entity:lessons/careful-refund","evidence":["e1","e2"],"confidence":0.8`+planDraft+`}`))
	w.failing(12)
	w.run(pinned(), loop.RunOptions{})
	cases := w.llm()
	if len(cases) != 1 || cases[0].Rec.Kind != loop.KindPlan {
		t.Fatalf("no plan was stored: %+v", cases)
	}
	w.approve(cases[0].Hash)
	return w, cases[0].Hash
}

func liveItems(t *testing.T, w *world) int {
	t.Helper()
	items, bad, err := w.engine.Knowledge().Items(t.Context(), true)
	if err != nil || bad != 0 {
		t.Fatal(bad, err)
	}
	return len(items)
}

func state(t *testing.T, w *world, hash string) loop.State {
	t.Helper()
	c, err := w.engine.Case(t.Context(), hash)
	if err != nil {
		t.Fatal(err)
	}
	if c.Status.Intent != "" {
		t.Errorf("%s is stuck in %s", hash[:8], c.Status.Intent)
	}
	return c.Status.State
}

func TestCrashWhileApplying(t *testing.T) {
	var hash string
	eachCrash(t,
		func(t *testing.T) *world { w, h := plans(t); hash = h; return w },
		func(ctx context.Context, _ *world, e *loop.Engine) error {
			_, err := e.Apply(ctx, pinned(), rex(), hash, "now", loop.ApplyOptions{})
			return err
		},
		func(t *testing.T, w *world, n int, after bool) {
			recoverAll(t, w)
			got, items := state(t, w, hash), liveItems(t, w)
			if n == 1 && !after {
				if got != loop.StateApproved || items != 0 {
					t.Errorf("nothing was written, yet it is %s with %d items", got, items)
				}
				w.apply(later(), hash)
				got, items = state(t, w, hash), liveItems(t, w)
			}
			if got != loop.StateApplied || items != 2 {
				t.Errorf("it is %s with %d items, want applied with both", got, items)
			}
		})
}

func TestCrashWhileRollingBack(t *testing.T) {
	var hash string
	eachCrash(t,
		func(t *testing.T) *world { w, h := plans(t); hash = h; w.apply(pinned(), h); return w },
		func(ctx context.Context, _ *world, e *loop.Engine) error {
			_, err := e.Rollback(ctx, pinned(), rex(), hash, "no")
			return err
		},
		func(t *testing.T, w *world, n int, after bool) {
			recoverAll(t, w)
			got, items := state(t, w, hash), liveItems(t, w)
			if n == 1 && !after {
				if got != loop.StateApplied || items != 2 {
					t.Errorf("nothing was written, yet it is %s with %d items", got, items)
				}
				return
			}
			if got != loop.StateRolledBack || items != 0 {
				t.Errorf("it is %s with %d items, want rolled back with none", got, items)
			}
		})
}

// What an apply would change may change between its intent and a recovery: then
// what was done is taken back.
func TestRecoveryTakesBackWhatNoLongerFits(t *testing.T) {
	w, hash := plans(t)
	faulty := looptest.NewFaulty(w.store, 3, false) // intent and plan are written, the skill is not
	if _, err := w.open(faulty).Apply(t.Context(), pinned(), rex(), hash, "now", loop.ApplyOptions{}); err == nil {
		t.Fatal("no crash")
	}
	w.model.discover = func(map[string]any) string {
		return discovery(`{"summary":"Another skill of that name","target":"entity:lessons/careful-refund","evidence":["e1","e2"],"confidence":0.8,
			"proposal":{"kind":"skill","description":"d","when_to_use":"w","steps":["one","two"]}}`)
	}
	w.run(pinned().Add(time.Minute), loop.RunOptions{FullSweep: true})
	for _, c := range w.llm() {
		if c.Rec.Kind == loop.KindSkill {
			w.approve(c.Hash)
			w.apply(pinned().Add(time.Minute), c.Hash)
		}
	}
	if n := liveItems(t, w); n != 2 { // half a plan, and the other skill
		t.Fatalf("%d items, want 2", n)
	}
	recoverAll(t, w)
	if got, items := state(t, w, hash), liveItems(t, w); got != loop.StateApproved || items != 1 {
		t.Errorf("it is %s with %d items, want approved again and only the other skill", got, items)
	}
	if _, err := w.engine.Apply(t.Context(), later(), rex(), hash, "again", loop.ApplyOptions{}); err == nil {
		t.Error("applied over the other skill")
	}
}

// A pass that dies at any write leaves nothing that the next one does not complete,
// and nothing twice.
func TestCrashWhileStoring(t *testing.T) {
	eachCrash(t,
		func(t *testing.T) *world {
			w := newWorld(t, proposing(lesson("Cancel before refunding.")))
			w.failing(12)
			return w
		},
		func(ctx context.Context, _ *world, e *loop.Engine) error {
			_, err := e.Run(ctx, pinned(), loop.RunOptions{Trigger: ana()})
			return err
		},
		func(t *testing.T, w *world, n int, after bool) {
			w.run(later(), loop.RunOptions{})
			cases := w.cases()
			if len(cases) != 2 {
				t.Errorf("%d recommendations, want 2", len(cases))
			}
			for _, c := range cases {
				if c.Status.State != loop.StatePending || c.Status.Last == 0 {
					t.Errorf("%s has no first entry", c.Hash[:8])
				}
				if _, err := w.engine.Approve(t.Context(), later(), rex(), c.Hash, "fine"); err != nil {
					t.Errorf("cannot be decided: %v", err)
				}
			}
		})
}
