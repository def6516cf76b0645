package system_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/executor/system"
	"github.com/apbus/apbus/module"
)

var (
	anyTime  = cmpopts.IgnoreFields(module.Event{}, "At")
	anyEntry = cmpopts.IgnoreFields(system.AuditEntry{}, "At", "TraceID")
)

func (b *bench) entries(t testing.TB, q system.AuditQuery) []system.AuditEntry {
	t.Helper()
	list, err := b.audit.Query(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.At.IsZero() || !module.ValidTraceID(e.TraceID) {
			t.Errorf("entry %+v has no time or no trace", e)
		}
	}
	return list
}

func TestControlRefuses(t *testing.T) {
	b := newBench(t, system.Options{Groups: allGroups()})
	b.add(t, named("m"))
	const update, reload, toggle = "system.control.update_config", "system.control.reload_module", "system.control.toggle_feature"
	tests := []struct {
		name string
		id   string
		in   obj
		want module.Code
	}{
		{"config without a key", update, obj{"value": 1, "reason": "r"}, module.CodeSchemaValidation},
		{"config with an empty key", update, obj{"key": "", "value": 1, "reason": "r"}, module.CodeInvalidInput},
		{"config with a malformed key", update, obj{"key": "a..b", "value": 1, "reason": "r"}, module.CodeInvalidInput},
		{"config without a value", update, obj{"key": "a", "reason": "r"}, module.CodeSchemaValidation},
		{"config without a reason", update, obj{"key": "a", "value": 1}, module.CodeSchemaValidation},
		{"config with a blank reason", update, obj{"key": "a", "value": 1, "reason": " \t"}, module.CodeInvalidInput},
		{"config with something else", update, obj{"key": "a", "value": 1, "reason": "r", "x": 1}, module.CodeSchemaValidation},
		{"the switch itself", update, obj{"key": "sys_modules.enabled", "value": false, "reason": "r"}, module.CodeConfigKeyRestricted},
		{"the section around the switch", update, obj{"key": "sys_modules", "value": obj{}, "reason": "r"}, module.CodeConfigKeyRestricted},
		{"below the switch", update, obj{"key": "sys_modules.enabled.x", "value": 1, "reason": "r"}, module.CodeConfigKeyRestricted},
		{"constraint", update, obj{"key": "executor.max_call_depth", "value": 0, "reason": "r"}, module.CodeConfigInvalid},
		{"constraint of a type", update, obj{"key": "executor.max_call_depth", "value": "9", "reason": "r"}, module.CodeConfigInvalid},
		{"section over constrained keys", update, obj{"key": "executor", "value": obj{"max_call_depth": 5}, "reason": "r"}, module.CodeConfigInvalid},
		{"below a value", update, obj{"key": "executor.max_call_depth.x", "value": 1, "reason": "r"}, module.CodeConfigInvalid},

		{"reload of neither", reload, obj{"reason": "r"}, module.CodeInvalidInput},
		{"reload of an empty id", reload, obj{"module_id": "", "reason": "r"}, module.CodeInvalidInput},
		{"reload of both", reload, obj{"module_id": "m", "path_filter": "*", "reason": "r"}, module.CodeModuleReloadConflict},
		{"reload of an unknown module", reload, obj{"module_id": "absent", "reason": "r"}, module.CodeModuleNotFound},
		{"reload without a reason", reload, obj{"module_id": "m", "reason": ""}, module.CodeInvalidInput},
		{"reload of the reloader", reload, obj{"module_id": reload, "reason": "r"}, module.CodeReloadFailed},

		{"toggle of an unknown module", toggle, obj{"module_id": "absent", "enabled": true, "reason": "r"}, module.CodeModuleNotFound},
		{"toggle of the switch", toggle, obj{"module_id": toggle, "enabled": false, "reason": "r"}, module.CodeInvalidInput},
		{"toggle by a number", toggle, obj{"module_id": "m", "enabled": 0, "reason": "r"}, module.CodeSchemaValidation},
		{"toggle by a word", toggle, obj{"module_id": "m", "enabled": "false", "reason": "r"}, module.CodeSchemaValidation},
		{"toggle without enabled", toggle, obj{"module_id": "m", "reason": "r"}, module.CodeSchemaValidation},
		{"toggle without a reason", toggle, obj{"module_id": "m", "enabled": false, "reason": ""}, module.CodeInvalidInput},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := b.Call(t.Context(), tt.id, tt.in)
			if module.CodeOf(err) != tt.want {
				t.Errorf("err = %v, want code %q", err, tt.want)
			}
		})
	}
	if len(b.events) > 0 || len(b.entries(t, system.AuditQuery{})) > 0 {
		t.Errorf("refused calls left events %v", b.events)
	}
	if v, _ := b.sys.Settings().Get("executor.max_call_depth"); v != int64(32) {
		t.Errorf("max_call_depth is %v", v)
	}
	b.call(t, "m", nil)
}

// Without an approval nothing changes, whatever the inputs.
func TestControlNeedsApproval(t *testing.T) {
	b := newBench(t, system.Options{Groups: allGroups()}, executor.WithApproval(approval.AlwaysDeny{}))
	b.add(t, named("m"))
	for id, in := range map[string]obj{
		"system.control.update_config":  {"key": "a", "value": 1, "reason": "r"},
		"system.control.reload_module":  {"module_id": "m", "reason": "r"},
		"system.control.toggle_feature": {"module_id": "m", "enabled": false, "reason": "r"},
	} {
		if _, err := b.Call(t.Context(), id, in); module.CodeOf(err) != module.CodeApprovalDenied {
			t.Errorf("%s: %v, want APPROVAL_DENIED", id, err)
		}
	}
	if _, there := b.sys.Settings().Get("a"); there || !b.Registry().Enabled("m") || len(b.events) > 0 {
		t.Error("something changed")
	}
}

func TestUpdateConfig(t *testing.T) {
	b := newBench(t, system.Options{Groups: allGroups()})
	ana := module.NewIdentity("ana", "user", []string{"ops"}, map[string]any{
		"display_name": "Ana", "API_Key": "sk-live-1", "sso": map[string]any{"session_id": "s-1", "team": "red"},
	})
	out := b.callAs(as(t.Context(), ana, "ops.console"), t, "system.control.update_config",
		obj{"key": "executor.default_timeout", "value": 60000, "reason": "slow disks"})
	want := obj{"success": true, "key": "executor.default_timeout", "old_value": int64(30000), "new_value": int64(60000)}
	if d := cmp.Diff(want, out); d != "" {
		t.Error(d)
	}
	b.call(t, "system.control.update_config", obj{"key": "app.new.flag", "value": []any{"x"}, "reason": "first"})
	who := obj{
		"id": "ana", "type": "user", "roles": []any{"ops"},
		"attrs": obj{"display_name": "Ana", "API_Key": "<redacted>", "sso": obj{"session_id": "<redacted>", "team": "red"}},
	}
	events := []module.Event{
		{Type: "apcore.config.updated", ModuleID: "system.control.update_config", Severity: "info", Data: obj{
			"key": "executor.default_timeout", "old_value": int64(30000), "new_value": int64(60000), "reason": "slow disks",
			"caller_id": "ops.console", "identity": who,
		}},
		{Type: "apcore.config.updated", ModuleID: "system.control.update_config", Severity: "info", Data: obj{
			"key": "app.new.flag", "old_value": nil, "new_value": []any{"x"}, "reason": "first", "caller_id": "@external",
		}},
	}
	if d := cmp.Diff(events, b.events, anyTime); d != "" {
		t.Error(d)
	}
	entries := []system.AuditEntry{
		{Action: "update_config", Target: "system.control.update_config", ActorID: "ana", ActorType: "user", Before: int64(30000), After: int64(60000), Reason: "slow disks"},
		{Action: "update_config", Target: "system.control.update_config", ActorID: "@external", ActorType: "unknown", After: []any{"x"}, Reason: "first"},
	}
	if d := cmp.Diff(entries, b.entries(t, system.AuditQuery{}), anyEntry); d != "" {
		t.Error(d)
	}
	if v, _ := b.sys.Settings().Get("app.new.flag"); cmp.Diff([]any{"x"}, v) != "" {
		t.Errorf("flag is %v", v)
	}
}

// The value of a sensitive setting stands in the settings and in the store, and
// nowhere else.
func TestSensitiveSettings(t *testing.T) {
	const old, value = "hunter2-before", "hunter2-after"
	for key, masked := range map[string]bool{
		"db.password": true, "service.api_key": true, "token": true, "x.auth_header": true, "x.SECRET.y": true, "x.key_file.z": true,
		"author.name": false, "monkey.business": false, "x.tokens": false,
	} {
		t.Run(key, func(t *testing.T) {
			store := &system.MemoryOverrides{}
			b := newBench(t, system.Options{Groups: allGroups(), Overrides: store})
			var out obj
			for _, v := range []string{old, value} {
				out = b.call(t, "system.control.update_config", obj{"key": key, "value": v, "reason": "rotation"})
			}
			want := obj{"success": true, "key": key, "old_value": old, "new_value": value}
			if masked {
				want["old_value"], want["new_value"] = "***REDACTED***", "***REDACTED***"
			}
			if d := cmp.Diff(want, out); d != "" {
				t.Error(d)
			}
			told := fmt.Sprint(b.events, b.entries(t, system.AuditQuery{}))
			if masked {
				told += b.log.String()
			}
			if got := strings.Contains(told, "hunter2"); got == masked {
				t.Errorf("value shown %v, want %v", got, !masked)
			}
			if v, _ := b.sys.Settings().Get(key); v != value {
				t.Errorf("setting is %v", v)
			}
			kept, err := store.Load(t.Context())
			if d := cmp.Diff(obj{key: value}, kept); d != "" || err != nil {
				t.Errorf("%v %s", err, d)
			}
		})
	}
	// A section shows what in it is no secret.
	b := newBench(t, system.Options{Groups: allGroups()})
	var out obj
	for range 2 {
		out = b.call(t, "system.control.update_config", obj{"key": "db", "value": obj{
			"host": "h", "pool": []any{obj{"sort_key": value, "size": 3}}, "password": obj{"current": value}, "token": nil,
		}, "reason": "r"})
	}
	section := obj{"host": "h", "pool": []any{obj{"sort_key": "***REDACTED***", "size": int64(3)}}, "password": "***REDACTED***", "token": nil}
	if d := cmp.Diff([]any{section, section}, []any{out["old_value"], out["new_value"]}); d != "" {
		t.Error(d)
	}
	if told := fmt.Sprint(b.events, b.entries(t, system.AuditQuery{}), b.log); strings.Contains(told, value) {
		t.Errorf("a secret of a section is shown: %s", told)
	}
	b = newBench(t, system.Options{Groups: allGroups()})
	_, err := b.Call(t.Context(), "system.control.update_config", obj{"key": "executor.max_call_depth", "value": value, "reason": "r"})
	e := module.AsError(err)
	if e == nil || strings.Contains(fmt.Sprint(e, e.CauseText(), e.Details, b.log), value) {
		t.Errorf("a refused value is quoted: %v", e)
	}
}

func TestToggleFeature(t *testing.T) {
	store := &system.MemoryOverrides{}
	b := newBench(t, system.Options{Groups: allGroups(), Overrides: store})
	b.add(t, named("m"), named("n"))
	toggle := func(id string, enabled bool) obj {
		return b.callAs(as(t.Context(), nil, "ops.console"), t, "system.control.toggle_feature",
			obj{"module_id": id, "enabled": enabled, "reason": "incident"})
	}
	if d := cmp.Diff(obj{"success": true, "module_id": "m", "enabled": false}, toggle("m", false)); d != "" {
		t.Error(d)
	}
	if _, err := b.Call(t.Context(), "m", nil); module.CodeOf(err) != module.CodeModuleDisabled {
		t.Errorf("call of a disabled module: %v", err)
	}
	toggle("n", false)
	kept, _ := store.Load(t.Context())
	if d := cmp.Diff(obj{system.DisabledKey: []any{"m", "n"}}, kept); d != "" {
		t.Error(d)
	}
	b.call(t, "system.control.reload_module", obj{"module_id": "m", "reason": "still off?"})
	if b.Registry().Enabled("m") {
		t.Error("a reload switched the module on")
	}
	toggle("m", true)
	toggle("n", true)
	if kept, _ = store.Load(t.Context()); len(kept) != 0 {
		t.Errorf("kept %v, want nothing", kept)
	}
	event := func(severity string, enabled bool) module.Event {
		return module.Event{Type: "apcore.module.toggled", ModuleID: "m", Severity: severity, Data: obj{
			"module_id": "m", "enabled": enabled, "reason": "incident", "caller_id": "ops.console",
		}}
	}
	if d := cmp.Diff([]module.Event{event("warn", false), event("info", true)}, []module.Event{b.events[0], b.events[3]}, anyTime); d != "" {
		t.Error(d)
	}
	entry := func(before, after bool) system.AuditEntry {
		return system.AuditEntry{Action: "toggle_feature", Target: "m", ActorID: "ops.console", ActorType: "module", Before: before, After: after, Reason: "incident"}
	}
	got := b.entries(t, system.AuditQuery{Target: "m", ActorID: "ops.console"})
	if d := cmp.Diff([]system.AuditEntry{entry(true, false), entry(false, true)}, got, anyEntry); d != "" {
		t.Error(d)
	}
}

// versioned registers a module whose factory makes the next version, or fails.
func versioned(t *testing.T, b *bench, id string, fail error, deps ...any) {
	t.Helper()
	d := module.Descriptor{ID: id, Version: "1.0.0", Metadata: obj{"dependencies": deps}}
	next := d
	next.Version = "2.0.0"
	factory := func(context.Context) (module.Module, error) { return &mod{desc: next}, fail }
	if err := b.Registry().RegisterDeclared(t.Context(), &mod{desc: d}, registry.Declaration{Factory: factory}); err != nil {
		t.Fatal(err)
	}
}

func versions(b *bench) obj {
	out := obj{}
	for _, d := range b.Descriptors() {
		if !strings.HasPrefix(d.ID, "system.") {
			out[d.ID] = d.Version
		}
	}
	return out
}

func TestReloadModule(t *testing.T) {
	b := newBench(t, system.Options{Groups: allGroups()})
	versioned(t, b, "m", nil)
	versioned(t, b, "bad", errors.New("no luck"))
	out := b.call(t, "system.control.reload_module", obj{"module_id": "m", "reason": "release"})
	if ms, ok := out["reload_duration_ms"].(float64); !ok || ms < 0 || ms > 10_000 {
		t.Errorf("duration %v", out["reload_duration_ms"])
	}
	delete(out, "reload_duration_ms")
	want := obj{"success": true, "module_id": "m", "previous_version": "1.0.0", "new_version": "2.0.0"}
	if d := cmp.Diff(want, out); d != "" {
		t.Error(d)
	}
	_, err := b.Call(t.Context(), "system.control.reload_module", obj{"module_id": "bad", "reason": "release"})
	if e := module.AsError(err); e == nil || e.Code != module.CodeReloadFailed || e.Details["restored"] != true {
		t.Errorf("err = %v, want RELOAD_FAILED, restored", err)
	}
	if d := cmp.Diff(obj{"m": "2.0.0", "bad": "1.0.0"}, versions(b)); d != "" {
		t.Error(d)
	}
	event := module.Event{Type: "apcore.module.reloaded", ModuleID: "m", Severity: "info", Data: obj{
		"module_id": "m", "previous_version": "1.0.0", "new_version": "2.0.0", "reason": "release", "caller_id": "@external",
	}}
	if d := cmp.Diff([]module.Event{event}, b.events, anyTime); d != "" {
		t.Error(d)
	}
	entry := system.AuditEntry{
		Action: "reload_module", Target: "m", ActorID: "@external", ActorType: "unknown", Before: "1.0.0", After: "2.0.0", Reason: "release",
	}
	if d := cmp.Diff([]system.AuditEntry{entry}, b.entries(t, system.AuditQuery{}), anyEntry); d != "" {
		t.Error(d)
	}
}

func TestReloadInBulk(t *testing.T) {
	b := newBench(t, system.Options{Groups: allGroups()})
	versioned(t, b, "shop.a", nil, obj{"module_id": "shop.c"})
	versioned(t, b, "shop.b", nil)
	versioned(t, b, "shop.c", nil, obj{"module_id": "other", "version": "^9"})
	b.add(t, named("other"))
	reload := func(filter string) (obj, error) {
		return b.Call(t.Context(), "system.control.reload_module", obj{"path_filter": filter, "reason": "release"})
	}
	out, err := reload("shop.?")
	if err != nil {
		t.Fatal(err)
	}
	delete(out, "reload_duration_ms")
	want := obj{"success": true, "module_id": nil, "reloaded_modules": []any{"shop.b", "shop.c", "shop.a"}}
	if d := cmp.Diff(want, out); d != "" {
		t.Errorf("leaves first: %s", d)
	}
	entries := b.entries(t, system.AuditQuery{})
	if len(entries) != 3 || len(b.events) != 3 {
		t.Fatalf("%d entries, %d events; want 3 each", len(entries), len(b.events))
	}
	for _, e := range entries {
		if e.CorrelationID == "" || e.CorrelationID != entries[0].CorrelationID {
			t.Errorf("correlation %q, want one shared by all", e.CorrelationID)
		}
	}
	if out, err = reload("zzz*"); err != nil || len(out["reloaded_modules"].([]any)) != 0 {
		t.Errorf("no match: %v, %v; want a success without effect", out, err)
	}
	versioned(t, b, "shop.bad", errors.New("no luck"))
	_, err = reload("shop.*")
	e := module.AsError(err)
	if e == nil || e.Code != module.CodeReloadFailed {
		t.Fatalf("err = %v, want RELOAD_FAILED", err)
	}
	details := obj{"reloaded_modules": []any{"shop.b", "shop.c", "shop.a"}, "failed_modules": []any{"shop.bad"}}
	if d := cmp.Diff(details, e.Details, cmpopts.IgnoreMapEntries(func(k string, _ any) bool { return k == "step" })); d != "" {
		t.Error(d)
	}
	// Everything that matches * is everything but the system modules.
	if _, err := reload("*"); module.CodeOf(err) != module.CodeReloadFailed {
		t.Errorf("err = %v", err)
	}
}

// A reload inside a call of the very module is refused, not waited for.
func TestReloadOfACaller(t *testing.T) {
	b := newBench(t, system.Options{Groups: allGroups()})
	self := named("self")
	self.run = func(ctx context.Context, _ map[string]any) (map[string]any, error) {
		return module.Call(ctx, "system.control.reload_module", obj{"module_id": "self", "reason": "loop"})
	}
	b.add(t, self)
	started := time.Now()
	if _, err := b.Call(t.Context(), "self", nil); module.CodeOf(err) != module.CodeReloadFailed {
		t.Errorf("err = %v, want RELOAD_FAILED", err)
	}
	if took := time.Since(started); took > registry.DefaultWait {
		t.Errorf("took %v, so it waited", took)
	}
}

// A taker of events that panics does not undo or fail the change.
func TestEventHookPanics(t *testing.T) {
	x := newExecutor(t, executor.WithApproval(approval.AutoApprove{}))
	j := &journal{}
	sys, err := system.Register(t.Context(), x, system.Options{
		Groups: allGroups(), Logger: logger(j), Emit: func(module.Event) { panic("no") },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Call(t.Context(), "system.control.update_config", obj{"key": "a", "value": 1, "reason": "r"}); err != nil {
		t.Fatal(err)
	}
	if v, _ := sys.Settings().Get("a"); v != int64(1) || !strings.Contains(j.String(), "event hook panicked") {
		t.Errorf("a is %v\n%s", v, j)
	}
}

type brokenStores struct{}

func (brokenStores) Load(context.Context) (map[string]any, error) {
	return nil, errors.New("disk gone")
}
func (brokenStores) Save(context.Context, map[string]any) error { return errors.New("disk gone") }
func (brokenStores) Append(context.Context, system.AuditEntry) error {
	return errors.New("disk gone")
}

func (brokenStores) Query(context.Context, system.AuditQuery) ([]system.AuditEntry, error) {
	return nil, errors.New("disk gone")
}

func TestBrokenStoresDoNotUndoAChange(t *testing.T) {
	x := newExecutor(t, executor.WithApproval(approval.AutoApprove{}))
	j := &journal{}
	sys, err := system.Register(t.Context(), x, system.Options{
		Groups: allGroups(), Logger: logger(j), Overrides: brokenStores{}, Audit: brokenStores{},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Call(t.Context(), "system.control.update_config", obj{"key": "a", "value": 1, "reason": "r"}); err != nil {
		t.Fatal(err)
	}
	if v, _ := sys.Settings().Get("a"); v != int64(1) {
		t.Errorf("a is %v", v)
	}
	for _, text := range []string{"cannot load the overrides", "not kept over a restart", "an audit entry is lost"} {
		if !strings.Contains(j.String(), text) {
			t.Errorf("the log does not say %q", text)
		}
	}
}

// A reviewer sees what a change would do, and nothing happens.
func TestControlPreviews(t *testing.T) {
	b := newBench(t, system.Options{Groups: allGroups()})
	versioned(t, b, "shop.a", nil, obj{"module_id": "shop.b"})
	versioned(t, b, "shop.b", nil)
	set := func(v any) module.Optional { return module.Optional{Value: v, Set: true} }
	if _, err := b.sys.Settings().Set("db.password", "hunter2"); err != nil {
		t.Fatal(err)
	}
	reload := func(id string) module.Change {
		return module.Change{Action: "update", Target: id, Summary: "Replace the module " + id + " of this node by a new one", Before: set("1.0.0")}
	}
	const update = "system.control.update_config"
	for _, tt := range []struct {
		name, id string
		in       obj
		want     []module.Change
	}{
		{"setting", update, obj{"key": "executor.max_call_depth", "value": 64, "reason": "r"}, []module.Change{{
			Action: "update", Target: "executor.max_call_depth", Summary: "Change the setting executor.max_call_depth of this node", Before: set(int64(32)), After: set(int64(64)),
		}}},
		{"long number", update, obj{"key": "executor.default_timeout", "value": 60000, "reason": "r"}, []module.Change{{
			Action: "update", Target: "executor.default_timeout", Summary: "Change the setting executor.default_timeout of this node", Before: set(int64(30000)), After: set(int64(60000)),
		}}},
		{"text", update, obj{"key": "schema.strategy", "value": "native_first", "reason": "r"}, []module.Change{{
			Action: "update", Target: "schema.strategy", Summary: "Change the setting schema.strategy of this node", Before: set("yaml_first"), After: set("native_first"),
		}}},
		{"new setting", update, obj{"key": "app.x", "value": true, "reason": "r"}, []module.Change{{
			Action: "update", Target: "app.x", Summary: "Change the setting app.x of this node", After: set(true),
		}}},
		{"secret", update, obj{"key": "db.password", "value": "hunter3", "reason": "r"}, []module.Change{{
			Action: "update", Target: "db.password", Summary: "Change the setting db.password of this node", Before: set("***REDACTED***"), After: set("***REDACTED***"),
		}}},
		{"switch", "system.control.toggle_feature", obj{"module_id": "shop.a", "enabled": false, "reason": "r"}, []module.Change{{
			Action: "update", Target: "shop.a", Summary: "Switch the module shop.a of this node off", Before: set(true), After: set(false),
		}}},
		{"reload", "system.control.reload_module", obj{"module_id": "shop.a", "reason": "r"}, []module.Change{reload("shop.a")}},
		{"reload in bulk", "system.control.reload_module", obj{"path_filter": "shop.*", "reason": "r"}, []module.Change{reload("shop.b"), reload("shop.a")}},
		{"reload of nothing", "system.control.reload_module", obj{"module_id": "absent", "reason": "r"}, []module.Change{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := b.Validate(t.Context(), tt.id, tt.in)
			if !r.Valid || !r.RequiresApproval {
				t.Errorf("valid %v, requires approval %v: %v", r.Valid, r.RequiresApproval, r.Errors())
			}
			if d := cmp.Diff(tt.want, r.PredictedChanges, cmpopts.EquateEmpty()); d != "" {
				t.Error(d)
			}
		})
	}
	if d := cmp.Diff(obj{"shop.a": "1.0.0", "shop.b": "1.0.0"}, versions(b)); d != "" || len(b.events) > 0 || !b.Registry().Enabled("shop.a") {
		t.Errorf("a preview changed something: %v %s", b.events, d)
	}
}

// Reviewers see the value that they decide on, unless it is a secret.
func TestReviewersSeeTheValue(t *testing.T) {
	for key, want := range map[string]string{"executor.default_timeout": "60000", "db.password": "***REDACTED***"} {
		t.Run(key, func(t *testing.T) {
			waiting := approval.NewMemory(approval.Options{})
			b := newBench(t, system.Options{Groups: allGroups()}, executor.WithApproval(waiting))
			_, err := b.Call(t.Context(), "system.control.update_config", obj{"key": key, "value": 60000, "reason": "r"})
			if module.CodeOf(err) != module.CodeApprovalPending {
				t.Fatalf("err = %v, want APPROVAL_PENDING", err)
			}
			page, err := waiting.List(t.Context(), approval.Filter{})
			list := page.Records
			if err != nil || len(list) != 1 || fmt.Sprint(list[0].Inputs["value"]) != want || list[0].Inputs["key"] != key {
				t.Errorf("reviewers see %+v, want the value %s", list, want)
			}
			if len(list) == 1 && (len(list[0].Changes) != 1 || fmt.Sprint(list[0].Changes[0].After.Value) != want) {
				t.Errorf("reviewers see the change %+v, want it to %s", list[0].Changes, want)
			}
		})
	}
}

// Changes come one after the other; one that waits for its turn ends with its call.
func TestControlTakesTurns(t *testing.T) {
	b := newBench(t, system.Options{Groups: allGroups()})
	reloading, goOn := make(chan struct{}), make(chan struct{})
	factory := func(context.Context) (module.Module, error) {
		close(reloading)
		<-goOn
		return named("slow"), nil
	}
	if err := b.Registry().RegisterDeclared(t.Context(), named("slow"), registry.Declaration{Factory: factory}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := b.Call(context.Background(), "system.control.reload_module", obj{"module_id": "slow", "reason": "r"})
		ended <- err
	}()
	<-reloading
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	_, err := b.Call(ctx, "system.control.update_config", obj{"key": "a", "value": 1, "reason": "r"})
	if code := module.CodeOf(err); code != module.CodeModuleTimeout && code != module.CodeExecutionCancelled {
		t.Errorf("err = %v, want the end of the call", err)
	}
	if _, there := b.sys.Settings().Get("a"); there {
		t.Error("a change was made out of turn")
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	b.call(t, "system.control.update_config", obj{"key": "a", "value": 1, "reason": "r"})
}
