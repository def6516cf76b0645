//go:build interop

package integration_test

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// natsCLI is the public command line of NATS: APBUS_NATS_CLI, or what PATH has.
func natsCLI(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("APBUS_NATS_CLI"); path != "" {
		return path
	}
	path, err := exec.LookPath("nats")
	if err != nil {
		t.Fatal("no nats CLI: set APBUS_NATS_CLI, or go install github.com/nats-io/natscli/nats@v0.5.0")
	}
	return path
}

// natsCommand runs the NATS command line on the system's server and returns what
// it prints to standard output.
func (s *system) natsCommand(args ...string) string {
	s.t.Helper()
	return s.natsProcess(args...).stdout()
}

func (s *system) natsProcess(args ...string) *process {
	s.t.Helper()
	p := startProcess(s.t, "nats "+strings.Join(args, " "), natsCLI(s.t), nil, append([]string{"--server", s.nats}, args...)...)
	if code := p.exit(requestLimit); code != 0 {
		s.t.Fatalf("nats %q: exit code %d: %s", args, code, p.log())
	}
	return p
}

// TestInteropRequest calls modules with the tool that people have at hand.
func TestInteropRequest(t *testing.T) {
	t.Parallel()
	s, _, _ := startPair(t)
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"the call of the documentation", []string{"req", "apbus.v1.call.default._.math.add", `{"a":1,"b":2}`}, `{"sum":3}`},
		{"raw", []string{"req", "--raw", "apbus.v1.call.default._.math.add", `{"a":9007199254740993,"b":1}`}, `{"sum":9007199254740994}`},
		{"floats", []string{"req", "--raw", "apbus.v1.call.default._.math.add", `{"a":0.5,"b":0.25}`}, `{"sum":0.75}`},
		{"a major version", []string{"req", "--raw", "apbus.v1.call.default.1.math.add", `{"a":1,"b":2}`}, `{"sum":3}`},
		{"twice", []string{"req", "--raw", "--count", "2", "apbus.v1.call.default._.math.add", `{"a":1,"b":2}`}, `{"sum":3} {"sum":3}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := s.in(t)
			if got := strings.Join(strings.Fields(s.natsCommand(tt.args...)), " "); got != tt.want {
				t.Errorf("printed %q, want %q", got, tt.want)
			}
		})
	}
	t.Run("an error", func(t *testing.T) {
		s := s.in(t)
		out := s.natsProcess("req", "apbus.v1.call.default._.math.add", `{"a":"x","b":2}`).log()
		for _, want := range []string{"SCHEMA_VALIDATION_ERROR", "Nats-Service-Error-Code: 400", "Nats-Service-Error: "} {
			if !strings.Contains(out, want) {
				t.Errorf("printed %s, want %s in it", out, want)
			}
		}
	})
	t.Run("a check", func(t *testing.T) {
		s := s.in(t)
		var res struct{ Valid bool }
		out := s.natsCommand("req", "--raw", "apbus.v1.check.default._.math.add", `{"a":1,"b":2}`)
		if err := json.Unmarshal([]byte(out), &res); err != nil || !res.Valid {
			t.Errorf("printed %s (%v), want valid", out, err)
		}
	})
	t.Run("nobody there", func(t *testing.T) {
		s := s.in(t)
		p := startProcess(t, "nats req", natsCLI(t), nil, "--server", s.nats, "req", "apbus.v1.call.default._.math.subtract", "{}")
		if p.exit(requestLimit); !strings.Contains(p.log(), "No responders") {
			t.Errorf("said %q, want that nobody listens", p.log())
		}
	})
}

// shape replaces what differs from run to run.
func shape(out string, nodes ...*node) string {
	for _, n := range nodes {
		out = strings.ReplaceAll(out, n.boot, "BOOT-"+n.id)
	}
	for _, r := range []struct{ pattern, with string }{
		{`[A-Za-z0-9]{22}`, "SERVICE-ID"},
		{`\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z?( \([^)]*ago\))?`, "TIME"},
		{`\d+(\.\d+)?(ns|µs|ms|s)\b`, "DURATION"},
	} {
		out = regexp.MustCompile(r.pattern).ReplaceAllString(out, r.with)
	}
	var lines []string
	for line := range strings.Lines(out) {
		if line = strings.TrimRight(line, " \n"); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// TestInteropMicro looks at the nodes as micro services.
func TestInteropMicro(t *testing.T) {
	t.Parallel()
	s, n1, n2 := startPair(t)

	t.Run("ls", func(t *testing.T) {
		s := s.in(t)
		out := s.natsCommand("micro", "ls")
		for _, line := range []string{"All Services", "Apbus node n1", "Apbus node n2", "apbus-node", testVersion} {
			if !strings.Contains(out, line) {
				t.Errorf("micro ls does not show %q:\n%s", line, out)
			}
		}
	})
	t.Run("ls as JSON", func(t *testing.T) {
		s := s.in(t)
		var services []map[string]any
		if err := json.Unmarshal([]byte(shape(s.natsCommand("micro", "ls", "--json"), n1, n2)), &services); err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(services, func(a, b map[string]any) int {
			return strings.Compare(a["description"].(string), b["description"].(string))
		})
		var want []map[string]any
		for _, id := range []string{"n1", "n2"} {
			endpoint := func(name string) map[string]any {
				return map[string]any{
					"name": name, "subject": "apbus.v1.node.default." + id + ".BOOT-" + id + "." + name, "queue_group": "", "metadata": nil,
				}
			}
			want = append(want, map[string]any{
				"name": "apbus-node", "id": "SERVICE-ID", "version": testVersion, "description": "Apbus node " + id,
				"metadata":  map[string]any{"node": id, "boot": "BOOT-" + id, "ns": "default", "protocol": "1"},
				"type":      "io.nats.micro.v1.info_response",
				"endpoints": []any{endpoint("describe"), endpoint("stats")},
			})
		}
		for _, s := range services {
			sortEndpoints(s)
		}
		if d := cmp.Diff(want, services); d != "" {
			t.Error(d)
		}
	})
	t.Run("info", func(t *testing.T) {
		s := s.in(t)
		out := s.natsCommand("micro", "info", "apbus-node")
		n := n1
		if strings.Contains(out, "Apbus node n2") {
			n = n2
		}
		got := shape(out, n)
		for _, want := range []string{
			"Service Information",
			"          Service: apbus-node (SERVICE-ID)",
			"      Description: Apbus node " + n.id,
			"          Version: " + testVersion,
			"boot: BOOT-" + n.id, "node: " + n.id, "ns: default", "protocol: 1",
			"            Subject: apbus.v1.node.default." + n.id + ".BOOT-" + n.id + ".describe",
			"            Subject: apbus.v1.node.default." + n.id + ".BOOT-" + n.id + ".stats",
			"Statistics for 2 Endpoint(s):",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("micro info does not show %q:\n%s", want, got)
			}
		}
	})
	t.Run("stats", func(t *testing.T) {
		s := s.in(t)
		// One request of each node, which the statistics must count.
		s.stats(n1)
		s.stats(n2)
		var services []map[string]any
		if err := json.Unmarshal([]byte(s.natsCommand("micro", "stats", "apbus-node", "--json")), &services); err != nil {
			t.Fatal(err)
		}
		if len(services) != 2 {
			t.Fatalf("%d services, want 2: %v", len(services), services)
		}
		for _, service := range services {
			sortEndpoints(service)
			endpoints := list(service, "endpoints")
			if len(endpoints) != 2 || endpoints[0]["name"] != "describe" || endpoints[1]["name"] != "stats" {
				t.Fatalf("endpoints %v, want describe and stats", endpoints)
			}
			if requests, _ := endpoints[1]["num_requests"].(float64); requests < 1 || endpoints[1]["num_errors"] != 0.0 {
				t.Errorf("stats endpoint: %v, want at least one request and no error", endpoints[1])
			}
			want := []string{
				"average_processing_time", "last_error", "name", "num_errors", "num_requests", "processing_time", "queue_group", "subject",
			}
			if d := cmp.Diff(want, slices.Sorted(maps.Keys(endpoints[1]))); d != "" {
				t.Error(d)
			}
		}
	})
	t.Run("ping", func(t *testing.T) {
		s := s.in(t)
		out := s.natsCommand("micro", "ping", "apbus-node")
		if strings.Count(out, "apbus-node") < 2 {
			t.Errorf("micro ping: %s, want both nodes", out)
		}
	})
	t.Run("requests to the endpoints", func(t *testing.T) {
		s := s.in(t)
		var stats map[string]any
		if err := json.Unmarshal([]byte(s.natsCommand("req", "--raw", n1.subject("stats"), "")), &stats); err != nil {
			t.Fatal(err)
		}
		want := []string{
			"boot", "calls", "cancels_obeyed", "capacity", "credit_stalled_ms", "credit_stalls", "debt", "draining",
			"in_flight", "modules", "node", "ns", "protocol", "refused", "tombstones", "tombstones_evicted", "version",
			"waiting",
		}
		if d := cmp.Diff(want, slices.Sorted(maps.Keys(stats))); d != "" {
			t.Error(d)
		}
		var desc map[string]any
		if err := json.Unmarshal([]byte(s.natsCommand("req", "--raw", n2.subject("describe"), `{"module":"math.add"}`)), &desc); err != nil {
			t.Fatal(err)
		}
		if desc["module_id"] != "math.add" || desc["input_schema"] == nil {
			t.Errorf("describe of math.add: %v", desc)
		}
	})
	t.Run("a node that is gone", func(t *testing.T) {
		s := s.in(t)
		n2.kill()
		eventually(t, startLimit, "micro ls shows one node", func() bool {
			out := s.natsCommand("micro", "ls")
			return strings.Contains(out, "Apbus node n1") && !strings.Contains(out, "Apbus node n2")
		})
	})
}

func sortEndpoints(service map[string]any) {
	endpoints, _ := service["endpoints"].([]any)
	slices.SortFunc(endpoints, func(a, b any) int {
		return strings.Compare(a.(map[string]any)["name"].(string), b.(map[string]any)["name"].(string))
	})
}

// TestInteropCancel cancels with the NATS command line, by call and by caller.
func TestInteropCancel(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	n := s.startNode("n1", "demo")
	call := s.detach("demo.sleep", `{"ms":`+longSleep+`}`)
	s.running("demo.sleep")
	out := s.natsCommand("req", "--raw", "apbus.v1.cancel.default._all", `{"call":"`+call+`","reason":"by hand","by":"me"}`)
	var a map[string]any
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]any{"node": "n1", "boot": n.boot, "calls": []any{call}, "state": "cancelling"}, a); d != "" {
		t.Error(d)
	}
	if e := s.outcome(call, cancelLimit); e["code"] != "EXECUTION_CANCELLED" {
		t.Errorf("outcome %v", e)
	}
	s.waitIdle(time.Second+slack, n)
}

// TestInteropReadme runs the README's lines for the NATS command line.
func TestInteropReadme(t *testing.T) {
	t.Parallel()
	s, _, _ := startPair(t)
	ran := 0
	for _, b := range readme(t) {
		if b.language+" "+b.word != "sh nats" {
			continue
		}
		cmd := exec.Command("sh", "-e", "-c", b.text)
		path := filepath.Dir(natsCLI(t)) + string(os.PathListSeparator) + os.Getenv("PATH")
		cmd.Env = append(cleanEnvironment(), "NATS_URL="+s.nats, "PATH="+path)
		p := startCommand(t, "README", cmd)
		if code := p.exit(requestLimit); code != 0 || !strings.Contains(p.stdout(), `{"sum":3}`) || !strings.Contains(p.stdout(), "Apbus node n2") {
			t.Errorf("exit code %d: %s", code, p.log())
		}
		ran++
	}
	if ran == 0 {
		t.Error("the README has no lines for the NATS command line")
	}
}
