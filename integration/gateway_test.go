package integration_test

import (
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

func requestFor(id string, inputs map[string]any) *contextwire.Request {
	return &contextwire.Request{ModuleID: id, Inputs: inputs, Context: module.NewContext(module.ContextOptions{})}
}

// as makes requests with another token.
func (s *system) as(token, method, path, body string, headers ...string) answer {
	s.t.Helper()
	if token != "" {
		headers = append(headers, "Authorization: Bearer "+token)
	}
	return s.do(method, path, body, headers...)
}

func TestTokensDecideWhoMayDoWhat(t *testing.T) {
	t.Parallel()
	tokens := filepath.Join(t.TempDir(), "tokens.yaml")
	entries := [][3]string{
		{"ops-secret", `{id: ops, type: user}`, "call, cancel, operate"},
		{"caller-secret", `{id: ana, type: user}`, "call"},
		{"stopper-secret", `{id: stopper, type: service}`, "cancel"},
	}
	writeTokens(t, tokens, entries...)
	s, n1, _ := startPairWithToken(t, "ops-secret", tokens)
	s.token = "" // from here on each request brings its own

	const call, calls, drain = "/v1/modules/math.add/call", "/v1/calls", "/v1/nodes/n9/drain"
	for _, tt := range []struct {
		name, token, method, path, body string
		status                          int
	}{
		{"nobody calls", "", "POST", call, `{"a":1,"b":2}`, 401},
		{"a stranger calls", "guessed", "POST", call, `{"a":1,"b":2}`, 401},
		{"nobody lists", "", "GET", calls, "", 401},
		{"nobody checks", "", "POST", "/v1/modules/math.add/check", `{"a":1,"b":2}`, 401},
		{"a caller calls", "caller-secret", "POST", call, `{"a":1,"b":2}`, 200},
		{"a caller lists", "caller-secret", "GET", calls, "", 200},
		{"a caller cancels", "caller-secret", "DELETE", calls + "/0123456789abcdef", "", 403},
		{"a caller drains", "caller-secret", "POST", drain, "{}", 403},
		{"a stopper calls", "stopper-secret", "POST", call, `{"a":1,"b":2}`, 403},
		{"a stopper cancels", "stopper-secret", "DELETE", calls + "/0123456789abcdef", "", 404},
		{"an operator drains", "ops-secret", "POST", drain, "{}", 404},
		{"anybody asks for health", "", "GET", "/healthz", "", 200},
		{"anybody asks for readiness", "", "GET", "/readyz", "", 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := s.in(t)
			a := s.as(tt.token, tt.method, tt.path, tt.body)
			if a.status != tt.status {
				t.Errorf("answer %v, want %d", a, tt.status)
			}
			if a.status >= 400 && a.code() == "" {
				t.Errorf("answer %v has no coded error", a)
			}
		})
	}
	if strings.Contains(s.router.log(), "secret") || strings.Contains(s.router.log(), "guessed") {
		t.Error("a token stands in the router's log")
	}

	// The identity arrives at the module and in the list of calls.
	c := s.begin("near.chain", sleepTree, "Authorization: Bearer caller-secret")
	var seen []string
	// A call is listed from when its node has it, and with its identity from when that
	// was read.
	eventually(t, startLimit, "three hops run for somebody", func() bool {
		seen = nil
		for _, r := range list(s.as("ops-secret", "GET", calls, "").doc, "calls") {
			seen = append(seen, fmt.Sprintf("%v for %v", r["module_id"], r["identity_id"]))
		}
		return len(seen) == 3 && !strings.Contains(strings.Join(seen, " "), "<nil>")
	})
	slices.Sort(seen)
	if d := cmp.Diff([]string{"far.chain for ana", "near.chain for ana", "near.sleep for ana"}, seen); d != "" {
		t.Error(d)
	}
	c.stop()
	s.waitIdle(cancelLimit, n1)

	// A token that is taken out of the file stops working, without a restart.
	writeTokens(t, tokens, entries[0], entries[2])
	eventually(t, 5*time.Second+slack, "the token is refused", func() bool {
		return s.as("caller-secret", "POST", call, `{"a":1,"b":2}`).status == 401
	})
	if a := s.as("ops-secret", "POST", call, `{"a":1,"b":2}`); a.status != 200 {
		t.Errorf("another token: %v", a)
	}
}

func TestCheckPredictsWithoutDoing(t *testing.T) {
	t.Parallel()
	s, _, _ := startPair(t)
	check := func(id, inputs string) map[string]any {
		t.Helper()
		a := s.do(http.MethodPost, "/v1/modules/"+id+"/check", inputs)
		if a.status != http.StatusOK {
			t.Fatalf("check of %s: %v", id, a)
		}
		return a.doc
	}
	got := check("payments.charge", `{"order_id":"o1","amount_cents":1205,"card":"`+card+`"}`)
	want := []any{map[string]any{
		"action": "charge", "target": "order:o1", "summary": "Charge 12.05 for order o1",
		"after": map[string]any{"order_id": "o1", "amount_cents": 1205.0},
	}}
	if d := cmp.Diff(want, got["predicted_changes"]); d != "" || got["valid"] != true {
		t.Errorf("valid %v\n%s", got["valid"], d)
	}
	got = check("inventory.reserve", `{"items":[{"sku":"tea","qty":2}]}`)
	if got["valid"] != true || len(list(got, "predicted_changes")) != 1 {
		t.Errorf("check of a reservation: %v", got)
	}
	change := list(got, "predicted_changes")[0]
	before, _ := change["before"].(map[string]any)
	after, _ := change["after"].(map[string]any)
	if before == nil || after == nil || cmp.Equal(before, after) {
		t.Errorf("predicted %v, want what was before and after", change)
	}
	if again := check("inventory.reserve", `{"items":[{"sku":"tea","qty":2}]}`); !cmp.Equal(got["predicted_changes"], again["predicted_changes"]) {
		t.Errorf("the check did something: first %v, then %v", got, again)
	}
	if got := check("payments.refund", `{"charge_id":"ch_1"}`); got["requires_approval"] != true {
		t.Errorf("check of a refund: %v", got)
	}
	for _, tt := range []struct{ name, id, inputs string }{
		{"bad inputs", "payments.charge", `{"order_id":"o1","amount_cents":0,"card":"x"}`},
		{"unknown module", "payments.chargeback", `{}`},
		{"bad ID", "Payments.Charge", `{}`},
	} {
		if got := check(tt.id, tt.inputs); got["valid"] != false {
			t.Errorf("%s: %v, want valid false", tt.name, got)
		}
	}
}

func TestTooLargeBodyIsRefusedWithSizeAndLimit(t *testing.T) {
	t.Parallel()
	s := startSystem(t, "--max-body", "2000")
	s.startNode("n1", "text,demo")
	body := fmt.Sprintf(`{"text":%q}`, strings.Repeat("x ", 1000))
	a := s.call("text.wordcount", body)
	want := map[string]any{"size": float64(len(body)), "limit": 2000.0}
	if a.status != http.StatusRequestEntityTooLarge || a.code() != "BUS_PAYLOAD_TOO_LARGE" || !cmp.Equal(want, a.details()) {
		t.Errorf("answer %v, want 413 with %v", a, want)
	}
	if a := s.call("text.wordcount", `{"text":"two words"}`); a.doc["words"] != 2.0 {
		t.Errorf("a body that fits: %v", a)
	}

	// What the server does not carry in one message goes another way.
	big := startSystem(t)
	big.startNode("n1", "text")
	body = fmt.Sprintf(`{"text":%q}`, strings.Repeat("x ", 700_000))
	if a := big.call("text.wordcount", body); a.status != http.StatusOK || a.doc["words"] != 700_000.0 {
		t.Errorf("answer %d %s %v, want 700,000 words", a.status, a.code(), a.details())
	}
}

func TestDetachedCallKeepsItsOutcome(t *testing.T) {
	t.Parallel()
	s, _, _ := startPair(t)
	call := s.detach("math.add", `{"a":9007199254740993,"b":1}`)
	var a answer
	eventually(t, startLimit, "the sum is there", func() bool {
		a = s.get("/v1/calls/" + call)
		return a.doc["state"] == "finished"
	})
	if !strings.Contains(a.raw, `"sum":9007199254740994`) {
		t.Errorf("outcome %s, want the exact sum", a.raw)
	}
	failed := s.detach("demo.fail", `{"code":"SHOP_CLOSED","message":"come back tomorrow","retryable":true}`)
	e := s.outcome(failed, startLimit)
	if e["code"] != "SHOP_CLOSED" || e["message"] != "come back tomorrow" || e["retryable"] != true {
		t.Errorf("outcome %v", e)
	}
	if a := s.get("/v1/calls/" + contextwire.NewCallID()); a.status != http.StatusNotFound {
		t.Errorf("an unknown call: %v", a)
	}
}

func TestListOfCallsHasTheAgreedKeys(t *testing.T) {
	t.Parallel()
	s, n1, n2 := startPair(t)
	call := s.detach("near.chain", sleepTree, "Apbus-Timeout: 50s")
	hops := s.running("near.chain", "far.chain", "near.sleep")
	want := []string{
		"attempt", "boot", "budget_ms", "call", "caller_id", "identity_id", "mode", "module_id", "node", "parent", "root",
		"started_at", "state", "trace_id",
	}
	for id, h := range hops {
		if d := cmp.Diff(want, slices.Sorted(maps.Keys(h))); d != "" {
			t.Errorf("%s: %s", id, d)
		}
		if _, err := time.Parse(time.RFC3339, fmt.Sprint(h["started_at"])); err != nil {
			t.Error(err)
		}
		if left, _ := h["budget_ms"].(float64); left <= 0 || left > 50_000 || h["attempt"] != 1.0 || h["mode"] != "unary" {
			t.Errorf("%s: %v", id, h)
		}
	}
	if hops["far.chain"]["boot"] != n2.boot || hops["far.chain"]["caller_id"] != "near.chain" || hops["near.chain"]["caller_id"] != nil {
		t.Errorf("far.chain: %v", hops["far.chain"])
	}
	one := s.get("/v1/calls/" + call)
	if one.doc["node"] != "n1" || one.doc["boot"] != n1.boot || one.doc["state"] != "running" {
		t.Errorf("one call: %v", one)
	}
	a := s.do(http.MethodDelete, "/v1/calls?root="+call+"&reason=over", "")
	if d := cmp.Diff([]string{"calls", "nodes", "state"}, slices.Sorted(maps.Keys(a.doc))); d != "" || a.status != http.StatusAccepted {
		t.Errorf("cancel: %v\n%s", a, d)
	}
	s.waitIdle(cancelLimit, n1)
	s.waitIdle(cancelLimit, n2)

	// Answers are collected for as long as they come without a pause; on a busy
	// machine one may come too late to be listed, though never five times in a row.
	for try := 1; ; try++ {
		call := s.detach("near.chain", sleepTree)
		s.running("near.chain", "far.chain", "near.sleep")
		a := s.do(http.MethodDelete, "/v1/calls?root="+call, "")
		if d := cmp.Diff([]string{"n1", "n2"}, texts(a.doc["nodes"])); d == "" && len(texts(a.doc["calls"])) == 3 {
			break
		} else if try == 5 {
			t.Errorf("cancel of three calls on two nodes: %v", a)
			break
		}
		s.waitIdle(cancelLimit, n1)
		s.waitIdle(cancelLimit, n2)
	}
	s.waitIdle(cancelLimit, n1)
	s.waitIdle(cancelLimit, n2)
}

// TestDrainedNodeEndsByItself drains a node over HTTP while it works and the
// same modules run elsewhere.
func TestDrainedNodeEndsByItself(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	nodes := s.startNodes([]string{"n1", "demo"}, []string{"n2", "demo"})
	var calls []*calling
	for i := range 10 {
		calls = append(calls, s.begin("demo.effect", fmt.Sprintf(`{"key":"k%d","ms":2000}`, i)))
	}
	eventually(t, startLimit, "all calls run, some on n1", func() bool {
		on := map[any]int{}
		for _, c := range s.calls() {
			on[c["node"]]++
		}
		return on["n1"] > 0 && on["n1"]+on["n2"] == len(calls)
	})
	a := s.do(http.MethodPost, "/v1/nodes/n1/drain", `{"grace_ms":20000}`)
	if inFlight, _ := a.doc["in_flight"].(float64); a.status != http.StatusAccepted || a.doc["node"] != "n1" || inFlight < 1 {
		t.Errorf("drain: %v", a)
	}
	// New work goes to the other node only.
	for range 20 {
		if a := s.call("demo.whoami", ""); a.doc["node"] != "n2" {
			t.Errorf("a new call: %v", a)
		}
	}
	for i, c := range calls {
		if a := c.wait(2*time.Second + slack); a.status != http.StatusOK {
			t.Errorf("call %d: %v", i, a)
		}
	}
	if code := nodes[0].exit(5*time.Second + slack); code != 0 {
		t.Errorf("the drained node's exit code is %d", code)
	}
	if lines := s.effectLines(); len(lines) != len(calls) {
		t.Errorf("%d effects of %d calls: %q", len(lines), len(calls), lines)
	}
	eventually(t, 5*time.Second+slack, "the node has left the catalogue", func() bool {
		for _, n := range list(s.get("/v1/nodes").doc, "nodes") {
			if n["node"] == "n1" {
				return false
			}
		}
		return true
	})
	out, _ := s.cli("--json", "nodes")
	if !strings.Contains(out, `"node":"n2"`) || strings.Contains(out, `"node":"n1"`) {
		t.Errorf("apbus nodes: %s", out)
	}
}

// TestDrainGraceEndsWork drains a node whose work takes too long.
func TestDrainGraceEndsWork(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	n := s.startNode("n1", "demo")
	c := s.begin("demo.effect", `{"key":"k","ms":`+longSleep+`}`)
	s.running("demo.effect")
	if _, p := s.cli("nodes", "drain", "n1", "--grace", "300ms"); p.exit(0) != 0 {
		t.Errorf("drain: %s", p.log())
	}
	if a := c.wait(300*time.Millisecond + slack); a.code() != "EXECUTION_CANCELLED" || !strings.Contains(a.raw, "shutdown") {
		t.Errorf("the call that took too long: %v, want EXECUTION_CANCELLED by shutdown", a)
	}
	if code := n.exit(5*time.Second + slack); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
