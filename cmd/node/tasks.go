package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// tasks runs tasks of the modules that this node hosts, by the same executor as
// calls and listed among them.
type tasks struct {
	worker *task.Worker // nil without JetStream, or without slots
	client *jetstream.TaskClient
	hush   func()
	stop   context.CancelCauseFunc
	wg     sync.WaitGroup
	log    *slog.Logger
}

// startTasks claims work until drain. The connections must outlive it.
func startTasks(ctx context.Context, cfg *config, conns *bus.Conns, node *bus.Node, x *executor.Executor, log *slog.Logger) (*tasks, error) {
	t := &tasks{hush: func() {}, stop: func(error) {}, log: log}
	if conns.JS == nil || cfg.TaskSlots == 0 {
		return t, nil
	}
	client, err := jetstream.NewTaskClient(jetstream.ClientOptions{
		Options: jetstream.Options{JS: conns.JS, Namespace: cfg.NS, Replicas: cfg.Replicas, Logger: log}, Requests: conns.NATS(),
	})
	if err != nil {
		return nil, fmt.Errorf("make the client of the tasks: %w", err)
	}
	t.client = client
	grace := cfg.DrainGrace
	if grace == 0 {
		grace = -1 // none, which 0 is not for the worker
	}
	t.worker, err = task.NewWorker(client, node, task.WorkerOptions{
		Node: node.ID(), Boot: node.Boot(), Modules: func() []string { return idsOf(x.Descriptors()) },
		Rerun: func() []string { return idsOf(slices.DeleteFunc(x.Descriptors(), runsOnce)) },
		Slots: cfg.TaskSlots, Debt: x.Debt, Grace: grace, PutResult: client.PutResult, Logger: log,
	})
	if err == nil {
		t.hush, err = client.Signals(node.ID(), node.Boot(), t.worker.Signal)
	}
	if err != nil {
		client.Close()
		return nil, fmt.Errorf("make the worker of the tasks: %w", err)
	}
	life, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	t.stop = stop
	t.wg.Go(func() {
		if err := t.worker.Run(life); err != nil {
			log.Warn("tasks were left to other nodes", "cause", err)
		}
	})
	return t, nil
}

// drain claims nothing more.
func (t *tasks) drain() {
	if t.worker != nil {
		t.worker.Drain()
	}
}

// close ends what runs within the grace and reports it.
func (t *tasks) close() {
	t.stop(errors.New("the node stops"))
	t.wg.Wait()
	t.hush()
	if t.client != nil {
		t.client.Close()
	}
}

// runsOnce reports that nobody says that running a module twice does no harm.
func runsOnce(d module.Descriptor) bool { return !d.Annotations.Idempotent && !d.Annotations.Readonly }

func idsOf(list []module.Descriptor) []string {
	ids := make([]string, len(list))
	for i, d := range list {
		ids[i] = d.ID
	}
	return ids
}
