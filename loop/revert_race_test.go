package loop_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/loop"
)

// revertOf stores a revert of an applied recommendation, and approves it.
func (w *world) revertOf(target string) string {
	w.t.Helper()
	r := &loop.Recommendation{
		V: 1, Analyzer: "exec.outcome_review/1", Params: map[string]any{}, Origin: loop.Origin{Kind: loop.OriginBuiltin},
		Target: "entity:lessons/pay.refund", Action: loop.ActionRevert, DedupKey: "revert",
		Summary:  loop.Text{TemplateID: "loop.llm.advisory", Args: map[string]any{"text": "x"}},
		Severity: loop.SeverityHigh, Proposal: loop.Change{Kind: loop.ChangeRevert, RevertOf: target},
		Evidence: []string{strings.Repeat("a", 64)}, CreatedAtMS: pinned().UnixMilli(), Scope: []string{}, Creator: "engine:exec.outcome_review/1",
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

// A reader who meets a revert under way finishes it. Whichever clock is ahead, the
// person hears that it is done, and it is.
func TestRevertsMeetReaders(t *testing.T) {
	for at := 2; at <= 4; at++ {
		for _, ahead := range []time.Duration{time.Millisecond, -time.Millisecond} {
			t.Run(fmt.Sprint("halted at write ", at, ", reader ahead by ", ahead), func(t *testing.T) {
				w := newWorld(t, nil)
				target := w.stored("k", "entity:lessons/pay.refund", loop.ActionRecord, loop.Op{
					Op: loop.OpAdd, Type: loop.ItemFact, Namespace: "main", Name: "pay.refund",
					Fields: map[string]any{"relation": "lesson", "object": "x", "confidence": 0.9},
				})
				w.apply(pinned(), target)
				revert := w.revertOf(target)
				slow := newHalting(w.store, at)
				done := make(chan error, 1)
				go func() {
					_, err := w.open(slow).Apply(t.Context(), pinned(), rex(), revert, "now", loop.ApplyOptions{})
					done <- err
				}()
				<-slow.halted
				_, _, err := w.engine.Queue(t.Context(), pinned().Add(ahead))
				close(slow.proceed)
				if got := <-done; got != nil || err != nil {
					t.Errorf("the person got %v, the reader %v", got, err)
				}
				if r, o := state(t, w, revert), state(t, w, target); r != loop.StateApplied || o != loop.StateRolledBack || liveItems(t, w) != 0 {
					t.Errorf("revert %s, its target %s, %d live", r, o, liveItems(t, w))
				}
			})
		}
	}
}

// What was tried and taken back again never pushes out what is live.
func TestTakenBackVersionsGoFirst(t *testing.T) {
	for _, tt := range []struct {
		name         string
		size, rounds int
	}{{"many", 0, 40}, {"large", 180 << 10, 4}} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, nil)
			op := loop.Op{Op: loop.OpAdd, Type: loop.ItemQuery, Name: "discover"}
			body := func(n int) map[string]any {
				return map[string]any{"body": strings.Repeat("x", tt.size) + fmt.Sprint(n)}
			}
			op.Fields = body(0)
			w.apply(pinned(), w.stored("first", "query:discover", loop.ActionRevise, op))
			live := w.live(loop.ItemQuery)[0].Hash
			op.Op, op.Replaces = loop.OpSupersede, live
			for i := 1; i <= tt.rounds; i++ {
				op.Fields = body(i)
				hash := w.stored(fmt.Sprint("k", i), "query:discover", loop.ActionRevise, op)
				at := pinned().Add(time.Duration(i) * time.Second)
				w.apply(at, hash)
				if _, err := w.engine.Rollback(t.Context(), at, rex(), hash, "no"); err != nil {
					t.Fatal(i, err)
				}
				if got := w.live(loop.ItemQuery); len(got) != 1 || got[0].Hash != live {
					t.Fatalf("after %d rounds live is %v", i, got)
				}
			}
		})
	}
}

// One intent that cannot be finished keeps no pass, and no other recovery, from it.
func TestAnIntentThatCannotBeFinished(t *testing.T) {
	w := newWorld(t, nil)
	op := loop.Op{Op: loop.OpAdd, Type: loop.ItemQuery, Name: "discover", Fields: map[string]any{"body": "x"}}
	w.apply(pinned(), w.stored("k0", "query:discover", loop.ActionRevise, op))
	op.Op, op.Replaces, op.Fields = loop.OpSupersede, w.live(loop.ItemQuery)[0].Hash, map[string]any{"body": "y"}
	hash := w.stored("k", "query:discover", loop.ActionRevise, op)
	slow := newHalting(w.store, 2)
	done := make(chan error, 1)
	go func() {
		_, err := w.open(slow).Apply(t.Context(), pinned(), rex(), hash, "now", loop.ApplyOptions{})
		done <- err
	}()
	<-slow.halted
	for e, err := range w.store.List(t.Context(), loop.BucketKnowledge) {
		if err == nil {
			_, err = w.store.Put(t.Context(), loop.BucketKnowledge, e.Key, []byte(`{"v":2}`), e.Rev)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	close(slow.proceed)
	wantCode(t, <-done, "LOOP_STORE")
	if _, err := w.engine.Run(t.Context(), later(), loop.RunOptions{FullSweep: true, Trigger: ana()}); err != nil {
		t.Errorf("pass: %v", err)
	}
	if _, err := w.engine.Recover(t.Context(), later()); err == nil || !strings.Contains(err.Error(), hash) {
		t.Errorf("Recover = %v, want what could not be finished", err)
	}
}
