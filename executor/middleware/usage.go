package middleware

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apbus/apbus/module"
)

// UsageConfig configures [UsageCollector]. Zero fields have the protocol's
// defaults.
type UsageConfig struct {
	// Retention is how long an hour is kept, 168 h by default.
	Retention time.Duration
	// MaxRecords is how many single calls of one module are kept of one hour, the
	// latest; 10,000 by default. The counts of an hour are exact all the same.
	MaxRecords int
}

// UnknownCaller stands for a call without a caller (protocol §6.7).
const UnknownCaller = "unknown"

// maxUsageCallers bounds the callers told apart in one hour of one module; further
// ones are counted as otherUsageCallers.
const maxUsageCallers = 1000

const otherUsageCallers = "*"

// UsageCollector counts the calls of each module in hours, and answers how often,
// by whom, how fast and with what trend a module was used in the time just past
// (protocol §10.4). Safe for concurrent use.
type UsageCollector struct {
	cfg     UsageConfig
	modules sync.Map     // string → *moduleUsage
	swept   atomic.Int64 // the hour of the latest sweep
}

type moduleUsage struct {
	mu    sync.Mutex
	hours map[int64]*usageHour // by hour since 1970
	// Since the collector was made, for counters that only grow.
	calls, errors int64
}

// usageHour holds exact totals and the latest single calls.
type usageHour struct {
	usageTotals
	callers map[string]*callerHour
	records []usageRecord // a ring once it is full
	next    int
}

type usageTotals struct {
	calls, errors int64
	latency       float64 // sum in ms
}

func (t *usageTotals) add(latency float64, failed bool) {
	t.calls++
	t.latency += latency
	if failed {
		t.errors++
	}
}

func (t *usageTotals) merge(o usageTotals) {
	t.calls += o.calls
	t.errors += o.errors
	t.latency += o.latency
}

func (t *usageTotals) average() float64 {
	if t.calls == 0 {
		return 0
	}
	return t.latency / float64(t.calls)
}

type callerHour struct {
	usageTotals
	name string
}

type usageRecord struct {
	at      int64 // unix ms
	latency float64
	caller  *callerHour
	failed  bool
}

// NewUsageCollector makes an empty one.
func NewUsageCollector(cfg UsageConfig) *UsageCollector {
	if cfg.Retention <= 0 {
		cfg.Retention = 168 * time.Hour
	}
	if cfg.MaxRecords <= 0 {
		cfg.MaxRecords = 10_000
	}
	return &UsageCollector{cfg: cfg}
}

// Record counts one call that just ended. An empty caller is [UnknownCaller]. It
// never fails.
func (u *UsageCollector) Record(moduleID, callerID string, latency time.Duration, failed bool) {
	now := time.Now()
	if callerID == "" {
		callerID = UnknownCaller
	}
	hour := hourOf(now)
	if u.swept.Load() != hour {
		u.sweep(hour)
	}
	v, ok := u.modules.Load(moduleID)
	if !ok {
		v, _ = u.modules.LoadOrStore(moduleID, &moduleUsage{hours: map[int64]*usageHour{}})
	}
	m := v.(*moduleUsage)
	ms := float64(latency) / float64(time.Millisecond)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if failed {
		m.errors++
	}
	h := m.hours[hour]
	if h == nil {
		h = &usageHour{callers: map[string]*callerHour{}}
		m.hours[hour] = h
	}
	h.add(ms, failed)
	c := h.caller(callerID)
	c.add(ms, failed)
	r := usageRecord{at: now.UnixMilli(), latency: ms, caller: c, failed: failed}
	if len(h.records) < u.cfg.MaxRecords {
		h.records = append(h.records, r)
		return
	}
	h.records[h.next] = r
	h.next = (h.next + 1) % len(h.records)
}

func (h *usageHour) caller(id string) *callerHour {
	if c := h.callers[id]; c != nil {
		return c
	}
	if len(h.callers) >= maxUsageCallers {
		id = otherUsageCallers
		if c := h.callers[id]; c != nil {
			return c
		}
	}
	c := &callerHour{name: id}
	h.callers[id] = c
	return c
}

// sweep forgets what is older than the retention, once an hour.
func (u *UsageCollector) sweep(hour int64) {
	if u.swept.Swap(hour) == hour {
		return
	}
	oldest := hourOf(time.Now().Add(-u.cfg.Retention))
	u.modules.Range(func(id, v any) bool {
		m := v.(*moduleUsage)
		m.mu.Lock()
		for at := range m.hours {
			if at < oldest {
				delete(m.hours, at)
			}
		}
		m.mu.Unlock()
		return true
	})
}

func hourOf(t time.Time) int64 { return t.Unix() / 3600 }

// Usage is the middleware that feeds a [UsageCollector]. A cancelled call counts
// as an error.
type Usage struct{ collector *UsageCollector }

var (
	_ BeforeHook = (*Usage)(nil)
	_ EndHook    = (*Usage)(nil)
	_ Single     = (*Usage)(nil)
)

// NewUsage makes the middleware.
func NewUsage(c *UsageCollector) *Usage { return &Usage{collector: c} }

// Name returns "usage".
func (*Usage) Name() string { return "usage" }

// Priority returns 980.
func (*Usage) Priority() int { return 980 }

// Single marks that one is enough.
func (*Usage) Single() {}

// Before notes the time.
func (m *Usage) Before(_ context.Context, call *Call) (map[string]any, error) {
	call.begin(m)
	return nil, nil
}

// End records the run.
func (m *Usage) End(_ context.Context, call *Call, err *module.Error) {
	if started, ok := call.begun(m); ok {
		m.collector.Record(call.ModuleID, callerOf(call), time.Since(started), err != nil)
	}
}
