package executor_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// idempotent is a module that may be retried.
func idempotent(id string, f func(ctx context.Context, in map[string]any) (map[string]any, error)) *mod {
	m := fn(id, f)
	m.desc.Annotations.Idempotent = true
	return m
}

func TestRetryMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		retry, err := middleware.NewRetry(middleware.RetryConfig{NoJitter: true})
		if err != nil {
			t.Fatal(err)
		}
		usage, history := middleware.NewUsageCollector(middleware.UsageConfig{}), middleware.NewErrorHistory(middleware.HistoryConfig{})
		var idem, plain atomic.Int32
		fail := func(n *atomic.Int32) func(context.Context, map[string]any) (map[string]any, error) {
			return func(context.Context, map[string]any) (map[string]any, error) {
				if n.Add(1) < 3 {
					return nil, errors.New("not yet")
				}
				return map[string]any{"n": int64(n.Load())}, nil
			}
		}
		x := setup{
			modules: []module.Module{idempotent("t.idem", fail(&idem)), fn("t.plain", fail(&plain))},
			opts:    []executor.Option{executor.WithMiddleware(retry, middleware.NewUsage(usage), middleware.NewRecordErrors(history))},
		}.executor(t)
		start := time.Now()
		// An uncoded failure of an idempotent module is retryable.
		if out, err := x.Call(t.Context(), "t.idem", nil); err != nil || out["n"] != int64(3) {
			t.Errorf("%v, %v", out, err)
		}
		if d := time.Since(start); d != 300*time.Millisecond {
			t.Errorf("took %v", d)
		}
		if _, err := x.Call(t.Context(), "t.plain", nil); module.CodeOf(err) != module.CodeModuleExecuteError || plain.Load() != 1 {
			t.Errorf("a module that is not idempotent ran %d times: %v", plain.Load(), err)
		}
		if m := usage.Module("t.idem", time.Hour); m.Calls != 3 || m.Errors != 2 {
			t.Errorf("usage counts runs: %+v", m)
		}
		if e := history.Get("t.idem", 0); len(e) != 1 || e[0].Count != 2 {
			t.Errorf("history %+v", e)
		}
	})
}

// A call that is cancelled while it is the one try of a half-open circuit leaves the
// try to the next, through the whole executor.
func TestBreakerMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		breaker, err := middleware.NewCircuitBreaker(middleware.BreakerConfig{MinSamples: 1})
		if err != nil {
			t.Fatal(err)
		}
		mode := "fail"
		x := setup{
			modules: []module.Module{fn("t.m", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
				switch mode {
				case "fail":
					return nil, errors.New("no")
				case "hang":
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return map[string]any{}, nil
			})},
			opts: []executor.Option{executor.WithMiddleware(breaker)},
		}.executor(t)
		_, err = x.Call(t.Context(), "t.m", nil)
		wantCode(t, err, module.CodeModuleExecuteError)
		_, err = x.Call(t.Context(), "t.m", nil)
		if e := wantCode(t, err, module.CodeCircuitBreakerOpen); e.Details["retry_after_ms"] != int64(30_000) {
			t.Errorf("details %v", e.Details)
		}
		time.Sleep(30 * time.Second)
		mode = "hang"
		ctx, stop := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { stop(errors.New("enough")) })
		_, err = x.Call(ctx, "t.m", nil)
		wantCode(t, err, module.CodeExecutionCancelled)
		mode = "work"
		if _, err = x.Call(t.Context(), "t.m", nil); err != nil {
			t.Errorf("the next try: %v", err)
		}
		if got := breaker.State("t.m", ""); got != middleware.CircuitClosed {
			t.Errorf("state %s", got)
		}
	})
}

// Cancelled calls and timed out ones are counted, though on_error does not see the
// former.
func TestUsageMiddlewareSeesEveryEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		usage, limit := middleware.NewUsageCollector(middleware.UsageConfig{}), time.Second
		x := setup{
			cfg: executor.Config{DefaultTimeout: &limit},
			modules: []module.Module{fn("t.m", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			})},
			opts: []executor.Option{executor.WithMiddleware(middleware.NewUsage(usage))},
		}.executor(t)
		_, err := x.Call(t.Context(), "t.m", nil)
		wantCode(t, err, module.CodeModuleTimeout)
		ctx, stop := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Millisecond, func() { stop(errors.New("enough")) })
		_, err = x.Call(ctx, "t.m", nil)
		wantCode(t, err, module.CodeExecutionCancelled)
		if m := usage.Module("t.m", time.Hour); m.Calls != 2 || m.Errors != 2 {
			t.Errorf("%+v", m)
		}
	})
}
