package integration_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// writeTokens writes a tokens file; each entry is a token, the JSON of its
// identity and its scopes.
func writeTokens(t *testing.T, path string, entries ...[3]string) {
	t.Helper()
	var b strings.Builder
	b.WriteString("tokens:\n")
	for _, e := range entries {
		sum := sha256.Sum256([]byte(e[0]))
		fmt.Fprintf(&b, "  - sha256: %s\n    identity: %s\n    scopes: [%s]\n", hex.EncodeToString(sum[:]), e[1], e[2])
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

const twoCrossings = `{"path":["far.chain","near.whoami"]}`

// hopsOf shows who called whom where, and the traces met on the way.
func hopsOf(t *testing.T, doc map[string]any) (hops []string, traces map[string]bool, last map[string]any) {
	t.Helper()
	last, _ = doc["last"].(map[string]any)
	traces = map[string]bool{}
	for _, h := range append(list(doc, "hops"), last) {
		traces[fmt.Sprint(h["trace_id"])] = true
		caller, _ := h["caller_id"].(string)
		hops = append(hops, fmt.Sprintf("%v runs %v for %q, chain %v", h["node"], h["module_id"], caller, h["call_chain"]))
	}
	return hops, traces, last
}

// threeHops is the chain over two nodes as every caller must see it.
func threeHops() []string {
	return []string{
		`n1 runs near.chain for "", chain [near.chain]`,
		`n2 runs far.chain for "near.chain", chain [near.chain far.chain]`,
		`n1 runs near.whoami for "far.chain", chain [near.chain far.chain near.whoami]`,
	}
}

func TestChainKeepsCallerTraceIdentityAndDataOverThreeHops(t *testing.T) {
	t.Parallel()
	tokens := filepath.Join(t.TempDir(), "tokens.yaml")
	writeTokens(t, tokens, [3]string{"ana-secret", `{id: ana, type: agent, roles: [buyer, admin], attrs: {team: north}}`, "call"})
	s, _, _ := startPairWithToken(t, "ana-secret", tokens)

	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	a := s.call("near.chain", twoCrossings, "traceparent: 00-"+trace+"-00f067aa0ba902b7-01", "Apbus-Timeout: 20s")
	hops, traces, last := hopsOf(t, a.doc)
	if d := cmp.Diff(threeHops(), hops); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]bool{trace: true}, traces); d != "" {
		t.Error(d)
	}
	wantIdentity := map[string]any{
		"id": "ana", "type": "agent", "roles": []any{"buyer", "admin"}, "attrs": map[string]any{"team": "north"},
	}
	if d := cmp.Diff(wantIdentity, last["identity"]); d != "" {
		t.Error(d)
	}
	if left, _ := last["budget_ms"].(float64); left <= 0 || left > 20_000 {
		t.Errorf("the last hop has %v ms left of 20 s", last["budget_ms"])
	}

	out, p := s.cli("call", "near.chain", "--input", twoCrossings)
	var doc map[string]any
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatalf("%v\n%s", err, p.log())
	}
	hops, traces, last = hopsOf(t, doc)
	if d := cmp.Diff(threeHops(), hops); d != "" {
		t.Error(d)
	}
	if len(traces) != 1 || traces[trace] {
		t.Errorf("traces of a call of its own: %v", traces)
	}
	if d := cmp.Diff(wantIdentity, last["identity"]); d != "" {
		t.Error(d)
	}

	// Data enters with a program's Context; what is private to a process stays.
	client := s.client()
	reply, err := client.Invoke(t.Context(), &contextwire.Request{
		ModuleID: "near.chain", Inputs: map[string]any{"path": []any{"far.chain", "near.whoami"}},
		Context: module.NewContext(module.ContextOptions{Data: map[string]any{
			"tenant": "t1", "big": int64(9007199254740993), "_secret": "stays here", "nothing": nil,
		}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	got, _ := reply.Output["last"].(map[string]any)
	if d := cmp.Diff(map[string]any{"tenant": "t1", "big": int64(9007199254740993), "nothing": nil}, got["data"]); d != "" {
		t.Error(d)
	}
	if got["identity"] != nil {
		t.Errorf("identity = %v for a caller without one", got["identity"])
	}
}

// startPairWithToken is startPair with a tokens file and a token of it.
func startPairWithToken(t *testing.T, token, file string, routerFlags ...string) (s *system, n1, n2 *node) {
	t.Helper()
	s = newSystem(t)
	s.token = token
	s.startRouter(append([]string{
		"--embed-listen", "127.0.0.1:0", "--data", filepath.Join(s.dir, "nats"), "--durability", "process-safe", "--tokens", file,
	}, routerFlags...)...)
	nodes := s.startNodes([]string{"n1", groupsN1}, []string{"n2", groupsN2})
	return s, nodes[0], nodes[1]
}

// client is a program that calls through the bus from within this process.
func (s *system) client() *bus.Client {
	s.t.Helper()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	conns, err := bus.Connect(s.t.Context(), bus.Options{Servers: []string{s.nats}, Name: "test", Logger: quiet})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(conns.Close)
	c, err := bus.NewClient(conns, bus.ClientOptions{Name: "test", Logger: quiet})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

// TestManyChainsAtOnce keeps calls of different trees apart.
func TestManyChainsAtOnce(t *testing.T) {
	t.Parallel()
	s, n1, n2 := startPair(t)
	const calls = 100
	running := make([]*calling, calls)
	for i := range running {
		running[i] = s.begin("near.chain", twoCrossings, fmt.Sprintf("traceparent: 00-%032x-00f067aa0ba902b7-01", i+1))
	}
	for i, c := range running {
		a := c.wait(requestLimit)
		hops, traces, _ := hopsOf(t, a.doc)
		if d := cmp.Diff(threeHops(), hops); d != "" {
			t.Fatalf("call %d: %v\n%s", i, a, d)
		}
		if want := map[string]bool{fmt.Sprintf("%032x", i+1): true}; !cmp.Equal(want, traces) {
			t.Errorf("call %d has the traces %v", i, traces)
		}
	}
	s.waitIdle(time.Second+slack, n1)
	s.waitIdle(time.Second+slack, n2)
}
