package registry_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

func TestDeprecationWarnsOnceFromDefinition(t *testing.T) {
	var log bytes.Buffer
	r := registry.New(registry.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	deprecated := func(v, sunset string) *mod {
		d := version("old", v)
		d.Metadata = map[string]any{"x-deprecation": map[string]any{"deprecated": true, "sunset_date": sunset}}
		return &mod{desc: d}
	}
	warnings := func() int { return strings.Count(log.String(), "module is deprecated") }
	replace := func(m *mod) {
		t.Helper()
		r.Unregister(t.Context(), "old")
		if err := r.Register(m); err != nil {
			t.Fatal(err)
		}
	}
	ask := func() {
		t.Helper()
		for range 2 {
			if d, ok := r.Definition("old"); !ok || d.ID != "old" {
				t.Fatalf("definition %v, %v", d, ok)
			}
		}
	}
	replace(deprecated("1.0.0", "2027-01-01"))
	if _, err := r.Lookup("old", ""); err != nil {
		t.Fatal(err)
	}
	r.Descriptors()
	if got := warnings(); got != 0 {
		t.Fatalf("%d warnings before anybody asked for the definition", got)
	}
	steps := []struct {
		name string
		m    *mod
		want int
	}{
		{"first", deprecated("1.0.0", "2027-01-01"), 1},
		{"the same after it was unregistered", deprecated("1.0.0", "2027-01-01"), 1},
		{"another version", deprecated("1.1.0", "2027-01-01"), 2},
		{"another sunset", deprecated("1.1.0", "2028-01-01"), 3},
	}
	for _, s := range steps {
		replace(s.m)
		ask()
		if got := warnings(); got != s.want {
			t.Errorf("%s: %d warnings, want %d", s.name, got, s.want)
		}
	}
	if _, ok := r.Definition("absent"); ok {
		t.Error("an absent module has a definition")
	}
	d := version("fine", "1.0.0")
	d.Metadata = map[string]any{"x-deprecation": map[string]any{"deprecated": false}}
	if err := r.Register(&mod{desc: d}); err != nil {
		t.Fatal(err)
	}
	r.Definition("fine")
	if warnings() != 3 {
		t.Error("deprecated: false warns")
	}
}

type talker struct {
	*mod
	text func() string
}

func (t talker) Describe() string { return t.text() }

func TestDescribeAndExport(t *testing.T) {
	r := registry.New(quiet())
	d := module.Descriptor{
		ID: "math.add", Name: "Adder", Description: "Adds.", Documentation: "Two numbers.", Tags: []string{"math", "demo"},
		InputSchema:  map[string]any{"type": "object", "x-note": int64(1), "properties": map[string]any{"a": map[string]any{"type": "number"}}},
		OutputSchema: map[string]any{"type": "object"},
	}
	for _, m := range []module.Module{
		&mod{desc: d},
		talker{named("own.words"), func() string { return "I add." }},
		talker{named("own.panic"), func() string { panic("no words") }},
	} {
		if err := r.Register(m); err != nil {
			t.Fatal(err)
		}
	}
	text, err := r.Describe("math.add")
	want := "# Adder (math.add)\n\nVersion 1.0.0\n\nAdds.\n\nTwo numbers.\n\nTags: math, demo\n\n" +
		"Input schema:\n\n```json\n{\"properties\":{\"a\":{\"type\":\"number\"}},\"type\":\"object\",\"x-note\":1}\n```\n\n" +
		"Output schema:\n\n```json\n{\"type\":\"object\"}\n```\n"
	if d := cmp.Diff(want, text); d != "" || err != nil {
		t.Errorf("%v\n%s", err, d)
	}
	if text, err := r.Describe("own.words"); text != "I add." || err != nil {
		t.Errorf("own words: %q, %v", text, err)
	}
	if _, err := r.Describe("own.panic"); module.CodeOf(err) != module.CodeModuleExecuteError {
		t.Errorf("a panic gives %v", err)
	}
	if _, err := r.Describe("absent"); module.CodeOf(err) != module.CodeModuleNotFound {
		t.Errorf("an absent module gives %v", err)
	}
	plain := r.ExportSchema("math.add", false)
	if d := cmp.Diff(map[string]any{
		"module_id": "math.add", "description": "Adds.", "input_schema": d.InputSchema, "output_schema": d.OutputSchema,
	}, plain); d != "" {
		t.Error(d)
	}
	strict := r.ExportSchema("math.add", true)["input_schema"].(map[string]any)
	if strict["additionalProperties"] != false || strict["x-note"] != nil {
		t.Errorf("strict schema %v", strict)
	}
	if r.ExportSchema("absent", false) != nil {
		t.Error("an absent module is exported")
	}
}

func TestToggles(t *testing.T) {
	r, other := registry.New(quiet()), registry.New(quiet())
	for _, reg := range []*registry.Registry{r, other} {
		if err := reg.Register(named("m")); err != nil {
			t.Fatal(err)
		}
	}
	code := func(reg *registry.Registry) module.Code {
		_, err := reg.Lookup("m", "")
		return module.CodeOf(err)
	}
	if was := r.SetEnabled("m", false); !was {
		t.Error("was disabled before")
	}
	if r.SetEnabled("m", false) {
		t.Error("was enabled after it was switched off")
	}
	if got := code(r); got != module.CodeModuleDisabled {
		t.Errorf("code %q, want MODULE_DISABLED", got)
	}
	if got := code(other); got != "" {
		t.Errorf("another registry shares the switch: %q", got)
	}
	if _, ok := r.Get("m"); !ok {
		t.Error("a disabled module is no longer registered")
	}
	if _, err := r.Reload(t.Context(), "m", registry.ReloadOptions{}); err != nil || code(r) != module.CodeModuleDisabled {
		t.Errorf("after a reload (%v): %q, want MODULE_DISABLED", err, code(r))
	}
	r.SetEnabled("zz", false)
	if d := cmp.Diff([]string{"m", "zz"}, r.Disabled()); d != "" {
		t.Error(d)
	}
	if r.SetEnabled("m", true) || code(r) != "" {
		t.Errorf("code %q after it was switched on", code(r))
	}
	r.SetEnabled("zz", true)
	if r.Disabled() != nil {
		t.Errorf("disabled %v, want none", r.Disabled())
	}
}

func TestEphemeralWithoutApprovalWarns(t *testing.T) {
	var log bytes.Buffer
	r := registry.New(registry.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	safe := named("ephemeral.safe")
	safe.desc.Annotations.RequiresApproval = true
	for _, m := range []*mod{safe, named("plain")} {
		if err := r.Register(m); err != nil {
			t.Fatal(err)
		}
	}
	if log.Len() > 0 {
		t.Fatalf("warned: %s", &log)
	}
	if err := r.RegisterDeclared(context.Background(), named("ephemeral.loose"), registry.Declaration{}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "ephemeral.loose") {
		t.Errorf("no warning: %s", &log)
	}
}

func TestListUnitesTags(t *testing.T) {
	r := registry.New(quiet())
	a, b := named("a"), named("b")
	a.desc.Tags, a.desc.Metadata = []string{"x"}, map[string]any{"tags": []any{"y"}}
	b.desc.Tags = []string{"x"}
	for _, m := range []*mod{a, b} {
		if err := r.Register(m); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ tags, want []string }{
		{nil, []string{"a", "b"}}, {[]string{"x"}, []string{"a", "b"}}, {[]string{"y"}, []string{"a"}}, {[]string{"x", "y"}, []string{"a"}}, {[]string{"z"}, []string{}},
	} {
		if d := cmp.Diff(tt.want, r.List(registry.Filter{Tags: tt.tags})); d != "" {
			t.Errorf("%v: %s", tt.tags, d)
		}
	}
}
