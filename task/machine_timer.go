package task

import "github.com/apbus/apbus/module"

// tick is what time alone does to r; until is the end of its lease, heard whether its
// node said anything since the grant. It returns false when nothing was due.
func (ru rules) tick(r *Record, m moment, until Stamp, heard bool) bool {
	if r.Status.Terminal() {
		return false
	}
	if total := r.totalDeadline(); total != 0 && m.now >= total {
		if r.Status == Running {
			r.LastOwner = r.Lease.Node
		}
		ru.fail(r, m, module.CodeTaskTotalTimeout, "the task as a whole took too long")
		return true
	}
	switch {
	case r.Lease != nil:
		if m.now < until {
			return false
		}
		ru.lapse(r, m, heard)
	case r.Detail == Scheduled, r.Detail == BackingOff:
		if m.now < r.ReadyAt {
			return false
		}
		ready := r.ReadyAt
		ru.queue(r, m, "timer", "", "due")
		r.ReadyAt = ready
	case r.Detail == Queued:
		if m.now < r.ReadyAt+Stamp(r.Timeouts.QueueWaitMS*1000) {
			return false
		}
		ru.fail(r, m, module.CodeTaskQueueTimeout, "no node had a free slot for it in time")
	default:
		return false
	}
	return true
}

// decide is a person's decision on the approval that r waits for.
func (ru rules) decide(r *Record, m moment, ask WakeAsk) bool {
	if r.Detail != AwaitingApproval || r.ApprovalID != ask.ApprovalID {
		return false
	}
	switch ask.Decision {
	case DecisionApproved:
		r.Approved = true
		ru.queue(r, m, ask.By, "", DecisionApproved)
	case DecisionExpired:
		r.Error = approvalError(r, m, module.CodeApprovalTimeout, "nobody decided in time", ask)
		ru.end(r, m, Failed, "", ask.By, "", string(module.CodeApprovalTimeout))
	default:
		r.Error = approvalError(r, m, module.CodeApprovalDenied, "the call was refused", ask)
		ru.end(r, m, Failed, "", ask.By, "", string(module.CodeApprovalDenied))
	}
	return true
}

func approvalError(r *Record, m moment, code module.Code, message string, ask WakeAsk) *Failure {
	e := module.Errorf(code, "%s", message)
	e.Timestamp, e.ModuleID = m.now.Time(), r.ModuleID
	details := map[string]any{"approval_id": ask.ApprovalID}
	if ask.By != "" {
		details["by"] = ask.By
	}
	if ask.Reason != "" {
		details["reason"] = ask.Reason
	}
	return &Failure{e.WithDetails(details)}
}
