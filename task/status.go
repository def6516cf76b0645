package task

// Status is one of the five states of a task on the wire (protocol §5.8).
type Status string

// The states of a task. The last three are terminal.
const (
	Pending   Status = "pending"
	Running   Status = "running"
	Completed Status = "completed"
	Failed    Status = "failed"
	Cancelled Status = "cancelled"
)

// Terminal reports whether a task in this state is over.
func (s Status) Terminal() bool { return s == Completed || s == Failed || s == Cancelled }

// Active reports whether a task in this state counts against the limit of tasks.
func (s Status) Active() bool { return s == Pending || s == Running }

// Valid reports whether s is one of the five.
func (s Status) Valid() bool { return s.Active() || s.Terminal() }

// Detail says more than the status does; it is empty where there is nothing to add.
type Detail string

// The details of a pending task, but for Dead, which a failed one has.
const (
	// Queued waits for a free slot.
	Queued Detail = "queued"
	// Scheduled waits for its run_at.
	Scheduled Detail = "scheduled"
	// Claimed was given to a node and has not started.
	Claimed Detail = "claimed"
	// BackingOff waits before it is tried again.
	BackingOff Detail = "backing_off"
	// AwaitingApproval waits for a person.
	AwaitingApproval Detail = "awaiting_approval"
	// Blocked is queued and cannot be run as things are; Record.BlockedBy says why. It
	// is found when a record is read and never stored.
	Blocked Detail = "blocked"
	// Dead was given up because the nodes that ran it were lost too often.
	Dead Detail = "dead"
)

// Valid reports whether d is known; the empty detail is.
func (d Detail) Valid() bool {
	switch d {
	case "", Queued, Scheduled, Claimed, BackingOff, AwaitingApproval, Blocked, Dead:
		return true
	}
	return false
}

// Reasons of [Record].BlockedBy.
const (
	BlockedNoHost     = "no host"
	BlockedPaused     = "queue is paused"
	BlockedNewer      = "needs a newer version"
	BlockedUnreadable = "record cannot be read"
)

// OnCrash says what happens to a started attempt whose node was lost.
type OnCrash string

// The choices of on_crash. Modules that are idempotent or readonly are always
// retried.
const (
	// CrashFail ends the task with TASK_OUTCOME_UNKNOWN; the default.
	CrashFail OnCrash = "fail"
	// CrashRetry runs it again, though the lost attempt may have had its effect.
	CrashRetry OnCrash = "retry"
)
