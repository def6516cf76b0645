package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/loop/plan"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

func withPlanRuns(t *testing.T, o durable.PlanRunOptions, test func(t *testing.T, srv *natstest.Server, js jetstream.JetStream, s *durable.PlanRunStore)) {
	t.Helper()
	natstest.Bubble(t, func(t *testing.T) {
		srv := natstest.New(t, natstest.Options{})
		defer srv.Close()
		nc := srv.Connect()
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		o.JS, o.Logger = js, quiet()
		s, err := durable.OpenPlanRuns(t.Context(), o)
		if err != nil {
			t.Fatalf("OpenPlanRuns: %v", err)
		}
		test(t, srv, js, s)
	})
}

// version is the hash of a version of a plan.
func version(n int) string { return fmt.Sprintf("%064x", n) }

// aRun is the record of a run of version v whose one node said so much.
func aRun(t *testing.T, id string, v, i int) *plan.RunRecord {
	t.Helper()
	p := &plan.Plan{Nodes: []plan.Node{{ID: "a", Tool: "m.a"}}}
	res, err := plan.Run(t.Context(), p, map[string]any{"i": int64(i)}, func(context.Context, string, map[string]any) (map[string]any, error) {
		if i%10 == 3 {
			return nil, module.Errorf("BROKEN", "no")
		}
		return map[string]any{"f": 1.0, "n": int64(i)}, nil
	}, plan.Options{Trace: true})
	redactor, redactErr := schema.NewRedactor(schema.RedactOptions{})
	if redactErr != nil {
		t.Fatal(redactErr)
	}
	hide := &plan.Redaction{Redactor: redactor, Schemas: func(string, map[string]any) (in, out *schema.Compiled, known bool) { return nil, nil, true }}
	about := plan.RunAbout{Plan: id, PlanHash: version(v), Call: module.CallInfo{ID: fmt.Sprintf("call-%d", i), Attempt: 1}, StartedMS: int64(i) + 1, EndedMS: int64(i) + 2}
	return plan.NewRunRecord(p, about, res, err, hide)
}

func endRuns(t *testing.T, p *durable.PlanRunPublisher) {
	t.Helper()
	ctx, stop := context.WithTimeoutCause(context.Background(), 10*time.Second, errors.New("the publisher does not end"))
	defer stop()
	p.Close(ctx)
}

func runsOf(t *testing.T, s loop.PlanRuns, hash string) []*loop.JournaledRun {
	t.Helper()
	var all []*loop.JournaledRun
	for r, err := range s.PlanRuns(t.Context(), hash) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func TestPlanRunsRoundTrip(t *testing.T) {
	withPlanRuns(t, durable.PlanRunOptions{}, func(t *testing.T, _ *natstest.Server, js jetstream.JetStream, s *durable.PlanRunStore) {
		p := s.Publisher(durable.PublisherOptions{Node: "n1", Boot: "b1"})
		const n = durable.PlanRunsKept + 20
		for i := range n {
			p.Record(aRun(t, "plan.one", 1, i))
		}
		p.Record(aRun(t, "plan.one", 2, 7))
		p.Record(aRun(t, "plan.two", 3, 8))
		p.Record(&plan.RunRecord{V: 1, Plan: "plan.one", PlanHash: "no hash"})
		endRuns(t, p)
		if got, want := p.Stats(), (durable.PublisherStats{Recorded: n + 3, Published: n + 2, Refused: 1}); got != want {
			t.Errorf("stats %+v, want %+v", got, want)
		}
		got := runsOf(t, s, version(1))
		if len(got) != durable.PlanRunsKept || got[0].Call != "call-20" || got[len(got)-1].Call != fmt.Sprintf("call-%d", n-1) {
			t.Fatalf("%d runs are kept of a version", len(got))
		}
		want := aRun(t, "plan.one", 1, 20)
		want.NS, want.Node, want.Boot, want.N = "default", "n1", "b1", 21
		first := *got[0].RunRecord
		for i := range first.Steps {
			want.Steps[i].StartedMS, want.Steps[i].EndedMS = first.Steps[i].StartedMS, first.Steps[i].EndedMS
		}
		if diff := cmp.Diff(want, &first); diff != "" || len(got[0].ID) != 64 || got[0].ID == got[1].ID {
			t.Errorf("the first run, %s: %s", got[0].ID, diff)
		}
		if got[3].Outcome != plan.OutcomeError || got[3].Code != "BROKEN" || got[3].Failed != "a" {
			t.Errorf("one that failed: %+v", got[3].RunRecord)
		}
		if got := runsOf(t, s, version(9)); len(got) != 0 {
			t.Errorf("%d runs of a version that never ran", len(got))
		}
		if got := runsOf(t, s, "*"); len(got) != 0 {
			t.Errorf("%d runs of *", len(got))
		}
		newest, err := s.Newest(t.Context(), "plan.one", 2)
		if err != nil || len(newest) != 2 || newest[0].PlanHash != version(2) || newest[1].Call != fmt.Sprintf("call-%d", n-1) {
			t.Errorf("the newest two: %v, %v", newest, err)
		}
		if _, err := s.Newest(t.Context(), "plan.*", 2); module.CodeOf(err) != module.CodeInvalidModuleID {
			t.Errorf("runs of plan.*: %v", err)
		}
		info, err := js.Stream(t.Context(), durable.PlanRunStream)
		if err != nil {
			t.Fatal(err)
		}
		cfg := info.CachedInfo().Config
		if cfg.MaxAge != 30*24*time.Hour || cfg.MaxBytes != 256<<20 || cfg.MaxMsgsPerSubject != 100 || len(s.Drift()) != 0 {
			t.Errorf("stream %+v, drift %v", cfg, s.Drift())
		}
		// What cannot be read is passed over.
		if _, err := js.Publish(t.Context(), "apbus.v1.planrun.default."+version(1)+".plan.one", []byte(`{"v":9}`)); err != nil {
			t.Fatal(err)
		}
		if got := runsOf(t, s, version(1)); len(got) != durable.PlanRunsKept-1 {
			t.Errorf("%d runs beside one that cannot be read", len(got))
		}
	})
}

// Without a server nothing blocks: the buffer fills, the rest is dropped and counted;
// what waits is stored when the server is back, once.
func TestPlanRunsNeverBlock(t *testing.T) {
	withPlanRuns(t, durable.PlanRunOptions{}, func(t *testing.T, srv *natstest.Server, _ jetstream.JetStream, s *durable.PlanRunStore) {
		p := s.Publisher(durable.PublisherOptions{Buffer: 8})
		records := make([]*plan.RunRecord, 50)
		for i := range records {
			records[i] = aRun(t, "plan.one", 1, i)
		}
		srv.Stop()
		start := time.Now()
		for _, r := range records {
			p.Record(r)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("recording took %v of the bubble's time", took)
		}
		stats := p.Stats()
		if stats.Dropped == 0 || stats.Recorded+stats.Dropped != 50 || stats.Waiting > 8 {
			t.Errorf("stats %+v", stats)
		}
		time.Sleep(8 * time.Second) // several attempts fail
		srv.Start()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		endRuns(t, p)
		if got := p.Stats(); got.Published != stats.Recorded || got.Dropped != stats.Dropped {
			t.Errorf("stats %+v, before %+v", got, stats)
		}
		if got := runsOf(t, s, version(1)); len(got) != int(stats.Recorded) {
			t.Errorf("%d runs are there of %d", len(got), stats.Recorded)
		}
		srv.Stop()
		for _, err := range s.PlanRuns(t.Context(), version(1)) {
			if module.CodeOf(err) != module.CodeLoopStore {
				t.Errorf("without a server: %v", err)
			}
		}
		srv.Start()
	})
}

// An existing stream is used as it is, and what differs is told; one that would take
// nothing is refused.
func TestPlanRunsDrift(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		srv := natstest.New(t, natstest.Options{})
		defer srv.Close()
		nc := srv.Connect(nats.Name("drift"))
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		create := func(ns string, change func(*jetstream.StreamConfig)) {
			t.Helper()
			c := jetstream.StreamConfig{
				Name: durable.PlanRunStream + "_" + ns, Subjects: []string{"apbus.v1.planrun." + ns + ".>"}, MaxAge: 30 * 24 * time.Hour,
				MaxBytes: 256 << 20, MaxMsgsPerSubject: 100, AllowDirect: true, DenyDelete: true, DenyPurge: true,
			}
			change(&c)
			if _, err := js.CreateStream(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		open := func(ns string) (*durable.PlanRunStore, error) {
			return durable.OpenPlanRuns(t.Context(), durable.PlanRunOptions{JS: js, Namespace: ns, Replicas: 3, Logger: quiet()})
		}
		create("a", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 5 })
		s, err := open("a")
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(s.Drift()); !strings.Contains(got, "max_msgs_per_subject is 5, want 100") || !strings.Contains(got, "num_replicas is 1, want 3") || len(s.Drift()) != 2 {
			t.Errorf("drift %v", got)
		}
		p := s.Publisher(durable.PublisherOptions{})
		for i := range 9 {
			p.Record(aRun(t, "plan.one", 1, i))
		}
		endRuns(t, p)
		if got := runsOf(t, s, version(1)); len(got) != 5 {
			t.Errorf("%d runs are kept", len(got))
		}
		create("b", func(c *jetstream.StreamConfig) { c.Subjects = []string{"elsewhere.>"} })
		if _, err := open("b"); module.CodeOf(err) != module.CodeConfigInvalid {
			t.Errorf("a stream of other subjects: %v", err)
		}
		create("c", func(c *jetstream.StreamConfig) { c.AllowDirect = false })
		if _, err := open("c"); module.CodeOf(err) != module.CodeConfigInvalid {
			t.Errorf("a stream that cannot be read: %v", err)
		}
		if _, err := durable.OpenPlanRuns(t.Context(), durable.PlanRunOptions{}); module.CodeOf(err) != module.CodeConfigInvalid {
			t.Errorf("without JetStream: %v", err)
		}
	})
}

// journalOf hands runs to a publisher, as a node does.
type journalOf struct {
	p    *durable.PlanRunPublisher
	hide *plan.Redaction
}

func (j journalOf) Ran(p *plan.Plan, about plan.RunAbout, res *plan.Result, err error) {
	j.p.Record(plan.NewRunRecord(p, about, res, err, j.hide))
}

// nested answers the calls of nodes.
type nested struct{}

func (nested) Call(context.Context, string, map[string]any, ...module.CallOption) (map[string]any, error) {
	<-time.After(time.Millisecond)
	return map[string]any{"ok": true}, nil
}

// A plan takes as long and ends as well without a server as with one, and the revision
// that it has runs of in the journal is rehearsed by what was stored.
func TestPlansRunWithoutTheirJournal(t *testing.T) {
	withPlanRuns(t, durable.PlanRunOptions{}, func(t *testing.T, srv *natstest.Server, _ jetstream.JetStream, s *durable.PlanRunStore) {
		redactor, err := schema.NewRedactor(schema.RedactOptions{})
		if err != nil {
			t.Fatal(err)
		}
		hide := &plan.Redaction{Redactor: redactor, Schemas: func(string, map[string]any) (in, out *schema.Compiled, known bool) { return nil, nil, true }}
		p := s.Publisher(durable.PublisherOptions{Buffer: 4})
		graph := &plan.Plan{Nodes: []plan.Node{{ID: "a", Tool: "m.a"}, {ID: "b", Tool: "m.b"}}, Edges: []plan.Edge{{Src: "a", Dst: "b", Cond: "a.ok"}}}
		m, err := plan.NewModule(plan.About{Name: "two", Hash: version(1), Journal: journalOf{p, hide}}, graph)
		if err != nil {
			t.Fatal(err)
		}
		run := func() {
			t.Helper()
			c := module.NewContext(module.ContextOptions{})
			if err := c.BindExecutor(nested{}); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			if _, err := m.Execute(module.WithContext(t.Context(), c), nil); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begun); took != 2*time.Millisecond {
				t.Fatalf("a run took %v", took)
			}
		}
		run()
		synctest.Wait()
		srv.Stop()
		for range 40 {
			run()
		}
		if stats := p.Stats(); stats.Dropped == 0 {
			t.Errorf("nothing was dropped: %+v", stats)
		}
		srv.Start()
		time.Sleep(5 * time.Second)
		endRuns(t, p)
		next, err := graph.Revise([]plan.Edit{{Path: "edges.0.cond", From: "a.ok", To: "!a.ok"}})
		if err != nil {
			t.Fatal(err)
		}
		runs := runsOf(t, s, version(1))
		if len(runs) < 2 || uint64(len(runs)) != p.Stats().Published {
			t.Fatalf("%d runs, %+v", len(runs), p.Stats())
		}
		for _, r := range runs {
			got, err := plan.Replay(t.Context(), graph, next, r.RunRecord)
			if err != nil || !got.Known || got.Done || got.Calls != 1 {
				t.Errorf("without b: %+v, %v", got, err)
			}
		}
	})
}
