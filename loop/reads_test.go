package loop_test

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/loop"
)

// What a pass asks of others, counted.

// logCounter counts readings of the journals of evalsets.
type logCounter struct {
	loop.Store
	journals int
}

func (s *logCounter) Log(ctx context.Context, name string) iter.Seq2[loop.Entry, error] {
	if strings.HasPrefix(name, "evals.") {
		s.journals++
	}
	return s.Store.Log(ctx, name)
}

func TestTheJournalIsReadOnceAPass(t *testing.T) {
	p, err := loop.ParsePolicy([]byte(`{"outcome_evalset":{"hash":"` + outcomeHash + `","field":"passed","higher_is_better":true,"checkpoints":[{"after_runs":1}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	policy := func(o *loop.Options) { o.Policy = &p }
	w := newWorld(t, proposing(lesson("alpha one"), lesson("beta two"), lesson("gamma three")), onlyLLM, policy)
	w.failing(12)
	w.ran("b", pinned().Add(-time.Hour), 8, 2, 1)
	w.run(pinned(), loop.RunOptions{})
	for _, c := range w.llm() {
		w.approve(c.Hash)
		w.apply(pinned(), c.Hash)
	}
	w.ran("a", pinned().Add(time.Hour), 9, 1, 1)
	s := &logCounter{Store: w.store}
	w.engine = w.open(s, onlyLLM, policy)
	if r := w.run(pinned().Add(2*time.Hour), loop.RunOptions{FullSweep: true}); r.Measured != 3 || s.journals != 1 {
		t.Errorf("%d measured, the journal was read %d times", r.Measured, s.journals)
	}
}

// Records since an apply are counted as they come, not from the apply on in every pass;
// what retention took is counted no more.
func TestRecordsSinceAnApplyAreReadOnce(t *testing.T) {
	p, err := loop.ParsePolicy([]byte(`{"outcome_evalset":{"hash":"` + outcomeHash + `","field":"passed","higher_is_better":true,"checkpoints":[{"after_grains":1005},{"after_grains":2000}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	s := newStream("one")
	w := newWorld(t, proposing(lesson("Cancel first.")), onlyLLM, func(o *loop.Options) { o.Policy, o.Reader = &p, s })
	sync := func() {
		for r, err := range w.reader.Records(t.Context(), loop.Query{AfterSeq: s.last}) {
			if err != nil {
				t.Fatal(err)
			}
			s.add(r)
		}
	}
	w.failing(12)
	sync()
	w.ran("b", pinned().Add(-time.Hour), 8, 2, 1)
	w.run(pinned(), loop.RunOptions{})
	hash := w.llm()[0].Hash
	w.approve(hash)
	w.apply(pinned(), hash)
	w.model.discover = nil
	w.ran("a", pinned().Add(time.Hour), 9, 1, 1)

	now := pinned()
	pass := func(name string, more, measured, reads int) {
		t.Helper()
		for i := range more {
			w.ok("pay.refund", now.Add(time.Duration(i+1)*time.Millisecond))
		}
		now = now.Add(time.Hour)
		sync()
		s.read = 0
		if r := w.run(now, loop.RunOptions{}); r.Measured != measured || s.read > reads {
			t.Errorf("%s: %d measured, want %d; %d records read, want at most %d", name, r.Measured, measured, s.read, reads)
		}
	}
	// Each new record is read once by the count and once for the model; beside them the
	// last ones are looked at.
	pass("many", 1000, 0, 2*1000+4)
	pass("a few", 4, 0, 2*4+4)
	s.lose(16 + 10) // those before the apply, and ten after it
	pass("some are gone", 1, 0, 1005+4)
	pass("and as many new", 10, 1, 2*10+4)
	if m := w.measured(hash); len(m) != 1 || m[0].Checkpoint.AfterGrains != 1005 {
		t.Errorf("measured %+v", m)
	}
	pass("the next checkpoint", 1, 0, 2+4)
}

// asking counts what an embedder is asked.
type asking struct {
	vectors
	requests [][]string
}

func (a *asking) Embed(ctx context.Context, texts []string) ([][]float64, error) {
	a.requests = append(a.requests, texts)
	return a.vectors.Embed(ctx, texts)
}

func TestLessonsAreEmbeddedOnceAPass(t *testing.T) {
	w := newWorld(t, proposing(lesson("there is one")), onlyLLM)
	w.failing(12)
	w.run(pinned(), loop.RunOptions{})
	w.approve(w.llm()[0].Hash)
	w.apply(pinned(), w.llm()[0].Hash)
	e := &asking{vectors: vectors{"there is one": {1, 0}, "a": at(0.95), "b": at(0.5), "c": at(0.99)}}
	w.engine = w.open(w.store, onlyLLM, func(o *loop.Options) { o.Embedder = e })
	w.model.discover = func(map[string]any) string {
		return discovery(lesson("a"), lesson("b"), lesson("c"), on("entity:lessons/lonely", `,"lesson":"no other is near"`))
	}
	w.run(pinned().Add(day(1)), loop.RunOptions{FullSweep: true})
	if got := fmt.Sprint(e.requests); got != "[[a b c there is one]]" {
		t.Errorf("asked %s", got)
	}
	near := map[string]int{}
	for _, c := range w.llm() {
		near[c.Rec.Proposal.Ops[0].Fields["object"].(string)] = len(c.Rec.NearDuplicateOf)
	}
	if near["a"] != 1 || near["b"] != 0 || near["c"] != 1 {
		t.Errorf("near %v", near)
	}
}
