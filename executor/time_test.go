package executor_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

const sec = time.Second

// sleeper sleeps for d; obeying it returns {"partial": true} when it is stopped.
func sleeper(id string, d time.Duration, obeys bool, limit *time.Duration) *mod {
	return &mod{desc: module.Descriptor{ID: id, Timeout: limit}, execute: func(ctx context.Context, _ map[string]any) (map[string]any, error) {
		if !obeys {
			time.Sleep(d) //archtest:real-time not real: every use is inside a bubble
			return map[string]any{"slept": true}, nil
		}
		select {
		case <-time.After(d):
			return map[string]any{"slept": true}, nil
		case <-ctx.Done():
			return map[string]any{"partial": true, "password": "hunter22"}, nil
		}
	}}
}

func TestTimeLimits(t *testing.T) {
	tests := []struct {
		name   string
		cfg    executor.Config
		sleep  time.Duration
		obeys  bool
		limit  *time.Duration
		opts   []module.CallOption
		caller time.Duration // deadline of the caller's context
		want   module.Code
		after  time.Duration
		ms     int64
		debt   int
	}{
		{name: "in time", sleep: 29 * sec, obeys: true, after: 29 * sec},
		{name: "default limit", sleep: 99 * sec, obeys: true, want: module.CodeModuleTimeout, after: 30 * sec, ms: 30000},
		{name: "module's own limit", sleep: 99 * sec, obeys: true, limit: new(2 * sec), want: module.CodeModuleTimeout, after: 2 * sec, ms: 2000},
		{name: "option wins", sleep: 99 * sec, obeys: true, limit: new(20 * sec), opts: []module.CallOption{module.CallTimeout(3 * sec)}, want: module.CodeModuleTimeout, after: 3 * sec, ms: 3000},
		{name: "global limit", cfg: executor.Config{GlobalTimeout: new(4 * sec)}, sleep: 99 * sec, obeys: true, want: module.CodeModuleTimeout, after: 4 * sec, ms: 4000},
		{name: "zero disables the module's only", sleep: 99 * sec, obeys: true, limit: new(0 * sec), want: module.CodeModuleTimeout, after: 60 * sec, ms: 60000},
		{name: "both disabled", cfg: executor.Config{GlobalTimeout: new(0 * sec)}, sleep: 999 * sec, obeys: true, limit: new(0 * sec), after: 999 * sec},
		{name: "stubborn in the grace", sleep: 33 * sec, want: module.CodeModuleTimeout, after: 33 * sec, ms: 30000},
		{name: "stubborn beyond the grace", sleep: 99 * sec, want: module.CodeModuleTimeout, after: 35 * sec, ms: 30000, debt: 1},
		{name: "no grace", cfg: executor.Config{GracePeriod: new(0 * sec)}, sleep: 33 * sec, want: module.CodeModuleTimeout, after: 30 * sec, ms: 30000, debt: 1},
		{name: "caller's deadline", sleep: 99 * sec, obeys: true, caller: 7 * sec, want: module.CodeModuleTimeout, after: 7 * sec, ms: 7000},
		{name: "caller's deadline gives no grace", sleep: 99 * sec, caller: 7 * sec, want: module.CodeModuleTimeout, after: 7*sec + 10*time.Millisecond, ms: 7000, debt: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x, reg := setup{cfg: tt.cfg, modules: []module.Module{sleeper("m", tt.sleep, tt.obeys, tt.limit)}}.build(t)
				ctx := t.Context()
				if tt.caller > 0 {
					c, stop := context.WithTimeout(ctx, tt.caller)
					defer stop()
					ctx = c
				}
				began := time.Now()
				out, err := x.Call(ctx, "m", nil, tt.opts...)
				if got := time.Since(began); got != tt.after {
					t.Errorf("returned after %v, want %v", got, tt.after)
				}
				if x.Debt() != tt.debt {
					t.Errorf("debt = %d, want %d", x.Debt(), tt.debt)
				}
				if tt.want == "" {
					if err != nil || out["slept"] != true {
						t.Fatalf("= %v, %v; want the module's output", out, err)
					}
					return
				}
				e := wantCode(t, err, tt.want)
				if e.Details["timeout_ms"] != tt.ms || e.Details["module_id"] != "m" {
					t.Errorf("details = %v, want timeout_ms %d", e.Details, tt.ms)
				}
				if cancel.ReasonOf(err) != cancel.Timeout {
					t.Errorf("cause of %v is not a timeout", err)
				}
				entry, _ := reg.Get("m")
				if entry.InFlight() != tt.debt {
					t.Errorf("the entry is held %d times, want %d", entry.InFlight(), tt.debt)
				}
				if err := x.Settle(t.Context()); err != nil || entry.InFlight() != 0 {
					t.Errorf("after the module returned: %v, held %d times", err, entry.InFlight())
				}
			})
		})
	}
}

func TestPartialResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := setup{modules: []module.Module{sleeper("m", time.Hour, true, new(sec))}}.executor(t)
		_, err := x.Call(t.Context(), "m", nil)
		e := wantCode(t, err, module.CodeModuleTimeout)
		want := map[string]any{"partial": true, "password": "***REDACTED***"}
		if diff := cmp.Diff(want, e.Details["partial"]); diff != "" {
			t.Errorf("details.partial (-want +got):\n%s", diff)
		}
	})
}

func TestLateResultIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		x := setup{log: j, modules: []module.Module{sleeper("m", time.Hour, false, new(sec))}}.executor(t)
		_, err := x.Call(t.Context(), "m", nil)
		wantCode(t, err, module.CodeModuleTimeout)
		if j.count("late result discarded") != 0 || x.Debt() != 1 {
			t.Fatal("the module was given up before it was late")
		}
		if err := x.Settle(t.Context()); err != nil || x.Debt() != 0 {
			t.Fatalf("Settle = %v, debt %d", err, x.Debt())
		}
		synctest.Wait()
		if got := j.count("late result discarded"); got != 1 {
			t.Errorf("logged %d times, want once", got)
		}
	})
}

func TestSettleEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := setup{modules: []module.Module{sleeper("m", time.Hour, false, new(sec))}}.executor(t)
		_, _ = x.Call(t.Context(), "m", nil)
		ctx, stop := context.WithTimeout(t.Context(), sec)
		defer stop()
		if err := x.Settle(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Settle = %v, want the context's error", err)
		}
		if err := x.Settle(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestDisabledTimeoutWarnsOnce(t *testing.T) {
	j := &journal{}
	m := fn("m", echo)
	m.desc.Timeout = new(time.Duration(0))
	x := setup{log: j, modules: []module.Module{m}}.executor(t)
	for range 3 {
		if _, err := x.Call(t.Context(), "m", nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := j.count("module timeout is disabled"); got != 1 {
		t.Errorf("%d warnings, want 1", got)
	}
}

func TestDisabledTimeoutOfACallWarnsOnce(t *testing.T) {
	j := &journal{}
	x := setup{log: j, modules: []module.Module{fn("m", echo)}}.executor(t)
	for range 3 {
		if _, err := x.Call(t.Context(), "m", nil, module.CallTimeout(0)); err != nil {
			t.Fatal(err)
		}
	}
	if got := j.count("module timeout is disabled"); got != 1 {
		t.Errorf("%d warnings, want 1", got)
	}
}

func TestNegativeModuleTimeout(t *testing.T) {
	m := fn("m", echo)
	m.desc.Timeout = new(-sec)
	_, err := setup{modules: []module.Module{m}}.executor(t).Call(t.Context(), "m", nil)
	wantCode(t, err, module.CodeInvalidInput)
}

// The limit counts from the first before hook; what comes earlier only costs the
// global deadline.
func TestClockStartsAtTheFirstBefore(t *testing.T) {
	slow := func(d time.Duration) *middleware.Funcs {
		return middleware.UseBefore("slow", func(context.Context, *middleware.Call) (map[string]any, error) {
			time.Sleep(d) //archtest:real-time not real: every use is inside a bubble
			return nil, nil
		})
	}
	tests := []struct {
		name   string
		before time.Duration
		after  time.Duration
		ran    bool
	}{
		{"hook and module share the limit", 4 * sec, 10 * sec, true},
		{"hook uses it up", 12 * sec, 12 * sec, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ran := false
				m := fn("m", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
					ran = true
					<-ctx.Done()
					return nil, ctx.Err()
				})
				m.desc.Timeout = new(10 * sec)
				strategy := executor.Standard()
				early := &executor.Step{Name: "early", Run: func(context.Context, *executor.Pipeline) (*executor.StepResult, error) {
					time.Sleep(20 * sec) // before the first before hook
					return nil, nil
				}}
				if err := strategy.InsertAfter(executor.StepModuleLookup, early); err != nil {
					t.Fatal(err)
				}
				x := setup{modules: []module.Module{m}, opts: []executor.Option{
					executor.WithStrategy(strategy), executor.WithMiddleware(slow(tt.before)),
				}}.executor(t)
				began := time.Now()
				_, err := x.Call(t.Context(), "m", nil)
				e := wantCode(t, err, module.CodeModuleTimeout)
				if got := time.Since(began) - 20*sec; got != tt.after || ran != tt.ran || e.Details["timeout_ms"] != int64(10000) {
					t.Errorf("after %v, ran %v, details %v; want %v, %v", got, ran, e.Details, tt.after, tt.ran)
				}
			})
		})
	}
}

func TestAfterHooksAreNotTimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fn("m", func(context.Context, map[string]any) (map[string]any, error) {
			return map[string]any{"n": int64(1)}, nil
		})
		m.desc.Timeout = new(sec)
		late := middleware.UseAfter("late", func(context.Context, *middleware.Call, map[string]any) (map[string]any, error) {
			time.Sleep(time.Minute)
			return nil, nil
		})
		x := setup{modules: []module.Module{m}, opts: []executor.Option{executor.WithMiddleware(late)}}.executor(t)
		if out, err := x.Call(t.Context(), "m", nil); err != nil || out["n"] != int64(1) {
			t.Errorf("= %v, %v; want the result that was in time", out, err)
		}
	})
}

func TestCancelledCallerReturnsNow(t *testing.T) {
	tests := []struct {
		name  string
		obeys bool
		after time.Duration
		debt  int
	}{
		{"module obeys", true, sec, 0},
		{"module does not", false, sec + 10*time.Millisecond, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := setup{modules: []module.Module{sleeper("m", 20*sec, tt.obeys, nil)}}.executor(t)
				ctx, stop := context.WithCancelCause(t.Context())
				time.AfterFunc(sec, func() { stop(cancel.Because(cancel.Remote, "ana", "enough")) })
				began := time.Now()
				_, err := x.Call(ctx, "m", nil)
				e := wantCode(t, err, module.CodeExecutionCancelled)
				if got := time.Since(began); got != tt.after || x.Debt() != tt.debt {
					t.Errorf("after %v with debt %d, want %v and %d", got, x.Debt(), tt.after, tt.debt)
				}
				if e.Unexecuted || e.Details["reason"] != "remote" || e.Retryable != module.True {
					t.Errorf("error = %+v", e)
				}
				if err := x.Settle(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestCallerLeavesDuringTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := setup{modules: []module.Module{sleeper("m", time.Hour, false, new(sec))}}.executor(t)
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(2*sec, stop)
		began := time.Now()
		_, err := x.Call(ctx, "m", nil)
		wantCode(t, err, module.CodeModuleTimeout)
		if got := time.Since(began); got != 2*sec+10*time.Millisecond {
			t.Errorf("returned after %v, want with the caller", got)
		}
		_ = x.Settle(t.Context())
	})
}

func TestCancelledBeforeItBegins(t *testing.T) {
	ran := false
	x := setup{modules: []module.Module{fn("m", func(context.Context, map[string]any) (map[string]any, error) {
		ran = true
		return map[string]any{}, nil
	})}}.executor(t)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	_, err := x.Call(ctx, "m", nil)
	e := wantCode(t, err, module.CodeExecutionCancelled)
	wantStep(t, err, executor.StepCallChainGuard)
	if ran || !e.Unexecuted {
		t.Errorf("ran %v, unexecuted %v; want false, true", ran, e.Unexecuted)
	}
	app := cancel.NewToken()
	app.Cancel(cancel.Because(cancel.Shutdown, "", ""))
	_, err = x.Call(module.WithContext(t.Context(), module.NewContext(module.ContextOptions{CancelToken: app})), "m", nil)
	wantCode(t, err, module.CodeExecutionCancelled)
}

func TestCancelledBeforeExecute(t *testing.T) {
	ran := false
	stopper := middleware.UseBefore("stopper", func(ctx context.Context, c *middleware.Call) (map[string]any, error) {
		c.Context.Token().Cancel(nil)
		return nil, nil
	})
	x := setup{opts: []executor.Option{executor.WithMiddleware(stopper)}, modules: []module.Module{
		fn("m", func(context.Context, map[string]any) (map[string]any, error) {
			ran = true
			return map[string]any{}, nil
		}),
	}}.executor(t)
	_, err := x.Call(t.Context(), "m", nil)
	e := wantCode(t, err, module.CodeExecutionCancelled)
	wantStep(t, err, executor.StepExecute)
	if ran || !e.Unexecuted {
		t.Errorf("ran %v, unexecuted %v; want false, true", ran, e.Unexecuted)
	}
}

// A nested timeout cancels the nested call's token and nothing above, so that its
// caller can catch it and go on.
func TestNestedTimeoutIsCaught(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := cancel.NewToken()
		var outer, inner *cancel.Token
		worker := sleeper("worker", time.Hour, true, new(sec))
		run := worker.execute
		worker.execute = func(ctx context.Context, in map[string]any) (map[string]any, error) {
			inner = module.FromContext(ctx).Token()
			return run(ctx, in)
		}
		x := setup{modules: []module.Module{worker, fn("outer", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			outer = module.FromContext(ctx).Token()
			_, err := module.Call(ctx, "worker", nil)
			return map[string]any{"caught": string(module.CodeOf(err))}, nil
		})}}.executor(t)
		ctx := module.WithContext(t.Context(), module.NewContext(module.ContextOptions{CancelToken: app}))
		out, err := x.Call(ctx, "outer", nil)
		if err != nil || out["caught"] != string(module.CodeModuleTimeout) {
			t.Fatalf("= %v, %v", out, err)
		}
		if !inner.IsCancelled() || outer.IsCancelled() || app.IsCancelled() {
			t.Errorf("cancelled: inner %v, outer %v, application %v", inner.IsCancelled(), outer.IsCancelled(), app.IsCancelled())
		}
		if cancel.ReasonOf(inner.Cause()) != cancel.Timeout {
			t.Errorf("cause of the inner token = %v", inner.Cause())
		}
	})
}

// A parent whose time is over is not held up by the grace of what it called.
func TestParentTimeoutEndsNestedCallAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var nested time.Duration
		outer := fn("outer", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			began := time.Now()
			_, err := module.Call(ctx, "stubborn", nil)
			nested = time.Since(began)
			return nil, err
		})
		outer.desc.Timeout = new(sec)
		x := setup{modules: []module.Module{outer, sleeper("stubborn", time.Hour, false, nil)}}.executor(t)
		_, err := x.Call(t.Context(), "outer", nil)
		wantCode(t, err, module.CodeModuleTimeout)
		if nested != sec+10*time.Millisecond || x.Debt() != 1 {
			t.Errorf("the nested call returned after %v with debt %d", nested, x.Debt())
		}
		_ = x.Settle(t.Context())
	})
}

func TestBudgetIsOneMoreDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := setup{modules: []module.Module{sleeper("m", time.Hour, true, nil)}}.executor(t)
		began := time.Now()
		_, err := x.Invoke(t.Context(), &contextwire.Request{ModuleID: "m", CallID: "c1", Budget: 1500 * time.Millisecond})
		e := wantCode(t, err, module.CodeModuleTimeout)
		if time.Since(began) != 1500*time.Millisecond || e.Details["timeout_ms"] != int64(1500) {
			t.Errorf("after %v, details %v", time.Since(began), e.Details)
		}
	})
}

func TestDeadlineOfTheData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := setup{
			modules: []module.Module{sleeper("m", time.Hour, true, nil)},
			opts:    []executor.Option{executor.WithMiddleware(middleware.NewDeadline(nil))},
		}.executor(t)
		began := time.Now()
		ctx := module.WithContext(t.Context(), module.NewContext(module.ContextOptions{Data: map[string]any{
			module.DataDeadline: began.Add(2 * sec).Unix(),
		}}))
		_, err := x.Call(ctx, "m", nil)
		wantCode(t, err, module.CodeModuleTimeout)
		if got := time.Since(began); got != 2*sec {
			t.Errorf("after %v, want 2s", got)
		}
		_, err = x.Call(ctx, "m", nil)
		e := wantCode(t, err, module.CodeModuleTimeout)
		if e.Unexecuted || time.Since(began) != 2*sec {
			t.Errorf("a call past the deadline: %+v after %v", e, time.Since(began))
		}
	})
}
