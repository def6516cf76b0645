package executor_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

type addIn struct {
	A float64 `json:"a"`
	B float64 `json:"b"`
}

type addOut struct {
	Sum float64 `json:"sum"`
}

func add(opts ...module.Option) *module.Func { return addAs("math.add", opts...) }

func addAs(id string, opts ...module.Option) *module.Func {
	return module.New(id, "Add two numbers",
		func(_ context.Context, in addIn) (addOut, error) { return addOut{in.A + in.B}, nil },
		append([]module.Option{module.WithAnnotations(module.Annotations{Readonly: true, Idempotent: true})}, opts...)...)
}

func benchExecutor(b *testing.B, cfg executor.Config, opts ...executor.Option) (*executor.Executor, *registry.Entry) {
	return benchModule(b, add(), cfg, opts...)
}

func benchModule(b *testing.B, m module.Module, cfg executor.Config, opts ...executor.Option) (*executor.Executor, *registry.Entry) {
	b.Helper()
	reg := registry.New(registry.Options{})
	if err := reg.Register(m); err != nil {
		b.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	x, err := executor.New(reg, cfg, append([]executor.Option{executor.WithLogger(quiet)}, opts...)...)
	if err != nil {
		b.Fatal(err)
	}
	e, _ := reg.Get("math.add")
	return x, e
}

// yardstick is what one validation by the schema library called directly takes here,
// so that figures of different machines can be compared.
func yardstick(b *testing.B, doc, value map[string]any) time.Duration {
	b.Helper()
	c := jsonschema.NewCompiler()
	if err := c.AddResource("mem:///doc", doc); err != nil {
		b.Fatal(err)
	}
	direct := c.MustCompile("mem:///doc")
	const rounds, most = 5, 20_000
	best := time.Hour
	for range rounds {
		began := time.Now()
		for range most {
			if err := direct.Validate(value); err != nil {
				b.Fatal(err)
			}
		}
		best = min(best, time.Since(began)/most)
	}
	return best
}

// BenchmarkCall compares a governed call with what it cannot do without: running
// the module and validating its inputs and output. The metric "validations" is how
// many validations by the schema library take as long as one call: the aims of 2.5 µs
// for the standard and 0.4 µs for the minimal strategy were set where one takes
// 0.58 µs, which makes them 4.3 and 0.7.
func BenchmarkCall(b *testing.B) {
	in := map[string]any{"a": 1.5, "b": 2.5}
	number := map[string]any{"type": "number"}
	unit := yardstick(b, map[string]any{
		"type": "object", "properties": map[string]any{"a": number, "b": number}, "required": []any{"a", "b"},
	}, in)
	call := func(x *executor.Executor) func(*testing.B) {
		return func(b *testing.B) {
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := x.Call(ctx, "math.add", in); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(unit), "validations")
		}
	}
	unlimited := executor.Config{DefaultTimeout: new(time.Duration(0)), GlobalTimeout: new(time.Duration(0))}
	standard, entry := benchExecutor(b, executor.Config{})
	b.Run("module", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := entry.Module.Execute(context.Background(), in); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("validations", func(b *testing.B) {
		out := map[string]any{"sum": 4.0}
		b.ReportAllocs()
		for b.Loop() {
			if entry.Input.Validate(in) != nil || entry.Output.Validate(out) != nil {
				b.Fatal("invalid")
			}
		}
	})
	b.Run("standard", call(standard))
	inline, _ := benchModule(b, add(module.WithInline()), executor.Config{})
	b.Run("standard inline", call(inline))
	policy, err := acl.New([]acl.Rule{{Callers: []string{"*"}, Targets: []string{"math.*"}, Effect: acl.Allow}}, acl.Options{})
	if err != nil {
		b.Fatal(err)
	}
	x, _ := benchExecutor(b, executor.Config{}, executor.WithACL(policy))
	b.Run("standard+acl", call(x))
	x, _ = benchExecutor(b, unlimited)
	b.Run("standard unlimited", call(x))
	x, _ = benchExecutor(b, executor.Config{}, executor.WithStrategy(executor.Minimal()))
	b.Run("minimal", call(x))
	x, _ = benchModule(b, add(module.WithInline()), executor.Config{}, executor.WithStrategy(executor.Minimal()))
	b.Run("minimal inline", call(x))
	x, _ = benchExecutor(b, unlimited, executor.WithStrategy(executor.Minimal()))
	b.Run("minimal unlimited", call(x))
}

// BenchmarkStream is the cost of one chunk, each of which waits for its reader.
func BenchmarkStream(b *testing.B) {
	reg := registry.New(registry.Options{})
	chunk := module.Chunk{"n": int64(1)}
	if err := reg.Register(streams("m", func(_ context.Context, _ map[string]any, yield func(module.Chunk, error) bool) {
		for yield(chunk, nil) {
		}
	})); err != nil {
		b.Fatal(err)
	}
	x, err := executor.New(reg, executor.Config{}, executor.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	left := b.N
	for _, err := range x.Stream(context.Background(), "m", nil) {
		if err != nil {
			b.Fatal(err)
		}
		if left--; left <= 0 {
			break
		}
	}
}

func BenchmarkCallParallel(b *testing.B) {
	x, _ := benchExecutor(b, executor.Config{})
	in := map[string]any{"a": 1.5, "b": 2.5}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := x.Call(context.Background(), "math.add", in); err != nil {
				b.Fatal(err)
			}
		}
	})
}
