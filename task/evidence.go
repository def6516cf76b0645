package task

import (
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// evidenceOf is the record of an attempt that a transition has ended (durable design,
// section 3); nil when it ended none, or one that did not start. The call of the
// attempt leaves a record of its own on its node, with the inputs, and both name the
// call. was and now are the record before and after.
func evidenceOf(was, now *Record) *contextwire.Evidence {
	if was == nil || was.Lease == nil || now.Lease != nil {
		return nil
	}
	started, ok := startOf(now, was.Attempt)
	if !ok || now.Attempt < was.Attempt && now.Detail != AwaitingApproval {
		return nil // it was taken back
	}
	last := now.Timeline[len(now.Timeline)-1]
	e := &contextwire.Evidence{
		Type: contextwire.EvidenceTask, At: contextwire.EvidenceTime(last.At.Time()), ModuleID: now.ModuleID,
		Call: was.Lease.Call, Root: was.Lease.Call, Attempt: was.Attempt, TaskID: now.TaskID, TaskAttempt: was.Attempt,
		Duration: max(0, last.At.Sub(started)), Timeout: time.Duration(was.Timeouts.AttemptMS) * time.Millisecond,
		By: was.Lease.Node, Role: "node",
	}
	switch {
	case now.Status == Completed:
		e.Outcome = contextwire.OutcomeOK
		return e
	case now.Detail == AwaitingApproval:
		e.Outcome, e.Code, e.Unexecuted = contextwire.OutcomePending, module.CodeApprovalPending, true
		return e
	case now.Detail == Queued: // it is handed out again, and this attempt does not count
		e.Outcome, e.Code, e.Text = contextwire.OutcomeCancelled, module.CodeExecutionCancelled, last.Cause
		if last.Cause == string(cancel.LeaseLost) {
			e.Outcome, e.Code = contextwire.OutcomeError, module.CodeTaskLeaseLost
		}
		return e
	case now.Detail == Dead:
		e.Outcome = contextwire.OutcomeDead
	case now.Status == Cancelled:
		e.Outcome = contextwire.OutcomeCancelled
	default:
		e.Outcome = contextwire.OutcomeOf(now.Error.Code())
	}
	if err := now.Error; err != nil && err.Error != nil {
		e.Code, e.Message, e.Retryable, e.Unexecuted = err.Error.Code, err.Message, err.Retryable, err.Unexecuted
		if err.ModuleID != now.ModuleID {
			e.Origin = err.ModuleID
		}
	}
	return e
}

// startOf is when an attempt started, false when it did not. Attempts that were taken
// back leave their number to the next, so the last one counts.
func startOf(r *Record, attempt int) (Stamp, bool) {
	for i := len(r.Timeline) - 1; i >= 0; i-- {
		if t := r.Timeline[i]; t.Cause == causeStarted && t.Attempt == attempt {
			return t.At, true
		}
	}
	return 0, false
}
