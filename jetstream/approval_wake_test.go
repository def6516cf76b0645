package jetstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// office is a place where tasks need a person: a node that runs them, a writer that
// may come and go, and a desk.
type office struct {
	t      *testing.T
	js     jetstream.JetStream
	calls  *nats.Conn
	desk   *approval.Durable
	store  *durable.ApprovalStore
	client *durable.TaskClient
	asked  chan string // IDs of requests
	ran    atomic.Int32
}

const gated = "pay.refund"

func withOffice(t *testing.T, desk approval.Options, test func(t *testing.T, srv *natstest.Server, o *office)) {
	t.Helper()
	natstest.Bubble(t, func(t *testing.T) {
		srv := natstest.New(t, natstest.Options{})
		defer srv.Close()
		js := srv.JetStream()
		defer js.Conn().Close()
		store, err := durable.OpenApprovals(t.Context(), js, durable.ApprovalOptions{Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		desk.Logger = quiet()
		o := &office{t: t, js: js, store: store, desk: approval.NewDurable(store, desk), asked: make(chan string, 16)}
		o.calls = srv.Connect(nats.ReconnectBufSize(-1), nats.PingInterval(time.Hour))
		defer o.calls.Close()
		o.client, err = durable.NewTaskClient(durable.ClientOptions{Options: durable.Options{JS: js, Logger: quiet()}, Requests: o.calls})
		if err != nil {
			t.Fatal(err)
		}
		defer o.client.Close()
		w, err := task.NewWorker(o.client, task.InvokerFunc(o.gate), task.WorkerOptions{
			Node: "n1", Modules: func() []string { return []string{gated, "outer"} }, Logger: quiet(),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { _ = w.Run(ctx) })
		test(t, srv, o)
		stop()
		wg.Wait()
	})
}

// gate is the approval gate with a module behind it that counts. The module named
// outer has no gate and calls one that has.
func (o *office) gate(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
	inputs, token, present, err := approval.StripToken(req.Inputs)
	if err != nil {
		return nil, err
	}
	c := req.Context.Child(req.ModuleID)
	ctx = module.WithContext(ctx, c)
	asks := gated
	if req.ModuleID == "outer" {
		c = c.Child(gated)
		ctx = module.WithContext(ctx, c)
	}
	r := &approval.Request{ModuleID: asks, Action: asks, Arguments: inputs, Context: c, CallerID: c.CallerID()}
	var result *approval.Result
	if present {
		result, err = o.desk.CheckApproval(ctx, token, r)
	} else {
		result, err = o.desk.RequestApproval(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	if refusal := result.Err(asks); refusal != nil {
		if result.Status == approval.Pending {
			o.asked <- result.ApprovalID
		}
		return nil, refusal
	}
	n := o.ran.Add(1)
	if inputs["fail"] == float64(n) || inputs["fail"] == int64(n) {
		return nil, module.Errorf(module.CodeModuleExecuteError, "the module fails")
	}
	return &contextwire.Reply{Output: map[string]any{"refunds": int64(n)}}, nil
}

// lead runs a writer until the returned func is called.
func (o *office) lead() (stop func()) {
	o.t.Helper()
	ctx, end := context.WithCancelCause(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		err := durable.RunTasks(ctx, durable.TasksOptions{
			Options: durable.Options{JS: o.js, Logger: quiet()}, Requests: o.calls, Approvals: o.store,
			NewWriter: func(log *durable.Log, signal func(task.Signal)) (durable.LeadingWriter, error) {
				return task.NewWriter(log, task.WriterOptions{Signal: signal, Leading: log.Leading, Decided: o.store.Decided, Logger: quiet()})
			},
		})
		if err != nil {
			o.t.Errorf("RunTasks: %v", err)
		}
	})
	return func() { end(errors.New("the router stops")); wg.Wait() }
}

// submit submits a task and waits until it waits for a person.
func (o *office) submit(moduleID string, s task.Submission) (id, request string) {
	o.t.Helper()
	s.ModuleID = moduleID
	answer, err := o.client.Submit(o.t.Context(), task.SubmitRequest{Tasks: []task.Submission{s}})
	if err != nil || answer.Receipts[0].Error != nil {
		o.t.Fatalf("submit: %v, %+v", err, answer)
	}
	return answer.Receipts[0].TaskID, <-o.asked
}

// waiting checks that a task waits and holds nothing.
func (o *office) waiting(id string) {
	o.t.Helper()
	time.Sleep(time.Second) //archtest:real-time not real: every use is inside a bubble
	r, err := o.client.Get(o.t.Context(), id)
	if err != nil || r.Status != task.Pending || r.Detail != task.AwaitingApproval || r.Attempt != 0 || r.Lease != nil {
		o.t.Fatalf("task %+v, %v; want one that awaits approval and holds nothing", r, err)
	}
}

func (o *office) decide(request string, approve bool) {
	o.t.Helper()
	d := approval.Decision{Approve: approve, By: module.NewIdentity("bob", "user", nil, nil), Reason: "because"}
	if _, err := o.desk.Decide(o.t.Context(), request, d); err != nil {
		o.t.Fatalf("decide: %v", err)
	}
}

// ended checks how a task ended, and that it took no longer than limit from now on.
func (o *office) ended(id string, want task.Status, code module.Code, runs int32, limit time.Duration) {
	o.t.Helper()
	began := time.Now()
	res, err := o.client.Result(o.t.Context(), task.ResultRequest{TaskID: id, WaitMS: 300_000})
	if err != nil || res.Status != want || res.Error.Code() != code || o.ran.Load() != runs {
		o.t.Errorf("task ended %s with %q after %d runs, %v; want %s with %q after %d", res.Status, res.Error.Code(), o.ran.Load(), err, want, code, runs)
	}
	if took := time.Since(began); took > limit {
		o.t.Errorf("it ended after %v, want %v", took, limit)
	}
}

// A decision wakes the task that waits for it, wherever it was made and whether
// somebody led at the time (durable design, section 2).
func TestDecisionsWakeTasks(t *testing.T) {
	tests := []struct {
		name    string
		desk    approval.Options
		approve bool
		// away is true when nobody leads while it is decided.
		away bool
		// decided is false when time decides.
		undecided bool
		want      task.Status
		code      module.Code
		runs      int32
		limit     time.Duration
	}{
		{name: "approved", approve: true, want: task.Completed, runs: 1, limit: time.Second},
		{name: "approved though calls would be held", desk: approval.Options{Wait: time.Hour}, approve: true, want: task.Completed, runs: 1, limit: time.Second},
		{name: "rejected", want: task.Failed, code: module.CodeApprovalDenied, limit: time.Second},
		{name: "approved while nobody leads", approve: true, away: true, want: task.Completed, runs: 1, limit: 3 * time.Second},
		{name: "rejected while nobody leads", away: true, want: task.Failed, code: module.CodeApprovalDenied, limit: 3 * time.Second},
		{name: "expired", desk: approval.Options{Expiry: time.Minute}, undecided: true, want: task.Failed, code: module.CodeApprovalTimeout, limit: 91 * time.Second},
		{name: "expired while nobody leads", desk: approval.Options{Expiry: time.Minute}, undecided: true, away: true,
			want: task.Failed, code: module.CodeApprovalTimeout, limit: 3 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			withOffice(t, tt.desk, func(t *testing.T, _ *natstest.Server, o *office) {
				stop := o.lead()
				id, request := o.submit(gated, task.Submission{Inputs: json.RawMessage(`{"n":1}`)})
				o.waiting(id)
				if tt.away {
					stop()
					time.Sleep(2 * time.Minute) //archtest:real-time not real: every use is inside a bubble
				}
				if !tt.undecided {
					o.decide(request, tt.approve)
				}
				if tt.away {
					stop = o.lead()
				}
				defer stop()
				o.ended(id, tt.want, tt.code, tt.runs, tt.limit)
			})
		})
	}
}

// A decision that comes while the report of the attempt is under way is not missed,
// nor one that comes while the server is away.
func TestDecisionsAtBadMomentsWakeTasks(t *testing.T) {
	withOffice(t, approval.Options{}, func(t *testing.T, srv *natstest.Server, o *office) {
		stop := o.lead()
		defer func() { stop() }()
		id, request := o.submit(gated, task.Submission{})
		o.decide(request, true) // the task may not wait yet
		o.ended(id, task.Completed, "", 1, 31*time.Second)

		id, request = o.submit(gated, task.Submission{})
		o.waiting(id)
		srv.Stop()
		time.Sleep(3 * time.Second) //archtest:real-time not real: every use is inside a bubble
		srv.Start()
		time.Sleep(5 * time.Second) //archtest:real-time not real: every use is inside a bubble
		o.decide(request, true)
		o.ended(id, task.Completed, "", 2, 62*time.Second)
	})
}

// An approval is good for one attempt: the next asks again.
func TestRetriesAskAgain(t *testing.T) {
	withOffice(t, approval.Options{}, func(t *testing.T, _ *natstest.Server, o *office) {
		stop := o.lead()
		defer stop()
		retry := &task.RetryOptions{MaxRetries: new(1)}
		id, request := o.submit(gated, task.Submission{Inputs: json.RawMessage(`{"fail":1}`), Retry: retry})
		o.waiting(id)
		o.decide(request, true)
		again := <-o.asked
		if again == request {
			t.Error("the second attempt waits for the same request")
		}
		o.decide(again, true)
		o.ended(id, task.Completed, "", 2, 31*time.Second)
	})
}

// What waits is a module that the task's own called: that one has run, and waking it
// would run it twice.
func TestNestedApprovalEndsTheTask(t *testing.T) {
	withOffice(t, approval.Options{}, func(t *testing.T, _ *natstest.Server, o *office) {
		stop := o.lead()
		defer stop()
		id, _ := o.submit("outer", task.Submission{})
		o.ended(id, task.Failed, module.CodeApprovalPending, 0, time.Second)
	})
}

// A request that is nowhere does not hold a task for ever.
func TestLostRequestsEndTheirTasks(t *testing.T) {
	withOffice(t, approval.Options{}, func(t *testing.T, _ *natstest.Server, o *office) {
		stop := o.lead()
		defer stop()
		o.desk = approval.NewMemory(approval.Options{Logger: quiet()}) // of a node with --approvals memory
		id, _ := o.submit(gated, task.Submission{})
		o.waiting(id)
		o.ended(id, task.Failed, module.CodeApprovalTimeout, 0, 3*time.Minute)
	})
}
