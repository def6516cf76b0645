package task_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
	"github.com/apbus/apbus/task/tasktest"
)

func TestMemStore(t *testing.T) {
	tasktest.TestStore(t, func(*testing.T) task.Store { return task.NewMemStore() })
}

// executorFunc is a function as a module.Executor.
type executorFunc func(ctx context.Context, id string, in map[string]any) (map[string]any, error)

func (f executorFunc) Call(ctx context.Context, id string, in map[string]any, _ ...module.CallOption) (map[string]any, error) {
	return f(ctx, id, in)
}

// brokenStore fails when it is told to.
type brokenStore struct {
	task.Store
	broken atomic.Bool
}

var errStore = module.Errorf(module.CodeTaskStoreUnavailable, "the store is away")

func (s *brokenStore) Save(ctx context.Context, t task.Info) error {
	if s.broken.Load() {
		return errStore
	}
	return s.Store.Save(ctx, t)
}

func (s *brokenStore) Get(ctx context.Context, id string) (*task.Info, error) {
	if s.broken.Load() {
		return nil, errStore
	}
	return s.Store.Get(ctx, id)
}

func (s *brokenStore) List(ctx context.Context, st task.Status) ([]task.Info, error) {
	if s.broken.Load() {
		return nil, errStore
	}
	return s.Store.List(ctx, st)
}

func manager(t *testing.T, run executorFunc, opts task.ManagerOptions) *task.Manager {
	t.Helper()
	m, err := task.NewManager(run, opts)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func managed(t *testing.T, m *task.Manager, job task.Job) string {
	t.Helper()
	id, err := m.Submit(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func wantInfo(t *testing.T, m *task.Manager, id string, s task.Status, retries int) *task.Info {
	t.Helper()
	i, err := m.Status(t.Context(), id)
	if err != nil || i == nil || i.Status != s || i.RetryCount != retries {
		t.Fatalf("status = %+v, %v; want %s with %d retries", i, err, s, retries)
	}
	return i
}

func TestManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := manager(t, func(_ context.Context, id string, in map[string]any) (map[string]any, error) {
			switch id {
			case "job.fail":
				return nil, errors.New("no")
			case "job.panic":
				panic(7)
			case "job.nan":
				return map[string]any{"x": nan()}, nil
			}
			return in, nil
		}, task.ManagerOptions{})
		ok := managed(t, m, task.Job{ModuleID: "job.ok", Inputs: map[string]any{"n": int64(1)}})
		if i := wantInfo(t, m, ok, task.Pending, 0); i.StartedAt != 0 || i.CompletedAt != 0 {
			t.Errorf("%+v", i)
		}
		bad := managed(t, m, task.Job{ModuleID: "job.fail"})
		thrown := managed(t, m, task.Job{ModuleID: "job.panic"})
		nan := managed(t, m, task.Job{ModuleID: "job.nan"})
		synctest.Wait()
		wantInfo(t, m, ok, task.Completed, 0)
		for _, id := range []string{bad, thrown, nan} {
			if i := wantInfo(t, m, id, task.Failed, 0); i.Error == nil || i.CompletedAt == 0 {
				t.Errorf("%+v", i)
			}
		}
		out, err := m.Result(t.Context(), ok)
		if err != nil || fmt.Sprint(out) != "map[n:1]" {
			t.Errorf("result %v, %v", out, err)
		}
		_, err = m.Result(t.Context(), bad)
		if e := wantCode(t, err, module.CodeTaskStateConflict); e.Message != "Task "+bad+" is not completed (status=failed)" {
			t.Error(e.Message)
		}
		_, err = m.Result(t.Context(), "none")
		if e := wantCode(t, err, module.CodeTaskNotFound); e.Message != "Task not found: none" {
			t.Error(e.Message)
		}
		if i, err := m.Status(t.Context(), "none"); i != nil || err != nil {
			t.Errorf("status of an unknown ID = %v, %v", i, err)
		}
		if done, err := m.Cancel(t.Context(), ok); done || err != nil {
			t.Errorf("cancel of one that is over = %v, %v", done, err)
		}
		list, err := m.List(t.Context(), task.Failed)
		if err != nil || len(list) != 3 || list[0].TaskID != bad || list[2].TaskID != nan {
			t.Errorf("list %+v, %v", list, err)
		}
		time.Sleep(time.Hour)
		if n, err := m.Cleanup(t.Context(), time.Hour); n != 4 || err != nil {
			t.Errorf("cleanup = %d, %v", n, err)
		}
		if err := m.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		_, err = m.Submit(t.Context(), task.Job{ModuleID: "job.ok"})
		wantCode(t, err, module.CodeTaskStoreUnavailable)
	})
}

func TestManagerLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int32
		m := manager(t, func(ctx context.Context, _ string, in map[string]any) (map[string]any, error) {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			time.Sleep(time.Second)
			return in, nil
		}, task.ManagerOptions{MaxConcurrent: 3, MaxTasks: 10})
		var accepted, refused atomic.Int32
		var owned sync.WaitGroup
		for range 40 {
			owned.Go(func() {
				_, err := m.Submit(context.Background(), task.Job{ModuleID: "job.ok"})
				switch e := module.AsError(err); {
				case err == nil:
					accepted.Add(1)
				case e != nil && e.Code == module.CodeTaskLimitExceeded:
					refused.Add(1)
				default:
					t.Errorf("submit: %v", err)
				}
			})
		}
		owned.Wait()
		if accepted.Load() != 10 || refused.Load() != 30 {
			t.Errorf("%d accepted, %d refused", accepted.Load(), refused.Load())
		}
		time.Sleep(10 * time.Second)
		if most.Load() != 3 {
			t.Errorf("%d at once", most.Load())
		}
		managed(t, m, task.Job{ModuleID: "job.ok"}) // those that are over do not count
		if err := m.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestManagerCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		causes := []cancel.Reason{}
		m := manager(t, func(ctx context.Context, id string, _ map[string]any) (map[string]any, error) {
			calls++
			if id == "job.fail" {
				return nil, errors.New("no")
			}
			<-ctx.Done()
			causes = append(causes, cancel.ReasonOf(context.Cause(ctx)))
			return nil, ctx.Err()
		}, task.ManagerOptions{MaxConcurrent: 1})
		running := managed(t, m, task.Job{ModuleID: "job.wait"})
		synctest.Wait()
		pending := managed(t, m, task.Job{ModuleID: "job.wait"})
		for _, id := range []string{pending, running} {
			if done, err := m.Cancel(t.Context(), id); !done || err != nil {
				t.Errorf("cancel = %v, %v", done, err)
			}
		}
		synctest.Wait()
		wantInfo(t, m, running, task.Cancelled, 0)
		wantInfo(t, m, pending, task.Cancelled, 0)
		if calls != 1 || len(causes) != 1 || causes[0] != cancel.Caller {
			t.Errorf("%d calls, causes %v", calls, causes)
		}
		backing := managed(t, m, task.Job{ModuleID: "job.fail", Retry: task.Retry{MaxRetries: 3}})
		synctest.Wait()
		wantInfo(t, m, backing, task.Pending, 1)
		if done, err := m.Cancel(t.Context(), backing); !done || err != nil {
			t.Errorf("cancel = %v, %v", done, err)
		}
		time.Sleep(time.Hour)
		wantInfo(t, m, backing, task.Cancelled, 1)
		if calls != 2 {
			t.Errorf("%d calls", calls)
		}
		// One that another process runs.
		if err := m.Store().Save(t.Context(), task.Info{TaskID: "far", Status: task.Running}); err != nil {
			t.Fatal(err)
		}
		if done, err := m.Cancel(t.Context(), "far"); !done || err != nil {
			t.Errorf("cancel = %v, %v", done, err)
		}
		wantInfo(t, m, "far", task.Cancelled, 0)
		last := managed(t, m, task.Job{ModuleID: "job.wait"})
		synctest.Wait()
		if err := m.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		wantInfo(t, m, last, task.Cancelled, 0)
		if causes[len(causes)-1] != cancel.Shutdown {
			t.Errorf("causes %v", causes)
		}
		if err := m.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestManagerRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		began := time.Now()
		m := manager(t, func(context.Context, string, map[string]any) (map[string]any, error) {
			at = append(at, time.Since(began))
			return nil, errors.New("no")
		}, task.ManagerOptions{})
		id := managed(t, m, task.Job{ModuleID: "job.fail", Retry: task.Retry{MaxRetries: 3, MaxRetryDelayMS: 3000}})
		time.Sleep(time.Minute)
		wantInfo(t, m, id, task.Failed, 3)
		if got, want := fmt.Sprint(at), "[0s 1s 3s 6s]"; got != want {
			t.Errorf("attempts at %s, want %s", got, want)
		}
	})
}

func TestManagerStoreFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &brokenStore{Store: task.NewMemStore()}
		m := manager(t, func(ctx context.Context, _ string, _ map[string]any) (map[string]any, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, task.ManagerOptions{Store: s})
		id := managed(t, m, task.Job{ModuleID: "job.wait"})
		synctest.Wait()
		s.broken.Store(true)
		_, err := m.Submit(t.Context(), task.Job{ModuleID: "job.wait"})
		wantCode(t, err, module.CodeTaskStoreUnavailable)
		_, err = m.Status(t.Context(), id)
		wantCode(t, err, module.CodeTaskStoreUnavailable)
		_, err = m.List(t.Context(), "")
		wantCode(t, err, module.CodeTaskStoreUnavailable)
		_, err = m.Result(t.Context(), id)
		wantCode(t, err, module.CodeTaskStoreUnavailable)
		_, err = m.Cleanup(t.Context(), 0)
		wantCode(t, err, module.CodeTaskStoreUnavailable)
		if done, err := m.Cancel(t.Context(), id); done || err == nil {
			t.Errorf("cancel = %v, %v", done, err)
		}
		wantCode(t, m.Shutdown(t.Context()), module.CodeTaskStoreUnavailable)
	})
}

func TestReaper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := manager(t, func(_ context.Context, _ string, in map[string]any) (map[string]any, error) { return in, nil }, task.ManagerOptions{})
		if err := m.Store().Save(t.Context(), task.Info{TaskID: "runs", Status: task.Running, SubmittedAt: 1}); err != nil {
			t.Fatal(err)
		}
		id := managed(t, m, task.Job{ModuleID: "job.ok"})
		r, err := m.StartReaper(task.ReaperOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.StartReaper(task.ReaperOptions{})
		wantCode(t, err, module.CodeReaperAlreadyRunning)
		time.Sleep(time.Hour + time.Minute)
		wantInfo(t, m, id, task.Completed, 0)
		time.Sleep(5 * time.Minute)
		if i, err := m.Status(t.Context(), id); i != nil || err != nil {
			t.Errorf("status = %+v, %v", i, err)
		}
		wantInfo(t, m, "runs", task.Running, 0)
		r.Stop()
		r.Stop()
		if _, err := m.StartReaper(task.ReaperOptions{}); err != nil {
			t.Error(err)
		}
		if err := m.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
