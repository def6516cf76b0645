package middleware

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/apbus/apbus/module"
)

// Families of [Metrics] (protocol §10.3).
const (
	MetricCalls    = "apcore_module_calls_total"
	MetricErrors   = "apcore_module_errors_total"
	MetricDuration = "apcore_module_duration_seconds"
)

// DurationBuckets returns the bounds of the duration histogram in seconds
// (protocol §10.3).
func DurationBuckets() []float64 {
	return []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
}

// maxErrorCodes bounds the error_code labels of one module; modules may make up
// codes. Further ones are counted as otherCode.
const maxErrorCodes = 64

const otherCode = "OTHER"

// Metrics counts runs of calls for Prometheus:
//
//	apcore_module_calls_total{module_id, status}        status is success or error
//	apcore_module_errors_total{module_id, error_code}
//	apcore_module_duration_seconds{module_id}           histogram
//
// A cancelled call is an error of code EXECUTION_CANCELLED; a call that ended
// before its middlewares, as a denied one does, is not counted. Safe for concurrent
// use.
type Metrics struct {
	calls, failures *prometheus.CounterVec
	durations       *prometheus.HistogramVec
	modules         sync.Map // string → *moduleMetrics
}

// moduleMetrics are one module's children, looked up once.
type moduleMetrics struct {
	success, failure prometheus.Counter
	duration         prometheus.Observer

	mu    sync.RWMutex
	codes map[module.Code]prometheus.Counter
}

var (
	_ BeforeHook = (*Metrics)(nil)
	_ EndHook    = (*Metrics)(nil)
	_ Single     = (*Metrics)(nil)
)

// NewMetrics makes the middleware and registers its families. With a registry that
// has them already, as that of another executor in the process, it adds to those.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	if reg == nil {
		return nil, module.Errorf(module.CodeInvalidInput, "metrics need a registry")
	}
	calls, err := registered(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: MetricCalls, Help: "Calls of modules by outcome.",
	}, []string{"module_id", "status"}))
	if err != nil {
		return nil, err
	}
	failures, err := registered(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: MetricErrors, Help: "Failed calls of modules by error code.",
	}, []string{"module_id", "error_code"}))
	if err != nil {
		return nil, err
	}
	durations, err := registered(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: MetricDuration, Help: "Duration of calls of modules in seconds.", Buckets: DurationBuckets(),
	}, []string{"module_id"}))
	if err != nil {
		return nil, err
	}
	return &Metrics{calls: calls, failures: failures, durations: durations}, nil
}

func registered[C prometheus.Collector](reg prometheus.Registerer, c C) (C, error) {
	err := reg.Register(c)
	if err == nil {
		return c, nil
	}
	if there, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if same, ok := there.ExistingCollector.(C); ok {
			return same, nil
		}
	}
	return c, module.Wrap(module.CodeInternal, err, "metrics could not be registered")
}

// Name returns "metrics".
func (*Metrics) Name() string { return "metrics" }

// Priority returns 990.
func (*Metrics) Priority() int { return 990 }

// Single marks that one is enough: two would count twice.
func (*Metrics) Single() {}

// Before notes the time.
func (m *Metrics) Before(_ context.Context, call *Call) (map[string]any, error) {
	call.begin(m)
	return nil, nil
}

// End counts the run.
func (m *Metrics) End(_ context.Context, call *Call, err *module.Error) {
	started, ok := call.begun(m)
	if !ok {
		return
	}
	of := m.module(call.ModuleID)
	of.duration.Observe(time.Since(started).Seconds())
	if err == nil {
		of.success.Inc()
		return
	}
	of.failure.Inc()
	of.code(m, call.ModuleID, err.Code).Inc()
}

func (m *Metrics) module(id string) *moduleMetrics {
	if v, ok := m.modules.Load(id); ok {
		return v.(*moduleMetrics)
	}
	v, _ := m.modules.LoadOrStore(id, &moduleMetrics{
		success:  m.calls.WithLabelValues(id, "success"),
		failure:  m.calls.WithLabelValues(id, "error"),
		duration: m.durations.WithLabelValues(id),
		codes:    map[module.Code]prometheus.Counter{},
	})
	return v.(*moduleMetrics)
}

func (of *moduleMetrics) code(m *Metrics, id string, code module.Code) prometheus.Counter {
	of.mu.RLock()
	c := of.codes[code]
	of.mu.RUnlock()
	if c != nil {
		return c
	}
	of.mu.Lock()
	defer of.mu.Unlock()
	if c = of.codes[code]; c != nil {
		return c
	}
	if !code.Known() && (len(of.codes) >= maxErrorCodes || !labelCode(code)) {
		code = otherCode
		if c = of.codes[code]; c != nil {
			return c
		}
	}
	c = m.failures.WithLabelValues(id, string(code))
	of.codes[code] = c
	return c
}

// labelCode accepts codes of modules as labels: short, upper snake case.
func labelCode(c module.Code) bool {
	if c == "" || len(c) > 64 {
		return false
	}
	for i := range len(c) {
		if b := c[i]; (b < 'A' || b > 'Z') && (b < '0' || b > '9') && b != '_' {
			return false
		}
	}
	return true
}
