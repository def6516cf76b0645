package executor_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// Whatever happens to 20,000 calls at once, none is lost, none leaves a goroutine
// or a hold on its module behind, and each is reported once.
func TestStorm(t *testing.T) {
	const calls = 20_000
	synctest.Test(t, func(t *testing.T) {
		var observed, retried atomic.Int64
		behave := func(ctx context.Context, in map[string]any) (map[string]any, error) {
			d := time.Duration(in["ms"].(int64)) * time.Millisecond
			switch in["do"].(string) {
			case "panic":
				panic("storm")
			case "exit":
				runtime.Goexit()
			case "fail":
				return nil, errors.New("storm")
			case "stubborn":
				time.Sleep(d)
				return in, nil
			case "nested":
				return module.Call(ctx, "storm.inner", map[string]any{"do": "obey", "ms": in["ms"]})
			}
			select {
			case <-time.After(d):
				return in, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		outer, inner := fn("storm.outer", behave), fn("storm.inner", behave)
		outer.desc.Timeout, inner.desc.Timeout = new(50*time.Millisecond), new(40*time.Millisecond)
		retry := &middleware.Funcs{Label: "retry", OnFailure: func(_ context.Context, c *middleware.Call, err *module.Error) (middleware.Recovery, error) {
			if err.Code == module.CodeModuleExecuteError && retried.Add(1)%3 == 0 {
				return middleware.Recovery{Retry: map[string]any{"do": "obey", "ms": int64(1)}}, nil
			}
			return middleware.Recovery{}, nil
		}}
		x, reg := setup{
			cfg:     executor.Config{GracePeriod: new(20 * time.Millisecond)},
			modules: []module.Module{outer, inner},
			opts: []executor.Option{executor.WithMiddleware(retry), executor.WithObserver(executor.ObserverFunc(func(c executor.Completion) {
				if c.ModuleID == "storm.outer" {
					observed.Add(1)
				}
			}))},
		}.build(t)
		kinds := []string{"obey", "obey", "panic", "exit", "fail", "stubborn", "nested"}
		var mu sync.Mutex
		codes := map[module.Code]int{}
		var wg sync.WaitGroup
		for range calls {
			wg.Go(func() {
				ctx, stop := context.WithCancelCause(t.Context())
				defer stop(nil)
				if rand.IntN(3) == 0 {
					time.AfterFunc(time.Duration(rand.IntN(60))*time.Millisecond, func() { stop(cancel.Because(cancel.Remote, "storm", "")) })
				}
				began := time.Now()
				_, err := x.Call(ctx, "storm.outer", map[string]any{"do": kinds[rand.IntN(len(kinds))], "ms": rand.IntN(120)})
				if took := time.Since(began); took > 200*time.Millisecond {
					t.Errorf("a call took %v", took)
				}
				mu.Lock()
				defer mu.Unlock()
				codes[module.CodeOf(err)]++
			})
		}
		wg.Wait()
		if err := x.Settle(t.Context()); err != nil || x.Debt() != 0 {
			t.Errorf("settle: %v, debt %d", err, x.Debt())
		}
		for _, id := range []string{"storm.outer", "storm.inner"} {
			if e, _ := reg.Get(id); e.InFlight() != 0 {
				t.Errorf("%s is still held %d times", id, e.InFlight())
			}
		}
		if observed.Load() != calls {
			t.Errorf("%d completions for %d calls", observed.Load(), calls)
		}
		for code, n := range codes {
			switch code {
			case "", module.CodeModuleExecuteError, module.CodeModuleTimeout, module.CodeExecutionCancelled:
			default:
				t.Errorf("%d calls ended with %s", n, code)
			}
		}
		if len(codes) != 4 {
			t.Errorf("the storm was too mild: %v", codes)
		}
		// The bubble fails the test when a goroutine is left.
	})
}

// A result and the end of a call meet in every order; there is always one outcome,
// and a result that was there first is the outcome.
func TestResultMeetsCancel(t *testing.T) {
	x, reg := setup{modules: []module.Module{fn("m", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
		runtime.Gosched()
		return map[string]any{"n": int64(1)}, nil
	})}}.build(t)
	for range 3000 {
		ctx, stop := context.WithCancel(t.Context())
		go stop()
		out, err := x.Call(ctx, "m", nil)
		switch {
		case err == nil && out["n"] == int64(1):
		case module.CodeOf(err) == module.CodeExecutionCancelled && out == nil:
		default:
			t.Fatalf("= %v, %v", out, err)
		}
	}
	if err := x.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e, _ := reg.Get("m"); e.InFlight() != 0 {
		t.Errorf("held %d times", e.InFlight())
	}
}

// A call that started goes on while its module is unregistered; one that comes
// after finds nothing.
func TestUnregisterDuringCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, reg := setup{modules: []module.Module{sleeper("m", 3*sec, true, nil)}}.build(t)
		var wg sync.WaitGroup
		wg.Go(func() {
			if out, err := x.Call(t.Context(), "m", nil); err != nil || out["slept"] != true {
				t.Errorf("the running call = %v, %v", out, err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			if clean, err := reg.SafeUnregister(t.Context(), "m", 5*sec); !clean || err != nil {
				t.Errorf("unregister = %v, %v", clean, err)
			}
		})
		synctest.Wait()
		_, err := x.Call(t.Context(), "m", nil)
		wantCode(t, err, module.CodeModuleNotFound)
		wg.Wait()
	})
}
