package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/internal/settings"
)

func TestStartAndStop(t *testing.T) {
	args := free(t)
	s := startRouter(t, args...)
	if res := s.request(t, "GET", "/readyz", ""); res.status != 200 {
		t.Errorf("readyz: %d %s", res.status, res.body)
	}
	if res := s.request(t, "POST", "/v1/modules/no.such/call", "{}"); res.status != 404 || !strings.Contains(res.body, "MODULE_NOT_FOUND") {
		t.Errorf("unknown module: %d %s", res.status, res.body)
	}
	if res := s.request(t, "GET", "/openapi.json", ""); !strings.Contains(res.body, `"version":"1.2.3"`) {
		t.Errorf("openapi: %s", res.body)
	}
	s.stop(errors.New("enough"))
	if err := s.wait(t); err != nil {
		t.Errorf("run returned %v", err)
	}
	if _, err := s.send(t.Context(), "GET", "/healthz", ""); err == nil {
		t.Error("the address is still served")
	}
	// Everything is given back: the same data directory serves the next router.
	startRouter(t, args...)
}

func TestCallsThroughTheBus(t *testing.T) {
	s := startRouter(t, free(t)...)
	w := newWaiter()
	s.host(t, "n1", adder(), w.module())

	res := s.request(t, "POST", "/v1/modules/math.add/call", `{"a":9007199254740993,"b":1}`)
	if res.status != 200 || res.body != `{"sum":9007199254740994}` || !strings.HasPrefix(res.header.Get("Apbus-Node"), "n1.") {
		t.Errorf("call: %d %s %v", res.status, res.body, res.header)
	}
	res = s.request(t, "POST", "/v1/modules/math.add/check", `{"a":"x"}`)
	if res.status != 200 || !strings.Contains(res.body, `"valid":false`) {
		t.Errorf("check: %d %s", res.status, res.body)
	}
	res = s.request(t, "POST", "/v1/modules/math.add/call", `{"a":"x"}`)
	if res.status != 400 || !strings.Contains(res.body, "SCHEMA_VALIDATION_ERROR") {
		t.Errorf("bad inputs: %d %s", res.status, res.body)
	}
	res = s.request(t, "POST", "/v1/modules/test.wait/call", "{}", "Apbus-Timeout: 50ms")
	if res.status != 504 || !strings.Contains(res.body, "MODULE_TIMEOUT") {
		t.Errorf("timeout: %d %s", res.status, res.body)
	}
	_ = soon(t, "the end of the module", w.ended)
	<-w.started

	res = s.request(t, "GET", "/v1/nodes", "")
	var nodes struct {
		Nodes []struct{ Node, Boot string }
	}
	if err := json.Unmarshal([]byte(res.body), &nodes); err != nil || len(nodes.Nodes) != 1 || nodes.Nodes[0].Node != "n1" || nodes.Nodes[0].Boot == "" {
		t.Errorf("nodes: %v %s", err, res.body)
	}
}

func TestCancelThroughTheBus(t *testing.T) {
	s := startRouter(t, free(t)...)
	w := newWaiter()
	s.host(t, "n1", w.module())

	res := s.request(t, "POST", "/v1/modules/test.wait/call", "{}", "Prefer: respond-async")
	id := res.header.Get("Apbus-Call")
	if res.status != 202 || id == "" {
		t.Fatalf("detached: %d %s", res.status, res.body)
	}
	soon(t, "the start of the module", w.started)
	if res := s.request(t, "GET", "/v1/calls", ""); !strings.Contains(res.body, id) || !strings.Contains(res.body, `"node":"n1"`) {
		t.Errorf("calls: %s", res.body)
	}
	if res := s.request(t, "DELETE", "/v1/calls/"+id, ""); res.status != 202 || !strings.Contains(res.body, `"nodes":["n1"]`) {
		t.Errorf("cancel: %d %s", res.status, res.body)
	}
	if cause := soon(t, "the end of the module", w.ended); cause == nil {
		t.Error("the module was not told why")
	}
	s.eventually(t, "the outcome shows", func() bool {
		return strings.Contains(s.request(t, "GET", "/v1/calls/"+id, "").body, "EXECUTION_CANCELLED")
	})
	if res := s.request(t, "DELETE", "/v1/calls/0123456789abcdef", ""); res.status != 404 {
		t.Errorf("cancel of nothing: %d %s", res.status, res.body)
	}

	// Closing the connection reaches the module too.
	ctx, hangUp := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.send(ctx, "POST", "/v1/modules/test.wait/call", "{}")
		done <- err
	}()
	soon(t, "the start of the module", w.started)
	hangUp()
	if cause := soon(t, "the end of the module", w.ended); cause == nil {
		t.Error("the module was not told why")
	}
	if err := <-done; err == nil {
		t.Error("the request succeeded")
	}
}

func TestDrainThroughTheBus(t *testing.T) {
	s := startRouter(t, free(t)...)
	s.host(t, "n1", adder())
	if res := s.request(t, "POST", "/v1/nodes/n1/drain", `{"grace_ms":100}`); res.status != 202 || res.body != `{"in_flight":0,"node":"n1"}` {
		t.Errorf("drain: %d %s", res.status, res.body)
	}
	if res := s.request(t, "POST", "/v1/nodes/n7/drain", `{}`); res.status != 404 {
		t.Errorf("drain of nothing: %d %s", res.status, res.body)
	}
}

// What was accepted is finished before the router goes.
func TestStopLetsCallsFinish(t *testing.T) {
	s := startRouter(t, free(t)...)
	w := newWaiter()
	s.host(t, "n1", w.module())
	answers := make(chan response, 1)
	go func() {
		res, err := s.send(context.Background(), "POST", "/v1/modules/test.wait/call", "{}")
		if err != nil {
			res.body = err.Error()
		}
		answers <- res
	}()
	soon(t, "the start of the module", w.started)
	s.stop(errors.New("enough"))
	s.eventually(t, "the address is closed", func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.http, "http://"))
		if err == nil {
			_ = conn.Close() // only looked whether it opens
		}
		return err != nil
	})
	close(w.release)
	if res := soon(t, "the answer", answers); res.status != 200 || res.body != "{}" {
		t.Errorf("got %d %s", res.status, res.body)
	}
	if err := s.wait(t); err != nil {
		t.Errorf("run returned %v", err)
	}
}

func TestSecondRouterOnTheSameBus(t *testing.T) {
	first := startRouter(t, free(t)...)
	first.host(t, "n1", adder())
	second := startRouter(t, "--listen=127.0.0.1:0", "--nats="+first.nats)
	if second.nats != first.nats {
		t.Errorf("nats %q, want %q", second.nats, first.nats)
	}
	second.eventually(t, "the module shows", func() bool {
		return second.request(t, "GET", "/v1/modules/math.add", "").status == 200
	})
	if res := second.request(t, "POST", "/v1/modules/math.add/call", `{"a":1,"b":2}`); res.body != `{"sum":3}` {
		t.Errorf("call: %d %s", res.status, res.body)
	}
}

func TestBusyAddressesAndDirectories(t *testing.T) {
	args := free(t)
	s := startRouter(t, args...)
	natsAddress := strings.TrimPrefix(s.nats, "nats://")
	tests := []struct {
		name string
		args []string
		want []string
	}{
		{"HTTP", free(t, "--listen="+strings.TrimPrefix(s.http, "http://")), []string{"in use", "--listen"}},
		{"NATS", free(t, "--embed-listen="+natsAddress), []string{natsAddress}},
		{"data", args, []string{"in use", "data"}},
		{"no server", []string{"--listen=127.0.0.1:0", "--nats=nats://127.0.0.1:1"}, []string{"nats://127.0.0.1:1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := runToEnd(t, tt.args...)
			if err == nil || settings.ExitCode(err) != 1 || out != "" {
				t.Fatalf("got %v, output %q, want a failure", err, out)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("message %q lacks %q", err, part)
				}
			}
		})
	}
}

// A stream over the call subjects would answer calls with its acknowledgements.
func TestRefusesStreamsOverCallSubjects(t *testing.T) {
	s := startRouter(t, free(t)...)
	nc, err := nats.Connect(s.nats)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "GREEDY", Subjects: []string{"apbus.v1.call.>"}}); err != nil {
		t.Fatal(err)
	}
	_, err = runToEnd(t, "--listen=127.0.0.1:0", "--nats="+s.nats)
	if err == nil || !strings.Contains(err.Error(), "GREEDY") {
		t.Errorf("got %v, want a refusal that names the stream", err)
	}
}

func TestTokensFile(t *testing.T) {
	entry := func(token, id, scopes string) string {
		sum := sha256.Sum256([]byte(token))
		return "  - {sha256: " + hex.EncodeToString(sum[:]) + ", identity: {id: " + id + "}, scopes: [" + scopes + "]}\n"
	}
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	write := func(content string) {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("tokens:\n" + entry("one", "ana", "call") + entry("two", "bob", "call, operate"))
	s := startRouter(t, free(t, "--tokens="+path)...)
	as := func(token string) int {
		return s.request(t, "GET", "/v1/modules", "", "Authorization: Bearer "+token).status
	}
	if res := s.request(t, "GET", "/v1/modules", ""); res.status != 401 {
		t.Errorf("without a token: %d %s", res.status, res.body)
	}
	if as("one") != 200 || as("two") != 200 || as("three") != 401 {
		t.Errorf("got %d, %d, %d", as("one"), as("two"), as("three"))
	}
	write("tokens:\n" + entry("one", "ana", "call"))
	s.eventually(t, "the removed token is refused", func() bool { return as("two") == 401 })
	if as("one") != 200 {
		t.Error("the token that stayed is refused")
	}

	write("tokens:\n  - {sha: x}\n")
	_, err := runToEnd(t, free(t, "--tokens="+path)...)
	if settings.ExitCode(err) != 2 || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a bad tokens file: %v", err)
	}
}

func TestInterruptedStart(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	stop(errors.New("signal"))
	err := run(ctx, spec(nil, nil, free(t)))
	if settings.ExitCode(err) != 130 {
		t.Errorf("got %v, want an interruption", err)
	}
}

func TestUsageErrors(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"HTTP for everybody", []string{"--listen=0.0.0.0:0"}, "--insecure"},
		{"HTTP on every address", []string{"--listen=:0"}, "--insecure"},
		{"HTTP on a name", []string{"--listen=router.example:0"}, "--insecure"},
		{"NATS for everybody", []string{"--embed-listen=0.0.0.0:0"}, "--insecure"},
		{"NATS elsewhere", []string{"--nats=nats://bus.example:4222"}, "--insecure"},
		{"one of several elsewhere", []string{"--nats=127.0.0.1:4222,bus.example:4222"}, "bus.example"},
		{"no port", []string{"--listen=127.0.0.1"}, "--listen"},
		{"credentials without servers", []string{"--creds=x"}, "--nats"},
		{"durability", []string{"--durability=paper"}, "power-safe"},
		{"no body", []string{"--max-body=0"}, "--max-body"},
		{"negative limit", []string{"--max-requests=-1"}, "--max-requests"},
		{"replicas of nothing", []string{"--nats=127.0.0.1:4222", "--replicas=-1"}, "--replicas"},
		{"replicas of one server", free(t, "--replicas=3"), "--nats"},
		{"unknown flag", []string{"--listn=x"}, "--listen"},
		{"stray argument", []string{"serve"}, "serve"},
		{"local without tokens", free(t, "--admit-local"), "--tokens"},
		{"no tokens file", free(t, "--tokens=/nonexistent/tokens.yaml"), "/nonexistent/tokens.yaml"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := runToEnd(t, tt.args...)
			if settings.ExitCode(err) != 2 || out != "" {
				t.Fatalf("got %v, output %q, want a usage error", err, out)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("message %q lacks %q", err, tt.want)
			}
		})
	}
}

func TestAnswersInsteadOfRunning(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want []string
	}{
		{"version", []string{"--version"}, []string{"apbus-router 1.2.3\n"}},
		{"help", []string{"--help"}, []string{"--listen", "127.0.0.1:8420", "--nats", "--embed-listen", "127.0.0.1:4222", "--data", "--durability", "power-safe", "--tokens", "--creds", "--ns", "--insecure", "--log-level", "--config", "APBUS_LISTEN"}},
		{"config", []string{"--print-config", "--nats=nats://me:hunter2@127.0.0.1:4222"}, []string{"listen: 127.0.0.1:8420\n", "durability: power-safe\n", "max-body: 67108864\n"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := runToEnd(t, tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range tt.want {
				if !strings.Contains(out, part) {
					t.Errorf("output lacks %q:\n%s", part, out)
				}
			}
			if strings.Contains(out, "hunter2") {
				t.Errorf("output shows a secret:\n%s", out)
			}
		})
	}
}

func TestWithoutSecrets(t *testing.T) {
	for in, want := range map[string]string{
		"nats://127.0.0.1:4222":          "nats://127.0.0.1:4222",
		"nats://me:secret@127.0.0.1:422": "nats://127.0.0.1:422",
		"127.0.0.1:4222":                 "nats://127.0.0.1:4222",
		"nats://\x00":                    "?",
	} {
		if got := withoutSecrets(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
