package integration_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The callers and reviewers of the approval tests.
const (
	askerToken    = "asker-secret"    // ann, who may also review
	reviewerToken = "reviewer-secret" // bob
	strangerToken = "stranger-secret" // eve, who calls and reviews
)

func approvalTokens(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	writeTokens(t, file,
		[3]string{askerToken, `{id: ann, type: user}`, "call, review"},
		[3]string{reviewerToken, `{id: bob, type: user}`, "review"},
		[3]string{strangerToken, `{id: eve, type: user}`, "call, review"},
	)
	return file
}

const (
	controlModule = "system.control.update_config"
	controlInputs = `{"key":"executor.default_timeout","value":60000,"reason":"a test"}`
)

// reviewed is a server, a router before it, and a node whose control module needs
// an approval, seen by ann.
type reviewed struct {
	*system
	server *natsServer
	tokens string
	flags  []string // of the node
	node   *node
}

func startReviewed(t *testing.T, nodeFlags ...string) *reviewed {
	t.Helper()
	s := &reviewed{
		system: newSystem(t), server: startServer(t), tokens: approvalTokens(t),
		flags: append([]string{"n1", "math,payments", "--sys-control"}, nodeFlags...),
	}
	s.token = askerToken
	s.openRouter()
	s.node = s.startNodes(s.flags)[0]
	return s
}

func (s *reviewed) openRouter() {
	s.t.Helper()
	s.startRouter("--nats", s.server.url, "--tokens", s.tokens)
}

// killAndRestart kills processes and restarts the server.
func (s *reviewed) killAndRestart(victims ...*process) {
	s.t.Helper()
	for _, p := range victims {
		p.kill()
		p.exit(startLimit)
	}
	s.server.stop()
	s.server.again()
}

// pendingID makes a call that must wait for a person, and returns what it waits by.
func (s *system) pendingID(id, inputs string) string {
	s.t.Helper()
	a := s.call(id, inputs)
	approval, _ := a.details()["approval_id"].(string)
	if a.status != http.StatusAccepted || a.code() != "APPROVAL_PENDING" || approval == "" || a.details()["module_id"] != id {
		s.t.Fatalf("call of %s: %v, want APPROVAL_PENDING", id, a)
	}
	return approval
}

func (s *system) decide(token, approval, verdict string) answer {
	s.t.Helper()
	a, err := s.tryDecide(token, approval, verdict)
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

func (s *system) tryDecide(token, approval, verdict string) (answer, error) {
	return s.try(s.t.Context(), http.MethodPost, "/v1/approvals/"+approval+"/decision",
		`{"decision":"`+verdict+`","reason":"because of `+token[:3]+`"}`, "Authorization: Bearer "+token)
}

func (s *system) wantDenied(a answer, reason string) {
	s.t.Helper()
	if got, _ := a.details()["reason"].(string); a.status != http.StatusForbidden || a.code() != "APPROVAL_DENIED" || !strings.Contains(got, reason) {
		s.t.Errorf("answer %v, want APPROVAL_DENIED because %q", a, reason)
	}
}

// TestApprovalOfARefund is the life of one request, as people see it.
func TestApprovalOfARefund(t *testing.T) {
	t.Parallel()
	s := startReviewed(t)
	charge, _ := s.call("payments.charge", `{"order_id":"o1","amount_cents":900,"card":"`+card+`"}`).doc["charge_id"].(string)
	refund := `{"charge_id":"` + charge + `"}`
	approval := s.pendingID("payments.refund", refund)
	path := "/v1/approvals/" + approval

	shown := s.as(reviewerToken, "GET", path, "")
	want := []any{map[string]any{
		"action": "refund", "target": "charge:" + charge, "summary": "Give back 9.00 of 9.00 for order o1",
		"before": map[string]any{"refunded_cents": 0.0}, "after": map[string]any{"refunded_cents": 900.0},
	}}
	if d := cmp.Diff(want, shown.doc["predicted_changes"]); d != "" || shown.doc["state"] != "pending" || shown.doc["decision"] != nil {
		t.Errorf("the reviewer sees %v\n%s", shown, d)
	}
	if d := cmp.Diff(map[string]any{"id": "ann", "type": "user"}, shown.doc["identity"]); d != "" {
		t.Errorf("asked by (-want +got):\n%s", d)
	}
	if strings.Contains(shown.raw, "digest") {
		t.Errorf("the digest of the inputs is shown: %v", shown)
	}

	// Before the decision the token is worth nothing.
	if a := s.call("payments.refund", refund, "Apbus-Approval: "+approval); a.code() != "APPROVAL_PENDING" || a.details()["approval_id"] != approval {
		t.Errorf("with a token that waits: %v", a)
	}
	if a := s.decide(askerToken, approval, "approve"); a.status != http.StatusForbidden || a.code() != "APPROVAL_DENIED" {
		t.Errorf("self-approval: %v", a)
	}
	if a := s.decide(reviewerToken, "unknown", "approve"); a.status != http.StatusNotFound {
		t.Errorf("an unknown request: %v", a)
	}
	if a := s.decide(reviewerToken, approval, "approve"); a.status != http.StatusOK || a.doc["state"] != "approved" {
		t.Fatalf("decision: %v", a)
	}

	// It is bound to module, inputs and caller, and used once.
	s.wantDenied(s.call("payments.refund", `{"charge_id":"`+charge+`","amount_cents":1}`, "Apbus-Approval: "+approval), "another call")
	s.wantDenied(s.as(strangerToken, "POST", "/v1/modules/payments.refund/call", refund, "Apbus-Approval: "+approval), "another call")
	s.wantDenied(s.call("payments.refund", refund, "Apbus-Approval: made-up"), "unknown")
	if a := s.call("payments.refund", refund, "Apbus-Approval: "+approval); a.status != http.StatusOK || a.doc["amount_cents"] != 900.0 {
		t.Errorf("with the token: %v", a)
	}
	s.wantDenied(s.call("payments.refund", refund, "Apbus-Approval: "+approval), "already used")
	shown = s.as(reviewerToken, "GET", path, "")
	decision, _ := shown.doc["decision"].(map[string]any)
	if shown.doc["state"] != "claimed" || decision["by"] != "bob" || decision["reason"] != "because of rev" || decision["at"] == "" {
		t.Errorf("kept on the record: %v", shown)
	}

	// What is sensitive does not reach the reviewers.
	s.pendingID("payments.refund", `{"charge_id":"`+charge+`","password":"hunter2"}`)
	if a := s.as(reviewerToken, "GET", "/v1/approvals?state=pending", ""); len(list(a.doc, "approvals")) != 1 || strings.Contains(a.raw, "hunter2") {
		t.Errorf("the inbox: %v", a)
	}
	if strings.Contains(s.router.log(), "hunter2") {
		t.Error("the router logs a sensitive value")
	}
}

// TestApprovalOutlivesEverything kills what there is between request, decision and
// call.
func TestApprovalOutlivesEverything(t *testing.T) {
	t.Parallel()
	s := startReviewed(t)
	approved, rejected := s.pendingID(controlModule, controlInputs), s.pendingID(controlModule, controlInputs)
	s.killAndRestart(s.router, s.node.process)
	s.openRouter()
	if a := s.decide(reviewerToken, approved, "approve"); a.status != http.StatusOK {
		t.Fatalf("decision with every node down: %v", a)
	}
	if a := s.decide(reviewerToken, rejected, "reject"); a.status != http.StatusOK {
		t.Fatalf("decision with every node down: %v", a)
	}
	s.killAndRestart(s.router)
	s.openRouter()
	s.startNodes(s.flags)
	if a := s.call(controlModule, controlInputs, "Apbus-Approval: "+approved); a.status != http.StatusOK {
		t.Errorf("the approved call: %v", a)
	}
	s.wantDenied(s.call(controlModule, controlInputs, "Apbus-Approval: "+approved), "already used")
	s.wantDenied(s.call(controlModule, controlInputs, "Apbus-Approval: "+rejected), "because of rev")
}

// TestApprovalDecisionsRace decides at two routers at once.
func TestApprovalDecisionsRace(t *testing.T) {
	t.Parallel()
	s := startReviewed(t)
	other := newSystem(t)
	other.startRouter("--nats", s.server.url, "--tokens", s.tokens)
	approval := s.pendingID(controlModule, controlInputs)
	type vote struct{ token, verdict string }
	votes := []vote{{reviewerToken, "approve"}, {strangerToken, "reject"}, {reviewerToken, "reject"}, {strangerToken, "approve"}}
	answers := make([]answer, 2*len(votes))
	var wg sync.WaitGroup
	for i := range answers {
		at, v := []*system{s.system, other}[i%2], votes[i/2]
		wg.Go(func() {
			a, err := at.tryDecide(v.token, approval, v.verdict)
			if err != nil {
				t.Error(err)
			}
			answers[i] = a
		})
	}
	wg.Wait()
	won := map[string]bool{}
	said := map[string]bool{}
	for _, a := range answers {
		switch a.status {
		case http.StatusOK:
			won[fmt.Sprint(a.doc["decision"])] = true
		case http.StatusConflict:
			said[fmt.Sprint(a.details()["decision"])] = true
		default:
			t.Errorf("a decision was answered %v", a)
		}
	}
	if len(won) != 1 || !cmp.Equal(won, said) {
		t.Errorf("won: %v, and the others were told of %v", won, said)
	}
}

// TestApprovalExpires decides too late.
func TestApprovalExpires(t *testing.T) {
	t.Parallel()
	s := startReviewed(t, "--approval-expiry=1s")
	approval := s.pendingID(controlModule, controlInputs)
	eventually(t, time.Second+slack, "the request has expired", func() bool {
		return s.as(reviewerToken, "GET", "/v1/approvals/"+approval, "").doc["state"] == "expired"
	})
	if a := s.decide(reviewerToken, approval, "approve"); a.status != http.StatusGone {
		t.Errorf("decision after expiry: %v", a)
	}
	if a := s.call(controlModule, controlInputs, "Apbus-Approval: "+approval); a.status != http.StatusRequestTimeout || a.code() != "APPROVAL_TIMEOUT" {
		t.Errorf("call after expiry: %v", a)
	}
}

// TestApprovalIsWaitedFor holds the call until somebody decides on the command
// line, and gives it back when nobody does.
func TestApprovalIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := startReviewed(t, "--approval-wait=40s")
	c := s.begin(controlModule, controlInputs)
	var approval string
	eventually(t, startLimit, "the request is in the inbox", func() bool {
		for _, a := range list(s.as(reviewerToken, "GET", "/v1/approvals?state=pending", "").doc, "approvals") {
			approval, _ = a["approval_id"].(string)
		}
		return approval != ""
	})
	p := startProcess(t, "apbus approvals", program(t, "apbus"), []string{"APBUS_ROUTER=" + s.api, "APBUS_TOKEN=" + reviewerToken},
		"approvals", "approve", approval, "--because", "it is right")
	if p.exit(startLimit) != 0 || !strings.Contains(p.stdout(), "approved "+approval) {
		t.Fatalf("apbus approvals approve: %s", p.log())
	}
	if a := c.wait(5 * time.Second); a.status != http.StatusOK {
		t.Errorf("the call that waited: %v", a)
	}

	// A call whose time ends first still learns what to come back with.
	if a := s.call(controlModule, controlInputs, "Apbus-Timeout: 5s"); a.code() != "APPROVAL_PENDING" || a.details()["approval_id"] == "" {
		t.Errorf("a short call: %v", a)
	}

	// One that is cancelled withdraws its request.
	gone := s.begin(controlModule, controlInputs)
	eventually(t, startLimit, "two requests wait", func() bool {
		return len(list(s.as(reviewerToken, "GET", "/v1/approvals?state=pending", "").doc, "approvals")) == 2
	})
	gone.stop()
	eventually(t, 5*time.Second+slack, "the request is withdrawn", func() bool {
		return len(list(s.as(reviewerToken, "GET", "/v1/approvals?state=withdrawn", "").doc, "approvals")) == 1
	})
}

// TestApprovalOfAStream stops a stream at the gate before anything has left, and
// lets the same stream through with the token, once.
func TestApprovalOfAStream(t *testing.T) {
	t.Parallel()
	s := startReviewed(t)
	charge, _ := s.call("payments.charge", `{"order_id":"o1","amount_cents":900,"card":"`+card+`"}`).doc["charge_id"].(string)
	refund := `{"charge_id":"` + charge + `"}`
	// The stream may have been accepted when the gate is reached; either way the
	// coded error is the last thing said.
	fault := func(token string) (code, approval, reason string) {
		t.Helper()
		var headers []string
		if token != "" {
			headers = []string{"Apbus-Approval: " + token}
		}
		c := s.openStream("payments.refund", refund, headers...)
		doc := map[string]any{}
		if c.res.Header.Get("Content-Type") == "application/json" {
			if err := json.NewDecoder(c.r).Decode(&doc); err != nil {
				t.Fatal(err)
			}
			doc, _ = doc["error"].(map[string]any)
		} else {
			names, last := c.rest()
			if slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "data") || strings.HasPrefix(n, "end") }) {
				t.Errorf("the stream said %q", names)
			}
			doc = last.data
			if inner, ok := doc["error"].(map[string]any); ok {
				doc = inner
			}
		}
		details, _ := doc["details"].(map[string]any)
		code, _ = doc["code"].(string)
		approval, _ = details["approval_id"].(string)
		reason, _ = details["reason"].(string)
		return code, approval, reason
	}
	code, approval, _ := fault("")
	if code != "APPROVAL_PENDING" || approval == "" {
		t.Fatalf("without a token: %s %q", code, approval)
	}
	if a := s.decide(reviewerToken, approval, "approve"); a.status != http.StatusOK {
		t.Fatalf("decision: %v", a)
	}
	names, last := s.openStream("payments.refund", refund, "Apbus-Approval: "+approval).rest()
	if len(names) < 2 || !strings.HasPrefix(names[len(names)-1], "end") || last.data["amount_cents"] != 900.0 {
		t.Errorf("with the token: %q, %v", names, last.data)
	}
	if code, _, reason := fault(approval); code != "APPROVAL_DENIED" || !strings.Contains(reason, "already used") {
		t.Errorf("with the token again: %s %q", code, reason)
	}
	if _, p := s.cli("call", "payments.refund", "charge_id="+charge, "--stream"); !strings.Contains(p.log(), "APPROVAL_PENDING") || !strings.Contains(p.log(), "--approval ") {
		t.Errorf("apbus call --stream: %s", p.log())
	}
}
