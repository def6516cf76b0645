package gateway_test

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

func governed(change map[string]any) map[string]any {
	state := map[string]any{
		"control_modules_registered": true, "read_modules_registered": true, "acl_configured": false, "builtin_acl_gate_wired": true,
		"approval_handler_configured": true, "builtin_approval_gate_wired": true, "policy_strict": false,
		"all_control_modules_require_approval": true, "unprotected_control_surface": false,
	}
	maps.Copy(state, change)
	return state
}

func governance(err error, nodes ...gateway.NodeGovernance) func(*gateway.Options) {
	return func(o *gateway.Options) {
		o.Governance = gateway.GovernanceFunc(func(context.Context) ([]gateway.NodeGovernance, error) { return nodes, err })
	}
}

func TestGovernance(t *testing.T) {
	lacking := governed(nil)
	delete(lacking, "policy_strict")
	g := newGateway(t, governance(nil,
		gateway.NodeGovernance{Node: "n1", Boot: "b1", State: governed(map[string]any{"unprotected_control_surface": true, "is_secure": true})},
		gateway.NodeGovernance{Node: "n2", Boot: "b2"},
		gateway.NodeGovernance{Node: "n3", Boot: "b3", State: lacking},
		gateway.NodeGovernance{Node: "n4", Boot: "b4", State: governed(map[string]any{"acl_configured": "yes"})},
	))
	res := record(g, "GET", "/v1/governance", "")
	if res.status != 200 {
		t.Fatalf("got %d %s", res.status, res.body)
	}
	golden(t, "governance", res.body)
	if res := record(newGateway(t, governance(nil)), "GET", "/v1/governance", ""); res.body != `{"nodes":[]}` {
		t.Errorf("without nodes: %s", res.body)
	}
}

func TestGovernanceFails(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*gateway.Options)
		status int
		code   module.Code
	}{
		{"not available", func(*gateway.Options) {}, 501, module.CodeNotImplemented},
		{"failure", governance(errors.New("SECRET")), 500, module.CodeInternal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			record(newGateway(t, tt.change), "GET", "/v1/governance", "").wantFault(t, tt.status, tt.code)
		})
	}
}
