package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

var _ gateway.Tasks = (*task.Writer)(nil)

// withTasks puts a real writer, over a log in memory, behind the gateway, and a worker
// for work.ok, which adds one, work.fail, and work.hold, which waits for its end.
// Nobody works for idle.x. work.strict is known to want a number n and nothing else, and
// each of the bad modules does something that no module should.
func withTasks(t *testing.T) func(*gateway.Options) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	w, err := task.NewWriter(task.NewMemLog().Lead(), task.WriterOptions{Namespace: "default", Logger: quiet, Describe: describe})
	if err != nil {
		t.Fatal(err)
	}
	run := task.InvokerFunc(func(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
		switch req.ModuleID {
		case "work.fail":
			return nil, module.Errorf("WORK_FAILED", "as asked")
		case "work.broken":
			return nil, module.Errorf(module.CodeInternal, "SECRET")
		case "work.hold":
			if req.Progress != nil {
				req.Progress(module.ProgressReport{Done: 1, Total: 2})
			}
			<-ctx.Done()
			return nil, module.Wrap(module.CodeExecutionCancelled, context.Cause(ctx), "cancelled")
		}
		if misbehave := badModules()[req.ModuleID]; misbehave != nil {
			return misbehave()
		}
		n, _ := req.Inputs["n"].(int64)
		who := any(nil)
		if id := req.Context.Identity(); id != nil {
			who = id.ID()
		}
		return &contextwire.Reply{Output: map[string]any{"n": n + 1, "who": who}}, nil
	})
	worker, err := task.NewWorker(w, run, task.WorkerOptions{
		Node: "n1", Boot: "b1", Modules: func() []string {
			return slices.Concat([]string{"work.ok", "work.fail", "work.hold", "work.broken"}, slices.Collect(maps.Keys(badModules())))
		}, Grace: -1, Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- w.Run(ctx) }()
	life, drain := context.WithCancelCause(context.Background())
	go func() { ended <- worker.Run(life) }()
	t.Cleanup(func() {
		drain(errors.New("the test is over"))
		<-ended
		stop(errors.New("the test is over"))
		<-ended
	})
	return func(o *gateway.Options) { o.Tasks = w }
}

// describe knows work.strict only.
func describe(id string) (task.Described, bool) {
	return task.Described{Descriptor: module.Descriptor{ID: id, InputSchema: map[string]any{
		"type": "object", "properties": map[string]any{"n": map[string]any{"type": "integer"}}, "required": []any{"n"}, "additionalProperties": false,
	}}}, id == "work.strict"
}

// badModules is what the bad modules do.
func badModules() map[string]func() (*contextwire.Reply, error) {
	output := func(v any) func() (*contextwire.Reply, error) {
		return func() (*contextwire.Reply, error) { return &contextwire.Reply{Output: map[string]any{"v": v}}, nil }
	}
	cyclic := map[string]any{}
	cyclic["self"] = cyclic
	type thing struct{ Secret string }
	return map[string]func() (*contextwire.Reply, error){
		"bad.nan":          output(math.NaN()),
		"bad.infinite":     output(math.Inf(-1)),
		"bad.cyclic":       output(cyclic),
		"bad.func":         output(func() {}),
		"bad.large":        output(strings.Repeat("x", 5<<20)),
		"bad.text":         output("\xff\xfe"),
		"bad.panic_number": func() (*contextwire.Reply, error) { panic(42) },
		"bad.panic_thing":  func() (*contextwire.Reply, error) { panic(thing{"SECRET"}) },
		"bad.panic_error":  func() (*contextwire.Reply, error) { panic(errors.New("SECRET")) },
		"bad.panic_nil":    func() (*contextwire.Reply, error) { panic(nil) },                        //nolint:govet // that is what is bad
		"bad.exit":         func() (*contextwire.Reply, error) { runtime.Goexit(); return nil, nil }, //nolint:nilnil // never reached
	}
}

// submit submits one task and returns its ID.
func submit(t *testing.T, url, body string, headers ...string) string {
	t.Helper()
	res := request(t, "POST", url+"/v1/tasks", body, headers...)
	id, _ := res.fields(t)["task_id"].(string)
	if res.status != 202 || id == "" || res.header.Get("Location") != "/v1/tasks/"+id {
		t.Fatalf("submit: %d %s", res.status, res.body)
	}
	return id
}

func TestTaskFromSubmitToResult(t *testing.T) {
	url := serve(t, withTasks(t), func(o *gateway.Options) {
		o.Auth = grants{identity: module.NewIdentity("ana", "user", nil, nil), scopes: []gateway.Scope{gateway.ScopeCall}}
	})
	id := submit(t, url, `{"module_id":"work.ok","inputs":{"n":9007199254740993,"password":"SECRET"},"priority":7}`, "Idempotency-Key: k1")
	res := request(t, "GET", url+"/v1/tasks/"+id+"/result?wait=10s", "")
	if res.status != 200 || inOrder(t, res.body) != `{"n":9007199254740994,"who":"ana"}` {
		t.Errorf("result: %d %s", res.status, res.body)
	}
	again := request(t, "POST", url+"/v1/tasks", `{"module_id":"work.ok","inputs":{"n":9007199254740993,"password":"SECRET"},"priority":7}`, "Idempotency-Key: k1").fields(t)
	if again["task_id"] != id || again["deduplicated"] != true {
		t.Errorf("submitted again: %v", again)
	}
	e := request(t, "POST", url+"/v1/tasks", `{"module_id":"work.ok"}`, "Idempotency-Key: k1").wantFault(t, 409, module.CodeTaskKeyConflict)
	if !strings.Contains(fmt.Sprint(e["details"]), id) {
		t.Errorf("the conflict does not name the first: %v", e)
	}
	res = request(t, "GET", url+"/v1/tasks/"+id, "")
	r := res.fields(t)
	if r["status"] != "completed" || r["priority"] != int64(7) || r["attempt"] != int64(1) || len(r["timeline"].([]any)) < 3 {
		t.Errorf("record: %s", res.body)
	}
	if strings.Contains(res.body, "SECRET") {
		t.Errorf("an input shows: %s", res.body)
	}
}

func TestTaskThatIsNotOver(t *testing.T) {
	url := serve(t, withTasks(t))
	id := submit(t, url, `{"module_id":"idle.x"}`)
	res := request(t, "GET", url+"/v1/tasks/"+id+"/result?wait=20ms", "")
	if res.status != 202 || res.fields(t)["status"] != "pending" || res.fields(t)["blocked_by"] != "no host" {
		t.Errorf("result: %d %s", res.status, res.body)
	}
	res = request(t, "DELETE", url+"/v1/tasks/"+id+"?reason=changed+my+mind", "")
	if res.status != 202 || res.fields(t)["state"] != "accepted" {
		t.Errorf("cancel: %d %s", res.status, res.body)
	}
	request(t, "GET", url+"/v1/tasks/"+id+"/result?wait=10s", "").wantFault(t, 499, module.CodeExecutionCancelled)
	if res := request(t, "DELETE", url+"/v1/tasks/"+id, ""); res.status != 202 || res.fields(t)["state"] != "already_terminal" {
		t.Errorf("cancel again: %d %s", res.status, res.body)
	}
	res = request(t, "POST", url+"/v1/tasks/"+id+"/retry", `{"reason":"once more"}`)
	if res.status != 202 || res.fields(t)["status"] != "pending" {
		t.Errorf("retry: %d %s", res.status, res.body)
	}
	request(t, "POST", url+"/v1/tasks/"+id+"/retry", ``).wantFault(t, 409, module.CodeTaskStateConflict)
}

func TestTaskFailures(t *testing.T) {
	url := serve(t, withTasks(t))
	id := submit(t, url, `{"module_id":"work.fail"}`)
	if e := request(t, "GET", url+"/v1/tasks/"+id+"/result?wait=10s", "").wantFault(t, 500, "WORK_FAILED"); e["message"] != "as asked" {
		t.Errorf("error %v", e)
	}
	id = submit(t, url, `{"module_id":"work.broken"}`)
	for _, path := range []string{"/result?wait=10s", "", "/events"} {
		if res := request(t, "GET", url+"/v1/tasks/"+id+path, ""); strings.Contains(res.body, "SECRET") || !strings.Contains(res.body, "GENERAL_INTERNAL_ERROR") {
			t.Errorf("%q: %s", path, res.body)
		}
	}
	for _, tt := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		code                     module.Code
	}{
		{"no module", "POST", "/v1/tasks", `{}`, nil, 400, module.CodeInvalidModuleID},
		{"bad module", "POST", "/v1/tasks", `{"module_id":"Bad"}`, nil, 400, module.CodeInvalidModuleID},
		{"unknown key", "POST", "/v1/tasks", `{"module_id":"a.b","modul":1}`, nil, 400, module.CodeInvalidInput},
		{"wrong type", "POST", "/v1/tasks", `{"module_id":"a.b","priority":"SECRET"}`, nil, 400, module.CodeInvalidInput},
		{"negative time", "POST", "/v1/tasks", `{"module_id":"a.b","timeouts":{"total_ms":-1}}`, nil, 400, module.CodeInvalidInput},
		{"no time", "POST", "/v1/tasks", `{"module_id":"a.b","run_at":"tomorrow"}`, nil, 400, module.CodeInvalidInput},
		{"a context of one's own", "POST", "/v1/tasks", `{"module_id":"a.b","context":{}}`, nil, 400, module.CodeInvalidInput},
		{"two keys", "POST", "/v1/tasks", `{"module_id":"a.b","idempotency_key":"x"}`, []string{"Idempotency-Key: y"}, 400, module.CodeInvalidInput},
		{"a key for many", "POST", "/v1/tasks", `{"tasks":[{"module_id":"a.b"}]}`, []string{"Idempotency-Key: y"}, 400, module.CodeInvalidInput},
		{"none", "POST", "/v1/tasks", `{"tasks":[]}`, nil, 400, module.CodeInvalidInput},
		{"unknown task", "GET", "/v1/tasks/nope", ``, nil, 404, module.CodeTaskNotFound},
		{"result of an unknown task", "GET", "/v1/tasks/nope/result", ``, nil, 404, module.CodeTaskNotFound},
		{"events of an unknown task", "GET", "/v1/tasks/nope/events", ``, nil, 404, module.CodeTaskNotFound},
		{"cancel of an unknown task", "DELETE", "/v1/tasks/nope", ``, nil, 404, module.CodeTaskNotFound},
		{"bad wait", "GET", "/v1/tasks/nope/result?wait=soon", ``, nil, 400, module.CodeInvalidInput},
		{"bad event", "GET", "/v1/tasks/nope/events", ``, []string{"Last-Event-ID: x"}, 400, module.CodeInvalidInput},
		{"bad status", "GET", "/v1/tasks?status=done", ``, nil, 400, module.CodeInvalidInput},
		{"bad detail", "GET", "/v1/tasks?detail=done", ``, nil, 400, module.CodeInvalidInput},
		{"bad limit", "GET", "/v1/tasks?limit=0", ``, nil, 400, module.CodeInvalidInput},
		{"bad order", "GET", "/v1/tasks?order=best", ``, nil, 400, module.CodeInvalidInput},
		{"bulk of everything", "POST", "/v1/tasks:bulk", `{"action":"cancel"}`, nil, 400, module.CodeInvalidInput},
		{"bulk as somebody else", "POST", "/v1/tasks:bulk", `{"action":"cancel","by":"ana","filter":{"module":"a.b"}}`, nil, 400, module.CodeInvalidInput},
		{"bad queue", "POST", "/v1/queues/Bad/pause", ``, nil, 400, module.CodeInvalidModuleID},
		{"bad reason", "POST", "/v1/queues/a.b/pause", `{"reason":5}`, nil, 400, module.CodeInvalidInput},
		{"unknown schedule", "GET", "/v1/schedules/nope", ``, nil, 404, module.CodeTaskScheduleNotFound},
		{"unknown schedule deleted", "DELETE", "/v1/schedules/nope", ``, nil, 404, module.CodeTaskScheduleNotFound},
		{"nonsense cron", "POST", "/v1/schedules", `{"name":"s","cron":"often","task":{"module_id":"a.b"}}`, nil, 400, module.CodeInvalidInput},
		{"two names", "POST", "/v1/schedules/s", `{"name":"z","cron":"@daily","task":{"module_id":"a.b"}}`, nil, 400, module.CodeInvalidInput},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res := request(t, tt.method, url+tt.path, tt.body, tt.headers...)
			res.wantFault(t, tt.status, tt.code)
			if strings.Contains(res.body, "SECRET") {
				t.Errorf("a value is quoted: %s", res.body)
			}
		})
	}
}

func TestManyTasks(t *testing.T) {
	url := serve(t, withTasks(t))
	res := request(t, "POST", url+"/v1/tasks", `{"tasks":[{"module_id":"idle.x","idempotency_key":"a"},{"module_id":"Bad"},{"module_id":"idle.x","idempotency_key":"b"}]}`)
	receipts, _ := res.fields(t)["receipts"].([]any)
	if res.status != 202 || len(receipts) != 3 {
		t.Fatalf("submit: %d %s", res.status, res.body)
	}
	first, second := receipts[0].(map[string]any), receipts[1].(map[string]any)
	if e, _ := second["error"].(map[string]any); first["task_id"] == nil || first["durability"] != "power-safe" || e["code"] != string(module.CodeInvalidModuleID) {
		t.Errorf("receipts: %s", res.body)
	}
	var seen []string
	for cursor := ""; ; {
		page := request(t, "GET", url+"/v1/tasks?module=idle.x&status=pending&limit=1&cursor="+cursor, "").fields(t)
		for _, item := range page["tasks"].([]any) {
			seen = append(seen, fmt.Sprint(item.(map[string]any)["idempotency_key"]))
		}
		if cursor, _ = page["next_cursor"].(string); cursor == "" {
			break
		}
	}
	if diff := cmp.Diff([]string{"a", "b"}, seen); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
	newest := request(t, "GET", url+"/v1/tasks?order=newest&limit=1", "").fields(t)["tasks"].([]any)[0].(map[string]any)
	if newest["idempotency_key"] != "b" {
		t.Errorf("newest: %v", newest)
	}
	const bulk = `{"action":"cancel","filter":{"module":"idle.x"},"dry_run":%v}`
	for _, dry := range []bool{true, false} {
		got := request(t, "POST", url+"/v1/tasks:bulk", fmt.Sprintf(bulk, dry)).fields(t)
		changed := int64(2)
		if dry {
			changed = 0
		}
		if got["matched"] != int64(2) || got["changed"] != changed || got["dry_run"] != dry || len(got["task_ids"].([]any)) != 2 {
			t.Errorf("bulk, dry %v: %v", dry, got)
		}
	}
	if left := request(t, "GET", url+"/v1/tasks?status=pending", "").fields(t); len(left["tasks"].([]any)) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestTaskEvents(t *testing.T) {
	url := serve(t, withTasks(t))
	id := submit(t, url, `{"module_id":"work.hold"}`)
	events, stop := follow(t, url, id, "")
	var last string
	for {
		e, err := readEvent(events)
		if err != nil {
			t.Fatal(err)
		}
		last = e.ID
		if e.Name == "transition" && strings.Contains(e.Data, `"running"`) || e.Name == "snapshot" && strings.Contains(e.Data, `"status":"running"`) {
			break
		}
	}
	stop() // and comes back with the last number it had
	request(t, "DELETE", url+"/v1/tasks/"+id, "")
	events, _ = follow(t, url, id, last)
	var names []string
	for {
		e, err := readEvent(events)
		if err != nil {
			break
		}
		if e.Name == "end" && !strings.Contains(e.Data, `"status":"cancelled"`) {
			t.Errorf("the end: %s", e.Data)
		}
		names = append(names, e.Name)
	}
	if n := len(names); n == 0 || names[n-1] != "end" || names[0] == "snapshot" {
		t.Errorf("events after %s: %q, want what came later, and the end", last, names)
	}
}

// follow opens the events of a task.
func follow(t *testing.T, url, id, last string) (*bufio.Reader, func()) {
	t.Helper()
	ctx, stop := context.WithTimeoutCause(t.Context(), 20*time.Second, errors.New("the events do not end"))
	t.Cleanup(stop)
	req, err := http.NewRequestWithContext(ctx, "GET", url+"/v1/tasks/"+id+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("events: %d %v", res.StatusCode, res.Header)
	}
	return bufio.NewReader(res.Body), stop
}

func TestResultsAreForWhoAskedAndForOperators(t *testing.T) {
	tasks := withTasks(t)
	as := func(name string, scopes ...gateway.Scope) string {
		return serve(t, tasks, func(o *gateway.Options) {
			o.Auth = grants{identity: module.NewIdentity(name, "user", nil, nil), scopes: scopes}
		})
	}
	ana, bob, ops := as("ana", gateway.ScopeCall), as("bob", gateway.ScopeCall), as("ops", gateway.ScopeCall, gateway.ScopeOperate)
	id := submit(t, ana, `{"module_id":"work.ok","inputs":{"n":1,"token":"abc"}}`)
	if res := request(t, "GET", ana+"/v1/tasks/"+id+"/result?wait=10s", ""); res.status != 200 {
		t.Errorf("ana: %d %s", res.status, res.body)
	}
	request(t, "GET", bob+"/v1/tasks/"+id+"/result", "").wantFault(t, 403, module.CodeACLDenied)
	if res := request(t, "GET", ops+"/v1/tasks/"+id+"/result", ""); res.status != 200 {
		t.Errorf("ops: %d %s", res.status, res.body)
	}
	request(t, "GET", ana+"/v1/tasks/"+id+"/inputs", "").wantFault(t, 403, module.CodeACLDenied)
	if res := request(t, "GET", ops+"/v1/tasks/"+id+"/inputs", ""); res.status != 200 || inOrder(t, res.body) != `{"n":1,"token":"abc"}` {
		t.Errorf("raw inputs: %d %s", res.status, res.body)
	}
	if res := request(t, "GET", bob+"/v1/tasks/"+id, ""); !strings.Contains(res.body, `"actor":"ops"`) {
		t.Errorf("the reading is not recorded: %s", res.body)
	}
}

func TestQueuesAndSchedules(t *testing.T) {
	url := serve(t, withTasks(t))
	if got := request(t, "POST", url+"/v1/queues/idle.x/pause", `{"reason":"maintenance"}`).fields(t); got["paused"] != true || got["reason"] != "maintenance" {
		t.Errorf("pause: %v", got)
	}
	id := submit(t, url, `{"module_id":"idle.x"}`)
	if r := request(t, "GET", url+"/v1/tasks/"+id, "").fields(t); r["blocked_by"] != "queue is paused" {
		t.Errorf("a task of a paused queue: %v", r)
	}
	queues := request(t, "GET", url+"/v1/queues", "").fields(t)["queues"].([]any)
	if len(queues) != 1 || queues[0].(map[string]any)["queued"] != int64(1) {
		t.Errorf("queues: %v", queues)
	}
	if got := request(t, "POST", url+"/v1/queues/idle.x/limits", `{"concurrency":3}`).fields(t); got["concurrency"] != int64(3) || got["paused"] != true {
		t.Errorf("limit: %v", got)
	}
	if got := request(t, "POST", url+"/v1/queues/idle.x/limits", `{"key_concurrency":2}`).fields(t); got["concurrency"] != int64(3) || got["key_concurrency"] != int64(2) {
		t.Errorf("limit of a key: %v", got)
	}
	if got := request(t, "POST", url+"/v1/queues/idle.x/resume", ``).fields(t); got["paused"] != false {
		t.Errorf("resume: %v", got)
	}

	const spec = `{"name":"nightly","cron":"0 3 * * *","time_zone":"Europe/Berlin","task":{"module_id":"idle.x","inputs":{"password":"SECRET"}}}`
	if res := request(t, "POST", url+"/v1/schedules", spec); res.status != 201 || res.fields(t)["next_at"] == nil || strings.Contains(res.body, "SECRET") {
		t.Errorf("create: %d %s", res.status, res.body)
	}
	request(t, "POST", url+"/v1/schedules", spec).wantFault(t, 409, module.CodeTaskScheduleExists)
	if res := request(t, "POST", url+"/v1/schedules/nightly", `{"cron":"@hourly","task":{"module_id":"idle.x"}}`); res.status != 200 || res.fields(t)["cron"] != "@hourly" {
		t.Errorf("replace: %d %s", res.status, res.body)
	}
	if res := request(t, "GET", url+"/v1/schedules/nightly", ""); res.status != 200 || res.fields(t)["name"] != "nightly" {
		t.Errorf("show: %d %s", res.status, res.body)
	}
	if list := request(t, "GET", url+"/v1/schedules", "").fields(t)["schedules"].([]any); len(list) != 1 {
		t.Errorf("list: %v", list)
	}
	if res := request(t, "DELETE", url+"/v1/schedules/nightly", ""); res.status != 200 || res.body != `{"deleted":true,"name":"nightly"}` {
		t.Errorf("delete: %d %s", res.status, res.body)
	}
}

// inOrder is a JSON object with its keys in order, which those of a module's output
// are not.
func inOrder(t *testing.T, text string) string {
	t.Helper()
	v, err := contextwire.DecodeMap(contextwire.JSON, []byte(text), contextwire.Limits{})
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	raw, err := contextwire.EncodeCanonical(contextwire.JSON, v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
