package task_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

func TestRule03_StaleWritesAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		id := f.submit(task.Submission{ModuleID: "job.effect", OnCrash: task.CrashRetry})
		old := f.run("n1", "job.effect")
		wait(16 * time.Second)
		f.want(id, task.Pending, task.Queued)
		now := f.run("n2", "job.effect")
		if now.Attempt != 2 {
			t.Fatalf("attempt %d", now.Attempt)
		}
		before := f.get(id)
		ctx := context.Background()
		forged := now.LeaseRef
		forged.Epoch++
		for _, ref := range []task.LeaseRef{old.LeaseRef, {TaskID: id, Attempt: 2, Epoch: old.Epoch}, {TaskID: id, Attempt: 1, Epoch: now.Epoch}, forged, {TaskID: id}} {
			v, err := f.Start(ctx, task.StartRequest{Refs: []task.LeaseRef{ref}})
			if err != nil || !v.Verdicts[0].Lost {
				t.Errorf("start: %+v, %v", v, err)
			}
			v, err = f.Renew(ctx, task.RenewRequest{Node: "n1", Refs: []task.LeaseRef{ref}})
			if err != nil || !v.Verdicts[0].Lost {
				t.Errorf("renew: %+v, %v", v, err)
			}
			wantCode(t, f.Progress(ctx, task.ProgressReport{LeaseRef: ref}), module.CodeTaskLeaseLost)
			wantCode(t, f.Checkpoint(ctx, task.CheckpointReport{LeaseRef: ref, Checkpoint: []byte(`1`)}), module.CodeTaskLeaseLost)
			for _, outcome := range []string{task.OutcomeCompleted, task.OutcomeFailed, task.OutcomeAborted, task.OutcomeReleased} {
				_, err = f.Finish(ctx, task.FinishReport{LeaseRef: ref, Node: "n1", Outcome: outcome, Result: []byte(`{}`)})
				wantCode(t, err, module.CodeTaskLeaseLost)
			}
			if err := f.Release(ctx, task.ReleaseRequest{Refs: []task.LeaseRef{ref}}); err != nil {
				t.Error(err)
			}
		}
		if after := f.get(id); after.Number != before.Number || after.Status != task.Running {
			t.Errorf("stale writes changed the record: %+v", after)
		}
		f.succeed(now, `{}`)
	})
}

func TestRule05_FourTimeouts(t *testing.T) {
	ms := func(d time.Duration) *int64 { return ptr(d.Milliseconds()) }
	t.Run("queue wait", func(t *testing.T) {
		bubble(t, func(t *testing.T, f *fixture) {
			id := f.submit(task.Submission{ModuleID: "job.safe"})
			if got := f.get(id).Timeouts; got != (task.Timeouts{QueueWaitMS: 24 * 3600 * 1000}) {
				t.Errorf("defaults %+v", got)
			}
			wait(24*time.Hour - time.Second)
			f.want(id, task.Pending, task.Queued)
			wait(time.Second)
			wantCode(t, f.want(id, task.Failed, "").Error.Err(), module.CodeTaskQueueTimeout)
		})
	})
	t.Run("queue wait counts from when it is due", func(t *testing.T) {
		bubble(t, func(t *testing.T, f *fixture) {
			id := f.submit(task.Submission{ModuleID: "job.safe", RunAt: time.Now().Add(time.Hour).Format(time.RFC3339), Timeouts: &task.TimeoutsMS{QueueWaitMS: ms(time.Minute)}})
			wait(time.Hour + 59*time.Second)
			f.want(id, task.Pending, task.Queued)
			wait(time.Second)
			f.want(id, task.Failed, "")
		})
	})
	t.Run("attempt", func(t *testing.T) {
		bubble(t, func(t *testing.T, f *fixture) {
			f.submit(task.Submission{ModuleID: "job.safe", Timeouts: &task.TimeoutsMS{AttemptMS: ms(time.Minute)}})
			if g := f.claim("n1", 1, "job.safe")[0]; g.AttemptMS != 60_000 {
				t.Errorf("grant %+v", g)
			}
		})
	})
	for _, in := range []string{"queued", "scheduled", "backing off", "running", "awaiting"} {
		t.Run("total, "+in, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				sub := task.Submission{ModuleID: "job.safe", Timeouts: &task.TimeoutsMS{TotalMS: ms(10 * time.Second)}, Retry: &task.RetryOptions{MaxRetries: ptr(9), RetryDelayMS: ms(time.Hour), MaxRetryDelayMS: ms(time.Hour)}}
				if in == "scheduled" {
					sub.RunAt = time.Now().Add(time.Hour).Format(time.RFC3339)
				}
				id := f.submit(sub)
				var g task.Grant
				switch in {
				case "backing off":
					f.fail(f.run("n1", "job.safe"), fmt.Errorf("no"))
				case "awaiting":
					f.fail(f.run("n1", "job.safe"), module.Errorf(module.CodeApprovalPending, "").WithDetail("approval_id", "a"))
				case "running":
					g = f.run("n1", "job.safe")
				}
				wait(9 * time.Second)
				if r := f.get(id); r.Status.Terminal() {
					t.Fatalf("%+v", r)
				}
				wait(time.Second)
				wantCode(t, f.want(id, task.Failed, "").Error.Err(), module.CodeTaskTotalTimeout)
				if in == "running" {
					_, err := f.Finish(context.Background(), task.FinishReport{LeaseRef: g.LeaseRef, Outcome: task.OutcomeCompleted, Result: []byte(`{}`)})
					wantCode(t, err, module.CodeTaskLeaseLost)
					if len(f.signals) != 1 || !f.signals[0].Lost || f.signals[0].Epoch != g.Epoch {
						t.Errorf("signals %+v", f.signals)
					}
				}
			})
		})
	}
}

func TestRule06_WhatIsRetried(t *testing.T) {
	e := func(c module.Code) *module.Error { return module.Errorf(c, "no") }
	tests := []struct {
		name  string
		err   error
		again bool
		after time.Duration
	}{
		{"an error without a code", fmt.Errorf("no"), true, 1500 * time.Millisecond},
		{"of the module", e("OUT_OF_STOCK"), true, 1500 * time.Millisecond},
		{"timeout", e(module.CodeModuleTimeout), true, 1500 * time.Millisecond},
		{"overloaded", e(module.CodeBusOverloaded), true, 1500 * time.Millisecond},
		{"it says no", e("OUT_OF_STOCK").WithRetryable(module.False), false, 0},
		{"it says yes", e(module.CodeModuleDisabled).WithRetryable(module.True), true, 1500 * time.Millisecond},
		{"validation", e(module.CodeSchemaValidation).WithRetryable(module.True), false, 0},
		{"acl", e(module.CodeACLDenied).WithRetryable(module.True), false, 0},
		{"denied approval", e(module.CodeApprovalDenied), false, 0},
		{"oversize", e(module.CodeBusPayloadTooLarge), false, 0},
		{"no such module", e(module.CodeModuleNotFound), false, 0},
		{"retry_after wins", e(module.CodeBusOverloaded).WithDetail("retry_after_ms", int64(7000)), true, 7 * time.Second},
		{"retry_after nonsense", e(module.CodeBusOverloaded).WithDetail("retry_after_ms", int64(-7000)), true, 1500 * time.Millisecond},
		{"retry_after absurd", e(module.CodeBusOverloaded).WithDetail("retry_after_ms", int64(1)<<60), true, 24 * time.Hour},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				id := f.submit(task.Submission{ModuleID: "job.safe", Retry: &task.RetryOptions{MaxRetries: ptr(2), RetryDelayMS: ptr(int64(3000))}})
				f.fail(f.run("n1", "job.safe"), tt.err)
				if !tt.again {
					r := f.want(id, task.Failed, "")
					if r.RetryCount != 0 || r.Error.Code() != task.Fail(tt.err).Code() {
						t.Errorf("%+v", r)
					}
					return
				}
				r := f.want(id, task.Pending, task.BackingOff)
				if got := time.Until(r.ReadyAt.Time()); got != tt.after || r.RetryCount != 1 {
					t.Errorf("tried again after %v, want %v; %+v", got, tt.after, r)
				}
			}, func(o *task.WriterOptions) { o.Jitter = func() float64 { return 0.5 } })
		})
	}
}

func TestRule06_RetriesAreCountedAndRunOut(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		id := f.submit(task.Submission{ModuleID: "job.effect", Retry: &task.RetryOptions{MaxRetries: ptr(2), MaxRetryDelayMS: ptr(int64(1500))}})
		for i, delay := range []time.Duration{time.Second, 1500 * time.Millisecond} {
			f.fail(f.run("n1", "job.effect"), fmt.Errorf("no %d", i))
			wait(delay - time.Millisecond)
			f.want(id, task.Pending, task.BackingOff)
			if i == 0 {
				f.crash() // the wait goes on with the next writer
			}
			wait(time.Millisecond)
			f.want(id, task.Pending, task.Queued)
		}
		a := f.fail(f.run("n1", "job.effect"), fmt.Errorf("no"))
		r := f.want(id, task.Failed, "")
		if a.Status != task.Failed || r.RetryCount != 2 || r.Attempt != 3 || r.Deliveries != 0 || r.Error == nil {
			t.Errorf("%+v", r)
		}
	})
}

func TestRule06_Crashes(t *testing.T) {
	tests := []struct {
		name    string
		module  string
		onCrash task.OnCrash
		runs    int // until it is over
		code    module.Code
		detail  task.Detail
	}{
		{"may run twice", "job.safe", "", 5, module.CodeTaskDeliveriesExhausted, task.Dead},
		{"may not", "job.effect", "", 1, module.CodeTaskOutcomeUnknown, ""},
		{"may not, but the submitter says so", "job.effect", task.CrashRetry, 5, module.CodeTaskDeliveriesExhausted, task.Dead},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				id := f.submit(task.Submission{ModuleID: tt.module, OnCrash: tt.onCrash, Inputs: []byte(`{"keep":"me"}`), Retry: &task.RetryOptions{MaxRetries: ptr(9)}})
				for i := range tt.runs {
					g := f.run(fmt.Sprintf("n%d", i+1), tt.module)
					if g.Attempt != i+1 {
						t.Fatalf("attempt %d", g.Attempt)
					}
					wait(14 * time.Second)
					f.want(id, task.Running, "")
					wait(time.Second)
				}
				r := f.want(id, task.Failed, tt.detail)
				wantCode(t, r.Error.Err(), tt.code)
				if r.RetryCount != 0 || r.Deliveries != tt.runs || r.LastOwner != fmt.Sprintf("n%d", tt.runs) || string(r.Inputs) != `{"keep":"me"}` {
					t.Errorf("%+v", r)
				}
				if tt.detail == task.Dead {
					page, err := f.List(context.Background(), task.ListRequest{Filter: task.Filter{Detail: task.Dead}})
					if err != nil || len(page.Tasks) != 1 {
						t.Errorf("dead letter %+v, %v", page, err)
					}
					if _, err := f.Requeue(context.Background(), task.ActAsk{TaskID: id, By: "ann"}); err != nil {
						t.Fatal(err)
					}
					f.succeed(f.run("n9", tt.module), `{}`)
					f.want(id, task.Completed, "")
				}
			})
		})
	}
}

func TestRule07_NobodyHeardOfAGrant(t *testing.T) {
	for _, id := range []string{"job.safe", "job.effect"} {
		t.Run(id, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				tid := f.submit(task.Submission{ModuleID: id})
				f.claim("ghost", 1, id)
				wait(5 * time.Second)
				r := f.want(tid, task.Pending, task.Queued)
				if r.Attempt != 0 || r.Deliveries != 0 {
					t.Errorf("%+v", r)
				}
			})
		})
	}
}

func TestRule07_TakeoverWaitsOneLease(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		kept := f.submit(task.Submission{ModuleID: "job.effect", OnCrash: task.CrashRetry})
		g := f.run("n1", "job.effect")
		lost := f.submit(task.Submission{ModuleID: "job.effect", OnCrash: task.CrashRetry})
		f.run("n2", "job.effect")
		wait(14 * time.Second) // a second before the leases end
		f.crash()
		if more := f.claim("n3", 5, "job.effect"); len(more) != 0 {
			t.Fatalf("the new writer hands out %+v at once", more)
		}
		wait(10 * time.Second)
		if v, err := f.Renew(context.Background(), task.RenewRequest{Node: "n1", Refs: []task.LeaseRef{g.LeaseRef}}); err != nil || v.Verdicts[0].Lost {
			t.Fatalf("renew %+v, %v", v, err)
		}
		if more := f.claim("n3", 5, "job.effect"); len(more) != 0 {
			t.Fatalf("the new writer hands out %+v", more)
		}
		wait(5 * time.Second)
		if more := f.claim("n3", 5, "job.effect"); len(more) != 1 || more[0].TaskID != lost {
			t.Fatalf("grants %+v", more)
		}
		f.succeed(g, `{}`)
		f.want(kept, task.Completed, "")
	})
}

func TestRule07_ADeposedWriterStoresAndTellsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		id := f.submit(task.Submission{ModuleID: "job.effect"})
		g := f.run("n1", "job.effect")
		old, stop, ended := f.Writer, f.stop, f.ended
		f.lead()
		ctx := context.Background()
		_, err := old.Submit(ctx, task.SubmitRequest{Tasks: []task.Submission{{ModuleID: "job.safe"}}})
		wantCode(t, err, module.CodeTaskStoreUnavailable)
		_, err = old.Renew(ctx, task.RenewRequest{Refs: []task.LeaseRef{g.LeaseRef}})
		wantCode(t, err, module.CodeTaskStoreUnavailable)
		_, err = old.Get(ctx, id)
		wantCode(t, err, module.CodeTaskStoreUnavailable)
		stop(nil)
		<-ended
		_, err = old.Get(ctx, id)
		wantCode(t, err, module.CodeTaskStoreUnavailable)
		if f.mem.Len() != 1 {
			t.Errorf("%d entries", f.mem.Len())
		}
	})
}

func TestRule07_TheLogFencesEvenWhenNobodyNoticed(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.submit(task.Submission{ModuleID: "job.effect"})
		w, err := task.NewWriter(f.mem.Lead(), task.WriterOptions{}) // without Leading
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.Submit(context.Background(), task.SubmitRequest{Tasks: []task.Submission{{ModuleID: "job.safe"}}})
		wantCode(t, err, module.CodeTaskStoreUnavailable)
		if err := <-f.ended; err != task.ErrDeposed {
			t.Errorf("Run = %v", err)
		}
		f.ended <- nil
		_ = w
	})
}

// TestRule03_ReportsThatShareARequest has each report judged by its own claim,
// whatever the others are.
func TestRule03_ReportsThatShareARequest(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		for range 3 {
			f.submit(task.Submission{ModuleID: "job.safe", Retry: &task.RetryOptions{MaxRetries: ptr(1)}})
		}
		g := f.claim("n1", 3, "job.safe")
		report := func(ref task.LeaseRef, outcome string) task.FinishReport {
			return task.FinishReport{LeaseRef: ref, Node: "n1", Outcome: outcome, Result: []byte(`{"by":"` + ref.TaskID + `"}`)}
		}
		forged := g[0].LeaseRef
		forged.Epoch++
		failed := report(g[1].LeaseRef, task.OutcomeFailed)
		failed.Error = task.Fail(module.Errorf(module.CodeModuleExecuteError, "no").WithRetryable(module.True))
		req := task.FinishAllRequest{Reports: []task.FinishReport{
			report(forged, task.OutcomeCompleted), report(g[0].LeaseRef, task.OutcomeCompleted), failed,
			report(g[2].LeaseRef, "vanished"), report(g[0].LeaseRef, task.OutcomeCompleted), report(task.LeaseRef{TaskID: "x"}, task.OutcomeCompleted),
		}}
		a, err := f.FinishAll(context.Background(), req)
		if err != nil || len(a.Verdicts) != len(req.Reports) {
			t.Fatalf("%+v, %v", a, err)
		}
		for i, want := range []struct {
			status task.Status
			code   module.Code
		}{
			{"", module.CodeTaskLeaseLost}, {task.Completed, ""}, {task.Pending, ""}, {"", module.CodeInvalidInput}, {task.Completed, ""}, {"", module.CodeTaskNotFound},
		} {
			if v := a.Verdicts[i]; v.Status != want.status || v.Error.Code() != want.code {
				t.Errorf("report %d: %+v, want %+v", i, v, want)
			}
		}
		f.want(g[0].TaskID, task.Completed, "")
		f.want(g[1].TaskID, task.Pending, task.BackingOff)
		f.want(g[2].TaskID, task.Running, "")
	})
}

func TestRule06_TheNodeSaysWhatMayRunTwice(t *testing.T) {
	tests := []struct {
		name    string
		module  string
		rerun   []string
		confirm bool
	}{
		{"a writer that knows nothing believes the node", "job.unheard", []string{"job.unheard"}, false},
		{"a node that does not say", "job.unheard", nil, true},
		{"the catalogue, when the node does not say", "job.safe", nil, false},
		{"the node is the one that runs it", "job.safe", []string{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				id := f.submit(task.Submission{ModuleID: tt.module})
				a, err := f.Claim(context.Background(), task.ClaimRequest{Node: "n1", Modules: []string{tt.module}, Rerun: tt.rerun, Slots: 1})
				if err != nil || len(a.Grants) != 1 || a.Grants[0].Confirm != tt.confirm {
					t.Fatalf("%+v, %v", a, err)
				}
				f.begin(a.Grants[0])
				wait(time.Minute) // its node is lost
				if tt.confirm {
					wantCode(t, f.want(id, task.Failed, "").Error.Err(), module.CodeTaskOutcomeUnknown)
				} else {
					r := f.get(id)
					if r.Status != task.Pending || r.Deliveries != 1 || r.Error != nil {
						t.Errorf("%+v", r)
					}
				}
			})
		})
	}
}
