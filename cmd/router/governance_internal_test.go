package main

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/executor/system"
)

// hostSystem runs a node with all system modules and nothing in front of them.
func (s *router) hostSystem(t *testing.T, id string) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	x, err := executor.New(registry.New(registry.Options{Logger: log}), executor.Config{}, executor.WithLogger(log))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := system.Register(t.Context(), x, system.Options{Groups: append(system.ReadGroups(), system.Control), Logger: log}); err != nil {
		t.Fatal(err)
	}
	conns, err := bus.Connect(t.Context(), bus.Options{Servers: []string{s.nats}, Name: id, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conns.Close)
	node, err := bus.NewNode(conns, x, bus.NodeOptions{
		ID: id, Logger: log, Governance: func() map[string]any { return x.GovernanceState().Map() },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Errorf("close node %s: %v", id, err)
		}
	})
	s.eventually(t, "the node shows", func() bool {
		return strings.Contains(s.request(t, "GET", "/v1/nodes", "").body, `"`+id+`"`)
	})
}

func TestGovernanceOfTheFleet(t *testing.T) {
	s := startRouter(t, free(t)...)
	s.host(t, "n1", adder())
	s.hostSystem(t, "n2")
	res := s.request(t, "GET", "/v1/governance", "")
	var got struct {
		Nodes []struct {
			Node, Boot string
			Governance map[string]bool
		}
	}
	if err := json.Unmarshal([]byte(res.body), &got); err != nil || res.status != 200 || len(got.Nodes) != 2 {
		t.Fatalf("got %d %s", res.status, res.body)
	}
	// The first node is of a kind that does not tell.
	if n := got.Nodes[0]; n.Node != "n1" || n.Boot == "" || n.Governance != nil {
		t.Errorf("n1: %+v", n)
	}
	want := map[string]bool{
		"control_modules_registered": true, "read_modules_registered": true, "acl_configured": false, "builtin_acl_gate_wired": true,
		"approval_handler_configured": false, "builtin_approval_gate_wired": true, "policy_strict": false,
		"all_control_modules_require_approval": true, "unprotected_control_surface": true,
	}
	if n := got.Nodes[1]; n.Node != "n2" || cmp.Diff(want, n.Governance) != "" {
		t.Errorf("n2: %+v\n%s", n, cmp.Diff(want, n.Governance))
	}

	// A router that starts now finds the node and says so.
	second := startRouter(t, "--listen", "127.0.0.1:0", "--nats", s.nats)
	second.eventually(t, "the router warns", func() bool {
		return strings.Contains(second.log.String(), "control modules of a node are unprotected")
	})
	if strings.Contains(s.log.String(), "unprotected") {
		t.Errorf("the first router warned of a node that it did not see at its start\n%s", s.log)
	}
}
