package loop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/module"
)

// stream is a stream of evidence, beside records that are none. It counts what is read
// of it.
type stream struct {
	name     string
	evidence []*loop.Record // in the order of their sequences
	rest     *loop.MemReader
	last     uint64
	read     int
}

func newStream(name string) *stream { return &stream{name: name, rest: loop.NewMemReader()} }

// add adds records of a history at the end.
func (s *stream) add(records ...*loop.Record) {
	for _, r := range records {
		if r.Evidence == nil {
			s.rest.Add(r)
			continue
		}
		s.last++
		c := *r
		c.Seq = s.last
		s.evidence = append(s.evidence, &c)
	}
}

// lose drops the oldest records, as retention does.
func (s *stream) lose(n int) { s.evidence = s.evidence[min(n, len(s.evidence)):] }

// crash loses the newest records, whose sequences are given again.
func (s *stream) crash(n int) {
	s.evidence = s.evidence[:max(0, len(s.evidence)-n)]
	s.last = 0
	if n := len(s.evidence); n > 0 {
		s.last = s.evidence[n-1].Seq
	}
}

func (s *stream) Extent(context.Context) (loop.Extent, error) {
	x := loop.Extent{Stream: s.name, First: s.last + 1, Last: s.last}
	if len(s.evidence) > 0 {
		x.First = s.evidence[0].Seq
	}
	return x, nil
}

func (s *stream) Records(ctx context.Context, q loop.Query) iter.Seq2[*loop.Record, error] {
	return func(yield func(*loop.Record, error) bool) {
		for _, r := range s.evidence {
			if q.Wants(r) {
				if s.read++; !yield(r, nil) {
					return
				}
			}
		}
		s.rest.Records(ctx, q)(yield)
	}
}

func (s *stream) ByHash(_ context.Context, hashes []string) (map[string]*loop.Record, error) {
	found := map[string]*loop.Record{}
	for _, r := range s.evidence {
		if slices.Contains(hashes, r.Hash) {
			found[r.Hash] = r
		}
	}
	return found, nil
}

func (s *stream) Count(_ context.Context, q loop.Query) (loop.Counts, error) {
	c := loop.Counts{LastSeq: s.last}
	for _, r := range s.evidence {
		if q.Wants(r) {
			c.Records++
		}
	}
	return c, nil
}

// sharp are all analyzers, with parameters under which they find the most.
func sharp(t testing.TB) []loop.Run {
	t.Helper()
	var runs []loop.Run
	for _, a := range loop.Builtin() {
		m := a.Manifest()
		least := map[string]any{}
		for _, p := range m.Params {
			if !strings.HasPrefix(p.Name, "min_") {
				continue
			}
			switch p.Kind {
			case loop.ParamInt:
				least[p.Name] = int64(p.Min)
			case loop.ParamFloat:
				least[p.Name] = p.Min
			}
		}
		params, err := m.ResolveParams(least)
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, loop.Run{Analyzer: a, Params: params})
	}
	return runs
}

func rendered(t interface{ Fatal(...any) }, found []loop.Found, err error) string {
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.MarshalIndent(found, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// anything draws a piece of evidence out of few names, so that analyzers find something
// in a short history.
func anything(t *rapid.T, n int) contextwire.Evidence {
	name := rapid.SampledFrom([]string{"a.one", "a.two", "b.three", "b.four"})
	e := contextwire.Evidence{
		Type:     rapid.SampledFrom([]contextwire.EvidenceType{contextwire.EvidenceCall, contextwire.EvidenceCall, contextwire.EvidenceCall, contextwire.EvidenceStream, contextwire.EvidenceTask, contextwire.EvidenceACL, contextwire.EvidenceApproval}).Draw(t, "type"),
		ModuleID: name.Draw(t, "module"), CallerID: name.Draw(t, "caller"), Node: rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "node"),
		Outcome: rapid.SampledFrom([]string{contextwire.OutcomeOK, contextwire.OutcomeError, contextwire.OutcomeTimeout, contextwire.OutcomeDenied, contextwire.OutcomeApproved, contextwire.OutcomeRejected}).Draw(t, "outcome"),
		Call:    fmt.Sprint("c", rapid.IntRange(0, 20).Draw(t, "call")), Attempt: rapid.IntRange(1, 3).Draw(t, "attempt"),
		TraceID: fmt.Sprint("t", rapid.IntRange(0, 8).Draw(t, "trace")), Budget: time.Duration(rapid.IntRange(0, 20).Draw(t, "budget")) * time.Second,
		Timeout: 10 * time.Second, Duration: time.Duration(rapid.IntRange(1, 11_000).Draw(t, "took")) * time.Millisecond,
		Message: fmt.Sprint("message ", n),
	}
	if e.Type == contextwire.EvidenceTask {
		e.TaskID, e.TaskAttempt = e.Call, e.Attempt
	}
	e.CallChain = []string{e.ModuleID}
	if rapid.Bool().Draw(t, "nested") {
		e.CallChain = []string{e.CallerID, e.ModuleID}
	}
	if e.Outcome == contextwire.OutcomeError {
		e.Code = rapid.SampledFrom([]module.Code{"DISK", module.CodeModuleNotFound, module.CodeSchemaValidation, module.CodeCircularCall, module.CodeCallFrequencyExceeded}).Draw(t, "code")
		e.Side = rapid.SampledFrom([]string{contextwire.SideInput, contextwire.SideOutput}).Draw(t, "side")
		e.Fields = []string{"/x", "/y"}
		e.Retryable = module.False
	}
	if e.Outcome == contextwire.OutcomeTimeout {
		e.Code = module.CodeModuleTimeout
	}
	return e
}

// Whatever comes, goes and is lost, and whatever the time: a pass with what earlier ones
// kept finds, to the byte, what one finds that reads everything.
func TestKeptChangesNothing(t *testing.T) {
	runs := sharp(t)
	found := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		s := newStream("one")
		kept := &loop.Kept{SegmentLength: uint64(rapid.IntRange(1, 40).Draw(t, "length")), MaxBytes: rapid.SampledFrom([]int{0, 0, 1, 20_000}).Draw(t, "bytes")}
		h := &history{}
		h.host("a.one", "1.0.0", "n1", today.Add(-50*24*time.Hour)).host("a.one", "2.0.0", "n2", today.Add(-time.Hour))
		s.add(h.records...)
		now := today
		for pass := range rapid.IntRange(2, 8).Draw(t, "passes") {
			switch rapid.IntRange(0, 9).Draw(t, "event") {
			case 0:
				s.lose(rapid.IntRange(0, 30).Draw(t, "lost"))
			case 1:
				s.crash(rapid.IntRange(0, 30).Draw(t, "crashed"))
			case 2:
				s.name += "'"
			}
			h.records = nil
			for range rapid.IntRange(0, 30).Draw(t, "more") {
				e := anything(t, h.n)
				e.At = now.Add(-time.Duration(rapid.SampledFrom([]int{0, 1, 1, 30, 59, 61, 24*60 - 1, 24*60 + 1, 7 * 24 * 60, 29 * 24 * 60, 31*24*60 + 5, -1}).Draw(t, "age")) * time.Minute)
				h.add(1, e)
			}
			s.add(h.records...)
			q := loop.Query{}
			if rapid.IntRange(0, 9).Draw(t, "scope") == 0 {
				q.Namespaces = []string{"other"}
			}
			got, err := kept.Analyze(context.Background(), s, now, q, nil, runs)
			text := rendered(t, got, err)
			fresh, err := loop.Analyze(context.Background(), s, now, q, nil, runs)
			if diff := cmp.Diff(rendered(t, fresh, err), text); diff != "" {
				t.Fatalf("pass %d: %s", pass, diff)
			}
			for _, f := range got {
				found[f.ID] += len(f.Drafts)
			}
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 10, 55, 24 * 60, 10 * 24 * 60, -5, -15 * 24 * 60}).Draw(t, "later")) * time.Minute)
		}
	})
	for _, r := range runs {
		id := r.Analyzer.Manifest().ID
		if n := found[id]; n == 0 && !slices.Contains([]string{"exec.outcome_review/1", "exec.lesson_pile/1", "exec.skill_stall/1", "exec.stuck_task/1", "exec.stale_setting/1", "exec.duplicate_module/1", "exec.cold_module/1"}, id) {
			t.Errorf("%s found nothing: the histories say nothing of it", id)
		}
	}
}

// What is older than what an analyzer looks at is nothing to it, also while what was
// kept has it, and is there again for a pass that looks further back.
func TestKeptKnowsNoMoreThanWindows(t *testing.T) {
	s, kept := newStream("old"), &loop.Kept{SegmentLength: 4}
	h := &history{}
	h.host("cold.m", "1.0.0", "n1", today.Add(-80*24*time.Hour))
	for age := 40; age > 0; age-- {
		h.add(1, contextwire.Evidence{At: today.Add(-time.Duration(age) * 24 * time.Hour)})
	}
	s.add(h.records...)
	// One that looks further back than the others, so that more is read than they want.
	runs := loop.DefaultRuns()
	for i, r := range runs {
		m := r.Analyzer.Manifest()
		if m.ID != "exec.call_graph/1" {
			continue
		}
		params, err := m.ResolveParams(map[string]any{"window_ms": (60 * 24 * time.Hour).Milliseconds()})
		if err != nil {
			t.Fatal(err)
		}
		further := slices.Clone(runs)
		further[i].Params = params
		defer func() { keptIsFresh(t, s, &loop.Kept{SegmentLength: 4}, further, 0, 20, 25, 29, 30, 31, 32, 5, -8, 0) }()
	}
	keptIsFresh(t, s, kept, runs, 0, 20, 25, 29, 30, 31, 32, 5, -8, 0)
}

// keptIsFresh makes passes so many days after today.
func keptIsFresh(t *testing.T, s *stream, kept *loop.Kept, runs []loop.Run, days ...int) {
	t.Helper()
	for _, days := range days {
		now := today.Add(time.Duration(days) * 24 * time.Hour)
		got, err := kept.Analyze(t.Context(), s, now, loop.Query{}, nil, runs)
		text := rendered(t, got, err)
		fresh, err := loop.Analyze(t.Context(), s, now, loop.Query{}, nil, runs)
		if diff := cmp.Diff(rendered(t, fresh, err), text); diff != "" {
			t.Errorf("%d days later: %s", days, diff)
		}
	}
}

// A labelled week that comes in parts, in any order of its times, is found the same.
func TestKeptOverALabelledWeek(t *testing.T) {
	l := &labelled{r: rand.New(rand.NewPCG(3, 7)), wrong: map[string]bool{}}
	l.traffic(12, 120)
	l.troubles()
	records := shuffled(l.h.records, 3)
	s, kept := newStream("week"), &loop.Kept{SegmentLength: 256}
	for n := 0; n < len(records); n += 400 {
		s.add(records[n:min(n+400, len(records))]...)
		now := today.Add(time.Duration(n) * time.Millisecond)
		got, err := kept.Analyze(t.Context(), s, now, loop.Query{}, nil, loop.DefaultRuns())
		text := rendered(t, got, err)
		fresh, err := loop.Analyze(t.Context(), s, now, loop.Query{}, nil, loop.DefaultRuns())
		if diff := cmp.Diff(rendered(t, fresh, err), text); diff != "" {
			t.Fatalf("after %d records: %s", n, diff)
		}
	}
}

// A pass reads what is new, and two records to see that the stream goes on; and once more
// the segment that the edge of a window has reached.
func TestKeptReadsWhatIsNew(t *testing.T) {
	s, kept := newStream("big"), &loop.Kept{SegmentLength: 100}
	pass := func(now time.Time) int {
		t.Helper()
		s.read = 0
		if _, err := kept.Analyze(t.Context(), s, now, loop.Query{}, nil, loop.DefaultRuns()); err != nil {
			t.Fatal(err)
		}
		return s.read
	}
	h := &history{}
	for i := range 2000 {
		h.add(1, contextwire.Evidence{At: today.Add(time.Duration(i-2000) * time.Minute)})
	}
	s.add(h.records...)
	if n := pass(today); n != 2001 {
		t.Errorf("the first pass read %d records of 2000, and the last one", n)
	}
	h.records = nil
	for i := range 10 {
		h.add(1, contextwire.Evidence{At: today.Add(time.Duration(i) * time.Second)})
	}
	s.add(h.records...)
	// Two windows end within the history, those of an hour and of a day.
	if n := pass(today.Add(10 * time.Second)); n > 12+2*100 {
		t.Errorf("10 new records: %d read", n)
	}
	if n := pass(today.Add(11 * time.Second)); n > 1+2*100 {
		t.Errorf("no new record: %d read", n)
	}
	// Nothing is at an edge, a month later; what is new is read, and nothing else.
	later := today.Add(20 * 24 * time.Hour)
	pass(later)
	h.records = nil
	h.add(5, contextwire.Evidence{At: later})
	s.add(h.records...)
	if n := pass(later.Add(time.Second)); n != 7 {
		t.Errorf("5 new records, no edge near: %d read", n)
	}
}
