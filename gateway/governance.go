package gateway

import "net/http"

// governanceKeys are the booleans of the state, which observes and judges nothing
// (protocol §6.6.5).
func governanceKeys() []string {
	return []string{
		"control_modules_registered", "read_modules_registered", "acl_configured", "builtin_acl_gate_wired",
		"approval_handler_configured", "builtin_approval_gate_wired", "policy_strict",
		"all_control_modules_require_approval", "unprotected_control_surface",
	}
}

// flags are the schemas of booleans.
func flags(keys []string) map[string]any {
	out := make(map[string]any, len(keys))
	for _, key := range keys {
		out[key] = typed("boolean")
	}
	return out
}

// showGovernance serves GET /v1/governance.
func (g *Gateway) showGovernance(x *exchange) error {
	nodes, err := g.governance.Governance(x.r.Context())
	if err != nil {
		return err
	}
	list := make([]any, len(nodes))
	for i, n := range nodes {
		view := map[string]any{"node": n.Node, "boot": n.Boot, "governance": nil}
		if state, ok := governanceOf(n.State); ok {
			view["governance"] = state
		}
		list[i] = view
	}
	return x.json(http.StatusOK, map[string]any{"nodes": list})
}

// governanceOf keeps what the state consists of. A node that leaves a boolean out
// did not say: a missing one must not read as false.
func governanceOf(state map[string]any) (map[string]any, bool) {
	out := map[string]any{}
	for _, key := range governanceKeys() {
		v, ok := state[key].(bool)
		if !ok {
			return nil, false
		}
		out[key] = v
	}
	return out, true
}
