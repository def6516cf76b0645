package system_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/executor/system"
	"github.com/apbus/apbus/module"
)

func newExecutor(t *testing.T, opts ...executor.Option) *executor.Executor {
	t.Helper()
	reg := registry.New(registry.Options{})
	x, err := executor.New(reg, executor.Config{}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestGroupsOf(t *testing.T) {
	off, on := obj{"enabled": false}, obj{"enabled": true}
	all := []system.Group{system.Health, system.Manifest, system.Usage, system.Control}
	tests := []struct {
		name   string
		config obj
		want   []system.Group
	}{
		{"nothing said", nil, nil},
		{"disabled", obj{"enabled": false, "events": on}, nil},
		{"enabled", obj{"enabled": true}, all[:3]},
		{"with events", obj{"enabled": true, "events": on}, all},
		{"a group off", obj{"enabled": true, "events": on, "manifest": off}, []system.Group{system.Health, system.Usage, system.Control}},
		{"control off", obj{"enabled": true, "events": on, "control": off}, all[:3]},
		{"control without events", obj{"enabled": true, "control": on}, all[:3]},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := system.NewSettings(obj{"sys_modules": tt.config})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, system.GroupsOf(s)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestRegisterGroups(t *testing.T) {
	read := []string{
		"system.health.module", "system.health.summary", "system.manifest.full", "system.manifest.module",
		"system.usage.module", "system.usage.summary",
	}
	control := []string{"system.control.reload_module", "system.control.toggle_feature", "system.control.update_config"}
	tests := []struct {
		name   string
		groups []system.Group
		want   []string
	}{
		{"default", nil, read},
		{"none", []system.Group{}, nil},
		{"all", allGroups(), slices.Concat(control, read)},
		{"control alone", []system.Group{system.Control}, control},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, system.Options{Groups: tt.groups})
			got := b.Registry().List(registry.Filter{})
			if d := cmp.Diff(tt.want, got, cmp.Transformer("empty", func(l []string) string { return strings.Join(l, " ") })); d != "" {
				t.Error(d)
			}
			ids := slices.Sorted(slices.Values(b.sys.IDs()))
			if !slices.Equal(ids, got) {
				t.Errorf("IDs %v, registered %v", ids, got)
			}
			state := b.GovernanceState()
			wantControl := slices.Contains(tt.groups, system.Control)
			if state.ControlModulesRegistered != wantControl || state.AllControlModulesRequireApproval != wantControl {
				t.Errorf("governance %+v", state)
			}
			b.sys.Unregister(t.Context())
			if n := b.Registry().Len(); n != 0 {
				t.Errorf("%d modules left", n)
			}
		})
	}
}

func TestAnnotations(t *testing.T) {
	b := newBench(t, system.Options{Groups: allGroups()})
	for _, d := range b.Descriptors() {
		want := module.Annotations{Readonly: true, Idempotent: true, ClosedWorld: true}
		if strings.HasPrefix(d.ID, "system.control.") {
			want = module.Annotations{RequiresApproval: true, ClosedWorld: true}
		}
		if diff := cmp.Diff(want, d.Annotations); diff != "" {
			t.Errorf("%s: %s", d.ID, diff)
		}
	}
}

// Every object of an output schema is closed and requires all it describes, except
// what the full manifest may be told to leave out.
func TestOutputSchemasAreFull(t *testing.T) {
	b := newBench(t, system.Options{Groups: allGroups()})
	mayMiss := map[string]bool{"version": true, "input_schema": true, "output_schema": true, "source_path": true}
	seen := 0
	var walk func(where string, v any)
	walk = func(where string, v any) {
		switch x := v.(type) {
		case obj:
			if props, ok := x["properties"].(obj); ok {
				seen++
				if x["additionalProperties"] != false {
					t.Errorf("%s is open", where)
				}
				required, _ := x["required"].([]any)
				for _, name := range slices.Sorted(maps.Keys(props)) {
					if !slices.Contains(required, any(name)) && !mayMiss[name] {
						t.Errorf("%s does not require %s", where, name)
					}
				}
			}
			for k, e := range x {
				walk(where+"/"+k, e)
			}
		case []any:
			for i, e := range x {
				walk(fmt.Sprint(where, "/", i), e)
			}
		}
	}
	for _, d := range b.Descriptors() {
		walk(d.ID, d.OutputSchema)
		if d.InputSchema["additionalProperties"] != false {
			t.Errorf("%s: input is open", d.ID)
		}
	}
	if seen < 15 {
		t.Errorf("%d objects seen", seen)
	}
}

func TestRegisterRefuses(t *testing.T) {
	b := newBench(t, system.Options{})
	_, err := system.Register(t.Context(), b.Executor, system.Options{Groups: []system.Group{system.Control, system.Usage}})
	if module.CodeOf(err) != module.CodeDuplicateModuleID {
		t.Errorf("second registration: %v, want DUPLICATE_MODULE_ID", err)
	}
	if _, there := b.Registry().Get("system.control.update_config"); there {
		t.Error("a refused registration left modules behind")
	}
	_, err = system.Register(t.Context(), b.Executor, system.Options{Groups: []system.Group{"magic"}})
	if module.CodeOf(err) != module.CodeInvalidInput {
		t.Errorf("unknown group: %v, want GENERAL_INVALID_INPUT", err)
	}
}

func TestFailOnError(t *testing.T) {
	for _, fail := range []bool{false, true} {
		t.Run(fmt.Sprint(fail), func(t *testing.T) {
			reg := registry.New(registry.Options{Validate: func(m module.Module) error {
				if m.Descriptor().ID == "system.manifest.full" {
					return fmt.Errorf("house rules")
				}
				return nil
			}})
			x, err := executor.New(reg, executor.Config{})
			if err != nil {
				t.Fatal(err)
			}
			_, err = system.Register(t.Context(), x, system.Options{FailOnError: fail})
			wantCode, wantLen := module.Code(""), 5
			if fail {
				wantCode, wantLen = module.CodeSysModuleRegistration, 0
			}
			if module.CodeOf(err) != wantCode || reg.Len() != wantLen {
				t.Errorf("err %v with %d modules, want %q with %d", err, reg.Len(), wantCode, wantLen)
			}
		})
	}
}

func TestControlWithoutApprovalIsWarnedOf(t *testing.T) {
	tests := []struct {
		name   string
		groups []system.Group
		opts   []executor.Option
		want   bool
	}{
		{"no handler", allGroups(), nil, true},
		{"read modules only", nil, nil, false},
		{"handler", allGroups(), []executor.Option{executor.WithApproval(approval.AlwaysDeny{})}, false},
		{"strict policy", allGroups(), []executor.Option{executor.WithPolicy(&approval.Policy{Strict: true})}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, system.Options{Groups: []system.Group{}})
			x := newExecutor(t, tt.opts...)
			if _, err := system.Register(t.Context(), x, system.Options{Groups: tt.groups, Logger: logger(b.log)}); err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(b.log.String(), "no approval handler"); got != tt.want {
				t.Errorf("warned %v, want %v\n%s", got, tt.want, b.log)
			}
		})
	}
}

func TestEnableAndDisable(t *testing.T) {
	var none *system.Modules
	for name, sys := range map[string]*system.Modules{"nil": none, "read only": newBench(t, system.Options{}).sys} {
		if err := sys.Disable(t.Context(), "m", "why"); module.CodeOf(err) != module.CodeSysModulesDisabled {
			t.Errorf("%s: %v, want SYS_MODULES_DISABLED", name, err)
		}
	}
	b := newBench(t, system.Options{Groups: allGroups()})
	b.add(t, named("m"))
	if err := b.sys.Disable(t.Context(), "m", "maintenance"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Call(t.Context(), "m", nil); module.CodeOf(err) != module.CodeModuleDisabled {
		t.Errorf("call of a disabled module: %v", err)
	}
	if err := b.sys.Enable(t.Context(), "m", "done"); err != nil {
		t.Fatal(err)
	}
	b.call(t, "m", nil)
}
