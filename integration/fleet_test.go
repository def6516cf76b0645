package integration_test

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// names lists the nodes of some rows of a fleet's answer.
func names(doc map[string]any, key string) string {
	var ids []string
	for _, row := range list(doc, key) {
		id, _ := row["node"].(string)
		ids = append(ids, id)
	}
	return strings.Join(ids, " ")
}

// TestFleetAnswers asks the router what only the nodes know, while one of three nodes
// is frozen: over HTTP, over the bus, and one node by name. A change reaches all.
func TestFleetAnswers(t *testing.T) {
	t.Parallel()
	s := startSystem(t, "--sys-control")
	nodes := s.startNodes([]string{"n1", "math", "--sys-control", "--approvals", "memory"}, []string{"n2", "math,text", "--sys-modules"},
		[]string{"n3", "math", "--sys-modules"}, []string{"n4", "math"})
	for range 4 {
		for _, node := range []string{"n1", "n2"} {
			if a := s.call("math.add", `{"a":1,"b":2}`, "Apbus-Node: "+node); a.status != http.StatusOK {
				t.Fatalf("call on %s: %v", node, a)
			}
		}
	}
	nodes[2].freeze()

	began := time.Now()
	a := s.call("system.usage.summary", "{}")
	if took := time.Since(began); a.status != http.StatusOK || took > 5*time.Second {
		t.Fatalf("after %v: %v", took, a)
	}
	if got := []string{names(a.doc, "nodes"), names(a.doc, "silent"), names(a.doc, "absent")}; strings.Join(got, "|") != "n1 n2|n3|n4" {
		t.Errorf("answered, silent, absent: %q", got)
	}
	if total, _ := a.doc["total_calls"].(float64); total < 8 {
		t.Errorf("total_calls %v, want those of both nodes", a.doc["total_calls"])
	}
	if a := s.call("system.health.summary", "{}", "Apbus-Node: n2"); a.status != http.StatusOK || a.doc["nodes"] != nil || a.doc["modules"] == nil {
		t.Errorf("of one node: %v", a)
	}
	out, p := s.cli("--nats", s.nats, "call", "system.manifest.full", "include_schemas=false", "--node", "router", "--json")
	if p.exit(0) != 0 || !strings.Contains(out, `"nodes":["n1","n2"]`) || !strings.Contains(out, `"silent":[{`) || !strings.Contains(out, `"node":"n3"`) {
		t.Errorf("over the bus: %s", p.log())
	}
	out, p = s.cli("--nats", s.nats, "call", "system.manifest.module", "module_id=math.add", "--json")
	if p.exit(0) != 0 || strings.Contains(out, `"nodes"`) {
		t.Errorf("over the bus, of nobody by name: %s", p.log())
	}
	// A person is asked by the one node that takes changes.
	a = s.call("system.control.toggle_feature", `{"module_id":"math.add","enabled":false,"reason":"a test"}`)
	if a.status != http.StatusAccepted || a.code() != "APPROVAL_PENDING" || names(a.details(), "nodes") != "n1" {
		t.Errorf("control: %v", a)
	}
	nodes[2].thaw()
}
