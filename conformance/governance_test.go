//go:build conformance

package conformance_test

import (
	"context"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/module"
)

// rulesNamed are the policies that cases name.
func rulesNamed(c *kase, n *node) *acl.Policy {
	if n.null() {
		return nil
	}
	var rules []acl.Rule
	switch name := n.str(); name {
	case "deny_all":
	case "allow_all":
		rules = []acl.Rule{{Callers: []string{"*"}, Targets: []string{"*"}, Effect: acl.Allow}}
	default:
		c.Fatalf("driver: unknown rules %s", name)
	}
	p, err := acl.New(rules, acl.Options{Logger: quiet()})
	if err != nil {
		c.Fatalf("rules: %v", err)
	}
	return p
}

func driveGateBinding(c *kase) {
	setup, want := c.at("setup"), c.at("expected")
	var opts []executor.Option
	own := rulesNamed(c, setup.at("strategy_acl"))
	switch form := setup.at("strategy_form").str(); form {
	case "default":
	case "preset:standard":
		opts = append(opts, executor.WithStrategyName("standard"))
	case "preset:internal":
		opts = append(opts, executor.WithStrategyName("internal"))
	case "instance:bare":
		opts = append(opts, executor.WithStrategy(executor.Standard()))
	case "instance:own_acl":
		s := executor.Standard()
		if err := s.ConfigureStep(executor.StepACLCheck, executor.ACLStep(own)); err != nil {
			c.Fatalf("configure: %v", err)
		}
		opts = append(opts, executor.WithStrategy(s))
	default:
		c.Fatalf("driver: unknown strategy %s", form)
	}
	if p := rulesNamed(c, setup.at("executor_acl")); p != nil {
		opts = append(opts, executor.WithACL(p))
	}
	switch handler := setup.at("approval_handler").text(); handler {
	case "":
	case "always_deny":
		opts = append(opts, executor.WithApproval(approval.AlwaysDeny{}))
	default:
		c.Fatalf("driver: unknown handler %s", handler)
	}
	if setup.at("policy_strict").flag() {
		opts = append(opts, executor.WithPolicy(&approval.Policy{Strict: true}))
	}
	m := trivial("demo.target")
	m.desc.Annotations.RequiresApproval = setup.at("requires_approval").flag()
	x := c.executor(opts, m)
	out, err := x.Call(c.t.Context(), "demo.target", nil)
	if code := want.at("call").str(); code == "ok" {
		equal(c, "output", map[string]any{"ok": true}, out)
	} else {
		c.wantCode(err, code)
	}
	state := x.GovernanceState().Map()
	for _, key := range want.at("governance").keys() {
		equal(c, key, any(want.at("governance").at(key).flag()), state[key])
	}
}

func nop(context.Context, *executor.Pipeline) (*executor.StepResult, error) { return nil, nil }

func driveGovernance(c *kase) {
	setup := c.at("setup")
	var modules []module.Module
	for _, n := range setup.at("control_modules").list() {
		m := trivial(n.at("module_id").str())
		m.desc.Annotations.RequiresApproval = n.at("requires_approval").flag()
		modules = append(modules, m)
	}
	if setup.at("read_modules").flag() {
		modules = append(modules, trivial("system.health.summary"))
	}
	s := executor.Standard()
	switch name := setup.at("strategy").str(); name {
	case "standard":
	case "internal":
		s = executor.Internal()
	case "lookalike_acl_check":
		s = executor.Internal()
		if err := s.InsertAfter(executor.StepModuleLookup, &executor.Step{Name: executor.StepACLCheck, Run: nop}); err != nil {
			c.Fatalf("insert: %v", err)
		}
	default:
		c.Fatalf("driver: unknown strategy %s", name)
	}
	opts := []executor.Option{executor.WithStrategy(s)}
	rules, err := acl.New(nil, acl.Options{Logger: quiet()})
	if err != nil {
		c.Fatalf("rules: %v", err)
	}
	if setup.at("acl_attached").flag() {
		opts = append(opts, executor.WithACL(rules))
	}
	r := &reviewer{answer: &approval.Result{Status: approval.Approved}}
	if setup.at("approval_handler_attached").flag() {
		opts = append(opts, executor.WithApproval(r))
	}
	if setup.at("policy_strict").flag() {
		opts = append(opts, executor.WithPolicy(&approval.Policy{Strict: true}))
	}
	x := c.executor(opts, modules...)
	state := x.GovernanceState()
	if diff := cmp.Diff(c.at("expected").fields(), state.Map()); diff != "" {
		c.Errorf("state (-want +got):\n%s", diff)
	}
	// A pure read, and never an old answer.
	equal(c, "the second look", state, x.GovernanceState())
	if len(r.asked) != 0 {
		c.Errorf("the handler was asked")
	}
	x.SetACL(rules)
	if !x.GovernanceState().ACLConfigured {
		c.Errorf("an ACL attached since is not seen")
	}
	x.SetACL(nil)
	if x.GovernanceState().ACLConfigured {
		c.Errorf("an ACL taken away is still seen")
	}
}
