package task_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// leading starts a writer over a log, in real time.
func leading(tb testing.TB, log task.Log, a module.Annotations) *task.Writer {
	tb.Helper()
	d := task.Described{Descriptor: module.Descriptor{ID: "job.bench", Annotations: a}, Hosts: 1}
	w, err := task.NewWriter(log, task.WriterOptions{
		MaxTasks: 10_000_000, Describe: func(string) (task.Described, bool) { return d, true },
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	tb.Cleanup(func() {
		stop(errors.New("over"))
		<-ended
	})
	<-w.Ready()
	return w
}

// payload is about 512 bytes.
func payload() json.RawMessage {
	return json.RawMessage(`{"text":"` + strings.Repeat("x", 480) + `"}`)
}

// BenchmarkLife is submit, claim, start and finish, with 256 tasks in flight and a log
// that costs nothing.
func BenchmarkLife(b *testing.B) {
	for _, bb := range []struct {
		name string
		a    module.Annotations
	}{{"idempotent", module.Annotations{Idempotent: true}}, {"effect", module.Annotations{}}} {
		b.Run(bb.name, func(b *testing.B) {
			w := leading(b, task.NewMemLog().Lead(), bb.a)
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			var done atomic.Int64
			all := make(chan struct{})
			var owned sync.WaitGroup
			for n := range 2 {
				owned.Go(func() {
					for ctx.Err() == nil {
						a, err := w.Claim(ctx, task.ClaimRequest{Node: fmt.Sprint(n), Modules: []string{"job.bench"}, Slots: 128, WaitMS: 1000})
						if err != nil {
							return
						}
						if len(a.Grants) > 0 && a.Grants[0].Confirm {
							refs := make([]task.LeaseRef, len(a.Grants))
							for i, g := range a.Grants {
								refs[i] = g.LeaseRef
							}
							if _, err := w.Start(ctx, task.StartRequest{Refs: refs}); err != nil {
								b.Error(err)
							}
						}
						var batch sync.WaitGroup
						for _, g := range a.Grants {
							batch.Go(func() {
								if _, err := w.Finish(ctx, task.FinishReport{LeaseRef: g.LeaseRef, Outcome: task.OutcomeCompleted, Result: json.RawMessage(`{"ok":true}`)}); err != nil {
									b.Error(err)
								}
								if done.Add(1) == int64(b.N) {
									close(all)
								}
							})
						}
						batch.Wait()
					}
				})
			}
			in := payload()
			b.ResetTimer()
			b.ReportAllocs()
			var submitters sync.WaitGroup
			var n atomic.Int64
			for range min(256, b.N) {
				submitters.Go(func() {
					for n.Add(1) <= int64(b.N) {
						if _, err := w.Submit(ctx, task.SubmitRequest{Tasks: []task.Submission{{ModuleID: "job.bench", Inputs: in}}}); err != nil {
							b.Error(err)
						}
					}
				})
			}
			submitters.Wait()
			<-all
			b.StopTimer()
			stop()
			owned.Wait()
		})
	}
}

// BenchmarkStored measures a writer that holds b.N finished tasks: memory a task, and
// the time to take over. Run it with -benchtime=1000000x.
func BenchmarkStored(b *testing.B) {
	mem := task.NewMemLog()
	log := mem.Lead()
	w := leading(b, log, module.Annotations{Idempotent: true})
	ctx := context.Background()
	in := payload()
	for left := b.N; left > 0; {
		n := min(left, 1000)
		subs := make([]task.Submission, n)
		for i := range subs {
			subs[i] = task.Submission{ModuleID: "job.bench", Inputs: in}
		}
		if _, err := w.Submit(ctx, task.SubmitRequest{Tasks: subs}); err != nil {
			b.Fatal(err)
		}
		a, err := w.Claim(ctx, task.ClaimRequest{Node: "n", Modules: []string{"job.bench"}, Slots: n})
		if err != nil {
			b.Fatal(err)
		}
		var batch sync.WaitGroup
		for _, g := range a.Grants {
			batch.Go(func() {
				_, _ = w.Finish(ctx, task.FinishReport{LeaseRef: g.LeaseRef, Outcome: task.OutcomeCompleted, Result: json.RawMessage(`{"ok":true}`)})
			})
		}
		batch.Wait()
		left -= n
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	b.ResetTimer()
	began := time.Now()
	second := leading(b, mem.Lead(), module.Annotations{})
	b.ReportMetric(time.Since(began).Seconds(), "takeover-s")
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(b.N), "B/task")
	began = time.Now()
	page, err := second.List(ctx, task.ListRequest{Filter: task.Filter{Status: task.Completed, ModuleID: "job.bench"}, NewestFirst: true})
	if err != nil || len(page.Tasks) == 0 {
		b.Fatal(err)
	}
	b.ReportMetric(float64(time.Since(began).Microseconds())/1000, "page-ms")
}
