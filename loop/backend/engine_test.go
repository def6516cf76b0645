package backend_test

import (
	"bytes"
	"flag"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
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
	cases, bad, err := e.Cases(t.Context())
	if bad != 0 || err != nil {
		t.Errorf("%d recommendations cannot be read, %v", bad, err)
	}
	for _, c := range cases {
		if c.Status.State != loop.StatePending {
			t.Errorf("%s is %s", c.Rec.Summary.TemplateID, c.Status.State)
		}
	}
	if items, _, err := e.Knowledge().Items(t.Context(), false); len(items) > 0 || err != nil {
		t.Errorf("something is known that nobody approved: %v, %v", items, err)
	}
	return all.String(), r
}

var hostileSeeds = flag.Int("hostile.seeds", 4, "how many seeds of a hostile process a test tries")

// A hostile model as a process: every pass ends, what it stores can be read and waits
// for a person, nothing is left running and nothing grows. make hostile tries a
// thousand seeds.
func TestHostileProcess(t *testing.T) {
	before := runtime.NumGoroutine()
	stored := 0
	for seed := range *hostileSeeds {
		c := mustFake(t, "hostile", backend.CommandOptions{Env: []string{fmt.Sprint("SEED=", seed)}, Timeout: 60 * time.Second})
		all, r := pass(t, backend.NewBudget(c, backend.Limits{}))
		if r.Outcome != "ran" || r.Usage == nil || r.Usage.Calls == 0 || r.Usage.Calls > 4 || r.AutoApplied != 0 {
			t.Fatalf("seed %d: %+v, usage %+v", seed, r, r.Usage)
		}
		// One finding of an analyzer, and at most as many drafts as one pass may keep.
		if n := strings.Count(all, "\n"); n > 1+loop.MaxLLMDrafts || n != r.Stored || len(all) > n*(128<<10) {
			t.Fatalf("seed %d: %d recommendations of %d bytes, %d counted", seed, n, len(all), r.Stored)
		}
		stored += r.Stored - 1
	}
	if *hostileSeeds >= 100 && stored < *hostileSeeds/10 { // a fifth, as a rule
		t.Errorf("%d drafts are stored over %d seeds: the model is too harmless", stored, *hostileSeeds)
	}
	for range 50 {
		if runtime.NumGoroutine() <= before+2 {
			break
		}
		time.Sleep(20 * time.Millisecond) //archtest:real-time goroutines of real processes end a little later
	}
	if after := runtime.NumGoroutine(); after > before+2 {
		t.Errorf("%d goroutines before, %d after", before, after)
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
