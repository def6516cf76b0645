package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

func ms(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }

func TestTrendOf(t *testing.T) {
	for _, tt := range []struct {
		current, previous int64
		want              middleware.Trend
	}{
		{0, 0, "stable"}, {0, 5, "inactive"}, {5, 0, "new"}, {12, 10, "stable"}, {13, 10, "rising"}, {8, 10, "stable"}, {7, 10, "declining"}, {1, 1, "stable"},
	} {
		if got := middleware.TrendOf(tt.current, tt.previous); got != tt.want {
			t.Errorf("%d after %d is %s, want %s", tt.current, tt.previous, got, tt.want)
		}
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	for _, tt := range []struct {
		samples []float64
		p, want float64
	}{
		{nil, .99, 0}, {hundred, .99, 99}, {hundred, .5, 50}, {hundred, 1, 100}, {hundred, 0, 1}, {[]float64{7}, .99, 7}, {[]float64{1, 2}, .99, 2},
	} {
		if got := middleware.Percentile(tt.samples, tt.p); got != tt.want {
			t.Errorf("p%g of %d samples is %g, want %g", tt.p, len(tt.samples), got, tt.want)
		}
	}
}

func TestParsePeriod(t *testing.T) {
	for text, want := range map[string]time.Duration{"1h": time.Hour, "24h": 24 * time.Hour, "7d": 168 * time.Hour, "36h": 36 * time.Hour} {
		if got, err := middleware.ParsePeriod(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "h", "0h", "01h", "-1h", "1m", "1.5h", "1hh", "24", "99999999999d", "5000d", " 1h"} {
		_, err := middleware.ParsePeriod(text)
		wantInvalid(t, text, err, module.CodeInvalidInput)
	}
}

func TestUsageModule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time begins at midnight UTC, 2000-01-01
		u := middleware.NewUsageCollector(middleware.UsageConfig{})
		time.Sleep(30 * time.Minute)
		u.Record("a.b", "", ms(10), false)
		u.Record("a.b", "x.y", ms(20), true)
		time.Sleep(2 * time.Hour) // 02:30
		for i := range 100 {
			u.Record("a.b", "x.y", ms(float64(i+1)), i%10 == 0)
		}
		time.Sleep(15 * time.Minute)
		u.Record("a.b", "", ms(1000), false) // 02:45
		time.Sleep(10 * time.Minute)         // 02:55

		day := u.Module("a.b", 24*time.Hour)
		if len(day.Hourly) != 24 || day.Hourly[23] != (middleware.HourUsage{Hour: "2000-01-01T02", Calls: 101, Errors: 10}) ||
			day.Hourly[21] != (middleware.HourUsage{Hour: "2000-01-01T00", Calls: 2, Errors: 1}) || day.Hourly[0].Hour != "1999-12-31T03" {
			t.Errorf("hours %v", day.Hourly)
		}
		day.Hourly = nil
		want := middleware.ModuleUsage{
			ModuleID: "a.b", Calls: 103, Errors: 11, AvgLatency: (10 + 20 + 5050 + 1000) / 103.0, P50: 50, P95: 96, P99: 100,
			Trend: "new", UniqueCallers: 2, LifetimeCalls: 103, LifetimeErrs: 11,
			Callers: []middleware.CallerUsage{
				{CallerID: "x.y", Calls: 101, Errors: 11, AvgLatency: 5070 / 101.0}, {CallerID: "unknown", Calls: 2, AvgLatency: 505},
			},
		}
		if diff := cmp.Diff(want, day); diff != "" {
			t.Errorf("day (-want +got):\n%s", diff)
		}
		if got := day.ErrorRate(); got != 11/103.0 {
			t.Errorf("error rate %g", got)
		}
		// A window that cuts an hour counts single calls.
		cut := u.Module("a.b", 20*time.Minute)
		if cut.Calls != 1 || cut.P99 != 1000 || cut.Trend != "declining" || cut.UniqueCallers != 1 || cut.Hourly[23].Calls != 1 {
			t.Errorf("20 minutes: %+v", cut)
		}
		if edge := u.Module("a.b", 25*time.Minute); edge.Calls != 101 || edge.Trend != "new" {
			t.Errorf("the window's edge belongs to it alone: %d calls, %s", edge.Calls, edge.Trend)
		}
		if none := u.Module("a.none", time.Hour); none.Calls != 0 || len(none.Hourly) != 24 || none.Trend != "stable" {
			t.Errorf("a module without calls: %+v", none)
		}
		time.Sleep(31 * time.Minute)
		if idle := u.Module("a.b", 20*time.Minute); idle.Calls != 0 || idle.Trend != "stable" {
			t.Errorf("idle: %+v", idle)
		}
		if gone := u.Module("a.b", 40*time.Minute-time.Second); gone.Calls != 0 || gone.Trend != "inactive" {
			t.Errorf("inactive: %+v", gone)
		}
	})
}

func TestUsageSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := middleware.NewUsageCollector(middleware.UsageConfig{})
		u.Record("m.old", "", ms(1), false)
		time.Sleep(25 * time.Hour)
		for range 2 {
			u.Record("m.one", "", ms(1), true)
		}
		u.Record("m.two", "", ms(1), false)
		u.Record("m.also", "", ms(1), false)
		s := u.Summary(24 * time.Hour)
		var got []string
		for _, m := range s.Modules {
			got = append(got, fmt.Sprint(m.ModuleID, " ", m.Calls, " ", m.Trend))
		}
		if diff := cmp.Diff([]string{"m.one 2 new", "m.also 1 new", "m.two 1 new", "m.old 0 inactive"}, got); diff != "" {
			t.Errorf("modules (-want +got):\n%s", diff)
		}
		if s.TotalCalls != 4 || s.TotalErrors != 2 || s.To.Sub(s.From) != 24*time.Hour {
			t.Errorf("%+v", s)
		}
	})
}

func TestUsageLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := middleware.NewUsageCollector(middleware.UsageConfig{Retention: 3 * time.Hour, MaxRecords: 10})
		for i := range 25 {
			u.Record("a.b", fmt.Sprintf("c.n%d", i%5), ms(float64(i)), false)
		}
		m := u.Module("a.b", time.Hour)
		if m.Calls != 25 || m.UniqueCallers != 5 || m.Callers[0].Calls != 5 || m.P50 != 19 {
			t.Errorf("counts are exact and percentiles of the latest: %+v", m)
		}
		for i := range 1200 {
			u.Record("a.many", fmt.Sprintf("c.n%d", i), ms(1), false)
		}
		many := u.Module("a.many", time.Hour)
		if many.UniqueCallers != 1001 || many.Callers[0] != (middleware.CallerUsage{CallerID: "*", Calls: 200, AvgLatency: 1}) {
			t.Errorf("%d callers, most by %+v", many.UniqueCallers, many.Callers[0])
		}
		time.Sleep(5 * time.Hour)
		u.Record("a.other", "", ms(1), false) // sweeps
		if m := u.Module("a.b", 24*time.Hour); m.Calls != 0 || m.LifetimeCalls != 25 {
			t.Errorf("after the retention: %+v", m)
		}
	})
}

func TestUsageMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := middleware.NewUsageCollector(middleware.UsageConfig{})
		c := chain(t, middleware.NewUsage(u))
		for _, run := range []func(context.Context, int) *module.Error{working, failing(module.CodeModuleTimeout), failing(module.CodeExecutionCancelled)} {
			drive(t.Context(), c, callOf("a.b", "c.d"), func(ctx context.Context, n int) *module.Error {
				time.Sleep(10 * time.Millisecond)
				return run(ctx, n)
			})
		}
		m := u.Module("a.b", time.Hour)
		if m.Calls != 3 || m.Errors != 2 || m.AvgLatency != 10 || m.Callers[0].CallerID != "c.d" {
			t.Errorf("%+v", m)
		}
	})
}

func TestUsageConcurrent(t *testing.T) {
	u := middleware.NewUsageCollector(middleware.UsageConfig{MaxRecords: 50})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 500 {
				u.Record(fmt.Sprintf("m.n%d", i%3), fmt.Sprintf("c.n%d", w), ms(1), i%2 == 0)
				if i%50 == 0 {
					u.Summary(time.Hour)
				}
			}
		})
	}
	wg.Wait()
	if s := u.Summary(time.Hour); s.TotalCalls != 2000 || s.TotalErrors != 1000 {
		t.Errorf("%d calls, %d errors", s.TotalCalls, s.TotalErrors)
	}
}

func TestUsageMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := middleware.NewUsageCollector(middleware.UsageConfig{})
		for i := range 4 {
			u.Record("a.b", "", ms(float64(10*(i+1))), i == 0)
		}
		reg := prometheus.NewRegistry()
		reg.MustRegister(middleware.NewUsageMetrics(u, 0))
		got := gathered(t, reg)
		slices.Sort(got)
		want := []string{
			"apcore_usage_calls_total{module_id=a.b,status=error} 1", "apcore_usage_calls_total{module_id=a.b,status=success} 3",
			"apcore_usage_error_rate{module_id=a.b} 0.25",
			"apcore_usage_p50_latency_ms{module_id=a.b} 20", "apcore_usage_p95_latency_ms{module_id=a.b} 40", "apcore_usage_p99_latency_ms{module_id=a.b} 40",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("metrics (-want +got):\n%s", diff)
		}
	})
}

// outlet is an exporter that keeps what it gets.
type outlet struct {
	at        []time.Duration
	began     time.Time
	totals    []int64
	shutdowns int
	fail      error
	panics    bool
}

func (o *outlet) Export(_ context.Context, s middleware.UsageSummary) error {
	if o.panics {
		panic("secret")
	}
	o.at, o.totals = append(o.at, time.Since(o.began)), append(o.totals, s.TotalCalls)
	return o.fail
}

func (o *outlet) Shutdown(context.Context) error { o.shutdowns++; return o.fail }

func TestPeriodicUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := middleware.NewUsageCollector(middleware.UsageConfig{})
		out := &outlet{began: time.Now()}
		p := made(middleware.NewPeriodicUsage(u, middleware.PeriodicUsageOptions{Exporter: out, Logger: slog.New(slog.DiscardHandler)}))
		ctx, stop := context.WithCancelCause(t.Context())
		p.Start(ctx)
		p.Start(ctx)
		stop(context.Canceled) // ends nothing
		time.Sleep(90 * time.Minute)
		u.Record("a.b", "", ms(1), false)
		time.Sleep(time.Hour)
		for range 2 {
			if err := p.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
		p.Start(t.Context())
		time.Sleep(3 * time.Hour)
		if diff := cmp.Diff([]time.Duration{time.Hour, 2 * time.Hour}, out.at); diff != "" {
			t.Errorf("exports (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]int64{0, 1}, out.totals); diff != "" || out.shutdowns != 1 {
			t.Errorf("%d shutdowns, totals (-want +got):\n%s", out.shutdowns, diff)
		}
	})
}

func TestPeriodicUsageFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := middleware.NewUsageCollector(middleware.UsageConfig{})
		for _, out := range []*outlet{{fail: errors.New("down")}, {panics: true}} {
			p := made(middleware.NewPeriodicUsage(u, middleware.PeriodicUsageOptions{Exporter: out, Interval: time.Second, Logger: slog.New(slog.DiscardHandler)}))
			p.Start(t.Context())
			time.Sleep(3500 * time.Millisecond)
			for range 2 {
				if err := p.Stop(t.Context()); !errors.Is(err, out.fail) {
					t.Errorf("stop: %v", err)
				}
			}
			if out.shutdowns != 1 {
				t.Errorf("%d shutdowns", out.shutdowns)
			}
		}
		p := made(middleware.NewPeriodicUsage(u, middleware.PeriodicUsageOptions{}))
		if err := p.Stop(t.Context()); err != nil { // never started
			t.Error(err)
		}
		_, err := middleware.NewPeriodicUsage(nil, middleware.PeriodicUsageOptions{})
		wantInvalid(t, "no collector", err, module.CodeInvalidInput)
	})
}

func BenchmarkUsageRecord(b *testing.B) {
	u := middleware.NewUsageCollector(middleware.UsageConfig{})
	b.ReportAllocs()
	for b.Loop() {
		u.Record("a.b", "c.d", time.Millisecond, false)
	}
}
