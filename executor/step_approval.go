package executor

import (
	"context"
	"log/slog"
	"strings"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// ApprovalStep is step 5. An approval handler of the executor takes the place of
// a, which may be nil (decision D-129).
func ApprovalStep(a Approver) *Step { return ApprovalStepUnder(a, nil) }

// ApprovalStepUnder is [ApprovalStep] with an execution policy of its own, which one
// of the executor replaces likewise. The policy must be valid and not change.
func ApprovalStepUnder(a Approver, policy *approval.Policy) *Step {
	s := &Step{
		Name: StepApprovalGate, Description: "ask for approval where it is required",
		Removable: true, Replaceable: true, Requires: []string{"context", "module"}, kind: kindApproval, approver: a, policy: policy,
	}
	s.Run = func(ctx context.Context, p *Pipeline) (*StepResult, error) { return nil, p.approve(ctx, s) }
	return s
}

// approve is the gate (protocol §7.4). The token is stripped on every path, from a
// copy: the caller's map stays as it is.
func (p *Pipeline) approve(ctx context.Context, s *Step) error {
	token, present, err := p.stripToken()
	if err != nil {
		return err
	}
	policy := p.x.policyOf(s)
	need := p.requirement(policy)
	if need.Override != nil {
		p.logOverride(ctx, need)
	}
	if !need.Needed {
		if need.Destructive && p.x.first("ungated", p.moduleID) {
			p.x.log.LogAttrs(ctx, levelWarn, "destructive module runs without approval", p.attrs()...)
		}
		return nil
	}
	digest := schema.ContentHash(p.inputs)
	if p.approved != "" && p.approved == digest {
		p.runnable = digest
		return nil // a retry of what was approved in this very call
	}
	handler := p.x.approverOf(s)
	if handler == nil {
		return p.approveUnasked(ctx, policy)
	}
	result, err := p.ask(ctx, handler, p.approvalRequest(need), token, present) //nolint:contextcheck // p.ctx is what the steps made of the caller's context
	if err != nil {
		return err
	}
	p.logDecision(ctx, result)
	if err := result.Err(p.moduleID); err != nil {
		return err
	}
	if digest == "" {
		return (&approval.Result{Status: approval.Rejected, Reason: "the inputs are too much to be bound to an approval"}).Err(p.moduleID)
	}
	p.approved, p.runnable = digest, digest
	return nil
}

// enriched lets pass what declared enrichers, of whom the reviewer was told, and
// nobody else made of the approved inputs. Digests are compared, since a map can
// be changed in place.
func (p *Pipeline) enriched(given string) {
	declared, undeclared := p.call.InputChanges()
	if given == p.approved && len(declared) > 0 && len(undeclared) == 0 {
		p.runnable = schema.ContentHash(p.inputs)
	}
}

// unapproved refuses inputs that are not the ones that were approved: the gate
// stands before the middlewares.
func (p *Pipeline) unapproved(ctx context.Context) error {
	if p.approved == "" || (p.runnable != "" && p.runnable == schema.ContentHash(p.inputs)) {
		return nil
	}
	why := "inputs were changed after they were approved"
	if _, undeclared := p.call.InputChanges(); len(undeclared) > 0 {
		why += ", by " + strings.Join(undeclared, ", ")
	}
	denied := &approval.Result{Status: approval.Rejected, Reason: why}
	p.logDecision(ctx, denied)
	return denied.Err(p.moduleID)
}

// stripToken takes the approval token out of the inputs.
func (p *Pipeline) stripToken() (token string, present bool, err error) {
	p.inputs, token, present, err = approval.StripToken(p.inputs)
	return token, present, err
}

// requirement unites every source that may ask for approval (protocol §6.9).
func (p *Pipeline) requirement(policy *approval.Policy) approval.Requirement {
	if p.entry == nil {
		return approval.Requirement{Needed: p.aclApproval}
	}
	a := &p.entry.Descriptor.Annotations
	if policy == nil {
		return approval.Requirement{
			Needed: a.RequiresApproval || p.aclApproval, RequiresApproval: a.RequiresApproval, Destructive: a.Destructive,
		}
	}
	return policy.Require(p.moduleID, *a, p.aclApproval)
}

// approveUnasked decides without a handler: a strict policy denies, otherwise the
// call goes on with a warning.
func (p *Pipeline) approveUnasked(ctx context.Context, policy *approval.Policy) error {
	if policy != nil && policy.Strict {
		denied := &approval.Result{Status: approval.Rejected, Reason: "approval is required and there is no approval handler"}
		p.logDecision(ctx, denied)
		return denied.Err(p.moduleID)
	}
	if p.x.first("unasked", p.moduleID) {
		p.x.log.LogAttrs(ctx, levelWarn, "approval is required and there is no approval handler, module runs", p.attrs()...)
	}
	return nil
}

// ask waits for the handler as long as the call itself may take. A failure of the
// handler is passed on unchanged.
func (p *Pipeline) ask(ctx context.Context, handler Approver, r *approval.Request, token string, present bool) (*approval.Result, error) {
	if d := p.clock.deadline; !d.IsZero() {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadlineCause(ctx, d, &cancel.Cause{Reason: cancel.Timeout, Text: "the time of the call is over", At: d})
		defer stop()
	}
	ref := p.ref()
	got, finished := await(ctx, p.x, p.moduleID, func(ctx context.Context) (result *approval.Result, err error) {
		defer func() {
			if v := recover(); v != nil {
				err = ref.panicked(ctx, StepApprovalGate, v, module.CodeInternal)
			}
		}()
		if present {
			return handler.CheckApproval(ctx, token, r)
		}
		return handler.RequestApproval(ctx, r)
	})
	if !finished || (got.err != nil && ctx.Err() != nil && module.AsError(got.err) == nil) {
		return nil, p.ended(ctx)
	}
	if got.err != nil {
		p.foreign = true
		return nil, got.err
	}
	return got.value, nil
}

// approvalRequest is what the handler sees.
func (p *Pipeline) approvalRequest(need approval.Requirement) *approval.Request {
	d := p.entry.Descriptor
	a := d.Annotations
	a.RequiresApproval, a.Destructive = true, need.Destructive
	r := &approval.Request{
		ModuleID: p.moduleID, Version: d.EffectiveVersion(), Arguments: p.inputs, Context: p.mctx, Annotations: a,
		CallerID: p.mctx.CallerID(), Action: p.moduleID, Description: d.Description, Tags: d.Tags, Reason: need.Reason,
		Enrichers: p.x.chain.Chain().Enrichers(),
	}
	ctx := p.ctx
	view := introspection{p.ref()}
	if p.entry.Previewer != nil {
		r.Preview = func() []module.Change { changes, _, _ := view.preview(ctx); return changes }
	}
	if p.entry.Preflighter != nil {
		r.Preflight = func() []string { return view.preflight(ctx) }
	}
	return r
}

func (p *Pipeline) logDecision(ctx context.Context, r *approval.Result) {
	if r == nil {
		r = &approval.Result{Status: approval.Rejected}
	}
	level := levelWarn
	if r.Status == approval.Approved || r.Status == approval.Pending {
		level = slog.LevelInfo
	}
	p.x.log.LogAttrs(ctx, level, "approval decided", p.attrs(
		slog.String("event", module.EventApprovalDecision), slog.String("status", string(r.Status)),
		slog.String("approved_by", r.ApprovedBy), slog.String("reason", r.Reason), slog.String("approval_id", r.ApprovalID))...)
	severity := module.SeverityInfo
	if level == levelWarn {
		severity = module.SeverityWarn
	}
	p.emit(module.EventApprovalDecision, severity, map[string]any{
		"status": string(r.Status), "approved_by": nullable(r.ApprovedBy), "reason": nullable(r.Reason),
		"approval_id": nullable(r.ApprovalID),
	})
}

func (p *Pipeline) logOverride(ctx context.Context, need approval.Requirement) {
	p.x.log.LogAttrs(ctx, slog.LevelInfo, "policy override", p.attrs(
		slog.String("event", module.EventPolicyOverride), slog.String("pattern", need.Override.Pattern),
		slog.Bool("requires_approval", need.RequiresApproval), slog.Bool("destructive", need.Destructive),
		slog.Bool("needs_approval", need.Needed), slog.String("reason", need.Reason))...)
	p.emit(module.EventPolicyOverride, module.SeverityInfo, map[string]any{
		"pattern": need.Override.Pattern, "requires_approval": need.RequiresApproval, "destructive": need.Destructive,
		"needs_approval": need.Needed, "reason": nullable(need.Reason),
	})
}
