package task

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// attempt is one grant on its way through the worker.
type attempt struct {
	g   Grant
	ctx context.Context
	end context.CancelCauseFunc

	mu       sync.Mutex
	lease    time.Duration
	deadline time.Time // ownership ends, by our own clock
	// alarm rings a fifth of the lease before that, so that the handler has returned
	// when the task may pass to another node (rule 4).
	alarm    *time.Timer
	progress *Progress // the last that the module told
	handler  handlerState
	back     chan struct{} // closed when the handler returns; made by who waits for that
	done     bool
	gone     chan struct{} // closed when done
}

// handlerState is how far the handler of an attempt is.
type handlerState uint8

const (
	handlerWaits handlerState = iota
	handlerRuns
	// handlerReturned and handlerGiven: it reports, or was given up by whoever does.
	handlerReturned
	handlerGiven
)

// settle moves a handler that runs on; false when it does not run.
func (a *attempt) settle(to handlerState) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.handler != handlerRuns {
		return false
	}
	a.handler = to
	if a.back != nil {
		close(a.back)
		a.back = nil
	}
	return true
}

// cancel ends the run with a cause. The first cause stays.
func (a *attempt) cancel(cause *cancel.Cause) { a.end(cause) }

// patience is how long one question about it may take.
func (a *attempt) patience() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(a.lease/3, time.Second)
}

// lose ends the run because the task is no longer ours.
func (a *attempt) lose() { a.end(cancel.Because(cancel.LeaseLost, "", "")) }

// lost reports whether it was ended like that.
func (a *attempt) lost() bool { return cancel.ReasonOf(context.Cause(a.ctx)) == cancel.LeaseLost }

// extend moves the end of the lease, which began at a time.
func (a *attempt) extend(began time.Time, lease time.Duration) {
	deadline := began.Add(lease)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done || !deadline.After(a.deadline) {
		return
	}
	a.deadline, a.lease = deadline, max(a.lease, lease)
	if a.alarm == nil {
		a.alarm = time.AfterFunc(time.Until(deadline)-a.lease/5, a.lose)
		return
	}
	a.alarm.Reset(time.Until(deadline) - a.lease/5)
}

// accept takes grants. Those that must be confirmed are confirmed together.
func (w *Worker) accept(ctx, work context.Context, answer ClaimAnswer, sent time.Time) {
	var confirm []*attempt
	var refused []LeaseRef
	began := sent.Add(time.Duration(answer.WaitedMS) * time.Millisecond)
	for _, g := range answer.Grants {
		a := &attempt{g: g, lease: time.Duration(g.LeaseMS) * time.Millisecond, gone: make(chan struct{})}
		if ctx.Err() != nil || time.Until(began.Add(a.lease)) < a.lease/5 {
			refused = append(refused, g.LeaseRef)
			continue
		}
		a.ctx, a.end = context.WithCancelCause(work)
		a.extend(began, a.lease)
		w.mu.Lock()
		w.attempts[g.LeaseRef] = a
		w.stats.Claimed++
		w.mu.Unlock()
		if g.Confirm {
			confirm = append(confirm, a)
			continue
		}
		w.launch(a) //nolint:contextcheck // the end of an attempt is reported though the work is over
	}
	if len(confirm) > 0 {
		w.owned.Go(func() { w.confirm(work, confirm) })
	}
	if len(refused) > 0 {
		w.giveBack(work, refused)
	}
	poke(w.renew)
}

// giveBack releases what was granted and is not wanted.
func (w *Worker) giveBack(ctx context.Context, refs []LeaseRef) {
	ctx, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	if err := w.src.Release(ctx, ReleaseRequest{Node: w.opts.Node, Refs: refs}); err != nil {
		w.log.Debug("attempts could not be given back; they are handed out again after their lease", "node", w.opts.Node, "cause", err)
	}
}

// confirm starts attempts that must be durable before they run.
func (w *Worker) confirm(work context.Context, batch []*attempt) {
	for pause := 50 * time.Millisecond; len(batch) > 0; pause = min(pause*2, time.Second) {
		refs := make([]LeaseRef, len(batch))
		for i, a := range batch {
			refs[i] = a.g.LeaseRef
		}
		sent := time.Now()
		ctx, stop := context.WithTimeout(work, batch[0].patience())
		answer, err := w.src.Start(ctx, StartRequest{Node: w.opts.Node, Refs: refs})
		stop()
		if err == nil && len(answer.Verdicts) == len(batch) {
			for i, a := range batch {
				w.begin(a, answer.Verdicts[i], sent) //nolint:contextcheck // the end of an attempt is reported though the work is over
			}
			return
		}
		// Nobody answered, and perhaps they are started: they are kept for as long as they
		// are ours, and not run before somebody has said so.
		batch = slices.DeleteFunc(batch, func(a *attempt) bool { //nolint:contextcheck // the end of an attempt is reported though the work is over
			if a.ctx.Err() == nil {
				return false
			}
			w.owned.Go(func() {
				w.report(a, FinishReport{Outcome: OutcomeReleased, Cause: string(cancel.ReasonOf(context.Cause(a.ctx)))})
			})
			return true
		})
		select {
		case <-time.After(pause):
		case <-work.Done():
		}
	}
}

// begin runs an attempt that was confirmed.
func (w *Worker) begin(a *attempt, v LeaseVerdict, sent time.Time) {
	if v.Lost {
		a.lose()
		w.forget(a, func(s *WorkerStats) { s.Lost++ })
		return
	}
	a.extend(sent, time.Duration(v.LeaseMS)*time.Millisecond)
	if v.Cancel != nil {
		a.cancel(causeOf(v.Cancel))
	}
	w.launch(a)
}

// launch runs an attempt to its end and reports it, in a goroutine that is owned
// until that is done or its handler is given up.
func (w *Worker) launch(a *attempt) {
	w.owned.Add(1)
	go func() {
		reported, returned := false, false
		defer func() {
			if !returned { // Goexit: there is no panic to recover
				reported = w.handled(a, w.outcome(a, nil, module.Errorf(module.CodeModuleExecuteError, "the attempt ended its goroutine")))
			}
			if reported {
				w.owned.Done()
			}
		}()
		reported = w.handle(a)
		returned = true
	}()
}

// handle returns false when somebody else reports in its place.
func (w *Worker) handle(a *attempt) bool {
	if a.ctx.Err() != nil { // before anything was done
		w.report(a, FinishReport{Outcome: OutcomeReleased, Cause: string(cancel.ReasonOf(context.Cause(a.ctx)))})
		return true
	}
	a.mu.Lock()
	a.handler = handlerRuns
	a.mu.Unlock()
	unwatch := context.AfterFunc(a.ctx, func() { w.waitForHandler(a) })
	rep := w.invoke(a)
	unwatch()
	return w.handled(a, rep)
}

// handled reports what came of a handler, unless that was done in its place.
func (w *Worker) handled(a *attempt, rep FinishReport) bool {
	if a.settle(handlerReturned) {
		w.report(a, rep)
		return true
	}
	w.mu.Lock()
	w.debt--
	w.mu.Unlock()
	poke(w.free)
	return false
}

// handlerGrace is how long a cancelled handler may take to return before its slot
// goes to another and it becomes debt. An executor has a grace of its own and
// returns earlier.
const handlerGrace = 10 * time.Second

// waitForHandler gives up a cancelled handler that does not return, and reports in its
// place.
func (w *Worker) waitForHandler(a *attempt) {
	back := make(chan struct{})
	a.mu.Lock()
	runs := a.handler == handlerRuns
	if runs {
		a.back = back
	}
	a.mu.Unlock()
	if !runs {
		return
	}
	timer := time.NewTimer(handlerGrace)
	defer timer.Stop()
	select {
	case <-back:
		return
	case <-timer.C:
	case <-a.gone: // it was reported without waiting for the handler
	}
	w.mu.Lock()
	given := a.settle(handlerGiven)
	if given {
		w.debt++
	}
	w.mu.Unlock()
	if !given {
		return
	}
	defer w.owned.Done()
	w.log.Warn("a handler ignores its cancellation", "task_id", a.g.TaskID, "module_id", a.g.ModuleID, "node", w.opts.Node,
		"cause", context.Cause(a.ctx))
	w.report(a, w.outcome(a, nil, module.Errorf(module.CodeExecutionCancelled, "the module was told to stop and did not")))
}

// invoke runs the call of an attempt.
func (w *Worker) invoke(a *attempt) (rep FinishReport) {
	defer func() {
		if p := recover(); p != nil { // an executor catches what a module throws; this is the rest
			rep = w.outcome(a, nil, module.Errorf(module.CodeModuleExecuteError, "the attempt panicked"))
			w.log.Error("an attempt panicked", "task_id", a.g.TaskID, "module_id", a.g.ModuleID, "cause", fmt.Sprint(p))
		}
	}()
	req, err := w.request(a)
	if err != nil {
		return w.outcome(a, nil, err)
	}
	tell := teller{w: w, a: a}
	defer tell.stop()
	req.Progress = tell.report
	run := module.TaskRun{TaskID: a.g.TaskID, Attempt: a.g.Attempt, Checkpoint: a.g.Checkpoint}
	ctx := module.WithTaskRun(a.ctx, run, len(req.Context.ChainView())+1, func(ctx context.Context, v any) error {
		return w.checkpoint(ctx, a, v)
	})
	reply, err := w.run.Invoke(ctx, req)
	return w.outcome(a, reply, err)
}

// request makes the call of an attempt.
func (w *Worker) request(a *attempt) (*contextwire.Request, error) {
	inputs, err := contextwire.DecodeMap(contextwire.JSON, a.g.Inputs, contextwire.Limits{})
	if err != nil {
		return nil, module.Errorf(module.CodeInvalidInput, "the inputs of the task cannot be read: %w", err)
	}
	if a.g.ApprovalToken != "" {
		inputs[approvalKey] = a.g.ApprovalToken
	}
	c, err := contextwire.DecodeContext(a.g.Context, contextwire.JSON, contextwire.Limits{})
	if err != nil {
		return nil, module.Errorf(module.CodeInvalidInput, "the context of the task cannot be read: %w", err)
	}
	c.Data().Set(DataTask, a.g.TaskID)
	return &contextwire.Request{
		CallID: a.g.Call, Attempt: a.g.Attempt, ModuleID: a.g.ModuleID, Context: c, Inputs: inputs,
		Budget: time.Duration(a.g.AttemptMS) * time.Millisecond, IdempotencyKey: a.g.IdempotencyKey,
	}, nil
}

// outcome makes the report of a call that has ended.
func (w *Worker) outcome(a *attempt, reply *contextwire.Reply, err error) FinishReport {
	why := cancel.ReasonOf(context.Cause(a.ctx))
	rep := FinishReport{Outcome: OutcomeFailed, Cause: string(why)}
	a.mu.Lock()
	rep.Progress = a.progress
	a.mu.Unlock()
	coded := module.AsError(err)
	switch {
	case err == nil:
		var output map[string]any
		if reply != nil {
			output = reply.Output
		}
		if output == nil {
			output = map[string]any{}
		}
		body, err := contextwire.Encode(contextwire.JSON, output)
		if err != nil {
			return invalidResult(rep, "has no JSON form")
		}
		if len(body) > w.opts.MaxResult || len(body) > w.opts.InlineResult && w.opts.PutResult == nil {
			return invalidResult(rep, "is too large").withSize(int64(len(body)), int64(w.resultLimit()))
		}
		rep.Outcome, rep.Result = OutcomeCompleted, json.RawMessage(body)
	case why == cancel.Shutdown && coded != nil && coded.Unexecuted:
		rep.Outcome = OutcomeReleased
	case why == cancel.Shutdown:
		rep.Outcome, rep.Error = OutcomeAborted, Fail(err)
	case coded != nil && coded.Unexecuted && !slices.Contains(w.opts.Modules(), a.g.ModuleID):
		rep.Outcome, rep.Cause = OutcomeReleased, "module is gone" // since the claim
	default:
		rep.Error = Fail(err)
	}
	return rep
}

func (w *Worker) resultLimit() int {
	if w.opts.PutResult == nil {
		return min(w.opts.InlineResult, w.opts.MaxResult)
	}
	return w.opts.MaxResult
}

// checkpoint stores how far a module has come.
func (w *Worker) checkpoint(ctx context.Context, a *attempt, v any) error {
	body, err := contextwire.Encode(contextwire.JSON, v)
	if err != nil {
		return module.Errorf(module.CodeInvalidInput, "the checkpoint has no JSON form").WithCause(err)
	}
	return w.src.Checkpoint(ctx, CheckpointReport{LeaseRef: a.g.LeaseRef, Checkpoint: body})
}
