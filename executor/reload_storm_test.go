package executor_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

// lived is a module that knows whether it is loaded.
type lived struct {
	mod
	loaded atomic.Bool
}

func (l *lived) OnLoad(context.Context) error {
	l.loaded.Store(true)
	return nil
}

func (l *lived) OnUnload(context.Context) error {
	l.loaded.Store(false)
	return nil
}

// Reloads, unregistrations and switches under calls: each call has one outcome, no
// code runs in a module that is not loaded, and nothing is held at the end.
func TestStormOfReloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, reg := setup{}.build(t)
		var outside atomic.Int64
		build := func(context.Context) (module.Module, error) {
			l := &lived{}
			l.mod = *fn("storm.m", func(ctx context.Context, in map[string]any) (map[string]any, error) {
				for range 2 { // before and after it worked
					if !l.loaded.Load() {
						outside.Add(1)
					}
					select {
					case <-time.After(time.Millisecond):
					case <-ctx.Done():
						return nil, context.Cause(ctx)
					}
				}
				return in, nil
			})
			return l, nil
		}
		register := func() {
			m, _ := build(t.Context())
			if err := reg.RegisterDeclared(t.Context(), m, registry.Declaration{Factory: build}); err != nil && module.CodeOf(err) != module.CodeDuplicateModuleID {
				t.Error(err)
			}
		}
		register()
		var ended atomic.Int64
		var mu sync.Mutex
		codes := map[module.Code]int{}
		var wg sync.WaitGroup
		const callers, each = 50, 200
		for range callers {
			wg.Go(func() {
				for i := range each {
					_, err := x.Call(t.Context(), "storm.m", map[string]any{"i": i})
					ended.Add(1)
					mu.Lock()
					codes[module.CodeOf(err)]++
					mu.Unlock()
					if err != nil {
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
		for k := range 3 {
			wg.Go(func() {
				for i := range 60 {
					time.Sleep(time.Duration(3+k) * time.Millisecond)
					switch (i + k) % 3 {
					case 0:
						if _, err := reg.Reload(t.Context(), "storm.m", registry.ReloadOptions{}); err != nil && module.CodeOf(err) != module.CodeModuleNotFound {
							t.Error(err)
						}
					case 1:
						reg.Unregister(t.Context(), "storm.m")
						register()
					case 2:
						reg.SetEnabled("storm.m", false)
						time.Sleep(2 * time.Millisecond)
						reg.SetEnabled("storm.m", true)
					}
				}
			})
		}
		wg.Wait()
		if err := x.Settle(t.Context()); err != nil || x.Debt() != 0 {
			t.Errorf("settle: %v, debt %d", err, x.Debt())
		}
		if outside.Load() > 0 {
			t.Errorf("%d times code ran in a module that was not loaded", outside.Load())
		}
		if ended.Load() != callers*each {
			t.Errorf("%d outcomes of %d calls", ended.Load(), callers*each)
		}
		for code, n := range codes {
			switch code {
			case "", module.CodeModuleNotFound, module.CodeModuleDisabled:
			default:
				t.Errorf("%d calls ended with %s", n, code)
			}
		}
		if len(codes) != 3 {
			t.Errorf("the storm was too mild: %v", codes)
		}
		if e, ok := reg.Get("storm.m"); !ok || e.InFlight() != 0 {
			t.Errorf("visible %v, or still held", ok)
		}
	})
}
