package gateway_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

func someNodes() []gateway.Node {
	return []gateway.Node{
		{
			NodeRecord: contextwire.NodeRecord{
				Protocol: 1, Node: "n1", Boot: "b1", NS: "default", Version: "0.1.0", MaxPayload: 1 << 20, Capacity: 256, InFlight: 3,
				GraceMS: 5000, Inbox: "_INBOX.secret", At: noon,
				Modules: []contextwire.ModuleRef{{ID: "math.add", Version: "1.2.0", Hash: "abc123"}},
			},
			SeenAt: noon,
		},
		{NodeRecord: contextwire.NodeRecord{Protocol: 1, Node: "n2", Boot: "b2", NS: "default", Draining: true}, Stale: true},
	}
}

func TestListNodes(t *testing.T) {
	g := newGateway(t, func(o *gateway.Options) { o.Fleet = gateway.FleetFuncs{NodesFunc: someNodes} })
	res := record(g, "GET", "/v1/nodes", "")
	if res.status != 200 {
		t.Fatalf("got %d %s", res.status, res.body)
	}
	golden(t, "nodes", res.body)
	if res := record(newGateway(t), "GET", "/v1/nodes", ""); res.body != `{"nodes":[]}` {
		t.Errorf("without nodes: %s", res.body)
	}
}

func TestDrain(t *testing.T) {
	tests := []struct {
		name, node, body string
		err              error
		grace            time.Duration // -1: nobody is drained
		status           int
		code             module.Code
	}{
		{"without a body", "n1", "", nil, 10 * time.Second, 202, ""},
		{"empty object", "n1", "{}", nil, 10 * time.Second, 202, ""},
		{"grace", "n1", `{"grace_ms":1500}`, nil, 1500 * time.Millisecond, 202, ""},
		{"no grace", "n1", `{"grace_ms":0}`, nil, 0, 202, ""},
		{"unknown node", "n9", "{}", nil, -1, 404, gateway.CodeNotFound},
		{"negative grace", "n1", `{"grace_ms":-1}`, nil, -1, 400, module.CodeInvalidInput},
		{"grace of days", "n1", `{"grace_ms":86400001}`, nil, -1, 400, module.CodeInvalidInput},
		{"grace of text", "n1", `{"grace_ms":"1s"}`, nil, -1, 400, module.CodeInvalidInput},
		{"fraction", "n1", `{"grace_ms":1.5}`, nil, -1, 400, module.CodeInvalidInput},
		{"unknown key", "n1", `{"grace":1}`, nil, -1, 400, module.CodeInvalidInput},
		{"array", "n1", `[]`, nil, -1, 400, module.CodeBusBadMessage},
		{"gone meanwhile", "n1", "", module.Errorf(module.CodeBusNoResponders, "gone"), 10 * time.Second, 503, module.CodeBusNoResponders},
		{"failure", "n1", "", errors.New("SECRET"), 10 * time.Second, 500, module.CodeInternal},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			grace := time.Duration(-1)
			g := newGateway(t, func(o *gateway.Options) {
				o.Auth = grants{module.NewIdentity("ana", "", nil, nil), gateway.Scopes()}
				o.Fleet = gateway.FleetFuncs{NodesFunc: someNodes, DrainFunc: func(_ context.Context, node string, g time.Duration, by string) (int, error) {
					if node != tt.node || by != "ana" {
						t.Errorf("drain of %q by %q", node, by)
					}
					grace = g
					return 3, tt.err
				}}
			})
			res := record(g, "POST", "/v1/nodes/"+tt.node+"/drain", tt.body)
			if grace != tt.grace {
				t.Errorf("grace %v, want %v", grace, tt.grace)
			}
			if tt.code != "" {
				res.wantFault(t, tt.status, tt.code)
				return
			}
			if res.status != tt.status || res.body != `{"in_flight":3,"node":"n1"}` {
				t.Errorf("got %d %s", res.status, res.body)
			}
		})
	}
}
