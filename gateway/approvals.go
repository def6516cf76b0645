package gateway

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/module"
)

// maxBecause is how long the reason of a decision may be, in bytes.
const maxBecause = 4 << 10

// The two decisions.
const (
	decisionApprove = "approve"
	decisionReject  = "reject"
)

// approvalRoutes are the inbox of those who decide (durable design, section 2).
func (g *Gateway) approvalRoutes() []*route {
	return []*route{
		{
			method: http.MethodGet, pattern: "/v1/approvals", operation: "listApprovals",
			summary: "Calls that wait for a person, and what was decided", scope: ScopeReview, class: control,
			query: []param{
				{"state", "Only requests in this state: pending, approved, rejected, claimed, withdrawn, expired."},
				{"module", "Only requests for this module."},
				{"cursor", "next_cursor of the page before."}, {"limit", "Most requests of a page, 100 when absent, at most 1000."},
			},
			answers: []outcome{{200, "ApprovalList", "The requests, newest first. Inputs are redacted."}}, handle: g.listApprovals,
		},
		{
			method: http.MethodGet, pattern: "/v1/approvals/{id}", operation: "showApproval",
			summary: "One request: redacted inputs, predicted changes, the decision", scope: ScopeReview, class: control,
			answers: []outcome{{200, "Approval", "The request."}, {404, "ErrorBody", "No such request."}}, handle: g.showApproval,
		},
		{
			method: http.MethodPost, pattern: "/v1/approvals/{id}/decision", operation: "decideApproval",
			summary: "Approve or reject, with a reason, which is kept", scope: ScopeReview, class: control,
			body: "ApprovalDecision",
			answers: []outcome{
				{200, "Approval", "The request as decided."},
				{403, "ErrorBody", "Who asked may not decide."}, {404, "ErrorBody", "No such request."},
				{409, "ErrorBody", "Somebody else was faster; the details say who, and what they decided."},
				{410, "ErrorBody", "The request has expired."},
			},
			handle: g.decideApproval,
		},
	}
}

// listApprovals serves GET /v1/approvals.
func (g *Gateway) listApprovals(x *exchange) error {
	f, err := approvalFilter(x.r.URL.Query())
	if err != nil {
		return err
	}
	page, err := g.approvals.List(x.r.Context(), f)
	if err != nil {
		return err
	}
	list := make([]any, len(page.Records))
	for i, r := range page.Records {
		list[i] = approvalView(r)
	}
	return x.json(http.StatusOK, map[string]any{"approvals": list, "next_cursor": orNull(page.Next)})
}

func approvalFilter(q url.Values) (f approval.Filter, err error) {
	f = approval.Filter{State: approval.State(q.Get("state")), ModuleID: q.Get("module"), Cursor: q.Get("cursor")}
	switch f.State {
	case "", approval.StatePending, approval.StateApproved, approval.StateRejected,
		approval.StateClaimed, approval.StateWithdrawn, approval.StateExpired:
	default:
		return f, invalid("query parameter state is none of pending, approved, rejected, claimed, withdrawn, expired")
	}
	if text := q.Get("limit"); text != "" {
		if f.Limit, err = strconv.Atoi(text); err != nil || f.Limit < 1 {
			return f, invalid("query parameter limit is no positive integer")
		}
	}
	return f, nil
}

// showApproval serves GET /v1/approvals/{id}.
func (g *Gateway) showApproval(x *exchange) error {
	r, err := g.approvals.Get(x.r.Context(), x.r.PathValue("id"))
	if err != nil {
		return approvalError(r, err)
	}
	return x.json(http.StatusOK, approvalView(r))
}

// decideApproval serves POST /v1/approvals/{id}/decision.
func (g *Gateway) decideApproval(x *exchange) error {
	body, err := g.object(x)
	if err != nil {
		return err
	}
	d, err := decisionOf(body)
	if err != nil {
		return err
	}
	d.By = x.principal.Identity
	r, err := g.approvals.Decide(x.r.Context(), x.r.PathValue("id"), d)
	if err != nil {
		return approvalError(r, err)
	}
	return x.json(http.StatusOK, approvalView(r))
}

func decisionOf(body map[string]any) (d approval.Decision, err error) {
	for key := range body {
		if key != "decision" && key != "reason" {
			return d, invalid("the body may hold decision and reason only")
		}
	}
	switch body["decision"] {
	case decisionApprove:
		d.Approve = true
	case decisionReject:
	default:
		return d, invalid("decision must be approve or reject")
	}
	d.Reason, _ = body["reason"].(string)
	switch {
	case d.Reason == "":
		return d, invalid("a decision needs a reason, a text")
	case len(d.Reason) > maxBecause:
		return d, invalid("reason is longer than %d bytes", maxBecause)
	}
	return d, nil
}

// approvalError tells those who come too late what happened.
func approvalError(r approval.Record, err error) error {
	late := func(code module.Code, message string) error {
		return module.Errorf(code, "%s", message).WithRetryable(module.False).WithDetails(map[string]any{
			"approval_id": r.ID, "state": string(r.State), "decision": decisionView(r),
		})
	}
	switch {
	case errors.Is(err, approval.ErrNotFound):
		return notFound("no such approval request")
	case errors.Is(err, approval.ErrExpired):
		return late(CodeGone, "the approval request has expired")
	case errors.Is(err, approval.ErrDecided) && r.DecidedAt.IsZero():
		return late(CodeConflict, "the caller has withdrawn the request")
	case errors.Is(err, approval.ErrDecided):
		return late(CodeConflict, "the request has been decided already")
	}
	return err
}

// approvalView is a request as reviewers see it. The digest stays here: short
// inputs could be guessed from it.
func approvalView(r approval.Record) map[string]any {
	changes := make([]any, len(r.Changes))
	for i, c := range r.Changes {
		changes[i] = c.Map()
	}
	m := map[string]any{
		"approval_id": r.ID, "state": string(r.State), "module_id": r.Binding.ModuleID, "version": r.Binding.Version,
		"caller_id": orNull(r.Binding.CallerID), "identity": nil, "inputs": nil, "predicted_changes": changes,
		"warnings": texts(r.Warnings), "description": r.Description, "tags": texts(r.Tags), "enrichers": texts(r.Enrichers),
		"annotations": r.Annotations.Map(), "required_because": orNull(r.Reason), "trace_id": orNull(r.TraceID),
		"call_chain": texts(r.CallChain), "created_at": timestamp(r.CreatedAt), "expires_at": timestamp(r.ExpiresAt),
		"claimed_at": timestamp(r.ClaimedAt), "decision": decisionView(r),
	}
	if r.Binding.HasIdentity {
		m["identity"] = map[string]any{"id": r.Binding.IdentityID, "type": r.Binding.IdentityType}
	}
	if r.Inputs != nil {
		m["inputs"] = r.Inputs
	}
	return m
}

// decisionView is null until somebody has decided.
func decisionView(r approval.Record) any {
	if r.DecidedAt.IsZero() {
		return nil
	}
	verdict := decisionApprove
	if r.State == approval.StateRejected {
		verdict = decisionReject
	}
	return map[string]any{
		"decision": verdict, "by": r.DecidedBy, "by_type": r.DecidedType, "reason": r.BecauseOf, "at": timestamp(r.DecidedAt),
	}
}

func approvalSchemas() map[string]any {
	var (
		text     = typed("string")
		texts    = listOf(text)
		verdict  = map[string]any{"type": "string", "enum": []any{decisionApprove, decisionReject}}
		decision = record([]string{"decision", "by", "by_type", "reason", "at"}, map[string]any{
			"decision": verdict, "by": text, "by_type": text, "reason": text, "at": text,
		})
		identity = record([]string{"id", "type"}, map[string]any{"id": text, "type": text})
		orNone   = func(s map[string]any) map[string]any { return map[string]any{"anyOf": []any{s, typed("null")}} }
	)
	return map[string]any{
		"Approval": record([]string{
			"approval_id", "state", "module_id", "version", "caller_id", "identity", "inputs", "predicted_changes", "warnings",
			"created_at", "expires_at", "decision",
		}, map[string]any{
			"approval_id": text, "module_id": text, "version": text, "caller_id": nullable("string"), "identity": orNone(identity),
			"state": map[string]any{"type": "string", "enum": []any{
				string(approval.StatePending), string(approval.StateApproved), string(approval.StateRejected),
				string(approval.StateClaimed), string(approval.StateWithdrawn), string(approval.StateExpired),
			}},
			"inputs": nullable("object"), "warnings": texts, "description": text, "tags": texts, "enrichers": texts,
			"predicted_changes": listOf(record([]string{"action", "target", "summary"}, map[string]any{
				"action": text, "target": text, "summary": text, "before": map[string]any{}, "after": map[string]any{},
			})),
			"annotations": typed("object"), "required_because": nullable("string"), "trace_id": nullable("string"),
			"call_chain": texts, "created_at": text, "expires_at": nullable("string"), "claimed_at": nullable("string"),
			"decision": orNone(decision),
		}),
		"ApprovalList": record([]string{"approvals", "next_cursor"}, map[string]any{
			"approvals": listOf(ref("Approval")), "next_cursor": nullable("string"),
		}),
		"ApprovalDecision": record([]string{"decision", "reason"}, map[string]any{"decision": verdict, "reason": text}),
	}
}
