package system

import (
	"context"
	"time"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

const (
	idUsageSummary = "system.usage.summary"
	idUsageModule  = "system.usage.module"
)

const defaultPeriod = "24h"

func periodInput() map[string]any {
	return withDefault(map[string]any{"type": "string", "pattern": "^[1-9][0-9]*[hd]$"}, defaultPeriod,
		"How far to look back, in hours or days: 1h, 24h, 7d.")
}

func trendSchema() map[string]any {
	return enum(string(middleware.TrendStable), string(middleware.TrendRising), string(middleware.TrendDeclining),
		string(middleware.TrendNew), string(middleware.TrendInactive))
}

type usageIn struct {
	ModuleID string  `json:"module_id"`
	Period   *string `json:"period"`
}

func (in usageIn) period() (text string, d time.Duration, err error) {
	text = orElse(in.Period, defaultPeriod)
	d, err = middleware.ParsePeriod(text)
	return text, d, err
}

func (m *Modules) usageSummary() module.Module {
	return build(Usage, idUsageSummary, "How much the modules of this process were used in a period.",
		object(map[string]any{"period": periodInput()}, "period"),
		object(map[string]any{
			"period": text(), "total_calls": integer(), "total_errors": integer(),
			"modules": list(object(map[string]any{
				"module_id": text(), "call_count": integer(), "error_count": integer(), "avg_latency_ms": number(),
				"unique_callers": integer(), "trend": trendSchema(),
			})),
		}),
		func(_ context.Context, in usageIn) (map[string]any, error) {
			period, d, err := in.period()
			if err != nil {
				return nil, err
			}
			var s middleware.UsageSummary
			if m.usage != nil {
				s = m.usage.Summary(d)
			}
			rows := make([]any, len(s.Modules))
			for i, u := range s.Modules {
				rows[i] = map[string]any{
					"module_id": u.ModuleID, "call_count": u.Calls, "error_count": u.Errors, "avg_latency_ms": u.AvgLatency,
					"unique_callers": int64(u.UniqueCallers), "trend": string(u.Trend),
				}
			}
			return map[string]any{"period": period, "total_calls": s.TotalCalls, "total_errors": s.TotalErrors, "modules": rows}, nil
		})
}

func (m *Modules) usageModule() module.Module {
	return build(Usage, idUsageModule, "How much one module of this process was used in a period, by whom and when.",
		object(map[string]any{"module_id": moduleIDInput(), "period": periodInput()}, "period"),
		object(map[string]any{
			"module_id": text(), "period": text(), "call_count": integer(), "error_count": integer(),
			"avg_latency_ms": number(), "p99_latency_ms": number(), "trend": trendSchema(),
			"callers": list(object(map[string]any{
				"caller_id": text(), "call_count": integer(), "error_count": integer(), "avg_latency_ms": number(),
			})),
			"hourly_distribution": map[string]any{
				"type": "array", "minItems": hours, "maxItems": hours,
				"items": object(map[string]any{"hour": text(), "call_count": integer(), "error_count": integer()}),
			},
		}),
		func(_ context.Context, in usageIn) (map[string]any, error) {
			if _, err := m.entry(in.ModuleID); err != nil {
				return nil, err
			}
			period, d, err := in.period()
			if err != nil {
				return nil, err
			}
			u := middleware.ModuleUsage{Trend: middleware.TrendStable, Hourly: emptyHours(time.Now())}
			if m.usage != nil {
				u = m.usage.Module(in.ModuleID, d)
			}
			callers, hourly := make([]any, len(u.Callers)), make([]any, len(u.Hourly))
			for i, c := range u.Callers {
				callers[i] = map[string]any{"caller_id": c.CallerID, "call_count": c.Calls, "error_count": c.Errors, "avg_latency_ms": c.AvgLatency}
			}
			for i, h := range u.Hourly {
				hourly[i] = map[string]any{"hour": h.Hour, "call_count": h.Calls, "error_count": h.Errors}
			}
			return map[string]any{
				"module_id": in.ModuleID, "period": period, "call_count": u.Calls, "error_count": u.Errors,
				"avg_latency_ms": u.AvgLatency, "p99_latency_ms": u.P99, "trend": string(u.Trend),
				"callers": callers, "hourly_distribution": hourly,
			}, nil
		})
}

// hours is how many rows the distribution of a day has, whatever the period.
const hours = 24

// emptyHours are the rows of a process that counts nothing.
func emptyHours(now time.Time) []middleware.HourUsage {
	rows := make([]middleware.HourUsage, hours)
	for i := range rows {
		at := now.Add(-time.Duration(hours-1-i) * time.Hour)
		rows[i].Hour = at.UTC().Format("2006-01-02T15")
	}
	return rows
}
