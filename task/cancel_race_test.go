package task_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// A cancel races the end of what it cancels, in a thousand interleavings of a worker,
// a log that takes its time, and now and then a writer that dies in the middle. The
// first end stands, the answer fits it, and nothing begins after it.
func TestRule08_CancelRacesCompletion(t *testing.T) {
	t.Parallel()
	base := rand.Uint64()
	t.Logf("seed %d", base)
	ends := map[string]int{}
	for n := range uint64(1000) {
		if end := raceOnce(t, base+n); end != "" {
			ends[end]++
		}
		if t.Failed() {
			t.Fatalf("seed %d", base+n)
		}
	}
	t.Logf("%v", ends)
	if len(ends) < 3 {
		t.Errorf("the race always ends in the same way: %v", ends)
	}
}

func raceOnce(t *testing.T, seed uint64) (end string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, seed))
	micros := func(most int) time.Duration { return time.Duration(rng.IntN(most)) * time.Microsecond }
	moduleID := []string{"job.safe", "job.effect"}[rng.IntN(2)]
	fails, dies, signals := rng.IntN(4) == 0, rng.IntN(8) == 0, rng.IntN(4) > 0
	works, waits, lasts, crash := micros(10_000), micros(16_000), micros(2000), micros(16_000)
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.close()
		f.leadOver(lasting{f.mem.Lead(), lasts})
		defer func() { f.close() }()
		var runs atomic.Int32
		n, _ := f.node("n1", map[string]body{moduleID: func(ctx context.Context, in map[string]any) (map[string]any, error) {
			runs.Add(1)
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-time.After(works):
			}
			if fails {
				return nil, fmt.Errorf("as the test wants it")
			}
			return map[string]any{"done": true}, nil
		}})
		if signals {
			f.deliver(n)
		}
		id := f.submit(task.Submission{ModuleID: moduleID, OnCrash: task.CrashRetry, Retry: &task.RetryOptions{MaxRetries: ptr(3)}})
		asked := make(chan task.CancelAnswer, 1)
		wr := f.Writer
		go func() {
			<-time.After(waits)
			a, err := wr.Cancel(context.Background(), task.CancelAsk{TaskID: id, By: "ann"})
			if err != nil {
				a.State = "unknown outcome"
			}
			asked <- a
		}()
		if dies {
			<-time.After(crash)
			f.crash()
		}
		answer := <-asked
		seen := f.get(id)
		if a := answer.State; a == task.CancelAccepted && seen.CancelRequested == nil {
			t.Errorf("an accepted cancel is not there: %+v", seen)
		}
		before := runs.Load()
		wait(3 * time.Minute)
		r := f.get(id)
		switch {
		case answer.State == "unknown outcome" && r.CancelRequested == nil:
			// It never was; so the task goes its way.
			end = "lost"
		case !r.Status.Terminal():
			t.Errorf("it never ends: %+v", r)
		case seen.Status.Terminal() && (r.Status != seen.Status || r.Number != seen.Number || runs.Load() != before):
			t.Errorf("it had ended as %s, and then: %+v, %d runs after %d", seen.Status, r, runs.Load(), before)
		case r.Status == task.Completed && string(r.Result) != `{"done":true}`:
			t.Errorf("completed with %s", r.Result)
		case answer.State == task.CancelAlreadyTerminal && r.CancelRequested != nil:
			t.Errorf("it was over and has a request to cancel: %+v", r)
		case answer.State == task.CancelAccepted && r.Status != task.Cancelled && r.Status != task.Completed:
			t.Errorf("cancelled, and then %+v", r)
		default:
			end = fmt.Sprintf("%s %s", answer.State, r.Status)
		}
		// A cancel is not followed by another start, whatever the worker said (rule 8).
		ended := 0
		for i, tr := range r.Timeline {
			if tr.Status.Terminal() {
				ended++
			}
			if tr.Cause == "started" && r.CancelRequested != nil && tr.At > r.CancelRequested.At {
				t.Errorf("step %d starts an attempt after the cancel: %+v", i, r.Timeline)
			}
		}
		if ended > 1 {
			t.Errorf("it ended %d times: %+v", ended, r.Timeline)
		}
		if r.RetryCount > 0 && r.CancelRequested != nil && r.Timeline[len(r.Timeline)-1].Cause == string(module.CodeModuleExecuteError) {
			t.Errorf("a cancelled task was tried again: %+v", r)
		}
		_ = n.shutdown()
	})
	return end
}

// lasting is a log whose commits take a time each.
type lasting struct {
	task.Log
	each time.Duration
}

func (l lasting) Commit(ctx context.Context, entries []task.Entry) error {
	<-time.After(l.each / 2)
	if err := l.Log.Commit(ctx, entries); err != nil {
		return err
	}
	<-time.After(l.each / 2)
	return nil
}
