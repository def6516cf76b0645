package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/module"
)

// safeBuffer is a log that several goroutines write.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// started is one node run in this process.
type started struct {
	ready string
	log   *safeBuffer
	stop  context.CancelCauseFunc
	ended chan error
}

// startNode runs a node and waits for its ready line.
func startNode(t *testing.T, args ...string) *started {
	t.Helper()
	ctx, stop := context.WithCancelCause(context.Background())
	r, w := io.Pipe()
	s := &started{log: &safeBuffer{}, stop: stop, ended: make(chan error, 1)}
	go func() {
		err := run(ctx, settings.Spec{Name: "apbus-node", Version: "1.2.3", Args: args, Stdout: w, Stderr: s.log})
		_ = w.CloseWithError(fmt.Errorf("the node ended: %w", errors.Join(err, io.EOF)))
		s.ended <- err
	}()
	lines := bufio.NewReader(r)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("no ready line: %v\n%s", err, s.log)
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }() // keeps the node from blocking on its output
	s.ready = line
	t.Cleanup(func() {
		stop(errors.New("test is over"))
		select {
		case <-s.ended:
		case <-time.After(20 * time.Second):
			t.Error("the node did not stop")
		}
	})
	return s
}

// wait returns what run returned, and leaves it for the cleanup.
func (s *started) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-s.ended:
		s.ended <- err
		return err
	case <-time.After(20 * time.Second):
		t.Fatalf("the node did not stop\n%s", s.log)
		return nil
	}
}

// startBus starts a server and a client that speaks to it.
func startBus(t *testing.T) (url string, client *bus.Client) {
	t.Helper()
	url, client, _ = startBusWithConns(t)
	return url, client
}

func startBusWithConns(t *testing.T) (url string, client *bus.Client, conns *bus.Conns) {
	t.Helper()
	server, err := bus.StartEmbedded(bus.EmbedOptions{Listen: "127.0.0.1:0", DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	if conns, err = bus.Connect(t.Context(), bus.Options{Servers: []string{server.URL()}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conns.Close)
	if client, err = bus.NewClient(conns, bus.ClientOptions{Name: "test"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return server.URL(), client, conns
}

func waitModules(t *testing.T, client *bus.Client, ids ...string) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	for _, id := range ids {
		if err := client.WaitModule(ctx, id); err != nil {
			t.Fatalf("wait for %s: %v", id, err)
		}
	}
}

func TestNodeHosts(t *testing.T) {
	url, client := startBus(t)
	n := startNode(t, "--nats", url, "--id", "n1", "--examples=math,demo")
	want := regexp.MustCompile(`^apbus-node: id=n1 boot=[0-9a-f]+ nats=` + regexp.QuoteMeta(url) + ` modules=6\n$`)
	if !want.MatchString(n.ready) {
		t.Errorf("ready line = %q", n.ready)
	}
	waitModules(t, client, "math.add", "demo.whoami")
	out, err := client.Call(t.Context(), "math.add", map[string]any{"a": 1, "b": 2})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]any{"sum": int64(3)}, out); d != "" {
		t.Error(d)
	}
	out, err = client.Call(t.Context(), "demo.whoami", nil, module.CallTimeout(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if out["node"] != "n1" || out["attempt"] != int64(1) || out["caller_id"] != nil {
		t.Errorf("whoami = %v", out)
	}
	if ms, _ := out["budget_ms"].(int64); ms <= 0 || ms > 5000 {
		t.Errorf("budget_ms = %v, want up to 5000", out["budget_ms"])
	}
}

// TestBareRequest is what "nats req" does.
func TestBareRequest(t *testing.T) {
	url, client, conns := startBusWithConns(t)
	startNode(t, "--nats", url, "--id", "n1", "--examples=math")
	waitModules(t, client, "math.add")
	for request, want := range map[string]string{
		`{"a":1,"b":2}`: `{"sum":3}`,
		`{"a":9223372036854775807,"b":9223372036854775807}`: `{"sum":18446744073709551614}`,
		`{"a":0.5,"b":2}`: `{"sum":2.5}`,
	} {
		reply, err := conns.Calls.Request(t.Context(), &nats.Msg{Subject: "apbus.v1.call.default._.math.add", Data: []byte(request)})
		if err != nil {
			t.Fatal(err)
		}
		if got := string(reply.Data); got != want {
			t.Errorf("%s gives %s, want %s", request, got, want)
		}
	}
}

// TestTwoNodes has the placement of "make run": an order and a chain cross.
func TestTwoNodes(t *testing.T) {
	url, client := startBus(t)
	log := filepath.Join(t.TempDir(), "effects")
	startNode(t, "--nats", url, "--id", "n1", "--examples=math,text,demo,near,orders", "--effect-log", log)
	startNode(t, "--nats", url, "--id", "n2", "--examples=math,demo,far,inventory,payments", "--effect-log", log)
	waitModules(t, client, "orders.place", "inventory.reserve", "inventory.stock", "payments.charge", "near.chain", "far.chain", "near.sleep", "demo.effect")

	out, err := client.Call(t.Context(), "near.chain", map[string]any{
		"path": []any{"far.chain", "near.sleep"}, "input": map[string]any{"ms": 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	var hops []string
	for _, h := range out["hops"].([]any) {
		m := h.(map[string]any)
		hops = append(hops, fmt.Sprint(m["node"], " ", m["call_chain"]))
	}
	if d := cmp.Diff([]string{"n1 [near.chain]", "n2 [near.chain far.chain]"}, hops); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]any{"slept_ms": int64(1)}, out["last"]); d != "" {
		t.Error(d)
	}

	stock := func() any {
		t.Helper()
		out, err := client.Call(t.Context(), "inventory.stock", map[string]any{"sku": "tea"})
		if err != nil {
			t.Fatal(err)
		}
		return out["items"].([]any)[0].(map[string]any)["available"]
	}
	order := map[string]any{"customer": "ana", "card": "4111111111111111", "items": []any{map[string]any{"sku": "tea", "qty": 2}}}
	placed, err := client.Call(t.Context(), "orders.place", order)
	if err != nil {
		t.Fatal(err)
	}
	if placed["total_cents"] != int64(900) || stock() != int64(999_998) {
		t.Errorf("order = %v, stock = %v", placed, stock())
	}
	order["card"] = "4000000000000002"
	_, err = client.Call(t.Context(), "orders.place", order)
	if module.CodeOf(err) != "PAYMENT_DECLINED" {
		t.Errorf("err = %v, want PAYMENT_DECLINED", err)
	}
	if got := stock(); got != int64(999_998) {
		t.Errorf("stock = %v after a declined order, want 999998", got)
	}

	if _, err := client.Call(t.Context(), "demo.effect", map[string]any{"key": "k"}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(log)
	if err != nil || !regexp.MustCompile(`^k 1 n[12]\n$`).Match(raw) {
		t.Errorf("effect log = %q, %v", raw, err)
	}
}

func TestRefundWaitsForAPerson(t *testing.T) {
	url, client := startBus(t)
	startNode(t, "--nats", url, "--id", "n1", "--examples=payments")
	waitModules(t, client, "payments.refund")
	_, err := client.Call(t.Context(), "payments.refund", map[string]any{"charge_id": "ch_1"})
	e := module.AsError(err)
	if e == nil || e.Code != module.CodeApprovalPending || e.Details["approval_id"] == nil {
		t.Errorf("err = %v, want APPROVAL_PENDING with an approval_id", err)
	}
}

func TestStopDrains(t *testing.T) {
	url, client := startBus(t)
	n := startNode(t, "--nats", url, "--id", "n1", "--examples=far", "--drain-grace=10s")
	waitModules(t, client, "far.sleep")
	running := make(chan error, 1)
	go func() {
		_, err := client.Call(context.WithoutCancel(t.Context()), "far.sleep", map[string]any{"ms": 1500})
		running <- err
	}()
	waitInFlight(t, client, 1)
	n.stop(errors.New("SIGTERM"))
	if err := n.wait(t); err != nil {
		t.Errorf("run = %v, want nil", err)
	}
	if err := <-running; err != nil {
		t.Errorf("the accepted call failed: %v", err)
	}
	if _, err := client.Call(t.Context(), "far.sleep", map[string]any{"ms": 1}, module.CallTimeout(2*time.Second)); err == nil {
		t.Error("the node still serves after it stopped")
	}
}

func TestStopCutsWhatOutlivesTheGrace(t *testing.T) {
	url, client := startBus(t)
	n := startNode(t, "--nats", url, "--id", "n1", "--examples=far", "--drain-grace=100ms")
	waitModules(t, client, "far.sleep")
	running := make(chan error, 1)
	go func() {
		_, err := client.Call(context.WithoutCancel(t.Context()), "far.sleep", map[string]any{"ms": 60_000})
		running <- err
	}()
	waitInFlight(t, client, 1)
	n.stop(errors.New("SIGTERM"))
	if err := n.wait(t); err != nil {
		t.Errorf("run = %v, want nil", err)
	}
	if err := <-running; module.CodeOf(err) != module.CodeExecutionCancelled {
		t.Errorf("err = %v, want EXECUTION_CANCELLED", err)
	}
}

func TestDrainOverTheBusEndsTheProcess(t *testing.T) {
	url, client := startBus(t)
	n := startNode(t, "--nats", url, "--id", "n1", "--examples=math")
	waitModules(t, client, "math.add")
	if _, err := client.Drain(t.Context(), "n1", time.Second, "test"); err != nil {
		t.Fatal(err)
	}
	if err := n.wait(t); err != nil {
		t.Errorf("run = %v, want nil", err)
	}
}

func waitInFlight(t *testing.T, client *bus.Client, want int) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	for ctx.Err() == nil {
		calls, err := client.Calls(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(calls) == want {
			return
		}
	}
	t.Fatalf("there never were %d calls in flight", want)
}

func TestRulesAreReadAgain(t *testing.T) {
	url, client := startBus(t)
	path := filepath.Join(t.TempDir(), "acl.yaml")
	write := func(effect string) {
		t.Helper()
		content := "version: \"1.0\"\ndefault_effect: deny\nrules:\n  - callers: [\"@external\"]\n    targets: [\"math.*\"]\n    effect: " + effect + "\n"
		if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write("allow")
	n := startNode(t, "--nats", url, "--id", "n1", "--examples=math", "--acl", path)
	waitModules(t, client, "math.add")
	call := func() module.Code {
		_, err := client.Call(t.Context(), "math.add", map[string]any{"a": 1, "b": 2})
		return module.CodeOf(err)
	}
	eventually := func(want module.Code) {
		t.Helper()
		deadline := time.Now().Add(10 * time.Second)
		for got := call(); got != want; got = call() {
			if time.Now().After(deadline) {
				t.Fatalf("code = %q, want %q\n%s", got, want, n.log)
			}
		}
	}
	eventually("")
	write("deny")
	eventually(module.CodeACLDenied)
	if err := os.WriteFile(path, []byte("rules: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for !strings.Contains(n.log.String(), "the old ones stay in force") {
		if got := call(); got != module.CodeACLDenied {
			t.Fatalf("code = %q while the file is broken, want ACL_DENIED", got)
		}
		if time.Now().After(deadline) {
			t.Fatalf("nobody complained about the broken file\n%s", n.log)
		}
	}
	write("allow")
	eventually("")
}

func TestRunFails(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	for _, tt := range []struct {
		name string
		args []string
		exit int
		want string
	}{
		{"unknown group", []string{"--examples=maths"}, settings.ExitUsage, "payments"},
		{"no server", []string{"--nats", "nats://127.0.0.1:1", "--examples"}, settings.ExitFailed, "nats://127.0.0.1:1"},
		{"no rules", []string{"--acl", missing}, settings.ExitFailed, "missing.yaml"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := run(t.Context(), settings.Spec{Name: "apbus-node", Args: tt.args})
			if got := settings.ExitCode(err); got != tt.exit {
				t.Errorf("exit code %d (%v), want %d", got, err, tt.exit)
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v does not name %s", err, tt.want)
			}
		})
	}
}
