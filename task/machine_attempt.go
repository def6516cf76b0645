package task

import (
	"fmt"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/module"
)

// owner is who an attempt is given to.
type owner struct {
	node, boot, call string
	epoch            int64
	// rerun says that the module may be run twice.
	rerun bool
}

// firstLease is how long a node has to say anything about a grant. Until then
// nobody knows that the grant has reached it: it may have died while it waited for
// work.
func (ru rules) firstLease() time.Duration { return ru.lease / 3 }

// grant gives the next attempt of a queued record to a node, without starting it.
func (ru rules) grant(r *Record, m moment, o owner) {
	r.Detail = Claimed
	r.Attempt++
	r.Rerun = o.rerun
	r.Progress = nil
	r.Lease = &Lease{Node: o.node, Boot: o.boot, Epoch: o.epoch, Until: m.now.Add(ru.firstLease()), Call: o.call}
}

// causeStarted is the cause of the transition that begins an attempt.
const causeStarted = "started"

// start makes a granted attempt a running one.
func (ru rules) start(r *Record, m moment) {
	if r.Status == Running {
		return
	}
	r.Status, r.Detail = Running, ""
	if r.StartedAt == 0 {
		r.StartedAt = m.now
	}
	r.mark(m, "node", r.Lease.Node, causeStarted)
}

// queue makes r eligible at once.
func (ru rules) queue(r *Record, m moment, actor, node, cause string) {
	r.Status, r.Detail, r.Lease = Pending, Queued, nil
	r.ReadyAt = m.now
	r.mark(m, actor, node, cause)
}

// release takes back an attempt that did not start: it never was.
func (ru rules) release(r *Record, m moment, cause string) {
	node := r.Lease.Node
	r.VoidEpoch = r.Lease.Epoch
	r.Attempt--
	if r.CancelRequested != nil {
		r.Error = cancelled(r, m)
		ru.end(r, m, Cancelled, "", "node", node, "cancelled")
		return
	}
	ready := r.ReadyAt // the wait goes on
	ru.queue(r, m, "node", node, cause)
	r.ReadyAt = ready
}

// lapse is the end of a lease that nobody renewed (rules 6 and 7). heard is false
// when the node has said nothing at all about the grant.
func (ru rules) lapse(r *Record, m moment, heard bool) {
	node := r.Lease.Node
	if r.Status != Running || !heard && r.Rerun {
		r.Status = Pending
		ru.release(r, m, string(cancel.LeaseLost))
		return
	}
	r.Deliveries++
	r.LastOwner = node
	switch {
	case r.CancelRequested != nil:
		r.Error = cancelled(r, m)
		ru.end(r, m, Cancelled, "", "writer", node, string(cancel.LeaseLost))
	case !r.Rerun && r.OnCrash != CrashRetry:
		ru.fail(r, m, module.CodeTaskOutcomeUnknown,
			fmt.Sprintf("node %s was lost during attempt %d, which may have had its effect; the module does not say that it may run twice", node, r.Attempt))
	case r.Deliveries >= ru.maxDeliveries:
		ru.failAs(r, m, Dead, module.CodeTaskDeliveriesExhausted,
			fmt.Sprintf("the nodes that ran it were lost %d times, the last was %s", r.Deliveries, node))
	default:
		ru.queue(r, m, "writer", node, string(cancel.LeaseLost))
	}
}

// finish is the end of an attempt as its worker reports it. The report is known to
// come from the owner.
func (ru rules) finish(r *Record, m moment, rep FinishReport) {
	node := r.Lease.Node
	r.LastOwner, r.LastEpoch = node, r.Lease.Epoch
	if p := rep.Progress; p != nil {
		r.Progress = &Progress{Done: p.Done, Total: p.Total, Note: clipText(p.Note, maxNote), At: m.now, Number: m.number}
	}
	switch rep.Outcome {
	case OutcomeReleased:
		if r.Status == Running { // granted without the need to confirm
			r.Status = Pending
		}
		ru.release(r, m, released(rep))
	case OutcomeCompleted:
		ru.start(r, m)
		r.Result, r.ResultRef, r.Error = rep.Result, rep.ResultRef, nil
		ru.end(r, m, Completed, "", "node", node, "completed")
	case OutcomeAborted:
		ru.start(r, m)
		ru.aborted(r, m, rep)
	default:
		ru.start(r, m)
		ru.failed(r, m, rep)
	}
}

func released(rep FinishReport) string {
	if rep.Cause != "" {
		return rep.Cause
	}
	return "released"
}

// aborted is an attempt that its worker stopped for reasons of its own: nothing is
// counted, but a module that may not run twice is not run twice (rules 6 and 12).
func (ru rules) aborted(r *Record, m moment, rep FinishReport) {
	node := r.Lease.Node
	switch {
	case r.CancelRequested != nil:
		r.Error = cancelled(r, m)
		ru.end(r, m, Cancelled, "", "node", node, "cancelled")
	case !r.Rerun && r.OnCrash != CrashRetry:
		ru.fail(r, m, module.CodeTaskOutcomeUnknown,
			fmt.Sprintf("node %s stopped during attempt %d, which may have had its effect; the module does not say that it may run twice", node, r.Attempt))
	default:
		ru.queue(r, m, "node", node, released(rep))
	}
}

// failed is an attempt that ended with an error.
func (ru rules) failed(r *Record, m moment, rep FinishReport) {
	node := r.Lease.Node
	if rep.Error == nil || rep.Error.Error == nil {
		rep.Error = Fail(module.Errorf(module.CodeModuleExecuteError, "the attempt failed without an error"))
	}
	code := rep.Error.Code()
	r.Error = rep.Error
	switch {
	case r.CancelRequested != nil:
		ru.end(r, m, Cancelled, "", "node", node, "cancelled")
	case waits(r, rep.Error.Error):
		// The gate stands before the module: nothing ran and nothing is spent.
		r.Attempt--
		r.Status, r.Detail, r.Lease = Pending, AwaitingApproval, nil
		r.ApprovalID, r.Approved = approvalOf(rep.Error.Error), false
		r.Error = nil
		r.mark(m, "node", node, string(code))
	case code == module.CodeExecutionCancelled:
		ru.end(r, m, Cancelled, "", "node", node, string(code))
	case r.RetryCount < r.MaxRetries && retryable(rep.Error.Error):
		delay := ru.backoff(r, rep.Error.Error)
		r.RetryCount++
		r.Status, r.Detail, r.Lease = Pending, BackingOff, nil
		r.ReadyAt = m.now.Add(delay)
		r.Approved = false // the token is used up; the next attempt asks anew
		r.mark(m, "node", node, string(code))
	default:
		ru.end(r, m, Failed, "", "node", node, string(code))
	}
}

// waits reports whether the task's own module waits for a person. When one that it
// called does, the module has run, and the decision is that module's to use.
func waits(r *Record, e *module.Error) bool {
	if e.Code != module.CodeApprovalPending || approvalOf(e) == "" {
		return false
	}
	for _, of := range []any{e.ModuleID, e.Details["module_id"]} { // as far as they are known
		if id, _ := of.(string); id != "" && id != r.ModuleID {
			return false
		}
	}
	return true
}

func approvalOf(e *module.Error) string {
	id, _ := e.Details["approval_id"].(string)
	return id
}
