package registry_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

// staged is a module that writes down what happens to it.
type staged struct {
	desc   module.Descriptor
	said   *[]string
	state  map[string]any
	fail   map[string]error // by hook
	during func(hook string)
}

func (s *staged) at(hook string) error {
	*s.said = append(*s.said, s.desc.EffectiveVersion()+" "+hook)
	if s.during != nil {
		s.during(hook)
	}
	return s.fail[hook]
}

func (s *staged) Descriptor() module.Descriptor { return s.desc }
func (s *staged) Execute(context.Context, map[string]any) (map[string]any, error) {
	return map[string]any{}, nil
}
func (s *staged) OnLoad(context.Context) error   { return s.at("load") }
func (s *staged) OnUnload(context.Context) error { return s.at("unload") }
func (s *staged) OnSuspend(context.Context) (map[string]any, error) {
	return s.state, s.at("suspend")
}

func (s *staged) OnResume(_ context.Context, state map[string]any) error {
	return s.at(fmt.Sprint("resume ", state["n"]))
}

func version(id, v string) module.Descriptor { return module.Descriptor{ID: id, Version: v} }

func TestReloadOrder(t *testing.T) {
	boom := errors.New("boom")
	tests := []struct {
		name     string
		state    map[string]any
		oldFails map[string]error
		next     func(s *staged) // changes the successor
		factory  registry.Factory
		want     []string
		code     module.Code
		restored bool
		version  string // visible at the end, "" for none
	}{
		{
			name: "with a state", state: map[string]any{"n": 7}, version: "2.0.0",
			want: []string{"1.0.0 suspend", "1.0.0 unload", "make", "2.0.0 load", "2.0.0 resume 7"},
		},
		{
			name: "without a state", version: "2.0.0",
			want: []string{"1.0.0 suspend", "1.0.0 unload", "make", "2.0.0 load"},
		},
		{
			name: "an empty state is a state", state: map[string]any{}, version: "2.0.0",
			want: []string{"1.0.0 suspend", "1.0.0 unload", "make", "2.0.0 load", "2.0.0 resume <nil>"},
		},
		{
			name: "a state without a JSON form", state: map[string]any{"n": func() {}}, version: "2.0.0",
			want: []string{"1.0.0 suspend", "1.0.0 unload", "make", "2.0.0 load"},
		},
		{
			name: "suspend and unload fail", state: map[string]any{"n": 7}, version: "2.0.0",
			oldFails: map[string]error{"suspend": boom, "unload": boom},
			want:     []string{"1.0.0 suspend", "1.0.0 unload", "make", "2.0.0 load"},
		},
		{
			name: "resume fails", state: map[string]any{"n": 7}, version: "2.0.0",
			next: func(s *staged) { s.fail = map[string]error{"resume 7": boom} },
			want: []string{"1.0.0 suspend", "1.0.0 unload", "make", "2.0.0 load", "2.0.0 resume 7"},
		},
		{
			name: "load fails", state: map[string]any{"n": 7}, version: "1.0.0", code: module.CodeReloadFailed, restored: true,
			next: func(s *staged) { s.fail = map[string]error{"load": boom} },
			want: []string{"1.0.0 suspend", "1.0.0 unload", "make", "2.0.0 load", "1.0.0 load", "1.0.0 resume 7"},
		},
		{
			name: "load fails for both", code: module.CodeReloadFailed,
			oldFails: map[string]error{"load": boom},
			next:     func(s *staged) { s.fail = map[string]error{"load": boom} },
			want:     []string{"1.0.0 suspend", "1.0.0 unload", "make", "2.0.0 load", "1.0.0 load"},
		},
		{
			name: "another id", version: "1.0.0", code: module.CodeReloadFailed, restored: true,
			next: func(s *staged) { s.desc.ID = "other" },
			want: []string{"1.0.0 suspend", "1.0.0 unload", "make", "1.0.0 load"},
		},
		{
			name: "a schema that does not compile", version: "1.0.0", code: module.CodeReloadFailed, restored: true,
			next: func(s *staged) { s.desc.InputSchema = map[string]any{"type": 5} },
			want: []string{"1.0.0 suspend", "1.0.0 unload", "make", "1.0.0 load"},
		},
		{
			name: "the factory fails", version: "1.0.0", code: module.CodeReloadFailed, restored: true,
			factory: func(context.Context) (module.Module, error) { return nil, boom },
			want:    []string{"1.0.0 suspend", "1.0.0 unload", "1.0.0 load"},
		},
		{
			name: "the factory panics", version: "1.0.0", code: module.CodeReloadFailed, restored: true,
			factory: func(context.Context) (module.Module, error) { panic(boom) },
			want:    []string{"1.0.0 suspend", "1.0.0 unload", "1.0.0 load"},
		},
		{
			name: "the factory makes none", version: "1.0.0", code: module.CodeReloadFailed, restored: true,
			factory: func(context.Context) (module.Module, error) { return nil, nil },
			want:    []string{"1.0.0 suspend", "1.0.0 unload", "1.0.0 load"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var said []string
			r := registry.New(quiet())
			visible := func(hook string) {
				if _, ok := r.Get("m"); ok {
					t.Errorf("visible during %s", hook)
				}
			}
			old := &staged{desc: version("m", "1.0.0"), said: &said, state: tt.state}
			factory := tt.factory
			if factory == nil {
				factory = func(context.Context) (module.Module, error) {
					said = append(said, "make")
					next := &staged{desc: version("m", "2.0.0"), said: &said, during: visible}
					if tt.next != nil {
						tt.next(next)
					}
					return next, nil
				}
			}
			if err := r.RegisterDeclared(t.Context(), old, registry.Declaration{Factory: factory}); err != nil {
				t.Fatal(err)
			}
			old.during, old.fail = visible, tt.oldFails
			said = nil
			done, err := r.Reload(t.Context(), "m", registry.ReloadOptions{})
			if module.CodeOf(err) != tt.code {
				t.Fatalf("err = %v, want code %q", err, tt.code)
			}
			if tt.code != "" && module.AsError(err).Details["restored"] != tt.restored {
				t.Errorf("details %v, want restored %v", module.AsError(err).Details, tt.restored)
			}
			if d := cmp.Diff(tt.want, said); d != "" {
				t.Error(d)
			}
			e, err := r.Lookup("m", "")
			if got := (err == nil); got != (tt.version != "") {
				t.Fatalf("visible %v, want version %q", got, tt.version)
			}
			if err == nil && (e.Descriptor.EffectiveVersion() != tt.version || !e.Acquire()) {
				t.Errorf("version %s, want %s and open for calls", e.Descriptor.EffectiveVersion(), tt.version)
			}
			if tt.code == "" && (done != registry.Reloaded{PreviousVersion: "1.0.0", NewVersion: "2.0.0", Clean: true}) {
				t.Errorf("reloaded %+v", done)
			}
			if tt.version == "" {
				if err := r.Register(named("m")); err != nil {
					t.Errorf("the id of a lost module is still taken: %v", err)
				}
			}
		})
	}
}

func TestReloadWithoutFactoryReadsTheModuleAnew(t *testing.T) {
	r := registry.New(quiet())
	m := named("m")
	if err := r.Register(m); err != nil {
		t.Fatal(err)
	}
	m.desc.Version = "1.1.0"
	done, err := r.Reload(t.Context(), "m", registry.ReloadOptions{})
	if err != nil || done.PreviousVersion != "1.0.0" || done.NewVersion != "1.1.0" {
		t.Errorf("reloaded %+v, %v", done, err)
	}
	if _, err := r.Reload(t.Context(), "absent", registry.ReloadOptions{}); module.CodeOf(err) != module.CodeModuleNotFound {
		t.Errorf("err = %v, want MODULE_NOT_FOUND", err)
	}
}

// A reload waits for calls under way, refuses new ones, keeps the ID taken, and
// goes on when the calls do not end.
func TestReloadWaitsForCalls(t *testing.T) {
	for _, ends := range []bool{true, false} {
		t.Run(fmt.Sprint("call ends ", ends), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := registry.New(quiet())
				if err := r.Register(named("m")); err != nil {
					t.Fatal(err)
				}
				e, _ := r.Get("m")
				if !e.Acquire() {
					t.Fatal("not open")
				}
				var wg sync.WaitGroup
				started := time.Now()
				var done registry.Reloaded
				var took time.Duration
				wg.Go(func() {
					wait := 2 * time.Second
					var err error
					if done, err = r.Reload(t.Context(), "m", registry.ReloadOptions{Wait: &wait}); err != nil {
						t.Error(err)
					}
					took = time.Since(started)
				})
				synctest.Wait()
				if _, err := r.Lookup("m", ""); module.CodeOf(err) != module.CodeModuleNotFound {
					t.Errorf("lookup while reloading: %v, want MODULE_NOT_FOUND", err)
				}
				if err := r.Register(named("m")); module.CodeOf(err) != module.CodeDuplicateModuleID {
					t.Errorf("register while reloading: %v, want DUPLICATE_MODULE_ID", err)
				}
				want := 2 * time.Second
				if ends {
					time.Sleep(time.Second)
					e.Release()
					want = time.Second
				}
				wg.Wait()
				if took != want || done.Clean != ends {
					t.Errorf("took %v, clean %v; want %v, %v", took, done.Clean, want, ends)
				}
			})
		})
	}
}

// Calls and reloads at once: every lookup finds a module that is loaded, or none.
func TestReloadStorm(t *testing.T) {
	r := registry.New(quiet())
	var made atomic.Int64
	type live struct {
		*mod
		loaded atomic.Bool
	}
	make1 := func(context.Context) (module.Module, error) {
		l := &live{mod: &mod{desc: version("m", fmt.Sprintf("1.0.%d", made.Add(1)))}}
		l.onLoad = func(context.Context) error { l.loaded.Store(true); return nil }
		l.onUnload = func(context.Context) error { l.loaded.Store(false); return nil }
		return l, nil
	}
	first, _ := make1(t.Context())
	if err := r.RegisterDeclared(t.Context(), first, registry.Declaration{Factory: make1}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var callers, reloaders sync.WaitGroup
	var calls atomic.Int64
	for range 4 {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				e, err := r.Lookup("m", "")
				if err != nil || !e.Acquire() {
					continue
				}
				if !e.Module.(*live).loaded.Load() {
					t.Error("a call holds a module that is not loaded")
				}
				calls.Add(1)
				e.Release()
			}
		})
	}
	for range 2 {
		reloaders.Go(func() {
			for n := 0; n < 200 || calls.Load() == 0; n++ {
				_, err := r.Reload(t.Context(), "m", registry.ReloadOptions{})
				if err != nil && module.CodeOf(err) != module.CodeModuleNotFound { // the other one is at it
					t.Error(err)
				}
			}
		})
	}
	reloaders.Wait()
	close(stop)
	callers.Wait()
	if e, ok := r.Get("m"); !ok || e.InFlight() != 0 || r.Len() != 1 || calls.Load() == 0 {
		t.Errorf("visible %v, %d modules, %d calls", ok, r.Len(), calls.Load())
	}
}

func TestCallbacks(t *testing.T) {
	r := registry.New(quiet())
	for _, event := range []string{"file_changed", "reload", ""} {
		if _, err := r.On(event, func(string, module.Module) {}); module.CodeOf(err) != module.CodeInvalidInput {
			t.Errorf("On(%q) = %v, want GENERAL_INVALID_INPUT", event, err)
		}
	}
	if _, err := r.On(registry.CallbackRegister, nil); module.CodeOf(err) != module.CodeInvalidInput {
		t.Errorf("a nil callback gives %v", err)
	}
	var got []string
	var offs []func()
	for _, event := range []string{registry.CallbackRegister, registry.CallbackUnregister} {
		off, err := r.On(event, func(id string, m module.Module) {
			_, visible := r.Get(id)
			got = append(got, fmt.Sprintf("%s %s %s visible=%v", event, id, m.Descriptor().EffectiveVersion(), visible))
			panic("a callback must not stop the registry")
		})
		if err != nil {
			t.Fatal(err)
		}
		offs = append(offs, off)
	}
	factory := func(context.Context) (module.Module, error) { return &mod{desc: version("m", "2.0.0")}, nil }
	if err := r.RegisterDeclared(t.Context(), named("m"), registry.Declaration{Factory: factory}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reload(t.Context(), "m", registry.ReloadOptions{}); err != nil {
		t.Fatal(err)
	}
	offs[0]()
	r.Unregister(t.Context(), "m")
	offs[1]()
	if err := r.Register(named("m")); err != nil {
		t.Fatal(err)
	}
	r.Unregister(t.Context(), "m")
	want := []string{
		"register m 1.0.0 visible=true", "unregister m 1.0.0 visible=false",
		"register m 2.0.0 visible=true", "unregister m 2.0.0 visible=false",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// A schema is compiled once by its content: a module that comes again, by another
// reload or registration or under another ID, gets what is compiled already.
func TestSchemasAreNotCompiledAgain(t *testing.T) {
	r := registry.New(registry.Options{})
	desc := func(id, v string) module.Descriptor {
		d := version(id, v)
		d.InputSchema = map[string]any{"type": "object", "properties": map[string]any{"n": map[string]any{"type": "integer"}}}
		d.OutputSchema = map[string]any{"type": "object", "required": []any{"n"}}
		return d
	}
	said := []string{}
	if err := r.Register(&staged{desc: desc("a", "1.0.0"), said: &said}); err != nil {
		t.Fatal(err)
	}
	first, _ := r.Get("a")
	same := func(when, id string) {
		t.Helper()
		e, ok := r.Get(id)
		if !ok || e.Input != first.Input || e.Output != first.Output {
			t.Errorf("%s: the schemas of %s were compiled again", when, id)
		}
	}
	for i := range 3 {
		next := &staged{desc: desc("a", fmt.Sprintf("1.0.%d", i+1)), said: &said}
		if _, err := r.Reload(t.Context(), "a", registry.ReloadOptions{Factory: func(context.Context) (module.Module, error) { return next, nil }}); err != nil {
			t.Fatal(err)
		}
		same("reloaded", "a")
	}
	if !r.Unregister(t.Context(), "a") {
		t.Fatal("a was not there")
	}
	for _, id := range []string{"a", "b"} {
		if err := r.Register(&staged{desc: desc(id, "2.0.0"), said: &said}); err != nil {
			t.Fatal(err)
		}
		same("registered", id)
	}
	other := desc("c", "1.0.0")
	other.InputSchema["title"] = "other"
	if err := r.Register(&staged{desc: other, said: &said}); err != nil {
		t.Fatal(err)
	}
	if e, _ := r.Get("c"); e.Input == first.Input {
		t.Error("another schema is taken for the same")
	}
}
