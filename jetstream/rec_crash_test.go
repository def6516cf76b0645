package jetstream_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/loop/looptest"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// engineOn is an engine over a store, without evidence.
func engineOn(t *testing.T, s loop.Store) *loop.Engine {
	t.Helper()
	e, err := loop.New(loop.Options{Store: s, Reader: loop.NewMemReader(), Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// person may do everything.
func person(id string) loop.Actor {
	return loop.Actor{ID: id, Observer: loop.ObserverHuman, Scopes: []loop.Scope{loop.ScopeAdmin}}
}

// proposed stores a pending skill and a lesson in one recommendation.
func proposed(t *testing.T, s loop.Store, now time.Time, name string) string {
	t.Helper()
	r := &loop.Recommendation{
		V: 1, Analyzer: loop.AnalyzerLLM, Params: map[string]any{}, Origin: loop.Origin{Kind: loop.OriginLLM, Model: "m"},
		Target: "entity:default/" + name, Action: loop.ActionRecord, Kind: loop.KindSkill, DedupKey: name,
		Summary: loop.Text{TemplateID: "loop.llm.advisory", Args: map[string]any{"text": "x"}}, Severity: loop.SeverityLow,
		Proposal: loop.Change{Kind: loop.ChangeOps, Ops: []loop.Op{
			{Op: loop.OpAdd, Type: loop.ItemSkill, Namespace: "default", Name: name, Fields: map[string]any{"description": "d"}},
			{Op: loop.OpAdd, Type: loop.ItemFact, Namespace: "default", Name: "math.add", Fields: map[string]any{"relation": "lesson", "object": name}},
		}},
		Rollbackable: true, Evidence: []string{schema.ContentHash(name)}, CreatedAtMS: now.UnixMilli(), Scope: []string{},
		Creator: "engine:loop.llm/1", CoCreator: "ann",
	}
	body, hash, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), loop.BucketRecs, hash, body, 0); err != nil {
		t.Fatal(err)
	}
	return hash
}

// A process that dies before or after any write of a decision leaves one outcome,
// which whoever comes next finishes, on the real server.
func TestLoopCrashBetweenWrites(t *testing.T) {
	inLoop(t, func(t *testing.T, _ *natstest.Server, store *durable.LoopStore) {
		now := time.Now()
		for _, after := range []bool{false, true} {
			for n, died := 1, true; died; n++ {
				name := fmt.Sprintf("skill-%d-%v", n, after)
				hash := proposed(t, store, now, name)
				faulty := looptest.NewFaulty(store, n, after)
				doomed := engineOn(t, faulty)
				_, err := doomed.Approve(t.Context(), now, person("bob"), hash, "x")
				if err == nil {
					if _, err = doomed.Apply(t.Context(), now, person("bob"), hash, "x", loop.ApplyOptions{}); err == nil {
						_, err = doomed.Rollback(t.Context(), now, person("bob"), hash, "x")
					}
				}
				if died = faulty.Died(); died && err == nil {
					t.Fatalf("%s: the crash was not noticed", name)
				}
				next := engineOn(t, store)
				if _, err := next.Recover(t.Context(), now); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				settled(t, next, hash, name)
			}
		}
	})
}

// settled checks that state and knowledge say the same, and takes what is left to its
// end.
func settled(t *testing.T, e *loop.Engine, hash, name string) {
	t.Helper()
	later := time.Now().Add(10 * time.Minute)
	c, err := e.Case(t.Context(), hash)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	live := 0
	items, bad, err := e.Knowledge().Items(t.Context(), true)
	for _, i := range items {
		if i.Rec == hash {
			live++
		}
	}
	want := map[loop.State]int{loop.StatePending: 0, loop.StateApproved: 0, loop.StateApplied: 2, loop.StateRolledBack: 0}
	if n, known := want[c.Status.State]; err != nil || bad != 0 || !known || c.Status.Intent != "" || n != live {
		t.Errorf("%s is %s%s with %d items, bad %d, %v", name, c.Status.State, c.Status.Intent, live, bad, err)
	}
	switch c.Status.State {
	case loop.StatePending:
		_, err = e.Approve(t.Context(), later, person("bob"), hash, "again")
	case loop.StateApproved:
		_, err = e.Apply(t.Context(), later, person("bob"), hash, "again", loop.ApplyOptions{})
	case loop.StateApplied:
		_, err = e.Rollback(t.Context(), later, person("bob"), hash, "again")
	}
	if err != nil {
		t.Errorf("%s cannot go on: %v", name, err)
	}
}

// Two engines on connections of their own decide at once: one outcome.
func TestLoopReviewersRaceOnTheServer(t *testing.T) {
	inLoop(t, func(t *testing.T, s *natstest.Server, store *durable.LoopStore) {
		other, disconnect := openLoop(t, s, durable.LoopOptions{})
		defer disconnect()
		now := time.Now()
		hash := proposed(t, store, now, "race")
		engines := []*loop.Engine{engineOn(t, store), engineOn(t, other)}
		errs := make(chan error, 8)
		for i := range cap(errs) {
			go func() {
				e := engines[i%2]
				var err error
				if i < cap(errs)/2 {
					_, err = e.Approve(t.Context(), now, person("bob"), hash, "x")
				} else {
					_, err = e.Reject(t.Context(), now, person("eve"), hash, "x")
				}
				errs <- err
			}()
		}
		won := 0
		for range cap(errs) {
			switch err := <-errs; {
			case err == nil:
				won++
			case module.CodeOf(err) != module.CodeLoopConflict && module.CodeOf(err) != module.CodeLoopIllegal:
				t.Errorf("a lost race is %v", err)
			}
		}
		c, err := engines[0].Case(t.Context(), hash)
		if won != 1 || err != nil || len(c.Status.History) > 2 {
			t.Errorf("%d won; %+v, %v", won, c, err)
		}
	})
}
