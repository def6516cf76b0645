//go:build conformance

package conformance_test

import (
	"context"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/module"
)

// reviewer answers every request alike and keeps what it was asked.
type reviewer struct {
	answer *approval.Result
	asked  []*approval.Request
}

func (r *reviewer) RequestApproval(_ context.Context, q *approval.Request) (*approval.Result, error) {
	r.asked = append(r.asked, q)
	return r.answer, nil
}

func (r *reviewer) CheckApproval(ctx context.Context, _ string, q *approval.Request) (*approval.Result, error) {
	return r.RequestApproval(ctx, q)
}

func driveApprovalGate(c *kase) {
	m := trivial("demo.guarded")
	m.desc.Annotations.RequiresApproval = c.at("module_requires_approval").flag()
	ran := false
	m.execute = func(context.Context, map[string]any) (map[string]any, error) {
		ran = true
		return map[string]any{}, nil
	}
	r := &reviewer{}
	if n := c.at("approval_result"); !n.null() {
		r.answer = &approval.Result{
			Status: approval.Status(n.at("status").str()), ApprovedBy: n.at("approved_by").text(), Reason: n.at("reason").text(),
			ApprovalID: n.at("approval_id").text(), Metadata: n.at("metadata").fields(),
		}
	}
	var opts []executor.Option
	if c.at("approval_handler_configured").flag() {
		opts = append(opts, executor.WithApproval(r))
	}
	_, err := c.executor(opts, m).Call(c.t.Context(), "demo.guarded", nil)
	want := c.at("expected")
	if got := len(r.asked) == 1; got != want.at("gate_invoked").flag() {
		c.Errorf("asked %d times", len(r.asked))
	}
	switch outcome := want.at("outcome").str(); outcome {
	case "proceed":
		c.wantCode(err, "")
	case "error":
		c.wantCode(err, want.at("error_code").str())
	default:
		c.Fatalf("driver: unknown outcome %s", outcome)
	}
	if ran != (err == nil) {
		c.Errorf("ran = %t, error %v", ran, err)
	}
	if id := want.opt("approval_id").text(); id != "" {
		equal(c, "approval id", any(id), module.AsError(err).Details["approval_id"])
		if answer, ok := approval.ResultOf(err); !ok || answer.ApprovalID != id {
			c.Errorf("the error carries %+v", answer)
		}
	}
}

func driveApprovalRequest(c *kase) {
	target, caller := c.at("target_id").str(), c.at("caller_id").text()
	m := trivial(target)
	m.desc.Annotations.RequiresApproval = true
	modules := []module.Module{m}
	entry := target
	if caller != "" {
		entry = caller
		modules = append(modules, function(caller, func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			return module.Call(ctx, target, nil)
		}))
	}
	r := &reviewer{answer: &approval.Result{Status: approval.Approved}}
	_, err := c.executor([]executor.Option{executor.WithApproval(r)}, modules...).Call(c.t.Context(), entry, nil)
	c.wantCode(err, "")
	if len(r.asked) != 1 {
		c.Fatalf("asked %d times", len(r.asked))
	}
	equal(c, "caller", c.at("expected_request_caller_id").text(), r.asked[0].CallerID)
	equal(c, "action", c.at("expected_request_action").str(), r.asked[0].Action)
}
