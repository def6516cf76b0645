package executor_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

type never struct{ t *testing.T }

func (n never) RequestApproval(context.Context, *approval.Request) (*approval.Result, error) {
	n.t.Error("an observation asked the approval handler")
	return nil, nil
}

func (n never) CheckApproval(ctx context.Context, _ string, r *approval.Request) (*approval.Result, error) {
	return n.RequestApproval(ctx, r)
}

func TestGovernanceState(t *testing.T) {
	allow := decides(acl.Decision{Allowed: true})
	lookalike := func() *executor.Strategy {
		s := executor.Standard()
		for _, name := range []string{"acl_check", "approval_gate"} {
			if err := s.ConfigureStep(name, &executor.Step{Name: name, Run: nop}); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	own := func() *executor.Strategy {
		s := executor.Standard()
		for name, gate := range map[string]*executor.Step{
			"acl_check":     executor.ACLStep(allow),
			"approval_gate": executor.ApprovalStepUnder(never{t}, &approval.Policy{Strict: true}),
		} {
			if err := s.ConfigureStep(name, gate); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	handler, strict := executor.WithApproval(never{t}), executor.WithPolicy(&approval.Policy{Strict: true})
	wired := executor.GovernanceState{BuiltinACLGateWired: true, BuiltinApprovalGateWired: true}
	with := func(s executor.GovernanceState, change func(*executor.GovernanceState)) executor.GovernanceState {
		change(&s)
		return s
	}
	type gs = executor.GovernanceState
	tests := []struct {
		name    string
		control []bool // one module each, whether it requires approval
		read    bool
		opts    []executor.Option
		want    gs
	}{
		{"nothing", nil, false, nil, wired},
		{"read modules only", nil, true, nil, with(wired, func(s *gs) { s.ReadModulesRegistered = true })},
		{"control without gates", []bool{true}, true, nil, with(wired, func(s *gs) {
			s.ControlModulesRegistered, s.ReadModulesRegistered, s.AllControlModulesRequireApproval = true, true, true
			s.UnprotectedControlSurface = true
		})},
		{"acl", []bool{false}, false, []executor.Option{executor.WithACL(allow)}, with(wired, func(s *gs) {
			s.ControlModulesRegistered, s.ACLConfigured = true, true
		})},
		{"acl that nobody asks", []bool{true}, false, []executor.Option{executor.WithACL(allow), executor.WithStrategy(executor.Internal())}, gs{
			ControlModulesRegistered: true, ACLConfigured: true, AllControlModulesRequireApproval: true, UnprotectedControlSurface: true,
		}},
		{"handler that nobody asks", []bool{true}, false, []executor.Option{handler, strict, executor.WithStrategy(executor.Internal())}, gs{
			ControlModulesRegistered: true, ApprovalHandlerConfigured: true, PolicyStrict: true, AllControlModulesRequireApproval: true, UnprotectedControlSurface: true,
		}},
		{"look-alikes are no gates", []bool{true}, false, []executor.Option{executor.WithACL(allow), handler, executor.WithStrategy(lookalike())}, gs{
			ControlModulesRegistered: true, ACLConfigured: true, ApprovalHandlerConfigured: true, AllControlModulesRequireApproval: true, UnprotectedControlSurface: true,
		}},
		{"handler", []bool{true, true}, false, []executor.Option{handler}, with(wired, func(s *gs) {
			s.ControlModulesRegistered, s.ApprovalHandlerConfigured, s.AllControlModulesRequireApproval = true, true, true
		})},
		{"handler that one module passes by", []bool{true, false}, false, []executor.Option{handler, strict}, with(wired, func(s *gs) {
			s.ControlModulesRegistered, s.ApprovalHandlerConfigured, s.PolicyStrict, s.UnprotectedControlSurface = true, true, true, true
		})},
		{"strict policy", []bool{true}, false, []executor.Option{strict}, with(wired, func(s *gs) {
			s.ControlModulesRegistered, s.PolicyStrict, s.AllControlModulesRequireApproval = true, true, true
		})},
		{"policy does not count as annotation", []bool{false}, false, []executor.Option{handler, executor.WithPolicy(&approval.Policy{
			Rules: []approval.PolicyRule{{Pattern: "system.*", RequiresApproval: module.True}},
		})}, with(wired, func(s *gs) {
			s.ControlModulesRegistered, s.ApprovalHandlerConfigured, s.UnprotectedControlSurface = true, true, true
		})},
		{"what the gates hold themselves", []bool{true}, false, []executor.Option{executor.WithStrategy(own())}, with(wired, func(s *gs) {
			s.ControlModulesRegistered, s.AllControlModulesRequireApproval = true, true
			s.ACLConfigured, s.ApprovalHandlerConfigured, s.PolicyStrict = true, true, true
		})},
		{"the executor's outrank them", []bool{true}, false, []executor.Option{executor.WithStrategy(own()), executor.WithPolicy(&approval.Policy{})}, with(wired, func(s *gs) {
			s.ControlModulesRegistered, s.AllControlModulesRequireApproval = true, true
			s.ACLConfigured, s.ApprovalHandlerConfigured = true, true
		})},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := &journal{}
			x, reg := setup{log: j, opts: tt.opts}.build(t)
			for i, requires := range tt.control {
				m := fn("system.control.m"+string(rune('0'+i)), echo)
				m.desc.Annotations.RequiresApproval = requires
				if err := reg.RegisterInternal(m); err != nil {
					t.Fatal(err)
				}
			}
			if tt.read {
				if err := reg.RegisterInternal(fn("system.health.summary", echo)); err != nil {
					t.Fatal(err)
				}
			}
			before := j.String()
			got := x.GovernanceState()
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if again := x.GovernanceState(); again != got || j.String() != before {
				t.Error("observing changed or said something")
			}
			if m := got.Map(); len(m) != 9 || m["unprotected_control_surface"] != got.UnprotectedControlSurface {
				t.Errorf("map = %v", m)
			}
		})
	}
}

func TestGovernanceStateIsLive(t *testing.T) {
	x, reg := setup{}.build(t)
	if x.GovernanceState().ControlModulesRegistered {
		t.Fatal("nothing is registered")
	}
	// A declaration counts like the module's own annotation.
	err := reg.RegisterDeclared(t.Context(), fn("plain", echo), registry.Declaration{})
	if err == nil {
		err = reg.RegisterInternal(fn("system.control.stop", echo))
	}
	if err != nil {
		t.Fatal(err)
	}
	if s := x.GovernanceState(); !s.UnprotectedControlSurface {
		t.Errorf("%+v", s)
	}
	x.SetACL(decides(acl.Decision{}))
	if s := x.GovernanceState(); s.UnprotectedControlSurface || !s.ACLConfigured {
		t.Errorf("%+v", s)
	}
	if err := x.SetStrategy(executor.Minimal()); err != nil {
		t.Fatal(err)
	}
	if s := x.GovernanceState(); !s.UnprotectedControlSurface || s.BuiltinACLGateWired {
		t.Errorf("%+v", s)
	}
	reg.Unregister(t.Context(), "system.control.stop")
	if s := x.GovernanceState(); s.ControlModulesRegistered || s.UnprotectedControlSurface {
		t.Errorf("%+v", s)
	}
}

// A call goes by what the accessor reports: providers are bound to the gates by
// type, whoever made the strategy (decision D-129).
func TestProviderBinding(t *testing.T) {
	deny, allow := decides(acl.Decision{}), decides(acl.Decision{Allowed: true})
	with := func(gates ...*executor.Step) *executor.Strategy {
		s := executor.Standard()
		for _, g := range gates {
			if err := s.ConfigureStep(g.Name, g); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	needs := fn("m", echo)
	needs.desc.Annotations.RequiresApproval = true
	strict := &approval.Policy{Strict: true}
	tests := []struct {
		name string
		m    *mod
		opts []executor.Option
		want module.Code
	}{
		{"executor's acl on a bare instance", fn("m", echo), []executor.Option{executor.WithStrategy(with()), executor.WithACL(deny)}, module.CodeACLDenied},
		{"by preset name", fn("m", echo), []executor.Option{executor.WithStrategyName("standard"), executor.WithACL(deny)}, module.CodeACLDenied},
		{"executor's acl outranks the step's", fn("m", echo), []executor.Option{executor.WithStrategy(with(executor.ACLStep(allow))), executor.WithACL(deny)}, module.CodeACLDenied},
		{"step's own acl", fn("m", echo), []executor.Option{executor.WithStrategy(with(executor.ACLStep(deny)))}, module.CodeACLDenied},
		{"executor's handler on a bare instance", needs, []executor.Option{executor.WithStrategy(with()), executor.WithApproval(approval.AlwaysDeny{})}, module.CodeApprovalDenied},
		{"executor's strict policy on a bare instance", needs, []executor.Option{executor.WithStrategy(with()), executor.WithPolicy(strict)}, module.CodeApprovalDenied},
		{"step's own strict policy", needs, []executor.Option{executor.WithStrategy(with(executor.ApprovalStepUnder(nil, strict)))}, module.CodeApprovalDenied},
		{"executor's policy outranks the step's", needs, []executor.Option{executor.WithStrategy(with(executor.ApprovalStepUnder(nil, strict))), executor.WithPolicy(&approval.Policy{})}, ""},
		{"no gate", needs, []executor.Option{executor.WithStrategyName("internal"), executor.WithACL(deny), executor.WithPolicy(strict)}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := setup{modules: []module.Module{tt.m}, opts: tt.opts}.executor(t).Call(t.Context(), "m", nil)
			if got := module.CodeOf(err); got != tt.want {
				t.Errorf("code %q, want %q", got, tt.want)
			}
		})
	}
	s := executor.Standard()
	wantCode(t, s.ConfigureStep("approval_gate", executor.ApprovalStepUnder(nil, &approval.Policy{Rules: []approval.PolicyRule{{}}})), module.CodePipelineConfiguration)
}
