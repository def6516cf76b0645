package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/task"
)

// tasks is this router's part in the tasks of its namespace: it stands for election
// as their writer, and asks whichever router that is.
type tasks struct {
	// client is nil without JetStream.
	client *jetstream.TaskClient
	stop   context.CancelCauseFunc
	wg     sync.WaitGroup
}

// startTasks takes part until close. It fails where the task log cannot be used as
// it is; without JetStream there are no tasks.
func startTasks(ctx context.Context, cfg *config, conns *bus.Conns, client *bus.Client, requests *jetstream.ApprovalStore, witness *witness, log *slog.Logger) (*tasks, error) {
	t := &tasks{stop: func(error) {}}
	if conns.JS == nil {
		log.Warn("no JetStream, so no tasks")
		return t, nil
	}
	o := jetstream.Options{
		JS: conns.JS, Namespace: cfg.NS, Replicas: cfg.Replicas, Durability: promise(cfg), Holder: "router", Logger: log,
	}
	// What would make the router useless later is found at the start.
	if _, err := jetstream.Open(ctx, o); err != nil {
		return nil, fmt.Errorf("open the task log: %w", err)
	}
	var err error
	if t.client, err = jetstream.NewTaskClient(jetstream.ClientOptions{Options: o, Requests: conns.NATS()}); err != nil {
		return nil, fmt.Errorf("make the client of the tasks: %w", err)
	}
	life, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	t.stop = stop
	t.wg.Go(func() {
		err := jetstream.RunTasks(life, jetstream.TasksOptions{
			Options: o, Requests: conns.NATS(), Approvals: requests,
			NewWriter: func(taskLog *jetstream.Log, signal func(task.Signal)) (jetstream.LeadingWriter, error) {
				return task.NewWriter(taskLog, writerOptions(cfg, taskLog, signal, client, requests, witness, log))
			},
		})
		if err != nil {
			log.Error("this router takes no part in the tasks", "cause", err)
		}
	})
	return t, nil
}

// shown is what the gateway asks; nil without JetStream.
func (t *tasks) shown() gateway.Tasks {
	if t.client == nil {
		return nil
	}
	return t.client
}

// close hands the lead over.
func (t *tasks) close() {
	t.stop(cancel.Because(cancel.Shutdown, "router", "the router stops"))
	t.wg.Wait()
	if t.client != nil {
		t.client.Close()
	}
}

// promise is what receipts may say. Servers that are not ours do not tell whether
// they sync what they write.
func promise(cfg *config) jetstream.Durability {
	if len(cfg.NATS) > 0 {
		return jetstream.ProcessSafe
	}
	return jetstream.Durability(cfg.Durability)
}

func writerOptions(cfg *config, taskLog *jetstream.Log, signal func(task.Signal), client *bus.Client, requests *jetstream.ApprovalStore, witness *witness, log *slog.Logger) task.WriterOptions {
	o := task.WriterOptions{
		Namespace: cfg.NS, Durability: string(taskLog.Durability()), MaxTasks: cfg.MaxTasks, Lease: cfg.TaskLease,
		Describe: describe(client), Leading: taskLog.Leading, Signal: signal, Decided: requests.Decided, Evidence: witness.client(), Logger: log,
	}
	// A record holds its inputs, an entry its output; neither may be larger than what
	// the server takes.
	const usual = 512 << 10
	o.MaxInput = int(min(usual, taskLog.MaxEntry()/2))
	o.MaxResult = int(min(usual, taskLog.MaxEntry()))
	return o
}

// describe tells the writer what the catalogue knows of a module.
func describe(client *bus.Client) func(id string) (task.Described, bool) {
	return func(id string) (task.Described, bool) {
		info, ok := client.Module(id)
		if !ok {
			return task.Described{}, false
		}
		d := task.Described{Descriptor: info.Descriptor}
		for _, h := range info.Hosts {
			if !h.Draining {
				d.Hosts++
			}
		}
		return d, true
	}
}
