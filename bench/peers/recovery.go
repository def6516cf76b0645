package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/apbus/apbus/task"
)

// recoveryTasks is how many run when their worker is killed.
const recoveryTasks = 1000

// recovery kills the only worker while it runs tasks, starts another one, and times
// how long it takes until all of them are done.
func recovery(ctx context.Context, dir, router, payload string) error {
	a := &apbusOn{durability: task.PowerSafe, program: router, dir: dir}
	defer a.close()
	if err := a.openClient(ctx); err != nil {
		return err
	}
	worker := func(mode string) (*server, error) {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		return startServer(ctx, func() error { return nil }, nil, self, "-worker", mode, "-url", a.url)
	}
	first, err := worker(workerHolds)
	if err != nil {
		return err
	}
	defer first.stop()
	// A task may run again after a crash only when the router knows its module.
	if err := until(ctx, func() (bool, error) { return answers(ctx, a.front+"/v1/modules/"+noop)() == nil, nil }); err != nil {
		return fmt.Errorf("wait for the module: %w", err)
	}
	for i := range recoveryTasks {
		if err := a.submit(ctx, i, payload); err != nil {
			return err
		}
	}
	if err := until(ctx, func() (bool, error) {
		queues, err := a.client.Queues(ctx)
		return err == nil && len(queues) == 1 && queues[0].Running == recoveryTasks, err
	}); err != nil {
		return fmt.Errorf("wait for the tasks to run: %w", err)
	}
	if err := first.kill(); err != nil {
		return err
	}
	began := time.Now()
	second, err := worker(workerEnds)
	if err != nil {
		return err
	}
	defer second.stop()
	if err := until(ctx, func() (bool, error) {
		n, err := a.completed(ctx)
		return n == recoveryTasks, err
	}); err != nil {
		return fmt.Errorf("wait for the tasks to end: %w", err)
	}
	fmt.Printf("%d running tasks of a killed worker, %s: done by the next one after %s (aim 30 s, two leases)\n",
		recoveryTasks, a.name(), time.Since(began).Round(10*time.Millisecond))
	return nil
}

// until asks over and over for at most two minutes.
func until(ctx context.Context, done func() (bool, error)) error {
	ctx, stop := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("it takes too long"))
	defer stop()
	for {
		ok, err := done()
		if err != nil || ok {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// What a worker process does with its tasks.
const (
	workerHolds = "hold"
	workerEnds  = "end"
)

// runWorker runs tasks until the process is killed or interrupted.
func runWorker(ctx context.Context, mode, url string) error {
	h, err := startHost(ctx, url, recoveryTasks, func(ctx context.Context, _ int) {
		if mode == workerHolds {
			<-ctx.Done()
		}
	})
	if err != nil {
		return err
	}
	defer h.close()
	<-ctx.Done()
	return nil
}
