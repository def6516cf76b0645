package approval

import (
	"strings"
	"time"

	"github.com/apbus/apbus/module"
)

// State is where a stored request is in its life:
//
//	pending ─ approved ─ claimed
//	   │          └───── expired
//	   ├───── rejected
//	   ├───── withdrawn   (its caller stopped waiting for good)
//	   └───── expired
type State string

// The states of a [Record]. All but pending and approved are final.
const (
	StatePending   State = "pending"
	StateApproved  State = "approved"
	StateRejected  State = "rejected"
	StateClaimed   State = "claimed"
	StateWithdrawn State = "withdrawn"
	StateExpired   State = "expired"
)

// Final reports whether nothing can happen to a record in state s any more.
func (s State) Final() bool { return s != StatePending && s != StateApproved }

// Binding is what a token was given for and must be used with.
type Binding struct {
	ModuleID, Version string
	CallerID          string
	// IdentityID and IdentityType are those of the call, HasIdentity false
	// when it had none.
	IdentityID, IdentityType string
	HasIdentity              bool
	Digest                   string
}

// Bind computes the binding of a request.
func Bind(r *Request) (Binding, error) {
	digest, err := r.Digest()
	if err != nil {
		return Binding{}, err
	}
	b := Binding{ModuleID: r.ModuleID, Version: r.Version, CallerID: r.CallerID, Digest: digest}
	if id := r.Identity(); id != nil {
		b.HasIdentity, b.IdentityID, b.IdentityType = true, id.ID(), id.Type()
	}
	return b, nil
}

// Record is one stored request. It is a value; its transitions are pure
// functions of the record and the time, so a store needs only a
// compare-and-set. It holds redacted inputs only.
type Record struct {
	// ID is the approval ID and the token.
	ID      string
	State   State
	Binding Binding
	// What a reviewer sees.
	Inputs       map[string]any // redacted
	Changes      []module.Change
	Warnings     []string
	Description  string
	Tags         []string
	Enrichers    []string // middlewares that may add to the inputs afterwards
	Annotations  module.Annotations
	Reason       string // why approval is needed
	TraceID      string
	CallChain    []string
	CreatedAt    time.Time
	ExpiresAt    time.Time // of the request while pending, of the token once approved
	DecidedAt    time.Time
	DecidedBy    string
	DecidedType  string // identity type of the decider
	BecauseOf    string // the decider's reason
	ClaimedAt    time.Time
	TokenExpires time.Duration // how long an approval can be used, from the decision
}

// Decision is what a person says about a request.
type Decision struct {
	Approve bool
	// By is who decides; required, and not the one who asked.
	By *module.Identity
	// Reason is required.
	Reason string
}

// by names who decides, for logs.
func (d Decision) by() string {
	if d.By == nil {
		return ""
	}
	return d.By.ID()
}

// What a [Store] says of records, for errors.Is.
const (
	ErrExists   = errorString("an approval request of this ID exists")
	ErrConflict = errorString("approval request was changed meanwhile")
)

// Causes of a refused transition, for errors.Is. They come wrapped in a coded
// error. A [Store] also returns ErrNotFound.
const (
	ErrNotFound     = errorString("no such approval request")
	ErrDecided      = errorString("approval request is no longer pending")
	ErrExpired      = errorString("approval request has expired")
	ErrSelfApproval = errorString("approval by the requester")
	ErrNoReason     = errorString("decision without a reason")
	ErrNoDecider    = errorString("decision without an identity")
)

type errorString string

func (e errorString) Error() string { return string(e) }

// At returns the record as it stands at now: pending and approved ones past
// their time are expired.
func (r Record) At(now time.Time) Record {
	if !r.State.Final() && !r.ExpiresAt.IsZero() && !now.Before(r.ExpiresAt) {
		r.State = StateExpired
	}
	return r
}

// Decide applies a decision. It fails with GENERAL_INVALID_INPUT when the
// reason or the decider is missing or the request is not pending any more, and
// with APPROVAL_DENIED for the requester's own decision, approving or not. Equal
// IDs make the same person whatever the identity types.
func (r Record) Decide(d Decision, now time.Time) (Record, error) {
	r = r.At(now)
	reason := strings.TrimSpace(d.Reason)
	switch {
	case d.By == nil || d.By.ID() == "":
		return r, refused(module.CodeInvalidInput, ErrNoDecider)
	case reason == "":
		return r, refused(module.CodeInvalidInput, ErrNoReason)
	case r.Binding.HasIdentity && r.Binding.IdentityID == d.By.ID():
		return r, refused(module.CodeApprovalDenied, ErrSelfApproval)
	case r.State == StateExpired && r.DecidedAt.IsZero():
		return r, refused(module.CodeInvalidInput, ErrExpired)
	case r.State != StatePending:
		return r, refused(module.CodeInvalidInput, ErrDecided)
	}
	r.State, r.DecidedAt = StateRejected, now
	r.DecidedBy, r.DecidedType, r.BecauseOf = d.By.ID(), d.By.Type(), reason
	if d.Approve {
		r.State, r.ExpiresAt = StateApproved, time.Time{}
		if r.TokenExpires > 0 {
			r.ExpiresAt = now.Add(r.TokenExpires)
		}
	}
	return r, nil
}

// Claim answers a call that presents the record's token. Only for an approved
// answer the returned record differs and must be stored by compare-and-set
// before the call may run. A call that the token was not given for is rejected
// and changes nothing.
func (r Record) Claim(b Binding, now time.Time) (Record, *Result) {
	r = r.At(now)
	if r.Binding != b {
		return r, &Result{Status: Rejected, Reason: "the approval token was given for another call"}
	}
	result := &Result{ApprovedBy: r.DecidedBy, Reason: r.BecauseOf, ApprovalID: r.ID}
	switch r.State {
	case StatePending:
		result.Status = Pending
	case StateApproved:
		r.State, r.ClaimedAt = StateClaimed, now
		result.Status = Approved
	case StateRejected:
		result.Status = Rejected
	case StateExpired:
		result.Status, result.Reason = Timeout, "the approval request has expired"
		if !r.DecidedAt.IsZero() {
			result.Reason = "the approval was not used in time"
		}
	case StateClaimed:
		result.Status, result.Reason = Rejected, "the approval token was already used"
	default:
		result.Status, result.Reason = Rejected, "the approval request was withdrawn"
	}
	return r, result
}

// Withdraw settles a pending request whose caller has left for good. It changes
// nothing in any other state.
func (r Record) Withdraw(now time.Time) (next Record, changed bool) {
	r = r.At(now)
	if r.State != StatePending {
		return r, false
	}
	r.State = StateWithdrawn
	return r, true
}

func refused(code module.Code, cause error) error {
	return module.Errorf(code, "%w", cause)
}
