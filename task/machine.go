package task

import (
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/module"
)

// rules are the settings that transitions depend on. The transitions in the files
// machine_*.go are functions of a record, what happened and the time: each changes
// the copy of a record that it is given and nothing else.
type rules struct {
	lease         time.Duration
	maxDeliveries int
	queueWait     time.Duration
	keep          Retention
	// jitter returns a number in [0, 1).
	jitter func() float64
}

// moment is when a transition happens and the number that it gets.
type moment struct {
	now    Stamp
	number int64
}

// next returns a copy of r to change. Records are never changed once others can see
// them.
func (r *Record) next() *Record {
	n := *r
	return &n
}

// mark adds a transition to the present state of r.
func (r *Record) mark(m moment, actor, node, cause string) {
	r.Number = m.number
	t := Transition{
		Number: m.number, At: m.now, Status: r.Status, Detail: r.Detail,
		Actor: actor, Node: node, Attempt: r.Attempt, Cause: cause,
	}
	if len(r.Timeline) < maxTimeline {
		r.Timeline = append(r.Timeline, t)
		return
	}
	kept := make([]Transition, 0, maxTimeline)
	drop := len(r.Timeline) - maxTimeline + 1
	r.TimelineDropped += drop
	r.Timeline = append(append(kept, r.Timeline[drop:]...), t)
}

// end makes r terminal. It is the only way there.
func (ru rules) end(r *Record, m moment, s Status, d Detail, actor, node, cause string) {
	r.Status, r.Detail = s, d
	r.CompletedAt = m.now
	r.Lease, r.Approved = nil, false
	r.ExpiresAt = m.now.Add(ru.keep.of(s, d))
	r.mark(m, actor, node, cause)
}

// fail ends r with an error of the writer's own.
func (ru rules) fail(r *Record, m moment, code module.Code, message string) {
	ru.failAs(r, m, "", code, message)
}

func (ru rules) failAs(r *Record, m moment, d Detail, code module.Code, message string) {
	node := ""
	if r.Lease != nil {
		node = r.Lease.Node
	}
	e := module.Errorf(code, "%s", message)
	e.Timestamp = m.now.Time()
	e.ModuleID = r.ModuleID
	r.Error = &Failure{e}
	ru.end(r, m, Failed, d, "writer", node, string(code))
}

// totalDeadline is when the task as a whole runs out of time, 0 for never.
func (r *Record) totalDeadline() Stamp {
	if r.Timeouts.TotalMS == 0 {
		return 0
	}
	return max(r.SubmittedAt, r.RestartedAt) + Stamp(r.Timeouts.TotalMS*1000)
}

// wakeAt is when the timers have to look at r again, 0 for never. until is the end
// of its lease.
func (r *Record) wakeAt(until Stamp) Stamp {
	var at Stamp
	switch {
	case r.Status.Terminal():
		return r.ExpiresAt
	case r.Lease != nil:
		at = until
	case r.Detail == Scheduled || r.Detail == BackingOff:
		at = r.ReadyAt
	case r.Detail == Queued:
		at = r.ReadyAt + Stamp(r.Timeouts.QueueWaitMS*1000)
	}
	if total := r.totalDeadline(); total != 0 && (at == 0 || total < at) {
		at = total
	}
	return at
}

// owns reports whether ref is the fencing token of the present attempt (rule 3).
func (r *Record) owns(ref LeaseRef) bool {
	return r.Lease != nil && r.Attempt == ref.Attempt && r.Lease.Epoch == ref.Epoch
}

// leaseLost is the answer to a stale write.
func leaseLost(ref LeaseRef) error {
	return module.Errorf(module.CodeTaskLeaseLost, "attempt %d of the task is no longer yours", ref.Attempt).
		WithDetails(map[string]any{"task_id": ref.TaskID, "attempt": int64(ref.Attempt), "reason": string(cancel.LeaseLost)})
}

// Retention is how long records that are over are kept, in all their parts.
type Retention struct {
	// Completed, Cancelled default to 1 h; Failed and Dead to 7 days.
	Completed, Cancelled, Failed, Dead time.Duration
}

func (k Retention) withDefaults() Retention {
	for _, p := range []struct {
		d   *time.Duration
		def time.Duration
	}{
		{&k.Completed, time.Hour}, {&k.Cancelled, time.Hour},
		{&k.Failed, 7 * 24 * time.Hour}, {&k.Dead, 7 * 24 * time.Hour},
	} {
		if *p.d <= 0 {
			*p.d = p.def
		}
		// The log counts whole seconds.
		*p.d = (*p.d + time.Second - 1).Truncate(time.Second)
	}
	return k
}

func (k Retention) of(s Status, d Detail) time.Duration {
	switch {
	case d == Dead:
		return k.Dead
	case s == Failed:
		return k.Failed
	case s == Cancelled:
		return k.Cancelled
	}
	return k.Completed
}

// shortest is the least time that any record is kept once it is over.
func (k Retention) shortest() time.Duration {
	return min(k.Completed, k.Cancelled, k.Failed, k.Dead)
}
