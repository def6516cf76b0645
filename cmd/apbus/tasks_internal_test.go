package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// taskRouter is a gateway with a real writer of tasks and a worker for math.add, which
// adds, demo.fail, which fails as often as its input says, and demo.hold, which waits
// for its end. Nobody works for idle.x.
func taskRouter(t *testing.T) (url string) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	w, err := task.NewWriter(task.NewMemLog().Lead(), task.WriterOptions{Namespace: "default", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	var failed atomic.Int64
	run := task.InvokerFunc(func(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
		number := func(key string) int64 { n, _ := req.Inputs[key].(int64); return n }
		switch req.ModuleID {
		case "demo.fail":
			if failed.Add(1) <= number("times") {
				return nil, module.Errorf("SHOP_CLOSED", "come back").WithRetryable(module.True)
			}
		case "demo.hold":
			req.Progress(module.ProgressReport{Done: 1, Total: 4, Note: "quarter"})
			<-ctx.Done()
			return nil, module.Wrap(module.CodeExecutionCancelled, context.Cause(ctx), "cancelled")
		}
		return &contextwire.Reply{Output: map[string]any{"sum": number("a") + number("b")}}, nil
	})
	worker, err := task.NewWorker(w, run, task.WorkerOptions{
		Node: "n1", Boot: "b1", Modules: func() []string { return []string{"math.add", "demo.fail", "demo.hold"} }, Grace: -1, Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	over := errors.New("the test is over")
	ctx, stop := context.WithCancelCause(context.Background())
	life, drain := context.WithCancelCause(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- w.Run(ctx) }()
	go func() { ended <- worker.Run(life) }()
	t.Cleanup(func() {
		drain(over)
		<-ended
		stop(over)
		<-ended
	})
	g, err := gateway.New(gateway.Options{
		Invoker: gateway.InvokerFuncs{}, Catalog: gateway.CatalogFunc(nil), Fleet: gateway.FleetFuncs{}, Calls: gateway.CallsFuncs{},
		Readiness: gateway.ReadyFunc(nil), Tasks: w, Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(g)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	return server.URL
}

func TestTasks(t *testing.T) {
	url := taskRouter(t)
	cli := func(args ...string) ran {
		t.Helper()
		return runCLI(t.Context(), `{"a":5,"b":6}`, map[string]string{"APBUS_ROUTER": url}, args...)
	}
	submit := func(args ...string) string {
		t.Helper()
		got := cli(append([]string{"tasks", "submit"}, args...)...)
		id := strings.TrimSpace(got.stdout)
		if got.exit != 0 || id == "" || strings.ContainsAny(id, " \n") {
			t.Fatalf("submit %q: exit code %d, stdout %q, stderr %q", args, got.exit, got.stdout, got.stderr)
		}
		return id
	}
	// want checks the exit code, and that stdout and stderr hold all parts between them.
	want := func(got ran, exit int, parts ...string) {
		t.Helper()
		if got.exit != exit {
			t.Errorf("exit code %d, want %d; stdout %q, stderr %q", got.exit, exit, got.stdout, got.stderr)
		}
		for _, part := range parts {
			if !strings.Contains(got.stdout+got.stderr, part) {
				t.Errorf("no %q in stdout:\n%s\nstderr:\n%s", part, got.stdout, got.stderr)
			}
		}
	}

	want(cli("tasks", "submit", "math.add", "--input", `{"a":1,"b":2}`, "--wait"), 0, `{"sum":3}`)
	want(cli("tasks", "submit", "math.add", "--input", "-", "--wait"), 0, `{"sum":11}`)
	want(cli("tasks", "submit", "math.add", "--input", "{}", "--json"), 0, `"deduplicated":false,"detail":"queued","durability":"power-safe"`)
	done := submit("math.add", "--input", `{"a":1,"b":2}`, "--key", "k1", "--priority", "9")
	want(cli("tasks", "wait", done), 0, `{"sum":3}`)
	if again := submit("math.add", "--input", `{"a":1,"b":2}`, "--key", "k1", "--priority", "9"); again != done {
		t.Errorf("submitted again: %s, want %s", again, done)
	}
	want(cli("tasks", "submit", "math.add", "--input", `{"a":7}`, "--key", "k1"), 1, "TASK_KEY_CONFLICT", done)
	want(cli("tasks", "show", done), 0, done+"  math.add  completed\n", "  key                k1\n", "  priority           9\n",
		`  result             {"sum":3}`, "pending queued\tsubmitted", "running\tstarted\t1\tn1", "completed\t")
	var doc map[string]any
	if got := cli("tasks", "show", done, "--json"); json.Unmarshal([]byte(got.stdout), &doc) != nil || doc["task_id"] != done {
		t.Errorf("show as JSON: %q", got.stdout)
	}
	want(cli("tasks", "show", done, "--inputs"), 0, `{"a":1,"b":2}`)
	want(cli("tasks", "show", done), 0, "inputs_read")

	failed := submit("demo.fail", "--input", `{"times":3}`, "--retries", "1")
	want(cli("tasks", "wait", failed), 1, "SHOP_CLOSED: come back")
	want(cli("tasks", "watch", failed), 1, "SHOP_CLOSED", "demo.fail\tfailed")
	want(cli("tasks", "show", failed), 0, "attempts           2, 1 of 1 retries", "error              SHOP_CLOSED: come back", "backing_off")
	want(cli("tasks", "retry", failed), 0, failed+"\tpending")
	want(cli("tasks", "watch", failed, "--json"), 0, `"kind":"end"`)

	waiting := submit("idle.x", "--run-at", "1h")
	want(cli("tasks", "wait", waiting, "--timeout", "50ms"), 1, "MODULE_TIMEOUT", "it is pending")
	want(cli("tasks", "list", "--module", "idle.x"), 0, waiting+"\tidle.x\tpending\tscheduled\t0")
	want(cli("tasks", "--module", "idle.x", "--json"), 0, `"next_cursor":null`)
	want(cli("tasks", "requeue", waiting), 0, waiting+"\tpending")
	want(cli("tasks", "show", waiting), 0, "(blocked: no host)")
	want(cli("tasks", "cancel", "--module", "idle.x", "--dry-run"), 0, "cancel: would change 1")
	want(cli("tasks", "cancel", "--module", "idle.x"), 0, "cancel: changed 1")
	want(cli("tasks", "cancel", waiting, "--json"), 0, `"state":"already_terminal"`)
	want(cli("tasks", "retry", waiting, "nope"), 1, waiting+"\tpending", "TASK_NOT_FOUND")
	want(cli("cancel", "--task", waiting), 0, waiting+"\taccepted")
	want(cli("tasks", "list", "--limit", "1"), 0, "there are more: --cursor ")

	want(cli("tasks", "pause", "idle.x", "--reason", "maintenance"), 0, "idle.x\tpaused by router: maintenance\t-\t0\t0\t0")
	want(cli("tasks", "limit", "idle.x", "--concurrency", "4", "--per-key", "2"), 0, "idle.x\tpaused by router: maintenance\t4, a key 2\t0")
	want(cli("tasks", "limit", "idle.x", "--concurrency=-4"), 1, "GENERAL_INVALID_INPUT")
	want(cli("tasks", "limit", "idle.x"), 2, "say what to limit")
	want(cli("tasks", "list", "--queues"), 0, "idle.x\tpaused by", "math.add\topen")
	want(cli("tasks", "resume", "idle.x"), 0, "idle.x\topen")

	want(cli("tasks", "schedule", "put", "nightly", "idle.x", "--input", "{}", "--cron", "0 3 * * *", "--time-zone", "Europe/Berlin"), 0, "nightly\t0 3 * * * Europe/Berlin\tidle.x\t")
	want(cli("tasks", "schedule"), 0, "nightly\t")
	want(cli("tasks", "schedule", "show", "nightly"), 0, `"cron":"0 3 * * *"`)
	want(cli("tasks", "schedule", "delete", "nightly"), 0, "nightly is deleted")
	want(cli("tasks", "schedule", "delete", "nightly"), 1, "TASK_SCHEDULE_NOT_FOUND")

	want(cli("tasks", "cancel"), 2, "name tasks, or select them")
	want(cli("tasks", "cancel", "x", "--module", "y"), 2, "not both")
	want(cli("tasks", "submit", "math.add", "--priority", "10"), 2, "--priority")
	want(cli("tasks", "schedule", "put", "n", "idle.x", "--cron", "@daily", "--key", "k"), 2, "neither --run-at nor --key")
	want(cli("--nats", "nats://127.0.0.1:1", "tasks"), 2, "tasks need a router")
	want(cli("tasks", "show", "nope"), 1, "TASK_NOT_FOUND")
	want(cli("tasks", "watch", "nope"), 1, "TASK_NOT_FOUND")
	want(cli("cancel", "c1", "--task", "x"), 2, "give one of")
}

// Watching shows progress and steps, and who stops watching learns that the task goes
// on.
func TestTaskWatch(t *testing.T) {
	url := taskRouter(t)
	env := map[string]string{"APBUS_ROUTER": url}
	id := strings.TrimSpace(runCLI(t.Context(), "", env, "tasks", "submit", "demo.hold", "--input", "{}").stdout)
	ctx, stop := context.WithCancelCause(t.Context())
	watched := make(chan ran, 1)
	go func() { watched <- runCLI(ctx, "", env, "tasks", "watch", id) }()
	deadline := time.Now().Add(10 * time.Second)
	for !strings.Contains(runCLI(t.Context(), "", env, "tasks", "show", id).stdout, "25% quarter") {
		if time.Now().After(deadline) {
			t.Fatal("no progress")
		}
	}
	stop(errors.New("Ctrl-C"))
	if got := <-watched; got.exit != 130 || !strings.Contains(got.stderr, "the task goes on; stop it with: apbus tasks cancel "+id) {
		t.Errorf("interrupted: exit code %d, stderr %q", got.exit, got.stderr)
	}
	go func() { watched <- runCLI(t.Context(), "", env, "tasks", "watch", id) }()
	if got := runCLI(t.Context(), "", env, "tasks", "cancel", id, "--reason", "enough"); got.exit != 0 {
		t.Errorf("cancel: %q", got.stderr)
	}
	got := <-watched
	if got.exit != 1 || !strings.Contains(got.stderr, "EXECUTION_CANCELLED") || !strings.Contains(got.stdout, "demo.hold\trunning") {
		t.Errorf("watched: exit code %d, stdout %q, stderr %q", got.exit, got.stdout, got.stderr)
	}
}
