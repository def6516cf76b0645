package registry_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

func needs(id, version string, deps ...module.Dependency) registry.LoadItem {
	return registry.LoadItem{ID: id, Version: version, Dependencies: deps}
}

func dep(id, version string) module.Dependency {
	return module.Dependency{ModuleID: id, Version: version}
}

func maybe(id, version string) module.Dependency {
	return module.Dependency{ModuleID: id, Version: version, Optional: true}
}

func TestLoadOrder(t *testing.T) {
	tests := []struct {
		name       string
		items      []registry.LoadItem
		registered map[string]string
		order      []string
		skipped    [][2]string
		code       module.Code
		details    map[string]any
	}{
		{name: "nothing", order: []string{}},
		{name: "alphabet", items: []registry.LoadItem{needs("b", ""), needs("a", "")}, order: []string{"a", "b"}},
		{
			name: "diamond", order: []string{"z", "b", "c", "a"},
			items: []registry.LoadItem{needs("a", "", dep("b", ""), dep("c", "")), needs("b", "", dep("z", "")), needs("c", "", dep("z", "")), needs("z", "")},
		},
		{name: "twice the same need", items: []registry.LoadItem{needs("a", "", dep("b", ""), dep("b", ">=1")), needs("b", "")}, order: []string{"b", "a"}},
		{name: "version fits", items: []registry.LoadItem{needs("a", "", dep("b", ">=1,<2")), needs("b", "1.9.9")}, order: []string{"b", "a"}},
		{name: "default version", items: []registry.LoadItem{needs("a", "", dep("b", "1.0.0")), needs("b", "")}, order: []string{"b", "a"}},
		{
			name: "version does not fit", items: []registry.LoadItem{needs("a", "", dep("b", "^2")), needs("b", "1.2.3")},
			code:    module.CodeDependencyVersionMismatch,
			details: map[string]any{"module_id": "a", "dependency_id": "b", "required": "^2", "actual": "1.2.3"},
		},
		{
			name: "optional version does not fit", items: []registry.LoadItem{needs("a", "", maybe("b", "^2")), needs("b", "1.2.3")},
			order: []string{"a", "b"}, skipped: [][2]string{{"a", "b"}},
		},
		{name: "missing", items: []registry.LoadItem{needs("a", "", dep("b", ""))}, code: module.CodeDependencyNotFound, details: map[string]any{"module_id": "a", "dependency_id": "b"}},
		{name: "optional missing", items: []registry.LoadItem{needs("a", "", maybe("b", ""))}, order: []string{"a"}, skipped: [][2]string{{"a", "b"}}},
		{name: "registered already", items: []registry.LoadItem{needs("a", "", dep("b", "^1"))}, registered: map[string]string{"b": "1.5.0"}, order: []string{"a"}},
		{
			name: "registered in another version", items: []registry.LoadItem{needs("a", "", dep("b", "^2"))}, registered: map[string]string{"b": "1.5.0"},
			code: module.CodeDependencyVersionMismatch, details: map[string]any{"module_id": "a", "dependency_id": "b", "required": "^2", "actual": "1.5.0"},
		},
		{
			name: "bad constraint", items: []registry.LoadItem{needs("a", "", dep("b", "latest")), needs("b", "")},
			code: module.CodeVersionConstraintInvalid, details: map[string]any{"module_id": "a", "dependency_id": "b"},
		},
		{
			name: "itself", items: []registry.LoadItem{needs("a", "", dep("a", ""))},
			code: module.CodeCircularDependency, details: map[string]any{"cycle_path": []any{"a", "a"}},
		},
		{
			name: "circle behind a tail", items: []registry.LoadItem{needs("a", "", dep("b", "")), needs("b", "", dep("c", "")), needs("c", "", dep("b", "")), needs("d", "")},
			code: module.CodeCircularDependency, details: map[string]any{"cycle_path": []any{"b", "c", "b"}},
		},
		{name: "twice the same module", items: []registry.LoadItem{needs("a", ""), needs("a", "")}, code: module.CodeDuplicateModuleID, details: map[string]any{"module_id": "a"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			plan, err := registry.LoadOrder(tt.items, tt.registered)
			if module.CodeOf(err) != tt.code {
				t.Fatalf("err = %v, want code %q", err, tt.code)
			}
			if err != nil {
				if d := cmp.Diff(tt.details, module.AsError(err).Details); d != "" {
					t.Error(d)
				}
				return
			}
			if d := cmp.Diff(&registry.LoadPlan{Order: tt.order, Skipped: tt.skipped}, plan); d != "" {
				t.Error(d)
			}
		})
	}
}

// Whatever depends on whatever: either every module comes after its needs, or
// there is a circle, and the one that is named is one.
func TestLoadOrderProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "modules")
		edges := map[string][]string{}
		items := make([]registry.LoadItem, n)
		for i := range items {
			id := fmt.Sprintf("m%d", i)
			items[i].ID = id
			for _, d := range rapid.SliceOfN(rapid.IntRange(0, n-1), 0, 2).Draw(t, "needs") {
				items[i].Dependencies = append(items[i].Dependencies, dep(fmt.Sprintf("m%d", d), ""))
				edges[id] = append(edges[id], fmt.Sprintf("m%d", d))
			}
		}
		plan, err := registry.LoadOrder(items, nil)
		if err != nil {
			path := module.AsError(err).Details["cycle_path"].([]any)
			if len(path) < 2 || path[0] != path[len(path)-1] {
				t.Fatalf("%v is no circle", path)
			}
			for i := range path[1:] {
				if !slices.Contains(edges[path[i].(string)], path[i+1].(string)) {
					t.Fatalf("%v holds a step that is no dependency", path)
				}
			}
			return
		}
		if len(plan.Order) != n {
			t.Fatalf("%d of %d modules planned", len(plan.Order), n)
		}
		for id, list := range edges {
			for _, d := range list {
				if slices.Index(plan.Order, d) > slices.Index(plan.Order, id) {
					t.Fatalf("%s comes before %s, which it needs: %v", id, d, plan.Order)
				}
			}
		}
	})
}

func TestRegisterAll(t *testing.T) {
	item := func(m *mod, deps ...any) registry.Declared {
		m.desc.Metadata = map[string]any{"dependencies": deps}
		return registry.Declared{Module: m}
	}
	on := func(id string) map[string]any { return map[string]any{"module_id": id} }
	r := registry.New(quiet())
	var order []string
	if _, err := r.On(registry.CallbackRegister, func(id string, _ module.Module) { order = append(order, id) }); err != nil {
		t.Fatal(err)
	}
	if err := r.RegisterAll(t.Context(), item(named("a"), on("b")), item(named("b"))); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"b", "a"}, order); d != "" {
		t.Error(d)
	}
	bad := item(&mod{desc: module.Descriptor{ID: "d"}, check: errors.New("broken")}, on("c"), on("a"))
	if err := r.RegisterAll(t.Context(), bad, item(named("c"))); err == nil {
		t.Fatal("a broken module was admitted")
	}
	if d := cmp.Diff([]string{"a", "b"}, r.List(registry.Filter{})); d != "" {
		t.Errorf("something of a failed load is left: %s", d)
	}
	if err := r.RegisterAll(t.Context(), registry.Declared{}); module.CodeOf(err) != module.CodeInvalidInput {
		t.Errorf("a nil module gives %v", err)
	}
}

func TestNegotiate(t *testing.T) {
	tests := []struct {
		name                string
		declared, supported string
		want                string
		stale               bool
		code                module.Code
	}{
		{"same", "1.2.3", "1.2.3", "1.2.3", false, ""},
		{"declared patch higher", "1.2.5", "1.2.3", "1.2.5", false, ""},
		{"supported patch higher", "1.2.3", "1.2.5", "1.2.5", false, ""},
		{"older minor", "1.2.0", "1.4.9", "1.2.0", false, ""},
		{"much older minor", "1.2.0", "1.5.0", "1.2.0", true, ""},
		{"release over pre-release", "1.2.3-rc.1", "1.2.3", "1.2.3", false, ""},
		{"another major", "2.0.0", "1.9.0", "", false, module.CodeVersionIncompatible},
		{"minor beyond ours", "1.5.0", "1.3.0", "", false, module.CodeVersionIncompatible},
		{"not a version", "not.valid", "1.0.0", "", false, module.CodeInvalidInput},
		{"partial", "1.2", "1.2.0", "", false, module.CodeInvalidInput},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, stale, err := registry.Negotiate(tt.declared, tt.supported)
			if got != tt.want || stale != tt.stale || module.CodeOf(err) != tt.code {
				t.Errorf("Negotiate = %q, %v, %v; want %q, %v, code %q", got, stale, err, tt.want, tt.stale, tt.code)
			}
		})
	}
}
