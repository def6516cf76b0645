package main

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestBenchCounts(t *testing.T) {
	router := newFakeRouter(t, map[string]fakeAnswer{
		"POST /v1/modules/math.add/call":  {body: `{"sum":3}`},
		"POST /v1/modules/demo.fail/call": {status: 422, body: `{"error":{"code":"DEMO_FAILED","message":"as asked"}}`},
	})
	for _, tt := range []struct {
		name       string
		args       []string
		module     string
		calls      int
		failed     map[string]int
		exitStatus int
	}{
		{"all succeed", []string{"--count", "50", "--in-flight", "4"}, "math.add", 50, map[string]int{}, 0},
		{"all fail", []string{"demo.fail", "--count", "3", "--input", "{}"}, "demo.fail", 0, map[string]int{"DEMO_FAILED": 3}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := runCLI(t.Context(), "", map[string]string{"APBUS_ROUTER": router.URL}, append([]string{"bench", "call", "--json"}, tt.args...)...)
			if got.exit != tt.exitStatus {
				t.Errorf("exit status %d, want %d: %v", got.exit, tt.exitStatus, got.err)
			}
			var doc struct {
				ModuleID  string                          `json:"module_id"`
				Succeeded int                             `json:"succeeded"`
				Failed    map[string]int                  `json:"failed"`
				PerSecond float64                         `json:"per_second"`
				Latency   struct{ P50, P99, Max float64 } `json:"latency_ms"`
			}
			if err := json.Unmarshal([]byte(got.stdout), &doc); err != nil {
				t.Fatalf("%v: %s", err, got.stdout)
			}
			if doc.ModuleID != tt.module || doc.Succeeded != tt.calls || cmp.Diff(tt.failed, doc.Failed) != "" {
				t.Errorf("= %+v", doc)
			}
			if l := doc.Latency; (l.P50 > 0) != (tt.calls > 0) || l.P50 > l.P99 || l.P99 > l.Max || (doc.PerSecond > 0) != (tt.calls > 0) {
				t.Errorf("figures %+v", doc)
			}
		})
	}
}

// TestBenchTasksAndStreams runs the other two kinds, tasks against a real writer.
func TestBenchTasksAndStreams(t *testing.T) {
	tasks, streams := taskRouter(t), newFakeRouter(t, routes()).URL
	for _, tt := range []struct {
		name, router string
		args         []string
		succeeded    int
		chunks       int
		failed       map[string]int
		exitStatus   int
	}{
		{"tasks", tasks, []string{"task"}, 20, 0, map[string]int{}, 0},
		{"tasks that fail", tasks, []string{"task", "demo.fail", "--input", `{"times":1000}`}, 0, 0, map[string]int{"SHOP_CLOSED": 20}, 1},
		{"streams", streams, []string{"stream"}, 20, 40, map[string]int{}, 0},
		{"streams that break off", streams, []string{"stream", "odd.cut", "--input", "{}"}, 0, 0, map[string]int{"BUS_STREAM_TRUNCATED": 20}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := append(append([]string{"bench"}, tt.args...), "--count", "20", "--in-flight", "4", "--json")
			got := runCLI(t.Context(), "", map[string]string{"APBUS_ROUTER": tt.router}, args...)
			if got.exit != tt.exitStatus {
				t.Errorf("exit status %d, want %d: %v", got.exit, tt.exitStatus, got.err)
			}
			var doc struct {
				Bench     string         `json:"bench"`
				Succeeded int            `json:"succeeded"`
				Chunks    int            `json:"chunks"`
				Failed    map[string]int `json:"failed"`
			}
			if err := json.Unmarshal([]byte(got.stdout), &doc); err != nil {
				t.Fatalf("%v: %s", err, got.stdout)
			}
			if doc.Bench != tt.args[0] || doc.Succeeded != tt.succeeded || doc.Chunks != tt.chunks || cmp.Diff(tt.failed, doc.Failed) != "" {
				t.Errorf("= %+v", doc)
			}
		})
	}
	if got := runCLI(t.Context(), "", nil, "--nats", "nats://127.0.0.1:1", "bench", "task"); got.exit != 2 {
		t.Errorf("tasks without a router: exit status %d, %v", got.exit, got.err)
	}
}

func TestBenchRefusesNonsense(t *testing.T) {
	for _, args := range [][]string{
		{"--in-flight", "0"}, {"--in-flight", "10001"}, {"--count=-1"}, {"--for", "0s"}, {"--input", "{}"},
	} {
		if got := runCLI(t.Context(), "", nil, append([]string{"bench", "call"}, args...)...); got.exit != 2 {
			t.Errorf("%v: exit status %d, %v", args, got.exit, got.err)
		}
	}
}

func TestBenchStops(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	f := benchFlags{InFlight: 3, For: time.Hour}
	n := 0
	m := (&benchFlags{InFlight: 1, For: f.For}).run(ctx, func(context.Context) (int, error) {
		if n++; n == 5 {
			stop()
			return 0, errors.New("cut off")
		}
		return 2, nil
	})
	if len(m.times) != 4 || m.parts != 8 || len(m.failed) != 0 {
		t.Errorf("%d calls, %d parts, failed %v", len(m.times), m.parts, m.failed)
	}
}

func TestQuantiles(t *testing.T) {
	m := &measured{}
	for i := 1; i <= 100; i++ {
		m.times = append(m.times, time.Duration(i))
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 50, 0.9: 90, 0.99: 99, 1: 100} {
		if got := m.quantile(q); got != want {
			t.Errorf("quantile %v = %d, want %d", q, got, want)
		}
	}
	if got := (&measured{}).quantile(0.5); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}
