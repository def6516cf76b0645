package task_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

func echo(_ context.Context, in map[string]any) (map[string]any, error) { return in, nil }

// until waits for ctx and returns why it ended.
func until(ctx context.Context, _ map[string]any) (map[string]any, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func TestWorkerRunsTasks(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		n, _ := f.node("n1", map[string]body{"job.safe": echo, "job.effect": echo})
		var ids []string
		for i := range 20 {
			id := []string{"job.safe", "job.effect"}[i%2]
			ids = append(ids, f.submit(task.Submission{ModuleID: id, Inputs: fmt.Appendf(nil, `{"i":%d}`, i)}))
		}
		wait(time.Second)
		for i, id := range ids {
			r := f.want(id, task.Completed, "")
			if want := fmt.Sprintf(`{"i":%d}`, i); string(r.Result) != want || r.Attempt != 1 || r.LastOwner != "n1" {
				t.Errorf("task %d: %+v", i, r)
			}
		}
		if s := n.State(); s.Stats.Completed != 20 || s.Running != 0 || !s.Healthy {
			t.Errorf("state %+v", s)
		}
		if err := n.shutdown(); err != nil {
			t.Error(err)
		}
	})
}

func TestRule04_TheRuntimeRenewsLeases(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var runs atomic.Int32
		slow := func(ctx context.Context, in map[string]any) (map[string]any, error) {
			runs.Add(1)
			select {
			case <-time.After(10 * time.Minute):
				return in, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		n, _ := f.node("n1", map[string]body{"job.effect": slow})
		id := f.submit(task.Submission{ModuleID: "job.effect"})
		wait(9 * time.Minute)
		f.want(id, task.Running, "")
		wait(2 * time.Minute)
		f.want(id, task.Completed, "")
		if runs.Load() != 1 {
			t.Errorf("%d runs", runs.Load())
		}
		_ = n.shutdown()
	})
}

func TestRule04_AWorkerThatCannotRenewStopsBeforeTheTaskPassesOn(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var mu sync.Mutex
		running := map[string]bool{}
		var causes []cancel.Reason
		run := func(name string) body {
			return func(ctx context.Context, _ map[string]any) (map[string]any, error) {
				mu.Lock()
				if len(running) != 0 {
					t.Errorf("%s begins while %v runs", name, running)
				}
				running[name] = true
				mu.Unlock()
				defer func() {
					mu.Lock()
					defer mu.Unlock()
					delete(running, name)
				}()
				select {
				case <-ctx.Done():
					mu.Lock()
					causes = append(causes, cancel.ReasonOf(context.Cause(ctx)))
					mu.Unlock()
					return nil, context.Cause(ctx)
				case <-time.After(time.Minute):
					return map[string]any{"by": name}, nil
				}
			}
		}
		a, lineA := f.node("a", map[string]body{"job.safe": run("a")})
		id := f.submit(task.Submission{ModuleID: "job.safe"})
		wait(7 * time.Second)
		f.want(id, task.Running, "")
		lineA.cut.Store(true)
		b, _ := f.node("b", map[string]body{"job.safe": run("b")})
		wait(2 * time.Minute)
		r := f.want(id, task.Completed, "")
		if string(r.Result) != `{"by":"b"}` || r.Attempt != 2 || r.Deliveries != 1 {
			t.Errorf("record %+v", r)
		}
		if len(causes) != 1 || causes[0] != cancel.LeaseLost {
			t.Errorf("causes %v", causes)
		}
		_, _ = a.shutdown(), b.shutdown()
	})
}

func TestRule03_ARunThatLostItsLeaseIsCancelledWithThatCause(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		causes := make(chan error, 1)
		n, _ := f.node("n1", map[string]body{"job.safe": func(ctx context.Context, in map[string]any) (map[string]any, error) {
			_, err := until(ctx, in)
			causes <- err
			return nil, err
		}})
		id := f.submit(task.Submission{ModuleID: "job.safe", Timeouts: &task.TimeoutsMS{TotalMS: ptr(int64(2000))}})
		wait(time.Second)
		f.want(id, task.Running, "")
		wait(6 * time.Second)
		r := f.want(id, task.Failed, "")
		wantCode(t, r.Error.Err(), module.CodeTaskTotalTimeout)
		if got := cancel.ReasonOf(<-causes); got != cancel.LeaseLost {
			t.Errorf("cause %q", got)
		}
		_ = n.shutdown()
	})
}

func TestRule07_ATakeoverLosesNoFinishedWork(t *testing.T) {
	for _, id := range []string{"job.safe", "job.effect"} {
		t.Run(id, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				var runs atomic.Int32
				n, l := f.node("n1", map[string]body{id: func(ctx context.Context, in map[string]any) (map[string]any, error) {
					runs.Add(1)
					idle(2 * time.Second)
					return in, nil
				}})
				tid := f.submit(task.Submission{ModuleID: id})
				wait(time.Second)
				f.close() // nobody leads while the work is finished
				l.cut.Store(true)
				wait(2 * time.Second)
				f.lead()
				l.cut.Store(false)
				wait(5 * time.Second)
				r := f.want(tid, task.Completed, "")
				if runs.Load() != 1 || r.Attempt != 1 {
					t.Errorf("%d runs, record %+v", runs.Load(), r)
				}
				_ = n.shutdown()
			})
		})
	}
}

func TestRule08_CancelStopsTheRun(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		causes := make(chan error, 1)
		n, _ := f.node("n1", map[string]body{"job.effect": func(ctx context.Context, in map[string]any) (map[string]any, error) {
			_, err := until(ctx, in)
			causes <- err
			return nil, err
		}})
		f.deliver(n)
		id := f.submit(task.Submission{ModuleID: "job.effect", Retry: &task.RetryOptions{MaxRetries: ptr(5)}})
		wait(time.Second)
		a, err := f.Cancel(context.Background(), task.CancelAsk{TaskID: id, By: "ann", Reason: "typo"})
		if err != nil || a.State != task.CancelAccepted {
			t.Fatalf("cancel %+v, %v", a, err)
		}
		wait(100 * time.Millisecond) // by the signal, long before the next renewal
		r := f.want(id, task.Cancelled, "")
		if r.CancelRequested == nil || r.CancelRequested.By != "ann" || r.RetryCount != 0 {
			t.Errorf("record %+v", r)
		}
		if c, _ := errors.AsType[*cancel.Cause](<-causes); c == nil || c.Reason != cancel.Caller || c.By != "ann" || c.Text != "typo" {
			t.Errorf("cause %v", c)
		}
		_ = n.shutdown()
	})
}

func TestRule12_WorkersAskOnlyForFreeSlots(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var now, most atomic.Int32
		slow := func(ctx context.Context, in map[string]any) (map[string]any, error) {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			idle(time.Second)
			return in, nil
		}
		n, _ := f.node("n1", map[string]body{"job.safe": slow}, func(o *task.WorkerOptions) { o.Slots = 3 })
		for range 10 {
			f.submit(task.Submission{ModuleID: "job.safe"})
		}
		wait(500 * time.Millisecond)
		q, err := f.Queues(context.Background())
		if err != nil || q[0].Running != 3 || q[0].Claimed != 0 || q[0].Queued != 7 {
			t.Errorf("queues %+v, %v", q, err)
		}
		wait(10 * time.Second)
		if most.Load() != 3 {
			t.Errorf("%d at once", most.Load())
		}
		_ = n.shutdown()
	})
}

func TestRule12_AHandlerThatIgnoresCancellationIsDebt(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		release := make(chan struct{})
		stubborn := func(context.Context, map[string]any) (map[string]any, error) {
			<-release
			return nil, errors.New("late")
		}
		n, _ := f.node("n1", map[string]body{"job.safe": stubborn}, func(o *task.WorkerOptions) { o.Slots, o.DebtCap = 2, 1 })
		f.deliver(n)
		var ids []string
		for range 4 {
			ids = append(ids, f.submit(task.Submission{ModuleID: "job.safe"}))
		}
		stop := func(ids ...string) {
			for _, id := range ids {
				if _, err := f.Cancel(context.Background(), task.CancelAsk{TaskID: id}); err != nil {
					t.Fatal(err)
				}
			}
			wait(15 * time.Second)
		}
		wait(time.Second)
		stop(ids[0])
		f.want(ids[0], task.Cancelled, "")
		if s := n.State(); s.Debt != 1 || !s.Healthy || s.Running != 2 {
			t.Errorf("with one in debt: %+v", s)
		}
		stop(ids[1])
		if s := n.State(); s.Debt != 2 || s.Healthy || s.Running != 1 {
			t.Errorf("with two in debt: %+v", s)
		}
		close(release)
		wait(3 * time.Second)
		if s := n.State(); s.Debt != 0 || !s.Healthy {
			t.Errorf("at the end: %+v", s)
		}
		_ = n.shutdown()
	})
}

func TestRule12_Shutdown(t *testing.T) {
	tests := []struct {
		name   string
		module string
		run    body
		cut    bool
		status task.Status
		detail task.Detail
		code   module.Code
		within time.Duration
	}{
		{name: "what ends within the grace is reported", module: "job.effect", status: task.Completed, within: 4 * time.Second,
			run: func(_ context.Context, in map[string]any) (map[string]any, error) {
				idle(3 * time.Second)
				return in, nil
			}},
		{name: "what can run twice goes on elsewhere, and no attempt is spent", module: "job.safe", run: until,
			status: task.Pending, detail: task.Queued, within: 11 * time.Second},
		{name: "what can not ends", module: "job.effect", run: until,
			status: task.Failed, code: module.CodeTaskOutcomeUnknown, within: 11 * time.Second},
		{name: "a handler that does not stop", module: "job.safe", status: task.Pending, detail: task.Queued, within: 11 * time.Second,
			run: func(context.Context, map[string]any) (map[string]any, error) {
				idle(time.Minute)
				return nil, errors.New("late")
			}},
		{name: "nobody answers", module: "job.safe", run: until, cut: true, status: task.Running, within: 11 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				n, l := f.node("n1", map[string]body{tt.module: tt.run}, func(o *task.WorkerOptions) { o.Slots = 1 })
				id := f.submit(task.Submission{ModuleID: tt.module, Retry: &task.RetryOptions{MaxRetries: ptr(3)}})
				waiting := f.submit(task.Submission{ModuleID: tt.module})
				wait(2 * time.Second) // it was renewed once
				l.cut.Store(tt.cut)
				began := time.Now()
				err := n.shutdown()
				if took := time.Since(began); took > tt.within {
					t.Errorf("took %v", took)
				}
				if (err != nil) != tt.cut {
					t.Errorf("Run = %v", err)
				}
				r := f.want(id, tt.status, tt.detail)
				if tt.code != "" {
					wantCode(t, r.Error.Err(), tt.code)
				}
				if r.RetryCount != 0 || r.Deliveries != 0 {
					t.Errorf("spent: %+v", r)
				}
				f.want(waiting, task.Pending, task.Queued)
				wait(2 * time.Minute)
			})
		})
	}
}

func TestRule10_OutputsThatCannotBeKept(t *testing.T) {
	loop := map[string]any{}
	loop["self"] = loop
	tests := []struct {
		name string
		out  map[string]any
	}{
		{"not a number", map[string]any{"x": nan()}},
		{"cyclic", loop},
		{"no JSON form", map[string]any{"f": func() {}}},
		{"too large", map[string]any{"s": strings.Repeat("x", 5<<20)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				n, _ := f.node("n1", map[string]body{"job.safe": func(context.Context, map[string]any) (map[string]any, error) { return tt.out, nil }})
				id := f.submit(task.Submission{ModuleID: "job.safe", Retry: &task.RetryOptions{MaxRetries: ptr(3)}})
				wait(time.Minute)
				r := f.want(id, task.Failed, "")
				wantCode(t, r.Error.Err(), module.CodeTaskResultInvalid)
				if r.Attempt != 1 {
					t.Errorf("%d attempts", r.Attempt)
				}
				_ = n.shutdown()
			})
		})
	}
}

func TestWorkerSurvivesPanics(t *testing.T) {
	for _, tt := range []struct {
		name string
		run  func()
	}{
		{"panic with a number", func() { panic(42) }},
		{"panic with nil", func() { panic(nil) }}, //nolint:govet // that is what is tested
		{"goroutine ends", runtime.Goexit},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				n, _ := f.node("n1", map[string]body{"job.safe": func(context.Context, map[string]any) (map[string]any, error) {
					tt.run()
					return nil, nil
				}, "job.effect": echo})
				id := f.submit(task.Submission{ModuleID: "job.safe"})
				wait(time.Second)
				wantCode(t, f.want(id, task.Failed, "").Error.Err(), module.CodeModuleExecuteError)
				id = f.submit(task.Submission{ModuleID: "job.effect"})
				wait(time.Second)
				f.want(id, task.Completed, "")
				if st := n.State(); st.Running != 0 || st.Debt != 0 {
					t.Errorf("afterwards: %+v", st)
				}
				_ = n.shutdown()
			})
		})
	}
}

func TestRule04_ProgressAndCheckpoint(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		n, _ := f.node("n1", map[string]body{"job.safe": func(ctx context.Context, in map[string]any) (map[string]any, error) {
			run, ok := module.TaskOf(ctx)
			if !ok || task.ParentOf(module.FromContext(ctx)) != run.TaskID {
				return nil, errors.New("not a task")
			}
			if run.Attempt == 1 {
				for i := range 5 {
					module.Progress(ctx, float64(i), 5, "working")
					idle(time.Second)
				}
				if err := module.Checkpoint(ctx, map[string]any{"at": 5}); err != nil {
					return nil, err
				}
				return nil, errors.New("again, please")
			}
			return map[string]any{"from": string(run.Checkpoint), "attempt": run.Attempt}, nil
		}})
		id := f.submit(task.Submission{ModuleID: "job.safe", Retry: &task.RetryOptions{MaxRetries: ptr(1)}})
		wait(3500 * time.Millisecond)
		if p := f.want(id, task.Running, "").Progress; p == nil || p.Done != 3 || p.Total != 5 || p.Note != "working" {
			t.Errorf("progress %+v", p)
		}
		wait(2 * time.Second)
		f.want(id, task.Pending, task.BackingOff)
		wait(2 * time.Second)
		if r := f.want(id, task.Completed, ""); string(r.Result) != `{"attempt":2,"from":"{\"at\":5}"}` && string(r.Result) != `{"from":"{\"at\":5}","attempt":2}` {
			t.Errorf("result %s", r.Result)
		}
		_ = n.shutdown()
	})
}

func TestLargeOutputsAreStoredElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var stored []byte
		tries := 0
		n, _ := f.node("n1", map[string]body{"job.safe": func(context.Context, map[string]any) (map[string]any, error) {
			return map[string]any{"s": strings.Repeat("x", 1<<20)}, nil
		}}, func(o *task.WorkerOptions) {
			o.PutResult = func(_ context.Context, ref task.LeaseRef, out []byte) (*task.ResultRef, error) {
				if tries++; tries < 3 {
					return nil, errCut
				}
				stored = out
				return &task.ResultRef{Store: "object", Name: ref.TaskID, Size: int64(len(out))}, nil
			}
		})
		id := f.submit(task.Submission{ModuleID: "job.safe"})
		wait(5 * time.Second)
		res, err := f.Result(context.Background(), task.ResultRequest{TaskID: id})
		if err != nil || res.Ref == nil || res.Ref.Store != "object" || res.Ref.Size != int64(len(stored)) || len(stored) < 1<<20 {
			t.Errorf("result %+v, %v; %d bytes stored", res, err, len(stored))
		}
		_ = n.shutdown()
	})
}

func TestWorkerOptions(t *testing.T) {
	w, err := task.NewWriter(task.NewMemLog().Lead(), task.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	run := task.InvokerFunc(func(context.Context, *contextwire.Request) (*contextwire.Reply, error) { return nil, nil })
	modules := func() []string { return nil }
	for _, o := range []task.WorkerOptions{
		{}, {Node: "n"}, {Modules: modules}, {Node: "n", Modules: modules, Slots: -1}, {Node: "n", Modules: modules, DebtCap: -1},
	} {
		if _, err := task.NewWorker(w, run, o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		k, err := task.NewWorker(w, run, task.WorkerOptions{Node: "n", Modules: modules})
		if err != nil {
			t.Fatal(err)
		}
		k.Drain()
		k.Drain()
		if err := k.Run(t.Context()); err != nil {
			t.Error(err)
		}
		wantCode(t, k.Run(t.Context()), module.CodeInternal)
	})
}
