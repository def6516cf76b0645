package middleware_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// gathered renders what a registry holds, one line for each value, histograms as
// count, sum and cumulative buckets that are not empty.
func gathered(t *testing.T, reg prometheus.Gatherer) []string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			line := f.GetName() + "{" + strings.Join(labels, ",") + "} "
			switch {
			case m.GetHistogram() != nil:
				h := m.GetHistogram()
				line += fmt.Sprintf("n=%d sum=%g", h.GetSampleCount(), h.GetSampleSum())
				last := uint64(0)
				for _, b := range h.GetBucket() {
					if b.GetCumulativeCount() > last {
						last = b.GetCumulativeCount()
						line += fmt.Sprintf(" le%g=%d", b.GetUpperBound(), last)
					}
				}
			case m.GetGauge() != nil:
				line += fmt.Sprint(m.GetGauge().GetValue())
			default:
				line += fmt.Sprint(m.GetCounter().GetValue())
			}
			out = append(out, line)
		}
	}
	return out
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		c := chain(t, made(middleware.NewMetrics(reg)))
		for _, run := range []func(context.Context, int) *module.Error{
			working, failing(module.CodeModuleTimeout), failing(module.CodeExecutionCancelled), failing("ORDERS_EMPTY"), failing("bad code\n"),
		} {
			drive(t.Context(), c, callOf("a.b", ""), func(ctx context.Context, n int) *module.Error {
				time.Sleep(20 * time.Millisecond)
				return run(ctx, n)
			})
		}
		drive(t.Context(), c, callOf("a.slow", ""), func(context.Context, int) *module.Error { time.Sleep(2 * time.Minute); return nil })
		want := []string{
			"apcore_module_calls_total{module_id=a.b,status=error} 4",
			"apcore_module_calls_total{module_id=a.b,status=success} 1",
			"apcore_module_calls_total{module_id=a.slow,status=error} 0",
			"apcore_module_calls_total{module_id=a.slow,status=success} 1",
			"apcore_module_duration_seconds{module_id=a.b} n=5 sum=0.1 le0.025=5",
			"apcore_module_duration_seconds{module_id=a.slow} n=1 sum=120",
			"apcore_module_errors_total{error_code=EXECUTION_CANCELLED,module_id=a.b} 1",
			"apcore_module_errors_total{error_code=MODULE_TIMEOUT,module_id=a.b} 1",
			"apcore_module_errors_total{error_code=ORDERS_EMPTY,module_id=a.b} 1",
			"apcore_module_errors_total{error_code=OTHER,module_id=a.b} 1",
		}
		if diff := cmp.Diff(want, gathered(t, reg)); diff != "" {
			t.Errorf("metrics (-want +got):\n%s", diff)
		}
	})
}

// Codes that a module makes up do not make labels without end.
func TestMetricsBoundsCodes(t *testing.T) {
	reg := prometheus.NewRegistry()
	c := chain(t, made(middleware.NewMetrics(reg)))
	for i := range 200 {
		drive(t.Context(), c, callOf("a.b", ""), failing(module.Code(fmt.Sprintf("MINE_%d", i))))
	}
	drive(t.Context(), c, callOf("a.b", ""), failing(module.CodeModuleTimeout))
	lines := slices.DeleteFunc(gathered(t, reg), func(s string) bool { return !strings.HasPrefix(s, middleware.MetricErrors) })
	if len(lines) != 64+2 || !slices.Contains(lines, "apcore_module_errors_total{error_code=OTHER,module_id=a.b} 136") {
		t.Errorf("%d series, last %v", len(lines), lines[len(lines)-1])
	}
}

func TestMetricsRegistry(t *testing.T) {
	_, err := middleware.NewMetrics(nil)
	wantInvalid(t, "no registry", err, module.CodeInvalidInput)
	reg := prometheus.NewRegistry()
	for range 2 { // two executors of one process share the families
		c := chain(t, made(middleware.NewMetrics(reg)))
		drive(t.Context(), c, callOf("a.b", ""), working)
	}
	if got := gathered(t, reg); !slices.Contains(got, "apcore_module_calls_total{module_id=a.b,status=success} 2") {
		t.Errorf("%v", got)
	}
	taken := prometheus.NewRegistry()
	taken.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: middleware.MetricErrors, Help: "mine"}))
	_, err = middleware.NewMetrics(taken)
	wantInvalid(t, "a name that is taken", err, module.CodeInternal)
	if diff := cmp.Diff([]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}, middleware.DurationBuckets()); diff != "" {
		t.Errorf("buckets (-want +got):\n%s", diff)
	}
}

func BenchmarkMetrics(b *testing.B) {
	c := made(middleware.NewChain(nil, made(middleware.NewMetrics(prometheus.NewRegistry()))))
	base, ctx := callOf("a.b", "c.d"), b.Context()
	b.ReportAllocs()
	for b.Loop() {
		call := *base
		_, n, _ := c.Before(ctx, &call)
		c.End(ctx, &call, n, nil)
	}
}
