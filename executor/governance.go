package executor

import (
	"strings"

	"github.com/apbus/apbus/executor/approval"
)

// GovernanceState is what stands in front of the modules, observed and not judged
// (core-executor seed, Governance State API). An ACL or a handler that is configured
// gates nothing unless the running strategy holds the built-in step that asks it,
// and the approval gate lets everything pass that needs no approval.
type GovernanceState struct {
	// ControlModulesRegistered is true when there is a module system.control.*,
	// ReadModulesRegistered when there is one of system.health.*, system.usage.* or
	// system.manifest.*.
	ControlModulesRegistered, ReadModulesRegistered bool
	// ACLConfigured, ApprovalHandlerConfigured and PolicyStrict say what the running
	// gate holds, or, without that gate, what the executor was given.
	ACLConfigured             bool
	BuiltinACLGateWired       bool
	ApprovalHandlerConfigured bool
	BuiltinApprovalGateWired  bool
	PolicyStrict              bool
	// AllControlModulesRequireApproval goes by annotations, live and declared, and
	// never by policy; false when there are no control modules.
	AllControlModulesRequireApproval bool
	// UnprotectedControlSurface is derived: there are control modules and no
	// recognised gate is configured, wired and engaged for them. False does not say
	// that anything is protected, nor true that a call would succeed.
	UnprotectedControlSurface bool
}

// GovernanceState observes the executor as it is now. It neither changes nor asks
// anything, so it may be called at any time. Gates are recognised by what they are,
// never by name.
func (x *Executor) GovernanceState() GovernanceState {
	s := GovernanceState{
		ACLConfigured:             x.acl.Load() != nil,
		ApprovalHandlerConfigured: x.approver.Load() != nil,
	}
	if p := x.policy.Load(); p != nil {
		s.PolicyStrict = p.Strict
	}
	running := x.strategy.Load()
	if gate := running.find(kindACL); gate != nil {
		s.BuiltinACLGateWired = true
		s.ACLConfigured = x.authorizerOf(gate) != nil
	}
	if gate := running.find(kindApproval); gate != nil {
		s.BuiltinApprovalGateWired = true
		s.ApprovalHandlerConfigured = x.approverOf(gate) != nil
		p := x.policyOf(gate)
		s.PolicyStrict = p != nil && p.Strict
	}
	x.observeSystemModules(&s)
	approvals := s.BuiltinApprovalGateWired && s.AllControlModulesRequireApproval &&
		(s.ApprovalHandlerConfigured || s.PolicyStrict)
	s.UnprotectedControlSurface = s.ControlModulesRegistered && !(s.ACLConfigured && s.BuiltinACLGateWired) && !approvals
	return s
}

func (x *Executor) observeSystemModules(s *GovernanceState) {
	ungated := false
	for _, d := range x.reg.Descriptors() {
		switch {
		case strings.HasPrefix(d.ID, "system.control."):
			s.ControlModulesRegistered = true
			ungated = ungated || !d.Annotations.RequiresApproval
		case strings.HasPrefix(d.ID, "system.health."), strings.HasPrefix(d.ID, "system.usage."),
			strings.HasPrefix(d.ID, "system.manifest."):
			s.ReadModulesRegistered = true
		}
	}
	s.AllControlModulesRequireApproval = s.ControlModulesRegistered && !ungated
}

// Map returns the wire form, nine booleans.
func (s GovernanceState) Map() map[string]any {
	return map[string]any{
		"control_modules_registered": s.ControlModulesRegistered, "read_modules_registered": s.ReadModulesRegistered,
		"acl_configured": s.ACLConfigured, "builtin_acl_gate_wired": s.BuiltinACLGateWired,
		"approval_handler_configured": s.ApprovalHandlerConfigured, "builtin_approval_gate_wired": s.BuiltinApprovalGateWired,
		"policy_strict": s.PolicyStrict, "all_control_modules_require_approval": s.AllControlModulesRequireApproval,
		"unprotected_control_surface": s.UnprotectedControlSurface,
	}
}

// The providers of a gate: what the executor was given comes before what the step
// was made with (decision D-129).

func (x *Executor) authorizerOf(gate *Step) Authorizer {
	if set := x.acl.Load(); set != nil {
		return *set
	}
	return gate.acl
}

func (x *Executor) approverOf(gate *Step) Approver {
	if set := x.approver.Load(); set != nil {
		return *set
	}
	return gate.approver
}

func (x *Executor) policyOf(gate *Step) *approval.Policy {
	if set := x.policy.Load(); set != nil {
		return set
	}
	return gate.policy
}
