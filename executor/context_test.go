package executor_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/module"
)

// A Context without an executor may come from three sources; they are all bound
// alike (core-executor seed, Executor binding to Context).
func TestBinding(t *testing.T) {
	made := module.NewContext(module.ContextOptions{})
	sources := []struct {
		name string
		c    *module.Context
	}{
		{"created here", made},
		{"restored after a hop", module.RestoreContext(module.ContextWire{TraceID: module.NewTraceID(), CallChain: []string{"up"}})},
		{"restored from a store", module.RestoreContext(made.Wire())},
	}
	for _, tt := range sources {
		t.Run(tt.name, func(t *testing.T) {
			var bound, child module.Executor
			probe := fn("probe", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
				c := module.FromContext(ctx)
				bound, child = c.Executor(), c.Child("x").Executor()
				return map[string]any{}, nil
			})
			s := setup{modules: []module.Module{probe}}
			x, y := s.executor(t), s.executor(t)
			ctx := module.WithContext(t.Context(), tt.c)
			for range 2 {
				if _, err := x.Call(ctx, "probe", nil); err != nil {
					t.Fatal(err)
				}
				if bound != module.Executor(x) || child != module.Executor(x) {
					t.Error("the call's Context is not bound to its executor")
				}
			}
			if err := tt.c.BindExecutor(x); err != nil {
				t.Fatal(err)
			}
			if _, err := x.Call(ctx, "probe", nil); err != nil {
				t.Errorf("bound to the same executor: %v", err)
			}
			_, err := y.Call(ctx, "probe", nil)
			wantCode(t, err, module.CodeContextBindingError)
			if r := y.Validate(ctx, "probe", nil); r.Valid || r.Checks[1].Check != "executor_binding" || r.Checks[1].Passed {
				t.Errorf("validation of a foreign Context: %+v", r.Checks)
			}
		})
	}
}

func TestContextOfACall(t *testing.T) {
	ana, bot := module.NewIdentity("ana", "user", nil, nil), module.NewIdentity("bot", "agent", nil, nil)
	type view struct {
		Caller string
		Chain  []string
		Who    string
		Trace  string
		Data   any
	}
	var seen []view
	look := func(ctx context.Context) {
		c := module.FromContext(ctx)
		v := view{Caller: c.CallerID(), Chain: c.CallChain(), Trace: c.TraceID()}
		if c.Identity() != nil {
			v.Who = c.Identity().ID()
		}
		v.Data, _ = c.Data().Get("k")
		seen = append(seen, v)
	}
	x := setup{modules: []module.Module{
		fn("outer", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			look(ctx)
			module.FromContext(ctx).Data().Set("k", "from outer")
			if _, err := module.Call(ctx, "inner", nil); err != nil {
				return nil, err
			}
			return module.Call(ctx, "inner", nil, module.CallIdentity(bot))
		}),
		fn("inner", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			look(ctx)
			return map[string]any{}, nil
		}),
	}}.executor(t)
	trace := module.NewTraceID()
	_, err := x.Call(t.Context(), "outer", nil, module.CallIdentity(ana), module.CallTraceParent(&module.TraceParent{TraceID: trace}))
	if err != nil {
		t.Fatal(err)
	}
	want := []view{
		{"", []string{"outer"}, "ana", trace, nil},
		{"outer", []string{"outer", "inner"}, "ana", trace, "from outer"},
		{"outer", []string{"outer", "inner"}, "bot", trace, "from outer"},
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRootContextsAreApart(t *testing.T) {
	var mu sync.Mutex
	traces := map[string]bool{}
	x := setup{modules: []module.Module{fn("m", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
		c := module.FromContext(ctx)
		if c.Identity() != nil || c.CallerID() != "" {
			t.Error("a root call was given a caller or an identity")
		}
		mu.Lock()
		defer mu.Unlock()
		traces[c.TraceID()] = true
		return map[string]any{}, nil
	})}}.executor(t)
	for range 3 {
		if _, err := x.Call(t.Context(), "m", nil); err != nil {
			t.Fatal(err)
		}
	}
	if len(traces) != 3 {
		t.Errorf("%d traces for 3 calls", len(traces))
	}
}

func TestTokens(t *testing.T) {
	app := cancel.NewToken()
	var outer, inner *cancel.Token
	x := setup{modules: []module.Module{
		fn("outer", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			outer = module.FromContext(ctx).Token()
			return module.Call(ctx, "inner", nil)
		}),
		fn("inner", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			inner = module.FromContext(ctx).Token()
			inner.Cancel(nil) // down only
			<-ctx.Done()
			return nil, ctx.Err()
		}),
	}}.executor(t)
	ctx := module.WithContext(t.Context(), module.NewContext(module.ContextOptions{CancelToken: app}))
	_, err := x.Call(ctx, "outer", nil)
	wantCode(t, err, module.CodeExecutionCancelled)
	if outer == nil || inner == nil || outer == app || inner == outer {
		t.Fatal("the calls do not each have a token of their own")
	}
	if !inner.IsCancelled() || outer.IsCancelled() || app.IsCancelled() {
		t.Errorf("cancelled: inner %v, outer %v, application %v; want true, false, false",
			inner.IsCancelled(), outer.IsCancelled(), app.IsCancelled())
	}
}

func TestSharedContextIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		x := setup{log: j, modules: []module.Module{fn("m", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			time.Sleep(time.Second)
			return map[string]any{}, nil
		})}}.executor(t)
		ctx := module.WithContext(t.Context(), module.NewContext(module.ContextOptions{}))
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { _, _ = x.Call(ctx, "m", nil) })
		}
		wg.Wait()
		if got := j.count("one context is used by two calls at once"); got != 1 {
			t.Errorf("%d warnings for a shared Context, want 1", got)
		}
		if _, err := x.Call(ctx, "m", nil); err != nil || j.count("one context is used") != 1 {
			t.Error("one call after the other was taken for sharing")
		}
	})
}

func TestNestedCallOutlivesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		x := setup{modules: []module.Module{
			fn("outer", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
				go func() {
					_, err := module.Call(ctx, "slow", nil)
					ended <- err
				}()
				time.Sleep(time.Millisecond)
				return map[string]any{}, nil
			}),
			fn("slow", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}),
		}}.executor(t)
		if _, err := x.Call(t.Context(), "outer", nil); err != nil {
			t.Fatal(err)
		}
		e := wantCode(t, <-ended, module.CodeExecutionCancelled)
		if e.Details["reason"] != string(cancel.Parent) {
			t.Errorf("reason = %v, want parent", e.Details["reason"])
		}
	})
}

func TestGlobalDeadlineIsInherited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var outer, inner time.Time
		x := setup{cfg: executor.Config{GlobalTimeout: new(10 * time.Second), DefaultTimeout: new(time.Duration(0))}, modules: []module.Module{
			fn("outer", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
				outer = module.FromContext(ctx).GlobalDeadline()
				if at, ok := ctx.Deadline(); !ok || !at.Equal(outer) {
					t.Errorf("ctx.Deadline = %v %v, want the global deadline %v", at, ok, outer)
				}
				time.Sleep(3 * time.Second)
				return module.Call(ctx, "inner", nil)
			}),
			fn("inner", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
				inner = module.FromContext(ctx).GlobalDeadline()
				return map[string]any{}, nil
			}),
		}}.executor(t)
		began := time.Now()
		parent := module.NewContext(module.ContextOptions{})
		if _, err := x.Call(module.WithContext(t.Context(), parent), "outer", nil); err != nil {
			t.Fatal(err)
		}
		if !outer.Equal(began.Add(10*time.Second)) || !inner.Equal(outer) {
			t.Errorf("deadlines %v and %v, want %v", outer, inner, began.Add(10*time.Second))
		}
		if !parent.GlobalDeadline().IsZero() {
			t.Error("the caller's Context was written")
		}
		own := time.Now().Add(time.Hour)
		ctx := module.WithContext(t.Context(), module.NewContext(module.ContextOptions{GlobalDeadline: own}))
		if _, err := x.Call(ctx, "inner", nil); err != nil || !inner.Equal(own) {
			t.Errorf("a deadline the caller gave became %v (%v), want it kept", inner, err)
		}
	})
}
