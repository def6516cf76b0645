package integration_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/task"
)

// taskClient asks the writer of the tasks from outside the processes.
func taskClient(t *testing.T, url string) *jetstream.TaskClient {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := natsjs.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	client, err := jetstream.NewTaskClient(jetstream.ClientOptions{Options: jetstream.Options{JS: js}, Patience: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// submitTasks submits one task of each inputs and returns their IDs.
func submitTasks(t *testing.T, client *jetstream.TaskClient, moduleID string, inputs ...string) []string {
	t.Helper()
	req := task.SubmitRequest{}
	for i, in := range inputs {
		req.Tasks = append(req.Tasks, task.Submission{
			ModuleID: moduleID, Inputs: json.RawMessage(in), IdempotencyKey: fmt.Sprintf("%s %s %d", t.Name(), in, i),
		})
	}
	answer, err := client.Submit(t.Context(), req)
	if err != nil {
		t.Fatalf("submit: %v", err)
	}
	ids := make([]string, len(inputs))
	for i, v := range answer.Receipts {
		if v.Error != nil {
			t.Fatalf("task %d: %v", i, v.Error.Err())
		}
		ids[i] = v.TaskID
	}
	return ids
}

func taskOutput(t *testing.T, client *jetstream.TaskClient, id string) map[string]any {
	t.Helper()
	res, err := client.Result(t.Context(), task.ResultRequest{TaskID: id, WaitMS: 60_000})
	if err != nil {
		t.Fatalf("result of %s: %v", id, err)
	}
	if res.Status != task.Completed {
		t.Fatalf("task %s is %s, %v", id, res.Status, res.Error.Err())
	}
	var out map[string]any
	if err := json.Unmarshal(res.Output, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestTasksRunOnNodes submits tasks and finds each done once, by the nodes that host
// its module.
func TestTasksRunOnNodes(t *testing.T) {
	t.Parallel()
	s, _, n2 := startPair(t)
	client := taskClient(t, s.nats)
	var sums []string
	for i := range 40 {
		sums = append(sums, fmt.Sprintf(`{"a":%d,"b":1}`, i))
	}
	for i, id := range submitTasks(t, client, "math.add", sums...) {
		if out := taskOutput(t, client, id); out["sum"] != float64(i+1) {
			t.Errorf("sum of task %d = %v", i, out)
		}
	}
	who := taskOutput(t, client, submitTasks(t, client, "far.whoami", `{}`)[0])
	if who["node"] != n2.id || who["attempt"] != float64(1) {
		t.Errorf("far.whoami as a task = %v", who)
	}
	for _, id := range submitTasks(t, client, "demo.effect", `{"key":"a"}`, `{"key":"b"}`, `{"key":"c"}`) {
		taskOutput(t, client, id)
	}
	if lines := s.effectLines(); len(lines) != 3 {
		t.Errorf("effects = %q, want 3", lines)
	}
	// Cancelled on whatever node it runs.
	id := submitTasks(t, client, "demo.sleep", `{"ms":60000}`)[0]
	eventually(t, startLimit, "the task runs", func() bool {
		rec, err := client.Get(t.Context(), id)
		return err == nil && rec.Status == task.Running
	})
	if a, err := client.Cancel(t.Context(), task.CancelAsk{TaskID: id, By: "ana"}); err != nil || a.State != task.CancelAccepted {
		t.Errorf("cancel = %+v, %v", a, err)
	}
	if res, err := client.Result(t.Context(), task.ResultRequest{TaskID: id, WaitMS: 10_000}); err != nil || res.Status != task.Cancelled {
		t.Errorf("after the cancel: %+v, %v", res.Status, err)
	}
}

// TestTasksOutliveTheSystem kills router, server and node with tasks waiting: what
// was acknowledged is done when they are back.
func TestTasksOutliveTheSystem(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	flags := []string{"--embed-listen", "127.0.0.1:0", "--data", filepath.Join(s.dir, "nats"), "--durability", "power-safe"}
	router := s.startRouter(flags...)
	client := taskClient(t, s.nats)
	var inputs []string
	for i := range 100 {
		inputs = append(inputs, fmt.Sprintf(`{"a":%d,"b":1}`, i))
	}
	ids := submitTasks(t, client, "math.add", inputs...)
	router.kill()
	s.startRouter(flags...)
	s.startNode("n1", "math")
	client = taskClient(t, s.nats)
	for i, id := range ids {
		if out := taskOutput(t, client, id); out["sum"] != float64(i+1) {
			t.Errorf("sum of task %d = %v", i, out)
		}
	}
	if again := submitTasks(t, client, "math.add", inputs...); again[0] != ids[0] || again[99] != ids[99] {
		t.Error("a task that was submitted again with its key is another one")
	}
}

// TestTakeoverOfKilledWriter kills the router that writes the tasks, with another one
// there: it goes on within three seconds, and the nodes lose no finished work.
func TestTakeoverOfKilledWriter(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := newSystem(t)
	first := s.startRouter("--nats", server.url)
	client := taskClient(t, server.url)
	submitTasks(t, client, "math.add", `{"a":1,"b":1}`) // the first leads
	s.startRouter("--nats", server.url)
	s.startNode("n1", "math,demo")
	slow := submitTasks(t, client, "demo.effect", `{"key":"slow","ms":1500}`)[0]
	eventually(t, startLimit, "the task runs", func() bool {
		rec, err := client.Get(t.Context(), slow)
		return err == nil && rec.Status == task.Running
	})
	first.kill()
	began := time.Now()
	quick := submitTasks(t, client, "math.add", `{"a":2,"b":2}`)[0]
	t.Logf("the next writer answered after %v", time.Since(began))
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the next writer answered after %v, want 3 s and what a busy machine adds", took)
	}
	if out := taskOutput(t, client, quick); out["sum"] != 4.0 {
		t.Errorf("a task after the takeover = %v", out)
	}
	taskOutput(t, client, slow)
	if lines := s.effectLines(); len(lines) != 1 {
		t.Errorf("effects = %q, want 1", lines)
	}
}
