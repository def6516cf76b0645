package middleware

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/apbus/apbus/module"
)

// Events of [PlatformNotify] (protocol §9.16).
const (
	EventErrorThreshold   = "apcore.health.error_threshold_exceeded"
	EventLatencyThreshold = "apcore.health.latency_threshold_exceeded"
	EventHealthRecovered  = "apcore.health.recovered"
)

// NotifyConfig configures [PlatformNotify]. Zero fields have the protocol's
// defaults.
type NotifyConfig struct {
	// ErrorRate is the share of failed calls that is worth an event, 0.1 by default.
	ErrorRate float64
	// LatencyP99 is the 99th percentile of latency that is, 5 s by default.
	LatencyP99 time.Duration
	// Window is how many of the latest calls of a module count, 100 by default.
	Window int
	// MinSamples is how many there must be first, 1 by default.
	MinSamples int
	// Emit is told; it must not block. Nil drops.
	Emit func(module.Event)
}

// PlatformNotify tells operators when a module fails too often or is too slow: one
// event when a threshold is reached, and no other before it recovered, which is
// below half of it. Recovery of the error rate is an event too. Cancelled calls do
// not count. Safe for concurrent use.
type PlatformNotify struct {
	cfg     NotifyConfig
	modules sync.Map // string → *health
}

// health is the window of one module.
type health struct {
	mu           sync.Mutex
	ring         []sample
	next         int
	failures     int
	slow, slower int // latencies at or over the threshold, and over half of it
	failing      bool
	lagging      bool
}

type sample struct {
	latency time.Duration
	failed  bool
}

var (
	_ BeforeHook = (*PlatformNotify)(nil)
	_ EndHook    = (*PlatformNotify)(nil)
	_ Single     = (*PlatformNotify)(nil)
)

// NewPlatformNotify makes the middleware. A configuration out of range is
// GENERAL_INVALID_INPUT.
func NewPlatformNotify(cfg NotifyConfig) (*PlatformNotify, error) {
	if !(cfg.ErrorRate >= 0 && cfg.ErrorRate <= 1) || cfg.LatencyP99 < 0 || cfg.Window < 0 || cfg.MinSamples < 0 {
		return nil, module.Errorf(module.CodeInvalidInput, "platform notify: a value is out of range")
	}
	if cfg.ErrorRate == 0 {
		cfg.ErrorRate = 0.1
	}
	if cfg.LatencyP99 == 0 {
		cfg.LatencyP99 = 5 * time.Second
	}
	if cfg.Window == 0 {
		cfg.Window = 100
	}
	cfg.MinSamples = min(max(cfg.MinSamples, 1), cfg.Window)
	return &PlatformNotify{cfg: cfg}, nil
}

// Name returns "platform_notify".
func (*PlatformNotify) Name() string { return "platform_notify" }

// Priority returns 960.
func (*PlatformNotify) Priority() int { return 960 }

// Single marks that one is enough.
func (*PlatformNotify) Single() {}

// Before notes the time.
func (n *PlatformNotify) Before(_ context.Context, call *Call) (map[string]any, error) {
	call.begin(n)
	return nil, nil
}

// End looks at the thresholds.
func (n *PlatformNotify) End(_ context.Context, call *Call, err *module.Error) {
	started, ok := call.begun(n)
	if !ok || (err != nil && err.Code == module.CodeExecutionCancelled) {
		return
	}
	v, ok := n.modules.Load(call.ModuleID)
	if !ok {
		v, _ = n.modules.LoadOrStore(call.ModuleID, &health{})
	}
	events := v.(*health).add(sample{latency: time.Since(started), failed: err != nil || call.Failure() != nil}, &n.cfg)
	if n.cfg.Emit == nil {
		return
	}
	for _, e := range events {
		e.ModuleID, e.At = call.ModuleID, time.Now().UTC()
		e.Data["module_id"] = call.ModuleID
		n.cfg.Emit(e)
	}
}

// add counts a sample and returns the events it makes. The counts beside the ring
// answer "is the percentile over the threshold" without sorting it.
func (h *health) add(s sample, cfg *NotifyConfig) []module.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ring) < cfg.Window {
		h.ring = append(h.ring, s)
	} else {
		h.count(h.ring[h.next], -1, cfg)
		h.ring[h.next] = s
		h.next = (h.next + 1) % len(h.ring)
	}
	h.count(s, 1, cfg)
	n := len(h.ring)
	if n < cfg.MinSamples {
		return nil
	}
	var events []module.Event
	rate := float64(h.failures) / float64(n)
	switch {
	case !h.failing && rate >= cfg.ErrorRate:
		h.failing = true
		events = append(events, module.Event{
			Type: EventErrorThreshold, Severity: module.SeverityError,
			Data: map[string]any{"error_rate": rate, "threshold": cfg.ErrorRate},
		})
	case h.failing && rate < cfg.ErrorRate/2:
		h.failing = false
		events = append(events, module.Event{
			Type: EventHealthRecovered, Severity: module.SeverityInfo,
			Data: map[string]any{"error_rate": rate, "status": "recovered"},
		})
	}
	// The percentile is the sample of rank ceil(0.99 n): it is over a bound when
	// more samples are than there are ranks above it.
	above := n - (99*n+99)/100
	switch {
	case !h.lagging && h.slow > above:
		h.lagging = true
		events = append(events, module.Event{
			Type: EventLatencyThreshold, Severity: module.SeverityWarn,
			Data: map[string]any{"p99_latency_ms": h.p99(), "threshold": millis(cfg.LatencyP99)},
		})
	case h.lagging && h.slower <= above:
		h.lagging = false
	}
	return events
}

func (h *health) count(s sample, by int, cfg *NotifyConfig) {
	if s.failed {
		h.failures += by
	}
	if s.latency >= cfg.LatencyP99 {
		h.slow += by
	}
	if s.latency >= cfg.LatencyP99/2 {
		h.slower += by
	}
}

func (h *health) p99() float64 {
	all := make([]float64, len(h.ring))
	for i, s := range h.ring {
		all[i] = millis(s.latency)
	}
	slices.Sort(all)
	return Percentile(all, .99)
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
