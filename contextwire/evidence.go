package contextwire

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/apbus/apbus/module"
)

// EvidenceVersion is the version of the [Evidence] form that this package writes.
const EvidenceVersion = 1

// EvidenceType says what an [Evidence] record is about.
type EvidenceType string

// The types of evidence. They are the <kind> token of the subjects of evidence.
const (
	// EvidenceCall is one finished call, EvidenceStream one finished stream.
	EvidenceCall   EvidenceType = "call"
	EvidenceStream EvidenceType = "stream"
	// EvidenceTask is one finished attempt of a task.
	EvidenceTask EvidenceType = "task"
	// EvidenceACL is a denial by the access rules, beside the record of its call.
	EvidenceACL EvidenceType = "acl"
	// EvidenceApproval is a decision on an approval request, or its expiry.
	EvidenceApproval EvidenceType = "approval"
	// EvidenceNote is what a person observed.
	EvidenceNote EvidenceType = "note"
)

// EvidenceTypes lists the types in a fixed order.
func EvidenceTypes() []EvidenceType {
	return []EvidenceType{EvidenceCall, EvidenceStream, EvidenceTask, EvidenceACL, EvidenceApproval, EvidenceNote}
}

// Valid reports whether t is one of the types.
func (t EvidenceType) Valid() bool {
	switch t {
	case EvidenceCall, EvidenceStream, EvidenceTask, EvidenceACL, EvidenceApproval, EvidenceNote:
		return true
	}
	return false
}

// Outcomes of an [Evidence] record. Which of them a type has: calls and streams ok,
// error, denied, pending, cancelled, timeout; ACL records denied; approvals
// approved, rejected, timeout; task attempts all of a call's and dead.
const (
	OutcomeOK        = "ok"
	OutcomeError     = "error"
	OutcomeDenied    = "denied"
	OutcomePending   = "pending"
	OutcomeCancelled = "cancelled"
	OutcomeTimeout   = "timeout"
	OutcomeApproved  = "approved"
	OutcomeRejected  = "rejected"
	OutcomeDead      = "dead"
)

// DataTask is the key of a Context's data that names the task a call belongs to, on
// every hop.
const DataTask = "x-apbus-task"

// OutcomeOf sorts the codes of failed calls and attempts.
func OutcomeOf(code module.Code) string {
	switch code {
	case module.CodeExecutionCancelled:
		return OutcomeCancelled
	case module.CodeModuleTimeout, module.CodeApprovalTimeout, module.CodeBusBudgetExhausted, module.CodeTaskTotalTimeout:
		return OutcomeTimeout
	case module.CodeApprovalPending:
		return OutcomePending
	case module.CodeACLDenied, module.CodeApprovalDenied, module.CodeModuleDisabled:
		return OutcomeDenied
	}
	return OutcomeError
}

// Sides of a schema violation.
const (
	SideInput  = "input"
	SideOutput = "output"
)

// Evidence is one thing that happened: a finished call, a denial, a decision
// (durable design, section 3). It holds redacted values only: whoever makes one
// redacts first, since the hash covers what is stored. Zero fields are absent on
// the wire. A value is not modified once it was handed on.
type Evidence struct {
	Type EvidenceType
	// At is when it ended, to the millisecond, UTC.
	At time.Time
	// NS is the namespace; Node and Boot the process that recorded it. N counts the
	// records of that boot, so that no two occurrences are one record.
	NS, Node, Boot string
	N              uint64

	ModuleID string
	// Version is the module's version, "" when it was not looked up.
	Version string
	// Call and Attempt are the bus call it belongs to; a call nested in the same
	// process has those of the call around it and a longer chain.
	Call         string
	Attempt      int
	Root, Parent string
	TraceID      string
	// CallerID is the calling module, "" at the top level. CallChain ends with
	// ModuleID.
	CallerID  string
	CallChain []string
	// IdentityID and IdentityType tell who it was for; roles and attributes are not
	// recorded.
	IdentityID, IdentityType string
	// Mode is [ModeUnary] or [ModeStream].
	Mode string
	// TaskID is the task that it happened for. TaskAttempt is which attempt ended, in the
	// record of the attempt (type task) and in that of the attempt's own call, which says
	// the same of the same Call: whoever counts attempts counts one of the two. It is 0
	// in the records of calls further down.
	TaskID      string
	TaskAttempt int

	Outcome string
	// Code and Message are those of the error; the message is safe to show.
	Code    module.Code
	Message string
	// Origin is the module that the error came from, when it is another: a call that
	// the module made failed and it handed that on.
	Origin string
	// Retryable is the error's own answer.
	Retryable module.Tri
	// Unexecuted is true when the module was certainly not started.
	Unexecuted bool
	// MadeHere is true for an error that the caller's process made itself, because
	// no owner could tell: a lost host, nobody listening.
	MadeHere bool
	// Duration is stored to the microsecond. Timeout is the limit the call had of its
	// module, Budget what was left of its caller's time when it started; both in
	// whole milliseconds, 0 for none.
	Duration        time.Duration
	Timeout, Budget time.Duration
	// Retries counts how often a middleware had the pipeline run again.
	Retries int
	// Chunks counts what a stream delivered.
	Chunks int
	// Inputs are the redacted inputs, nil when they were not recorded; then
	// InputBytes may tell how large they were.
	Inputs     map[string]any
	InputBytes int
	// Side and Fields tell of a schema violation: which schema, and the paths of the
	// fields, never their values.
	Side   string
	Fields []string
	// By and Role are who decided, or the node that ran the attempt of a task, Text is the
	// reason, the note or the cause.
	By, Role, Text string
	// Guidance are the hashes of the items of knowledge (lessons, facts, skills) that were
	// in force for the module when the call ended, which is what callers who ask about it
	// are shown, newest first.
	Guidance []string
}

// Limits of one record.
const (
	// MaxEvidence is the largest record in bytes.
	MaxEvidence = 64 << 10
	// MaxEvidenceInputs is the largest form of the inputs in bytes; larger ones are
	// left out and counted in InputBytes.
	MaxEvidenceInputs = 8 << 10
	// MaxEvidenceText is the longest message or text in bytes; the rest is cut.
	MaxEvidenceText = 1 << 10
	// MaxEvidenceList bounds chain, fields and guidance.
	MaxEvidenceList = 64
	// maxEvidenceName bounds every other text.
	maxEvidenceName = 512
)

// EvidenceHash is the ID of a record: the hex SHA-256 of its encoded bytes, which
// are canonical.
func EvidenceHash(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}
