package middleware_test

import (
	"context"
	"fmt"
	"time"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// Collectors are made once, fed by their middleware, and asked by whoever shows them.
func ExampleUsageCollector() {
	usage := middleware.NewUsageCollector(middleware.UsageConfig{})
	list := middleware.NewList(nil)
	if err := list.Use(middleware.NewUsage(usage)); err != nil {
		fmt.Println(err)
		return
	}
	usage.Record("shop.order", "web.cart", 20*time.Millisecond, false) // the middleware does this
	m := usage.Module("shop.order", 24*time.Hour)
	fmt.Println(m.Calls, m.AvgLatency, m.Trend, m.Callers[0].CallerID)
	// Output: 1 20 new web.cart
}

func ExampleErrorHistory() {
	history := middleware.NewErrorHistory(middleware.HistoryConfig{})
	history.Record("shop.order", module.Errorf("ORDER_EMPTY", "order 10001 is empty"))
	history.Record("shop.order", module.Errorf("ORDER_EMPTY", "order 10002 is empty"))
	for _, e := range history.Get("shop.order", 10) {
		fmt.Println(e.Code, e.Count, e.Message)
	}
	// Output: ORDER_EMPTY 2 order 10001 is empty
}

// A circuit breaker tells who wants to know through a function, such as the Emit of
// an emitter of package events.
func ExampleCircuitBreaker() {
	breaker, err := middleware.NewCircuitBreaker(middleware.BreakerConfig{
		MinSamples: 1, RecoveryWindow: time.Minute,
		Emit: func(e module.Event) { fmt.Println(e.Type, e.ModuleID) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	call := &middleware.Call{ModuleID: "pay.charge", Context: module.NewContext(module.ContextOptions{})}
	_, err = breaker.Before(context.Background(), call)
	fmt.Println(err)
	_, _ = breaker.OnError(context.Background(), call, module.Errorf(module.CodeModuleExecuteError, "no"))
	_, err = breaker.Before(context.Background(), call)
	fmt.Println(module.CodeOf(err), breaker.State("pay.charge", ""))
	// Output:
	// <nil>
	// apcore.circuit.opened pay.charge
	// CIRCUIT_BREAKER_OPEN OPEN
}

// NewRetry is registered like any other; a call is tried again only when its error
// is retryable and its module idempotent.
func ExampleNewRetry() {
	retry, err := middleware.NewRetry(middleware.RetryConfig{MaxRetries: 2, BaseDelay: time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	call := &middleware.Call{
		ModuleID: "stock.count", Inputs: map[string]any{"sku": "A1"}, Context: module.NewContext(module.ContextOptions{}),
		Descriptor: &module.Descriptor{ID: "stock.count", Annotations: module.Annotations{Idempotent: true}},
	}
	for range 3 {
		r, err := retry.OnError(context.Background(), call, module.Errorf(module.CodeModuleTimeout, "too slow"))
		fmt.Println(r.Retry, err)
	}
	// Output:
	// map[sku:A1] <nil>
	// map[sku:A1] <nil>
	// map[] <nil>
}

func ExampleTracing() {
	// provider := sdktrace.NewTracerProvider(…); without one nothing is traced.
	share := 0.1
	tracing, err := middleware.NewTracing(middleware.TracingOptions{Strategy: middleware.TraceErrorFirst, SamplingRate: &share})
	if err != nil {
		fmt.Println(err)
		return
	}
	list := middleware.NewList(nil)
	fmt.Println(list.Use(tracing))
	fmt.Println(list.Use(tracing))
	// Output:
	// <nil>
	// GENERAL_INVALID_INPUT: there is a middleware tracing already, and of its type one is enough
}
