package task_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

func (f *fixture) cancel(id string) task.CancelAnswer {
	f.t.Helper()
	a, err := f.Cancel(context.Background(), task.CancelAsk{TaskID: id, By: "ann", Reason: "because"})
	if err != nil {
		f.t.Fatalf("cancel: %v", err)
	}
	return a
}

func TestRule08_CancelWhateverTheState(t *testing.T) {
	soon := func(s *task.Submission) { s.RunAt = time.Now().Add(time.Hour).Format(time.RFC3339) }
	tests := []struct {
		name string
		sub  func(*task.Submission)
		to   func(f *fixture) task.Grant
		want string
		then task.Status
	}{
		{name: "queued, with no worker up", want: task.CancelAccepted, then: task.Cancelled},
		{name: "scheduled", sub: soon, want: task.CancelAccepted, then: task.Cancelled},
		{name: "claimed", to: func(f *fixture) task.Grant { return f.claim("n1", 1, "job.effect")[0] }, want: task.CancelAccepted, then: task.Cancelled},
		{name: "running", to: func(f *fixture) task.Grant { return f.run("n1", "job.effect") }, want: task.CancelAccepted, then: task.Running},
		{name: "backing off", to: func(f *fixture) task.Grant {
			g := f.run("n1", "job.effect")
			f.fail(g, fmt.Errorf("no"))
			return g
		}, want: task.CancelAccepted, then: task.Cancelled},
		{name: "awaiting approval", to: func(f *fixture) task.Grant {
			g := f.run("n1", "job.effect")
			f.fail(g, module.Errorf(module.CodeApprovalPending, "").WithDetail("approval_id", "a"))
			return g
		}, want: task.CancelAccepted, then: task.Cancelled},
		{name: "completed", to: func(f *fixture) task.Grant {
			g := f.run("n1", "job.effect")
			f.succeed(g, `{}`)
			return g
		}, want: task.CancelAlreadyTerminal, then: task.Completed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				s := task.Submission{ModuleID: "job.effect", Retry: &task.RetryOptions{MaxRetries: ptr(3)}}
				if tt.sub != nil {
					tt.sub(&s)
				}
				id := f.submit(s)
				if tt.to != nil {
					tt.to(f)
				}
				if a := f.cancel(id); a.State != tt.want || a.Status != tt.then {
					t.Fatalf("answer %+v", a)
				}
				r := f.want(id, tt.then, "")
				if (r.CancelRequested != nil) != (tt.want == task.CancelAccepted) {
					t.Errorf("%+v", r)
				}
				f.crash() // it was durable
				r = f.want(id, tt.then, "")
				if (r.CancelRequested != nil) != (tt.want == task.CancelAccepted) {
					t.Errorf("after a crash: %+v", r)
				}
				wait(2 * time.Hour)
				if g := f.claim("n1", 5, "job.effect"); len(g) != 0 {
					t.Errorf("it is granted: %+v", g)
				}
			})
		})
	}
	bubble(t, func(t *testing.T, f *fixture) {
		for _, id := range []string{"", "none", "00000000-0000-4000-8000-000000000000"} {
			if a := f.cancel(id); a.State != task.CancelUnknown {
				t.Errorf("cancel of %q: %+v", id, a)
			}
		}
	})
}

func TestRule08_AfterACancelOfARunningTask(t *testing.T) {
	rep := func(outcome string, err error) task.FinishReport {
		return task.FinishReport{Node: "n1", Outcome: outcome, Result: []byte(`{"late":1}`), Error: task.Fail(err)}
	}
	tests := []struct {
		name string
		rep  *task.FinishReport
		want task.Status
	}{
		{"an error means cancelled and is never tried again", ptr(rep(task.OutcomeFailed, fmt.Errorf("no"))), task.Cancelled},
		{"a result that lands first means completed", ptr(rep(task.OutcomeCompleted, nil)), task.Completed},
		{"an abort means cancelled", ptr(rep(task.OutcomeAborted, nil)), task.Cancelled},
		{"given back means cancelled", ptr(rep(task.OutcomeReleased, nil)), task.Cancelled},
		{"a lost node means cancelled", nil, task.Cancelled},
	}
	for _, tt := range tests {
		for _, id := range []string{"job.safe", "job.effect"} {
			t.Run(tt.name+", "+id, func(t *testing.T) {
				bubble(t, func(t *testing.T, f *fixture) {
					tid := f.submit(task.Submission{ModuleID: id, OnCrash: task.CrashRetry, Retry: &task.RetryOptions{MaxRetries: ptr(3)}})
					g := f.run("n1", id)
					f.cancel(tid)
					wait(0)
					if len(f.signals) != 1 || f.signals[0].Cancel == nil || f.signals[0].Epoch != g.Epoch || f.signals[0].Node != "n1" {
						t.Errorf("signals %+v", f.signals)
					}
					v, err := f.Renew(context.Background(), task.RenewRequest{Refs: []task.LeaseRef{g.LeaseRef}})
					if err != nil || v.Verdicts[0].Cancel == nil || v.Verdicts[0].Cancel.Reason != "because" {
						t.Errorf("renewal does not tell: %+v, %v", v, err)
					}
					if tt.rep != nil {
						tt.rep.LeaseRef = g.LeaseRef
						if _, err := f.Finish(context.Background(), *tt.rep); err != nil {
							t.Fatal(err)
						}
					} else {
						wait(15 * time.Second)
					}
					r := f.want(tid, tt.want, "")
					if r.CancelRequested == nil || r.CancelRequested.By != "ann" || r.RetryCount != 0 {
						t.Errorf("%+v", r)
					}
				})
			})
		}
	}
}

func TestRule08_TheTasksItSubmittedGoToo(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		parent := f.submit(task.Submission{ModuleID: "job.effect"})
		g := f.run("n1", "job.effect")
		child := f.submit(task.Submission{ModuleID: "job.safe", ParentTaskID: parent})
		grand := f.submit(task.Submission{ModuleID: "job.safe", ParentTaskID: child})
		free := f.submit(task.Submission{ModuleID: "job.safe", ParentTaskID: parent, Detached: true})
		page, err := f.List(context.Background(), task.ListRequest{Filter: task.Filter{Parent: parent}})
		if err != nil || len(page.Tasks) != 2 {
			t.Errorf("children %+v, %v", page, err)
		}
		f.crash()
		if a := f.cancel(parent); a.Children != 2 {
			t.Errorf("answer %+v", a)
		}
		f.want(child, task.Cancelled, "")
		f.want(grand, task.Cancelled, "")
		f.want(free, task.Pending, task.Queued)
		_, err = f.trySubmit(task.Submission{ModuleID: "job.safe", ParentTaskID: parent}) // it still runs, and is too late
		wantCode(t, err, module.CodeExecutionCancelled)
		f.fail(g, fmt.Errorf("stopped"))
		f.want(parent, task.Cancelled, "")
	})
}

func TestRule09_BulkWithADryRun(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		ctx := context.Background()
		var ids []string
		for range 30 {
			ids = append(ids, f.submit(task.Submission{ModuleID: "job.effect"}))
		}
		for range 10 {
			f.submit(task.Submission{ModuleID: "job.safe"})
		}
		f.succeed(f.run("n1", "job.effect"), `{}`)
		bulk := func(action string, dry bool, fl task.Filter) task.BulkAnswer {
			t.Helper()
			a, err := f.Bulk(ctx, task.BulkRequest{Action: action, Filter: fl, DryRun: dry, By: "ann"})
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		only := task.Filter{ModuleID: "job.effect"}
		if a := bulk(task.ActionCancel, true, only); a.Matched != 29 || a.Changed != 0 || a.Skipped != 1 || len(a.TaskIDs) != 29 || !a.DryRun {
			t.Errorf("dry run %+v", a)
		}
		f.want(ids[5], task.Pending, task.Queued)
		if a := bulk(task.ActionCancel, false, only); a.Matched != 29 || a.Changed != 29 {
			t.Errorf("cancel %+v", a)
		}
		f.want(ids[5], task.Cancelled, "")
		if a := bulk(task.ActionRetry, false, task.Filter{Status: task.Cancelled}); a.Changed != 29 {
			t.Errorf("retry %+v", a)
		}
		f.want(ids[5], task.Pending, task.Queued)
		if a := bulk(task.ActionRequeue, false, only); a.Changed != 0 || a.Skipped != 30 {
			t.Errorf("requeue %+v", a)
		}
		a, err := f.Bulk(ctx, task.BulkRequest{Action: task.ActionCancel, Filter: only, Limit: 3})
		if err != nil || a.Changed != 3 {
			t.Errorf("limited %+v, %v", a, err)
		}
		for _, req := range []task.BulkRequest{{Action: task.ActionCancel}, {Action: "explode", Filter: only}, {Action: task.ActionCancel, Filter: only, Limit: -1}} {
			_, err := f.Bulk(ctx, req)
			wantCode(t, err, module.CodeInvalidInput)
		}
	})
}

func TestRetryOfWhatIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		ctx := context.Background()
		id := f.submit(task.Submission{ModuleID: "job.effect", Timeouts: &task.TimeoutsMS{TotalMS: ptr(int64(60_000))}})
		_, err := f.Retry(ctx, task.ActAsk{TaskID: id})
		wantCode(t, err, module.CodeTaskStateConflict)
		f.fail(f.run("n1", "job.effect"), module.Errorf(module.CodeACLDenied, "no"))
		wait(time.Hour)
		f.crash()
		r, err := f.Retry(ctx, task.ActAsk{TaskID: id, By: "ann"})
		if err != nil || r.Status != task.Pending || r.Attempt != 1 || r.Error != nil {
			t.Fatalf("%+v, %v", r, err)
		}
		wait(30 * time.Second) // its whole time began anew
		f.succeed(f.run("n1", "job.effect"), `{}`)
		r = f.want(id, task.Completed, "")
		if r.Attempt != 2 {
			t.Errorf("%+v", r)
		}
		_, err = f.Retry(ctx, task.ActAsk{TaskID: id})
		wantCode(t, err, module.CodeTaskStateConflict)
		if err := f.Delete(ctx, id, "ann"); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Get(ctx, id); module.AsError(err) == nil {
			t.Error("it is still there")
		}
		if f.mem.Len() != 0 {
			t.Errorf("%d entries", f.mem.Len())
		}
	})
}

func TestApprovals(t *testing.T) {
	pend := module.Errorf(module.CodeApprovalPending, "wait").WithDetail("approval_id", "ap-1")
	for _, early := range []bool{false, true} {
		for _, decision := range []string{task.DecisionApproved, task.DecisionRejected, task.DecisionExpired} {
			t.Run(fmt.Sprintf("%s, early %v", decision, early), func(t *testing.T) {
				bubble(t, func(t *testing.T, f *fixture) {
					wake := func() {
						if _, err := f.Wake(context.Background(), task.WakeAsk{ApprovalID: "ap-1", Decision: decision, By: "rev", Reason: "why"}); err != nil {
							t.Fatal(err)
						}
					}
					id := f.submit(task.Submission{ModuleID: "job.effect"})
					g := f.run("n1", "job.effect")
					if early {
						wake()
					}
					f.fail(g, pend)
					wait(time.Minute)
					if !early {
						r := f.want(id, task.Pending, task.AwaitingApproval)
						if r.Attempt != 0 || r.RetryCount != 0 || r.ApprovalID != "ap-1" || r.Lease != nil {
							t.Errorf("%+v", r)
						}
						wait(100 * time.Hour) // no limit but the total one
						f.crash()
						f.want(id, task.Pending, task.AwaitingApproval)
						wake()
					}
					switch decision {
					case task.DecisionApproved:
						f.want(id, task.Pending, task.Queued)
						g := f.run("n2", "job.effect")
						if g.ApprovalToken != "ap-1" || g.Attempt != 1 {
							t.Errorf("grant %+v", g)
						}
						if r := f.get(id); r.ApprovalID == "ap-1" {
							t.Error("the token is shown")
						}
						f.succeed(g, `{}`)
					case task.DecisionRejected:
						e := wantCode(t, f.want(id, task.Failed, "").Error.Err(), module.CodeApprovalDenied)
						if e.Details["reason"] != "why" {
							t.Errorf("%v", e.Details)
						}
					default:
						wantCode(t, f.want(id, task.Failed, "").Error.Err(), module.CodeApprovalTimeout)
					}
				})
			})
		}
	}
	t.Run("decided while nobody led", func(t *testing.T) {
		var decided atomic.Bool
		bubble(t, func(t *testing.T, f *fixture) {
			id := f.submit(task.Submission{ModuleID: "job.effect"})
			f.fail(f.run("n1", "job.effect"), pend)
			f.want(id, task.Pending, task.AwaitingApproval)
			decided.Store(true)
			f.crash()
			wait(time.Second)
			f.want(id, task.Pending, task.Queued)
		}, func(o *task.WriterOptions) {
			o.Decided = func(context.Context, string) (task.WakeAsk, bool, error) {
				return task.WakeAsk{Decision: task.DecisionApproved}, decided.Load(), nil
			}
		})
	})
}
