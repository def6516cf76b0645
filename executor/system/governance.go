package system

import (
	"log/slog"
	"slices"
)

// warnUnprotected tells of control modules that nobody has to approve: without a
// handler the gate is skipped, unless the policy is strict.
func (m *Modules) warnUnprotected(groups []Group) {
	if !slices.Contains(groups, Control) {
		return
	}
	s := m.x.GovernanceState()
	if !s.ApprovalHandlerConfigured && !s.PolicyStrict {
		m.log.Warn("control modules are registered, but there is no approval handler and no strict policy",
			slog.Bool("unprotected_control_surface", s.UnprotectedControlSurface))
	}
}
