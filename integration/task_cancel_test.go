package integration_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// TestCancelWhateverTheTaskDoes cancels tasks that wait in every way, and one that
// runs, with and without their node. What is cancelled stays so when nodes come back.
func TestCancelWhateverTheTaskDoes(t *testing.T) {
	t.Parallel()
	s := startSystem(t, "--task-lease", "2s")
	n1 := s.startNode("n1", "demo")
	submit := func(body string) string {
		t.Helper()
		a := s.do(http.MethodPost, "/v1/tasks", body)
		id, _ := a.doc["task_id"].(string)
		if a.status != http.StatusAccepted || id == "" {
			t.Fatalf("submit %s: %v", body, a)
		}
		return id
	}
	becomes := func(id, status, detail string) {
		t.Helper()
		var rec answer
		eventually(t, startLimit, id+" is "+status+" "+detail, func() bool {
			rec = s.get("/v1/tasks/" + id)
			return rec.doc["status"] == status && (detail == "" || rec.doc["detail"] == detail)
		})
	}
	cancel := func(id, then string) {
		t.Helper()
		if a := s.do(http.MethodDelete, "/v1/tasks/"+id+"?reason=test", ""); a.status != http.StatusAccepted || a.doc["state"] != "accepted" || a.doc["status"] != then {
			t.Errorf("cancel of %s: %v, want it accepted and %s", id, a, then)
		}
	}
	effect := func(key, more string) string {
		return fmt.Sprintf(`{"module_id":"demo.effect","inputs":{"key":%q,"ms":%s}%s}`, key, longSleep, more)
	}

	pending := submit(`{"module_id":"nobody.hosts"}`)
	becomes(pending, "pending", "blocked")
	cancel(pending, "cancelled")

	scheduled := submit(effect("scheduled", `,"run_at":"`+time.Now().Add(4*time.Second).UTC().Format(time.RFC3339)+`"`))
	becomes(scheduled, "pending", "scheduled")
	cancel(scheduled, "cancelled")

	backing := submit(`{"module_id":"demo.fail","retry":{"max_retries":5,"retry_delay_ms":4000}}`)
	becomes(backing, "pending", "backing_off")
	cancel(backing, "cancelled")

	begun := func(key string) {
		t.Helper()
		eventually(t, startLimit, "the module of "+key+" has begun", func() bool {
			return slices.ContainsFunc(s.effectLines(), func(line string) bool { return strings.HasPrefix(line, key+" ") })
		})
	}
	running := submit(effect("running", ""))
	becomes(running, "running", "")
	begun("running")
	cancel(running, "running")
	becomes(running, "cancelled", "")
	s.waitIdle(startLimit, n1)

	// With every node gone: what it had ends with the lease, what waits ends at once.
	had := submit(effect("had", `,"on_crash":"retry"`))
	becomes(had, "running", "")
	begun("had")
	n1.kill()
	waits := submit(effect("waits", ""))
	cancel(waits, "cancelled")
	cancel(had, "running")
	becomes(had, "cancelled", "")

	s.startNode("n2", "demo")
	probe := submit(`{"module_id":"demo.effect","inputs":{"key":"probe"}}`)
	becomes(probe, "completed", "")
	eventually(t, startLimit, "what was scheduled would have started", func() bool {
		run, err := time.Parse(time.RFC3339, fmt.Sprint(s.get("/v1/tasks/" + scheduled).doc["run_at"]))
		return err != nil || time.Since(run) > time.Second
	})
	for _, id := range []string{pending, scheduled, backing, running, had, waits} {
		rec := s.get("/v1/tasks/" + id)
		if asked, _ := rec.doc["cancel_requested"].(map[string]any); rec.doc["status"] != "cancelled" || asked["reason"] != "test" {
			t.Errorf("in the end: %v", rec)
		}
	}
	started := map[string]bool{}
	for _, line := range s.effectLines() {
		key, _, _ := strings.Cut(line, " ")
		if started[key] {
			t.Errorf("%s was started twice", key)
		}
		started[key] = true
	}
	if len(started) != 3 || !started["running"] || !started["had"] || !started["probe"] {
		t.Errorf("started: %v", started)
	}
}

// TestDeepTaskTreeWithADeadProcess has a task run through four nodes, kills one of
// them, and cancels the task at once: what is left of its tree ends on every node that
// lives, and the task ends as cancelled.
func TestDeepTaskTreeWithADeadProcess(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	file := filepath.Join(s.dir, "slow.yaml")
	err := os.WriteFile(file, []byte("bindings:\n- module_id: deep.sleep\n  description: Sleep below everything\n  timeout: 10m\n  command: {argv: [sleep, \"600\"]}\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	specs := [][]string{{"n1", "near"}, {"n2", "far"}, {"n3", "demo"}, {"n4", "math", "--bindings", file}}
	nodes := s.startNodes(specs...)
	// A node that was just started is not known to every other one at once.
	const deep = `{"module_id":"near.chain","inputs":{"path":["far.chain","demo.chain","deep.sleep"],"input":{}},"retry":{"max_retries":50,"retry_delay_ms":100}}`
	for dead := 3; dead >= 1; dead-- {
		t.Run(nodes[dead].id, func(t *testing.T) {
			all, s := s, s.in(t)
			task := fmt.Sprint(s.do(http.MethodPost, "/v1/tasks", deep).doc["task_id"])
			calls := s.running("near.chain", "far.chain", "demo.chain", "deep.sleep")
			for i, id := range []string{"near.chain", "far.chain", "demo.chain", "deep.sleep"} {
				if calls[id]["node"] != nodes[i].id {
					t.Fatalf("%s runs on %v", id, calls[id]["node"])
				}
			}
			nodes[dead].kill()
			start := time.Now()
			if a := s.do(http.MethodDelete, "/v1/tasks/"+task, ""); a.doc["state"] != "accepted" {
				t.Errorf("cancel: %v", a)
			}
			for i, n := range nodes {
				if i != dead {
					took := s.waitIdle(cancelLimit, n)
					t.Logf("%s is idle after %v", n.id, took)
				}
			}
			var rec answer
			eventually(t, cancelLimit, "the task is over", func() bool {
				rec = s.get("/v1/tasks/" + task)
				return rec.doc["completed_at"] != nil
			})
			if rec.doc["status"] != "cancelled" {
				t.Errorf("the task: %v", rec)
			}
			t.Logf("all is over after %v", time.Since(start))
			nodes[dead] = all.startNode(specs[dead][0]+"-again", specs[dead][1], specs[dead][2:]...)
		})
	}
}
