package task

import (
	"encoding/json"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// Submission asks for a task. Only ModuleID is required. Its JSON is the form of the
// HTTP API; times in it are RFC 3339 and durations are milliseconds.
type Submission struct {
	ModuleID string `json:"module_id"`
	// Inputs is a JSON object; absent and null are an empty one.
	Inputs json.RawMessage `json:"inputs,omitempty"`
	// IdempotencyKey makes a second submit with the same module and inputs answer with
	// the first task. At most 256 bytes.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// Priority is 0 to 9, 9 the most urgent; nil is 5.
	Priority *int `json:"priority,omitempty"`
	// RunAt is the earliest start, in RFC 3339. A time that is past is now.
	RunAt    string        `json:"run_at,omitempty"`
	Retry    *RetryOptions `json:"retry,omitempty"`
	Timeouts *TimeoutsMS   `json:"timeouts,omitempty"`
	OnCrash  OnCrash       `json:"on_crash,omitempty"`
	// ConcurrencyKey limits how many tasks with the same key run at once, to one unless
	// the module's queue says otherwise. At most 256 bytes.
	ConcurrencyKey string `json:"concurrency_key,omitempty"`
	// Detached keeps the task from being cancelled together with its parent.
	Detached bool `json:"detached,omitempty"`
	// ParentTaskID is the task in whose run this is submitted; see [ParentOf].
	ParentTaskID string `json:"parent_task_id,omitempty"`
	// Context is the wire form of the submitter's Context as JSON
	// (contextwire.EncodeContext); absent is a fresh one without an identity. It is set
	// by the front door, never by its callers.
	Context json.RawMessage `json:"context,omitempty"`
}

// RetryOptions are the parts of [Retry] that a submitter sets; the others keep their
// defaults: 0 retries, 1000 ms, 2.0, 60000 ms.
type RetryOptions struct {
	MaxRetries        *int     `json:"max_retries,omitempty"`
	RetryDelayMS      *int64   `json:"retry_delay_ms,omitempty"`
	BackoffMultiplier *float64 `json:"backoff_multiplier,omitempty"`
	MaxRetryDelayMS   *int64   `json:"max_retry_delay_ms,omitempty"`
}

// TimeoutsMS are the parts of [Timeouts] that a submitter sets.
type TimeoutsMS struct {
	QueueWaitMS *int64 `json:"queue_wait_ms,omitempty"`
	AttemptMS   *int64 `json:"attempt_ms,omitempty"`
	TotalMS     *int64 `json:"total_ms,omitempty"`
}

// SubmitRequest submits 1 to 1,000 tasks.
type SubmitRequest struct {
	Tasks []Submission `json:"tasks"`
	// All refuses every task when one is refused: the others then have
	// TASK_BATCH_REFUSED.
	All bool `json:"all,omitempty"`
}

// SubmitAnswer has one verdict for each submission, in order.
type SubmitAnswer struct {
	Receipts []Verdict `json:"receipts"`
}

// Verdict is a receipt or an error.
type Verdict struct {
	*Receipt
	Error *Failure `json:"error,omitempty"`
}

// Receipt says that a task is durable.
type Receipt struct {
	TaskID string `json:"task_id"`
	Status Status `json:"status"`
	Detail Detail `json:"detail"`
	// Deduplicated is true when the task was submitted before, with the same key and
	// inputs.
	Deduplicated bool `json:"deduplicated"`
	// Durability names what the log promises: power-safe or process-safe.
	Durability string `json:"durability"`
}

// DataTask is the key of a Context's data that names the task a call belongs to, on
// whatever node. The worker sets it.
const DataTask = contextwire.DataTask

// ParentOf returns the task that c's call belongs to, "" when it belongs to none.
func ParentOf(c *module.Context) string {
	if c == nil {
		return ""
	}
	v, _ := c.Data().Get(DataTask)
	id, _ := v.(string)
	return id
}
