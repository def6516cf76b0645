package middleware

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/apbus/apbus/module"
)

// Trend compares a period with the one before it.
type Trend string

// The trends (protocol §6.7).
const (
	TrendStable    Trend = "stable"
	TrendRising    Trend = "rising"
	TrendDeclining Trend = "declining"
	TrendNew       Trend = "new"
	TrendInactive  Trend = "inactive"
)

// TrendOf gives the trend from previous calls to current ones: rising above 1.2
// times as many, declining below 0.8 times.
func TrendOf(current, previous int64) Trend {
	switch {
	case current == 0 && previous == 0:
		return TrendStable
	case current == 0:
		return TrendInactive
	case previous == 0:
		return TrendNew
	}
	switch ratio := float64(current) / float64(previous); {
	case ratio > 1.2:
		return TrendRising
	case ratio < 0.8:
		return TrendDeclining
	}
	return TrendStable
}

// Percentile is the nearest-rank percentile of sorted samples, 0 for none; p is
// between 0 and 1.
func Percentile(sorted []float64, p float64) float64 {
	n := len(sorted)
	if n == 0 {
		return 0
	}
	rank := int(math.Ceil(p * float64(n)))
	return sorted[min(max(rank, 1), n)-1]
}

// ParsePeriod reads a period such as "24h" or "7d" (^[1-9][0-9]*[hd]$). Anything
// else, and more than ten years, is GENERAL_INVALID_INPUT.
func ParsePeriod(text string) (time.Duration, error) {
	refuse := func() (time.Duration, error) {
		return 0, module.Errorf(module.CodeInvalidInput, "period is not a number of hours or days, as in 24h or 7d")
	}
	if len(text) < 2 || text[0] < '1' || text[0] > '9' {
		return refuse()
	}
	n, err := strconv.ParseUint(text[:len(text)-1], 10, 32)
	if err != nil {
		return refuse()
	}
	unit := time.Hour
	switch text[len(text)-1] {
	case 'h':
	case 'd':
		unit = 24 * time.Hour
	default:
		return refuse()
	}
	if const10y := uint64(10 * 366 * 24); n > const10y || time.Duration(n)*unit > time.Duration(const10y)*time.Hour {
		return refuse()
	}
	return time.Duration(n) * unit, nil
}

// UsageSummary is the use of all modules in a period.
type UsageSummary struct {
	From, To                time.Time
	TotalCalls, TotalErrors int64
	// Modules that were used, most calls first, then by ID.
	Modules []ModuleUsage
}

// ModuleUsage is the use of one module in a period. Latencies are milliseconds;
// percentiles are nearest rank over the single calls kept.
type ModuleUsage struct {
	ModuleID                    string
	Calls, Errors               int64
	AvgLatency, P50, P95, P99   float64
	Trend                       Trend
	UniqueCallers               int
	Callers                     []CallerUsage // most calls first, then by ID
	Hourly                      []HourUsage   // the last 24 hours, ascending, always 24 rows
	LifetimeCalls, LifetimeErrs int64         // since the collector was made
}

// ErrorRate is the share of failed calls, 0 without calls.
func (m ModuleUsage) ErrorRate() float64 {
	if m.Calls == 0 {
		return 0
	}
	return float64(m.Errors) / float64(m.Calls)
}

// CallerUsage is the part of one caller.
type CallerUsage struct {
	CallerID      string
	Calls, Errors int64
	AvgLatency    float64
}

// HourUsage is the part of one hour; Hour reads "2006-01-02T15", UTC.
type HourUsage struct {
	Hour          string
	Calls, Errors int64
}

// hourlyRows is how many hours [ModuleUsage] shows, whatever the period.
const hourlyRows = 24

// Summary returns the use in [now-period, now]. Modules without a call in it are
// listed only when they had one in the period before, as inactive.
func (u *UsageCollector) Summary(period time.Duration) UsageSummary {
	now := time.Now()
	s := UsageSummary{From: now.Add(-period).UTC(), To: now.UTC()}
	u.modules.Range(func(id, v any) bool {
		m := v.(*moduleUsage).report(id.(string), now, period)
		if m.Calls > 0 || m.Trend == TrendInactive {
			s.Modules = append(s.Modules, m)
			s.TotalCalls += m.Calls
			s.TotalErrors += m.Errors
		}
		return true
	})
	slices.SortFunc(s.Modules, func(a, b ModuleUsage) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.ModuleID, b.ModuleID))
	})
	return s
}

// Module returns the use of one module in [now-period, now]; one that was never
// called has zeroes and 24 empty hours.
func (u *UsageCollector) Module(id string, period time.Duration) ModuleUsage {
	now := time.Now()
	if v, ok := u.modules.Load(id); ok {
		return v.(*moduleUsage).report(id, now, period)
	}
	return (&moduleUsage{}).report(id, now, period)
}

// window is a sum over some time. Records are milliseconds, from and to included.
type window struct {
	from, to  int64
	total     usageTotals
	latencies []float64
	callers   map[string]*usageTotals
	hours     map[int64]*usageTotals
}

func (m *moduleUsage) report(id string, now time.Time, period time.Duration) ModuleUsage {
	start := now.Add(-period)
	current := &window{
		from: start.UnixMilli(), to: now.UnixMilli(),
		callers: map[string]*usageTotals{}, hours: map[int64]*usageTotals{},
	}
	previous := &window{from: start.Add(-period).UnixMilli(), to: start.UnixMilli() - 1}
	m.mu.Lock()
	for hour, h := range m.hours {
		current.take(hour, h)
		previous.take(hour, h)
	}
	out := ModuleUsage{ModuleID: id, LifetimeCalls: m.calls, LifetimeErrs: m.errors}
	m.mu.Unlock()

	out.Calls, out.Errors, out.AvgLatency = current.total.calls, current.total.errors, current.total.average()
	slices.Sort(current.latencies)
	out.P50, out.P95, out.P99 = Percentile(current.latencies, .5), Percentile(current.latencies, .95), Percentile(current.latencies, .99)
	out.Trend = TrendOf(out.Calls, previous.total.calls)
	out.UniqueCallers = len(current.callers)
	for name, t := range current.callers {
		out.Callers = append(out.Callers, CallerUsage{CallerID: name, Calls: t.calls, Errors: t.errors, AvgLatency: t.average()})
	}
	slices.SortFunc(out.Callers, func(a, b CallerUsage) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.CallerID, b.CallerID))
	})
	last := hourOf(now)
	for hour := last - hourlyRows + 1; hour <= last; hour++ {
		row := HourUsage{Hour: time.Unix(hour*3600, 0).UTC().Format("2006-01-02T15")}
		if t := current.hours[hour]; t != nil {
			row.Calls, row.Errors = t.calls, t.errors
		}
		out.Hourly = append(out.Hourly, row)
	}
	return out
}

// take adds what of an hour is in the window: by its totals when all of it is, by
// its single calls when the window cuts it.
func (w *window) take(hour int64, h *usageHour) {
	first, last := hour*3_600_000, (hour+1)*3_600_000-1
	// The current hour lies within as a whole: nothing in it is later than now.
	whole := first >= w.from && (last <= w.to || h.latest() <= w.to)
	switch {
	case last < w.from || first > w.to:
		return
	case whole:
		w.total.merge(h.usageTotals)
	default:
		for _, r := range h.records {
			if w.holds(r) {
				w.total.add(r.latency, r.failed)
			}
		}
	}
	if w.callers == nil {
		return
	}
	inHour := &usageTotals{}
	if whole {
		inHour.merge(h.usageTotals)
		for name, c := range h.callers {
			w.caller(name).merge(c.usageTotals)
		}
	}
	for _, r := range h.records {
		if !w.holds(r) {
			continue
		}
		w.latencies = append(w.latencies, r.latency)
		if !whole {
			inHour.add(r.latency, r.failed)
			w.caller(r.caller.name).add(r.latency, r.failed)
		}
	}
	w.hours[hour] = inHour
}

func (w *window) holds(r usageRecord) bool { return r.at >= w.from && r.at <= w.to }

func (w *window) caller(name string) *usageTotals {
	t := w.callers[name]
	if t == nil {
		t = &usageTotals{}
		w.callers[name] = t
	}
	return t
}

// latest is when the latest call of the hour ended, in unix ms.
func (h *usageHour) latest() int64 {
	if n := len(h.records); n > 0 {
		return h.records[(h.next+n-1)%n].at
	}
	return 0
}
