package task

import "encoding/json"

// Filter selects tasks; empty fields select all.
type Filter struct {
	ModuleID string `json:"module,omitempty"`
	Status   Status `json:"status,omitempty"`
	Detail   Detail `json:"detail,omitempty"`
	// Query is text that the task ID, module ID, idempotency key or schedule contains.
	// Keys and schedules of tasks that are over are not searched.
	Query string `json:"q,omitempty"`
	// IDs, when not empty, are the only tasks considered; at most 1,000.
	IDs []string `json:"ids,omitempty"`
	// Parent selects the tasks submitted by one.
	Parent string `json:"parent,omitempty"`
}

// ListRequest asks for one page of tasks.
type ListRequest struct {
	Filter
	// Cursor continues after a page; it is opaque.
	Cursor string `json:"cursor,omitempty"`
	// Limit is 1 to 1,000, 0 is 100.
	Limit int `json:"limit,omitempty"`
	// NewestFirst turns the order of submission around.
	NewestFirst bool `json:"newest_first,omitempty"`
}

// Page is one page of tasks, redacted, in the order of submission.
type Page struct {
	Tasks []Record `json:"tasks"`
	// Cursor is empty on the last page.
	Cursor string `json:"cursor,omitempty"`
	// Unreadable counts the records that were set aside; they are listed too, with
	// Detail blocked, where the filter selects them.
	Unreadable int `json:"unreadable,omitempty"`
}

// ResultRequest asks for the outcome of a task.
type ResultRequest struct {
	TaskID string `json:"task_id"`
	// WaitMS is how long to wait for the end, 0 not at all. At most 10 minutes.
	WaitMS int64 `json:"wait_ms,omitempty"`
}

// Result is the outcome of a task, or its state when it is not over. It is not
// redacted.
type Result struct {
	Status Status `json:"status"`
	// Output is that of a completed task. It is empty when Ref says where it is.
	Output json.RawMessage `json:"output,omitempty"`
	Ref    *ResultRef      `json:"ref,omitempty"`
	// Error is why a failed or cancelled task ended.
	Error *Failure `json:"error,omitempty"`
	// Task is the record, redacted.
	Task Record `json:"task"`
}

// EventsRequest asks for what happened to a task after a number.
type EventsRequest struct {
	TaskID string `json:"task_id"`
	// After is the last number that the reader has; 0 asks for everything.
	After int64 `json:"after,omitempty"`
	// WaitMS is how long to wait when there is nothing new. At most 10 minutes.
	WaitMS int64 `json:"wait_ms,omitempty"`
}

// Events is what happened after a number. It is empty when the wait was over first.
type Events struct {
	Events []Event `json:"events"`
	// Next is the number to ask after the next time.
	Next int64 `json:"next"`
	// Ended is true when the task is over and Events holds its end.
	Ended bool `json:"ended"`
}

// Kinds of [Event].
const (
	EventSnapshot   = "snapshot"
	EventTransition = "transition"
	EventProgress   = "progress"
	EventGap        = "gap"
	EventEnd        = "end"
)

// Event is one thing that happened to a task (durable design, rule 11). Numbers rise
// and are not consecutive.
type Event struct {
	Number int64  `json:"number"`
	Kind   string `json:"kind"`
	// Transition is what happened, in a transition and in the end.
	Transition *Transition `json:"transition,omitempty"`
	// Progress is set in progress.
	Progress *Progress `json:"progress,omitempty"`
	// Task is the present state, redacted: in a snapshot, which comes first; in a gap,
	// which says that what happened before is no longer known; in the end.
	Task *Record `json:"task,omitempty"`
}

// States of [CancelAnswer].
const (
	CancelAccepted        = "accepted"
	CancelAlreadyTerminal = "already_terminal"
	CancelUnknown         = "unknown"
)

// CancelAsk asks to stop a task.
type CancelAsk struct {
	TaskID string `json:"task_id"`
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// CancelAnswer says what a cancel found (durable design, rule 8).
type CancelAnswer struct {
	TaskID string `json:"task_id"`
	State  string `json:"state"`
	Status Status `json:"status,omitempty"`
	// Children counts the tasks that it submitted and that were cancelled with it.
	Children int `json:"children,omitempty"`
}

// Actions of a [BulkRequest].
const (
	ActionCancel  = "cancel"
	ActionRetry   = "retry"
	ActionRequeue = "requeue"
)

// BulkRequest does one thing to all the tasks that a filter selects. A filter that
// selects everything is refused.
type BulkRequest struct {
	Action string `json:"action"`
	Filter Filter `json:"filter"`
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
	// DryRun counts and changes nothing.
	DryRun bool `json:"dry_run,omitempty"`
	// Limit bounds how many tasks are changed; 0 is no limit.
	Limit int `json:"limit,omitempty"`
}

// BulkAnswer says what was done or would be.
type BulkAnswer struct {
	Action string `json:"action"`
	DryRun bool   `json:"dry_run"`
	// Matched counts the tasks that the filter selects and the action fits.
	Matched int `json:"matched"`
	Changed int `json:"changed"`
	// Skipped counts tasks that the filter selects and the action does not fit.
	Skipped int `json:"skipped"`
	// TaskIDs are the first 100 of those that matched.
	TaskIDs []string `json:"task_ids"`
}

// ActAsk asks to retry or requeue one task.
type ActAsk struct {
	TaskID string `json:"task_id"`
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// QueueState is what is known of one module's queue.
type QueueState struct {
	ModuleID string `json:"module_id"`
	QueueSettings
	Queued     int `json:"queued"`
	Scheduled  int `json:"scheduled"`
	BackingOff int `json:"backing_off"`
	Awaiting   int `json:"awaiting_approval"`
	Claimed    int `json:"claimed"`
	Running    int `json:"running"`
	// Hosts counts the nodes that asked for its work lately or are known to host it.
	Hosts int `json:"hosts"`
	// OldestMS is how long the task that is due longest has waited.
	OldestMS int64 `json:"oldest_ms,omitempty"`
}

// QueueSettings are what an operator sets for one module.
type QueueSettings struct {
	// Paused hands out nothing. What runs, runs on.
	Paused   bool   `json:"paused"`
	PausedBy string `json:"paused_by,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// Concurrency is how many tasks of the module run at once, 0 is no limit.
	Concurrency int `json:"concurrency,omitempty"`
	// KeyConcurrency is how many tasks with one concurrency key run at once; 0 is 1.
	KeyConcurrency int `json:"key_concurrency,omitempty"`
}

// QueueLimits are how many tasks run at once; nil keeps what is set. At least one must
// be given.
type QueueLimits struct {
	// Concurrency is for all tasks of the module, 0 is no limit.
	Concurrency *int `json:"concurrency,omitempty"`
	// KeyConcurrency is for those with one concurrency key, 0 is 1.
	KeyConcurrency *int `json:"key_concurrency,omitempty"`
}

// Missed says what happens with times of a schedule at which no writer was there.
type Missed string

// The choices for missed times.
const (
	MissedSkip Missed = "skip" // the default
	MissedOnce Missed = "once" // run once for all of them
)

// ScheduleSpec describes recurring work.
type ScheduleSpec struct {
	// Name is 1 to 128 of [A-Za-z0-9_-].
	Name string `json:"name"`
	// Cron is five fields (minute hour day-of-month month day-of-week), or @hourly,
	// @daily, @weekly, @monthly, @yearly, or "@every 90s".
	Cron string `json:"cron"`
	// TimeZone is an IANA name, "" is UTC.
	TimeZone string `json:"time_zone,omitempty"`
	Missed   Missed `json:"missed,omitempty"`
	Paused   bool   `json:"paused,omitempty"`
	// Task is submitted each time. Its RunAt and IdempotencyKey must be empty.
	Task Submission `json:"task"`
}

// Schedule is a spec and what became of it.
type Schedule struct {
	ScheduleSpec
	V         int    `json:"v"`
	CreatedAt Stamp  `json:"created_at"`
	CreatedBy string `json:"created_by,omitempty"`
	NextAt    Stamp  `json:"next_at"`
	LastAt    Stamp  `json:"last_at"`
	LastTask  string `json:"last_task_id,omitempty"`
	// LastError is why the last time submitted nothing.
	LastError *Failure `json:"last_error,omitempty"`
	Fired     int64    `json:"fired"`
	// MissedCount counts times that went by without a task.
	MissedCount int64 `json:"missed_count"`
}

// Decisions of [WakeAsk].
const (
	DecisionApproved = "approved"
	DecisionRejected = "rejected"
	DecisionExpired  = "expired"
)

// WakeAsk tells of a decision on an approval that tasks wait for.
type WakeAsk struct {
	ApprovalID string `json:"approval_id"`
	Decision   string `json:"decision"`
	By         string `json:"by,omitempty"`
	Reason     string `json:"reason,omitempty"`
}

// WakeAnswer says how many tasks waited for it.
type WakeAnswer struct {
	Woken int `json:"woken"`
}
