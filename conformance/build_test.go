//go:build conformance

package conformance_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// record is one line of a log.
type record struct {
	level   slog.Level
	message string
	attrs   map[string]slog.Value
}

// journal keeps what was logged.
type journal struct {
	mu      sync.Mutex
	records []record
}

func (j *journal) logger() *slog.Logger { return slog.New(j) }

// Enabled takes every level.
func (j *journal) Enabled(context.Context, slog.Level) bool { return true }

// Handle keeps a record.
func (j *journal) Handle(_ context.Context, r slog.Record) error {
	attrs := make(map[string]slog.Value)
	r.Attrs(func(a slog.Attr) bool {
		attrs[a.Key] = a.Value.Resolve()
		return true
	})
	j.mu.Lock()
	defer j.mu.Unlock()
	j.records = append(j.records, record{r.Level, r.Message, attrs})
	return nil
}

// WithAttrs drops attributes that all records share.
func (j *journal) WithAttrs([]slog.Attr) slog.Handler { return j }

// WithGroup ignores groups.
func (j *journal) WithGroup(string) slog.Handler { return j }

func (j *journal) all() []record {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.records)
}

func (j *journal) named(message string) []record {
	return slices.DeleteFunc(j.all(), func(r record) bool { return r.message != message })
}

func (j *journal) atLeast(level slog.Level) []record {
	return slices.DeleteFunc(j.all(), func(r record) bool { return r.level < level })
}

func (j *journal) text() string {
	var b strings.Builder
	for _, r := range j.all() {
		fmt.Fprintf(&b, "%s %s", r.level, r.message)
		for k, v := range r.attrs {
			fmt.Fprintf(&b, " %s=%v", k, v.Any())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// mod is a module made of closures; a nil Execute returns {"ok": true}.
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

func trivial(id string) *mod { return &mod{desc: module.Descriptor{ID: id}} }

func function(id string, f func(ctx context.Context, in map[string]any) (map[string]any, error)) *mod {
	return &mod{desc: module.Descriptor{ID: id}, execute: f}
}

// executor makes an executor over modules that log nothing.
func (c *kase) executor(opts []executor.Option, modules ...module.Module) *executor.Executor {
	return c.executorWith(executor.Config{}, opts, modules...)
}

func (c *kase) executorWith(cfg executor.Config, opts []executor.Option, modules ...module.Module) *executor.Executor {
	reg := registry.New(registry.Options{Logger: quiet()})
	for _, m := range modules {
		register := reg.Register
		if strings.HasPrefix(m.Descriptor().ID, "system.") {
			register = reg.RegisterInternal
		}
		if err := register(m); err != nil {
			c.Fatalf("register %s: %v", m.Descriptor().ID, err)
		}
	}
	x, err := executor.New(reg, cfg, append([]executor.Option{executor.WithLogger(quiet())}, opts...)...)
	if err != nil {
		c.Fatalf("new executor: %v", err)
	}
	return x
}

// wantCode compares the code of an error; "" wants success.
func (c *kase) wantCode(err error, want string) {
	if got := string(module.CodeOf(err)); got != want {
		c.Errorf("code %q (%v), want %q", got, err, want)
	}
}

// inContext makes a call with a Context that has a caller: the chain of a
// top-level Context is empty, so the caller is called first.
func inContext(ctx context.Context, caller string, identity *module.Identity) context.Context {
	w := module.ContextWire{TraceID: module.NewTraceID(), Identity: identity}
	if caller != "" {
		w.CallChain = []string{caller}
	}
	return module.WithContext(ctx, module.RestoreContext(w))
}
