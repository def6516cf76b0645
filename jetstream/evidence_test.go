package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/module"
)

// withEvidence runs a test in a bubble with a stream of evidence.
func withEvidence(t *testing.T, o durable.EvidenceOptions, test func(t *testing.T, srv *natstest.Server, js jetstream.JetStream, s *durable.EvidenceStore)) {
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
		s, err := durable.OpenEvidence(t.Context(), o)
		if err != nil {
			t.Fatalf("OpenEvidence: %v", err)
		}
		test(t, srv, js, s)
	})
}

func piece(id string, i int) *contextwire.Evidence {
	e := &contextwire.Evidence{
		Type: contextwire.EvidenceCall, At: contextwire.EvidenceTime(time.Now()), ModuleID: id, Outcome: contextwire.OutcomeOK,
		Call: fmt.Sprintf("call-%016d", i), Attempt: 1,
	}
	if i%10 == 3 {
		e.Outcome, e.Code, e.Message = contextwire.OutcomeError, "BROKEN", "no"
	}
	return e
}

func closePublisher(t *testing.T, p *durable.EvidencePublisher) {
	t.Helper()
	ctx, stop := context.WithTimeoutCause(context.Background(), 10*time.Second, errors.New("the publisher does not end"))
	defer stop()
	p.Close(ctx)
}

func readAll(t *testing.T, s *durable.EvidenceStore, q loop.Query) []*loop.Record {
	t.Helper()
	var all []*loop.Record
	for r, err := range s.Records(t.Context(), q) {
		if err != nil {
			t.Fatalf("read: %v", err)
		}
		all = append(all, r)
	}
	return all
}

func TestEvidenceRoundTrip(t *testing.T) {
	withEvidence(t, durable.EvidenceOptions{}, func(t *testing.T, _ *natstest.Server, js jetstream.JetStream, s *durable.EvidenceStore) {
		const n = 5000 // several pages, and more than one batch
		p := s.Publisher(durable.PublisherOptions{Node: "n1", Boot: "b1", Buffer: n + 2})
		for i := range n {
			p.Record(piece([]string{"a.one", "a.two"}[i%2], i))
		}
		p.Record(&contextwire.Evidence{Type: contextwire.EvidenceNote, At: contextwire.EvidenceTime(time.Now()), Text: "slow today"})
		p.Record(&contextwire.Evidence{Type: contextwire.EvidenceCall}) // has no form
		closePublisher(t, p)
		if got, want := p.Stats(), (durable.PublisherStats{Recorded: n + 2, Published: n + 1, Refused: 1}); got != want {
			t.Errorf("stats %+v, want %+v", got, want)
		}
		all := readAll(t, s, loop.Query{})
		if len(all) != n+1 {
			t.Fatalf("%d records, want %d", len(all), n+1)
		}
		seen := map[string]bool{}
		for i, r := range all {
			if r.Seq != uint64(i)+1 || seen[r.Hash] || r.Namespace != "default" || r.Evidence.Node != "n1" || r.Evidence.Boot != "b1" {
				t.Fatalf("record %d: %+v %+v", i, r, r.Evidence)
			}
			seen[r.Hash] = true
		}
		if got := readAll(t, s, loop.Query{AfterSeq: 4990}); len(got) != 11 || got[0].Seq != 4991 {
			t.Errorf("after a sequence: %d records", len(got))
		}
		if got := readAll(t, s, loop.Query{Types: []loop.Type{loop.TypeNote}}); len(got) != 1 || got[0].Evidence.Text != "slow today" {
			t.Errorf("notes: %v", got)
		}
		if got := readAll(t, s, loop.Query{Types: []loop.Type{loop.TypeFact}}); len(got) != 0 {
			t.Errorf("facts: %v", got)
		}
		c, err := s.Count(t.Context(), loop.Query{AfterSeq: 10})
		if want := (loop.Counts{Records: n - 9, Errors: n/10 - 1, LastSeq: n + 1}); err != nil || c != want {
			t.Errorf("count %+v, %v; want %+v", c, err, want)
		}
		hashes := []string{all[7].Hash, all[8].Hash, all[4000].Hash, strings.Repeat("0", 64), "short"}
		found, err := s.ByHash(t.Context(), hashes)
		if err != nil || len(found) != 3 || found[hashes[2]].Seq != 4001 {
			t.Errorf("by hash: %v, %v", found, err)
		}
		info, err := js.Stream(t.Context(), durable.EvidenceStream)
		if err != nil {
			t.Fatal(err)
		}
		cfg := info.CachedInfo().Config
		if cfg.MaxAge != 7*24*time.Hour || cfg.MaxBytes != 1<<30 || cfg.PersistMode != jetstream.AsyncPersistMode || len(s.Drift()) != 0 {
			t.Errorf("stream %+v, drift %v", cfg, s.Drift())
		}
	})
}

// The same bytes are one record, however often they are sent.
func TestEvidenceIsStoredOnceThoughTheServerRestarts(t *testing.T) {
	withEvidence(t, durable.EvidenceOptions{}, func(t *testing.T, srv *natstest.Server, _ jetstream.JetStream, s *durable.EvidenceStore) {
		p := s.Publisher(durable.PublisherOptions{Node: "n1"})
		for i := range 100 {
			p.Record(piece("m", i))
		}
		synctest.Wait()
		srv.Stop()
		for i := range 300 {
			p.Record(piece("m", 100+i))
		}
		time.Sleep(8 * time.Second) // several attempts fail
		srv.Start()
		time.Sleep(5 * time.Second)
		closePublisher(t, p)
		if got := p.Stats(); got.Published != 400 || got.Dropped != 0 {
			t.Errorf("stats %+v", got)
		}
		calls := map[string]int{}
		for _, r := range readAll(t, s, loop.Query{}) {
			calls[r.Evidence.Call]++
		}
		if len(calls) != 400 {
			t.Errorf("%d calls are there", len(calls))
		}
		for call, n := range calls {
			if n != 1 {
				t.Errorf("%s is there %d times", call, n)
			}
		}
	})
}

// Without a server nothing blocks: the buffer fills, the rest is dropped and counted,
// and closing ends in time.
func TestEvidenceNeverBlocks(t *testing.T) {
	withEvidence(t, durable.EvidenceOptions{}, func(t *testing.T, srv *natstest.Server, _ jetstream.JetStream, s *durable.EvidenceStore) {
		p := s.Publisher(durable.PublisherOptions{Buffer: 16})
		srv.Stop()
		start := time.Now()
		for i := range 1000 {
			p.Record(piece("m", i))
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("recording took %v of the bubble's time", took)
		}
		if got := p.Stats(); got.Dropped == 0 || got.Recorded+got.Dropped != 1000 || got.Waiting > 16 {
			t.Errorf("stats %+v", got)
		}
		time.Sleep(2 * time.Minute) // patience ends
		synctest.Wait()
		if got := p.Stats(); got.Dropped != 1000 {
			t.Errorf("after two minutes %+v", got)
		}
		p.Record(piece("m", 1))
		ctx, stop := context.WithTimeoutCause(context.Background(), time.Second, errors.New("time is over"))
		defer stop()
		start = time.Now()
		p.Close(ctx)
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("closing took %v", took)
		}
		p.Record(piece("m", 2))
		if got := p.Stats(); got.Dropped != 1002 || got.Published != 0 {
			t.Errorf("after the end %+v", got)
		}
		srv.Start()
	})
}

func TestEvidenceQuery(t *testing.T) {
	withEvidence(t, durable.EvidenceOptions{}, func(t *testing.T, _ *natstest.Server, _ jetstream.JetStream, s *durable.EvidenceStore) {
		p := s.Publisher(durable.PublisherOptions{Buffer: 4000})
		for i := range 3000 {
			p.Record(piece([]string{"a.one", "a.two"}[i%2], i))
		}
		closePublisher(t, p)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		p = s.Publisher(durable.PublisherOptions{})
		p.Record(piece("a.one", 3))
		closePublisher(t, p)
		tests := []struct {
			name        string
			q           contextwire.EvidenceQuery
			n           int
			first, last uint64
			more        bool
		}{
			{"newest", contextwire.EvidenceQuery{Limit: 10}, 10, 2992, 3001, true},
			{"module", contextwire.EvidenceQuery{ModuleID: "a.two", Limit: 5}, 5, 2992, 3000, true},
			{"code", contextwire.EvidenceQuery{ModuleID: "a.two", Code: "BROKEN", Limit: 1000}, 300, 4, 2994, false},
			{"type", contextwire.EvidenceQuery{Types: []contextwire.EvidenceType{contextwire.EvidenceTask}}, 0, 0, 0, false},
			{"types", contextwire.EvidenceQuery{Types: []contextwire.EvidenceType{contextwire.EvidenceTask, contextwire.EvidenceCall}, Limit: 1}, 1, 3001, 3001, true},
			{"since", contextwire.EvidenceQuery{Since: time.Now().Add(-time.Minute), Limit: 100}, 1, 3001, 3001, false},
			{"before", contextwire.EvidenceQuery{Before: 11, Limit: 100}, 10, 1, 10, false},
		}
		for _, tt := range tests {
			page, err := s.Evidence(t.Context(), tt.q)
			if err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			var first, last uint64
			if len(page.Items) > 0 {
				first, last = page.Items[0].Seq, page.Items[len(page.Items)-1].Seq
			}
			if len(page.Items) != tt.n || first != tt.first || last != tt.last || page.More != tt.more || page.Last != 3001 {
				t.Errorf("%s: %d items from %d to %d, more %v, last %d; want %+v", tt.name, len(page.Items), first, last, page.More, page.Last, tt)
			}
		}
	})
}

// A follower sees everything once and in order, also what came while the server was
// away.
func TestEvidenceFollow(t *testing.T) {
	withEvidence(t, durable.EvidenceOptions{}, func(t *testing.T, srv *natstest.Server, _ jetstream.JetStream, s *durable.EvidenceStore) {
		p := s.Publisher(durable.PublisherOptions{})
		record := func(from, to int) {
			for i := from; i < to; i++ {
				p.Record(piece([]string{"a.one", "a.two"}[i%2], i))
			}
		}
		record(0, 10)
		time.Sleep(time.Second)
		ctx, stop := context.WithCancelCause(t.Context())
		var got []uint64
		done := make(chan struct{})
		go func() {
			defer close(done)
			for item, err := range s.Follow(ctx, contextwire.EvidenceQuery{ModuleID: "a.one"}, 4) {
				if err != nil {
					t.Errorf("follow: %v", err)
					return
				}
				got = append(got, item.Seq)
			}
		}()
		time.Sleep(time.Second)
		record(10, 20)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if n := len(got); n != 8 {
			t.Errorf("%d records within a tenth of a second, want 8: %v", n, got)
		}
		srv.Stop()
		time.Sleep(3 * time.Second)
		srv.Start()
		time.Sleep(10 * time.Second)
		record(20, 30)
		time.Sleep(5 * time.Second)
		stop(errors.New("seen enough"))
		<-done
		closePublisher(t, p)
		if len(got) != 13 {
			t.Fatalf("got %v", got)
		}
		for i, seq := range got {
			if want := uint64(5 + 2*i); seq != want {
				t.Errorf("place %d: %d, want %d", i, seq, want)
			}
		}
	})
}

// What cannot be read is passed over, and what has gone from the front does not
// confuse the rest.
func TestEvidenceReadsOnPastGarbageAndGaps(t *testing.T) {
	withEvidence(t, durable.EvidenceOptions{MaxBytes: 2 << 20}, func(t *testing.T, _ *natstest.Server, js jetstream.JetStream, s *durable.EvidenceStore) {
		p := s.Publisher(durable.PublisherOptions{Buffer: 20_000})
		for i := range 9000 {
			p.Record(piece("m", i))
		}
		closePublisher(t, p)
		if _, err := js.Publish(t.Context(), "apbus.v1.evt.default.call.m", []byte("garbage")); err != nil {
			t.Fatal(err)
		}
		p = s.Publisher(durable.PublisherOptions{})
		p.Record(piece("m", 1))
		closePublisher(t, p)
		all := readAll(t, s, loop.Query{})
		if len(all) < 4096 || len(all) > 9000 || all[len(all)-1].Seq != 9002 || all[0].Seq == 1 {
			t.Fatalf("%d records from %d to %d", len(all), all[0].Seq, all[len(all)-1].Seq)
		}
		for i, r := range all[:len(all)-1] {
			if want := all[0].Seq + uint64(i); r.Seq != want {
				t.Fatalf("record %d has sequence %d, want %d", i, r.Seq, want)
			}
		}
		c, err := s.Count(t.Context(), loop.Query{})
		if err != nil || c.Records != len(all) || c.LastSeq != 9002 {
			t.Errorf("count %+v, %v", c, err)
		}
	})
}

func TestEvidenceStreamOfSomebodyElse(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		srv := natstest.New(t, natstest.Options{})
		defer srv.Close()
		nc := srv.Connect(nats.Name("t"))
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "APBUS_EVIDENCE", Subjects: []string{"other.>"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := durable.OpenEvidence(t.Context(), durable.EvidenceOptions{JS: js, Logger: quiet()}); module.CodeOf(err) != module.CodeConfigInvalid {
			t.Errorf("a stream without our subjects is taken: %v", err)
		}
		if _, err := durable.OpenEvidence(t.Context(), durable.EvidenceOptions{JS: js, Namespace: "BAD NAME"}); module.CodeOf(err) != module.CodeConfigInvalid {
			t.Errorf("a bad namespace is taken: %v", err)
		}
		other, err := durable.OpenEvidence(t.Context(), durable.EvidenceOptions{JS: js, Namespace: "team-a", Logger: quiet()})
		if err != nil || other.Namespace() != "team-a" {
			t.Errorf("another namespace: %v", err)
		}
	})
}
