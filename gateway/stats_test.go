package gateway_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

func someStats(context.Context) ([]contextwire.NodeStats, error) {
	return []contextwire.NodeStats{{
		Node: "n1", Boot: "b1", NS: "default", Protocol: 1, Capacity: 8, InFlight: 2, Waiting: 1, Calls: 9,
		Modules: []contextwire.ModuleStats{{
			ModuleID: "math.add", InFlight: 2, Calls: 7, Errors: map[module.Code]int64{module.CodeModuleTimeout: 1},
			Latency: []contextwire.LatencyBucket{{UpTo: 95 * time.Microsecond, Count: 7}},
		}},
	}}, nil
}

func TestStats(t *testing.T) {
	g := newGateway(t, func(o *gateway.Options) { o.Stats = gateway.StatsFunc(someStats) })
	doc := record(g, "GET", "/v1/stats", "").fields(t)
	node := doc["nodes"].([]any)[0].(map[string]any)
	want, _ := someStats(t.Context())
	got, err := contextwire.NodeStatsFromMap(node)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&want[0], got); d != "" {
		t.Error(d)
	}
	if _, err := time.Parse(time.RFC3339Nano, doc["at"].(string)); err != nil {
		t.Errorf("at: %v", err)
	}
	for name, change := range map[string]func(*gateway.Options){
		"GENERAL_NOT_IMPLEMENTED": func(*gateway.Options) {},
		"GENERAL_INTERNAL_ERROR": func(o *gateway.Options) {
			o.Stats = gateway.StatsFunc(func(context.Context) ([]contextwire.NodeStats, error) { return nil, errors.New("secret") })
		},
	} {
		res := record(newGateway(t, change), "GET", "/v1/stats", "")
		if !strings.Contains(res.body, name) || strings.Contains(res.body, "secret") {
			t.Errorf("%s: %d %s", name, res.status, res.body)
		}
	}
}

func TestMetrics(t *testing.T) {
	if res := record(newGateway(t), "GET", "/metrics", ""); res.status != http.StatusNotFound {
		t.Errorf("without metrics: %d %s", res.status, res.body)
	}
	g := newGateway(t, func(o *gateway.Options) {
		o.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "up 1\n") })
	})
	if res := record(g, "GET", "/metrics", ""); res.status != http.StatusOK || res.body != "up 1\n" {
		t.Errorf("%d %s", res.status, res.body)
	}
}
