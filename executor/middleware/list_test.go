package middleware_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
	"github.com/google/go-cmp/cmp"
)

type bare struct{ name string }

func (b bare) Name() string { return b.name }
func (bare) Priority() int  { return 100 }

// valued cannot be compared.
type valued struct {
	bare
	_ []int
}

func (valued) Before(context.Context, *middleware.Call) (map[string]any, error) { return nil, nil }

func TestUseRefuses(t *testing.T) {
	ranked := func(n int) *middleware.Funcs { return &middleware.Funcs{Label: "x", Rank: &n} }
	tests := []struct {
		name string
		m    middleware.Middleware
		want string // "" when accepted
	}{
		{"lowest", ranked(0), ""},
		{"highest", ranked(1000), ""},
		{"default", &middleware.Funcs{Label: "x"}, ""},
		{"below", ranked(-1), "priority"},
		{"above", ranked(1001), "priority"},
		{"nil", nil, "nil"},
		{"nil pointer", (*middleware.Funcs)(nil), "nil pointer"},
		{"no name", &middleware.Funcs{}, "no name"},
		{"no hook", &bare{"x"}, "no hook"},
		{"not comparable", valued{bare: bare{"x"}}, "comparable"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := middleware.NewList(nil).Use(tt.m)
			if _, chainErr := middleware.NewChain(nil, tt.m); (chainErr == nil) != (err == nil) {
				t.Errorf("Use says %v, NewChain %v", err, chainErr)
			}
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if module.CodeOf(err) != module.CodeInvalidInput || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s about %s", err, module.CodeInvalidInput, tt.want)
			}
		})
	}
}

type keyed struct{ *middleware.Funcs }

func (keyed) IdentityKey() string { return "the same" }

func TestDuplicates(t *testing.T) {
	named := func(name string) *middleware.Funcs { return &middleware.Funcs{Label: name} }
	tests := []struct {
		name   string
		first  middleware.Middleware
		second middleware.Middleware
		opts   []middleware.UseOption
		warns  bool
	}{
		{"other names", named("a"), named("b"), nil, false},
		{"same name and type", named("a"), named("a"), nil, true},
		{"allowed", named("a"), named("a"), []middleware.UseOption{middleware.AllowDuplicate()}, false},
		{"same key", keyed{named("a")}, keyed{named("b")}, nil, true},
		{"other type", named("logging"), middleware.NewLogging(middleware.LoggingOptions{}), nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var log bytes.Buffer
			l := middleware.NewList(slog.New(slog.NewTextHandler(&log, nil)))
			if err := l.Use(tt.first); err != nil {
				t.Fatal(err)
			}
			if err := l.Use(tt.second, tt.opts...); err != nil {
				t.Fatal(err)
			}
			if l.Chain().Len() != 2 {
				t.Errorf("%d registered, want 2", l.Chain().Len())
			}
			if got := strings.Contains(log.String(), "registered twice"); got != tt.warns {
				t.Errorf("warned %v, want %v: %s", got, tt.warns, log.String())
			}
			if tt.warns && strings.Count(log.String(), "list_test.go:") != 2 {
				t.Errorf("the warning does not name both places: %s", log.String())
			}
		})
	}
	t.Run("removal clears it", func(t *testing.T) {
		var log bytes.Buffer
		l := middleware.NewList(slog.New(slog.NewTextHandler(&log, nil)))
		m := named("a")
		for range 2 {
			if err := l.Use(m); err != nil {
				t.Fatal(err)
			}
			if !l.Remove(m) {
				t.Error("not removed")
			}
		}
		if log.Len() != 0 {
			t.Errorf("warned: %s", log.String())
		}
	})
}

func TestRemove(t *testing.T) {
	a, b := &middleware.Funcs{Label: "same"}, &middleware.Funcs{Label: "same"}
	l := middleware.NewList(slog.New(slog.DiscardHandler))
	for _, m := range []middleware.Middleware{a, b, a} {
		if err := l.Use(m); err != nil {
			t.Fatal(err)
		}
	}
	if !l.Remove(b) || l.Remove(b) {
		t.Error("removal is not by instance")
	}
	first, second, third := l.Remove(a), l.Remove(a), l.Remove(a)
	if !first || !second || third || l.Chain().Len() != 0 {
		t.Error("one removal took more or less than one registration")
	}
	if l.Remove(nil) || l.Remove(valued{}) {
		t.Error("removed what was never there")
	}
}

// A call keeps the chain it started on.
func TestSnapshot(t *testing.T) {
	var j journal
	l := middleware.NewList(slog.New(slog.DiscardHandler))
	if err := l.Use(noting(&j, "a", 1)); err != nil {
		t.Fatal(err)
	}
	running := l.Chain()
	if err := l.Use(noting(&j, "b", 2)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a"}, running.Names()); diff != "" {
		t.Errorf("running chain (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"b", "a"}, l.Chain().Names()); diff != "" {
		t.Errorf("new chain (-want +got):\n%s", diff)
	}
}

func TestListIsConcurrencySafe(t *testing.T) {
	var j journal
	l := middleware.NewList(slog.New(slog.DiscardHandler))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			m := noting(&j, "m", 5)
			for range 50 {
				if err := l.Use(m); err != nil {
					t.Error(err)
				}
				if _, _, err := l.Chain().Before(t.Context(), newCall(nil)); err != nil {
					t.Error(err)
				}
				if !l.Remove(m) {
					t.Error("not removed")
				}
			}
		})
	}
	wg.Wait()
	if n := l.Chain().Len(); n != 0 {
		t.Errorf("%d left", n)
	}
}
