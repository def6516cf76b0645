package middleware

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Families of [UsageMetrics] (protocol §10.4).
const (
	MetricUsageCalls     = "apcore_usage_calls_total"
	MetricUsageErrorRate = "apcore_usage_error_rate"
	MetricUsageP50       = "apcore_usage_p50_latency_ms"
	MetricUsageP95       = "apcore_usage_p95_latency_ms"
	MetricUsageP99       = "apcore_usage_p99_latency_ms"
)

// UsageMetrics shows a [UsageCollector] to Prometheus: calls by status since the
// collector was made, and the error rate and latency percentiles of the period just
// past. Register it with a registry of the program.
type UsageMetrics struct {
	collector                  *UsageCollector
	period                     time.Duration
	calls, rate, p50, p95, p99 *prometheus.Desc
}

var _ prometheus.Collector = (*UsageMetrics)(nil)

// NewUsageMetrics makes the collector; a period of 0 is 24 hours.
func NewUsageMetrics(c *UsageCollector, period time.Duration) *UsageMetrics {
	if period <= 0 {
		period = 24 * time.Hour
	}
	of := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"module_id"}, labels...), nil)
	}
	return &UsageMetrics{
		collector: c, period: period,
		calls: of(MetricUsageCalls, "Calls of modules by outcome.", "status"),
		rate:  of(MetricUsageErrorRate, "Share of failed calls in the period."),
		p50:   of(MetricUsageP50, "Median latency in the period, milliseconds."),
		p95:   of(MetricUsageP95, "95th percentile of latency in the period, milliseconds."),
		p99:   of(MetricUsageP99, "99th percentile of latency in the period, milliseconds."),
	}
}

// Describe sends the families.
func (m *UsageMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.calls, m.rate, m.p50, m.p95, m.p99} {
		ch <- d
	}
}

// Collect sends the values.
func (m *UsageMetrics) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	m.collector.modules.Range(func(id, v any) bool {
		u := v.(*moduleUsage).report(id.(string), now, m.period)
		count := func(status string, n int64) {
			ch <- prometheus.MustNewConstMetric(m.calls, prometheus.CounterValue, float64(n), u.ModuleID, status)
		}
		count("success", u.LifetimeCalls-u.LifetimeErrs)
		count("error", u.LifetimeErrs)
		gauge := func(d *prometheus.Desc, value float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, u.ModuleID)
		}
		gauge(m.rate, u.ErrorRate())
		gauge(m.p50, u.P50)
		gauge(m.p95, u.P95)
		gauge(m.p99, u.P99)
		return true
	})
}
