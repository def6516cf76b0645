package task_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

// ends collects the evidence of attempts.
type ends struct {
	mu   sync.Mutex
	list []*contextwire.Evidence
}

func (e *ends) keep(o *task.WriterOptions) {
	o.Evidence = func(ev *contextwire.Evidence) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.list = append(e.list, ev)
	}
}

// shown are the records in short, and each must have a form.
func (e *ends) shown(t *testing.T) []string {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []string
	for _, ev := range e.list {
		if _, err := contextwire.EncodeEvidence(ev); err != nil {
			t.Errorf("%+v: %v", ev, err)
		}
		if ev.Type != contextwire.EvidenceTask || ev.TaskID == "" || ev.Call == "" || ev.Attempt != ev.TaskAttempt || ev.By == "" || ev.At.IsZero() {
			t.Errorf("record %+v", ev)
		}
		out = append(out, fmt.Sprint(ev.TaskAttempt, " ", ev.Outcome, " ", ev.Code, " ", ev.Text, " ", ev.Duration))
	}
	return out
}

// Every attempt that started leaves one record, however it ends (durable design,
// section 3).
func TestEvidenceOfEveryAttempt(t *testing.T) {
	finish := func(f *fixture, g task.Grant, outcome string) {
		f.t.Helper()
		rep := task.FinishReport{LeaseRef: g.LeaseRef, Node: "n1", Outcome: outcome, Cause: "shutdown"}
		if _, err := f.Finish(context.Background(), rep); err != nil {
			f.t.Fatalf("finish: %v", err)
		}
	}
	broken := module.Errorf("BROKEN", "no").WithRetryable(module.True)
	tests := []struct {
		name string
		run  func(f *fixture)
		want []string
	}{
		{"completed, reported twice", func(f *fixture) {
			f.submit(task.Submission{ModuleID: "job.effect"})
			g := f.run("n1", "job.effect")
			wait(2 * time.Second)
			f.succeed(g, `{}`)
			f.succeed(g, `{}`)
		}, []string{"1 ok   2s"}},
		{"failed and tried again", func(f *fixture) {
			f.submit(task.Submission{ModuleID: "job.safe", Retry: &task.RetryOptions{MaxRetries: ptr(1), RetryDelayMS: ptr(int64(1000))}})
			g := f.run("n1", "job.safe")
			wait(time.Second)
			f.fail(g, broken)
			wait(5 * time.Second)
			g = f.run("n1", "job.safe")
			wait(3 * time.Second)
			f.fail(g, module.Errorf(module.CodeModuleTimeout, "late"))
		}, []string{"1 error BROKEN  1s", "2 timeout MODULE_TIMEOUT  3s"}},
		{"waiting for a person", func(f *fixture) {
			f.submit(task.Submission{ModuleID: "job.effect"})
			f.fail(f.run("n1", "job.effect"), module.Errorf(module.CodeApprovalPending, "wait").WithDetail("approval_id", "a1"))
			if _, err := f.Wake(context.Background(), task.WakeAsk{ApprovalID: "a1", Decision: task.DecisionApproved, By: "bob"}); err != nil {
				f.t.Fatal(err)
			}
			g := f.run("n1", "job.effect")
			wait(time.Second)
			f.succeed(g, `{}`)
		}, []string{"1 pending APPROVAL_PENDING  0s", "1 ok   1s"}},
		{"cancelled while it runs", func(f *fixture) {
			id := f.submit(task.Submission{ModuleID: "job.effect"})
			g := f.run("n1", "job.effect")
			f.cancel(id)
			f.fail(g, module.Errorf(module.CodeExecutionCancelled, "stopped"))
		}, []string{"1 cancelled EXECUTION_CANCELLED  0s"}},
		{"its node is lost and it may not run twice", func(f *fixture) {
			f.submit(task.Submission{ModuleID: "job.effect"})
			f.run("n1", "job.effect")
			wait(time.Minute)
		}, []string{"1 error TASK_OUTCOME_UNKNOWN  15s"}},
		{"its nodes are lost until it is dead", func(f *fixture) {
			f.submit(task.Submission{ModuleID: "job.safe"})
			for range 2 {
				f.run("n1", "job.safe")
				wait(time.Minute)
			}
		}, []string{"1 error TASK_LEASE_LOST lease_lost 15s", "2 dead TASK_DELIVERIES_EXHAUSTED  15s"}},
		{"stopped by a shutdown", func(f *fixture) {
			f.submit(task.Submission{ModuleID: "job.safe"})
			g := f.run("n1", "job.safe")
			wait(time.Second)
			finish(f, g, task.OutcomeAborted)
		}, []string{"1 cancelled EXECUTION_CANCELLED shutdown 1s"}},
		{"none that did not start", func(f *fixture) {
			f.submit(task.Submission{ModuleID: "job.effect"})
			finish(f, f.claim("n1", 1, "job.effect")[0], task.OutcomeReleased)
			f.claim("n1", 1, "job.effect")
			wait(time.Minute) // nobody confirmed
			id := f.submit(task.Submission{ModuleID: "job.safe"})
			finish(f, f.claim("n1", 1, "job.safe")[0], task.OutcomeReleased)
			f.cancel(id)
		}, nil},
		{"nothing twice after a takeover", func(f *fixture) {
			f.submit(task.Submission{ModuleID: "job.effect"})
			g := f.run("n1", "job.effect")
			f.crash()
			f.succeed(g, `{}`)
			f.crash()
			f.succeed(g, `{}`)
		}, []string{"1 ok   0s"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var seen ends
			bubble(t, func(t *testing.T, f *fixture) {
				tt.run(f)
				wait(0)
				if diff := cmp.Diff(tt.want, seen.shown(t)); diff != "" {
					t.Errorf("records (-want +got):\n%s", diff)
				}
			}, seen.keep, func(o *task.WriterOptions) { o.MaxDeliveries = 2 })
		})
	}
}
