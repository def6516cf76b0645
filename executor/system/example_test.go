package system_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/executor/system"
	"github.com/apbus/apbus/module"
)

// A process that tells of itself and can be controlled. Here every approval is
// given at once; a real program asks a person.
func Example() {
	ctx, quiet := context.Background(), slog.New(slog.DiscardHandler)
	usage := middleware.NewUsageCollector(middleware.UsageConfig{})
	reg := registry.New(registry.Options{Logger: quiet})
	x, err := executor.New(reg, executor.Config{}, executor.WithLogger(quiet),
		executor.WithMiddleware(middleware.NewUsage(usage)), executor.WithApproval(approval.AutoApprove{}))
	if err != nil {
		fmt.Println(err)
		return
	}
	greet := module.New("demo.greet", "Say hello.", func(context.Context, struct{}) (map[string]any, error) {
		return map[string]any{"text": "hello"}, nil
	})
	if err := reg.Register(greet); err != nil {
		fmt.Println(err)
		return
	}
	sys, err := system.Register(ctx, x, system.Options{
		Groups: append(system.ReadGroups(), system.Control), Usage: usage, Logger: quiet,
		Emit: func(e module.Event) { fmt.Println("event:", e.Type, e.Data["module_id"], e.Data["enabled"]) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	_, _ = x.Call(ctx, "demo.greet", nil)
	out, err := x.Call(ctx, "system.usage.summary", map[string]any{"period": "1h"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("calls:", out["total_calls"])

	if err := sys.Disable(ctx, "demo.greet", "maintenance"); err != nil {
		fmt.Println(err)
		return
	}
	_, err = x.Call(ctx, "demo.greet", nil)
	fmt.Println(module.CodeOf(err))
	// Output:
	// calls: 1
	// event: apcore.module.toggled demo.greet false
	// MODULE_DISABLED
}
