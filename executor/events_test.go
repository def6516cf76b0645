package executor_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/module"
)

func TestEvents(t *testing.T) {
	says := func(r approval.Result) executor.Option {
		return executor.WithApproval(approval.Callback(func(context.Context, *approval.Request) (*approval.Result, error) { return &r, nil }))
	}
	gated := &approval.Policy{Rules: []approval.PolicyRule{{Pattern: "m", RequiresApproval: module.True, Reason: "audit"}}}
	override := module.Event{Type: "apcore.policy.override", Severity: "info", Data: entry(
		"pattern", "m", "requires_approval", true, "destructive", false, "needs_approval", true, "reason", "audit")}
	tests := []struct {
		name string
		opts []executor.Option
		want []module.Event
	}{
		{"nothing to tell", nil, nil},
		{"denied", []executor.Option{executor.WithACL(decides(acl.Decision{Reason: "default_effect"}))}, []module.Event{
			{Type: "apcore.acl.denied", Severity: "warn", Data: entry("caller_id", nil, "reason", "default_effect")}}},
		{"approved", []executor.Option{executor.WithPolicy(gated), says(approval.Result{Status: approval.Approved, ApprovedBy: "ana"})}, []module.Event{
			override, {Type: "apcore.approval.decision", Severity: "info", Data: entry("status", "approved", "approved_by", "ana", "reason", nil, "approval_id", nil)}}},
		{"rejected", []executor.Option{executor.WithPolicy(gated), says(approval.Result{Status: approval.Rejected, Reason: "no"})}, []module.Event{
			override, {Type: "apcore.approval.decision", Severity: "warn", Data: entry("status", "rejected", "approved_by", nil, "reason", "no", "approval_id", nil)}}},
		{"pending", []executor.Option{executor.WithPolicy(gated), says(approval.Result{Status: approval.Pending, ApprovalID: "a1"})}, []module.Event{
			override, {Type: "apcore.approval.decision", Severity: "info", Data: entry("status", "pending", "approved_by", nil, "reason", nil, "approval_id", "a1")}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []module.Event
			x := setup{modules: []module.Module{fn("m", echo)}, opts: append([]executor.Option{executor.WithEvents(func(e module.Event) {
				if e.At.IsZero() || e.Data["trace_id"] == "" || e.Data["module_id"] != "m" || e.ModuleID != "m" {
					t.Errorf("event = %+v", e)
				}
				delete(e.Data, "trace_id")
				delete(e.Data, "module_id")
				got = append(got, module.Event{Type: e.Type, Severity: e.Severity, Data: e.Data})
			})}, tt.opts...)}.executor(t)
			x.Validate(t.Context(), "m", nil) // tells nothing
			if len(got) > 0 {
				t.Errorf("validation told %v", got)
			}
			_, _ = x.Call(t.Context(), "m", nil)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEventHookPanics(t *testing.T) {
	j := &journal{}
	x := setup{log: j, modules: []module.Module{fn("m", echo)}, opts: []executor.Option{
		executor.WithEvents(func(module.Event) { panic("x") }), executor.WithACL(decides(acl.Decision{}))}}.executor(t)
	_, err := x.Call(t.Context(), "m", nil)
	wantCode(t, err, module.CodeACLDenied)
	if j.count("event hook panicked") != 1 {
		t.Errorf("log:\n%s", j)
	}
}
