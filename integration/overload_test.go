package integration_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"
)

// TestOverloadedNodeRefuses fills a node of one slot and two places in the queue.
func TestOverloadedNodeRefuses(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	n := s.startNode("n1", "demo,math", "--max-in-flight", "1")
	held := []string{s.detach("demo.sleep", `{"ms":`+longSleep+`}`)}
	s.running("demo.sleep")
	for range 2 {
		held = append(held, s.detach("demo.sleep", `{"ms":`+longSleep+`}`))
	}
	eventually(t, startLimit, "two calls wait", func() bool {
		st := s.stats(n)
		return st["in_flight"] == 1.0 && st["waiting"] == 2.0
	})

	m, err := s.request("apbus.v1.call.default._.demo.effect", nil, []byte(`{"key":"k"}`))
	if err != nil {
		t.Fatal(err)
	}
	var refused map[string]any
	if err := json.Unmarshal(m.Data, &refused); err != nil {
		t.Fatal(err)
	}
	if refused["code"] != "BUS_OVERLOADED" || refused["retryable"] != true || m.Header.Get("Nats-Service-Error-Code") != "429" {
		t.Errorf("bare request: %v %s, want BUS_OVERLOADED", m.Header, m.Data)
	}
	h, body := enveloped(t, "overloaded-call-1234", "demo.effect", map[string]any{"key": "k"})
	if m, err = s.request(n.direct("call", "demo.effect"), h, body); err != nil {
		t.Fatal(err)
	}
	after, _ := strconv.Atoi(m.Header.Get("retry-after-ms"))
	if m.Header.Get("apbus-error") != "BUS_OVERLOADED" || m.Header.Get("apbus-unexecuted") != "1" || after <= 0 {
		t.Errorf("enveloped call: %v", m.Header)
	}
	start := time.Now()
	a := s.call("demo.effect", `{"key":"k"}`)
	if a.status != http.StatusTooManyRequests || a.code() != "BUS_OVERLOADED" || a.header.Get("Retry-After") == "" {
		t.Errorf("HTTP: %v, Retry-After %q", a, a.header.Get("Retry-After"))
	}
	t.Logf("refused over HTTP after %v and the client's own attempts", time.Since(start))
	if lines := s.effectLines(); len(lines) != 0 {
		t.Errorf("refused calls ran: %q", lines)
	}

	// A call whose time is over in the queue never ran.
	s.do(http.MethodDelete, "/v1/calls/"+held[2], "")
	if e := s.outcome(held[2], cancelLimit); e["code"] != "EXECUTION_CANCELLED" {
		t.Errorf("cancelled in the queue: %v", e)
	}
	start = time.Now()
	a = s.call("demo.effect", `{"key":"k"}`, "Apbus-Timeout: 500ms")
	if a.status != http.StatusGatewayTimeout || a.code() != "BUS_BUDGET_EXHAUSTED" || time.Since(start) > 500*time.Millisecond+slack {
		t.Errorf("after %v: %v, want BUS_BUDGET_EXHAUSTED", time.Since(start), a)
	}
	for _, call := range held[:2] {
		s.do(http.MethodDelete, "/v1/calls/"+call, "")
	}
	s.waitIdle(cancelLimit, n)
	if lines := s.effectLines(); len(lines) != 0 {
		t.Errorf("a call without time left ran: %q", lines)
	}
	if a := s.call("demo.effect", `{"key":"k"}`); a.status != http.StatusOK {
		t.Errorf("a call to the free node: %v", a)
	}
}

// TestChainOnItselfFailsInsteadOfWaiting calls back into the only slot, which the
// chain itself holds.
func TestChainOnItselfFailsInsteadOfWaiting(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	nodes := s.startNodes([]string{"n1", "near", "--max-in-flight", "1"}, []string{"n2", "far"})
	c := s.begin("near.chain", `{"path":["far.chain","near.whoami"]}`)
	a := c.wait(2*time.Second + slack) // without the rule it would wait for a module's 30 s
	chain := fmt.Sprint(a.details()["call_chain"])
	if a.code() != "BUS_OVERLOADED" || chain != "[near.chain far.chain near.whoami]" {
		t.Errorf("answer %v, want BUS_OVERLOADED naming the chain", a)
	}
	s.waitIdle(cancelLimit, nodes[0])
	s.waitIdle(cancelLimit, nodes[1])
}

// TestWaitingCallsRunInTurn sends more calls than there are slots.
func TestWaitingCallsRunInTurn(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	n := s.startNode("n1", "demo", "--max-in-flight", "4")
	var calls []*calling
	for i := range 12 { // four run, eight wait
		calls = append(calls, s.begin("demo.effect", fmt.Sprintf(`{"key":"k%d","ms":100}`, i)))
	}
	for i, c := range calls {
		if a := c.wait(5*time.Second + slack); a.status != http.StatusOK {
			t.Errorf("call %d: %v", i, a)
		}
	}
	if lines := s.effectLines(); len(lines) != 12 {
		t.Errorf("%d effects of 12 calls: %q", len(lines), lines)
	}
	s.waitIdle(cancelLimit, n)
}
