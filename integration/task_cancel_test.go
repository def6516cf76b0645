package integration_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// treeTask is a task whose call tree crosses from n1 to n2 and back.
const treeTask = `{"module_id":"near.chain","inputs":{"path":["far.chain","near.sleep"],"input":{"ms":` + longSleep + `}}}`

// TestTaskTreesAreCancelled cancels the attempt of a task in every way: its call tree
// is listed, and ends on every node.
func TestTaskTreesAreCancelled(t *testing.T) {
	t.Parallel()
	s, n1, n2 := startPair(t)
	ways := []struct {
		name   string
		cancel func(s *system, task string, root map[string]any) []string
	}{
		{"task", func(_ *system, task string, _ map[string]any) []string { return []string{"cancel", "--task", task} }},
		{"call", func(_ *system, _ string, root map[string]any) []string {
			return []string{"cancel", fmt.Sprint(root["call"])}
		}},
		{"root", func(_ *system, _ string, root map[string]any) []string {
			return []string{"cancel", "--root", fmt.Sprint(root["call"])}
		}},
		{"trace", func(_ *system, _ string, root map[string]any) []string {
			return []string{"cancel", "--trace", fmt.Sprint(root["trace_id"])}
		}},
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			s := s.in(t)
			task := fmt.Sprint(s.do(http.MethodPost, "/v1/tasks", treeTask).doc["task_id"])
			calls := s.running("near.chain", "far.chain", "near.sleep")
			root := calls["near.chain"]
			for id, c := range calls {
				if c["root"] != root["call"] || c["trace_id"] != root["trace_id"] || c["state"] != "running" {
					t.Errorf("%s is listed as %v, its root as %v", id, c, root)
				}
			}
			if root["node"] != n1.id || root["parent"] != nil || calls["far.chain"]["parent"] != root["call"] || calls["far.chain"]["node"] != n2.id {
				t.Errorf("listed: %v", calls)
			}
			if out, p := s.cli(way.cancel(s, task, root)...); p.exit(0) != 0 {
				t.Errorf("cancel: %s %s", out, p.log())
			}
			s.running()
			s.waitIdle(startLimit, n1)
			s.waitIdle(startLimit, n2)
			if a := s.do(http.MethodGet, "/v1/tasks/"+task+"/result?wait=20s", ""); a.code() != "EXECUTION_CANCELLED" {
				t.Errorf("the task ended with %v", a)
			}
			if rec := s.get("/v1/tasks/" + task); rec.doc["status"] != "cancelled" {
				t.Errorf("the task: %v", rec)
			}
		})
	}
	// A node that dies takes the part of the tree with it that it called.
	task := fmt.Sprint(s.do(http.MethodPost, "/v1/tasks", treeTask).doc["task_id"])
	s.running("near.chain", "far.chain", "near.sleep")
	n2.kill()
	eventually(t, 20*time.Second, "the tree is gone with its middle", func() bool {
		for _, c := range s.calls() {
			if c["node"] == n1.id {
				return false
			}
		}
		return true
	})
	if a := s.do(http.MethodGet, "/v1/tasks/"+task+"/result?wait=20s", ""); a.code() != "BUS_NODE_LOST" && a.code() != "BUS_NO_RESPONDERS" {
		t.Errorf("the task ended with %v", a)
	}
}
