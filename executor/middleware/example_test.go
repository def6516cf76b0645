package middleware_test

import (
	"context"
	"fmt"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// A middleware is any type with a name, a priority and at least one hook; small
// ones are made of functions.
func ExampleList_Use() {
	list := middleware.NewList(nil)
	tenant := middleware.UseBefore("tenant", func(_ context.Context, call *middleware.Call) (map[string]any, error) {
		return map[string]any{"sku": call.Inputs["sku"], "tenant": "acme"}, nil
	})
	tenant.Enriches = true
	if err := list.Use(tenant); err != nil {
		fmt.Println(err)
		return
	}
	if err := list.Use(middleware.NewDeadline(nil)); err != nil {
		fmt.Println(err)
		return
	}
	chain := list.Chain()
	call := &middleware.Call{
		ModuleID: "inventory.stock", Inputs: map[string]any{"sku": "A1"},
		Context: module.NewContext(module.ContextOptions{}),
	}
	inputs, entered, err := chain.Before(context.Background(), call)
	fmt.Println(chain.Names(), inputs, entered, err)
	// Output: [deadline tenant] map[sku:A1 tenant:acme] 2 <nil>
}
