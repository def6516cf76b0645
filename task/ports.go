package task

import (
	"context"
	"encoding/json"
)

// Service is what programs ask of the writer. [*Writer] has these methods, and so
// has whatever carries them to another process; consumers declare the ones they
// call. Errors are coded: TASK_NOT_FOUND for an ID that never was, TASK_EXPIRED for a
// record that has gone, TASK_STORE_UNAVAILABLE when no writer or log answers,
// GENERAL_INVALID_INPUT for a malformed request, and what each method names.
type Service interface {
	// Submit stores tasks. The error is about the request as a whole; refused tasks are
	// in the answer: TASK_LIMIT_EXCEEDED, TASK_KEY_CONFLICT, SCHEMA_VALIDATION_ERROR,
	// INVALID_MODULE_ID, BUS_PAYLOAD_TOO_LARGE, GENERAL_INVALID_INPUT.
	Submit(ctx context.Context, req SubmitRequest) (SubmitAnswer, error)
	// Get returns one record, redacted.
	Get(ctx context.Context, id string) (Record, error)
	// List returns one page of records, redacted.
	List(ctx context.Context, req ListRequest) (Page, error)
	// Result waits for the end of a task and returns its outcome. A task that is not
	// over in time is no error: see [Result].Status.
	Result(ctx context.Context, req ResultRequest) (Result, error)
	// Events returns what happened after a number and waits when nothing has; see
	// [Follow].
	Events(ctx context.Context, req EventsRequest) (Events, error)
	// Cancel asks a task to stop. An unknown task is an answer, not an error.
	Cancel(ctx context.Context, ask CancelAsk) (CancelAnswer, error)
	// Retry runs a failed or cancelled task again; TASK_STATE_CONFLICT for any other.
	// Attempts go on counting, retries begin anew.
	Retry(ctx context.Context, ask ActAsk) (Record, error)
	// Requeue gives back a task from the dead letter, and makes a task that backs off
	// or is scheduled due now; TASK_STATE_CONFLICT for any other.
	Requeue(ctx context.Context, ask ActAsk) (Record, error)
	// Bulk does one thing to many tasks.
	Bulk(ctx context.Context, req BulkRequest) (BulkAnswer, error)
	// RawInputs returns the inputs as they were submitted. The reading is recorded in
	// the task's timeline with by, who must have the right.
	RawInputs(ctx context.Context, id, by string) (json.RawMessage, error)
	// Delete removes a task that is over at once; TASK_STATE_CONFLICT for any other.
	Delete(ctx context.Context, id, by string) error
	// Queues lists the queues that have or had work or settings, by module ID.
	Queues(ctx context.Context) ([]QueueState, error)
	// SetQueue replaces the settings of one module's queue.
	SetQueue(ctx context.Context, moduleID string, s QueueSettings) (QueueState, error)
	// LimitQueue changes how many tasks of a module run at once, and keeps the other
	// settings.
	LimitQueue(ctx context.Context, moduleID string, l QueueLimits) (QueueState, error)
	// Pause stops handing out a module's tasks, Resume goes on. They keep the other
	// settings.
	Pause(ctx context.Context, moduleID, by, reason string) (QueueState, error)
	Resume(ctx context.Context, moduleID, by string) (QueueState, error)
	// PutSchedule creates a schedule, or replaces it when replace is set; otherwise a
	// name that is taken is TASK_SCHEDULE_EXISTS.
	PutSchedule(ctx context.Context, spec ScheduleSpec, by string, replace bool) (Schedule, error)
	// Schedule returns one schedule, Schedules all of them by name; their inputs are
	// redacted. DeleteSchedule leaves the tasks it submitted alone. A name that nobody
	// knows is TASK_SCHEDULE_NOT_FOUND.
	Schedule(ctx context.Context, name string) (Schedule, error)
	Schedules(ctx context.Context) ([]Schedule, error)
	DeleteSchedule(ctx context.Context, name string) error
	// Wake tells of a decision on an approval. A decision that comes before its task
	// waits is remembered for an hour.
	Wake(ctx context.Context, ask WakeAsk) (WakeAnswer, error)
}

// WorkSource is where a [Worker] gets work and reports to: a [*Writer], or whatever
// carries these methods to it. TASK_STORE_UNAVAILABLE and the BUS_ codes mean that
// nobody answered; the worker repeats a report then. TASK_LEASE_LOST means that the
// attempt is no longer the worker's.
type WorkSource interface {
	// Claim waits for work. When ctx ends while it waits, nothing was granted; when the
	// answer is lost, the tasks are handed out again after the lease.
	Claim(ctx context.Context, req ClaimRequest) (ClaimAnswer, error)
	// Start makes attempts durable before their modules run.
	Start(ctx context.Context, req StartRequest) (LeaseAnswer, error)
	Renew(ctx context.Context, req RenewRequest) (LeaseAnswer, error)
	Progress(ctx context.Context, rep ProgressReport) error
	Checkpoint(ctx context.Context, rep CheckpointReport) error
	Finish(ctx context.Context, rep FinishReport) (FinishAnswer, error)
	// Release gives back attempts that have not started.
	Release(ctx context.Context, req ReleaseRequest) error
}
