package system_test

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/executor/system"
	"github.com/apbus/apbus/module"
)

// journal is a log that tests read.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

// bench is an executor with system modules and everything they tell.
type bench struct {
	*executor.Executor
	sys    *system.Modules
	log    *journal
	audit  *system.MemoryAudit
	usage  *middleware.UsageCollector
	errors *middleware.ErrorHistory

	mu     sync.Mutex
	events []module.Event
}

// allGroups with approvals given at once.
func allGroups() []system.Group {
	return append(system.ReadGroups(), system.Control)
}

func newBench(t testing.TB, o system.Options, opts ...executor.Option) *bench {
	t.Helper()
	b := &bench{
		log: &journal{}, audit: system.NewMemoryAudit(0),
		usage: middleware.NewUsageCollector(middleware.UsageConfig{}), errors: middleware.NewErrorHistory(middleware.HistoryConfig{}),
	}
	log := slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	reg := registry.New(registry.Options{Logger: log})
	opts = append([]executor.Option{
		executor.WithLogger(log), executor.WithApproval(approval.AutoApprove{}),
		executor.WithMiddleware(middleware.NewUsage(b.usage), middleware.NewRecordErrors(b.errors)),
	}, opts...)
	x, err := executor.New(reg, executor.Config{}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	b.Executor = x
	o.Logger, o.Usage, o.Errors, o.Audit = log, b.usage, b.errors, b.audit
	o.Emit = func(e module.Event) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.events = append(b.events, e)
	}
	if b.sys, err = system.Register(t.Context(), x, o); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) add(t testing.TB, mods ...module.Module) {
	t.Helper()
	for _, m := range mods {
		if err := b.Registry().Register(m); err != nil {
			t.Fatal(err)
		}
	}
}

func (b *bench) call(t testing.TB, id string, in map[string]any) map[string]any {
	t.Helper()
	return b.callAs(t.Context(), t, id, in)
}

func (b *bench) callAs(ctx context.Context, t testing.TB, id string, in map[string]any) map[string]any {
	t.Helper()
	out, err := b.Call(ctx, id, in)
	if err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	return out
}

// module made of a function.
type mod struct {
	desc module.Descriptor
	run  func(ctx context.Context, in map[string]any) (map[string]any, error)
}

func (m *mod) Descriptor() module.Descriptor { return m.desc }

func (m *mod) Execute(ctx context.Context, in map[string]any) (map[string]any, error) {
	if m.run == nil {
		return map[string]any{}, nil
	}
	return m.run(ctx, in)
}

func named(id string, tags ...string) *mod {
	return &mod{desc: module.Descriptor{ID: id, Description: "Does " + id + ".", Tags: tags}}
}

// as is a context that acts for an identity, called by a module.
func as(ctx context.Context, i *module.Identity, caller string) context.Context {
	c := module.NewContext(module.ContextOptions{Identity: i})
	if caller != "" {
		c = c.Child(caller)
	}
	return module.WithContext(ctx, c)
}

type obj = map[string]any

func logger(j *journal) *slog.Logger { return slog.New(slog.NewTextHandler(j, nil)) }
