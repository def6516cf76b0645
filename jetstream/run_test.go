package jetstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// router is a process that takes part in the election and asks the writer.
type router struct {
	t      *testing.T
	client *durable.TaskClient
	stop   func() // softly
	kill   func() // as if its process had ended
}

// runRouter starts one on a connection of its own; way is how it reaches the
// server.
func runRouter(t *testing.T, way nats.InProcessConnProvider, o durable.Options, change ...func(*task.WriterOptions)) *router {
	t.Helper()
	return runRouterOver(t, way, way, o, change...)
}

// runRouterOver is runRouter with a way to the log and one for requests.
func runRouterOver(t *testing.T, logWay, callWay nats.InProcessConnProvider, o durable.Options, change ...func(*task.WriterOptions)) *router {
	t.Helper()
	return runRouterWith(t, logWay, callWay, o, func(log *durable.Log, wo task.WriterOptions) (durable.LeadingWriter, error) {
		for _, f := range change {
			f(&wo)
		}
		return task.NewWriter(log, wo)
	})
}

// runRouterWith is runRouterOver with a way to make the writer.
func runRouterWith(t *testing.T, logWay, callWay nats.InProcessConnProvider, o durable.Options,
	newWriter func(log *durable.Log, wo task.WriterOptions) (durable.LeadingWriter, error),
) *router {
	t.Helper()
	connect := func(way nats.InProcessConnProvider) *nats.Conn {
		nc, err := nats.Connect("", nats.InProcessServer(way), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
			nats.ReconnectJitter(0, 0), nats.ReconnectBufSize(-1), nats.PingInterval(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		return nc
	}
	durableConn, calls := connect(logWay), connect(callWay)
	js, err := jetstream.New(durableConn)
	if err != nil {
		t.Fatal(err)
	}
	o.JS = js
	ctx, stop := context.WithCancelCause(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		err := durable.RunTasks(ctx, durable.TasksOptions{
			Options: o, Requests: calls,
			NewWriter: func(log *durable.Log, signal func(task.Signal)) (durable.LeadingWriter, error) {
				return newWriter(log, task.WriterOptions{
					Namespace: o.Namespace, Durability: string(log.Durability()), Signal: signal, Leading: log.Leading, Logger: quiet(),
				})
			},
		})
		if err != nil {
			t.Errorf("RunTasks: %v", err)
		}
	})
	client, err := durable.NewTaskClient(durable.ClientOptions{Options: o, Requests: calls})
	if err != nil {
		t.Fatal(err)
	}
	r := &router{t: t, client: client}
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			stop(errors.New("the router stops"))
			wg.Wait()
			client.Close()
			durableConn.Close()
			calls.Close()
		})
	}
	r.kill = func() {
		once.Do(func() {
			durableConn.Close()
			calls.Close()
			client.Close()
			stop(errors.New("killed"))
			wg.Wait()
		})
	}
	return r
}

// submit submits one task and returns its receipt.
func (r *router) submit(moduleID, key string, inputs string) *task.Receipt {
	r.t.Helper()
	answer, err := r.client.Submit(r.t.Context(), task.SubmitRequest{Tasks: []task.Submission{{
		ModuleID: moduleID, IdempotencyKey: key, Inputs: json.RawMessage(inputs),
	}}})
	if err != nil {
		r.t.Fatalf("Submit: %v", err)
	}
	if len(answer.Receipts) != 1 || answer.Receipts[0].Error != nil {
		r.t.Fatalf("Submit = %+v", answer)
	}
	return answer.Receipts[0].Receipt
}

// claim claims what there is, waiting for it.
func (r *router) claim(slots int, modules ...string) []task.Grant {
	r.t.Helper()
	answer, err := r.client.Claim(r.t.Context(), task.ClaimRequest{Node: "n1", Boot: "b1", Modules: modules, Slots: slots, WaitMS: 30_000})
	if err != nil {
		r.t.Fatalf("Claim: %v", err)
	}
	return answer.Grants
}

// run starts what was granted and finishes it.
func (r *router) run(g task.Grant, output string) {
	r.t.Helper()
	if g.Confirm {
		if a, err := r.client.Start(r.t.Context(), task.StartRequest{Node: "n1", Refs: []task.LeaseRef{g.LeaseRef}}); err != nil || a.Verdicts[0].Lost {
			r.t.Fatalf("Start = %+v, %v", a, err)
		}
	}
	a, err := r.client.Finish(r.t.Context(), task.FinishReport{
		LeaseRef: g.LeaseRef, Node: "n1", Outcome: task.OutcomeCompleted, Result: json.RawMessage(output),
	})
	if err != nil || a.Status != task.Completed {
		r.t.Fatalf("Finish = %+v, %v", a, err)
	}
}

func (r *router) result(id string) task.Result {
	r.t.Helper()
	res, err := r.client.Result(r.t.Context(), task.ResultRequest{TaskID: id, WaitMS: 60_000})
	if err != nil {
		r.t.Fatalf("Result: %v", err)
	}
	return res
}

func TestTaskFromSubmitToResult(t *testing.T) {
	inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
		one := runRouter(t, s, o)
		defer one.stop()
		two := runRouter(t, s, o)
		defer two.stop()
		receipt := two.submit("math.add", "", `{"a":1,"b":2}`)
		if receipt.Durability != string(o.Durability) || receipt.Status != task.Pending {
			t.Errorf("receipt = %+v", receipt)
		}
		res, err := one.client.Result(t.Context(), task.ResultRequest{TaskID: receipt.TaskID, WaitMS: 8000})
		if err != nil || res.Status != task.Pending {
			t.Errorf("Result before the end = %+v, %v", res, err)
		}
		waited := make(chan task.Result, 1)
		go func() { waited <- one.result(receipt.TaskID) }()
		grants := two.claim(4, "math.add")
		if len(grants) != 1 || string(grants[0].Inputs) != `{"a":1,"b":2}` {
			t.Fatalf("grants = %+v", grants)
		}
		two.run(grants[0], `{"sum":3}`)
		if res := <-waited; res.Status != task.Completed || string(res.Output) != `{"sum":3}` {
			t.Errorf("result = %+v", res)
		}
		events, err := one.client.Events(t.Context(), task.EventsRequest{TaskID: receipt.TaskID})
		if err != nil || !events.Ended {
			t.Errorf("Events = %+v, %v", events, err)
		}
	})
}

// Errors of the writer arrive as they are, with code and details.
func TestErrorsRoundTrip(t *testing.T) {
	inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
		r := runRouter(t, s, o)
		defer r.stop()
		r.submit("math.add", "k1", `{"a":1}`)
		_, err := r.client.Get(t.Context(), "no such task")
		wantRemote(t, err, module.CodeTaskNotFound)
		_, err = r.client.Schedule(t.Context(), "none")
		wantRemote(t, err, module.CodeTaskScheduleNotFound)
		_, err = r.client.Bulk(t.Context(), task.BulkRequest{Action: "explode"})
		wantRemote(t, err, module.CodeInvalidInput)
		_, err = r.client.Finish(t.Context(), task.FinishReport{LeaseRef: task.LeaseRef{TaskID: "x", Attempt: 1, Epoch: 1}, Outcome: "completed", Result: json.RawMessage(`{}`)})
		if err == nil {
			t.Error("Finish of nothing: no error")
		}
		answer, err := r.client.Submit(t.Context(), task.SubmitRequest{Tasks: []task.Submission{
			{ModuleID: "math.add", IdempotencyKey: "k1", Inputs: json.RawMessage(`{"a":2}`)},
			{ModuleID: "Not An ID"},
			{ModuleID: "math.add", IdempotencyKey: "k1", Inputs: json.RawMessage(`{"a":1}`)},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if code := answer.Receipts[0].Error.Code(); code != module.CodeTaskKeyConflict {
			t.Errorf("conflicting key: %s", code)
		}
		if code := answer.Receipts[1].Error.Code(); code != module.CodeInvalidModuleID {
			t.Errorf("bad ID: %s", code)
		}
		if answer.Receipts[2].Receipt == nil || !answer.Receipts[2].Deduplicated {
			t.Errorf("same key and inputs: %+v", answer.Receipts[2])
		}
	})
}

func wantRemote(t *testing.T, err error, code module.Code) {
	t.Helper()
	e := module.AsError(err)
	if e == nil || e.Code != code || !e.Remote {
		t.Errorf("error = %v, want %s of the writer", err, code)
	}
}

// Every method of the writer can be asked for over the bus.
func TestEveryVerb(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t, natstest.Options{})
		defer s.Close()
		r := runRouter(t, s, durable.Options{Durability: durable.ProcessSafe, Logger: quiet()})
		defer r.stop()
		ctx, c := t.Context(), r.client
		must := func(what string, err error) {
			t.Helper()
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		id := r.submit("math.add", "", `{"a":1}`).TaskID
		g := r.claim(1, "math.add")[0]
		_, err := c.Start(ctx, task.StartRequest{Node: "n1", Refs: []task.LeaseRef{g.LeaseRef}})
		must("Start", err)
		v, err := c.Renew(ctx, task.RenewRequest{Node: "n1", Refs: []task.LeaseRef{g.LeaseRef, {TaskID: id, Attempt: 9, Epoch: 9}}})
		must("Renew", err)
		if len(v.Verdicts) != 2 || v.Verdicts[0].Lost || !v.Verdicts[1].Lost {
			t.Errorf("Renew = %+v", v)
		}
		must("Progress", c.Progress(ctx, task.ProgressReport{LeaseRef: g.LeaseRef, Done: 1, Total: 2}))
		must("Checkpoint", c.Checkpoint(ctx, task.CheckpointReport{LeaseRef: g.LeaseRef, Checkpoint: json.RawMessage(`{"at":1}`)}))
		cancelled, err := c.Cancel(ctx, task.CancelAsk{TaskID: id, By: "ana", Reason: "enough"})
		must("Cancel", err)
		if cancelled.State != task.CancelAccepted {
			t.Errorf("Cancel = %+v", cancelled)
		}
		_, err = c.Finish(ctx, task.FinishReport{LeaseRef: g.LeaseRef, Node: "n1", Outcome: task.OutcomeFailed, Error: task.Fail(errors.New("x"))})
		must("Finish", err)
		rec, err := c.Get(ctx, id)
		must("Get", err)
		if rec.Status != task.Cancelled || rec.CancelRequested == nil || rec.CancelRequested.By != "ana" {
			t.Errorf("Get = %+v", rec)
		}
		_, err = c.Retry(ctx, task.ActAsk{TaskID: id, By: "ana"})
		must("Retry", err)
		g = r.claim(1, "math.add")[0]
		must("Release", c.Release(ctx, task.ReleaseRequest{Node: "n1", Refs: []task.LeaseRef{g.LeaseRef}}))
		page, err := c.List(ctx, task.ListRequest{Filter: task.Filter{ModuleID: "math.add"}})
		must("List", err)
		if len(page.Tasks) != 1 {
			t.Errorf("List = %+v", page)
		}
		raw, err := c.RawInputs(ctx, id, "ana")
		must("RawInputs", err)
		if string(raw) != `{"a":1}` {
			t.Errorf("RawInputs = %s", raw)
		}
		_, err = c.Pause(ctx, "math.add", "ana", "lunch")
		must("Pause", err)
		_, err = c.Resume(ctx, "math.add", "ana")
		must("Resume", err)
		q, err := c.SetQueue(ctx, "math.add", task.QueueSettings{Concurrency: 3})
		must("SetQueue", err)
		if q.Concurrency != 3 {
			t.Errorf("SetQueue = %+v", q)
		}
		q, err = c.LimitQueue(ctx, "math.add", task.QueueLimits{KeyConcurrency: new(2)})
		must("LimitQueue", err)
		if q.Concurrency != 3 || q.KeyConcurrency != 2 {
			t.Errorf("LimitQueue = %+v", q)
		}
		queues, err := c.Queues(ctx)
		must("Queues", err)
		if len(queues) != 1 {
			t.Errorf("Queues = %+v", queues)
		}
		_, err = c.PutSchedule(ctx, task.ScheduleSpec{Name: "nightly", Cron: "0 3 * * *", Task: task.Submission{ModuleID: "math.add"}}, "ana", false)
		must("PutSchedule", err)
		_, err = c.Schedule(ctx, "nightly")
		must("Schedule", err)
		list, err := c.Schedules(ctx)
		must("Schedules", err)
		if len(list) != 1 {
			t.Errorf("Schedules = %+v", list)
		}
		must("DeleteSchedule", c.DeleteSchedule(ctx, "nightly"))
		_, err = c.Wake(ctx, task.WakeAsk{ApprovalID: "a", Decision: task.DecisionApproved})
		must("Wake", err)
		bulk, err := c.Bulk(ctx, task.BulkRequest{Action: task.ActionCancel, Filter: task.Filter{ModuleID: "math.add"}, By: "ana"})
		must("Bulk", err)
		if bulk.Changed != 1 {
			t.Errorf("Bulk = %+v", bulk)
		}
		_, err = c.Requeue(ctx, task.ActAsk{TaskID: id, By: "ana"})
		if module.CodeOf(err) != module.CodeTaskStateConflict {
			t.Errorf("Requeue of a cancelled task = %v", err)
		}
		must("Delete", c.Delete(ctx, id, "ana"))
	})
}

// What no message holds goes through the object store, both ways.
func TestLargeBodies(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t, natstest.Options{})
		defer s.Close()
		r := runRouter(t, s, durable.Options{Durability: durable.ProcessSafe, Logger: quiet()})
		defer r.stop()
		// A request of 20 MB.
		inputs := `{"text":"` + strings.Repeat("x", 400<<10) + `"}`
		req := task.SubmitRequest{}
		for range 50 {
			req.Tasks = append(req.Tasks, task.Submission{ModuleID: "text.wordcount", Inputs: json.RawMessage(inputs)})
		}
		answer, err := r.client.Submit(t.Context(), req)
		if err != nil {
			t.Fatalf("Submit: %v", err)
		}
		for i, v := range answer.Receipts {
			if v.Error != nil {
				t.Fatalf("task %d: %v", i, v.Error)
			}
		}
		// An answer of 2 MB.
		grants := r.claim(5, "text.wordcount")
		if len(grants) != 5 {
			t.Fatalf("%d grants, want 5", len(grants))
		}
		for i, g := range grants {
			if string(g.Inputs) != inputs {
				t.Fatalf("inputs of grant %d changed", i)
			}
		}
		for i, size := range []int{10, 40 << 10, 500 << 10, 5 << 20} {
			output := fmt.Sprintf(`{"n":%d,"text":"%s"}`, i, strings.Repeat("y", size))
			r.run(grants[i], output)
			res := r.result(grants[i].TaskID)
			if res.Status != task.Completed || string(res.Output) != output {
				t.Errorf("output of %d bytes: %s, %d bytes, ref %+v", size, res.Status, len(res.Output), res.Ref)
			}
		}
		// Bodies are removed by whoever read them last.
		pass(5 * time.Second)
		nc := s.Connect()
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		for bucket, want := range map[string]int{"APBUS_TASKS_BODIES": 0, "APBUS_TASKS_RESULTS": 1} {
			os, err := js.ObjectStore(t.Context(), bucket)
			if err != nil {
				t.Fatalf("%s: %v", bucket, err)
			}
			list, err := os.List(t.Context())
			if err != nil && !errors.Is(err, jetstream.ErrNoObjectsFound) {
				t.Fatal(err)
			}
			if len(list) != want {
				t.Errorf("%s holds %d objects, want %d", bucket, len(list), want)
			}
		}
	})
}
