package backend_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/loop/backend"
)

func pinned() time.Time { return time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC) }

// pass makes one pass over a fixed history with this backend and returns what it
// stored, as text, and the result.
func pass(t *testing.T, b loop.Backend) (string, *loop.Result) {
	t.Helper()
	var records []*loop.Record
	for i := range 12 {
		e := &contextwire.Evidence{
			Type: contextwire.EvidenceCall, At: pinned().Add(-time.Duration(i) * time.Minute), NS: "main", N: uint64(i), ModuleID: "pay.refund",
			Outcome: contextwire.OutcomeError, Code: "MODULE_EXECUTE_ERROR", Message: "refund was refused",
		}
		body, err := contextwire.EncodeEvidence(e)
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, loop.EvidenceRecord(uint64(i+1), contextwire.EvidenceHash(body), e))
	}
	store := loop.NewMemStore()
	e, err := loop.New(loop.Options{Store: store, Reader: loop.NewMemReader(records...), Backend: b, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r, err := e.Run(t.Context(), pinned(), loop.RunOptions{Trigger: loop.Actor{ID: "ana", Observer: loop.ObserverHuman}})
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	for entry, err := range store.List(t.Context(), loop.BucketRecs) {
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "%s %s\n", entry.Key, entry.Value)
	}
	if _, bad, err := e.Cases(t.Context()); bad != 0 || err != nil {
		t.Errorf("%d recommendations cannot be read, %v", bad, err)
	}
	return all.String(), r
}

// A hostile model as a process: every pass ends, and what it stores can be read.
func TestHostileProcess(t *testing.T) {
	for seed := range 3 {
		c := mustFake(t, "hostile", backend.CommandOptions{Env: []string{fmt.Sprint("SEED=", seed)}, Timeout: 60 * time.Second})
		b := backend.NewBudget(c, backend.Limits{})
		if _, r := pass(t, b); r.Outcome != "ran" || r.Usage == nil || r.Usage.Calls == 0 || r.Usage.Calls > 4 {
			t.Errorf("seed %d: %+v, usage %+v", seed, r, r.Usage)
		}
	}
}

// A pass over a recording stores the same bytes as the one that was recorded.
func TestReplayedPass(t *testing.T) {
	c := mustFake(t, "hostile", backend.CommandOptions{Env: []string{"SEED=3"}})
	var tape bytes.Buffer
	live, first := pass(t, backend.NewBudget(backend.NewPseudonymize(backend.NewRecorder(c, &tape, backend.RecorderOptions{})), backend.Limits{}))
	p, err := backend.NewReplayer(&tape)
	if err != nil {
		t.Fatal(err)
	}
	replayed, second := pass(t, backend.NewBudget(backend.NewPseudonymize(p), backend.Limits{}))
	if live != replayed || *first.Funnel != *second.Funnel {
		t.Errorf("the replay stored\n%s\nwant\n%s", replayed, live)
	}
}
