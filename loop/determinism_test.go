package loop_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func resultText(t *testing.T, r *loop.Result) string {
	t.Helper()
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw) + "\n"
}

// (a) and (b): without a model, and with one that always fails, the same bytes.
func TestDeterminismWithoutAModel(t *testing.T) {
	outcome := func(m *fakeModel) (string, string) {
		w := newWorld(t, m)
		w.failing(12)
		var results strings.Builder
		for i := range 3 {
			r := w.run(pinned().Add(time.Duration(i)*time.Hour), loop.RunOptions{Trigger: ana()})
			r.Funnel = nil
			results.WriteString(resultText(t, r))
		}
		return dump(t, w.store), results.String()
	}
	store, result := outcome(nil)
	for name, m := range map[string]*fakeModel{
		"always failing": {fail: map[string]error{"discover": errDown, "ground": errDown, "verify": errDown, "enrich": errDown}},
		"garbage":        {discover: func(map[string]any) string { return "x" }, enrich: func(map[string]any) string { return "[" }},
	} {
		s, r := outcome(m)
		if diff := cmp.Diff(store, s); diff != "" {
			t.Errorf("%s: store: %s", name, diff)
		}
		if diff := cmp.Diff(result, r); diff != "" {
			t.Errorf("%s: result: %s", name, diff)
		}
	}
}

// (c), (d) and (e): the same answers, evidence and now give the same bytes,
// whatever the wall clock says and in whatever order evidence is kept.
func TestDeterminismOfRepetition(t *testing.T) {
	outcome := func() string {
		w := newWorld(t, proposing(lesson("Cancel first."), on("entity:l/x", planDraft), draft("")))
		w.failing(40)
		w.run(pinned(), loop.RunOptions{})
		return dump(t, w.store)
	}
	want := outcome()
	for range 10 {
		if diff := cmp.Diff(want, outcome()); diff != "" {
			t.Fatal(diff)
		}
	}
}

// (f): analyzers get a type that cannot write.
func TestAnalyzersCannotWrite(t *testing.T) {
	var rd any = loop.NewKnowledge(loop.NewMemStore()).Reader()
	if _, ok := rd.(loop.Store); ok {
		t.Error("a reader is a store")
	}
	if _, ok := rd.(interface {
		Put(any) error
	}); ok {
		t.Error("a reader writes")
	}
}

// The golden run: first pass, second pass stores nothing, approve, apply, guidance,
// rollback, guidance gone; all bytes pinned.
func TestGoldenRun(t *testing.T) {
	var out bytes.Buffer
	section := func(name string) { fmt.Fprintf(&out, "== %s\n", name) }
	m := proposing(lesson("Cancel the order before refunding it."), on("entity:lessons/careful-refund", planDraft), draft(`,"guidance":"Ask the payment team."`))
	m.enrich = func(map[string]any) string {
		return `{"notes":[{"target":"entity:lessons/pay.refund","guidance":"Look at the order's state first."}]}`
	}
	w := newWorld(t, m)
	w.failing(12)
	w.add(contextwire.Evidence{Type: contextwire.EvidenceNote, At: pinned(), ModuleID: "pay.refund", By: "ana", Role: "operator", Text: "customers complain"})

	section("first pass")
	out.WriteString(resultText(t, w.run(pinned(), loop.RunOptions{})))
	section("queue")
	for _, c := range w.cases() {
		fmt.Fprintf(&out, "%s %s %s %s\n", c.Hash, c.Status.State, c.Rec.Severity, w.engine.Render(c.Rec))
	}
	section("requests")
	for _, r := range m.requests {
		out.WriteString(r + "\n")
	}
	section("second pass")
	out.WriteString(resultText(t, w.run(pinned().Add(time.Minute), loop.RunOptions{})))
	section("full sweep")
	out.WriteString(resultText(t, w.run(pinned().Add(2*time.Minute), loop.RunOptions{FullSweep: true})))

	guidance := func(when string) {
		raw, err := json.Marshal(w.guidance("pay.refund"))
		if err != nil {
			t.Fatal(err)
		}
		section("guidance of pay.refund " + when)
		out.Write(append(raw, '\n'))
	}
	guidance("before")
	for i, c := range w.cases() {
		if !c.Rec.Executable() {
			continue
		}
		at := pinned().Add(time.Duration(i+3) * time.Minute)
		if _, err := w.engine.Approve(t.Context(), at, rex(), c.Hash, "it is right"); err != nil {
			t.Fatal(err)
		}
		w.apply(at, c.Hash)
	}
	guidance("applied")
	for _, c := range w.cases() {
		if c.Status.State == loop.StateApplied {
			if _, err := w.engine.Rollback(t.Context(), pinned().Add(time.Hour), rex(), c.Hash, "it was wrong"); err != nil {
				t.Fatal(err)
			}
		}
	}
	guidance("rolled back")
	section("store")
	out.WriteString(dump(t, w.store))
	golden(t, "run.golden", out.Bytes())
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Error(diff)
	}
}
