package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/task"
)

// idleModule is a module that nobody hosts, so that its tasks stay.
const idleModule = "bench.idle"

// storedProbes is how often each question is asked.
const storedProbes = 300

// stored fills a router with tasks that wait, and compares it with an empty one; then
// it kills the router and times the next one's takeover of all of them.
func stored(ctx context.Context, dir, router string, n int, payload string) error {
	a := &apbusOn{durability: task.ProcessSafe, program: router, dir: dir, flags: []string{"--max-tasks", fmt.Sprint(n + 10_000)}}
	defer func() { a.close() }()
	began := time.Now()
	if err := a.openClient(ctx); err != nil {
		return err
	}
	fmt.Printf("%d stored tasks, %s\n", n, a.name())
	fmt.Printf("%-32s %12s\n", "start, empty", time.Since(began).Round(time.Millisecond))
	empty, err := probe(ctx, a.client, payload)
	if err != nil {
		return err
	}
	began = time.Now()
	if err := fill(ctx, a.client, n, payload); err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	fmt.Printf("%-32s %12s\n", "fill, 1,000 a request", time.Since(began).Round(time.Millisecond))
	full, err := probe(ctx, a.client, payload)
	if err != nil {
		return err
	}
	for i, aim := range []float64{1.2, 1.5} {
		fmt.Printf("%-32s %12s empty %s, ratio %.2f (aim %.1f)\n", full[i].name+" p50", full[i].took, empty[i].took, float64(full[i].took)/float64(empty[i].took), aim)
	}
	for _, p := range full[2:] {
		fmt.Printf("%-32s %12s (aim 50 ms)\n", p.name+" p50", p.took)
	}
	fmt.Printf("%-32s %12s (aim 900 MB)\n", "memory of the router, peak", memoryOf(a.router.cmd.Process.Pid))
	a.client.Close()
	a.conns.Close()
	a.client, a.conns = nil, nil
	if err := a.router.kill(); err != nil {
		return err
	}
	began = time.Now()
	if err := a.openClient(ctx); err != nil {
		return err
	}
	fmt.Printf("%-32s %12s (aim 8 s)\n", "start of the next router", time.Since(began).Round(time.Millisecond))
	queues, err := a.client.Queues(ctx)
	if err != nil {
		return err
	}
	if len(queues) != 1 || queues[0].Queued < n {
		return fmt.Errorf("of %d tasks the next router has %+v", n, queues)
	}
	fmt.Printf("%-32s %12s (aim 900 MB)\n", "its memory, peak", memoryOf(a.router.cmd.Process.Pid))
	return nil
}

// openClient starts a router and waits until it answers about tasks.
func (a *apbusOn) openClient(ctx context.Context) error {
	url, err := a.startRouter(ctx)
	if err != nil {
		return err
	}
	if a.conns, a.client, err = taskClient(ctx, url, "bench"); err != nil {
		return err
	}
	ctx, stop := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("nobody serves the tasks"))
	defer stop()
	_, err = a.client.Queues(ctx)
	return err
}

func fill(ctx context.Context, client *jetstream.TaskClient, n int, payload string) error {
	const each = 1000
	var next atomic.Int64
	var wg sync.WaitGroup
	failed := make(chan error, 4)
	for range cap(failed) {
		wg.Go(func() {
			for first := next.Add(each) - each; first < int64(n); first = next.Add(each) - each {
				req := task.SubmitRequest{}
				for i := first; i < min(first+each, int64(n)); i++ {
					req.Tasks = append(req.Tasks, submission(int(i), payload))
				}
				answer, err := client.Submit(ctx, req)
				for _, r := range answer.Receipts {
					err = errors.Join(err, r.Error.Err())
				}
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	return <-failed
}

func submission(number int, payload string) task.Submission {
	body, err := json.Marshal(work{number, payload})
	if err != nil {
		panic(err) // a number and a text
	}
	return task.Submission{ModuleID: idleModule, Inputs: body}
}

// probed is how long one question took in the middle.
type probed struct {
	name string
	took time.Duration
}

// probe submits, reads and lists, one at a time.
func probe(ctx context.Context, client *jetstream.TaskClient, payload string) ([]probed, error) {
	var ids []string
	list := func(f task.Filter) func() error {
		return func() error {
			_, err := client.List(ctx, task.ListRequest{Filter: f, Limit: 100})
			return err
		}
	}
	var found []probed
	for _, q := range []struct {
		name string
		ask  func() error
	}{
		{"submit", func() error {
			answer, err := client.Submit(ctx, task.SubmitRequest{Tasks: []task.Submission{submission(0, payload)}})
			if err == nil {
				err = answer.Receipts[0].Error.Err()
			}
			if err == nil {
				ids = append(ids, answer.Receipts[0].TaskID)
			}
			return err
		}},
		{"status", func() error {
			_, err := client.Get(ctx, ids[len(ids)/2])
			return err
		}},
		{"first page of a status", list(task.Filter{Status: task.Pending})},
		{"first page of nothing found", list(task.Filter{ModuleID: idleModule, Status: task.Completed})},
		{"first page of a text", list(task.Filter{Query: "idle"})},
	} {
		times := make([]time.Duration, storedProbes)
		for i := range times {
			began := time.Now()
			if err := q.ask(); err != nil {
				return nil, fmt.Errorf("%s: %w", q.name, err)
			}
			times[i] = time.Since(began)
		}
		slices.Sort(times)
		found = append(found, probed{q.name, round(times[len(times)/2])})
	}
	return found, nil
}

// memoryOf is the most that a process has had in memory.
func memoryOf(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		var kb int
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kb); n == 1 {
			return fmt.Sprintf("%d MB", kb/1000)
		}
	}
	return "unknown"
}
