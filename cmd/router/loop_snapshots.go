package main

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/task"
)

// snapshotsOf shows the loop what is now: the modules of each node and the task
// attempts that run.
func snapshotsOf(ns string, client *bus.Client, work *tasks, seen *firstSeen, now func() time.Time) func(context.Context) ([]*loop.Record, error) {
	return func(ctx context.Context) ([]*loop.Record, error) {
		var records []*loop.Record
		at := now()
		present := map[string]bool{}
		for _, info := range client.Modules() {
			d := info.Descriptor
			for _, h := range info.Hosts {
				key := strings.Join([]string{d.ID, h.Version, h.Hash, h.Node, h.Boot}, "\x1f")
				present[key] = true
				s := loop.ModuleSnapshot{
					Namespace: ns, ModuleID: d.ID, Version: h.Version, Description: d.Description,
					InputSchema: d.InputSchema, OutputSchema: d.OutputSchema, Node: h.Node, Boot: h.Boot, Since: seen.since(key, at),
					System: strings.HasPrefix(d.ID, "system."), ApprovalGated: d.Annotations.RequiresApproval,
				}
				if h.Hash != info.Hash {
					// Its schemas are not those that are known; its hash tells it apart.
					s.InputSchema, s.OutputSchema = map[string]any{"x-hash": h.Hash}, nil
				}
				records = append(records, s.Record())
			}
		}
		seen.keep(present)
		running, err := runningTasks(ctx, ns, work)
		return append(records, running...), err
	}
}

// runningTasks are at most a thousand attempts. Without a writer there are none to
// show, which is no reason to learn nothing.
func runningTasks(ctx context.Context, ns string, work *tasks) ([]*loop.Record, error) {
	if work.client == nil {
		return nil, nil
	}
	const most = 1000
	page, err := work.client.List(ctx, task.ListRequest{Filter: task.Filter{Status: task.Running}, Limit: most})
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, nil
	}
	var records []*loop.Record
	for _, r := range page.Tasks {
		if r.Lease == nil {
			continue
		}
		s := loop.RunningSnapshot{
			Namespace: ns, TaskID: r.TaskID, ModuleID: r.ModuleID, Node: r.Lease.Node, Attempt: r.Attempt, Started: r.StartedAt.Time(),
		}
		if r.Progress != nil {
			s.Progress = r.Progress.At.Time()
		}
		records = append(records, s.Record())
	}
	return records, nil
}

// firstSeen remembers since when something has been there, as far as this router
// knows. Safe for concurrent use.
type firstSeen struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (f *firstSeen) since(key string, now time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at, ok := f.at[key]; ok {
		return at
	}
	f.at[key] = now
	return now
}

// keep forgets what is no longer there.
func (f *firstSeen) keep(present map[string]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range f.at {
		if !present[key] {
			delete(f.at, key)
		}
	}
}
