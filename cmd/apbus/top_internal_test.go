package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

func nodeAt(node, boot string, calls, failed int64, buckets ...contextwire.LatencyBucket) contextwire.NodeStats {
	return contextwire.NodeStats{
		Node: node, Boot: boot, Capacity: 8, InFlight: 2, Waiting: 1, Debt: 1, Refused: map[module.Code]int64{module.CodeBusOverloaded: calls},
		Modules: []contextwire.ModuleStats{
			{ModuleID: "math.add", InFlight: 2, Waiting: 1, Calls: calls, Errors: map[module.Code]int64{"X": failed}, Latency: buckets},
			{ModuleID: "demo.idle"},
		},
	}
}

func ms(n int, count int64) contextwire.LatencyBucket {
	return contextwire.LatencyBucket{UpTo: time.Duration(n) * time.Millisecond, Count: count}
}

func twoGlances() (before, now glance) {
	start := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	before = glance{start, []contextwire.NodeStats{nodeAt("n1", "a", 100, 10, ms(1, 90), ms(5, 10)), nodeAt("n2", "old", 900, 9, ms(1, 900))}}
	now = glance{start.Add(2 * time.Second), []contextwire.NodeStats{
		nodeAt("n1", "a", 120, 14, ms(1, 90), ms(3, 10), ms(5, 20)),
		nodeAt("n2", "new", 50, 5, ms(1, 50)), // restarted: nothing is known of the time between
	}}
	return before, now
}

func TestTopView(t *testing.T) {
	doc := viewOf(twoGlances()).document()
	node := func(name, boot string, calls, errors, refused float64) map[string]any {
		return map[string]any{
			"node": name, "boot": boot, "draining": false, "capacity": int64(8), "in_flight": int64(2), "backlog": int64(1), "debt": int64(1),
			"calls_per_s": calls, "errors_per_s": errors, "refused_per_s": refused,
		}
	}
	want := map[string]any{
		"at": "2026-11-30T12:00:02Z", "interval_ms": int64(2000), "calls_per_s": 10.0, "errors_per_s": 2.0,
		"nodes": []any{node("n1", "a", 10, 2, 10), node("n2", "new", 0, 0, 0)},
		"modules": []any{
			map[string]any{
				"module_id": "math.add", "nodes": int64(2), "in_flight": int64(4), "backlog": int64(2),
				"calls_per_s": 10.0, "errors_per_s": 2.0, "p50_ms": 3.0, "p99_ms": 5.0,
			},
			map[string]any{
				"module_id": "demo.idle", "nodes": int64(2), "in_flight": int64(0), "backlog": int64(0),
				"calls_per_s": 0.0, "errors_per_s": 0.0, "p50_ms": nil, "p99_ms": nil,
			},
		},
	}
	if d := cmp.Diff(want, doc); d != "" {
		t.Error(d)
	}
}

func TestTopScreen(t *testing.T) {
	var b strings.Builder
	p := &printer{w: &b, terminal: true}
	if err := (&topCmd{Once: true, Limit: 1}).show(p, viewOf(twoGlances())); err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(b.String(), "  ") // the time of day is local
	golden(t, "terminal-top", rest)
	b.Reset()
	if err := (&topCmd{}).show(p, viewOf(twoGlances())); err != nil {
		t.Fatal(err)
	}
	if out := b.String(); !strings.HasPrefix(out, "\x1b[H") || !strings.HasSuffix(out, "\x1b[J") || strings.Contains(out, "\x1b[2J") {
		t.Errorf("it does not repaint: %q", out)
	}
	b.Reset()
	if err := (&topCmd{}).show(&printer{w: &b}, viewOf(twoGlances())); err != nil {
		t.Fatal(err)
	}
	if want := "n1\tlive\t2/8\t1\t1\t10.0\t2.0\t10.0\n"; !strings.HasPrefix(b.String(), want) || strings.Contains(b.String(), "\x1b") {
		t.Errorf("plain:\n%s", b.String())
	}
}

// statsRouter answers with growing counts, or with what fails.
func statsRouter(t *testing.T, status int) (url string, asked *atomic.Int64) {
	t.Helper()
	asked = &atomic.Int64{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		if r.URL.Path != "/v1/stats" || (status != 0 && n > 1) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"error":{"code":"BUS_DISCONNECTED","message":"no bus"}}`)
			return
		}
		stats := nodeAt("n1", "a", 10*n, n)
		body, _ := contextwire.EncodeCanonical(contextwire.JSON, map[string]any{"at": "2026-11-30T12:00:00Z", "nodes": []any{stats.Map()}})
		_, _ = w.Write(body)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, asked
}

func TestTop(t *testing.T) {
	url, asked := statsRouter(t, 0)
	res := runCLI(t.Context(), "", nil, "top", "--router", url, "--once", "--json", "--interval", "100ms")
	var doc struct {
		Calls   float64 `json:"calls_per_s"`
		Modules []struct {
			ID string `json:"module_id"`
		}
	}
	if err := json.Unmarshal([]byte(res.stdout), &doc); err != nil || res.exit != 0 {
		t.Fatalf("exit %d, %v\n%s%s", res.exit, err, res.stdout, res.stderr)
	}
	if doc.Calls <= 0 || len(doc.Modules) != 2 || doc.Modules[0].ID != "math.add" || asked.Load() != 2 {
		t.Errorf("%+v after %d questions", doc, asked.Load())
	}

	// Without --once it goes on, a document a tick, until it is stopped.
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	before := asked.Load()
	go func() {
		for asked.Load() < before+4 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
		stop(errors.New("seen enough"))
	}()
	res = runCLI(ctx, "", nil, "top", "--router", url, "--json", "--interval", "100ms")
	if lines := strings.Count(res.stdout, "\n"); res.exit != 0 || lines < 2 {
		t.Errorf("exit %d after %d documents\n%s", res.exit, lines, res.stderr)
	}

	for name, args := range map[string][]string{
		"too often":      {"--interval", "1ms"},
		"negative limit": {"--limit=-1"},
	} {
		if res := runCLI(t.Context(), "", nil, append([]string{"top", "--router", url}, args...)...); res.exit != 2 {
			t.Errorf("%s: exit %d", name, res.exit)
		}
	}
	url, _ = statsRouter(t, http.StatusServiceUnavailable)
	if res := runCLI(t.Context(), "", nil, "top", "--router", url, "--interval", "100ms"); res.exit != 1 || !strings.Contains(res.stderr, "no bus") {
		t.Errorf("a router that fails: exit %d %s", res.exit, res.stderr)
	}
}
