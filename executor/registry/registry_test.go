package registry_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

type mod struct {
	desc     module.Descriptor
	check    error
	onLoad   func(ctx context.Context) error
	onUnload func(ctx context.Context) error
}

func (m *mod) Descriptor() module.Descriptor { return m.desc }
func (m *mod) Check() error                  { return m.check }

func (m *mod) Execute(context.Context, map[string]any) (map[string]any, error) {
	return map[string]any{}, nil
}

func (m *mod) OnLoad(ctx context.Context) error {
	if m.onLoad == nil {
		return nil
	}
	return m.onLoad(ctx)
}

func (m *mod) OnUnload(ctx context.Context) error {
	if m.onUnload == nil {
		return nil
	}
	return m.onUnload(ctx)
}

func named(id string) *mod { return &mod{desc: module.Descriptor{ID: id}} }

func quiet() registry.Options { return registry.Options{Logger: slog.New(slog.DiscardHandler)} }

func TestRegisterRefuses(t *testing.T) {
	broken := errors.New("no schema")
	loops := map[string]any{"$ref": "#"}
	tests := []struct {
		name     string
		m        module.Module
		internal bool
		want     module.Code
	}{
		{"nil", nil, false, module.CodeInvalidInput},
		{"malformed id", named("A"), false, module.CodeInvalidModuleID},
		{"reserved first segment", named("system.x"), false, module.CodeInvalidModuleID},
		{"reserved alone", named("schema"), false, module.CodeInvalidModuleID},
		{"reserved later on", named("foo.system.bar"), false, ""},
		{"word that begins alike", named("systems.report"), false, ""},
		{"ephemeral", named("ephemeral.x"), false, ""},
		{"ephemeral, internally", named("ephemeral.x"), true, module.CodeInvalidModuleID},
		{"reserved, internally", named("system.x"), true, ""},
		{"own check", &mod{desc: module.Descriptor{ID: "m"}, check: module.Errorf(module.CodeFuncMissingTypeHint, "%w", broken)}, false, module.CodeFuncMissingTypeHint},
		{"bad input schema", &mod{desc: module.Descriptor{ID: "m", InputSchema: map[string]any{"type": 5}}}, false, module.CodeSchemaParse},
		{"circular output schema", &mod{desc: module.Descriptor{ID: "m", OutputSchema: loops}}, false, module.CodeSchemaCircularRef},
		{"validator", named("forbidden"), false, module.CodeInvalidInput},
		{"taken", named("taken"), false, module.CodeDuplicateModuleID},
		{"check before taken", &mod{desc: module.Descriptor{ID: "taken"}, check: module.Errorf("MINE", "x")}, false, "MINE"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := quiet()
			o.Validate = func(m module.Module) error {
				if m.Descriptor().ID == "forbidden" {
					return errors.New("house rules")
				}
				return nil
			}
			r := registry.New(o)
			if err := r.Register(named("taken")); err != nil {
				t.Fatal(err)
			}
			register := r.Register
			if tt.internal {
				register = r.RegisterInternal
			}
			if got := module.CodeOf(register(tt.m)); got != tt.want {
				t.Fatalf("code %q, want %q", got, tt.want)
			}
			wantLen := 1
			if tt.want == "" {
				wantLen = 2
			}
			if r.Len() != wantLen {
				t.Errorf("%d modules, want %d", r.Len(), wantLen)
			}
		})
	}
}

// Nobody sees a module before its OnLoad has returned, and nobody ever sees one
// whose OnLoad failed.
func TestVisibleAfterOnLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry.New(quiet())
		changes := 0
		r.OnChange(func() { changes++ })
		loaded := false
		m := named("warm.up")
		m.onLoad = func(context.Context) error {
			time.Sleep(50 * time.Millisecond)
			loaded = true
			return nil
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := r.Register(m); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(25 * time.Millisecond)
		if _, ok := r.Get("warm.up"); ok || len(r.List(registry.Filter{})) != 0 || len(r.Descriptors()) != 0 || changes != 0 {
			t.Error("visible while loading")
		}
		if err := r.Register(named("warm.up")); module.CodeOf(err) != module.CodeDuplicateModuleID {
			t.Errorf("a second one in flight: %v", err)
		}
		wg.Wait()
		if _, ok := r.Get("warm.up"); !ok || !loaded || changes != 1 {
			t.Errorf("visible %v, loaded %v, changes %d", ok, loaded, changes)
		}
	})
}

func TestFailedOnLoad(t *testing.T) {
	upstream := errors.New("failed to reach upstream")
	tests := []struct {
		name string
		load func(context.Context) error
		is   error
		code module.Code
	}{
		{"error is passed on unchanged", func(context.Context) error { return upstream }, upstream, module.CodeInternal},
		{"panic", func(context.Context) error { panic("secret") }, nil, module.CodeModuleLoadError},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var log strings.Builder
			r := registry.New(registry.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			m := named("m")
			m.onLoad = tt.load
			err := r.Register(m)
			if err == nil || (tt.is != nil && err != tt.is) || module.CodeOf(err) != tt.code {
				t.Fatalf("err = %v", err)
			}
			if _, ok := r.Get("m"); ok || r.Len() != 0 {
				t.Error("visible though its load failed")
			}
			if strings.Count(log.String(), "module load failed") != 1 || strings.Contains(log.String()+err.Error(), "secret") {
				t.Errorf("log %q", log.String())
			}
			m.onLoad = nil
			if err := r.Register(m); err != nil {
				t.Errorf("the ID stays reserved: %v", err)
			}
		})
	}
}

func TestLoadsOfDifferentModulesOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry.New(quiet())
		began := time.Now()
		var wg sync.WaitGroup
		for _, id := range []string{"x", "y"} {
			m := named(id)
			m.onLoad = func(context.Context) error { time.Sleep(50 * time.Millisecond); return nil }
			wg.Go(func() {
				if err := r.Register(m); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took != 50*time.Millisecond || r.Len() != 2 {
			t.Errorf("%d loads took %v", r.Len(), took)
		}
	})
}

func TestConcurrentDuplicates(t *testing.T) {
	for range 200 {
		r := registry.New(quiet())
		var won, lost atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				switch module.CodeOf(r.Register(named("m"))) {
				case "":
					won.Add(1)
				case module.CodeDuplicateModuleID:
					lost.Add(1)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 || lost.Load() != 7 || r.Len() != 1 {
			t.Fatalf("%d won, %d lost, %d there", won.Load(), lost.Load(), r.Len())
		}
	}
}

func TestListAndDescriptors(t *testing.T) {
	r := registry.New(quiet())
	for _, d := range []module.Descriptor{
		{ID: "b.two", Tags: []string{"x", "y"}},
		{ID: "a.one", Tags: []string{"x"}},
		{ID: "b.hidden", Tags: []string{"x"}, Annotations: module.Annotations{Hidden: true}},
	} {
		if err := r.Register(&mod{desc: d}); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name   string
		filter registry.Filter
		want   []string
	}{
		{"all", registry.Filter{}, []string{"a.one", "b.two"}},
		{"hidden too", registry.Filter{Hidden: true}, []string{"a.one", "b.hidden", "b.two"}},
		{"prefix", registry.Filter{Prefix: "b."}, []string{"b.two"}},
		{"every tag", registry.Filter{Tags: []string{"x", "y"}}, []string{"b.two"}},
		{"nothing", registry.Filter{Tags: []string{"z"}}, []string{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, r.List(tt.filter)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	var ids []string
	for _, d := range r.Descriptors() {
		ids = append(ids, d.ID)
	}
	if diff := cmp.Diff([]string{"a.one", "b.hidden", "b.two"}, ids); diff != "" {
		t.Errorf("descriptors (-want +got):\n%s", diff)
	}
}

func TestDeclaredAnnotationsUnite(t *testing.T) {
	r := registry.New(quiet())
	m := &mod{desc: module.Descriptor{ID: "m", Annotations: module.Annotations{Destructive: true, Readonly: true}}}
	err := r.RegisterDeclared(t.Context(), m, registry.Declaration{Annotations: module.Annotations{RequiresApproval: true, Idempotent: true}})
	if err != nil {
		t.Fatal(err)
	}
	e, _ := r.Get("m")
	want := module.Annotations{Destructive: true, RequiresApproval: true, Readonly: true}
	if diff := cmp.Diff(want, e.Descriptor.Annotations); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLookup(t *testing.T) {
	r := registry.New(quiet())
	if err := r.Register(&mod{desc: module.Descriptor{ID: "m", Version: "1.2.3"}}); err != nil {
		t.Fatal(err)
	}
	_, err := r.Lookup("m", "^2")
	e := module.AsError(err)
	want := map[string]any{"module_id": "m", "required": "^2", "actual": "1.2.3"}
	if e == nil || e.Code != module.CodeVersionIncompatible || !cmp.Equal(want, e.Details) {
		t.Errorf("mismatch: %+v", e)
	}
	if _, err := r.Lookup("gone", ""); module.CodeOf(err) != module.CodeModuleNotFound {
		t.Errorf("unknown: %v", err)
	}
	if got, err := r.Lookup("m", "~1.2"); err != nil || got.Descriptor.ID != "m" {
		t.Errorf("match: %v, %v", got, err)
	}
}

func TestSafeUnregister(t *testing.T) {
	boom := errors.New("boom")
	tests := []struct {
		name   string
		hold   time.Duration // a call holds the module so long
		ctx    time.Duration // 0: no end
		unload error
		clean  bool
		after  time.Duration
	}{
		{"idle", 0, 0, nil, true, 0},
		{"waits for its calls", 2 * time.Second, 0, nil, true, 2 * time.Second},
		{"runs out of time", time.Minute, 0, nil, false, 5 * time.Second},
		{"context ends", time.Minute, time.Second, nil, false, time.Second},
		{"unload fails", 0, 0, boom, true, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := registry.New(quiet())
				unloaded := false
				m := named("m")
				m.onUnload = func(ctx context.Context) error {
					if ctx.Err() != nil {
						t.Error("OnUnload got an ended context")
					}
					if _, ok := r.Get("m"); ok {
						t.Error("visible while it is unloaded")
					}
					unloaded = true
					return tt.unload
				}
				if err := r.Register(m); err != nil {
					t.Fatal(err)
				}
				e, _ := r.Get("m")
				if tt.hold > 0 {
					if !e.Acquire() {
						t.Fatal("Acquire = false")
					}
					go func() { time.Sleep(tt.hold); e.Release() }()
				}
				ctx := t.Context()
				if tt.ctx > 0 {
					c, stop := context.WithTimeout(ctx, tt.ctx)
					defer stop()
					ctx = c
				}
				go func() {
					time.Sleep(time.Nanosecond)
					if tt.hold == 0 {
						return
					}
					if _, ok := r.Get("m"); ok || e.Acquire() {
						t.Error("a new call got the module")
					}
					if module.CodeOf(r.Register(named("m"))) != module.CodeDuplicateModuleID {
						t.Error("the ID was free before the module was unloaded")
					}
				}()
				began := time.Now()
				clean, err := r.SafeUnregister(ctx, "m", 5*time.Second)
				if clean != tt.clean || !errors.Is(err, tt.unload) || time.Since(began) != tt.after || !unloaded {
					t.Errorf("= %v, %v after %v, unloaded %v", clean, err, time.Since(began), unloaded)
				}
				if err := r.Register(named("m")); err != nil {
					t.Errorf("the ID is not free afterwards: %v", err)
				}
				time.Sleep(time.Minute)
				if e.InFlight() != 0 {
					t.Errorf("in flight %d", e.InFlight())
				}
			})
		})
	}
	r := registry.New(quiet())
	if clean, err := r.SafeUnregister(t.Context(), "gone", 0); !clean || err != nil || r.Unregister(t.Context(), "gone") {
		t.Errorf("absent: %v, %v", clean, err)
	}
}

func TestOnChange(t *testing.T) {
	r := registry.New(quiet())
	n := 0
	stop := r.OnChange(func() { n++ })
	_ = r.Register(named("m"))
	if !r.Unregister(t.Context(), "m") || n != 2 {
		t.Errorf("%d changes, want 2", n)
	}
	stop()
	_ = r.Register(named("m"))
	if n != 2 {
		t.Error("told after stop")
	}
}

// Calls and an unregistration meet in every order: whoever holds the entry is
// waited for, whoever comes late is refused.
func TestAcquireRace(t *testing.T) {
	for range 500 {
		r := registry.New(quiet())
		var running, refused atomic.Int64
		m := named("m")
		m.onUnload = func(context.Context) error {
			if n := running.Load(); n != 0 {
				t.Errorf("unloaded under %d calls", n)
			}
			return nil
		}
		if err := r.Register(m); err != nil {
			t.Fatal(err)
		}
		e, _ := r.Get("m")
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 20 {
					if !e.Acquire() {
						refused.Add(1)
						continue
					}
					running.Add(1)
					running.Add(-1)
					e.Release()
				}
			})
		}
		wg.Go(func() {
			if clean, err := r.SafeUnregister(t.Context(), "m", time.Minute); !clean || err != nil {
				t.Errorf("= %v, %v", clean, err)
			}
		})
		wg.Wait()
		if e.InFlight() != 0 || e.Acquire() {
			t.Fatal("the closed entry is held or lets somebody in")
		}
	}
}
