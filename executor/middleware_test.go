package executor_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// recorder notes its hooks in a shared list.
func recorder(name string, priority int, notes *[]string) *middleware.Funcs {
	return &middleware.Funcs{
		Label: name, Rank: &priority,
		OnBefore: func(context.Context, *middleware.Call) (map[string]any, error) {
			*notes = append(*notes, "before "+name)
			return nil, nil
		},
		OnAfter: func(context.Context, *middleware.Call, map[string]any) (map[string]any, error) {
			*notes = append(*notes, "after "+name)
			return nil, nil
		},
		OnFailure: func(context.Context, *middleware.Call, *module.Error) (middleware.Recovery, error) {
			*notes = append(*notes, "error "+name)
			return middleware.Recovery{}, nil
		},
	}
}

func TestMiddlewareReplaces(t *testing.T) {
	var inModule map[string]any
	m := &mod{desc: module.Descriptor{ID: "m", InputSchema: object(map[string]any{"n": map[string]any{"type": "integer"}}, "n")},
		execute: func(_ context.Context, in map[string]any) (map[string]any, error) {
			inModule = in
			return map[string]any{"from": "module"}, nil
		}}
	swap := &middleware.Funcs{
		Label: "swap",
		OnBefore: func(context.Context, *middleware.Call) (map[string]any, error) {
			return map[string]any{"n": 5}, nil // an int, to be normalised
		},
		OnAfter: func(_ context.Context, _ *middleware.Call, out map[string]any) (map[string]any, error) {
			return map[string]any{"was": out["from"]}, nil
		},
	}
	x := setup{modules: []module.Module{m}, opts: []executor.Option{executor.WithMiddleware(swap)}}.executor(t)
	out, err := x.Call(t.Context(), "m", map[string]any{"wrong": true})
	if err != nil {
		t.Fatal(err)
	}
	if inModule["n"] != int64(5) || out["was"] != "module" || len(out) != 1 {
		t.Errorf("inputs %v, output %v", inModule, out)
	}
}

func TestOnErrorReach(t *testing.T) {
	boom := errors.New("boom")
	fails := func(context.Context, map[string]any) (map[string]any, error) { return nil, boom }
	tests := []struct {
		name string
		m    *mod
		fail string // hook of middleware b that fails
		want []string
		code module.Code
	}{
		{"module fails", fn("m", fails), "", []string{"before a", "before b", "error b", "error a"}, module.CodeModuleExecuteError},
		{"validation fails", &mod{desc: module.Descriptor{ID: "m", InputSchema: object(nil, "n")}}, "",
			[]string{"before a", "before b", "error b", "error a"}, module.CodeSchemaValidation},
		{"before fails", fn("m", echo), "before", []string{"before a", "error b", "error a"}, "MINE"},
		{"after fails", fn("m", echo), "after", []string{"before a", "before b", "after c", "error c", "error b", "error a"}, "MINE"},
		{"a denial enters nobody", &mod{desc: module.Descriptor{ID: "m", Timeout: new(-sec)}}, "", nil, module.CodeInvalidInput},
		{"cancellation passes by", fn("m", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			module.FromContext(ctx).Token().Cancel(nil)
			return nil, module.FromContext(ctx).Token().Check()
		}), "", []string{"before a", "before b"}, module.CodeExecutionCancelled},
		{"a cancelled nested call passes by too", fn("m", func(context.Context, map[string]any) (map[string]any, error) {
			return nil, module.Errorf(module.CodeExecutionCancelled, "below")
		}), "", []string{"before a", "before b"}, module.CodeExecutionCancelled},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var notes []string
			a, b, c := recorder("a", 900, &notes), recorder("b", 500, &notes), recorder("c", 100, &notes)
			list := []middleware.Middleware{b, a}
			switch tt.fail {
			case "before":
				b.OnBefore = func(context.Context, *middleware.Call) (map[string]any, error) {
					return nil, module.Errorf("MINE", "no")
				}
				list = append(list, c)
			case "after":
				b.OnAfter = func(context.Context, *middleware.Call, map[string]any) (map[string]any, error) {
					return nil, module.Errorf("MINE", "no")
				}
				c.OnBefore = nil
				list = append(list, c)
			}
			x := setup{modules: []module.Module{tt.m}, opts: []executor.Option{executor.WithMiddleware(list...)}}.executor(t)
			_, err := x.Call(t.Context(), "m", nil)
			wantCode(t, err, tt.code) // the original, never MIDDLEWARE_CHAIN_ERROR
			if !slices.Equal(notes, tt.want) {
				t.Errorf("hooks %v, want %v", notes, tt.want)
			}
		})
	}
}

func TestOnErrorRecovers(t *testing.T) {
	var got *module.Error
	m := fn("m", func(context.Context, map[string]any) (map[string]any, error) { return nil, errors.New("boom") })
	rescue := &middleware.Funcs{Label: "rescue", OnFailure: func(_ context.Context, _ *middleware.Call, err *module.Error) (middleware.Recovery, error) {
		got = err
		return middleware.Recovery{Output: map[string]any{"rescued": 1}}, nil
	}}
	x := setup{modules: []module.Module{m}, opts: []executor.Option{executor.WithMiddleware(rescue)}}.executor(t)
	out, err := x.Call(t.Context(), "m", nil)
	if err != nil || out["rescued"] != int64(1) {
		t.Errorf("= %v, %v", out, err)
	}
	if got == nil || got.Code != module.CodeModuleExecuteError || got.TraceID == "" {
		t.Errorf("on_error saw %+v, want a coded error with its trace", got)
	}
}

func TestOnErrorAfterTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alive := false
		rescue := &middleware.Funcs{Label: "rescue", OnFailure: func(ctx context.Context, _ *middleware.Call, _ *module.Error) (middleware.Recovery, error) {
			alive = ctx.Err() == nil && module.FromContext(ctx) != nil
			return middleware.Recovery{Output: map[string]any{"late": true}}, nil
		}}
		x := setup{modules: []module.Module{sleeper("m", time.Hour, true, new(sec))}, opts: []executor.Option{executor.WithMiddleware(rescue)}}.executor(t)
		out, err := x.Call(t.Context(), "m", nil)
		if err != nil || out["late"] != true || !alive {
			t.Errorf("= %v, %v; the hook's context was alive: %v", out, err, alive)
		}
	})
}

func TestRetrySignal(t *testing.T) {
	tests := []struct {
		name  string
		fails int // how often the module fails
		runs  int
		want  module.Code
	}{
		{"second run succeeds", 1, 2, ""},
		{"never gives up, bounded", 1000, 17, module.CodeModuleExecuteError},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			runs, data := 0, 0
			m := fn("m", func(ctx context.Context, in map[string]any) (map[string]any, error) {
				runs++
				module.FromContext(ctx).Data().Set("runs", runs)
				if runs <= tt.fails {
					return nil, errors.New("flaky")
				}
				return in, nil
			})
			retry := &middleware.Funcs{Label: "retry", OnFailure: func(_ context.Context, c *middleware.Call, _ *module.Error) (middleware.Recovery, error) {
				v, _ := c.Context.Data().Get("runs")
				data, _ = v.(int)
				return middleware.Recovery{Retry: map[string]any{"again": data}}, nil
			}}
			var ended []executor.Completion
			x := setup{modules: []module.Module{m}, opts: []executor.Option{
				executor.WithMiddleware(retry),
				executor.WithObserver(executor.ObserverFunc(func(c executor.Completion) { ended = append(ended, c) })),
			}}.executor(t)
			out, err := x.Call(t.Context(), "m", nil)
			if got := module.CodeOf(err); got != tt.want || runs != tt.runs {
				t.Fatalf("code %q after %d runs, want %q after %d", got, runs, tt.want, tt.runs)
			}
			if err == nil && out["again"] != int64(1) {
				t.Errorf("output %v, want the new inputs", out)
			}
			if data < 1 {
				t.Error("the runs of one call do not share their data")
			}
			if len(ended) != 1 || ended[0].Retries != tt.runs-1 {
				t.Errorf("completions = %+v", ended)
			}
		})
	}
}

func TestRetryDoesNotRestartTheGlobalDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		retry := &middleware.Funcs{Label: "retry", OnFailure: func(_ context.Context, c *middleware.Call, _ *module.Error) (middleware.Recovery, error) {
			return middleware.Recovery{Retry: c.Inputs}, nil
		}}
		x := setup{
			cfg:     executor.Config{GlobalTimeout: new(10 * sec)},
			modules: []module.Module{sleeper("m", time.Hour, true, new(4*sec))},
			opts:    []executor.Option{executor.WithMiddleware(retry)},
		}.executor(t)
		began := time.Now()
		_, err := x.Call(t.Context(), "m", nil)
		wantCode(t, err, module.CodeModuleTimeout)
		if got := time.Since(began); got != 10*sec {
			t.Errorf("retries went on for %v, want 10s", got)
		}
	})
}

// A chain is a snapshot: what is registered during a call does not join it.
func TestMiddlewareSnapshot(t *testing.T) {
	var notes []string
	late := recorder("late", 100, &notes)
	var x *executor.Executor
	m := fn("m", func(context.Context, map[string]any) (map[string]any, error) {
		if err := x.Use(late); err != nil {
			t.Error(err)
		}
		return map[string]any{}, nil
	})
	x = setup{modules: []module.Module{m}, opts: []executor.Option{executor.WithMiddleware(recorder("first", 200, &notes))}}.executor(t)
	if _, err := x.Call(t.Context(), "m", nil); err != nil {
		t.Fatal(err)
	}
	if want := []string{"before first", "after first"}; !slices.Equal(notes, want) {
		t.Errorf("hooks %v, want %v", notes, want)
	}
	if !x.Remove(late) || x.Remove(late) {
		t.Error("Remove does not tell whether it removed")
	}
}

func TestMiddlewarePanic(t *testing.T) {
	j := &journal{}
	bad := middleware.UseBefore("bad", func(context.Context, *middleware.Call) (map[string]any, error) { panic("boom value") })
	x := setup{log: j, modules: []module.Module{fn("m", echo)}, opts: []executor.Option{executor.WithMiddleware(bad)}}.executor(t)
	_, err := x.Call(t.Context(), "m", nil)
	wantCode(t, err, module.CodeInternal)
	if j.count("stack=") != 1 {
		t.Error("the stack of the hook's panic is not in the log")
	}
}
