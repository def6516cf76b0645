package jetstream_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/loop"
)

// A pass with what the ones before kept finds what one finds that reads all, over a
// stream that grows, loses its oldest records and is read hours later.
func TestKeptOverAStream(t *testing.T) {
	withEvidence(t, durable.EvidenceOptions{MaxBytes: 1 << 20}, func(t *testing.T, _ *natstest.Server, _ jetstream.JetStream, s *durable.EvidenceStore) {
		kept := &loop.Kept{SegmentLength: 300}
		lost, drafts := false, 0
		for round := range 8 {
			p := s.Publisher(durable.PublisherOptions{Buffer: 20_000})
			for i := range 700 {
				p.Record(piece(fmt.Sprint("m", i%3), round*700+i))
			}
			closePublisher(t, p)
			now := time.Now()
			got, err := kept.Analyze(t.Context(), s, now, loop.Query{}, nil, loop.DefaultRuns())
			if err != nil {
				t.Fatal(err)
			}
			fresh, err := loop.Analyze(t.Context(), s, now, loop.Query{}, nil, loop.DefaultRuns())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(fresh, got); diff != "" {
				t.Fatalf("round %d: %s", round, diff)
			}
			for _, f := range got {
				drafts += len(f.Drafts)
			}
			x, err := s.Extent(t.Context())
			if err != nil || x.Last != uint64(700*(round+1)) { //nolint:gosec // not negative
				t.Fatalf("extent %+v, %v", x, err)
			}
			lost = lost || x.First > 1
			time.Sleep(25 * time.Minute) //archtest:real-time not real: every use is inside a bubble
		}
		if !lost || drafts == 0 {
			t.Errorf("records were lost: %v; %d findings", lost, drafts)
		}
	})
}

func TestEvidenceIsReadUpToASequence(t *testing.T) {
	withEvidence(t, durable.EvidenceOptions{}, func(t *testing.T, _ *natstest.Server, _ jetstream.JetStream, s *durable.EvidenceStore) {
		p := s.Publisher(durable.PublisherOptions{Buffer: 20_000})
		for i := range 5000 {
			p.Record(piece("m", i))
		}
		closePublisher(t, p)
		for _, tt := range []struct {
			name  string
			q     loop.Query
			first uint64
			n     int
		}{
			{"from the begin", loop.Query{UpToSeq: 10}, 1, 10},
			{"over pages", loop.Query{AfterSeq: 1000, UpToSeq: 4999}, 1001, 3999},
			{"one", loop.Query{AfterSeq: 4999, UpToSeq: 5000}, 5000, 1},
			{"beyond the end", loop.Query{AfterSeq: 4990, UpToSeq: 9000}, 4991, 10},
			{"of one type", loop.Query{Types: []loop.Type{loop.Type(contextwire.EvidenceCall)}, AfterSeq: 7, UpToSeq: 20}, 8, 13},
			{"since", loop.Query{Since: time.Now().Add(-time.Hour), UpToSeq: 3}, 1, 3},
		} {
			all := readAll(t, s, tt.q)
			if len(all) != tt.n || all[0].Seq != tt.first || all[len(all)-1].Seq != tt.first+uint64(tt.n)-1 { //nolint:gosec // not negative
				t.Errorf("%s: %d records", tt.name, len(all))
			}
		}
	})
}
