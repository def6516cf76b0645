package system_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor/system"
	"github.com/apbus/apbus/module"
)

func newSettings(t testing.TB, base obj) *system.Settings {
	t.Helper()
	s, err := system.NewSettings(base)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSettingsDefaults(t *testing.T) {
	s := newSettings(t, nil)
	for key, want := range map[string]any{
		"executor.default_timeout": int64(30000), "executor.global_timeout": int64(60000), "executor.max_call_depth": int64(32),
		"executor.max_module_repeat": int64(3), "stream.max_merge_depth": int64(32), "schema.max_ref_depth": int64(32),
		"schema.strategy": "yaml_first", "acl.default_effect": "deny", "extensions.auto_discover": true, "extensions.max_depth": int64(8),
		"extensions.follow_symlinks": false, "observability.tracing.enabled": false, "observability.tracing.sampling_rate": 1.0,
		"observability.metrics.enabled": false, "sys_modules.enabled": false, "sys_modules.health.enabled": true,
	} {
		if got, ok := s.Get(key); !ok || got != want {
			t.Errorf("%s is %v (%T), want %v", key, got, got, want)
		}
	}
	for _, key := range []string{"", ".", "executor.", "absent", "executor.default_timeout.x"} {
		if v, ok := s.Get(key); ok {
			t.Errorf("%q is there: %v", key, v)
		}
	}
}

func TestSettingsBase(t *testing.T) {
	s := newSettings(t, obj{"executor": obj{"default_timeout": 100}, "app": obj{"x": 1}})
	for key, want := range map[string]any{"executor.default_timeout": int64(100), "executor.global_timeout": int64(60000), "app.x": int64(1)} {
		if got, _ := s.Get(key); got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	for _, base := range []obj{
		{"executor": obj{"default_timeout": 600001}}, {"executor": 5}, {"acl": obj{"default_effect": "maybe"}},
		{"observability": obj{"tracing": obj{"sampling_rate": 1.5}}}, {"f": func() {}},
	} {
		if _, err := system.NewSettings(base); module.CodeOf(err) != module.CodeConfigInvalid {
			t.Errorf("%v: %v, want CONFIG_INVALID", base, err)
		}
	}
}

func TestSettingsSet(t *testing.T) {
	s := newSettings(t, nil)
	var changes []string
	stop := s.OnChange(func(key string, value any) { changes = append(changes, fmt.Sprint(key, "=", value)) })
	before := s.All()
	for _, tt := range []struct {
		key   string
		value any
		old   any
		code  module.Code
	}{
		{"executor.max_call_depth", 1000, int64(32), ""},
		{"executor.max_call_depth", 10.0, int64(1000), ""},
		{"executor.max_call_depth", 1001, nil, module.CodeConfigInvalid},
		{"executor.max_call_depth", nil, nil, module.CodeConfigInvalid},
		{"executor", obj{}, nil, module.CodeConfigInvalid},
		{"app", obj{"a": obj{"b": 1}}, nil, ""},
		{"app.a.b", "two", int64(1), ""},
		{"app.a.b.c", 3, nil, module.CodeConfigInvalid},
		{"app.c", func() {}, nil, module.CodeInvalidInput},
		{"a b", 1, nil, module.CodeInvalidInput},
		{strings.Repeat("a.", 16) + "a", 1, nil, module.CodeInvalidInput},
	} {
		old, err := s.Set(tt.key, tt.value)
		if module.CodeOf(err) != tt.code || cmp.Diff(tt.old, old) != "" {
			t.Errorf("Set(%s) = %v, %v; want %v, code %q", tt.key, old, err, tt.old, tt.code)
		}
	}
	want := []string{"executor.max_call_depth=1000", "executor.max_call_depth=10", "app=map[a:map[b:1]]", "app.a.b=two"}
	if d := cmp.Diff(want, changes); d != "" {
		t.Error(d)
	}
	stop()
	if _, err := s.Set("app.d", 1); err != nil || len(changes) != len(want) {
		t.Errorf("told after it was stopped: %v, %v", err, changes)
	}
	if before["executor"].(obj)["max_call_depth"] != int64(32) || before["app"] != nil {
		t.Errorf("a map that was given out has changed: %v", before)
	}
}

func TestSettingsConcurrently(t *testing.T) {
	s := newSettings(t, nil)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 100 {
				if _, err := s.Set(fmt.Sprintf("app.w%d", i), n); err != nil {
					t.Error(err)
				}
				s.Get("app.w0")
				s.All()
			}
		})
	}
	wg.Wait()
	for i := range 4 {
		if v, _ := s.Get(fmt.Sprintf("app.w%d", i)); v != int64(99) {
			t.Errorf("w%d is %v: a change was lost", i, v)
		}
	}
}

func TestOverrideStores(t *testing.T) {
	path := filepath.Join(t.TempDir(), "overrides.yaml")
	for name, store := range map[string]system.OverridesStore{
		"memory": &system.MemoryOverrides{}, "file": system.NewFileOverrides(path),
	} {
		t.Run(name, func(t *testing.T) {
			load := func() obj {
				t.Helper()
				m, err := store.Load(t.Context())
				if err != nil || m == nil {
					t.Fatalf("load: %v, %v", m, err)
				}
				return m
			}
			if got := load(); len(got) != 0 {
				t.Errorf("a new store holds %v", got)
			}
			want := obj{
				"executor.default_timeout": int64(5), "ratio": 1.5, "on": true, "nothing": nil, "big": int64(9007199254740993),
				"text": "no: yes\n", "list": []any{"a", int64(1)}, "object": obj{"k": "v"},
			}
			for range 2 {
				if err := store.Save(t.Context(), want); err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(want, load()); d != "" {
					t.Error(d)
				}
			}
			load()["mine"] = 1
			if d := cmp.Diff(want, load()); d != "" {
				t.Errorf("a loaded map is shared: %s", d)
			}
			if err := store.Save(t.Context(), obj{"only": int64(1)}); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(obj{"only": int64(1)}, load()); d != "" {
				t.Errorf("save is not of the whole map: %s", d)
			}
		})
	}
}

func TestFileOverrides(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "overrides.yaml")
	f := system.NewFileOverrides(path)
	if err := f.Save(t.Context(), obj{"a": 1}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	if list, _ := os.ReadDir(dir); len(list) != 1 {
		t.Errorf("%d files, want one", len(list))
	}
	for name, content := range map[string]string{
		"no YAML": "{", "a list": "- a", "text": "s3cret", "a key that is no text": "? [a]\n: s3cret",
		"too long": strings.Repeat("a: s3cret\n", 200_000),
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Load(t.Context()); module.CodeOf(err) != module.CodeConfigInvalid || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want CONFIG_INVALID without the content", name, err)
		}
	}
	for name, content := range map[string]string{"empty": "", "blank": " \n", "a comment": "# nothing\n", "null": "null\n"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if m, err := f.Load(t.Context()); err != nil || len(m) != 0 {
			t.Errorf("%s: %v, %v; want nothing", name, m, err)
		}
	}
	if err := system.NewFileOverrides(filepath.Join(dir, "absent", "x.yaml")).Save(t.Context(), obj{}); err == nil {
		t.Error("a file in no folder was written")
	}
}

func FuzzFileOverrides(f *testing.F) {
	for _, seed := range []string{"", "a: 1", "a: &x [1]\nb: *x", "- 1", "{a: {b: .nan}}", "a: 2026-01-01", "{Y: {A: .00}, B: 1.0, C: 1e300}", "<<: {a: 1}"} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), "overrides.yaml")
	store := system.NewFileOverrides(path)
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := store.Load(t.Context())
		if err != nil {
			return
		}
		if err := store.Save(t.Context(), m); err != nil {
			t.Fatalf("what was loaded cannot be saved: %v", err)
		}
		again, err := store.Load(t.Context())
		if d := cmp.Diff(m, again); d != "" || err != nil {
			t.Fatalf("%v %s", err, d)
		}
	})
}

// What one process changed is there in the next, on top of its configuration.
func TestOverridesSurviveARestart(t *testing.T) {
	store := system.NewFileOverrides(filepath.Join(t.TempDir(), "overrides.yaml"))
	first := newBench(t, system.Options{Groups: allGroups(), Overrides: store})
	first.add(t, named("m"))
	first.call(t, "system.control.update_config", obj{"key": "executor.default_timeout", "value": 1000, "reason": "r"})
	first.call(t, "system.control.update_config", obj{"key": "app.x", "value": obj{"y": 1}, "reason": "r"})
	first.call(t, "system.control.toggle_feature", obj{"module_id": "m", "enabled": false, "reason": "r"})

	kept, err := store.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	kept["executor.max_call_depth"] = 0 // no longer valid
	kept["sys_modules.enabled"] = true  // never valid
	if err := store.Save(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
	base := newSettings(t, obj{"executor": obj{"default_timeout": 500, "global_timeout": 7}})
	second := newBench(t, system.Options{Groups: allGroups(), Overrides: store, Settings: base})
	for key, want := range map[string]any{
		"executor.default_timeout": int64(1000), "executor.global_timeout": int64(7), "app.x.y": int64(1),
		"executor.max_call_depth": int64(32), "sys_modules.enabled": false,
	} {
		if got, _ := second.sys.Settings().Get(key); got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	if second.Registry().Enabled("m") {
		t.Error("the module is on again")
	}
	if log := second.log.String(); strings.Count(log, "override") < 2 {
		t.Errorf("nothing is said of the overrides that are ignored:\n%s", log)
	}
}

func TestMemoryAudit(t *testing.T) {
	a := system.NewMemoryAudit(3)
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, target := range []string{"a", "b", "a", "b"} {
		e := system.AuditEntry{At: start.Add(time.Duration(i) * time.Minute), Target: target, ActorID: fmt.Sprint("actor", i%2), Before: i}
		if err := a.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		q    system.AuditQuery
		want []int
	}{
		{"all, the oldest forgotten", system.AuditQuery{}, []int{1, 2, 3}},
		{"target", system.AuditQuery{Target: "b"}, []int{1, 3}},
		{"actor", system.AuditQuery{ActorID: "actor0"}, []int{2}},
		{"since, included", system.AuditQuery{Since: start.Add(2 * time.Minute)}, []int{2, 3}},
		{"nobody", system.AuditQuery{Target: "a", ActorID: "actor1"}, nil},
	} {
		list, err := a.Query(t.Context(), tt.q)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, e := range list {
			got = append(got, e.Before.(int))
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
	}
	m := system.AuditEntry{At: start, Action: "toggle_feature", Target: "a", ActorID: "ana", ActorType: "user", TraceID: "t", Before: true, After: false, Reason: "r"}.Map()
	want := obj{
		"timestamp": "2026-01-01T00:00:00.000Z", "action": "toggle_feature", "target_module_id": "a", "actor_id": "ana", "actor_type": "user",
		"trace_id": "t", "change": obj{"before": true, "after": false}, "reason": "r", "correlation_id": nil,
	}
	if d := cmp.Diff(want, m); d != "" {
		t.Error(d)
	}
}
