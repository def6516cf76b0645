package middleware_test

import (
	"context"
	"testing"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
	"github.com/google/go-cmp/cmp"
)

func TestWatch(t *testing.T) {
	refused := module.Errorf("NO", "no")
	rank := func(n int) *int { return &n }
	c := chain(t,
		&middleware.Funcs{Label: "outer", Rank: rank(9),
			OnBefore: func(context.Context, *middleware.Call) (map[string]any, error) { return obj{"n": int64(2)}, nil },
			OnAfter:  func(context.Context, *middleware.Call, map[string]any) (map[string]any, error) { return nil, nil },
			OnFailure: func(context.Context, *middleware.Call, *module.Error) (middleware.Recovery, error) {
				return middleware.Recovery{Retry: obj{}}, nil
			}},
		&middleware.Funcs{Label: "inner", Rank: rank(1),
			OnBefore:  func(context.Context, *middleware.Call) (map[string]any, error) { return nil, refused },
			OnAfter:   func(context.Context, *middleware.Call, map[string]any) (map[string]any, error) { return obj{}, nil },
			OnFailure: func(context.Context, *middleware.Call, *module.Error) (middleware.Recovery, error) { panic("x") }},
	)
	type seen struct {
		Who, Hook, Recovery, Code string
		Replaced                  bool
	}
	var got []seen
	call := newCall(nil)
	_, _, _ = c.Before(t.Context(), newCall(nil)) // nobody watches this one
	call.Watch(func(e middleware.HookEvent) {
		s := seen{e.Middleware, e.Hook, e.Recovery, "", e.Replaced}
		if e.Err != nil {
			s.Code = string(module.CodeOf(e.Err))
		}
		got = append(got, s)
	})
	_, entered, err := c.Before(t.Context(), call)
	if err == nil {
		t.Fatal("the inner hook was not run")
	}
	c.OnError(t.Context(), call, entered, refused)
	if _, err := c.After(t.Context(), call, obj{}); err != nil {
		t.Fatal(err)
	}
	want := []seen{
		{Who: "outer", Hook: "before", Replaced: true},
		{Who: "inner", Hook: "before", Code: "NO"},
		{Who: "inner", Hook: "on_error", Code: "GENERAL_INTERNAL_ERROR"},
		{Who: "outer", Hook: "on_error", Recovery: "retry"},
		{Who: "inner", Hook: "after", Replaced: true},
		{Who: "outer", Hook: "after"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
