package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/module"
)

// TestSystemModulesOverTheBus asks a node about itself, with and without control.
func TestSystemModulesOverTheBus(t *testing.T) {
	url, client := startBus(t)
	startNode(t, "--nats", url, "--id", "n1", "--examples=math", "--sys-modules")
	n2 := startNode(t, "--nats", url, "--id", "n2", "--examples=demo", "--sys-control", "--overrides", filepath.Join(t.TempDir(), "o.yaml"))
	waitModules(t, client, "math.add", "demo.fail", "system.health.summary", "system.control.toggle_feature")

	ids := []string{"system.health.summary", "system.manifest.full", "system.usage.module", "system.control.update_config"}
	waitModules(t, client, append(ids, "system.usage.summary")...)
	hosts := map[string]int{}
	for _, id := range ids {
		info, ok := client.Module(id)
		if !ok {
			t.Fatalf("%s is not in the catalogue", id)
		}
		hosts[id] = len(info.Hosts)
	}
	want := map[string]int{"system.health.summary": 2, "system.manifest.full": 2, "system.usage.module": 2, "system.control.update_config": 1}
	if d := cmp.Diff(want, hosts); d != "" {
		t.Error(d)
	}

	if _, err := client.Call(t.Context(), "math.add", map[string]any{"a": 1, "b": 2}); err != nil {
		t.Fatal(err)
	}
	// Either node may answer, each for itself.
	// By the queue group, which picks at random, while a client stays with the
	// faster node.
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	seen := map[bool]bool{}
	for range 200 {
		m, err := nc.Request("apbus.v1.call.default._.system.usage.summary", []byte(`{"period":"1h"}`), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		var out struct {
			Modules []struct {
				ID string `json:"module_id"`
			} `json:"modules"`
		}
		if err := json.Unmarshal(m.Data, &out); err != nil || m.Header.Get("Nats-Service-Error") != "" {
			t.Fatalf("answered %v %s, %v", m.Header, m.Data, err)
		}
		knowsMath := false
		for _, known := range out.Modules {
			knowsMath = knowsMath || known.ID == "math.add"
		}
		if seen[knowsMath] = true; len(seen) == 2 {
			break
		}
	}
	if len(seen) != 2 {
		t.Errorf("only one node answers: %v", seen)
	}

	if _, err := client.Call(t.Context(), "demo.fail", nil); err == nil {
		t.Error("demo.fail did not fail")
	}
	if !strings.Contains(n2.log.String(), "apcore.health.error_threshold_exceeded") {
		t.Errorf("nobody heard of a module that always fails\n%s", n2.log)
	}

	_, err = client.Call(t.Context(), "system.control.toggle_feature",
		map[string]any{"module_id": "demo.fail", "enabled": false, "reason": "test"})
	if module.CodeOf(err) != module.CodeApprovalPending {
		t.Errorf("control call: %v, want APPROVAL_PENDING", err)
	}
}

func TestGovernanceOverTheBus(t *testing.T) {
	url, client := startBus(t)
	plain := startNode(t, "--nats", url, "--id", "n1", "--examples=math")
	startNode(t, "--nats", url, "--id", "n2", "--sys-control")
	waitModules(t, client, "math.add", "system.control.toggle_feature")
	for node, control := range map[string]bool{"n1": false, "n2": true} {
		facts, err := client.Describe(t.Context(), node)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]any{
			"control_modules_registered": control, "read_modules_registered": control, "acl_configured": false,
			"builtin_acl_gate_wired": true, "approval_handler_configured": true, "builtin_approval_gate_wired": true,
			"policy_strict": false, "all_control_modules_require_approval": control, "unprotected_control_surface": false,
		}
		if d := cmp.Diff(want, facts["governance"]); d != "" || facts["node"] != node {
			t.Errorf("%s: node %v %s", node, facts["node"], d)
		}
	}
	if strings.Contains(plain.log.String(), "unprotected") {
		t.Errorf("warned of control modules that are not there\n%s", plain.log)
	}
	if _, err := client.Describe(t.Context(), "absent"); module.CodeOf(err) != module.CodeBusNoResponders {
		t.Errorf("an absent node: %v, want BUS_NO_RESPONDERS", err)
	}
}

func TestOverridesNeedControl(t *testing.T) {
	_, err := parseArgs(t, nil, "--overrides", "x.yaml", "--sys-modules")
	if settings.ExitCode(err) != settings.ExitUsage || !strings.Contains(err.Error(), "--sys-control") {
		t.Errorf("err = %v, want a usage error that names --sys-control", err)
	}
}
