package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/examples"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

// slowRouter holds a call until it is cancelled or its connection closes.
type slowRouter struct {
	cancelStatus int
	cancelBody   string
	began        chan struct{}
	closed       chan struct{} // the call's connection was closed

	mu        sync.Mutex
	callTrace string
	cancelled string
}

func (s *slowRouter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	if r.Method == http.MethodDelete {
		s.mu.Lock()
		s.cancelled = r.URL.RequestURI()
		s.mu.Unlock()
		w.WriteHeader(s.cancelStatus)
		_, _ = io.WriteString(w, s.cancelBody)
		return
	}
	s.mu.Lock()
	s.callTrace = strings.Split(r.Header.Get("Traceparent"), "-")[1]
	s.mu.Unlock()
	close(s.began)
	<-r.Context().Done()
	close(s.closed)
}

func TestCtrlCCancelsTheRemoteWork(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int
		body   string
		want   string
		flags  []string
	}{
		{"told, streaming", 202, `{"nodes":["n1"],"calls":["call-1"],"state":"cancelling"}`, "interrupted: cancelled call call-1 on n1", []string{"--stream"}},
		{"told", 202, `{"nodes":["n1"],"calls":["call-1"],"state":"cancelling"}`, "interrupted: cancelled call call-1 on n1", nil},
		{"over already", 404, `{"error":{"code":"GATEWAY_NOT_FOUND","message":"nobody knows this call"}}`, "was over already", nil},
		{"refused", 403, `{"error":{"code":"ACL_DENIED","message":"no scope"}}`, "not confirmed: ACL_DENIED", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &slowRouter{cancelStatus: tt.status, cancelBody: tt.body, began: make(chan struct{}), closed: make(chan struct{})}
			server := httptest.NewServer(s)
			defer server.Close()
			ctx, stop := context.WithCancelCause(t.Context())
			go func() {
				<-s.began
				stop(errors.New("interrupt"))
			}()
			got := runCLI(ctx, "", nil, append([]string{"--router", server.URL, "call", "demo.sleep", "--input", `{"ms":60000}`}, tt.flags...)...)
			if got.exit != 130 || !strings.Contains(got.stderr, tt.want) || got.stdout != "" {
				t.Errorf("exit code %d, stdout %q, stderr %q", got.exit, got.stdout, got.stderr)
			}
			select {
			case <-s.closed:
			case <-time.After(5 * time.Second):
				t.Error("the connection stayed open")
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if want := "/v1/calls?reason=interrupted&trace=" + s.callTrace; s.cancelled != want {
				t.Errorf("cancelled %q, want %q", s.cancelled, want)
			}
		})
	}
}

// TestCtrlCBeforeTheCall interrupts while the module's schema is fetched: nothing
// was called, so nothing is cancelled.
func TestCtrlCBeforeTheCall(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		stop(errors.New("interrupt"))
		<-r.Context().Done()
	}))
	defer server.Close()
	got := runCLI(ctx, "", nil, "--router", server.URL, "call", "demo.sleep", "ms=60000")
	if got.exit != 130 || !strings.Contains(got.stderr, "apbus: interrupted") {
		t.Errorf("exit code %d, stderr %q", got.exit, got.stderr)
	}
}

// newBusWithNode starts a server and one node with examples on it.
func newBusWithNode(t *testing.T) (url string, client *bus.Client) {
	t.Helper()
	server, err := bus.StartEmbedded(bus.EmbedOptions{Listen: "127.0.0.1:0", DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	conns, err := bus.Connect(t.Context(), bus.Options{Servers: []string{server.URL()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conns.Close)
	mods, err := examples.Modules(examples.Options{Node: "n1", Groups: []string{"math", "text", "demo", "inventory"}})
	if err != nil {
		t.Fatal(err)
	}
	reg := registry.New(registry.Options{})
	for _, m := range mods {
		if err := reg.Register(m); err != nil {
			t.Fatal(err)
		}
	}
	x, err := executor.New(reg, executor.Config{})
	if err != nil {
		t.Fatal(err)
	}
	node, err := bus.NewNode(conns, x, bus.NodeOptions{ID: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Close() })
	if client, err = bus.NewClient(conns, bus.ClientOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return server.URL(), client
}

func TestWithoutARouter(t *testing.T) {
	url, client := newBusWithNode(t)
	for _, tt := range []struct {
		name   string
		args   []string
		exit   int
		stdout string // a part, and all of it when it ends with a newline
		stderr string
	}{
		{"call", []string{"call", "math.add", "a=1", "b=2"}, 0, `{"sum":3}` + "\n", ""},
		{"call with input", []string{"call", "math.add", "--input", "-"}, 0, `{"sum":3}` + "\n", ""},
		{"call fails", []string{"call", "demo.fail", "code=SHOP_CLOSED"}, 1, "", "SHOP_CLOSED: failed as asked"},
		{"stream", []string{"call", "text.words", "text=to be", "--stream"}, 0, `{"index":0,"word":"to"}` + "\n" + `{"index":1,"word":"be"}` + "\n" + `{"count":2}` + "\n", ""},
		{"stream json", []string{"call", "text.words", "text=to", "--stream", "--json"}, 0, `{"data":{"index":0,"word":"to"},"seq":0}` + "\n" + `{"data":{"count":1},"seq":1}` + "\n" + `{"count":2,"end":{"count":1,"index":0,"word":"to"}}` + "\n", ""},
		{"stream of a plain module", []string{"call", "math.add", "a=1", "b=2", "--stream"}, 0, `{"sum":3}` + "\n", ""},
		{"stream fails", []string{"call", "text.words", "--stream", "--input", "{}"}, 1, "", "SCHEMA_VALIDATION_ERROR"},
		{"trace", []string{"call", "math.add", "a=1", "b=2", "--trace"}, 0, "├─ execute ", ""},
		{"trace json", []string{"call", "math.add", "a=1", "b=2", "--trace", "--json"}, 0, `{"output":{"sum":3},"trace":{"error":null,"hooks":[],"module_id":"math.add"`, ""},
		{"trace of a failure", []string{"call", "demo.fail", "code=SHOP_CLOSED", "--trace"}, 1, "SHOP_CLOSED\n├─ context_creation", "SHOP_CLOSED: failed as asked"},
		{"on a node", []string{"call", "demo.whoami", "--node", "n1"}, 0, `"node":"n1"`, ""},
		{"on an unknown node", []string{"call", "demo.whoami", "--node", "n9"}, 1, "", "BUS_NO_RESPONDERS: no live node has this id\n  module_id: demo.whoami\n  node: n9"},
		{"check on a node", []string{"check", "demo.whoami", "--node", "n1"}, 0, "demo.whoami would be called", ""},
		{"timeout", []string{"call", "demo.sleep", "ms=60000", "--timeout", "200ms"}, 1, "", "MODULE_TIMEOUT"},
		{"modules", []string{"modules", "--prefix", "inventory."}, 0, "inventory.stock\t1.0.0\tn1\treadonly,idempotent\tShow the stock", ""},
		{"modules json", []string{"modules", "math.add", "--json"}, 0, `"guidance":[],"hash":"`, ""},
		{"module unknown", []string{"modules", "no.such"}, 1, "", "MODULE_NOT_FOUND"},
		{"nodes", []string{"nodes"}, 0, "n1\t", ""},
		{"check", []string{"check", "inventory.reserve", `items=[{"sku":"tea","qty":2}]`}, 0, "Reserve 2 of 1000000 tea", ""},
		{"check refused", []string{"check", "math.add", "a=1"}, 1, "math.add would be refused", ""},
		{"cancel unknown", []string{"cancel", "AAAAAAAAAAAAAAAAAAAAAA"}, 1, "", "nobody knows"},
		{"doctor", []string{"doctor"}, 0, "stream_overlap     ok\nwildcard_listener  ok\nqueue_groups       ok (seen from outside", ""},
		{"doctor json", []string{"doctor", "--role", "node", "--json"}, 0, `{"checks":[{"check":"permissions","findings":[],"note":null,"state":"ok"}`, ""},
		{"detach", []string{"call", "math.add", "--detach"}, 2, "", "--detach needs a router"},
		{"drain unknown", []string{"nodes", "drain", "n9"}, 1, "", "BUS_NO_RESPONDERS"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := runCLI(t.Context(), `{"a":1,"b":2}`, nil, append([]string{"--nats", url}, tt.args...)...)
			if got.exit != tt.exit {
				t.Errorf("exit code %d (%v), want %d", got.exit, got.err, tt.exit)
			}
			if !strings.Contains(got.stdout, tt.stdout) || strings.HasSuffix(tt.stdout, "\n") && got.stdout != tt.stdout {
				t.Errorf("stdout:\n%s\nwant %q", got.stdout, tt.stdout)
			}
			if !strings.Contains(got.stderr, tt.stderr) {
				t.Errorf("stderr:\n%s\nwant %q", got.stderr, tt.stderr)
			}
		})
	}

	t.Run("cancel", func(t *testing.T) {
		ended := make(chan error, 1)
		go func() {
			_, err := client.Call(context.WithoutCancel(t.Context()), "demo.sleep", map[string]any{"ms": 60_000})
			ended <- err
		}()
		call := waitForCall(t, client)
		got := runCLI(t.Context(), "", nil, "--nats", url, "cancel", call, "--json")
		if got.exit != 0 || got.stdout != `{"calls":["`+call+`"],"nodes":["n1"],"state":"cancelling"}`+"\n" {
			t.Errorf("exit code %d, stdout %q, stderr %q", got.exit, got.stdout, got.stderr)
		}
		if err := <-ended; module.CodeOf(err) != module.CodeExecutionCancelled {
			t.Errorf("the call ended with %v", err)
		}
	})

	t.Run("interrupt", func(t *testing.T) {
		ctx, stop := context.WithCancelCause(t.Context())
		went := make(chan ran, 1)
		go func() { went <- runCLI(ctx, "", nil, "--nats", url, "call", "demo.sleep", "ms=60000") }()
		call := waitForCall(t, client)
		stop(cancel.Because(cancel.Caller, "test", "Ctrl-C"))
		got := <-went
		if got.exit != 130 || !strings.Contains(got.stderr, "interrupted: cancelled call "+call+" on n1") {
			t.Errorf("exit code %d, stderr %q", got.exit, got.stderr)
		}
	})

	t.Run("drain", func(t *testing.T) {
		got := runCLI(t.Context(), "", nil, "--nats", url, "nodes", "drain", "n1", "--grace", "1s", "--json")
		if got.exit != 0 || got.stdout != `{"in_flight":0,"node":"n1"}`+"\n" {
			t.Errorf("exit code %d, stdout %q, stderr %q", got.exit, got.stdout, got.stderr)
		}
	})
}

// waitForCall waits for a running call and returns its ID.
func waitForCall(t *testing.T, client *bus.Client) string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	for ctx.Err() == nil {
		calls, err := client.Calls(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(calls) == 1 && calls[0].State == "running" {
			return calls[0].Call
		}
	}
	t.Fatal("no call runs")
	return ""
}

func TestUnreachableBus(t *testing.T) {
	got := runCLI(t.Context(), "", nil, "--nats", "nats://127.0.0.1:1", "modules")
	if got.exit != 1 || !strings.Contains(got.stderr, "BUS_DISCONNECTED") {
		t.Errorf("exit code %d, stderr %q", got.exit, got.stderr)
	}
}
