//go:build !race

package executor_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

// What the pipeline itself allocates for one call, beside the module and the
// validations: 12 are allowed, what it takes is pinned. The race detector adds allocations of its own.
func TestAllocations(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	reg := registry.New(registry.Options{Logger: quiet})
	in := map[string]any{"a": 1.5, "b": 2.5}
	var modules float64
	for _, m := range []module.Module{add(), fn("raw", echo), addAs("inline", module.WithInline())} {
		if err := reg.Register(m); err != nil {
			t.Fatal(err)
		}
	}
	entry, _ := reg.Get("math.add")
	ctx := context.Background()
	modules = testing.AllocsPerRun(200, func() { _, _ = entry.Module.Execute(ctx, in) })
	unlimited := executor.Config{DefaultTimeout: new(time.Duration(0)), GlobalTimeout: new(time.Duration(0))}
	tests := []struct {
		name string
		cfg  executor.Config
		opts []executor.Option
		id   string
		max  float64
	}{
		{"standard", executor.Config{}, nil, "math.add", modules + 11},
		{"standard, map module", executor.Config{}, nil, "raw", 11},
		{"standard, inline", executor.Config{}, nil, "inline", modules + 5},
		{"minimal", executor.Config{}, []executor.Option{executor.WithStrategy(executor.Minimal())}, "raw", 11},
		{"without limits", unlimited, nil, "raw", 5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x, err := executor.New(reg, tt.cfg, append([]executor.Option{executor.WithLogger(quiet)}, tt.opts...)...)
			if err != nil {
				t.Fatal(err)
			}
			got := testing.AllocsPerRun(200, func() {
				if _, err := x.Call(ctx, tt.id, in); err != nil {
					t.Error(err)
				}
			})
			if got > tt.max {
				t.Errorf("%v allocations, want at most %v", got, tt.max)
			}
		})
	}
}
