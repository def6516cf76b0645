package registry_test

import (
	"context"
	"errors"
	"iter"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

func TestEvents(t *testing.T) {
	var got []module.Event
	o := quiet()
	o.Events = func(e module.Event) {
		if e.At.IsZero() || e.At.Location().String() != "UTC" {
			t.Errorf("time of %s is %v", e.Type, e.At)
		}
		got = append(got, e)
	}
	r := registry.New(o)
	ana := module.NewIdentity("ana", "user", []string{"admin"}, map[string]any{"password": "hunter22", "team": "red"})
	inside := module.WithContext(t.Context(), module.NewContext(module.ContextOptions{Identity: ana}).Enter("agent.plan", module.CallScope{}))
	broken := named("broken")
	broken.onLoad = func(context.Context) error { return module.Errorf("NO_DISK", "no disk") }
	plain := named("plain")
	plain.onLoad = func(context.Context) error { return errors.New("no net") }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(r.Register(named("m")))
	if r.Register(named("m")) == nil || r.Register(broken) == nil || r.Register(plain) == nil {
		t.Fatal("a bad registration went through")
	}
	must(r.Register(named("ephemeral.a")))
	must(r.RegisterDeclared(inside, named("ephemeral.b"), registry.Declaration{}))
	r.Unregister(inside, "ephemeral.b")
	r.Unregister(t.Context(), "m")
	r.Unregister(t.Context(), "m")

	id := func(id string, more ...any) map[string]any {
		m := map[string]any{"module_id": id}
		for i := 0; i < len(more); i += 2 {
			m[more[i].(string)] = more[i+1]
		}
		return m
	}
	who := map[string]any{
		"id": "ana", "type": "user", "roles": []any{"admin"}, "attrs": map[string]any{"password": "***REDACTED***", "team": "red"},
	}
	want := []module.Event{
		{Type: module.EventModuleRegistered, ModuleID: "m", Severity: "info", Data: id("m")},
		{Type: module.EventModuleLoadFailed, ModuleID: "broken", Severity: "error", Data: id("broken",
			"callback_name", "on_load", "error_type", "NO_DISK", "error_message", "NO_DISK: no disk")},
		{Type: module.EventModuleLoadFailed, ModuleID: "plain", Severity: "error", Data: id("plain",
			"callback_name", "on_load", "error_type", "errorString", "error_message", "no net")},
		{Type: module.EventModuleRegistered, ModuleID: "ephemeral.a", Severity: "info", Data: id("ephemeral.a",
			"caller_id", "@external", "identity", nil, "namespace_class", "ephemeral")},
		{Type: module.EventModuleRegistered, ModuleID: "ephemeral.b", Severity: "info", Data: id("ephemeral.b",
			"caller_id", "agent.plan", "identity", who, "namespace_class", "ephemeral")},
		{Type: module.EventModuleUnregistered, ModuleID: "ephemeral.b", Severity: "info", Data: id("ephemeral.b",
			"caller_id", "agent.plan", "identity", who, "namespace_class", "ephemeral")},
		{Type: module.EventModuleUnregistered, ModuleID: "m", Severity: "info", Data: id("m")},
	}
	for i := range got {
		got[i].At = want[0].At
		delete(got[i].Data, "timestamp")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

type wrongArity struct{ *mod }

func (wrongArity) Stream(context.Context) iter.Seq2[module.Chunk, error] { return nil }

type wrongResult struct{ *mod }

func (wrongResult) Stream(context.Context, map[string]any) iter.Seq[module.Chunk] { return nil }

type streamer struct{ *mod }

func (streamer) Stream(context.Context, map[string]any) iter.Seq2[module.Chunk, error] { return nil }

func TestStreamingInterface(t *testing.T) {
	base := func() *mod {
		return &mod{desc: module.Descriptor{ID: "m", Annotations: module.Annotations{Streaming: true}}}
	}
	tests := []struct {
		name   string
		m      module.Module
		reason string // "" is admitted
		actual any
	}{
		{"streams", streamer{base()}, "", nil},
		{"no method", base(), "missing_marker", nil},
		{"wrong arity", wrongArity{base()}, "wrong_arity", "func(context.Context) iter.Seq2[map[string]interface {},error]"},
		{"wrong result", wrongResult{base()}, "wrong_return_type", "func(context.Context, map[string]interface {}) iter.Seq[map[string]interface {}]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := registry.New(quiet())
			err := r.Register(tt.m)
			if tt.reason == "" {
				e, ok := r.Get("m")
				if err != nil || !ok || e.Streamer == nil {
					t.Fatalf("= %v, entry %+v", err, e)
				}
				return
			}
			e := module.AsError(err)
			if e == nil || e.Code != module.CodeStreamingInterfaceMismatch {
				t.Fatalf("= %v", err)
			}
			want := map[string]any{
				"module_id": "m", "mismatch_reason": tt.reason, "actual_signature": tt.actual,
				"expected_signature": "func(context.Context, map[string]interface {}) iter.Seq2[map[string]interface {},error]",
			}
			if diff := cmp.Diff(want, e.Details); diff != "" {
				t.Errorf("details (-want +got):\n%s", diff)
			}
			if _, ok := r.Get("m"); ok {
				t.Error("the module is visible")
			}
		})
	}
	r := registry.New(quiet())
	unannounced := streamer{&mod{desc: module.Descriptor{ID: "m"}}}
	if err := r.Register(unannounced); err != nil {
		t.Errorf("a stream that nobody announced: %v", err)
	}
}
