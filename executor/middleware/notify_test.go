package middleware_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

func TestNotifyErrorRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bell{}
		c := chain(t, made(middleware.NewPlatformNotify(middleware.NotifyConfig{Window: 20, MinSamples: 10, Emit: b.ring})))
		call := func(n int, run func(context.Context, int) *module.Error) {
			for range n {
				drive(t.Context(), c, callOf("a.b", ""), run)
			}
		}
		bad := failing(module.CodeModuleExecuteError)
		call(5, bad)
		call(4, failing(module.CodeExecutionCancelled)) // says nothing
		call(4, working)
		if len(b.types()) != 0 {
			t.Errorf("%v before there are enough samples", b.types())
		}
		call(1, working) // 5 of 10
		call(3, bad)     // still failing: no second event
		call(19, working)
		if len(b.types()) != 1 {
			t.Errorf("%v, want one event until it recovered", b.types())
		}
		call(1, working) // none of 20
		call(2, bad)     // 2 of 20, at the threshold
		var got []string
		for _, e := range b.events {
			got = append(got, fmt.Sprint(e.Type, " ", e.Severity, " ", e.ModuleID, " ", e.Data))
		}
		if diff := cmp.Diff([]string{
			"apcore.health.error_threshold_exceeded error a.b map[error_rate:0.5 module_id:a.b threshold:0.1]",
			"apcore.health.recovered info a.b map[error_rate:0 module_id:a.b status:recovered]",
			"apcore.health.error_threshold_exceeded error a.b map[error_rate:0.1 module_id:a.b threshold:0.1]",
		}, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestNotifyLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bell{}
		c := chain(t, made(middleware.NewPlatformNotify(middleware.NotifyConfig{Emit: b.ring})))
		call := func(n int, d time.Duration) {
			for range n {
				drive(t.Context(), c, callOf("a.b", ""), func(context.Context, int) *module.Error { time.Sleep(d); return nil })
			}
		}
		call(99, time.Second)
		call(1, 6*time.Second) // one of a hundred is above the percentile
		if len(b.types()) != 0 {
			t.Errorf("%v", b.types())
		}
		call(1, 5*time.Second) // at the threshold
		call(1, 7*time.Second)
		if len(b.events) != 1 {
			t.Fatalf("%v", b.types())
		}
		if diff := cmp.Diff(obj{"module_id": "a.b", "p99_latency_ms": 5000.0, "threshold": 5000.0}, b.events[0].Data); diff != "" || b.events[0].Severity != "warn" {
			t.Errorf("data (-want +got):\n%s", diff)
		}
		call(100, time.Second) // recovered, without an event
		call(2, 5*time.Second)
		if diff := cmp.Diff([]string{middleware.EventLatencyThreshold, middleware.EventLatencyThreshold}, b.types()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// The counts say what sorting the window would.
func TestNotifyModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		window := rapid.IntRange(1, 110).Draw(r, "window")
		latencies := rapid.SliceOfN(rapid.SampledFrom([]time.Duration{0, 3 * time.Second, 6 * time.Second}), 1, 130).Draw(r, "latencies")
		synctest.Test(t, func(t *testing.T) {
			b := &bell{}
			c := chain(t, made(middleware.NewPlatformNotify(middleware.NotifyConfig{Window: window, Emit: b.ring})))
			lagging, want := false, 0
			for i, d := range latencies {
				call := &middleware.Call{ModuleID: "a.b"}
				_, n, _ := c.Before(t.Context(), call)
				time.Sleep(d)
				c.End(t.Context(), call, n, nil)
				var recent []float64
				for _, l := range latencies[max(0, i+1-window) : i+1] {
					recent = append(recent, l.Seconds())
				}
				slices.Sort(recent)
				switch p := middleware.Percentile(recent, .99); {
				case !lagging && p >= 5:
					lagging = true
					want++
				case lagging && p < 2.5:
					lagging = false
				}
				if got := len(b.types()); got != want {
					t.Fatalf("after %v: %d events, want %d", latencies[:i+1], got, want)
				}
			}
		})
	})
}

func TestNewPlatformNotifyRefuses(t *testing.T) {
	for name, cfg := range map[string]middleware.NotifyConfig{
		"rate": {ErrorRate: 2}, "latency": {LatencyP99: -1}, "window": {Window: -1}, "samples": {MinSamples: -1},
	} {
		_, err := middleware.NewPlatformNotify(cfg)
		wantInvalid(t, name, err, module.CodeInvalidInput)
	}
	c := chain(t, made(middleware.NewPlatformNotify(middleware.NotifyConfig{})))
	drive(t.Context(), c, callOf("a.b", ""), failing(module.CodeModuleExecuteError)) // tells nobody
}
