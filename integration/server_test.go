package integration_test

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/bus"
)

// natsServer is a NATS server beside the system that can be restarted.
type natsServer struct {
	t   *testing.T
	dir string
	url string
	now *bus.Embedded
}

func startServer(t *testing.T) *natsServer {
	t.Helper()
	s := &natsServer{t: t, dir: t.TempDir()}
	s.start("127.0.0.1:0")
	s.url = s.now.URL()
	t.Cleanup(s.stop)
	return s
}

func (s *natsServer) start(listen string) {
	s.t.Helper()
	var err error
	if s.now, err = bus.StartEmbedded(bus.EmbedOptions{
		Listen: listen, DataDir: s.dir, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *natsServer) stop() {
	if s.now != nil {
		s.now.Shutdown()
		s.now = nil
	}
}

// again starts the server where it was.
func (s *natsServer) again() {
	s.t.Helper()
	s.start(strings.TrimPrefix(s.url, "nats://"))
}

// TestServerRestartLosesNoCall restarts the NATS server under calls: those that
// end afterwards and those that end while it is away are all answered, each
// having run once.
func TestServerRestartLosesNoCall(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	s := newSystem(t)
	s.startRouter("--nats", server.url)
	nodes := s.startNodes([]string{"n1", groupsN1}, []string{"n2", "math,far,inventory,payments"})
	n1, n2 := nodes[0], nodes[1]

	during := s.begin("demo.effect", `{"key":"during","ms":700}`)
	after := s.begin("demo.effect", `{"key":"after","ms":5000}`)
	tree := s.begin("near.chain", `{"path":["far.chain","near.sleep"],"input":{"ms":4000}}`)
	eventually(t, startLimit, "all calls run", func() bool { return len(s.calls()) == 5 })
	server.stop()
	down := time.Now()
	eventually(t, 5*time.Second, "the router is not ready", func() bool {
		return s.get("/readyz").status == http.StatusServiceUnavailable
	})
	if s.get("/healthz").status != http.StatusOK {
		t.Error("the router is not healthy without a server")
	}
	if a := s.call("math.add", `{"a":1,"b":2}`, "Apbus-Timeout: 5s"); a.code() != "BUS_DISCONNECTED" || a.status != http.StatusServiceUnavailable {
		t.Errorf("a call without a server: %v, want BUS_DISCONNECTED", a)
	}
	time.Sleep(time.Until(down.Add(1500 * time.Millisecond))) //archtest:real-time the first effect ends while the server is away
	server.again()
	up := time.Now()

	// A reconnect takes up to half a second, settling three, then one ping.
	const limit = 10 * time.Second
	if a := during.wait(limit + slack); a.status != http.StatusOK || a.doc["count"] != 1.0 {
		t.Errorf("the call that ended while the server was away: %v", a)
	} else {
		t.Logf("the result from the time without a server came %v after the restart", time.Since(up))
	}
	if a := after.wait(limit + slack); a.status != http.StatusOK || a.doc["count"] != 1.0 {
		t.Errorf("the call that ended afterwards: %v", a)
	}
	if a := tree.wait(limit + slack); a.status != http.StatusOK {
		t.Errorf("the tree over two nodes: %v", a)
	}
	if d := cmp.Diff([]string{"during 1 n1", "after 1 n1"}, sortedLike(s.effectLines(), "during", "after")); d != "" {
		t.Error(d)
	}
	eventually(t, limit, "the router is ready again", func() bool { return s.get("/readyz").status == http.StatusOK })
	eventually(t, limit, "new calls pass", func() bool {
		return s.call("math.add", `{"a":1,"b":2}`, "Apbus-Timeout: 2s").doc["sum"] == 3.0
	})
	// The catalogue, which lay in memory, is whole again.
	s.waitKnown(n1)
	s.waitKnown(n2)
	a := s.call("near.chain", twoCrossings)
	hops, _, _ := hopsOf(t, a.doc)
	if d := cmp.Diff(threeHops(), hops); d != "" {
		t.Errorf("%v\n%s", a, d)
	}
	s.waitIdle(time.Second+slack, n1)
	s.waitIdle(time.Second+slack, n2)
}

// sortedLike orders lines by their first word.
func sortedLike(lines []string, words ...string) []string {
	var out []string
	for _, w := range words {
		for _, l := range lines {
			if strings.HasPrefix(l, w+" ") {
				out = append(out, l)
			}
		}
	}
	return out
}

// TestMissingServerIsAnError starts each program without what it connects to: it
// must say so and end rather than hang.
func TestMissingServerIsAnError(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"apbus-router", "--listen", "127.0.0.1:0", "--nats", "nats://127.0.0.1:1"},
		{"apbus-node", "--id", "n1", "--examples", "--nats", "nats://127.0.0.1:1"},
		{"apbus", "call", "math.add", "a=1", "b=2", "--nats", "nats://127.0.0.1:1"},
		{"apbus", "call", "math.add", "a=1", "b=2", "--router", "http://127.0.0.1:1"},
	} {
		p := startProcess(t, strings.Join(args, " "), program(t, args[0]), nil, args[1:]...)
		if code := p.exit(10*time.Second + slack); code != 1 || !strings.Contains(p.log(), "BUS_DISCONNECTED") && !strings.Contains(p.log(), "refused") {
			t.Errorf("%q: exit code %d: %s", args, code, p.log())
		}
	}
}

// TestSecondRouterServesTheSameBus calls and cancels through a router that did
// not make the call.
func TestSecondRouterServesTheSameBus(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	n := s.startNode("n1", "demo,math")
	second := newSystem(t)
	second.startRouter("--nats", s.nats)
	second.waitKnown(n)
	if a := second.call("math.add", `{"a":1,"b":2}`); a.doc["sum"] != 3.0 {
		t.Errorf("call through the second router: %v", a)
	}
	call := s.detach("demo.sleep", `{"ms":`+longSleep+`}`)
	s.running("demo.sleep")
	if a := second.do(http.MethodDelete, "/v1/calls/"+call, ""); a.status != http.StatusAccepted || a.doc["state"] != "cancelling" {
		t.Errorf("cancel through the second router: %v", a)
	}
	if e := s.outcome(call, cancelLimit); e["code"] != "EXECUTION_CANCELLED" {
		t.Errorf("outcome = %v", e)
	}
	s.waitIdle(cancelLimit, n)
}
