package integration_test

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
	"syscall"
	"testing"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// BenchmarkTask runs tasks of a module that does nothing: submit, claim, run with the
// standard pipeline, report, with 256 in flight, through an embedded server, a
// writer, a node and a client in one process on connections of their own. bench/peers
// compares the same with other queues; this one is for profiles.
func BenchmarkTask(b *testing.B) {
	for _, mode := range []jetstream.Durability{jetstream.ProcessSafe, jetstream.PowerSafe} {
		b.Run(string(mode), func(b *testing.B) {
			client, ran, stats := benchTasks(b, mode)
			inputs := json.RawMessage(`{"number":1,"payload":"` + strings.Repeat("x", 512) + `"}`)
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			before, first := processorTime(), stats()
			for range min(256, b.N) {
				wg.Go(func() {
					for next.Add(1) <= int64(b.N) {
						a, err := client.Submit(b.Context(), task.SubmitRequest{Tasks: []task.Submission{{ModuleID: "bench.noop", Inputs: inputs}}})
						if err == nil {
							err = a.Receipts[0].Error.Err()
						}
						if err != nil {
							b.Error(err)
							return
						}
						<-ran
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64((processorTime()-before).Microseconds())/float64(b.N), "cpu-µs/op")
			last := stats()
			b.ReportMetric(float64(last.Entries-first.Entries)/float64(last.Commits-first.Commits), "entries/commit")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
		})
	}
}

// processorTime is what this process has used, which other processes change little.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchTasks starts everything; ran has an element for each run of the module, and
// stats are the writer's.
func benchTasks(b *testing.B, mode jetstream.Durability) (client *jetstream.TaskClient, ran <-chan struct{}, stats func() task.WriterStats) {
	b.Helper()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	server, err := bus.StartEmbedded(bus.EmbedOptions{Listen: "127.0.0.1:0", DataDir: b.TempDir(), PowerSafe: mode == jetstream.PowerSafe})
	must(err)
	b.Cleanup(server.Shutdown)
	connect := func() *bus.Conns {
		c, err := bus.Connect(b.Context(), bus.Options{Servers: []string{server.URL()}, Logger: quiet})
		must(err)
		b.Cleanup(c.Close)
		return c
	}
	clientOn := func(c *bus.Conns) *jetstream.TaskClient {
		tc, err := jetstream.NewTaskClient(jetstream.ClientOptions{Options: jetstream.Options{JS: c.JS, Logger: quiet}, Requests: c.NATS()})
		must(err)
		b.Cleanup(tc.Close)
		return tc
	}

	runs := make(chan struct{}, 1<<16)
	reg := registry.New(registry.Options{Logger: quiet})
	type noopIn struct {
		Number  int    `json:"number"`
		Payload string `json:"payload"`
	}
	must(reg.Register(module.New("bench.noop", "Do nothing", func(context.Context, noopIn) (map[string]any, error) {
		runs <- struct{}{}
		return map[string]any{"ok": true}, nil
	}, module.WithAnnotations(module.Annotations{Idempotent: true}))))
	x, err := executor.New(reg, executor.Config{}, executor.WithLogger(quiet))
	must(err)

	router, err := bus.Connect(b.Context(), bus.Options{InProcess: server.Server(), Logger: quiet})
	must(err)
	b.Cleanup(router.Close)
	life, stop := context.WithCancelCause(context.Background())
	var wg sync.WaitGroup
	b.Cleanup(func() {
		stop(errors.New("the benchmark is over"))
		wg.Wait()
	})
	var writer atomic.Pointer[task.Writer]
	o := jetstream.Options{JS: router.JS, Durability: mode, Logger: quiet}
	wg.Go(func() {
		err := jetstream.RunTasks(life, jetstream.TasksOptions{Options: o, Requests: router.NATS(),
			NewWriter: func(log *jetstream.Log, signal func(task.Signal)) (jetstream.LeadingWriter, error) {
				w, err := task.NewWriter(log, task.WriterOptions{
					Durability: string(mode), Leading: log.Leading, Signal: signal, Logger: quiet,
					Describe: func(id string) (task.Described, bool) {
						for _, d := range x.Descriptors() {
							if d.ID == id {
								return task.Described{Descriptor: d, Hosts: 1}, true
							}
						}
						return task.Described{}, false
					},
				})
				writer.Store(w)
				return w, err
			}})
		if err != nil {
			b.Error(err)
		}
	})
	worker, err := task.NewWorker(clientOn(connect()), x, task.WorkerOptions{
		Node: "n1", Boot: "b1", Modules: func() []string { return []string{"bench.noop"} }, Slots: 256, Logger: quiet,
	})
	must(err)
	wg.Go(func() { _ = worker.Run(life) })
	client = clientOn(connect())
	if _, err := client.Queues(b.Context()); err != nil {
		b.Fatal(fmt.Errorf("no writer: %w", err))
	}
	runtime.GC()
	return client, runs, func() task.WriterStats { return writer.Load().Stats() }
}
