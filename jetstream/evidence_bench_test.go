package jetstream_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/loop"
)

// BenchmarkEvidence publishes records, reads them all, and runs every analyzer that
// is on over them in one pass. The target is a million in 20 s and 500 MB.
func BenchmarkEvidence(b *testing.B) {
	const n = 200_000
	srv := natstest.New(b, natstest.Options{})
	defer srv.Close()
	s, err := durable.OpenEvidence(context.Background(), durable.EvidenceOptions{JS: srv.JetStream(), Logger: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	p := s.Publisher(durable.PublisherOptions{Node: "n1", Buffer: n})
	start := time.Now()
	for i := range n {
		e := piece([]string{"a.one", "a.two", "a.three"}[i%3], i)
		e.CallChain, e.TraceID, e.Budget, e.Timeout = []string{e.ModuleID}, "0123456789abcdef0123456789abcdef", time.Minute, 30*time.Second
		e.Inputs = map[string]any{"order": "o-1", "amount": 12.5, "note": "for the usual purpose"}
		p.Record(e)
	}
	ctx, stop := context.WithTimeoutCause(context.Background(), 5*time.Minute, errors.New("it takes too long"))
	defer stop()
	p.Close(ctx)
	if got := p.Stats(); got.Published != n {
		b.Fatalf("stats %+v", got)
	}
	published := time.Since(start)
	for b.Loop() {
		b.ReportMetric(float64(published.Microseconds())/n, "publish-µs/record")
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		start := time.Now()
		got := 0
		for _, err := range s.Records(ctx, loop.Query{}) {
			if err != nil {
				b.Fatal(err)
			}
			if got++; got == n/2 {
				runtime.ReadMemStats(&after)
			}
		}
		if got != n {
			b.Fatalf("%d records", got)
		}
		b.ReportMetric(float64(time.Since(start).Microseconds())/n, "read-µs/record")
		b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/(1<<20), "MiB-halfway")
		start = time.Now()
		if _, err := loop.Analyze(ctx, s, time.Now(), loop.Query{}, nil, loop.DefaultRuns()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(start).Microseconds())/n, "analyze-µs/record")
	}
}
