package executor

import (
	"context"
	"log/slog"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/module"
)

// ACLStep is step 4. An ACL of the executor takes the place of a, which may be nil
// (decision D-129).
func ACLStep(a Authorizer) *Step {
	s := &Step{
		Name: StepACLCheck, Description: "ask the ACL",
		Pure: true, Removable: true, Replaceable: true, Requires: []string{"context", "module"}, kind: kindACL, acl: a,
	}
	s.Run = func(ctx context.Context, p *Pipeline) (*StepResult, error) { return nil, p.authorize(ctx, s) }
	return s
}

// authorize asks the ACL within its time and fails closed past it.
func (p *Pipeline) authorize(ctx context.Context, s *Step) error {
	a := p.x.authorizerOf(s)
	if a == nil {
		return nil
	}
	q := acl.Query{CallerID: p.mctx.CallerID(), TargetID: p.moduleID, Context: p.mctx}
	hints, hinted := a.(AuthorizerHints)
	if !hinted || hints.NeedsArguments() {
		q.ArgumentKeys = acl.ArgumentKeys(p.inputs)
	}
	var d acl.Decision
	if hinted && !hints.MayBlock() {
		d = a.Authorize(ctx, q)
	} else {
		var err error
		if d, err = p.authorizeTimed(ctx, a, q); err != nil {
			return err
		}
	}
	if d.Allowed {
		p.aclApproval = d.ApprovalRequired
		return nil
	}
	if !p.dryRun {
		p.x.log.LogAttrs(ctx, levelWarn, "acl denied", p.attrs(
			slog.String("event", module.EventACLDenied), slog.String("caller_id", q.CallerID), slog.String("reason", d.Reason))...)
		p.emit(module.EventACLDenied, module.SeverityWarn, map[string]any{"caller_id": nullable(q.CallerID), "reason": d.Reason})
	}
	caller := nullable(q.CallerID)
	return module.Errorf(module.CodeACLDenied, "calling %s is denied", p.moduleID).
		WithDetails(map[string]any{"caller_id": caller, "target_id": p.moduleID})
}

func (p *Pipeline) authorizeTimed(ctx context.Context, a Authorizer, q acl.Query) (acl.Decision, error) {
	base := ctx
	if limit := p.set.acl; limit > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, limit, cancel.Because(cancel.Timeout, "", "the time of the acl check is over"))
		defer stop()
	}
	ref := p.ref()
	got, finished := await(ctx, p.x, p.moduleID, func(ctx context.Context) (d acl.Decision, err error) {
		defer func() {
			if v := recover(); v != nil {
				err = ref.panicked(ctx, StepACLCheck, v, module.CodeInternal)
			}
		}()
		return a.Authorize(ctx, q), nil
	})
	switch {
	case finished && ctx.Err() == nil:
		return got.value, got.err
	case base.Err() != nil:
		return acl.Decision{}, p.ended(base)
	}
	// What a check answers after its time counts no more.
	return acl.Decision{}, module.Errorf(module.CodeModuleTimeout, "acl check of %s exceeded its time", p.moduleID).
		WithDetails(map[string]any{"module_id": p.moduleID, "timeout_ms": p.set.acl.Milliseconds()})
}
