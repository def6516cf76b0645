package executor_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

// mod is a module made of closures; a nil one is absent. Its descriptor is as
// given, with an ID.
type mod struct {
	desc    module.Descriptor
	execute func(ctx context.Context, in map[string]any) (map[string]any, error)
}

func (m *mod) Descriptor() module.Descriptor { return m.desc }

func (m *mod) Execute(ctx context.Context, in map[string]any) (map[string]any, error) {
	if m.execute == nil {
		return map[string]any{"ok": true}, nil
	}
	return m.execute(ctx, in)
}

func fn(id string, f func(ctx context.Context, in map[string]any) (map[string]any, error)) *mod {
	return &mod{desc: module.Descriptor{ID: id}, execute: f}
}

// hooked is a module with preflight and preview.
type hooked struct {
	mod
	preview   func(ctx context.Context, in map[string]any) (*module.PreviewResult, error)
	preflight func(ctx context.Context, in map[string]any) ([]string, error)
}

func (h *hooked) Preview(ctx context.Context, in map[string]any) (*module.PreviewResult, error) {
	return h.preview(ctx, in)
}

func (h *hooked) Preflight(ctx context.Context, in map[string]any) ([]string, error) {
	return h.preflight(ctx, in)
}

// journal is a log that tests read.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

func (j *journal) count(text string) int { return strings.Count(j.String(), text) }

func (j *journal) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type setup struct {
	cfg     executor.Config
	opts    []executor.Option
	modules []module.Module
	log     *journal
}

func (s setup) build(t testing.TB) (*executor.Executor, *registry.Registry) {
	t.Helper()
	j := s.log
	if j == nil {
		j = &journal{}
	}
	reg := registry.New(registry.Options{Logger: j.logger()})
	for _, m := range s.modules {
		if err := reg.Register(m); err != nil {
			t.Fatalf("register: %v", err)
		}
	}
	x, err := executor.New(reg, s.cfg, append([]executor.Option{executor.WithLogger(j.logger())}, s.opts...)...)
	if err != nil {
		t.Fatalf("new executor: %v", err)
	}
	return x, reg
}

func (s setup) executor(t testing.TB) *executor.Executor {
	t.Helper()
	x, _ := s.build(t)
	return x
}

func wantCode(t testing.TB, err error, want module.Code) *module.Error {
	t.Helper()
	if got := module.CodeOf(err); got != want {
		t.Fatalf("code = %q, want %q (%v)", got, want, err)
	}
	return module.AsError(err)
}

func wantStep(t testing.TB, err error, want string) {
	t.Helper()
	var step *executor.StepError
	if !errors.As(err, &step) || step.Step != want {
		t.Fatalf("step of %v = %+v, want %s", err, step, want)
	}
}

// remote is a [executor.Remote] made of closures.
type remote struct {
	invoke func(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error)
	check  func(ctx context.Context, req *contextwire.Request) (*module.PreflightResult, error)
}

func (r *remote) Invoke(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
	return r.invoke(ctx, req)
}

func (r *remote) Check(ctx context.Context, req *contextwire.Request) (*module.PreflightResult, error) {
	return r.check(ctx, req)
}

func object(props map[string]any, required ...any) map[string]any {
	return map[string]any{"type": "object", "properties": props, "required": required}
}
