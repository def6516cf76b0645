package integration_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/internal/natstest"
)

// TestCluster runs the system on three NATS servers, each program at home on
// another one, and takes one server away in the middle: calls in flight, a stream, a
// task and an approval go on, and what was acknowledged before is there afterwards.
func TestCluster(t *testing.T) {
	t.Parallel()
	cluster := natstest.NewCluster(t)
	urls := cluster.URLs()
	tokens := filepath.Join(t.TempDir(), "tokens.yaml")
	writeTokens(t, tokens,
		[3]string{askerToken, `{id: ann, type: user}`, "call, cancel, operate"},
		[3]string{reviewerToken, `{id: bob, type: user}`, "review"},
	)
	s := newSystem(t)
	s.token = askerToken
	s.startRouter("--nats", urls[0], "--replicas", "3", "--tokens", tokens)
	s.nats = urls[1] // each program is told of one server and learns of the others
	n1 := s.startNode("n1", groupsN1, "--replicas", "3")
	s.nats = urls[2]
	n2 := s.startNode("n2", groupsN2, "--replicas", "3")
	s.nats = urls[0] // for the test itself

	// Everything that is kept has three homes.
	js := cluster.JetStream()
	for info := range js.ListStreams(t.Context()).Info() {
		if info.Config.Replicas != 3 {
			t.Errorf("stream %s has %d replicas, want 3", info.Config.Name, info.Config.Replicas)
		}
	}

	submit := func(task string) string {
		t.Helper()
		return fmt.Sprint(s.do(http.MethodPost, "/v1/tasks", task).doc["task_id"])
	}
	chain := func() {
		t.Helper()
		a := s.call("near.chain", twoCrossings)
		hops, _, _ := hopsOf(t, a.doc)
		if d := cmp.Diff(threeHops(), hops); d != "" {
			t.Errorf("%v\n%s", a, d)
		}
	}
	chain()
	done := submit(`{"module_id":"math.add","inputs":{"a":1,"b":2}}`)
	if a := s.get("/v1/tasks/" + done + "/result?wait=30s"); a.doc["sum"] != 3.0 {
		t.Errorf("a task before: %v", a)
	}
	charged := s.call("payments.charge", `{"order_id":"o1","amount_cents":5,"card":"4111111111111111"}`)
	refund := fmt.Sprintf(`{"charge_id":%q,"amount_cents":5}`, charged.doc["charge_id"])
	id := s.pendingID("payments.refund", refund)

	if log := s.router.log(); strings.Contains(log, `"level":"ERROR"`) || strings.Contains(log, `"level":"WARN"`) {
		t.Errorf("the router starts on a cluster and complains:\n%s", log)
	}

	// In flight when the server of n2 stops: a call on n2, a tree over both, a task.
	effect := s.begin("far.sleep", `{"ms":2500}`)
	tree := s.begin("near.chain", `{"path":["far.chain","near.sleep"],"input":{"ms":2500}}`)
	held := submit(`{"module_id":"far.sleep","inputs":{"ms":2500}}`)
	eventually(t, startLimit, "all of them run", func() bool { return len(s.calls()) == 5 })
	cluster.Stop(2)

	const limit = 30 * time.Second
	if a := effect.wait(limit); a.status != http.StatusOK {
		t.Errorf("the call on the node whose server stopped: %v", a)
	}
	if a := tree.wait(limit); a.status != http.StatusOK {
		t.Errorf("the tree over both nodes: %v", a)
	}
	if a := s.get("/v1/tasks/" + held + "/result?wait=30s"); a.doc["slept_ms"] != 2500.0 {
		t.Errorf("the task: %v", a)
	}
	if a := s.get("/v1/tasks/" + done); a.doc["status"] != "completed" {
		t.Errorf("the task that was over before: %v", a)
	}

	// New work of every kind, with two servers.
	eventually(t, limit, "new calls cross", func() bool {
		return s.call("near.chain", twoCrossings, "Apbus-Timeout: 5s").status == http.StatusOK
	})
	chain()
	s.waitKnown(n1)
	s.waitKnown(n2)
	later := submit(`{"module_id":"math.add","inputs":{"a":2,"b":3}}`)
	if a := s.get("/v1/tasks/" + later + "/result?wait=30s"); a.doc["sum"] != 5.0 {
		t.Errorf("a task afterwards: %v", a)
	}
	big := strings.Repeat("a b ", 1<<20)
	if a := s.call("text.wordcount", fmt.Sprintf(`{"text":%q}`, big)); a.doc["words"] != float64(2<<20) {
		t.Errorf("a large body afterwards: %.300s", a.raw)
	}
	call := s.detach("far.sleep", `{"ms":`+longSleep+`}`)
	s.running("far.sleep")
	if a := s.do(http.MethodDelete, "/v1/calls/"+call, ""); a.status != http.StatusAccepted {
		t.Errorf("cancel: %v", a)
	}
	s.waitIdle(time.Second+slack, n2)

	// The request from before is decided, and the call it was for runs.
	if a := s.decide(reviewerToken, id, "approve"); a.status != http.StatusOK {
		t.Errorf("decide: %v", a)
	}
	if a := s.call("payments.refund", refund, "Apbus-Approval: "+id); a.status != http.StatusOK {
		t.Errorf("the refund: %v", a)
	}
	eventually(t, startLimit, "there is evidence of the refund", func() bool {
		return len(list(s.get("/v1/evidence?module=payments.refund&limit=10").doc, "evidence")) > 0
	})
}
