package middleware_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

const retryKey = "_apcore.mw.retry.count.orders.ship"

func TestRetry(t *testing.T) {
	ms := time.Millisecond
	timeout := failing(module.CodeModuleTimeout) // retryable
	for _, tt := range []struct {
		name  string
		cfg   middleware.RetryConfig
		call  func(*middleware.Call)
		run   func(context.Context, int) *module.Error
		runs  int
		waits []time.Duration
		code  module.Code
		count any
	}{
		{"no failure", middleware.RetryConfig{NoJitter: true}, nil, working, 1, nil, "", nil},
		{"used up", middleware.RetryConfig{NoJitter: true}, nil, timeout, 4, []time.Duration{100 * ms, 200 * ms, 400 * ms}, module.CodeModuleTimeout, 3},
		{"bounded", middleware.RetryConfig{NoJitter: true, MaxRetries: 4, MaxDelay: 150 * ms}, nil, timeout, 5, []time.Duration{100 * ms, 150 * ms, 150 * ms, 150 * ms}, module.CodeModuleTimeout, 4},
		{"fixed", middleware.RetryConfig{NoJitter: true, Strategy: middleware.RetryFixed, BaseDelay: 7 * ms, MaxRetries: 2}, nil, timeout, 3, []time.Duration{7 * ms, 7 * ms}, module.CodeModuleTimeout, 2},
		{"success forgets the count", middleware.RetryConfig{NoJitter: true}, nil, func(_ context.Context, n int) *module.Error {
			if n < 3 {
				return module.Errorf(module.CodeModuleTimeout, "no")
			}
			return nil
		}, 3, []time.Duration{100 * ms, 200 * ms}, "", nil},
		{"off", middleware.RetryConfig{MaxRetries: -1}, nil, timeout, 1, nil, module.CodeModuleTimeout, nil},
		{"not retryable", middleware.RetryConfig{}, nil, failing(module.CodeSchemaValidation), 1, nil, module.CodeSchemaValidation, nil},
		{"not said to be retryable", middleware.RetryConfig{}, nil, failing(module.CodeModuleExecuteError), 1, nil, module.CodeModuleExecuteError, nil},
		{"cancelled", middleware.RetryConfig{}, nil, failing(module.CodeExecutionCancelled), 1, nil, module.CodeExecutionCancelled, nil},
		{"not idempotent", middleware.RetryConfig{}, func(c *middleware.Call) { c.Descriptor = &module.Descriptor{} }, timeout, 1, nil, module.CodeModuleTimeout, nil},
		{"on another node", middleware.RetryConfig{}, func(c *middleware.Call) { c.Descriptor = nil }, timeout, 1, nil, module.CodeModuleTimeout, nil},
		{"spent further up the tree", middleware.RetryConfig{}, func(c *middleware.Call) { c.Context.Data().Set(retryKey, 3) }, timeout, 1, nil, module.CodeModuleTimeout, 3},
		{"another module's count", middleware.RetryConfig{NoJitter: true, MaxRetries: 1}, func(c *middleware.Call) { c.Context.Data().Set("_apcore.mw.retry.count.orders", 3) }, timeout, 2, []time.Duration{100 * ms}, module.CodeModuleTimeout, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := chain(t, made(middleware.NewRetry(tt.cfg)))
				call := callOf("orders.ship", "")
				if tt.call != nil {
					tt.call(call)
				}
				var at []time.Time
				d := drive(t.Context(), c, call, func(ctx context.Context, n int) *module.Error {
					at = append(at, time.Now())
					return tt.run(ctx, n)
				})
				var waits []time.Duration
				for i := 1; i < len(at); i++ {
					waits = append(waits, at[i].Sub(at[i-1]))
				}
				if diff := cmp.Diff(tt.waits, waits); diff != "" || d.runs != tt.runs {
					t.Errorf("%d runs, waits (-want +got):\n%s", d.runs, diff)
				}
				if module.CodeOf(asErr(d.err)) != tt.code {
					t.Errorf("err = %v", d.err)
				}
				if got, _ := call.Context.Data().Get(retryKey); got != tt.count {
					t.Errorf("count %v, want %v", got, tt.count)
				}
			})
		})
	}
}

// asErr keeps a nil *Error from becoming an error.
func asErr(e *module.Error) error {
	if e == nil {
		return nil
	}
	return e
}

func TestRetryJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chain(t, made(middleware.NewRetry(middleware.RetryConfig{MaxRetries: 1})))
		seen := map[time.Duration]bool{}
		for range 50 {
			start := time.Now()
			drive(t.Context(), c, callOf("a.b", ""), failing(module.CodeModuleTimeout))
			wait := time.Since(start)
			if wait < 50*time.Millisecond || wait > 150*time.Millisecond {
				t.Fatalf("waited %v", wait)
			}
			seen[wait] = true
		}
		if len(seen) < 10 {
			t.Errorf("only %d different waits", len(seen))
		}
	})
}

// It gives up when the caller leaves, and does not wait beyond the tree's time.
func TestRetryGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chain(t, made(middleware.NewRetry(middleware.RetryConfig{NoJitter: true, BaseDelay: time.Second})))
		ctx, stop := context.WithCancelCause(t.Context())
		time.AfterFunc(300*time.Millisecond, func() { stop(context.Canceled) })
		start := time.Now()
		if d := drive(ctx, c, callOf("a.b", ""), failing(module.CodeModuleTimeout)); d.runs != 1 || time.Since(start) != 300*time.Millisecond {
			t.Errorf("%d runs in %v", d.runs, time.Since(start))
		}
		call := callOf("a.b", "")
		call.Context = module.NewContext(module.ContextOptions{GlobalDeadline: time.Now().Add(time.Second)}).Child("a.b")
		start = time.Now()
		if d := drive(t.Context(), c, call, failing(module.CodeModuleTimeout)); d.runs != 1 || time.Since(start) != 0 {
			t.Errorf("%d runs in %v", d.runs, time.Since(start))
		}
	})
}

// A retry gets the inputs as they came, not as the hooks made them: the hooks run
// over them again.
func TestRetryInputs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		add := middleware.UseBefore("add", func(_ context.Context, call *middleware.Call) (map[string]any, error) {
			n, _ := call.Inputs["n"].(int64)
			return obj{"n": n + 1}, nil
		})
		c := chain(t, made(middleware.NewRetry(middleware.RetryConfig{})), add)
		call := callOf("a.b", "")
		drive(t.Context(), c, call, func(_ context.Context, n int) *module.Error {
			if got := call.Inputs["n"]; got != int64(2) {
				t.Errorf("run %d got %v", n, got)
			}
			return module.Errorf(module.CodeModuleTimeout, "no")
		})
	})
}

func TestNewRetryRefuses(t *testing.T) {
	for name, cfg := range map[string]middleware.RetryConfig{
		"too many": {MaxRetries: 5}, "strategy": {Strategy: "often"}, "base": {BaseDelay: -1}, "bound": {MaxDelay: -1},
	} {
		_, err := middleware.NewRetry(cfg)
		wantInvalid(t, name, err, module.CodeInvalidInput)
	}
}
