package approval

import (
	"context"
	"maps"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// TokenKey is the input key that carries an approval token. The gate strips it
// on every path; it is never part of a digest or a projection.
const TokenKey = "_approval_token"

// Status is how a request stands.
type Status string

// The statuses. Anything else counts as rejected.
const (
	Approved Status = "approved"
	Rejected Status = "rejected"
	Timeout  Status = "timeout"
	Pending  Status = "pending"
)

// Request is one call that needs approval. Handlers must not modify it.
type Request struct {
	ModuleID string
	// Version is the module's version, to which a token is bound.
	Version string
	// Arguments are the inputs at the gate without [TokenKey]: not yet validated,
	// not redacted. Do not show or store them; use RedactedArguments.
	Arguments map[string]any
	// Context is the call's Context, nil only in tests of handlers.
	Context *module.Context
	// Annotations are the effective ones, RequiresApproval always true.
	Annotations module.Annotations
	// CallerID is the Context's caller, "" (null) at the top level and never
	// "@external".
	CallerID string
	// Action equals ModuleID (decision D-03).
	Action      string
	Description string
	Tags        []string
	// Reason says why approval is needed, such as a policy rule's reason; may be "".
	Reason string
	// Enrichers names the middlewares that may still add to the inputs after the
	// gate, for the reviewer to know.
	Enrichers []string
	// Preview predicts what the call would change. It is nil when the module
	// cannot; it may be slow, so handlers call it outside locks, at most once.
	Preview func() []module.Change
	// Preflight gives advisory warnings, under the same terms.
	Preflight func() []string
}

// Identity returns who the call acts for, or nil.
func (r *Request) Identity() *module.Identity {
	if r.Context == nil {
		return nil
	}
	return r.Context.Identity()
}

// RedactedArguments returns the Context's redacted view of the inputs without
// the token, nil when there is none.
func (r *Request) RedactedArguments() map[string]any {
	if r.Context == nil {
		return nil
	}
	return withoutToken(r.Context.RedactedInputs())
}

// Digest returns the digest of the arguments; see [Digest].
func (r *Request) Digest() (string, error) { return Digest(r.Arguments) }

// Digest identifies inputs by content: lower-case hex SHA-256 of their canonical
// JSON without [TokenKey]. Inputs without a JSON form are GENERAL_INVALID_INPUT.
func Digest(inputs map[string]any) (string, error) {
	inputs = withoutToken(inputs)
	if inputs == nil {
		inputs = map[string]any{}
	}
	d := schema.ContentHash(inputs)
	if d == "" {
		return "", module.Errorf(module.CodeInvalidInput, "inputs have no JSON form, so an approval cannot be bound to them")
	}
	return d, nil
}

// StripToken returns inputs without [TokenKey], copied only when it was there,
// and the token. An empty token is present too. A token that is no string is
// GENERAL_INVALID_INPUT; the inputs are stripped all the same.
func StripToken(inputs map[string]any) (stripped map[string]any, token string, present bool, err error) {
	v, present := inputs[TokenKey]
	if !present {
		return inputs, "", false, nil
	}
	token, ok := v.(string)
	if !ok {
		err = module.Errorf(module.CodeInvalidInput, "%s is not a string", TokenKey)
	}
	return withoutToken(inputs), token, ok, err
}

func withoutToken(m map[string]any) map[string]any {
	if _, present := m[TokenKey]; !present {
		return m
	}
	m = maps.Clone(m)
	delete(m, TokenKey)
	return m
}

// Result is a handler's answer.
type Result struct {
	Status Status
	// ApprovedBy names who decided, also for a rejection; Reason is their reason
	// or the handler's. ApprovalID is the token of a pending request.
	ApprovedBy, Reason, ApprovalID string
	Metadata                       map[string]any
}

// Handler answers approval requests. Implementations report a [Status]; an error
// is a failure of their own and is passed on unchanged. Both methods may block
// until ctx is done and are safe for concurrent use. A nil Result counts as
// rejected.
type Handler interface {
	RequestApproval(ctx context.Context, r *Request) (*Result, error)
	// CheckApproval is asked for a call that carries a token. The request is
	// there so that the token can be checked against what it was given for.
	CheckApproval(ctx context.Context, approvalID string, r *Request) (*Result, error)
}
