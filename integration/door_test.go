package integration_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/bus"
)

// sse is one Server-Sent Event.
type sse struct {
	name, id string
	data     map[string]any
}

// streaming is an event stream that a test reads as it likes.
type streaming struct {
	t    testing.TB
	res  *http.Response
	r    *bufio.Reader
	stop context.CancelFunc
}

// openStream calls a module for events. Headers are "Name: value".
func (s *system) openStream(id, inputs string, headers ...string) *streaming {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.t.Context())
	s.t.Cleanup(stop)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.api+"/v1/modules/"+id+"/stream", strings.NewReader(inputs))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	c := s.read(req)
	c.stop = stop
	return c
}

// read makes a request that is answered with events.
func (s *system) read(req *http.Request) *streaming {
	s.t.Helper()
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	res, err := s.http.Do(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", req.Method, req.URL, err)
	}
	s.t.Cleanup(func() { _ = res.Body.Close() })
	return &streaming{t: s.t, res: res, r: bufio.NewReader(res.Body)}
}

// next returns the next event, or false at the end.
func (c *streaming) next() (e sse, ok bool) {
	c.t.Helper()
	for {
		line, err := c.r.ReadString('\n')
		if err != nil {
			return e, false
		}
		name, value, _ := strings.Cut(strings.TrimRight(line, "\n"), ": ")
		switch name {
		case "event":
			e.name = value
		case "id":
			e.id = value
		case "data":
			if err := json.Unmarshal([]byte(value), &e.data); err != nil {
				c.t.Fatalf("event %s: %v", e.name, err)
			}
		case "":
			if e.name != "" {
				return e, true
			}
		}
	}
}

// rest returns the events up to the end, named "name id".
func (c *streaming) rest() (names []string, last sse) {
	c.t.Helper()
	for e, ok := c.next(); ok; e, ok = c.next() {
		names, last = append(names, strings.TrimSpace(e.name+" "+e.id)), e
	}
	return names, last
}

func TestStreamsThroughTheFrontDoor(t *testing.T) {
	t.Parallel()
	s, n1, n2 := startPair(t, "--stream-stall", "3s", "--heartbeat", "200ms")

	t.Run("words", func(t *testing.T) {
		names, last := s.in(t).openStream("text.words", `{"text":"to be"}`).rest()
		if d := cmp.Diff([]string{"accept", "data 0", "data 1", "data 2", "end 3"}, names); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff(map[string]any{"index": 1.0, "word": "be", "count": 2.0}, last.data); d != "" {
			t.Error(d)
		}
	})
	t.Run("a plain module with progress", func(t *testing.T) {
		c := s.in(t).openStream("demo.sleep", `{"ms":600,"steps":3}`)
		if got := c.res.Header.Get("Apbus-Node"); !strings.HasPrefix(got, "n") {
			t.Errorf("Apbus-Node %q", got)
		}
		names, last := c.rest()
		if d := cmp.Diff([]string{"accept", "progress", "progress", "progress", "end 0"}, names); d != "" || last.data["slept_ms"] != 600.0 {
			t.Errorf("%v\n%s", last, d)
		}
	})
	t.Run("refused", func(t *testing.T) {
		for id, status := range map[string]int{"text.words": 400, "text.nothing": 404, "Text.Words": 400} {
			a := s.in(t).do(http.MethodPost, "/v1/modules/"+id+"/stream", `{"text":1}`)
			if a.status != status || a.code() == "" {
				t.Errorf("%s: %v, want status %d", id, a, status)
			}
		}
	})
	t.Run("failed on the way", func(t *testing.T) {
		c := s.in(t).openStream("text.words", `{"text":"to be or not","delay_ms":400}`, "Apbus-Timeout: 1s")
		names, last := c.rest()
		e, _ := last.data["error"].(map[string]any)
		if !slices.Contains(names, "data 0") || last.name != "error" || e["code"] != "MODULE_TIMEOUT" {
			t.Errorf("events %q, the last %v", names, last)
		}
	})
	t.Run("a reader that leaves", func(t *testing.T) {
		s := s.in(t)
		c := s.openStream("text.words", words(1000), "Apbus-Node: n1")
		if e, ok := c.next(); !ok || e.name != "accept" || e.data["node"] != "n1" {
			t.Fatalf("first event %v", e)
		}
		calls := s.running("text.words")
		if calls["text.words"]["mode"] != "stream" {
			t.Errorf("listed as %v", calls)
		}
		c.stop()
		s.waitIdle(cancelLimit, n1)
	})
	t.Run("a reader that stops", func(t *testing.T) {
		s := s.in(t)
		// More than all buffers in between hold, as fast as it goes.
		c := s.openStream("text.words", fmt.Sprintf(`{"text":%q}`, strings.Repeat(strings.Repeat("x", 900)+" ", 1000)+strings.Repeat("y ", 200_000)[:100_000]))
		if _, ok := c.next(); !ok {
			t.Fatal("no event")
		}
		for range 20 {
			if a := s.call("math.add", `{"a":1,"b":2}`); a.status != http.StatusOK {
				t.Errorf("another call: %v", a)
			}
		}
	})
	s.waitIdle(10*time.Second, n1)
	s.waitIdle(10*time.Second, n2)
}

// words is an input for text.words that takes very long.
func words(delayMS int) string {
	return fmt.Sprintf(`{"text":%q,"delay_ms":%d}`, strings.Repeat("word ", 1000), delayMS)
}

func TestStreamsOnTheCommandLine(t *testing.T) {
	t.Parallel()
	s, n1, _ := startPair(t)
	for way, flags := range map[string][]string{"http": nil, "nats": {"--nats", s.nats}} {
		t.Run(way, func(t *testing.T) {
			s := s.in(t)
			cli := func(args ...string) (string, *process) { return s.cli(append(slices.Clone(flags), args...)...) }

			out, p := cli("call", "text.words", "text=to be", "--stream")
			if want := `{"index":0,"word":"to"}` + "\n" + `{"index":1,"word":"be"}` + "\n" + `{"count":2}`; out != want || p.exit(0) != 0 {
				t.Errorf("stream: %s", p.log())
			}
			out, _ = cli("call", "text.words", "text=to", "--stream", "--json")
			if want := `{"data":{"index":0,"word":"to"},"seq":0}` + "\n" + `{"data":{"count":1},"seq":1}` + "\n" + `{"count":2,"end":{"count":1,"index":0,"word":"to"}}`; out != want {
				t.Errorf("stream as JSON: %s", out)
			}
			// The first chunk comes before the last is made.
			slow := s.startCLI(append(slices.Clone(flags), "call", "text.words", "--stream", "--input", words(500))...)
			slow.line(`{"index":0`)
			s.running("text.words")
			slow.signal(syscall.SIGINT)
			if code := slow.exit(5 * time.Second); code != 130 || !strings.Contains(slow.log(), "interrupted: cancelled call") {
				t.Errorf("interrupted: exit code %d: %s", code, slow.log())
			}
			s.waitIdle(cancelLimit, n1)

			out, p = cli("call", "near.chain", `path=["far.whoami"]`, "--trace")
			if p.exit(0) != 0 || !strings.Contains(out, "\nnear.chain") || !strings.Contains(out, "├─ execute") || !strings.Contains(out, " ms") ||
				!strings.Contains(out, "standard  on n1") || !strings.Contains(out, "standard  on n2") {
				t.Errorf("trace: %s", p.log())
			}
			out, p = cli("call", "demo.fail", "code=SHOP_CLOSED", "--trace", "--json")
			var doc map[string]any
			if err := json.Unmarshal([]byte(out), &doc); err != nil || p.exit(0) != 1 || doc["trace"] == nil || doc["error"] == nil {
				t.Errorf("trace of a failure: %v: %s", err, p.log())
			}
			for _, node := range []string{"n1", "n2"} {
				for range 4 {
					if out, p := cli("call", "demo.whoami", "--node", node); !strings.Contains(out, `"node":"`+node+`"`) {
						t.Errorf("on %s: %s", node, p.log())
					}
				}
			}
			if _, p := cli("call", "demo.whoami", "--node", "n9"); p.exit(0) != 1 || !strings.Contains(p.log(), "node: n9") {
				t.Errorf("on an unknown node: %s", p.log())
			}
			if _, p := cli("call", "far.whoami", "--node", "n1"); p.exit(0) != 1 || !strings.Contains(p.log(), "MODULE_NOT_FOUND") {
				t.Errorf("on a node without the module: %s", p.log())
			}
		})
	}
}

func TestTracesAndNodesOverHTTP(t *testing.T) {
	t.Parallel()
	s, _, _ := startPair(t)
	a := s.call("math.add", `{"a":1,"b":2}`, "Apbus-Trace: 1")
	trace, _ := a.doc["trace"].(map[string]any)
	if d := cmp.Diff(map[string]any{"sum": 3.0}, a.doc["output"]); d != "" || trace["module_id"] != "math.add" || len(list(trace, "steps")) != 11 {
		t.Errorf("traced call: %v\n%s", a, d)
	}
	if a := s.call("math.add", `{"a":1,"b":2}`); a.raw != `{"sum":3}` {
		t.Errorf("a call without: %v", a)
	}
	a = s.call("math.add", `{"a":"x"}`, "Apbus-Trace: 1")
	trace, _ = a.doc["trace"].(map[string]any)
	if failure, _ := trace["error"].(map[string]any); a.status != 400 || a.code() != "SCHEMA_VALIDATION_ERROR" || failure["code"] != a.code() {
		t.Errorf("traced failure: %v", a)
	}
	for _, node := range []string{"n1", "n2"} {
		for range 4 {
			if a := s.call("demo.whoami", "", "Apbus-Node: "+node); a.doc["node"] != node {
				t.Errorf("on %s: %v", node, a)
			}
		}
		if a := s.call("system.health.summary", "", "Apbus-Node: "+node); a.status != 200 && a.status != 403 && a.status != 404 {
			t.Errorf("health of %s: %v", node, a)
		}
	}
	if a := s.call("demo.whoami", "", "Apbus-Node: n9"); a.status != 404 || a.code() != "GATEWAY_NOT_FOUND" {
		t.Errorf("on an unknown node: %v", a)
	}
	if a := s.call("far.whoami", "", "Apbus-Node: n1"); a.status != 404 || a.code() != "MODULE_NOT_FOUND" {
		t.Errorf("on a node without the module: %v", a)
	}
}

// The router does not start where a stream would answer the calls (wire protocol,
// section 1).
func TestRouterRefusesAStreamOverTheCalls(t *testing.T) {
	t.Parallel()
	server, err := bus.StartEmbedded(bus.EmbedOptions{Listen: "127.0.0.1:0", DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	s := newSystem(t)
	s.nats = server.URL()
	js, err := jetstream.New(s.peer())
	if err != nil {
		t.Fatal(err)
	}
	for kind, subject := range map[string]string{
		"call": "apbus.v1.call.default._.math.>", "check": "apbus.v1.check.>", "cancel": "apbus.v1.cancel.default._all", "node": "apbus.*.node.>",
	} {
		t.Run(kind, func(t *testing.T) {
			s := s.in(t)
			if _, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "CATCHALL", Subjects: []string{subject}}); err != nil {
				t.Fatal(err)
			}
			p := startProcess(t, "router", program(t, "apbus-router"), nil, "--listen", "127.0.0.1:0", "--nats", s.nats)
			if code := p.exit(startLimit); code != 1 || !strings.Contains(p.log(), "CATCHALL") || !strings.Contains(p.log(), subject) {
				t.Errorf("exit code %d: %s", code, p.log())
			}
		})
	}
}
