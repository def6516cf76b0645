package task_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// gated is a log that stores nothing until it is opened.
type gated struct {
	task.Log
	open chan struct{}
	fail func(n int) error // called before each commit
	n    int
}

func (g *gated) Commit(ctx context.Context, entries []task.Entry) error {
	select {
	case <-g.open:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	g.n++
	if g.fail != nil {
		if err := g.fail(g.n); err != nil {
			return err
		}
	}
	return g.Log.Commit(ctx, entries)
}

func TestRule01_ReceiptsComeAfterTheCommit(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.close()
		log := &gated{Log: f.mem.Lead(), open: make(chan struct{})}
		f.leadOver(log)
		got := make(chan string, 1)
		go func() { got <- f.submit(task.Submission{ModuleID: "job.safe"}) }()
		wait(time.Hour)
		if len(got) != 0 || f.mem.Len() != 0 {
			t.Fatal("a receipt for what is not stored")
		}
		close(log.open)
		id := <-got
		e, ok, err := log.Get(t.Context(), task.KeyTask+id)
		if err != nil || !ok || !json.Valid(e.Body) {
			t.Errorf("the log has %s, %v, %v", e.Body, ok, err)
		}
	})
}

func TestRule01_NothingIsShownBeforeItIsDurable(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.close()
		log := &gated{Log: f.mem.Lead(), open: make(chan struct{})}
		f.leadOver(log)
		ctx, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		go func() {
			_, _ = f.Submit(context.Background(), task.SubmitRequest{Tasks: []task.Submission{{ModuleID: "job.safe"}}})
		}()
		synctest.Wait()
		_, err := f.List(ctx, task.ListRequest{})
		wantCode(t, err, module.CodeTaskStoreUnavailable)
		a, err := f.Claim(ctx, task.ClaimRequest{Node: "n1", Modules: []string{"job.safe"}, Slots: 1})
		if err == nil || len(a.Grants) != 0 {
			t.Errorf("claim gives %+v, %v", a, err)
		}
		close(log.open)
		wait(time.Second)
		page, err := f.List(context.Background(), task.ListRequest{})
		if err != nil || len(page.Tasks) != 1 {
			t.Errorf("list %+v, %v", page, err)
		}
	})
}

func TestRule01_FailuresOfTheLogAreTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.close()
		log := &gated{Log: f.mem.Lead(), open: make(chan struct{}), fail: func(n int) error {
			if n < 5 {
				return fmt.Errorf("away")
			}
			return nil
		}}
		close(log.open)
		f.leadOver(log)
		f.submit(task.Submission{ModuleID: "job.safe"})
		if log.n != 5 {
			t.Errorf("%d commits", log.n)
		}
	})
}

func TestRule01_RefusedBeforeAnythingIsStored(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100)
	n := func(v int64) *int64 { return &v }
	tests := []struct {
		name string
		sub  task.Submission
		code module.Code
	}{
		{"no module", task.Submission{}, module.CodeInvalidModuleID},
		{"bad module", task.Submission{ModuleID: "Job!"}, module.CodeInvalidModuleID},
		{"inputs no JSON", task.Submission{ModuleID: "job.safe", Inputs: []byte(`{`)}, module.CodeInvalidInput},
		{"inputs no object", task.Submission{ModuleID: "job.safe", Inputs: []byte(`[1]`)}, module.CodeInvalidInput},
		{"inputs twice", task.Submission{ModuleID: "job.safe", Inputs: []byte(`{"a":1,"a":2}`)}, module.CodeInvalidInput},
		{"inputs deep", task.Submission{ModuleID: "job.safe", Inputs: []byte(deep)}, module.CodeInvalidInput},
		{"inputs NaN", task.Submission{ModuleID: "job.safe", Inputs: []byte(`{"a":NaN}`)}, module.CodeInvalidInput},
		{"inputs large", task.Submission{ModuleID: "job.safe", Inputs: []byte(`{"a":"` + strings.Repeat("x", 600<<10) + `"}`)}, module.CodeBusPayloadTooLarge},
		{"inputs beside the schema", task.Submission{ModuleID: "job.strict", Inputs: []byte(`{"n":"x"}`)}, module.CodeSchemaValidation},
		{"negative queue wait", task.Submission{ModuleID: "job.safe", Timeouts: &task.TimeoutsMS{QueueWaitMS: n(-1)}}, module.CodeInvalidInput},
		{"no queue wait", task.Submission{ModuleID: "job.safe", Timeouts: &task.TimeoutsMS{QueueWaitMS: n(0)}}, module.CodeInvalidInput},
		{"negative attempt", task.Submission{ModuleID: "job.safe", Timeouts: &task.TimeoutsMS{AttemptMS: n(-1)}}, module.CodeInvalidInput},
		{"absurd total", task.Submission{ModuleID: "job.safe", Timeouts: &task.TimeoutsMS{TotalMS: n(1 << 62)}}, module.CodeInvalidInput},
		{"run_at no time", task.Submission{ModuleID: "job.safe", RunAt: "soon"}, module.CodeInvalidInput},
		{"run_at far", task.Submission{ModuleID: "job.safe", RunAt: "9999-01-01T00:00:00Z"}, module.CodeInvalidInput},
		{"run_at ancient", task.Submission{ModuleID: "job.safe", RunAt: "0001-01-01T00:00:00Z"}, module.CodeInvalidInput},
		{"negative retries", task.Submission{ModuleID: "job.safe", Retry: &task.RetryOptions{MaxRetries: ptr(-1)}}, module.CodeInvalidInput},
		{"negative delay", task.Submission{ModuleID: "job.safe", Retry: &task.RetryOptions{RetryDelayMS: n(-1)}}, module.CodeInvalidInput},
		{"multiplier NaN", task.Submission{ModuleID: "job.safe", Retry: &task.RetryOptions{BackoffMultiplier: ptr(nan())}}, module.CodeInvalidInput},
		{"multiplier zero", task.Submission{ModuleID: "job.safe", Retry: &task.RetryOptions{BackoffMultiplier: ptr(0.0)}}, module.CodeInvalidInput},
		{"priority 10", task.Submission{ModuleID: "job.safe", Priority: ptr(10)}, module.CodeInvalidInput},
		{"priority -1", task.Submission{ModuleID: "job.safe", Priority: ptr(-1)}, module.CodeInvalidInput},
		{"on_crash", task.Submission{ModuleID: "job.safe", OnCrash: "explode"}, module.CodeInvalidInput},
		{"long key", task.Submission{ModuleID: "job.safe", IdempotencyKey: strings.Repeat("k", 257)}, module.CodeInvalidInput},
		{"blank key", task.Submission{ModuleID: "job.safe", ConcurrencyKey: "  "}, module.CodeInvalidInput},
		{"key no text", task.Submission{ModuleID: "job.safe", ConcurrencyKey: "\xff"}, module.CodeInvalidInput},
		{"parent", task.Submission{ModuleID: "job.safe", ParentTaskID: "mine"}, module.CodeInvalidInput},
		{"context", task.Submission{ModuleID: "job.safe", Context: []byte(`{"trace_id":7}`)}, module.CodeInvalidInput},
	}
	bubble(t, func(t *testing.T, f *fixture) {
		f.info["job.strict"] = task.Described{Descriptor: module.Descriptor{ID: "job.strict", InputSchema: map[string]any{
			"type": "object", "properties": map[string]any{"n": map[string]any{"type": "integer"}},
		}}}
		for _, tt := range tests {
			_, err := f.trySubmit(tt.sub)
			if e := module.AsError(err); e == nil || e.Code != tt.code {
				t.Errorf("%s: %v, want %s", tt.name, err, tt.code)
			}
		}
		if f.mem.Len() != 0 {
			t.Errorf("%d entries are stored", f.mem.Len())
		}
		for _, req := range []task.SubmitRequest{{}, {Tasks: make([]task.Submission, 1001)}} {
			_, err := f.Submit(context.Background(), req)
			wantCode(t, err, module.CodeInvalidInput)
		}
	})
}

func TestRule01_MaxTasksIsExactUnderConcurrency(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var mu sync.Mutex
		var ids []string
		refused := 0
		var owned sync.WaitGroup
		for range 50 {
			owned.Go(func() {
				r, err := f.trySubmit(task.Submission{ModuleID: "job.safe"})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					wantCode(t, err, module.CodeTaskLimitExceeded)
					refused++
					return
				}
				ids = append(ids, r.TaskID)
			})
		}
		owned.Wait()
		if len(ids) != 7 || refused != 43 {
			t.Fatalf("%d accepted, %d refused", len(ids), refused)
		}
		f.crash()
		_, err := f.trySubmit(task.Submission{ModuleID: "job.safe"})
		wantCode(t, err, module.CodeTaskLimitExceeded)
		if _, err := f.Cancel(context.Background(), task.CancelAsk{TaskID: ids[0]}); err != nil {
			t.Fatal(err)
		}
		f.submit(task.Submission{ModuleID: "job.safe"}) // what is over does not count
		_, err = f.Retry(context.Background(), task.ActAsk{TaskID: ids[0]})
		wantCode(t, err, module.CodeTaskLimitExceeded)
	}, func(o *task.WriterOptions) { o.MaxTasks = 7 })
}

func TestRule01_AModuleWithoutAHostWaitsAndIsShownBlocked(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		id := f.submit(task.Submission{ModuleID: "nobody.home", Timeouts: &task.TimeoutsMS{QueueWaitMS: ptr(int64(60_000))}})
		if r := f.want(id, task.Pending, task.Blocked); r.BlockedBy != task.BlockedNoHost {
			t.Errorf("blocked by %q", r.BlockedBy)
		}
		page, err := f.List(context.Background(), task.ListRequest{Filter: task.Filter{Detail: task.Blocked}})
		if err != nil || len(page.Tasks) != 1 {
			t.Errorf("list %+v, %v", page, err)
		}
		wait(59 * time.Second)
		f.want(id, task.Pending, task.Blocked)
		wait(time.Second)
		wantCode(t, f.want(id, task.Failed, "").Error.Err(), module.CodeTaskQueueTimeout)
	})
}

func TestRule01_ContextsLoseTheirDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		c := module.NewContext(module.ContextOptions{
			Identity: module.NewIdentity("ann", "user", nil, nil), Data: map[string]any{module.DataDeadline: 1.0, "x-order": "7"},
		})
		raw, err := contextwire.EncodeContext(c, contextwire.JSON)
		if err != nil {
			t.Fatal(err)
		}
		f.submit(task.Submission{ModuleID: "job.safe", Context: raw})
		g := f.claim("n1", 1, "job.safe")[0]
		got, err := contextwire.DecodeContext(g.Context, contextwire.JSON, contextwire.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := got.Data().Get(module.DataDeadline); ok || got.TraceID() != c.TraceID() || got.Identity().ID() != "ann" {
			t.Errorf("context %s", g.Context)
		}
		if v, _ := got.Data().Get("x-order"); v != "7" {
			t.Errorf("data %v", got.Data().All())
		}
		if r := f.get(g.TaskID); r.Timeline[0].Actor != "ann" {
			t.Errorf("timeline %+v", r.Timeline)
		}
	})
}

func TestRule02_FiftyConcurrentSubmitsMakeOneTask(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var mu sync.Mutex
		ids := map[string]int{}
		var owned sync.WaitGroup
		for i := range 50 {
			owned.Go(func() {
				// Equal inputs in another spelling.
				in := []string{`{"a":1,"b":[2.0]}`, `{ "b":[2.0], "a":1 }`}[i%2]
				r, err := f.trySubmit(task.Submission{ModuleID: "job.safe", IdempotencyKey: "k", Inputs: []byte(in)})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				ids[r.TaskID]++
				if !r.Deduplicated {
					ids["fresh"]++
				}
			})
		}
		owned.Wait()
		if len(ids) != 2 || ids["fresh"] != 1 {
			t.Errorf("%v", ids)
		}
	})
}

func TestRule02_KeysOutliveTheTaskAndTheWriter(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		sub := task.Submission{ModuleID: "job.safe", IdempotencyKey: "k", Inputs: []byte(`{"a":1}`)}
		first := f.submit(sub)
		same := func(sub task.Submission) {
			t.Helper()
			r, err := f.trySubmit(sub)
			if err != nil || !r.Deduplicated || r.TaskID != first {
				t.Errorf("receipt %+v, %v", r, err)
			}
		}
		same(sub)
		other := sub
		other.Inputs = []byte(`{"a":2}`)
		conflict := func() {
			t.Helper()
			_, err := f.trySubmit(other)
			if e := wantCode(t, err, module.CodeTaskKeyConflict); e.Details["task_id"] != first {
				t.Errorf("details %v", e.Details)
			}
		}
		conflict()
		elsewhere := sub
		elsewhere.ModuleID = "job.effect"
		if r, err := f.trySubmit(elsewhere); err != nil || r.Deduplicated {
			t.Errorf("the key of another module: %+v, %v", r, err)
		}
		g := f.run("n1", "job.safe")
		f.succeed(g, `{}`)
		f.crash()
		wait(30 * time.Minute) // far beyond the two minutes of the broker
		same(sub)
		conflict()
		wait(31 * time.Minute) // its record is gone, and the key with it
		if r, err := f.trySubmit(other); err != nil || r.Deduplicated {
			t.Errorf("receipt %+v, %v", r, err)
		}
	})
}

func TestRule09_BulkSubmit(t *testing.T) {
	good := task.Submission{ModuleID: "job.safe"}
	bad := task.Submission{ModuleID: "job.safe", Priority: ptr(99)}
	keyed := task.Submission{ModuleID: "job.safe", IdempotencyKey: "k"}
	clash := task.Submission{ModuleID: "job.safe", IdempotencyKey: "k", Inputs: []byte(`{"x":1}`)}
	tests := []struct {
		name  string
		tasks []task.Submission
		all   bool
		want  []string
	}{
		{"a verdict each", []task.Submission{good, bad, keyed, clash, keyed}, false, []string{"", "GENERAL_INVALID_INPUT", "", "TASK_KEY_CONFLICT", "dup"}},
		{"all, and all are good", []task.Submission{good, keyed, keyed}, true, []string{"", "", "dup"}},
		{"all, and one is bad", []task.Submission{good, bad}, true, []string{"TASK_BATCH_REFUSED", "GENERAL_INVALID_INPUT"}},
		{"all, and two clash", []task.Submission{good, keyed, clash}, true, []string{"TASK_BATCH_REFUSED", "TASK_BATCH_REFUSED", "TASK_KEY_CONFLICT"}},
		{"all, and there is no room", []task.Submission{good, good, good, good, good, good}, true,
			[]string{"TASK_BATCH_REFUSED", "TASK_BATCH_REFUSED", "TASK_BATCH_REFUSED", "TASK_BATCH_REFUSED", "TASK_BATCH_REFUSED", "TASK_LIMIT_EXCEEDED"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				a, err := f.Submit(context.Background(), task.SubmitRequest{Tasks: tt.tasks, All: tt.all})
				if err != nil {
					t.Fatal(err)
				}
				stored := 0
				for i, v := range a.Receipts {
					got := string(v.Error.Code())
					if v.Receipt != nil && v.Deduplicated {
						got = "dup"
					} else if v.Receipt != nil {
						stored++
					}
					if got != tt.want[i] {
						t.Errorf("task %d: %q, want %q", i, got, tt.want[i])
					}
				}
				if f.mem.Len() != stored {
					t.Errorf("%d stored, want %d", f.mem.Len(), stored)
				}
			}, func(o *task.WriterOptions) { o.MaxTasks = 5 })
		})
	}
}
