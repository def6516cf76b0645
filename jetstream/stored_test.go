package jetstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/task"
)

// BenchmarkStored holds b.N tasks that wait, on a real server in the same process, and
// measures what one costs: memory once nothing is under way, processor time of a
// submission and of a status with all of them there and with none, and of the next
// writer's takeover after the end of the server. Run it with -benchtime=100000x.
func BenchmarkStored(b *testing.B) {
	s := natstest.New(b, natstest.Options{})
	defer s.Close()
	w, leave := writing(b, s)
	submit := func(n int) string {
		req := task.SubmitRequest{Tasks: make([]task.Submission, n)}
		for i := range req.Tasks {
			req.Tasks[i] = task.Submission{ModuleID: "job.idle", Inputs: json.RawMessage(`{"text":"` + strings.Repeat("x", 480) + `"}`)}
		}
		a, err := w.Submit(b.Context(), req)
		if err == nil {
			err = a.Receipts[n-1].Error.Err()
		}
		if err != nil {
			b.Fatal(err)
		}
		return a.Receipts[n-1].TaskID
	}
	const probes = 1000
	probe := func() (each [2]float64) {
		var ids []string
		each[0] = micros(probes, func() { ids = append(ids, submit(1)) })
		n := 0
		each[1] = micros(probes, func() {
			n++
			if _, err := w.Get(b.Context(), ids[n%len(ids)]); err != nil {
				b.Fatal(err)
			}
		})
		return each
	}
	probe()
	empty := probe()
	before := live()
	for left := b.N; left > 0; left -= 1000 {
		submit(min(left, 1000))
	}
	each := (live() - before) / float64(b.N)
	full := probe()
	leave()
	s.Stop()
	runtime.GC()
	b.ResetTimer()
	s.Start()
	recovered := b.Elapsed()
	began := processor()
	_, leave = writing(b, s)
	b.StopTimer()
	b.ReportMetric(each, "B/task")
	b.ReportMetric(full[0], "submit-µs")
	b.ReportMetric(full[0]/empty[0], "submit-ratio")
	b.ReportMetric(full[1], "status-µs")
	b.ReportMetric(full[1]/empty[1], "status-ratio")
	b.ReportMetric(recovered.Seconds(), "server-s")
	b.ReportMetric((b.Elapsed() - recovered).Seconds(), "takeover-s")
	b.ReportMetric(float64((processor()-began).Microseconds())/float64(b.N), "takeover-µs/task")
	leave()
}

// writing runs a writer of tasks over the log of s until the returned func is called.
func writing(b *testing.B, s *natstest.Server) (w *task.Writer, leave func()) {
	b.Helper()
	store, err := durable.Open(b.Context(), durable.Options{JS: s.JetStream(), Durability: durable.ProcessSafe, LeaseTTL: time.Minute, Logger: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	r := lead(b, store)
	w, err = task.NewWriter(r.log, task.WriterOptions{MaxTasks: 10_000_000, Logger: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	select {
	case <-w.Ready():
	case err := <-ended:
		b.Fatal(err)
	}
	return w, func() {
		stop(errors.New("over"))
		<-ended
		_ = r.leave()
	}
}

// live is what the heap holds, in bytes, with the buffers that the server keeps for
// a moment.
func live() float64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// processor is the processor time that this process has had.
func processor() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails for no process of its own
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// micros is the processor time of one of n calls.
func micros(n int, f func()) float64 {
	began := processor()
	for range n {
		f()
	}
	return float64((processor() - began).Nanoseconds()) / float64(n) / 1000
}
