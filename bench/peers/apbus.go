package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// noop is the module of the work. It may run twice, as the handlers of the others
// may: none of them keeps a task from being run again after a crash.
const noop = "bench.noop"

// apbusOn is Apbus on a router of its own, with a node in this process that hosts the
// module as apbus-node hosts its own: governed by the whole standard pipeline.
type apbusOn struct {
	durability string
	program    string
	dir        string
	workers    int
	starts     *starts
	flags      []string // of the router

	url       string
	front     string // of the HTTP API
	router    *server
	conns     *bus.Conns // of the submitters
	client    *jetstream.TaskClient
	host      *host
	submitted atomic.Int64
}

func (a *apbusOn) name() string { return apbusName(a.durability) }

func apbusName(durability string) string { return "apbus, " + durability }

func (a *apbusOn) open(ctx context.Context) error {
	url, err := a.startRouter(ctx)
	if err != nil {
		return err
	}
	if a.conns, a.client, err = taskClient(ctx, url, "bench"); err != nil {
		return err
	}
	a.host, err = startHost(ctx, url, a.workers, func(_ context.Context, n int) { a.starts.ran(n) })
	return err
}

// startRouter starts the router on a free port and returns the URL of its server.
func (a *apbusOn) startRouter(ctx context.Context) (string, error) {
	program, err := find(a.program)
	if err != nil {
		return "", err
	}
	http, err1 := freePort()
	nats, err2 := freePort()
	if err := errors.Join(err1, err2); err != nil {
		return "", err
	}
	address := fmt.Sprintf("127.0.0.1:%d", nats)
	front := fmt.Sprintf("127.0.0.1:%d", http)
	a.url, a.front = "nats://"+address, "http://"+front
	a.router, err = startServer(ctx, answers(ctx, "http://"+front+"/readyz"), nil, program, append([]string{
		"--listen", front, "--embed-listen", address, "--data", a.dir, "--durability", a.durability,
	}, a.flags...)...)
	return a.url, err
}

func (a *apbusOn) submit(ctx context.Context, number int, payload string) error {
	body, err := json.Marshal(work{number, payload})
	if err != nil {
		return err
	}
	answer, err := a.client.Submit(ctx, task.SubmitRequest{Tasks: []task.Submission{{ModuleID: noop, Inputs: body}}})
	if err != nil {
		return err
	}
	a.submitted.Add(1)
	return answer.Receipts[0].Error.Err()
}

// completed is what was submitted and is in no other state.
func (a *apbusOn) completed(ctx context.Context) (int, error) {
	queues, err := a.client.Queues(ctx)
	if err != nil {
		return 0, err
	}
	n := int(a.submitted.Load())
	for _, q := range queues {
		if q.ModuleID == noop {
			n -= q.Queued + q.Scheduled + q.BackingOff + q.Awaiting + q.Claimed + q.Running
		}
	}
	failed, err := a.client.List(ctx, task.ListRequest{Filter: task.Filter{Status: task.Failed}, Limit: 1})
	if err == nil && len(failed.Tasks) > 0 {
		err = fmt.Errorf("a task is %s: %w", failed.Tasks[0].Status, failed.Tasks[0].Error.Err())
	}
	return n, err
}

func (a *apbusOn) close() {
	if a.host != nil {
		a.host.close()
	}
	if a.client != nil {
		a.client.Close()
	}
	if a.conns != nil {
		a.conns.Close()
	}
	a.router.stop()
}

func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

// taskClient connects as a process of its own would.
func taskClient(ctx context.Context, url, name string) (*bus.Conns, *jetstream.TaskClient, error) {
	conns, err := bus.Connect(ctx, bus.Options{Servers: []string{url}, Name: name, Logger: quiet()})
	if err != nil {
		return nil, nil, err
	}
	client, err := jetstream.NewTaskClient(jetstream.ClientOptions{
		Options: jetstream.Options{JS: conns.JS, Logger: quiet()}, Requests: conns.NATS(),
	})
	if err != nil {
		conns.Close()
		return nil, nil, err
	}
	return conns, client, nil
}

// host is a node.
type host struct {
	conns  *bus.Conns
	client *jetstream.TaskClient
	node   *bus.Node
	stop   context.CancelCauseFunc
	hush   func()
	wg     sync.WaitGroup
}

func startHost(ctx context.Context, url string, slots int, ran func(ctx context.Context, number int)) (*host, error) {
	h := &host{hush: func() {}, stop: func(error) {}}
	err := h.start(ctx, url, slots, ran)
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

func (h *host) start(ctx context.Context, url string, slots int, ran func(ctx context.Context, number int)) error {
	type done struct {
		OK bool `json:"ok"`
	}
	reg := registry.New(registry.Options{Logger: quiet()})
	err := reg.Register(module.New(noop, "Do nothing", func(ctx context.Context, in work) (done, error) {
		ran(ctx, in.Number)
		return done{true}, nil
	}, module.WithAnnotations(module.Annotations{Idempotent: true})))
	if err != nil {
		return err
	}
	x, err := executor.New(reg, executor.Config{}, executor.WithLogger(quiet()))
	if err != nil {
		return err
	}
	if h.conns, h.client, err = taskClient(ctx, url, "bench-node"); err != nil {
		return err
	}
	if h.node, err = bus.NewNode(h.conns, x, bus.NodeOptions{ID: "bench", Logger: quiet()}); err != nil {
		return err
	}
	worker, err := task.NewWorker(h.client, x, task.WorkerOptions{
		Node: h.node.ID(), Boot: h.node.Boot(), Modules: func() []string { return []string{noop} },
		Slots: slots, Debt: x.Debt, PutResult: h.client.PutResult, Logger: quiet(),
	})
	if err != nil {
		return err
	}
	if h.hush, err = h.client.Signals(h.node.ID(), h.node.Boot(), worker.Signal); err != nil {
		return err
	}
	life, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	h.stop = stop
	h.wg.Go(func() { _ = worker.Run(life) })
	return nil
}

func (h *host) close() {
	h.stop(errors.New("the benchmark is over"))
	h.wg.Wait()
	h.hush()
	if h.node != nil {
		_ = h.node.Close()
	}
	if h.client != nil {
		h.client.Close()
	}
	if h.conns != nil {
		h.conns.Close()
	}
}
