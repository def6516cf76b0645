package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// cancelLimit is what a cancel may take until everything it stops has ended: one
// round trip, on a machine that is busy with other tests.
const cancelLimit = time.Second + slack

// sleepTree makes a call that runs on three hops over two nodes.
const sleepTree = `{"path":["far.chain","near.sleep"],"input":{"ms":` + longSleep + `}}`

// outcome waits for the end of a detached call and returns its error.
func (s *system) outcome(call string, limit time.Duration) map[string]any {
	s.t.Helper()
	var a answer
	eventually(s.t, limit, "call "+call+" is over", func() bool {
		a = s.get("/v1/calls/" + call)
		return a.doc["state"] == "finished"
	})
	e, _ := a.doc["error"].(map[string]any)
	return e
}

// TestCommandLineStopsADetachedCall cancels from a third process what the router
// asked a node to do.
func TestCommandLineStopsADetachedCall(t *testing.T) {
	t.Parallel()
	s, n1, n2 := startPair(t)
	nodes := map[any]*node{"n1": n1, "n2": n2}

	out, _ := s.cli("call", "demo.sleep", "ms="+longSleep, "--detach")
	call := strings.TrimSpace(out)
	if !contextwire.ValidCallID(call) {
		t.Fatalf("call --detach printed %q, want a call ID alone", out)
	}
	record := s.running("demo.sleep")["demo.sleep"]
	owner := nodes[record["node"]]
	if owner == nil || record["call"] != call {
		t.Fatalf("in flight: %v, want call %s", record, call)
	}

	start := time.Now()
	out, _ = s.cli("--json", "cancel", call, "--reason", "changed my mind")
	took := time.Since(start)
	want := fmt.Sprintf(`{"calls":["%s"],"nodes":["%s"],"state":"cancelling"}`, call, owner.id)
	if strings.TrimSpace(out) != want {
		t.Errorf("cancel printed %s, want %s", out, want)
	}
	if took > cancelLimit {
		t.Errorf("the cancel took %v, want at most %v", took, cancelLimit)
	}
	if e := s.outcome(call, cancelLimit); e["code"] != "EXECUTION_CANCELLED" || e["module_id"] != "demo.sleep" {
		t.Errorf("outcome = %v, want EXECUTION_CANCELLED", e)
	}
	free := s.waitIdle(cancelLimit, owner)
	if calls := s.calls(); len(calls) != 0 {
		t.Errorf("still in flight: %v", calls)
	}
	t.Logf("process and cancel took %v, then the node was free after %v", took, free)

	// Later the call is over, and a call that never was is unknown.
	a := s.do(http.MethodDelete, "/v1/calls/"+call, "")
	if a.status != http.StatusAccepted || a.doc["state"] != "finished" {
		t.Errorf("cancel of what is over: %v", a)
	}
	if _, p := s.cli("cancel", contextwire.NewCallID()); p.exit(0) != 1 || !strings.Contains(p.log(), "nobody knows") {
		t.Errorf("cancel of an unknown call: exit %d: %s", p.exit(0), p.log())
	}
	if a := s.do(http.MethodDelete, "/v1/calls/"+contextwire.NewCallID(), ""); a.status != http.StatusNotFound {
		t.Errorf("cancel of an unknown call: %v", a)
	}
}

// TestStubbornModuleOutlivesItsCall shows that the tests can tell a module that
// saw the end of its context from one that did not.
func TestStubbornModuleOutlivesItsCall(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	n := s.startNode("n1", "demo")
	call := s.detach("demo.sleep", `{"ms":2500,"stubborn":true}`)
	s.running("demo.sleep")
	s.do(http.MethodDelete, "/v1/calls/"+call, "")
	if e := s.outcome(call, 2*time.Second); e["code"] != "EXECUTION_CANCELLED" {
		t.Errorf("outcome = %v, want EXECUTION_CANCELLED at once", e)
	}
	eventually(t, 2*time.Second, "the module that sleeps on is a debt", func() bool { return s.stats(n)["debt"] == 1.0 })
	s.waitIdle(5*time.Second, n)
}

// TestCancelStopsEveryHop cancels a tree over two nodes in each of the ways that
// name it.
func TestCancelStopsEveryHop(t *testing.T) {
	t.Parallel()
	s, n1, n2 := startPair(t)
	for _, tt := range []struct {
		name string
		args func(call, trace string) []string
	}{
		{"by call", func(call, _ string) []string { return []string{call} }},
		{"by root", func(call, _ string) []string { return []string{"--root", call} }},
		{"by trace", func(_, trace string) []string { return []string{"--trace", trace} }},
		{"by call on the bus", func(call, _ string) []string { return []string{call, "--nats", s.nats} }},
		{"by root on the bus", func(call, _ string) []string { return []string{"--root", call, "--nats", s.nats} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := s.in(t)
			call := s.detach("near.chain", sleepTree)
			hops := s.running("near.chain", "far.chain", "near.sleep")
			checkTree(t, call, hops)
			start := time.Now()
			s.cli(append([]string{"cancel"}, tt.args(call, fmt.Sprint(hops["near.chain"]["trace_id"]))...)...)
			if e := s.outcome(call, cancelLimit); e["code"] != "EXECUTION_CANCELLED" {
				t.Errorf("outcome = %v, want EXECUTION_CANCELLED", e)
			}
			s.waitIdle(cancelLimit, n1)
			s.waitIdle(cancelLimit, n2)
			if calls := s.calls(); len(calls) != 0 {
				t.Errorf("still in flight: %v", calls)
			}
			t.Logf("every hop had ended %v after the command began", time.Since(start))
		})
	}
	t.Run("a hop in the middle", func(t *testing.T) {
		s := s.in(t)
		root := s.detach("near.chain", sleepTree)
		middle := s.running("near.chain", "far.chain", "near.sleep")["far.chain"]
		a := s.do(http.MethodDelete, fmt.Sprintf("/v1/calls/%v", middle["call"]), "")
		if a.status != http.StatusAccepted || !slices.Contains(texts(a.doc["nodes"]), "n2") {
			t.Errorf("cancel: %v, want n2", a)
		}
		if e := s.outcome(root, cancelLimit); e["code"] != "EXECUTION_CANCELLED" {
			t.Errorf("outcome = %v, want the nested call's EXECUTION_CANCELLED", e)
		}
		s.waitIdle(cancelLimit, n1)
		s.waitIdle(cancelLimit, n2)
	})
}

func texts(v any) []string {
	var out []string
	items, _ := v.([]any)
	for _, item := range items {
		out = append(out, fmt.Sprint(item))
	}
	return out
}

// checkTree checks how three calls of a tree name each other.
func checkTree(t *testing.T, root string, hops map[string]map[string]any) {
	t.Helper()
	near, far, sleep := hops["near.chain"], hops["far.chain"], hops["near.sleep"]
	for _, h := range hops {
		if h["root"] != root || h["trace_id"] != near["trace_id"] || h["state"] != "running" {
			t.Errorf("hop %v, want root %s and one trace", h, root)
		}
	}
	if near["call"] != root || near["parent"] != nil || far["parent"] != near["call"] || sleep["parent"] != far["call"] {
		t.Errorf("parents: %v, %v, %v", near, far, sleep)
	}
	if near["node"] != "n1" || far["node"] != "n2" || sleep["node"] != "n1" {
		t.Errorf("nodes: %v, %v, %v", near["node"], far["node"], sleep["node"])
	}
}

// enveloped is a call as another client would send it.
func enveloped(t *testing.T, call, moduleID string, inputs map[string]any) (nats.Header, []byte) {
	t.Helper()
	h, body, err := contextwire.EncodeRequest(&contextwire.Request{
		CallID: call, Attempt: 1, ModuleID: moduleID, Inputs: inputs,
		Context: module.NewContext(module.ContextOptions{}),
	}, contextwire.JSON)
	if err != nil {
		t.Fatal(err)
	}
	return nats.Header(h), body
}

// TestCancelMayOvertakeItsCall sends the cancel first, as it happens when the two
// travel on different connections.
func TestCancelMayOvertakeItsCall(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	n := s.startNode("n1", "demo")
	for _, tt := range []struct {
		name, subject, callSubject string
		answered                   bool
	}{
		{"directed", n.subject("cancel"), n.direct("call", "demo.effect"), true},
		{"directed, call to the group", n.subject("cancel"), "apbus.v1.call.default._.demo.effect", true},
		{"by module", "apbus.v1.cancel.default.demo.effect", "apbus.v1.call.default._.demo.effect", false},
		{"to all", "apbus.v1.cancel.default._all", n.direct("call", "demo.effect"), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := s.in(t)
			call := contextwire.NewCallID()
			before, _ := s.stats(n)["tombstones"].(float64)
			notice := &nats.Msg{Subject: tt.subject, Data: []byte(`{"call":"` + call + `","reason":"caller","by":"test","at":"2026-01-01T00:00:00Z"}`)}
			if tt.answered {
				m, err := s.request(notice.Subject, nil, notice.Data)
				if err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(string(m.Data), `"state":"tombstoned"`) {
					t.Errorf("the cancel was answered %s, want tombstoned", m.Data)
				}
			} else if err := s.peer().PublishMsg(notice); err != nil {
				t.Fatal(err)
			}
			eventually(t, startLimit, "the tombstone stands", func() bool {
				now, _ := s.stats(n)["tombstones"].(float64)
				return now > before
			})
			h, body := enveloped(t, call, "demo.effect", map[string]any{"key": call})
			m, err := s.request(tt.callSubject, h, body)
			if err != nil {
				t.Fatal(err)
			}
			if m.Header.Get("apbus-frame") != "error" || m.Header.Get("apbus-error") != "EXECUTION_CANCELLED" || m.Header.Get("apbus-unexecuted") != "1" {
				t.Errorf("the call was answered %v %s, want EXECUTION_CANCELLED, unexecuted", m.Header, m.Data)
			}
			// Another call is not touched.
			h, body = enveloped(t, contextwire.NewCallID(), "demo.whoami", nil)
			if m, err := s.request("apbus.v1.call.default._.demo.whoami", h, body); err != nil || m.Header.Get("apbus-frame") != "result" {
				t.Errorf("another call: %v, %v", m, err)
			}
			if lines := s.effectLines(); len(lines) != 0 {
				t.Errorf("the cancelled call ran: %q", lines)
			}
		})
	}
}

// cancelledWhere is what an interrupted command line says. It names the nodes that
// answered in time: on a busy machine not all do.
var cancelledWhere = regexp.MustCompile(`interrupted: cancelled call [\w-]+(, [\w-]+)* on n[12]\b`)

// TestInterruptedCommandLineCancels presses Ctrl-C on a call.
func TestInterruptedCommandLineCancels(t *testing.T) {
	t.Parallel()
	s, n1, n2 := startPair(t)
	for _, tt := range []struct {
		name string
		args []string
		sig  syscall.Signal
	}{
		{"through the router", nil, syscall.SIGINT},
		{"on the bus", []string{"--nats", s.nats}, syscall.SIGINT},
		{"terminated", nil, syscall.SIGTERM},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := s.in(t)
			p := s.startCLI(append([]string{"call", "near.chain", "--input", sleepTree}, tt.args...)...)
			s.running("near.chain", "far.chain", "near.sleep")
			start := time.Now()
			p.signal(tt.sig)
			if code := p.exit(cancelLimit); code != 130 {
				t.Errorf("exit code %d, want 130", code)
			}
			// Any of the two that answers first.
			if log := p.log(); !cancelledWhere.MatchString(log) {
				t.Errorf("it said %q, want what was cancelled and where", log)
			}
			s.waitIdle(cancelLimit, n1)
			s.waitIdle(cancelLimit, n2)
			t.Logf("every hop had ended %v after the signal", time.Since(start))
		})
	}
}

// TestClosedConnectionCancels hangs up on the router.
func TestClosedConnectionCancels(t *testing.T) {
	t.Parallel()
	s, n1, n2 := startPair(t)
	c := s.begin("near.chain", sleepTree)
	s.running("near.chain", "far.chain", "near.sleep")
	start := time.Now()
	c.stop()
	eventually(t, cancelLimit, "every hop has ended", func() bool { return len(s.calls()) == 0 })
	s.waitIdle(cancelLimit, n1)
	s.waitIdle(cancelLimit, n2)
	t.Logf("every hop had ended %v after the connection", time.Since(start))
}

// TestTimeoutStopsEveryHop lets the caller's time run out.
func TestTimeoutStopsEveryHop(t *testing.T) {
	t.Parallel()
	s, n1, n2 := startPair(t)
	c := s.begin("near.chain", sleepTree, "Apbus-Timeout: 700ms")
	a := c.wait(700*time.Millisecond + 500*time.Millisecond + slack)
	if a.code() != "MODULE_TIMEOUT" || a.status != http.StatusGatewayTimeout {
		t.Errorf("answer %v, want MODULE_TIMEOUT", a)
	}
	s.waitIdle(cancelLimit, n1)
	s.waitIdle(cancelLimit, n2)
}

// TestProgressReachesTheCaller reads the frames of a call as another client sees
// them: accept, progress, one result.
func TestProgressReachesTheCaller(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	n := s.startNode("n1", "demo")
	inbox := s.peer().NewRespInbox()
	frames, err := s.peer().SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	call := contextwire.NewCallID()
	h, body := enveloped(t, call, "demo.sleep", map[string]any{"ms": int64(400), "steps": int64(4)})
	if err := s.peer().PublishMsg(&nats.Msg{Subject: n.direct("call", "demo.sleep"), Reply: inbox, Header: h, Data: body}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Second+slack)
	defer stop()
	var kinds []string
	for len(kinds) == 0 || kinds[len(kinds)-1] != "result" {
		m, err := frames.NextMsgWithContext(ctx)
		if err != nil {
			t.Fatalf("after %q: %v", kinds, err)
		}
		if m.Header.Get("apbus-call") != call || m.Header.Get("apbus-node") != "n1."+n.boot {
			t.Errorf("a frame of %v", m.Header)
		}
		kind := m.Header.Get("apbus-frame")
		kinds = append(kinds, kind)
		if kind == "progress" {
			var p struct{ Done, Total float64 }
			if err := json.Unmarshal(m.Data, &p); err != nil || p.Total != 4 || p.Done < 1 || p.Done > 4 {
				t.Errorf("progress %s: %v", m.Data, err)
			}
		}
	}
	if kinds[0] != "accept" || !slices.Contains(kinds, "progress") {
		t.Errorf("frames %q, want accept, some progress, result", kinds)
	}
}
