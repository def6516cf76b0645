package system_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/executor/system"
	"github.com/apbus/apbus/module"
)

// failing fails as many of its first calls as it is told.
func failing(id string, times int) *mod {
	m := named(id)
	m.run = func(context.Context, map[string]any) (map[string]any, error) {
		if times > 0 {
			times--
			return nil, module.Errorf("NO_LUCK", "no luck").WithGuidance("try again")
		}
		return map[string]any{}, nil
	}
	return m
}

func TestHealthSummary(t *testing.T) {
	b := newBench(t, system.Options{Groups: []system.Group{system.Health}, Project: "shop"})
	b.add(t, failing("a.fine", 0), failing("b.limping", 5), failing("c.broken", 10), failing("d.edge", 1), named("e.idle"))
	for range 100 {
		for _, id := range []string{"a.fine", "b.limping", "c.broken", "d.edge"} {
			_, _ = b.Call(t.Context(), id, nil)
		}
	}
	top := func(n int64) obj {
		return obj{"code": "NO_LUCK", "message": "no luck", "ai_guidance": "try again", "count": n}
	}
	row := func(id, status string, rate float64, top any) obj {
		return obj{"module_id": id, "status": status, "error_rate": rate, "top_error": top}
	}
	want := obj{
		"project": obj{"name": "shop"},
		"summary": obj{"total_modules": int64(7), "healthy": int64(1), "degraded": int64(2), "error": int64(1), "unknown": int64(3)},
		"modules": []any{
			row("a.fine", "healthy", 0, nil), row("b.limping", "degraded", 0.05, top(5)), row("c.broken", "error", 0.1, top(10)),
			row("d.edge", "degraded", 0.01, top(1)), row("e.idle", "unknown", 0, nil),
			row("system.health.module", "unknown", 0, nil), row("system.health.summary", "unknown", 0, nil),
		},
	}
	if d := cmp.Diff(want, b.call(t, "system.health.summary", nil)); d != "" {
		t.Error(d)
	}
	out := b.call(t, "system.health.summary", obj{"error_rate_threshold": 0.06, "include_healthy": false})
	summary := out["summary"].(obj)
	if summary["healthy"] != int64(4) || summary["error"] != int64(1) || summary["total_modules"] != int64(7) {
		t.Errorf("summary %v", summary)
	}
	if got := len(out["modules"].([]any)); got != 3 {
		t.Errorf("%d modules listed, want the broken one and two unknown", got)
	}
	// The threshold never reaches beyond ten percent.
	out = b.call(t, "system.health.summary", obj{"error_rate_threshold": 1})
	if s := out["summary"].(obj); s["error"] != int64(1) {
		t.Errorf("summary %v", s)
	}
}

func TestHealthModule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, system.Options{Groups: []system.Group{system.Health}})
		m := named("m")
		n := 0
		m.run = func(context.Context, map[string]any) (map[string]any, error) {
			n++
			time.Sleep(10 * time.Millisecond)
			if n%2 == 1 {
				return nil, module.Errorf("ODD", "odd call number %s", []string{"one", "two"}[min(n/2, 1)])
			}
			return map[string]any{}, nil
		}
		b.add(t, m)
		for range 4 {
			_, _ = b.Call(t.Context(), "m", nil)
		}
		out := b.call(t, "system.health.module", obj{"module_id": "m"})
		recent := out["recent_errors"].([]any)
		delete(out, "recent_errors")
		want := obj{
			"module_id": "m", "status": "error", "total_calls": int64(4), "error_count": int64(2), "error_rate": 0.5,
			"avg_latency_ms": 10.0, "p99_latency_ms": 10.0,
		}
		if d := cmp.Diff(want, out); d != "" {
			t.Error(d)
		}
		if len(recent) != 2 || recent[0].(obj)["message"] != "odd call number two" {
			t.Fatalf("recent errors %v", recent)
		}
		last := obj{
			"code": "ODD", "message": "odd call number two", "ai_guidance": nil, "count": int64(1),
			"first_occurred": "2000-01-01T00:00:00.030Z", "last_occurred": "2000-01-01T00:00:00.030Z",
		}
		if d := cmp.Diff(last, recent[0]); d != "" {
			t.Error(d)
		}
		for limit, want := range map[int]int{0: 0, 1: 1, 9: 2} {
			got := b.call(t, "system.health.module", obj{"module_id": "m", "error_limit": limit})["recent_errors"].([]any)
			if len(got) != want {
				t.Errorf("limit %d: %d errors, want %d", limit, len(got), want)
			}
		}
	})
}

func TestUnknownModules(t *testing.T) {
	b := newBench(t, system.Options{Groups: allGroups()})
	for _, id := range []string{"system.health.module", "system.manifest.module", "system.usage.module"} {
		if _, err := b.Call(t.Context(), id, obj{"module_id": "absent"}); module.CodeOf(err) != module.CodeModuleNotFound {
			t.Errorf("%s: %v, want MODULE_NOT_FOUND", id, err)
		}
		if _, err := b.Call(t.Context(), id, nil); module.CodeOf(err) != module.CodeSchemaValidation {
			t.Errorf("%s without module_id: %v, want SCHEMA_VALIDATION_ERROR", id, err)
		}
	}
}

func TestManifest(t *testing.T) {
	b := newBench(t, system.Options{Groups: []system.Group{system.Manifest}})
	full := &mod{desc: module.Descriptor{
		ID: "shop.order", Description: "Orders.", Documentation: "At length.", Tags: []string{"shop", "write"},
		InputSchema: obj{"type": "object"}, OutputSchema: obj{"type": "object"},
		Metadata: obj{"x-sla": "gold", "dependencies": []any{obj{"module_id": "shop.stock", "version": "^1"}}},
	}}
	d := registry.Declaration{Source: "cmd/shop", Annotations: module.Annotations{RequiresApproval: true}}
	if err := b.Registry().RegisterDeclared(t.Context(), full, d); err != nil {
		t.Fatal(err)
	}
	hidden := named("shop.secret", "shop")
	hidden.desc.Annotations.Hidden = true
	b.add(t, named("shop.stock", "shop"), hidden)

	got := b.call(t, "system.manifest.module", obj{"module_id": "shop.order"})
	want := obj{
		"module_id": "shop.order", "description": "Orders.", "documentation": "At length.", "source_path": "cmd/shop",
		"input_schema": obj{"type": "object"}, "output_schema": obj{"type": "object"}, "tags": []any{"shop", "write"},
		"annotations":  module.Annotations{RequiresApproval: true}.Map(),
		"dependencies": []any{obj{"module_id": "shop.stock", "version": "^1", "optional": false}},
		"metadata":     full.desc.Metadata,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	ids := func(in obj) (ids []string) {
		t.Helper()
		out := b.call(t, "system.manifest.full", in)
		list := out["modules"].([]any)
		if out["module_count"] != int64(len(list)) || out["project_name"] != "apcore" {
			t.Errorf("count %v, project %v", out["module_count"], out["project_name"])
		}
		for _, m := range list {
			ids = append(ids, m.(obj)["module_id"].(string))
		}
		return ids
	}
	for _, tt := range []struct {
		name string
		in   obj
		want []string
	}{
		{"all", nil, []string{"shop.order", "shop.stock", "system.manifest.full", "system.manifest.module"}},
		{"prefix", obj{"prefix": "shop.o"}, []string{"shop.order"}},
		{"tags", obj{"tags": []any{"shop", "write"}}, []string{"shop.order"}},
		{"no tags is no filter", obj{"tags": []any{}, "prefix": "shop"}, []string{"shop.order", "shop.stock"}},
		{"nothing", obj{"prefix": "zzz"}, nil},
	} {
		if d := cmp.Diff(tt.want, ids(tt.in)); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
	}
	out := b.call(t, "system.manifest.full", obj{"prefix": "shop.order", "include_schemas": false, "include_source_paths": false})
	lean := out["modules"].([]any)[0].(obj)
	for _, key := range []string{"input_schema", "output_schema", "source_path"} {
		if _, there := lean[key]; there {
			t.Errorf("%s is there", key)
		}
		delete(want, key)
	}
	if d := cmp.Diff(want, lean); d != "" {
		t.Error(d)
	}
}

func TestUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, system.Options{Groups: []system.Group{system.Usage}})
		work := func(ctx context.Context, in map[string]any) (map[string]any, error) {
			time.Sleep(2 * time.Millisecond)
			return map[string]any{}, nil
		}
		busy, calm := named("busy"), named("calm")
		busy.run, calm.run = work, work
		b.add(t, busy, calm)
		for range 3 {
			b.call(t, "busy", nil)
		}
		b.callAs(as(t.Context(), nil, "agent.plan"), t, "busy", nil)
		b.call(t, "calm", nil)
		got := b.call(t, "system.usage.summary", obj{"period": "1h"})
		row := func(id string, calls, callers int64) obj {
			return obj{"module_id": id, "call_count": calls, "error_count": int64(0), "avg_latency_ms": 2.0, "unique_callers": callers, "trend": "new"}
		}
		want := obj{"period": "1h", "total_calls": int64(5), "total_errors": int64(0), "modules": []any{row("busy", 4, 2), row("calm", 1, 1)}}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		out := b.call(t, "system.usage.module", obj{"module_id": "busy"})
		if out["period"] != "24h" || out["call_count"] != int64(4) || out["p99_latency_ms"] != 2.0 {
			t.Errorf("usage %v", out)
		}
		callers := []any{
			obj{"caller_id": "unknown", "call_count": int64(3), "error_count": int64(0), "avg_latency_ms": 2.0},
			obj{"caller_id": "agent.plan", "call_count": int64(1), "error_count": int64(0), "avg_latency_ms": 2.0},
		}
		if d := cmp.Diff(callers, out["callers"]); d != "" {
			t.Error(d)
		}
		hourly := out["hourly_distribution"].([]any)
		if len(hourly) != 24 || hourly[23].(obj)["hour"] != "2000-01-01T00" || hourly[23].(obj)["call_count"] != int64(4) || hourly[0].(obj)["hour"] != "1999-12-31T01" {
			t.Errorf("hours %v", hourly)
		}
		// The period filters; it is not merely echoed.
		time.Sleep(90 * time.Minute)
		out = b.call(t, "system.usage.module", obj{"module_id": "busy", "period": "1h"})
		if out["call_count"] != int64(0) || out["trend"] != "inactive" {
			t.Errorf("an hour later: %v", out)
		}
		out = b.call(t, "system.usage.module", obj{"module_id": "busy", "period": "1d"})
		if out["call_count"] != int64(4) {
			t.Errorf("within the day: %v", out)
		}
	})
}

func TestUsagePeriods(t *testing.T) {
	b := newBench(t, system.Options{Groups: []system.Group{system.Usage}})
	for period, want := range map[string]module.Code{
		"1h": "", "7d": "", "168h": "",
		"0h": module.CodeSchemaValidation, "h": module.CodeSchemaValidation, "24": module.CodeSchemaValidation,
		"1w": module.CodeSchemaValidation, "01h": module.CodeSchemaValidation, "-1h": module.CodeSchemaValidation, "": module.CodeSchemaValidation,
		"99999999999999999999d": module.CodeInvalidInput,
	} {
		if _, err := b.Call(t.Context(), "system.usage.summary", obj{"period": period}); module.CodeOf(err) != want {
			t.Errorf("period %q: %v, want code %q", period, err, want)
		}
	}
}

// Without sources every report is empty and still what its schema says.
func TestReportsWithoutSources(t *testing.T) {
	x := newExecutor(t)
	if _, err := system.Register(t.Context(), x, system.Options{}); err != nil {
		t.Fatal(err)
	}
	for id, in := range map[string]obj{
		"system.health.summary": nil, "system.health.module": {"module_id": "system.health.module"},
		"system.manifest.full": nil, "system.manifest.module": {"module_id": "system.health.module"},
		"system.usage.summary": nil, "system.usage.module": {"module_id": "system.health.module"},
	} {
		if _, err := x.Call(t.Context(), id, in); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}
