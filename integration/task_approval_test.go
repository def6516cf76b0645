package integration_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// refundTask submits a refund of a new charge as a task and waits until the task waits
// for a person.
func (s *reviewed) refundTask() (task, approval, charge string) {
	s.t.Helper()
	charge, _ = s.call("payments.charge", `{"order_id":"o1","amount_cents":900,"card":"`+card+`"}`).doc["charge_id"].(string)
	task, approval = s.awaitingTask(`{"charge_id":"` + charge + `"}`)
	return task, approval, charge
}

func (s *reviewed) awaitingTask(inputs string) (task, approval string) {
	s.t.Helper()
	a := s.do(http.MethodPost, "/v1/tasks", `{"module_id":"payments.refund","inputs":`+inputs+`}`)
	task, _ = a.doc["task_id"].(string)
	if a.status != http.StatusAccepted || task == "" {
		s.t.Fatalf("submit a refund: %v", a)
	}
	eventually(s.t, startLimit, "the task waits for a person", func() bool {
		a = s.get("/v1/tasks/" + task)
		return a.doc["detail"] == "awaiting_approval"
	})
	approval, _ = a.doc["approval_id"].(string)
	if a.doc["status"] != "pending" || a.doc["attempt"] != 0.0 || a.doc["lease"] != nil || approval == "" {
		s.t.Fatalf("a task that waits: %v", a)
	}
	return task, approval
}

// taskEnd waits for the end of a task.
func (s *reviewed) taskEnd(task string) answer {
	s.t.Helper()
	return s.do(http.MethodGet, "/v1/tasks/"+task+"/result?wait=40s", "")
}

// refunded is how much of a charge was given back, by what a reviewer is shown of
// another refund.
func (s *reviewed) refunded(charge string) any {
	s.t.Helper()
	_, id := s.awaitingTask(`{"charge_id":"` + charge + `","amount_cents":1}`)
	changes := list(s.as(reviewerToken, http.MethodGet, "/v1/approvals/"+id, "").doc, "predicted_changes")
	if len(changes) == 0 {
		return "nothing is left to give back"
	}
	before, _ := changes[0]["before"].(map[string]any)
	return before["refunded_cents"]
}

// TestTasksThatWaitForAPerson hold nothing while they wait, and run once when they
// may.
func TestTasksThatWaitForAPerson(t *testing.T) {
	t.Parallel()
	s := startReviewed(t, "--approval-wait", "10m", "--task-slots", "1") // the wait is for calls

	task, approval, _ := s.refundTask()
	// The only slot is free meanwhile.
	if a := s.do(http.MethodPost, "/v1/tasks", `{"module_id":"math.add","inputs":{"a":1,"b":2}}`); s.taskEnd(fmt.Sprint(a.doc["task_id"])).doc["sum"] != 3.0 {
		t.Errorf("another task meanwhile: %v", a)
	}
	if a := s.decide(askerToken, approval, "approve"); a.status != http.StatusForbidden {
		t.Errorf("the submitter decides: %v", a)
	}
	began := time.Now()
	if a := s.decide(reviewerToken, approval, "approve"); a.status != http.StatusOK {
		t.Fatalf("decide: %v", a)
	}
	if a := s.taskEnd(task); a.status != http.StatusOK || a.doc["amount_cents"] != 900.0 {
		t.Errorf("the approved task: %v", a)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v from the decision to the result", took)
	}
	if rec := s.get("/v1/tasks/" + task); rec.doc["attempt"] != 1.0 {
		t.Errorf("attempts: %v, want 1", rec)
	}
	if a := s.as(reviewerToken, http.MethodGet, "/v1/approvals/"+approval, ""); a.doc["state"] != "claimed" {
		t.Errorf("the approval afterwards: %v", a)
	}

	// Whoever is refused has no effect.
	task, approval, charge := s.refundTask()
	s.decide(reviewerToken, approval, "reject")
	a := s.taskEnd(task)
	s.wantDenied(a, "because of rev")
	if rec := s.get("/v1/tasks/" + task); rec.doc["status"] != "failed" || rec.doc["attempt"] != 0.0 {
		t.Errorf("the refused task: %v", rec)
	}
	if got := s.refunded(charge); got != 0.0 {
		t.Errorf("refunded %v though it was refused", got)
	}
}

// TestDecisionsOutliveEverybody decides with every node down, and has the router
// killed between the decision and what follows from it.
func TestDecisionsOutliveEverybody(t *testing.T) {
	t.Parallel()
	s := startReviewed(t)
	approved, yes, _ := s.refundTask()
	rejected, no, _ := s.refundTask()

	// The writer that is to be told is frozen, as one that is about to die: another
	// router takes the decisions, and the writer's successor learns of them.
	writer := s.router
	writer.freeze()
	s.openRouter()
	s.node.kill()
	s.node.exit(startLimit)
	for approval, verdict := range map[string]string{yes: "approve", no: "reject"} {
		if a := s.decide(reviewerToken, approval, verdict); a.status != http.StatusOK {
			t.Fatalf("decide with every node down: %v", a)
		}
	}
	writer.kill()
	second := s.router
	second.kill()
	second.exit(startLimit)
	s.openRouter()
	s.wantDenied(s.taskEnd(rejected), "because of rev")
	if a := s.get("/v1/tasks/" + approved); a.doc["status"] != "pending" || a.doc["detail"] == "awaiting_approval" {
		t.Errorf("the approved task, without a node: %v", a)
	}
	// A new node has no charges, so the task runs and finds none: what counts is that
	// the gate let it through, once.
	s.startNodes(s.flags)
	if a := s.taskEnd(approved); a.code() == "APPROVAL_DENIED" || a.code() == "APPROVAL_PENDING" || a.status == http.StatusAccepted {
		t.Errorf("the approved task: %v", a)
	}
	if a := s.as(reviewerToken, http.MethodGet, "/v1/approvals/"+yes, ""); a.doc["state"] != "claimed" {
		t.Errorf("the approval afterwards: %v", a)
	}
	if rec := s.get("/v1/tasks/" + approved); rec.doc["attempt"] != 1.0 {
		t.Errorf("attempts: %v, want 1", rec)
	}
}
