package loop_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
	"github.com/google/go-cmp/cmp"
)

// shares counts the items of a bundle by what they are.
func shares(t *testing.T, w *world) (map[string]int, []map[string]any) {
	t.Helper()
	w.model.requests = nil
	w.run(pinned(), loop.RunOptions{FullSweep: true})
	count := map[string]int{}
	var items []map[string]any
	for _, item := range w.model.asked("discover")[0]["evidence"].([]any) {
		e := item.(map[string]any)
		text := e["text"].(string)
		kind := e["grain_type"].(string)
		if kind == "call" {
			kind = "ok"
			if strings.Contains(text, " error ") {
				kind = "error"
			}
		}
		count[kind]++
		items = append(items, e)
	}
	return count, items
}

func TestBundleShares(t *testing.T) {
	fill := func(w *world, n int) {
		for i := range n {
			at := pinned().Add(-time.Duration(i) * time.Hour)
			w.fail("pay.refund", at, fmt.Sprint("failed ", i))
			w.ok("pay.refund", at)
			w.add(contextwire.Evidence{Type: contextwire.EvidenceNote, At: at, By: "ana", Text: fmt.Sprint("note ", i)})
		}
	}
	for _, tt := range []struct {
		name string
		n    int
		opts []option
		want map[string]int
	}{
		{"nothing cited", 100, []option{onlyLLM}, map[string]int{"error": 16, "note": 48}},
		{"few failures leave room for successes", 5, []option{onlyLLM}, map[string]int{"error": 5, "ok": 5, "note": 5}},
		{"no procedures, no successes", 5, []option{onlyLLM, withPolicy(func(p *loop.Policy) { p.Skills, p.Plans = false, false })}, map[string]int{"error": 5, "note": 5}},
		{"a finding cites many", 100, nil, map[string]int{"error": 40, "note": 24}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, &fakeModel{}, tt.opts...)
			fill(w, tt.n)
			got, items := shares(t, w)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			for i, e := range items {
				if e["id"] != fmt.Sprintf("e%d", i+1) {
					t.Errorf("item %d is called %v", i, e["id"])
				}
			}
		})
	}
}

func TestBundleTexts(t *testing.T) {
	w := newWorld(t, &fakeModel{}, onlyLLM)
	w.add(contextwire.Evidence{
		At: pinned(), ModuleID: "pay.refund", Version: "1.2.0", CallerID: "orders.place", Attempt: 2, Outcome: contextwire.OutcomeError,
		Code: "MODULE_TIMEOUT", Message: "upstream\n504", Duration: 1500 * time.Millisecond,
	})
	w.add(contextwire.Evidence{Type: contextwire.EvidenceNote, At: pinned(), ModuleID: "pay.refund", By: "ana", Text: "it is slow"})
	w.add(contextwire.Evidence{Type: contextwire.EvidenceApproval, At: pinned(), ModuleID: "pay.refund", By: "rex", Outcome: contextwire.OutcomeRejected, Text: "too much"})
	texts := func() (list []string) {
		_, items := shares(t, w)
		for _, e := range items {
			list = append(list, e["text"].(string))
		}
		return list
	}
	named := texts()
	for _, want := range []string{
		"call pay.refund@1.2.0 caller=orders.place error MODULE_TIMEOUT 1500ms attempt=2: upstream 504",
		"note by ana on pay.refund: it is slow",
		"approval pay.refund by rex rejected: too much",
	} {
		if !strings.Contains(strings.Join(named, "\n")+"\n", want+"\n") {
			t.Errorf("no %q in %q", want, named)
		}
	}
	w.engine = w.open(w.store, onlyLLM, withPolicy(func(p *loop.Policy) { p.EvidenceAttribution = loop.AttributionAnonymous }))
	if all := strings.Join(texts(), "\n"); strings.Contains(all, "ana") || strings.Contains(all, "rex") {
		t.Errorf("people are named: %s", all)
	}
}

// The second, destructive gate: admin and an explicit word.
func TestDestructiveNeedsMore(t *testing.T) {
	w := newWorld(t, proposing(lesson("Cancel first.")))
	w.failing(12)
	w.run(pinned(), loop.RunOptions{})
	first := w.llm()[0]
	w.approve(first.Hash)
	w.apply(pinned(), first.Hash)
	items, _, err := w.engine.Knowledge().Items(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	// No analyzer proposes to forget; a body by hand does.
	forget := *first.Rec
	op := forget.Proposal.Ops[0]
	op.Op, op.Replaces = loop.OpForget, items[0].Hash
	forget.Proposal.Ops, forget.Destructive, forget.Rollbackable, forget.DedupKey = []loop.Op{op}, true, false, "forget"
	body, hash, err := forget.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Put(t.Context(), loop.BucketRecs, hash, body, 0); err != nil {
		t.Fatal(err)
	}
	if n, err := w.engine.Recover(t.Context(), pinned()); n != 1 || err != nil {
		t.Fatalf("its first entry was not written: %d, %v", n, err)
	}
	w.approve(hash)
	_, err = w.engine.Apply(t.Context(), pinned(), rex(), hash, "x", loop.ApplyOptions{AllowDestructive: true})
	wantCode(t, err, "LOOP_SCOPE")
	_, err = w.engine.Apply(t.Context(), pinned(), root(), hash, "x", loop.ApplyOptions{})
	wantCode(t, err, "LOOP_GATED")
	if _, err := w.engine.Apply(t.Context(), pinned(), root(), hash, "x", loop.ApplyOptions{AllowDestructive: true}); err != nil {
		t.Fatal(err)
	}
	_, err = w.engine.Rollback(t.Context(), pinned(), root(), hash, "x")
	wantCode(t, err, "LOOP_ILLEGAL_TRANSITION")
	if g := w.guidance("pay.refund"); len(g) != 0 {
		t.Errorf("guidance %+v", g)
	}
	if text := dump(t, w.store); strings.Count(text[strings.Index(text, "\nknowledge"):strings.Index(text, "\nlog")], "Cancel first.") != 0 {
		t.Error("what was forgotten is still in the knowledge")
	}
}
