package middleware

import (
	"context"

	"github.com/apbus/apbus/module"
)

// Funcs makes a middleware of functions; a nil one is absent. Use it by
// pointer. Its priority is Rank, [DefaultPriority] when that is nil.
type Funcs struct {
	Label string
	Rank  *int
	// Enriches declares that OnBefore changes inputs; see [Enricher].
	Enriches  bool
	OnBefore  func(ctx context.Context, call *Call) (map[string]any, error)
	OnAfter   func(ctx context.Context, call *Call, output map[string]any) (map[string]any, error)
	OnFailure func(ctx context.Context, call *Call, err *module.Error) (Recovery, error)
}

var (
	_ BeforeHook = (*Funcs)(nil)
	_ AfterHook  = (*Funcs)(nil)
	_ ErrorHook  = (*Funcs)(nil)
	_ Enricher   = (*Funcs)(nil)
)

// UseBefore makes a middleware of one before function, priority 100 (protocol §11).
func UseBefore(name string, fn func(ctx context.Context, call *Call) (map[string]any, error)) *Funcs {
	return &Funcs{Label: name, OnBefore: fn}
}

// UseAfter makes a middleware of one after function, priority 100.
func UseAfter(name string, fn func(ctx context.Context, call *Call, output map[string]any) (map[string]any, error)) *Funcs {
	return &Funcs{Label: name, OnAfter: fn}
}

// Name returns the label.
func (f *Funcs) Name() string { return f.Label }

// Priority returns the rank.
func (f *Funcs) Priority() int {
	if f.Rank == nil {
		return DefaultPriority
	}
	return *f.Rank
}

// EnrichesInputs returns Enriches.
func (f *Funcs) EnrichesInputs() bool { return f.Enriches }

// Before runs OnBefore.
func (f *Funcs) Before(ctx context.Context, call *Call) (map[string]any, error) {
	if f.OnBefore == nil {
		return nil, nil
	}
	return f.OnBefore(ctx, call)
}

// After runs OnAfter.
func (f *Funcs) After(ctx context.Context, call *Call, output map[string]any) (map[string]any, error) {
	if f.OnAfter == nil {
		return nil, nil
	}
	return f.OnAfter(ctx, call, output)
}

// OnError runs OnFailure.
func (f *Funcs) OnError(ctx context.Context, call *Call, err *module.Error) (Recovery, error) {
	if f.OnFailure == nil {
		return Recovery{}, nil
	}
	return f.OnFailure(ctx, call, err)
}
