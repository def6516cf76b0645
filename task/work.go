package task

import "encoding/json"

// ClaimRequest asks for work.
type ClaimRequest struct {
	Node string `json:"node"`
	Boot string `json:"boot"`
	// Modules are the IDs of the modules that the node hosts.
	Modules []string `json:"modules"`
	// Rerun are those of them that do no harm when they run twice: idempotent or
	// readonly. null leaves the writer with what it knows of them otherwise, which may be
	// nothing when it has only just begun.
	Rerun []string `json:"rerun"`
	// Slots is how many tasks it can start now, at least 1.
	Slots int `json:"slots"`
	// WaitMS is how long to wait when there is nothing; at most 10 minutes.
	WaitMS int64 `json:"wait_ms,omitempty"`
}

// ClaimAnswer holds 0 to Slots grants.
type ClaimAnswer struct {
	Grants []Grant `json:"grants"`
	// WaitedMS is how long the request had been with the writer when it granted them. So
	// a worker knows that its leases began no earlier than that after it sent the claim,
	// however long the answer took.
	WaitedMS int64 `json:"waited_ms"`
}

// LeaseRef is the fencing token of one attempt (durable design, rule 3).
type LeaseRef struct {
	TaskID  string `json:"task_id"`
	Attempt int    `json:"attempt"`
	Epoch   int64  `json:"epoch"`
}

// Grant hands one attempt to a node.
type Grant struct {
	LeaseRef
	ModuleID string `json:"module_id"`
	// Call is the ID that the attempt's call must have.
	Call    string          `json:"call"`
	Context json.RawMessage `json:"context,omitempty"`
	Inputs  json.RawMessage `json:"inputs,omitempty"`
	// Confirm is true when the module must not run before Start has answered.
	Confirm bool `json:"confirm"`
	// LeaseMS is how long ownership lasts from the grant on, unless it is renewed.
	LeaseMS int64 `json:"lease_ms"`
	// AttemptMS limits the attempt besides the module's own timeout, 0 does not.
	AttemptMS int64 `json:"attempt_ms,omitempty"`
	// ApprovalToken is the approval that this attempt may use, "" for none. The worker
	// puts it into the inputs as _approval_token.
	ApprovalToken  string          `json:"approval_token,omitempty"`
	IdempotencyKey string          `json:"idempotency_key,omitempty"`
	Checkpoint     json.RawMessage `json:"checkpoint,omitempty"`
	Priority       int             `json:"priority"`
}

// StartRequest says that the attempts are about to run. The answer comes when that
// is durable.
type StartRequest struct {
	Node string     `json:"node"`
	Refs []LeaseRef `json:"refs"`
}

// RenewRequest keeps the ownership of attempts.
type RenewRequest struct {
	Node string     `json:"node"`
	Refs []LeaseRef `json:"refs"`
}

// LeaseAnswer has one verdict for each ref, in order.
type LeaseAnswer struct {
	Verdicts []LeaseVerdict `json:"verdicts"`
}

// LeaseVerdict says whether an attempt is still the worker's.
type LeaseVerdict struct {
	// Lost is true when it is not: the run must stop with the cause lease_lost. Nothing
	// it says counts any more.
	Lost bool `json:"lost,omitempty"`
	// LeaseMS is how long ownership lasts from the request on.
	LeaseMS int64 `json:"lease_ms,omitempty"`
	// Cancel is set when the run should stop because somebody asked for it.
	Cancel *CancelRequest `json:"cancel,omitempty"`
}

// ProgressReport tells how far an attempt is. Only the last one counts.
type ProgressReport struct {
	LeaseRef
	Done  float64 `json:"done"`
	Total float64 `json:"total"`
	Note  string  `json:"note,omitempty"`
}

// CheckpointReport stores what the next attempt will be given. The answer comes when
// it is durable.
type CheckpointReport struct {
	LeaseRef
	Checkpoint json.RawMessage `json:"checkpoint"`
}

// Ends of an attempt, the values of [FinishReport].Outcome.
const (
	// OutcomeCompleted has an output.
	OutcomeCompleted = "completed"
	// OutcomeFailed has an error.
	OutcomeFailed = "failed"
	// OutcomeAborted was stopped by the worker for reasons of its own, such as a
	// shutdown, after it had started. It counts neither as a failure nor as a delivery.
	OutcomeAborted = "aborted"
	// OutcomeReleased certainly did not start.
	OutcomeReleased = "released"
)

// FinishReport ends an attempt. It may be repeated; the answer to a repetition tells
// how the task is then.
type FinishReport struct {
	LeaseRef
	Node    string `json:"node"`
	Outcome string `json:"outcome"`
	// Result is the output of a completed attempt, a JSON object, unless ResultRef says
	// where it was put.
	Result    json.RawMessage `json:"result,omitempty"`
	ResultRef *ResultRef      `json:"result_ref,omitempty"`
	// Error is why it failed, or was aborted.
	Error *Failure `json:"error,omitempty"`
	// Cause is the reason of the cancel package that stopped it, "" when nothing did.
	Cause string `json:"cause,omitempty"`
	// Progress is the last that the attempt told, which may not have been reported.
	Progress *Progress `json:"progress,omitempty"`
}

// FinishAnswer says what became of the task.
type FinishAnswer struct {
	Status Status `json:"status"`
	Detail Detail `json:"detail,omitempty"`
}

// FinishAllRequest reports the ends of many attempts, at most 10,000.
type FinishAllRequest struct {
	Reports []FinishReport `json:"reports"`
}

// FinishAllAnswer has one verdict for each report, in order.
type FinishAllAnswer struct {
	Verdicts []FinishVerdict `json:"verdicts"`
}

// FinishVerdict says what became of one task, or why its report was refused.
type FinishVerdict struct {
	FinishAnswer
	Error *Failure `json:"error,omitempty"`
}

// ReleaseRequest gives back attempts that were granted and not started.
type ReleaseRequest struct {
	Node string     `json:"node"`
	Refs []LeaseRef `json:"refs"`
}

// Signal is a message to the node that runs an attempt, sent besides what the record
// says so that it need not wait for the next renewal. It may be lost.
type Signal struct {
	LeaseRef
	Node string `json:"node"`
	Boot string `json:"boot,omitempty"`
	Call string `json:"call,omitempty"`
	// Lost is true when the attempt is no longer the worker's.
	Lost   bool           `json:"lost,omitempty"`
	Cancel *CancelRequest `json:"cancel,omitempty"`
}
