package task

import "github.com/apbus/apbus/module"

// cancel records that somebody wants r to stop. What does not run ends at once; what
// runs is told, and ends by its worker's report or its lease (rule 8). The first
// request stays. It returns false when r is over.
func (ru rules) cancel(r *Record, m moment, c CancelRequest) bool {
	if r.Status.Terminal() {
		return false
	}
	if r.CancelRequested == nil {
		c.At = m.now
		r.CancelRequested = &c
	} else if r.Status == Running {
		return true
	}
	if r.Status == Running {
		r.mark(m, c.By, r.Lease.Node, "cancel_requested")
		return true
	}
	node := ""
	if r.Lease != nil { // granted and not started
		node = r.Lease.Node
		r.Attempt--
	}
	r.Error = cancelled(r, m)
	ru.end(r, m, Cancelled, "", c.By, node, "cancelled")
	return true
}

// cancelled is the error of a task that was cancelled and whose module said nothing.
func cancelled(r *Record, m moment) *Failure {
	e := module.Errorf(module.CodeExecutionCancelled, "the task was cancelled")
	e.Timestamp, e.ModuleID = m.now.Time(), r.ModuleID
	if c := r.CancelRequested; c != nil {
		details := map[string]any{"reason": "caller"}
		if c.By != "" {
			details["by"] = c.By
		}
		if c.Reason != "" {
			details["text"] = c.Reason
		}
		e = e.WithDetails(details)
	}
	return &Failure{e}
}

// again makes a failed or cancelled task, or one from the dead letter, eligible once
// more (protocol §5.8). What went before stays in its timeline.
func (ru rules) again(r *Record, m moment, by, cause string) {
	r.CompletedAt, r.ExpiresAt = 0, 0
	r.RetryCount, r.Deliveries = 0, 0
	r.Error, r.Result, r.ResultRef = nil, nil, nil
	r.CancelRequested, r.Progress = nil, nil
	r.ApprovalID, r.Approved = "", false
	r.RestartedAt = m.now
	ru.queue(r, m, by, "", cause)
}
