package loop

import (
	"slices"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// State is where a recommendation is in its life:
//
//	pending ─┬─ approved ─┬─ applied ── rolled_back
//	         ├─ rejected  ├─ expired
//	         ├─ expired   └─ withdrawn
//	         └─ withdrawn
type State string

// The states.
const (
	StatePending    State = "pending"
	StateApproved   State = "approved"
	StateRejected   State = "rejected"
	StateApplied    State = "applied"
	StateRolledBack State = "rolled_back"
	StateExpired    State = "expired"
	StateWithdrawn  State = "withdrawn"
)

// Open reports whether a recommendation in this state keeps others of the same
// key away.
func (s State) Open() bool {
	return s == StatePending || s == StateApproved || s == StateApplied
}

// AuditEvent says what an audit entry records: that a recommendation came into a state,
// or one of the events beside them.
type AuditEvent string

// The events. Those named as a state bring the recommendation into it.
const (
	EventPending    AuditEvent = "pending"
	EventApproved   AuditEvent = "approved"
	EventRejected   AuditEvent = "rejected"
	EventExpired    AuditEvent = "expired"
	EventWithdrawn  AuditEvent = "withdrawn"
	EventApplied    AuditEvent = "applied"
	EventRolledBack AuditEvent = "rolled_back"
	// An intent is written before the first operation, so that what a crash leaves
	// half done is known. applied and rolled_back end it. An apply that cannot be done
	// any more is first given up, from when on nobody can end it as applied, then taken
	// back, which apply_failed ends.
	EventApplyIntent    AuditEvent = "apply_intent"
	EventApplyAbort     AuditEvent = "apply_abort"
	EventApplyFailed    AuditEvent = "apply_failed"
	EventRollbackIntent AuditEvent = "rollback_intent"
	// measured and drifted are observations of an applied recommendation.
	EventMeasured AuditEvent = "measured"
	EventDrifted  AuditEvent = "drifted"
)

// AuditEntry is one line of the life of a recommendation. The log of these lines
// is the only truth about its state. Prev is the hash of the line before, so that
// a line that was slipped in breaks the chain.
type AuditEntry struct {
	V     int        `json:"v"`
	Rec   string     `json:"rec_hash"`
	Event AuditEvent `json:"event"`
	From  State      `json:"from,omitempty"`
	To    State      `json:"to,omitempty"`
	Actor string     `json:"actor"`
	// Observer is human, agent, policy or system, derived from the authenticated
	// actor.
	Observer string `json:"observer_type"`
	Because  string `json:"because"`
	Prev     string `json:"previous_audit_hash,omitempty"`
	AtMS     int64  `json:"at_ms"`
	// Attempt counts apply intents; Created are the items that the attempt makes, in
	// the order of the operations.
	Attempt int      `json:"attempt,omitempty"`
	Created []string `json:"created,omitempty"`
	// For is the revert that a rollback intent belongs to, "" for a person's own.
	For    string  `json:"for_rec,omitempty"`
	Gating *Gating `json:"gating,omitempty"`
	// Replay is the rehearsal that an apply was allowed by.
	Replay *Rehearsal `json:"replay,omitempty"`
	// Measured is what a measurement found.
	Measured *Measured `json:"measured,omitempty"`
	// Moved is how many cited records have moved.
	Moved int `json:"moved,omitempty"`
}

// Measured is one measurement of an applied recommendation.
type Measured struct {
	HorizonMS int64   `json:"horizon_ms"`
	Verdict   string  `json:"verdict"`
	Baseline  float64 `json:"baseline"`
	Current   float64 `json:"current"`
	N         int     `json:"n"`
	// Of a measurement by an evalset: when it was due, the runs that were compared, and
	// by what. BaselineKind is newest, high_water or snapshot.
	Checkpoint    *Checkpoint `json:"checkpoint,omitempty"`
	BaselineKind  string      `json:"baseline_kind,omitempty"`
	BaselineRunID string      `json:"baseline_run_id,omitempty"`
	CurrentRunID  string      `json:"current_run_id,omitempty"`
	BestBefore    float64     `json:"best_before,omitempty"`
	Tolerance     float64     `json:"tolerance,omitempty"`
	Cost          float64     `json:"cost,omitempty"`
	CostBefore    float64     `json:"cost_before,omitempty"`
}

// Status is what the log of a recommendation adds up to.
type Status struct {
	State State
	// Intent is apply_intent, apply_abort or rollback_intent while one is under way.
	Intent     AuditEvent
	IntentAtMS int64
	// Attempt counts apply intents. Created are the items of the attempt that was
	// applied or is under way; AppliedAtMS is the time its items carry.
	Attempt     int
	Created     []string
	AppliedAtMS int64
	// ChangedAtMS is when the state changed last.
	ChangedAtMS int64
	Measured    []Measured
	Moved       int
	// Last is the sequence of the last entry, LastHash its hash; both empty for a log
	// without entries, which reads as pending.
	Last     uint64
	LastHash string
	History  []AuditEntry
}

// Latest is the newest verdict on an applied recommendation, nil when there is none.
func (s *Status) Latest() *Measured {
	if len(s.Measured) == 0 {
		return nil
	}
	return &s.Measured[len(s.Measured)-1]
}

func (s *Status) checkedAt(c Checkpoint) bool {
	return slices.ContainsFunc(s.Measured, func(m Measured) bool { return m.Checkpoint != nil && *m.Checkpoint == c })
}

func (s *Status) measuredAt(horizonMS int64) bool {
	return slices.ContainsFunc(s.Measured, func(m Measured) bool { return m.HorizonMS == horizonMS })
}

// may reports whether an event is legal after s. Everything not listed is illegal,
// approved to rejected and rejected to anything among it.
func (s *Status) may(e AuditEvent) bool {
	idle := s.Intent == ""
	switch e {
	case EventPending:
		return s.Last == 0
	case EventApproved, EventRejected:
		return idle && s.State == StatePending
	case EventExpired, EventWithdrawn:
		return idle && (s.State == StatePending || s.State == StateApproved)
	case EventApplyIntent:
		return idle && s.State == StateApproved
	case EventApplied, EventApplyAbort:
		return s.Intent == EventApplyIntent
	case EventApplyFailed:
		return s.Intent == EventApplyAbort
	case EventRollbackIntent:
		return idle && s.State == StateApplied
	case EventRolledBack:
		return s.Intent == EventRollbackIntent
	case EventMeasured, EventDrifted:
		return s.State == StateApplied
	}
	return false
}

// state is the state an event leads to.
func (e AuditEvent) state(from State) State {
	switch e {
	case EventPending, EventApproved, EventRejected, EventExpired, EventWithdrawn, EventApplied, EventRolledBack:
		return State(e)
	}
	return from
}

func illegal(from State, e AuditEvent) error {
	return module.Errorf(module.CodeLoopIllegal, "a recommendation that is %s cannot become %s", from, e).
		WithDetails(map[string]any{"state": string(from)})
}

// take adds an entry. It fails when the entry is illegal or breaks the chain.
func (s *Status) take(e AuditEntry, seq uint64, hash string) error {
	if s.State == "" {
		s.State = StatePending
	}
	switch {
	case !s.may(e.Event):
		return illegal(s.State, e.Event)
	case e.Prev != s.LastHash || e.V != 1:
		return module.Errorf(module.CodeLoopInvalid, "the audit chain of a recommendation is broken")
	}
	switch e.Event {
	case EventApplyIntent:
		s.Intent, s.IntentAtMS, s.Attempt, s.Created = e.Event, e.AtMS, s.Attempt+1, e.Created
	case EventRollbackIntent:
		s.Intent, s.IntentAtMS = e.Event, e.AtMS
	case EventApplyAbort:
		s.Intent = e.Event
	case EventApplied:
		s.AppliedAtMS, s.Intent = s.IntentAtMS, ""
	case EventApplyFailed:
		s.Created, s.Intent = nil, ""
	case EventRolledBack:
		s.Intent = ""
	case EventMeasured:
		if e.Measured != nil {
			s.Measured = append(s.Measured, *e.Measured)
		}
	case EventDrifted:
		s.Moved = e.Moved
	}
	if next := e.Event.state(s.State); next != s.State || e.Event == EventPending {
		s.State, s.ChangedAtMS = next, e.AtMS
	}
	s.Last, s.LastHash = seq, hash
	s.History = append(s.History, e)
	return nil
}

func encodeAudit(e AuditEntry) ([]byte, error) {
	return encodeStored(e)
}

func decodeAudit(raw []byte) (e AuditEntry, hash string, err error) {
	if err := decodeStored(auditLayout, raw, &e); err != nil {
		return e, "", module.Errorf(module.CodeLoopInvalid, "audit entry cannot be read: %w", err)
	}
	return e, contextwire.EvidenceHash(raw), nil
}
