package executor_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// 100,000 calls and streams go on while their module comes and goes, strategies and
// rules are swapped, and modules and middleware panic: each has one outcome, and
// nothing is left behind.
func TestStormOfChanges(t *testing.T) {
	rounds, calls := 1, 100_000
	if raceEnabled { // the detector itself has broken down in a bubble of that size
		rounds, calls = 5, 20_000
	}
	for range rounds {
		stormOfChanges(t, calls)
	}
}

func stormOfChanges(t *testing.T, calls int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		build := func() module.Module {
			return streams("m", func(ctx context.Context, in map[string]any, yield func(module.Chunk, error) bool) {
				for i := int64(0); i < 5 && yield(n(i), nil); i++ {
					select {
					case <-time.After(time.Duration(1+rand.IntN(16)) * time.Millisecond):
					case <-ctx.Done():
					}
				}
				if in["panic"] == true {
					panic("storm")
				}
			})
		}
		faulty := &middleware.Funcs{Label: "faulty", OnBefore: func(context.Context, *middleware.Call) (map[string]any, error) {
			if rand.IntN(50) == 0 {
				panic("storm")
			}
			return nil, nil
		}}
		x, reg := setup{cfg: executor.Config{DefaultTimeout: new(45 * time.Millisecond), GracePeriod: new(5 * time.Millisecond)},
			modules: []module.Module{build()}, opts: []executor.Option{executor.WithMiddleware(faulty)}}.build(t)
		over := make(chan struct{})
		var changes, wg sync.WaitGroup
		every := func(d time.Duration, change func(i int)) {
			changes.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-over:
						return
					case <-time.After(d):
						change(i)
					}
				}
			})
		}
		every(3*time.Millisecond, func(i int) {
			strategies := []func() *executor.Strategy{executor.Standard, executor.Minimal, executor.Internal}
			if err := x.SetStrategy(strategies[i%3]()); err != nil {
				t.Error(err)
			}
		})
		every(7*time.Millisecond, func(i int) { x.SetACL(decides(acl.Decision{Allowed: i%2 == 0})) })
		every(20*time.Millisecond, func(int) {
			if _, err := reg.SafeUnregister(t.Context(), "m", 5*time.Millisecond); err != nil {
				t.Error(err)
			}
			if err := reg.Register(build()); err != nil {
				t.Error(err)
			}
		})
		every(5*time.Millisecond, func(int) { x.GovernanceState(); x.Validate(t.Context(), "m", nil) })

		var mu sync.Mutex
		codes := map[module.Code]int{}
		for range calls {
			wg.Go(func() {
				time.Sleep(time.Duration(rand.IntN(2000)) * time.Millisecond)
				ctx, stop := context.WithCancelCause(t.Context())
				defer stop(nil)
				if rand.IntN(3) == 0 {
					time.AfterFunc(time.Duration(rand.IntN(60))*time.Millisecond, func() { stop(cancel.Because(cancel.Remote, "storm", "")) })
				}
				in := map[string]any{"panic": rand.IntN(4) == 0}
				var err error
				if rand.IntN(4) == 0 {
					_, err = x.Call(ctx, "m", in)
				} else {
					_, err = read(x.Stream(ctx, "m", in))
				}
				mu.Lock()
				defer mu.Unlock()
				codes[module.CodeOf(err)]++
			})
		}
		wg.Wait()
		close(over)
		changes.Wait()
		if err := x.Settle(t.Context()); err != nil || x.Debt() != 0 {
			t.Errorf("settle: %v, debt %d", err, x.Debt())
		}
		if e, ok := reg.Get("m"); !ok || e.InFlight() != 0 {
			t.Errorf("registered %v, held %d times", ok, e.InFlight())
		}
		total := 0
		for code, count := range codes {
			total += count
			switch code {
			case "", module.CodeModuleExecuteError, module.CodeModuleTimeout, module.CodeExecutionCancelled, module.CodeModuleNotFound, module.CodeACLDenied, module.CodeInternal:
			default:
				t.Errorf("%d calls ended with %s", count, code)
			}
		}
		if total != calls || len(codes) != 7 {
			t.Errorf("%d outcomes, kinds %v", total, codes)
		}
	})
}
