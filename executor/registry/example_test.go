package registry_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

// counter hands what it knows to its successor.
type counter struct {
	version string
	n       int64
}

func (c *counter) Descriptor() module.Descriptor {
	return module.Descriptor{ID: "demo.counter", Description: "Counts.", Version: c.version}
}

func (c *counter) Execute(context.Context, map[string]any) (map[string]any, error) {
	c.n++
	return map[string]any{"n": c.n}, nil
}

func (c *counter) OnSuspend(context.Context) (map[string]any, error) {
	return map[string]any{"n": c.n}, nil
}

func (c *counter) OnResume(_ context.Context, state map[string]any) error {
	c.n, _ = state["n"].(int64)
	return nil
}

// A reload replaces a module without losing what it knows.
func ExampleRegistry_Reload() {
	ctx := context.Background()
	reg := registry.New(registry.Options{Logger: slog.New(slog.DiscardHandler)})
	err := reg.RegisterDeclared(ctx, &counter{version: "1.0.0", n: 41}, registry.Declaration{
		Factory: func(context.Context) (module.Module, error) { return &counter{version: "1.1.0"}, nil },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	done, err := reg.Reload(ctx, "demo.counter", registry.ReloadOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	e, _ := reg.Get("demo.counter")
	out, _ := e.Module.Execute(ctx, nil)
	fmt.Println(done.PreviousVersion, done.NewVersion, out["n"])
	// Output: 1.0.0 1.1.0 42
}

// Modules are loaded after those they depend on.
func ExampleLoadOrder() {
	plan, err := registry.LoadOrder([]registry.LoadItem{
		{ID: "orders", Dependencies: []module.Dependency{{ModuleID: "stock", Version: "^1.2"}, {ModuleID: "mail", Optional: true}}},
		{ID: "stock", Version: "1.4.0"},
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(plan.Order, plan.Skipped)
	// Output: [stock orders] [[orders mail]]
}
