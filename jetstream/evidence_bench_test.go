package jetstream_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apbus/apbus/internal/heap"
	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/loop"
)

var evidenceRecords = flag.Int("evidence.records", 100_000, "how many records BenchmarkEvidencePass analyses")

// processorTime is what this process has used, which other processes change little.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// resetPeak forgets how much memory the process had; peak is what it had at most
// since then, in MiB, the server in it included. Both know Linux only.
func resetPeak() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

func peak() float64 {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib / 1024
		}
	}
	return 0
}

// BenchmarkEvidencePass makes passes of the loop over a stream of evidence, with every
// analyzer that is on: one over -evidence.records records, which are all new to it, one
// when 10,000 more have come, and one over a stream that holds just 10,000. The targets
// are a million in 20 s and 500 MB, and 10,000 in 1 s. Time of the processors is given
// beside time of the clock, which other processes change.
//
//	go test ./jetstream -run '^$' -bench EvidencePass -benchtime 1x -evidence.records 1000000
func BenchmarkEvidencePass(b *testing.B) {
	const more = 10_000
	defer heap.Tend(b.Context(), os.LookupEnv)() // as in the router
	for b.Loop() {
		big := newEvidenceBench(b, "big")
		publishing := big.fill(*evidenceRecords)
		b.ReportMetric(publishing, "publish-cpu-µs/record")
		all := big.pass()
		b.ReportMetric(all.cpu.Seconds()*1e6/float64(*evidenceRecords), "pass-cpu-µs/record")
		b.ReportMetric(all.took.Seconds(), "pass-s")
		b.ReportMetric(all.peak, "pass-peak-MiB")
		b.ReportMetric(all.held, "before-MiB")
		big.fill(more)
		next := big.pass()
		b.ReportMetric(next.took.Seconds(), "next-pass-s")
		b.ReportMetric(next.cpu.Seconds(), "next-pass-cpu-s")
		b.ReportMetric(next.peak, "next-pass-peak-MiB")
		big.close()

		small := newEvidenceBench(b, "small")
		small.fill(more)
		only := small.pass()
		b.ReportMetric(only.took.Seconds(), "10k-pass-s")
		b.ReportMetric(only.cpu.Seconds(), "10k-pass-cpu-s")
		small.close()
	}
}

type evidenceBench struct {
	b      *testing.B
	srv    *natstest.Server
	s      *durable.EvidenceStore
	engine *loop.Engine
	n      int
}

func newEvidenceBench(b *testing.B, ns string) *evidenceBench {
	b.Helper()
	srv := natstest.New(b, natstest.Options{})
	s, err := durable.OpenEvidence(b.Context(), durable.EvidenceOptions{JS: srv.JetStream(), Namespace: ns, Logger: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	e, err := loop.New(loop.Options{Store: loop.NewMemStore(), Reader: s, Logger: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	return &evidenceBench{b: b, srv: srv, s: s, engine: e}
}

func (x *evidenceBench) close() { x.srv.Close() }

// fill publishes records of twenty modules and returns what one cost, in µs of the
// processors.
func (x *evidenceBench) fill(n int) float64 {
	x.b.Helper()
	const buffer = 16 << 10
	before := processorTime(x.b)
	p := x.s.Publisher(durable.PublisherOptions{Node: "n1", Buffer: buffer})
	for range n {
		e := piece(fmt.Sprintf("shop.module%d", x.n%20), x.n)
		x.n++
		e.CallChain, e.TraceID, e.Budget, e.Timeout = []string{e.ModuleID}, "0123456789abcdef0123456789abcdef", time.Minute, 30*time.Second
		e.Inputs = map[string]any{"order": "o-1", "amount": 12.5, "note": "for the usual purpose"}
		for p.Stats().Waiting >= buffer-1 {
			time.Sleep(time.Millisecond) //archtest:real-time a benchmark waits for a real server
		}
		p.Record(e)
	}
	ctx, stop := context.WithTimeoutCause(context.Background(), 10*time.Minute, errors.New("it takes too long"))
	defer stop()
	p.Close(ctx)
	if got := p.Stats(); got.Published != uint64(n) { //nolint:gosec // a count
		x.b.Fatalf("stats %+v", got)
	}
	return float64((processorTime(x.b) - before).Microseconds()) / float64(n)
}

type evidencePass struct {
	took, cpu time.Duration
	// peak is the memory of the process at most, held what it had before the pass.
	peak, held float64
}

func (x *evidenceBench) pass() evidencePass {
	x.b.Helper()
	debug.FreeOSMemory() // what was needed to publish
	resetPeak()
	held := peak()
	start, cpu := time.Now(), processorTime(x.b)
	r, err := x.engine.Run(x.b.Context(), time.Now(), loop.RunOptions{})
	if err != nil || r.Outcome != "ran" || r.Proposed == 0 {
		x.b.Fatalf("a pass: %+v, %v", r, err)
	}
	return evidencePass{took: time.Since(start), cpu: processorTime(x.b) - cpu, peak: peak(), held: held}
}
