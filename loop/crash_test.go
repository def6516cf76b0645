package loop_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/loop/looptest"
	"github.com/apbus/apbus/module"
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

// later is when another process meets what a crash left: nobody has to wait.
func later() time.Time { return pinned().Add(time.Millisecond) }

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

// eachMeeting runs a test for each way in which another process meets what a crash
// left.
func eachMeeting(t *testing.T, test func(t *testing.T, meet func(t *testing.T, w *world, hash string))) {
	t.Helper()
	for _, tt := range []struct {
		name string
		meet func(t *testing.T, w *world, hash string) error
	}{
		{"a router that starts", func(t *testing.T, w *world, _ string) error {
			_, err := w.engine.Recover(t.Context(), later())
			return err
		}},
		{"a pass that is not due", func(t *testing.T, w *world, _ string) error {
			_, err := w.engine.Run(t.Context(), later(), loop.RunOptions{MinNew: 1 << 30, Trigger: ana()})
			return err
		}},
		{"a reader", func(t *testing.T, w *world, hash string) error {
			_, err := w.engine.Settled(t.Context(), later(), hash)
			return err
		}},
		{"a reader of the queue", func(t *testing.T, w *world, _ string) error {
			_, _, err := w.engine.Queue(t.Context(), later())
			return err
		}},
		{"a reviewer", func(t *testing.T, w *world, hash string) error {
			_, err := w.engine.Reject(t.Context(), later(), rex(), hash, "too late")
			if err == nil {
				t.Error("rejected after it was approved")
			}
			return nil
		}},
		{"several at once", func(t *testing.T, w *world, hash string) error {
			errs := make(chan error)
			for range 8 {
				go func() {
					_, err := w.engine.Settled(t.Context(), later(), hash)
					errs <- err
				}()
			}
			var err error
			for range 8 {
				err = errors.Join(err, <-errs)
			}
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			test(t, func(t *testing.T, w *world, hash string) {
				t.Helper()
				if err := tt.meet(t, w, hash); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// Whoever meets an apply or a rollback that was cut off finishes it at once.
func TestCrashIsFinishedByWhoeverMeetsIt(t *testing.T) {
	eachMeeting(t, func(t *testing.T, meet func(*testing.T, *world, string)) {
		for n := 2; n <= 4; n++ { // after the intent, after the plan, after the skill
			w, hash := plans(t)
			if _, err := w.open(looptest.NewFaulty(w.store, n, false)).Apply(t.Context(), pinned(), rex(), hash, "now", loop.ApplyOptions{}); err == nil {
				t.Fatal("no crash")
			}
			meet(t, w, hash)
			if got, items := state(t, w, hash), liveItems(t, w); got != loop.StateApplied || items != 2 {
				t.Errorf("write %d: it is %s with %d items, want applied with both", n, got, items)
			}
			c, err := w.engine.Case(t.Context(), hash)
			if last := c.Status.History[len(c.Status.History)-1]; err != nil || last.Actor != "rex" || last.Because != "now" {
				t.Errorf("it was finished by %s because %q, %v", last.Actor, last.Because, err)
			}
			if _, err := w.open(looptest.NewFaulty(w.store, n, false)).Rollback(t.Context(), pinned(), rex(), hash, "no"); err == nil {
				t.Fatal("no crash")
			}
			meet(t, w, hash)
			if got, items := state(t, w, hash), liveItems(t, w); got != loop.StateRolledBack || items != 0 {
				t.Errorf("write %d: it is %s with %d items, want rolled back", n, got, items)
			}
		}
	})
}

// To do again what was cut off is to finish it.
func TestRepeatedDecisionFinishesTheFirst(t *testing.T) {
	w, hash := plans(t)
	if _, err := w.open(looptest.NewFaulty(w.store, 3, true)).Apply(t.Context(), pinned(), rex(), hash, "now", loop.ApplyOptions{}); err == nil {
		t.Fatal("no crash")
	}
	c, err := w.engine.Apply(t.Context(), later(), rex(), hash, "again", loop.ApplyOptions{})
	if err != nil || c.Status.State != loop.StateApplied || c.Status.Attempt != 1 || liveItems(t, w) != 2 {
		t.Fatalf("apply again: %+v, %v", c, err)
	}
	if _, err := w.engine.Apply(t.Context(), later(), rex(), hash, "and again", loop.ApplyOptions{}); err == nil {
		t.Error("applied twice")
	}
	if _, err := w.open(looptest.NewFaulty(w.store, 2, true)).Rollback(t.Context(), pinned(), rex(), hash, "no"); err == nil {
		t.Fatal("no crash")
	}
	if c, err = w.engine.Rollback(t.Context(), later(), rex(), hash, "again"); err != nil || c.Status.State != loop.StateRolledBack || liveItems(t, w) != 0 {
		t.Fatalf("rollback again: %+v, %v", c, err)
	}
}

// overtaken has an apply cut off after its plan was written, and then another skill
// of that name applied, so that it can never be completed.
func overtaken(t *testing.T) (w *world, hash string) {
	t.Helper()
	w = newWorld(t, proposing(
		`{"summary":"Refunds need a look first","target":"entity:lessons/careful-refund","evidence":["e1","e2"],"confidence":0.8`+planDraft+`}`,
		`{"summary":"Another skill of that name","target":"entity:lessons/careful-refund","evidence":["e1","e2"],"confidence":0.8,
			"proposal":{"kind":"skill","description":"d","when_to_use":"w","steps":["one","two"]}}`))
	w.failing(12)
	w.run(pinned(), loop.RunOptions{})
	other := ""
	for _, c := range w.llm() {
		w.approve(c.Hash)
		if c.Rec.Kind == loop.KindPlan {
			hash = c.Hash
		} else {
			other = c.Hash
		}
	}
	faulty := looptest.NewFaulty(w.store, 3, false) // intent and plan are written, the skill is not
	if _, err := w.open(faulty).Apply(t.Context(), pinned(), rex(), hash, "now", loop.ApplyOptions{}); err == nil {
		t.Fatal("no crash")
	}
	w.apply(pinned(), other)
	if n := liveItems(t, w); n != 2 { // half a plan, and the other skill
		t.Fatalf("%d items, want 2", n)
	}
	return w, hash
}

// What an apply would change may change between its intent and a recovery: then
// what was done is taken back, whatever dies on the way.
func TestRecoveryTakesBackWhatNoLongerFits(t *testing.T) {
	check := func(t *testing.T, w *world, hash string) {
		t.Helper()
		if got, items := state(t, w, hash), liveItems(t, w); got != loop.StateApproved || items != 1 {
			t.Errorf("it is %s with %d items, want approved again and only the other skill", got, items)
		}
		_, err := w.engine.Apply(t.Context(), later(), rex(), hash, "again", loop.ApplyOptions{})
		wantCode(t, err, "LOOP_STALE")
	}
	eachMeeting(t, func(t *testing.T, meet func(*testing.T, *world, string)) {
		w, hash := overtaken(t)
		meet(t, w, hash)
		check(t, w, hash)
	})
	var hash string
	eachCrash(t,
		func(t *testing.T) *world { w, h := overtaken(t); hash = h; return w },
		func(ctx context.Context, _ *world, e *loop.Engine) error {
			_, err := e.Recover(ctx, later())
			return err
		},
		func(t *testing.T, w *world, _ int, _ bool) {
			recoverAll(t, w)
			check(t, w, hash)
		})
}

// halting is a store that stops before a chosen write until it is let go, as a process
// that is slow and not dead.
type halting struct {
	loop.Store
	at      int
	writes  int
	halted  chan struct{}
	proceed chan struct{}
}

func newHalting(s loop.Store, at int) *halting {
	return &halting{Store: s, at: at, halted: make(chan struct{}), proceed: make(chan struct{})}
}

func (h *halting) write() {
	if h.writes++; h.writes == h.at {
		close(h.halted)
		<-h.proceed
	}
}

func (h *halting) Put(ctx context.Context, b loop.Bucket, key string, value []byte, rev uint64) (uint64, error) {
	h.write()
	return h.Store.Put(ctx, b, key, value, rev)
}

func (h *halting) Append(ctx context.Context, log string, entry []byte, after uint64) (uint64, error) {
	h.write()
	return h.Store.Append(ctx, log, entry, after)
}

// A process that was taken for dead and goes on changes nothing: the apply that was
// finished, finished and rolled back, or given up in its place stays so.
func TestSlowProcessIsTooLate(t *testing.T) {
	for _, tt := range []struct {
		name  string
		meet  func(t *testing.T, w *world, hash string)
		state loop.State
		items int
		code  module.Code
	}{
		{"finished", func(t *testing.T, w *world, _ string) { recoverAll(t, w) }, loop.StateApplied, 2, ""},
		{"finished and rolled back", func(t *testing.T, w *world, hash string) {
			recoverAll(t, w)
			if _, err := w.engine.Rollback(t.Context(), later(), rex(), hash, "no"); err != nil {
				t.Fatal(err)
			}
		}, loop.StateRolledBack, 0, module.CodeLoopConflict},
		{"given up, and what was in the way is gone again", func(t *testing.T, w *world, hash string) {
			other := otherSkill(t, w)
			w.apply(later(), other)
			recoverAll(t, w)
			if _, err := w.engine.Rollback(t.Context(), later(), rex(), other, "no"); err != nil {
				t.Fatal(err)
			}
		}, loop.StateApproved, 0, module.CodeLoopStale},
	} {
		for at := 2; at <= 4; at++ {
			if at == 4 && tt.code == module.CodeLoopStale {
				continue // with both items there nothing is in the way
			}
			t.Run(fmt.Sprintf("%s, halted before write %d", tt.name, at), func(t *testing.T) {
				w, hash := plans(t)
				slow := newHalting(w.store, at)
				done := make(chan error, 1)
				go func() {
					_, err := w.open(slow).Apply(t.Context(), pinned(), rex(), hash, "now", loop.ApplyOptions{})
					done <- err
				}()
				<-slow.halted
				tt.meet(t, w, hash)
				close(slow.proceed)
				wantCode(t, <-done, tt.code)
				if got, items := state(t, w, hash), liveItems(t, w); got != tt.state || items != tt.items {
					t.Errorf("it is %s with %d items, want %s with %d", got, items, tt.state, tt.items)
				}
			})
		}
	}
}

// otherSkill has a skill approved that is in the way of the plan of [plans].
func otherSkill(t *testing.T, w *world) string {
	t.Helper()
	r := *w.llm()[0].Rec
	r.Kind, r.DedupKey = loop.KindSkill, "other"
	r.Proposal = loop.Change{Kind: loop.ChangeOps, Ops: []loop.Op{{
		Op: loop.OpAdd, Type: loop.ItemSkill, Namespace: "main", Name: "careful-refund", Fields: map[string]any{"description": "d"},
	}}}
	body, hash, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Put(t.Context(), loop.BucketRecs, hash, body, 0); err != nil {
		t.Fatal(err)
	}
	w.approve(hash)
	return hash
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
