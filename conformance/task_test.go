//go:build conformance

package conformance_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// taskRunner is an executor of one function.
type taskRunner func(ctx context.Context) (map[string]any, error)

func (f taskRunner) Call(ctx context.Context, _ string, _ map[string]any, _ ...module.CallOption) (map[string]any, error) {
	return f(ctx)
}

func holdUntilDone(ctx context.Context) (map[string]any, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func (c *kase) manager(run taskRunner, opts task.ManagerOptions) *task.Manager {
	opts.Logger = quiet()
	m, err := task.NewManager(run, opts)
	if err != nil {
		c.Fatalf("manager: %v", err)
	}
	return m
}

func (c *kase) shut(m *task.Manager) {
	if err := m.Shutdown(context.Background()); err != nil {
		c.Errorf("shutdown: %v", err)
	}
}

func driveTaskCancellation(c *kase) {
	c.opt("notes").raw()
	c.bubble(func(ctx context.Context) {
		switch action := c.at("action").str(); action {
		case "submit_over_capacity":
			m := c.manager(holdUntilDone, task.ManagerOptions{MaxTasks: c.at("max_tasks").number(), MaxConcurrent: c.at("max_concurrent").number()})
			defer c.shut(m)
			var err error
			for range c.at("submit_count").number() {
				if err != nil {
					c.Errorf("refused too early: %v", err)
				}
				_, err = m.Submit(ctx, task.Job{ModuleID: "job.long"})
			}
			want := c.at("expected_error").str()
			if e := module.AsError(err); e == nil || string(e.Code) != want {
				c.Errorf("the last submit: %v, want %s", err, want)
			}
		case "cancel_during_backoff":
			calls := 0
			m := c.manager(func(context.Context) (map[string]any, error) {
				calls++
				return nil, errors.New("no")
			}, task.ManagerOptions{})
			defer c.shut(m)
			id, err := m.Submit(ctx, task.Job{ModuleID: "job.fails", Retry: c.retry(c.node)})
			if err != nil {
				c.Fatalf("submit: %v", err)
			}
			synctest.Wait()
			before := calls
			if ok, err := m.Cancel(ctx, id); !ok || err != nil {
				c.Errorf("cancel = %v, %v", ok, err)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			i, err := m.Status(ctx, id)
			if want := c.at("expected_final_status").str(); err != nil || string(i.Status) != want {
				c.Errorf("status %+v, %v; want %s", i, err, want)
			}
			c.at("expected_no_attempt_after_cancel").must(calls == before && before == 1)
		default:
			c.Fatalf("driver: unknown action %s", action)
		}
	})
}

// retry reads a retry configuration.
func (c *kase) retry(n *node) task.Retry {
	r := task.DefaultRetry()
	if n.has("max_retries") {
		r.MaxRetries = n.at("max_retries").number()
	}
	if n.has("retry_delay_ms") {
		r.RetryDelayMS = int64(n.at("retry_delay_ms").number())
	}
	if n.has("backoff_multiplier") {
		m, ok := n.at("backoff_multiplier").raw().(float64)
		if !ok {
			c.Fatalf("driver: backoff_multiplier is no float")
		}
		r.BackoffMultiplier = m
	}
	if n.has("max_retry_delay_ms") {
		r.MaxRetryDelayMS = int64(n.at("max_retry_delay_ms").number())
	}
	return r
}

// info reads a TaskInfo by its own JSON.
func (c *kase) info(n *node) task.Info {
	body, err := contextwire.Encode(contextwire.JSON, n.raw())
	if err != nil {
		c.Fatalf("driver: %v", err)
	}
	var i task.Info
	if err := json.Unmarshal(body, &i); err != nil {
		c.Fatalf("task info: %v", err)
	}
	return i
}

func (c *kase) save(ctx context.Context, s task.Store, n *node) {
	if err := s.Save(ctx, c.info(n)); err != nil {
		c.Fatalf("save: %v", err)
	}
}

// ownStore is a store that is not ours.
type ownStore struct{ *task.MemStore }

func driveTaskEvolution(c *kase) {
	c.opt("description").raw()
	c.opt("note").raw()
	c.bubble(func(ctx context.Context) {
		want := c.at("expected")
		switch action := c.at("action").str(); action {
		case "construct_manager":
			opts := task.ManagerOptions{}
			config, kind := c.at("config"), ""
			if config.has("store") {
				kind = config.at("store").at("type").str()
			}
			config.raw()
			if kind != "" {
				opts.Store = ownStore{task.NewMemStore()}
			}
			m := c.manager(holdUntilDone, opts)
			got := map[bool]string{true: "InMemoryTaskStore", false: kind}[isMemStore(m.Store())]
			if w := want.at("store_type").str(); got != w {
				c.Errorf("store %s, want %s", got, w)
			}
		case "save_then_get":
			s := task.NewMemStore()
			c.save(ctx, s, c.at("task_info"))
			got, err := s.Get(ctx, c.at("lookup_id").str())
			if err != nil {
				c.Fatalf("get: %v", err)
			}
			want.at("found").must(got != nil)
			body, _ := json.Marshal(got)
			m, err := contextwire.DecodeMap(contextwire.JSON, body, contextwire.Limits{})
			if err != nil {
				c.Fatalf("task info: %v", err)
			}
			for _, key := range []string{"task_id", "module_id", "status", "result"} {
				if n := want.opt(key); want.has(key) && !sameJSON(m[key], n.raw()) {
					c.Errorf("%s = %v, want %v", key, m[key], n.raw())
				}
			}
		case "list_by_status":
			s := task.NewMemStore()
			for _, n := range c.at("stored_tasks").list() {
				c.save(ctx, s, n)
			}
			list, err := s.List(ctx, task.Status(c.at("status_filter").str()))
			if err != nil || len(list) != want.at("count").number() {
				c.Errorf("%d listed, %v", len(list), err)
			}
			if got, w := taskIDs(list), want.at("task_ids").strs(); !slices.Equal(got, w) {
				c.Errorf("listed %v, want %v", got, w)
			}
		case "compute_retry_delays":
			r := c.retry(c.at("retry_config"))
			for i, key := range []string{"attempt_0_delay_ms", "attempt_1_delay_ms", "attempt_2_delay_ms", "attempt_3_delay_ms", "attempt_4_delay_ms", "attempt_5_delay_ms"} {
				if got := r.DelayMS(i); got != int64(want.at(key).number()) {
					c.Errorf("%s = %d", key, got)
				}
			}
		case "execute_and_observe", "execute_until_exhausted":
			c.driveTaskRetries(ctx, action, want)
		case "wait_and_check_store", "trigger_reaper_sweep":
			c.driveReaper(ctx, want)
		default:
			c.Fatalf("driver: unknown action %s", action)
		}
	})
}

func isMemStore(s task.Store) bool {
	_, ok := s.(*task.MemStore)
	return ok
}

func sameJSON(a, b any) bool {
	x, err1 := contextwire.EncodeCanonical(contextwire.JSON, a)
	y, err2 := contextwire.EncodeCanonical(contextwire.JSON, b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}

func taskIDs(list []task.Info) []string {
	ids := []string{}
	for _, i := range list {
		ids = append(ids, i.TaskID)
	}
	return ids
}

// driveTaskRetries runs a task that fails the way the case says.
func (c *kase) driveTaskRetries(ctx context.Context, action string, want *node) {
	shape := c.info(c.at("task_info"))
	retry := c.retry(c.at("retry_config"))
	failure := errors.New(c.at("simulated_failure").str())
	var at []time.Time
	m := c.manager(func(context.Context) (map[string]any, error) {
		at = append(at, time.Now())
		return nil, failure
	}, task.ManagerOptions{})
	defer c.shut(m)
	id, err := m.Submit(ctx, task.Job{ModuleID: shape.ModuleID, Retry: retry})
	if err != nil {
		c.Fatalf("submit: %v", err)
	}
	synctest.Wait()
	first, err := m.Status(ctx, id)
	if err != nil || first.MaxRetries != shape.MaxRetries {
		c.Fatalf("after the first failure: %+v, %v", first, err)
	}
	time.Sleep(time.Hour)
	synctest.Wait()
	last, err := m.Status(ctx, id)
	if err != nil {
		c.Fatalf("status: %v", err)
	}
	if action == "execute_and_observe" {
		if got, w := string(first.Status), want.at("status_after_first_failure").str(); got != w {
			c.Errorf("status %s, want %s", got, w)
		}
		if got, w := first.RetryCount, want.at("retry_count_after_first_failure").number(); got != w {
			c.Errorf("retry count %d, want %d", got, w)
		}
		if got, w := at[1].Sub(at[0]).Milliseconds(), int64(want.at("next_retry_delay_ms").number()); got != w {
			c.Errorf("delay %d ms, want %d", got, w)
		}
		return
	}
	if got, w := string(last.Status), want.at("final_status").str(); got != w {
		c.Errorf("status %s, want %s", got, w)
	}
	if got, w := last.RetryCount, want.at("retry_count").number(); got != w {
		c.Errorf("retry count %d, want %d", got, w)
	}
	want.at("error_populated").must(last.Error != nil && *last.Error != "")
}

// driveReaper has records in the store, and a clock that shows the time of the case
// when the sweep comes.
func (c *kase) driveReaper(ctx context.Context, want *node) {
	m := c.manager(holdUntilDone, task.ManagerOptions{})
	defer c.shut(m)
	for _, key := range []string{"stored_tasks", "stored_expired_tasks"} {
		if c.has(key) {
			for _, n := range c.at(key).list() {
				c.save(ctx, m.Store(), n)
			}
		}
	}
	before, err := m.List(ctx, "")
	if err != nil {
		c.Fatalf("list: %v", err)
	}
	now := c.at("now_timestamp").seconds()
	interval := 5 * time.Minute
	var opts task.ReaperOptions
	enabled := false
	if config := c.at("config"); config.has("reaper") {
		enabled = config.at("reaper").at("enabled").flag()
	}
	if enabled {
		reaper := c.at("config").at("reaper")
		opts.TTL = time.Duration(reaper.at("ttl_seconds").number()) * time.Second
		interval = time.Duration(reaper.at("sweep_interval_ms").number()) * time.Millisecond
		opts.Interval = interval
	}
	time.Sleep(time.Until(now) - interval)
	if enabled {
		r, err := m.StartReaper(opts)
		if err != nil {
			c.Fatalf("reaper: %v", err)
		}
		defer r.Stop()
	}
	time.Sleep(interval)
	synctest.Wait()
	list, err := m.List(ctx, "")
	if err != nil {
		c.Fatalf("list: %v", err)
	}
	left := taskIDs(list)
	deleted := slices.DeleteFunc(taskIDs(before), func(id string) bool { return slices.Contains(left, id) })
	for _, key := range want.keys() {
		switch n := want.at(key); key {
		case "reaper_running":
			n.must(enabled)
		case "expired_task_still_present":
			n.must(len(left) == len(before))
		case "deleted_task_ids":
			if w := n.strs(); !slices.Equal(deleted, w) && len(deleted)+len(w) > 0 {
				c.Errorf("deleted %v, want %v", deleted, w)
			}
		case "remaining_task_ids":
			if w := n.strs(); !slices.Equal(left, w) {
				c.Errorf("remaining %v, want %v", left, w)
			}
		default:
			c.Fatalf("driver: unknown expectation %s", key)
		}
	}
}
