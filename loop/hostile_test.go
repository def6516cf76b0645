package loop_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/loop/looptest"
)

// forbidden are characters that nothing stored may hold.
var forbidden = regexp.MustCompile("[\u202a-\u202e\u200b\u2028\u2029\x1b]|\\\\u001b|\\\\n")

// rules checks everything that is stored against what a model may do.
func rules(t *testing.T, w *world, seed uint64, bundled map[string]bool) {
	t.Helper()
	cases, bad, err := w.engine.Cases(t.Context())
	if err != nil || bad != 0 {
		t.Fatalf("seed %d: %d unreadable, %v", seed, bad, err)
	}
	pending := 0
	for _, c := range cases {
		if !c.Rec.ByLLM() {
			continue
		}
		target, err := loop.ParseTarget(c.Rec.Target)
		if err != nil || target.Class() != loop.ClassMemory && target.Class() != loop.ClassQuery {
			t.Fatalf("seed %d: target %q", seed, c.Rec.Target)
		}
		body, hash, err := c.Rec.Encode()
		if err != nil || hash != c.Hash || forbidden.Match(body) {
			t.Fatalf("seed %d: %v in %s", seed, err, body)
		}
		switch {
		case c.Rec.Severity != loop.SeverityLow, c.Rec.Confidence < loop.ConfidenceFloor, c.Rec.Confidence > 1, len(c.Rec.Evidence) == 0,
			c.Rec.CoCreator == "", c.Rec.Action == loop.ActionCodeRevision, len(body) > 64<<10,
			len([]rune(c.Rec.Summary.Args["text"].(string))) > loop.MaxSummaryLen, len([]rune(c.Rec.Guidance)) > loop.MaxGuidanceLen,
			c.Rec.Executable() && len(c.Rec.Evidence) < 2:
			t.Fatalf("seed %d: %s", seed, body)
		}
		for _, h := range c.Rec.Evidence {
			if !bundled[h] {
				t.Fatalf("seed %d: cites what there is not", seed)
			}
		}
		for _, op := range c.Rec.Proposal.Ops {
			if op.Namespace == "secret" {
				t.Fatalf("seed %d: chose its namespace", seed)
			}
		}
		if c.Status.State == loop.StatePending {
			pending++
		}
	}
	if pending > 50 {
		t.Fatalf("seed %d: %d pending", seed, pending)
	}
}

// A hostile model, a thousand seeds: no write outside the rules, nothing applied,
// no growth without bound, no failure of a pass.
func TestHostileModel(t *testing.T) {
	seeds := uint64(1000)
	if testing.Short() {
		seeds = 100
	}
	stored, executable := 0, 0
	for seed := range seeds {
		w := newWorld(t, nil)
		bundled := map[string]bool{}
		for _, h := range w.failing(6) {
			bundled[h] = true
		}
		for i := range 3 {
			bundled[w.ok("pay.refund", pinned().Add(-time.Duration(i)*time.Second))] = true
		}
		bundled[w.add(contextwire.Evidence{Type: contextwire.EvidenceNote, At: pinned(), Text: hostileText})] = true
		for i := range 2 { // all that there is
			bundled[w.fail("pay.refund", pinned().Add(-time.Duration(i)*time.Hour), hostileText)] = true
		}
		for r, err := range w.reader.Records(t.Context(), loop.Query{}) {
			if err != nil {
				t.Fatal(err)
			}
			bundled[r.Hash] = true
		}
		evil := looptest.NewHostile(seed)
		w.engine = w.open(w.store, onlyLLM, func(o *loop.Options) { o.Backend = evil })
		for i := range 2 {
			r := w.run(pinned().Add(time.Duration(i)*time.Minute), loop.RunOptions{FullSweep: true})
			stored += r.Stored
			if r.Funnel.Proposed > loop.MaxLLMDrafts {
				t.Fatalf("seed %d: %+v", seed, r.Funnel)
			}
		}
		rules(t, w, seed, bundled)
		if n := liveItems(t, w); n != 0 {
			t.Fatalf("seed %d: %d items of knowledge without a person", seed, n)
		}
		for _, c := range w.llm() {
			if c.Rec.Executable() {
				executable++
			}
		}
	}
	// It must get through now and then, or the rules above are not tested.
	if stored < int(seeds)/4 || executable < int(seeds)/20 {
		t.Errorf("%d stored, %d of them executable, over %d seeds: the model is too harmless", stored, executable, seeds)
	}
	t.Logf("%d stored, %d executable", stored, executable)
}

// Everything that a hostile model got stored, approved and applied by a careless
// person, still stays within the rules and can be taken back.
func TestHostileModelAndCarelessReviewer(t *testing.T) {
	for seed := range uint64(150) {
		w := newWorld(t, nil)
		w.failing(12)
		evil := looptest.NewHostile(seed)
		w.engine = w.open(w.store, onlyLLM, func(o *loop.Options) { o.Backend = evil })
		var applied []string
		for i := range 3 {
			w.run(pinned().Add(time.Duration(i)*time.Hour), loop.RunOptions{FullSweep: true})
			for _, c := range w.llm() {
				if c.Status.State != loop.StatePending {
					continue
				}
				w.approve(c.Hash)
				if _, err := w.engine.Apply(t.Context(), pinned(), rex(), c.Hash, "whatever", loop.ApplyOptions{}); err == nil {
					applied = append(applied, c.Hash)
				}
			}
		}
		items, _, err := w.engine.Knowledge().Items(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range items {
			if i.Namespace != "main" && i.Type != loop.ItemQuery && i.Type != loop.ItemTemplate {
				t.Fatalf("seed %d: %s in namespace %q", seed, i.Type, i.Namespace)
			}
			if i.Type == loop.ItemPlan {
				if _, err := loop.PlanModule(i, nil, nil); err != nil {
					t.Fatalf("seed %d: a plan that cannot run: %v", seed, err)
				}
			}
			if i.Type == loop.ItemCode || i.Type == loop.ItemEvalset || strings.HasPrefix(i.Text("relation"), "mg:") {
				t.Fatalf("seed %d: %s was applied", seed, i.Type)
			}
		}
		for _, hash := range applied {
			if _, err := w.engine.Rollback(t.Context(), pinned().Add(day(1)), rex(), hash, "all of it"); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		if n := liveItems(t, w); n != 0 {
			t.Fatalf("seed %d: %d items are left", seed, n)
		}
	}
}
