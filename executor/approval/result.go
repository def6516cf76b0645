package approval

import (
	"errors"

	"github.com/apbus/apbus/module"
)

// ResultError is the cause of every approval error and carries the handler's
// answer (protocol §7).
type ResultError struct{ Result Result }

// Error says how the request was decided, and why where somebody said so.
func (e *ResultError) Error() string {
	if e.Result.Reason == "" {
		return "approval " + string(e.Result.Status)
	}
	return "approval " + string(e.Result.Status) + ": " + e.Result.Reason
}

// ResultOf finds the handler's answer behind an approval error.
func ResultOf(err error) (Result, bool) {
	var re *ResultError
	if !errors.As(err, &re) {
		return Result{}, false
	}
	return re.Result, true
}

// Err returns nil for an approval and the coded error for anything else:
// APPROVAL_DENIED for a rejection, an unknown status or no result at all,
// APPROVAL_TIMEOUT, APPROVAL_PENDING. Details hold module_id and, where known,
// approval_id, reason and approved_by.
func (r *Result) Err(moduleID string) *module.Error {
	if r == nil {
		r = &Result{Status: Rejected, Reason: "the approval handler gave no result"}
	}
	var e *module.Error
	switch r.Status {
	case Approved:
		return nil
	case Timeout:
		e = module.Errorf(module.CodeApprovalTimeout, "approval of %s timed out", moduleID)
	case Pending:
		e = module.Errorf(module.CodeApprovalPending, "approval of %s is pending", moduleID)
	default:
		e = module.Errorf(module.CodeApprovalDenied, "approval of %s was denied", moduleID)
	}
	details := map[string]any{"module_id": moduleID}
	for key, v := range map[string]string{"approval_id": r.ApprovalID, "reason": r.Reason, "approved_by": r.ApprovedBy} {
		if v != "" {
			details[key] = v
		}
	}
	return e.WithDetails(details).WithCause(&ResultError{Result: *r}).NotExecuted()
}
