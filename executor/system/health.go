package system

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

const (
	idHealthSummary = "system.health.summary"
	idHealthModule  = "system.health.module"
)

// The states of health (protocol §6.7).
const (
	statusHealthy  = "healthy"
	statusDegraded = "degraded"
	statusError    = "error"
	statusUnknown  = "unknown"
)

const (
	defaultThreshold  = 0.01
	defaultErrorLimit = 10
	// errorRate is where a module is in error, whatever the threshold (decision
	// D-109).
	errorRate = 0.10
	// healthPeriod is how far health looks back, as long as usage is kept.
	healthPeriod = 168 * time.Hour
)

// statusOf classifies a module by the share of its failed calls.
func statusOf(calls int64, rate, threshold float64) string {
	switch {
	case calls == 0:
		return statusUnknown
	case rate >= errorRate:
		return statusError
	case rate < threshold:
		return statusHealthy
	}
	return statusDegraded
}

type healthSummaryIn struct {
	Threshold      *float64 `json:"error_rate_threshold"`
	IncludeHealthy *bool    `json:"include_healthy"`
}

func (m *Modules) healthSummary() module.Module {
	status := enum(statusHealthy, statusDegraded, statusError, statusUnknown)
	return build(Health, idHealthSummary, "Health of all modules of this process.",
		object(map[string]any{
			"error_rate_threshold": withDefault(map[string]any{"type": "number", "minimum": 0, "maximum": 1}, defaultThreshold,
				"Share of failed calls below which a module is healthy."),
			"include_healthy": withDefault(boolean(), true, "Whether to list healthy modules."),
		}, "error_rate_threshold", "include_healthy"),
		object(map[string]any{
			"project": object(map[string]any{"name": text()}),
			"summary": object(map[string]any{
				"total_modules": integer(), statusHealthy: integer(), statusDegraded: integer(), statusError: integer(), statusUnknown: integer(),
			}),
			"modules": list(object(map[string]any{
				"module_id": text(), "status": status, "error_rate": number(),
				"top_error": map[string]any{"anyOf": []any{
					object(map[string]any{"code": text(), "message": text(), "ai_guidance": nullText(), "count": integer()}),
					typed("null"),
				}},
			})),
		}), m.runHealthSummary)
}

func (m *Modules) runHealthSummary(_ context.Context, in healthSummaryIn) (map[string]any, error) {
	threshold := orElse(in.Threshold, defaultThreshold)
	used := map[string]middleware.ModuleUsage{}
	if m.usage != nil {
		for _, u := range m.usage.Summary(healthPeriod).Modules {
			used[u.ModuleID] = u
		}
	}
	ids := m.reg.List(registry.Filter{Hidden: true})
	counts := map[string]int64{}
	modules := []any{}
	for _, id := range ids {
		u := used[id]
		status := statusOf(u.Calls, u.ErrorRate(), threshold)
		counts[status]++
		if status == statusHealthy && !orElse(in.IncludeHealthy, true) {
			continue
		}
		modules = append(modules, map[string]any{
			"module_id": id, "status": status, "error_rate": u.ErrorRate(), "top_error": m.topError(id),
		})
	}
	return map[string]any{
		"project": map[string]any{"name": m.project},
		"summary": map[string]any{
			"total_modules": int64(len(ids)), statusHealthy: counts[statusHealthy], statusDegraded: counts[statusDegraded],
			statusError: counts[statusError], statusUnknown: counts[statusUnknown],
		},
		"modules": modules,
	}, nil
}

// topError is the most frequent failure, of equals the latest; null for none.
func (m *Modules) topError(id string) any {
	list := m.failures(id, 0)
	if len(list) == 0 {
		return nil
	}
	return brief(slices.MaxFunc(list, func(a, b middleware.ErrorEntry) int {
		return cmp.Or(cmp.Compare(a.Count, b.Count), a.LastOccurred.Compare(b.LastOccurred))
	}))
}

func (m *Modules) failures(id string, limit int) []middleware.ErrorEntry {
	if m.errors == nil {
		return nil
	}
	return m.errors.Get(id, limit)
}

func brief(e middleware.ErrorEntry) map[string]any {
	return map[string]any{"code": string(e.Code), "message": e.Message, "ai_guidance": nullable(e.AIGuidance), "count": e.Count}
}

type healthModuleIn struct {
	ModuleID   string `json:"module_id"`
	ErrorLimit *int   `json:"error_limit"`
}

func (m *Modules) healthModule() module.Module {
	return build(Health, idHealthModule, "Health of one module of this process, with its latest errors.",
		object(map[string]any{
			"module_id":   moduleIDInput(),
			"error_limit": withDefault(integer(), defaultErrorLimit, "How many errors to list."),
		}, "error_limit"),
		object(map[string]any{
			"module_id": text(), "status": enum(statusHealthy, statusDegraded, statusError, statusUnknown),
			"total_calls": integer(), "error_count": integer(), "error_rate": number(),
			"avg_latency_ms": number(), "p99_latency_ms": number(),
			"recent_errors": list(object(map[string]any{
				"code": text(), "message": text(), "ai_guidance": nullText(), "count": integer(),
				"first_occurred": text(), "last_occurred": text(),
			})),
		}), m.runHealthModule)
}

func (m *Modules) runHealthModule(_ context.Context, in healthModuleIn) (map[string]any, error) {
	if _, err := m.entry(in.ModuleID); err != nil {
		return nil, err
	}
	var u middleware.ModuleUsage
	if m.usage != nil {
		u = m.usage.Module(in.ModuleID, healthPeriod)
	}
	recent := []any{}
	if limit := orElse(in.ErrorLimit, defaultErrorLimit); limit > 0 {
		for _, e := range m.failures(in.ModuleID, limit) {
			row := brief(e)
			row["first_occurred"], row["last_occurred"] = timestamp(e.FirstOccurred), timestamp(e.LastOccurred)
			recent = append(recent, row)
		}
	}
	return map[string]any{
		"module_id": in.ModuleID, "status": statusOf(u.Calls, u.ErrorRate(), defaultThreshold),
		"total_calls": u.Calls, "error_count": u.Errors, "error_rate": u.ErrorRate(),
		"avg_latency_ms": u.AvgLatency, "p99_latency_ms": u.P99, "recent_errors": recent,
	}, nil
}
