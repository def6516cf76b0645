package task

import "encoding/json"

// RecordVersion is the version of [Record] that this package writes. A record of a
// higher version is left alone (durable design, rule 14).
//
//	2026-11-30  1  first version
const RecordVersion = 1

// Record is everything that is known about one task: the keys of apcore's TaskInfo
// and what the durable design adds. Its JSON is a contract.
type Record struct {
	V        int    `json:"v"`
	TaskID   string `json:"task_id"`
	ModuleID string `json:"module_id"`
	Status   Status `json:"status"`
	Detail   Detail `json:"detail,omitempty"`
	// BlockedBy says why Detail is blocked. It is never stored.
	BlockedBy string `json:"blocked_by,omitempty"`

	SubmittedAt Stamp `json:"submitted_at"`
	// RestartedAt is when somebody had it run once more; its total time counts from here.
	RestartedAt Stamp `json:"restarted_at,omitzero"`
	// StartedAt is the start of the first attempt.
	StartedAt   Stamp `json:"started_at"`
	CompletedAt Stamp `json:"completed_at"`

	// Result is the output of a completed task, null when ResultRef has it.
	Result json.RawMessage `json:"result"`
	// Error is why a failed or cancelled task ended. While a task is pending it is the
	// last failure.
	Error *Failure `json:"error"`
	// RetryCount counts failures of the module that were tried again, and nothing else.
	RetryCount int `json:"retry_count"`
	MaxRetries int `json:"max_retries"`

	// Order is the place in the order of submission; unique in a namespace.
	Order int64 `json:"order"`
	// Number is that of the last transition; see [Event].
	Number int64 `json:"number"`

	// Context is the wire form of the submitter's Context, without a deadline.
	Context json.RawMessage `json:"context,omitempty"`
	// Inputs are redacted in records that readers get.
	Inputs         json.RawMessage `json:"inputs,omitempty"`
	IdempotencyKey string          `json:"idempotency_key,omitempty"`
	// InputDigest is the hex SHA-256 of the canonical inputs, kept with a key.
	InputDigest    string `json:"input_digest,omitempty"`
	Priority       int    `json:"priority"`
	RunAt          string `json:"run_at,omitempty"` // RFC 3339
	ConcurrencyKey string `json:"concurrency_key,omitempty"`
	Detached       bool   `json:"detached,omitempty"`
	// Parent is the task in whose run this one was submitted.
	Parent string `json:"parent_task_id,omitempty"`
	// Schedule is the name of the schedule that submitted it.
	Schedule string   `json:"schedule,omitempty"`
	Timeouts Timeouts `json:"timeouts"`
	Retry    Retry    `json:"retry"`
	OnCrash  OnCrash  `json:"on_crash"`

	// Attempt counts the starts, 0 before the first.
	Attempt int `json:"attempt"`
	// ReadyAt is when it became or becomes eligible to run: the queue wait counts from
	// here.
	ReadyAt Stamp  `json:"ready_at,omitzero"`
	Lease   *Lease `json:"lease,omitempty"`
	// Rerun is true when the module of the present attempt declared that running it
	// twice does no harm.
	Rerun bool `json:"rerun,omitempty"`
	// LastOwner is the node of the last attempt that ended.
	LastOwner string `json:"last_owner,omitempty"`
	// LastEpoch is the epoch of the last attempt that ended by its worker's report, by
	// which a repeated report is known.
	LastEpoch int64 `json:"last_epoch,omitempty"`
	// VoidEpoch is the epoch of the last grant that was taken back.
	VoidEpoch int64 `json:"void_epoch,omitempty"`
	// Deliveries counts attempts that ended because their node was lost.
	Deliveries      int            `json:"deliveries"`
	CancelRequested *CancelRequest `json:"cancel_requested,omitempty"`
	// ApprovalID is the approval it waits for, or whose token the next attempt carries.
	ApprovalID string `json:"approval_id,omitempty"`
	// Approved is true when ApprovalID was approved and the token goes along.
	Approved   bool            `json:"approved,omitempty"`
	Progress   *Progress       `json:"progress,omitempty"`
	Checkpoint json.RawMessage `json:"checkpoint,omitempty"`
	ResultRef  *ResultRef      `json:"result_ref,omitempty"`
	// ExpiresAt is when a terminal record goes.
	ExpiresAt Stamp `json:"expires_at,omitzero"`

	Timeline []Transition `json:"timeline"`
	// TimelineDropped counts the oldest transitions that made room for newer ones.
	TimelineDropped int `json:"timeline_dropped,omitempty"`
}

// Timeouts are the limits of a task in milliseconds (durable design, rule 5).
type Timeouts struct {
	// QueueWaitMS is how long it may wait to be started once it is due; 24 h by
	// default. It then fails with TASK_QUEUE_TIMEOUT.
	QueueWaitMS int64 `json:"queue_wait_ms"`
	// AttemptMS limits one attempt in addition to the module's own timeout; 0 leaves it
	// to the module. It ends the attempt with MODULE_TIMEOUT.
	AttemptMS int64 `json:"attempt_ms"`
	// TotalMS limits the time from submit to end, backoff included; 0 is no limit. It
	// then fails with TASK_TOTAL_TIMEOUT.
	TotalMS int64 `json:"total_ms"`
}

// Retry is apcore's retry configuration.
type Retry struct {
	MaxRetries        int     `json:"max_retries"`
	RetryDelayMS      int64   `json:"retry_delay_ms"`
	BackoffMultiplier float64 `json:"backoff_multiplier"`
	MaxRetryDelayMS   int64   `json:"max_retry_delay_ms"`
}

// Lease says who owns the present attempt.
type Lease struct {
	Node string `json:"node"`
	Boot string `json:"boot,omitempty"`
	// Epoch never repeats; with the attempt it is the fencing token.
	Epoch int64 `json:"epoch"`
	// Until is when ownership ends unless it is renewed.
	Until Stamp `json:"until"`
	// Call is the ID of the attempt's call.
	Call string `json:"call,omitempty"`
}

// CancelRequest says that somebody wants the task to stop. It is never taken back.
type CancelRequest struct {
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
	At     Stamp  `json:"at"`
}

// Progress is the last word of a running module about how far it is.
type Progress struct {
	Done  float64 `json:"done"`
	Total float64 `json:"total"`
	Note  string  `json:"note,omitempty"`
	At    Stamp   `json:"at"`
	// Number is its place among the events of the task.
	Number int64 `json:"number"`
}

// ResultRef says where an output is that is not in the record.
type ResultRef struct {
	// Store is "log" for the entry result.<task id>, anything else is known to the
	// adapter that put it there.
	Store  string `json:"store"`
	Name   string `json:"name,omitempty"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"`
}

// InLog is the Store of a result that the log keeps beside the record.
const InLog = "log"

// Transition is one step in the life of a task.
type Transition struct {
	Number int64  `json:"number"`
	At     Stamp  `json:"at"`
	Status Status `json:"status"`
	Detail Detail `json:"detail,omitempty"`
	// Actor asked for it or caused it: an identity, "node", "timer", "writer".
	Actor   string `json:"actor,omitempty"`
	Node    string `json:"node,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
	// Cause is a word such as submitted, started, failed, lease_lost, or a code.
	Cause string `json:"cause,omitempty"`
}

// maxTimeline bounds Record.Timeline.
const maxTimeline = 100
