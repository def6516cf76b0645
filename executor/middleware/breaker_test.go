package middleware_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

func newBreaker(cfg middleware.BreakerConfig) *middleware.CircuitBreaker {
	return made(middleware.NewCircuitBreaker(cfg))
}

func TestBreakerOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ok, bad = true, false
		for _, tt := range []struct {
			name  string
			cfg   middleware.BreakerConfig
			calls []bool
			want  middleware.CircuitState
		}{
			{"nothing yet", middleware.BreakerConfig{}, nil, middleware.CircuitClosed},
			{"too few samples", middleware.BreakerConfig{}, []bool{bad, bad, bad, bad}, middleware.CircuitClosed},
			{"all fail", middleware.BreakerConfig{}, []bool{bad, bad, bad, bad, bad}, middleware.CircuitOpen},
			{"at the threshold", middleware.BreakerConfig{MinSamples: 4}, []bool{ok, ok, bad, bad}, middleware.CircuitOpen},
			{"below it", middleware.BreakerConfig{MinSamples: 4}, []bool{ok, ok, ok, bad}, middleware.CircuitClosed},
			{"the published case", middleware.BreakerConfig{WindowSize: 10, MinSamples: 10}, []bool{ok, ok, ok, ok, bad, bad, bad, bad, bad, bad}, middleware.CircuitOpen},
			{"old failures leave the window", middleware.BreakerConfig{WindowSize: 4, MinSamples: 4}, []bool{bad, ok, ok, ok, bad, ok, ok, bad}, middleware.CircuitOpen},
			{"and do not count", middleware.BreakerConfig{WindowSize: 4, MinSamples: 4}, []bool{bad, ok, ok, ok, ok, bad, ok, ok}, middleware.CircuitClosed},
			{"samples fit the window", middleware.BreakerConfig{WindowSize: 2}, []bool{bad, bad}, middleware.CircuitOpen},
		} {
			events := &bell{}
			tt.cfg.Emit = events.ring
			b := newBreaker(tt.cfg)
			c := chain(t, b)
			for _, fine := range tt.calls {
				run := failing(module.CodeModuleExecuteError)
				if fine {
					run = working
				}
				if d := drive(t.Context(), c, callOf("pay.charge", "shop.bill"), run); d.runs != 1 {
					t.Errorf("%s: refused too early: %v", tt.name, d.err)
				}
			}
			if got := b.State("pay.charge", "shop.bill"); got != tt.want {
				t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
			}
			if opened := len(events.types()) == 1; opened != (tt.want == middleware.CircuitOpen) {
				t.Errorf("%s: events %v", tt.name, events.types())
			}
			if got := b.State("pay.charge", "shop.other"); got != middleware.CircuitClosed {
				t.Errorf("%s: another caller's circuit is %s", tt.name, got)
			}
		}
	})
}

func TestBreakerLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := &bell{}
		b := newBreaker(middleware.BreakerConfig{MinSamples: 2, Emit: events.ring})
		c := chain(t, b)
		call := func(run func(context.Context, int) *module.Error) (driven, *middleware.Call) {
			call := callOf("pay.charge", "")
			return drive(t.Context(), c, call, run), call
		}
		for range 2 {
			call(failing(module.CodeModuleExecuteError))
		}
		time.Sleep(5 * time.Second)
		d, refused := call(working)
		if d.runs != 0 || d.err == nil || d.err.Code != module.CodeCircuitBreakerOpen || !d.err.Unexecuted || d.err.Retryable != module.True {
			t.Fatalf("open circuit: %+v", d)
		}
		want := obj{"module_id": "pay.charge", "caller_id": nil, "retry_after_ms": int64(25_000)}
		if diff := cmp.Diff(want, d.err.Details); diff != "" {
			t.Errorf("details (-want +got):\n%s", diff)
		}
		if got, _ := refused.Context.Data().Get(middleware.DataCircuitState); got != "OPEN" {
			t.Errorf("noted state %v", got)
		}
		if b.State("pay.charge", "") != middleware.CircuitOpen {
			t.Error("not open")
		}
		time.Sleep(25 * time.Second)
		if b.State("pay.charge", "") != middleware.CircuitHalfOpen {
			t.Error("not half open")
		}
		if d, _ := call(failing(module.CodeModuleExecuteError)); d.runs != 1 {
			t.Error("the try did not reach the module")
		}
		if d, _ := call(working); d.runs != 0 {
			t.Error("a failed try left the circuit open for calls")
		}
		time.Sleep(30 * time.Second)
		// A cancelled try decides nothing and leaves the try to the next call.
		if d, _ := call(failing(module.CodeExecutionCancelled)); d.runs != 1 {
			t.Error("no try")
		}
		if d, _ := call(working); d.runs != 1 {
			t.Error("the try was lost with the cancelled call")
		}
		if d, _ := call(failing(module.CodeModuleExecuteError)); d.runs != 1 {
			t.Error("closed, and refused")
		}
		if b.State("pay.charge", "") != middleware.CircuitClosed {
			t.Error("the window was not emptied")
		}
		var got []string
		for _, e := range events.events {
			got = append(got, fmt.Sprint(e.Type, " ", e.Severity, " ", e.ModuleID, " ", e.Data["caller_id"]))
		}
		if diff := cmp.Diff([]string{
			"apcore.circuit.opened warn pay.charge <nil>", "apcore.circuit.opened warn pay.charge <nil>", "apcore.circuit.closed info pay.charge <nil>",
		}, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if rate := events.events[0].Data["error_rate"]; rate != 1.0 {
			t.Errorf("error rate %v", rate)
		}
	})
}

// However many come at once, one call is let through a half-open circuit.
func TestBreakerOneProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(middleware.BreakerConfig{MinSamples: 1})
		c := chain(t, b)
		drive(t.Context(), c, callOf("a.b", ""), failing(module.CodeModuleExecuteError))
		time.Sleep(30 * time.Second)
		var wg sync.WaitGroup
		var mu sync.Mutex
		through, refused := 0, 0
		for range 50 {
			wg.Go(func() {
				d := drive(t.Context(), c, callOf("a.b", ""), func(context.Context, int) *module.Error {
					time.Sleep(time.Second)
					return nil
				})
				mu.Lock()
				defer mu.Unlock()
				if d.runs == 1 {
					through++
				} else if d.err.Code == module.CodeCircuitBreakerOpen {
					refused++
				}
			})
		}
		wg.Wait()
		if through != 1 || refused != 49 {
			t.Errorf("%d through, %d refused", through, refused)
		}
	})
}

// A call that began before the circuit opened says nothing about it afterwards.
func TestBreakerLateVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(middleware.BreakerConfig{MinSamples: 2})
		c := chain(t, b)
		release := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			drive(t.Context(), c, callOf("a.b", ""), func(context.Context, int) *module.Error {
				<-release
				return module.Errorf(module.CodeModuleExecuteError, "no")
			})
		})
		synctest.Wait()
		bad := failing(module.CodeModuleExecuteError)
		drive(t.Context(), c, callOf("a.b", ""), bad)
		drive(t.Context(), c, callOf("a.b", ""), bad)
		time.Sleep(30 * time.Second)
		drive(t.Context(), c, callOf("a.b", ""), working) // closes it
		close(release)
		wg.Wait()
		drive(t.Context(), c, callOf("a.b", ""), bad)
		if got := b.State("a.b", ""); got != middleware.CircuitClosed {
			t.Errorf("%s: an old failure counted", got)
		}
	})
}

// A failure counts also where another middleware makes something of it.
func TestBreakerSeesRecoveredFailures(t *testing.T) {
	b := newBreaker(middleware.BreakerConfig{MinSamples: 1})
	rescue := &middleware.Funcs{Label: "rescue", OnFailure: func(context.Context, *middleware.Call, *module.Error) (middleware.Recovery, error) {
		return middleware.Recovery{Output: obj{}}, nil
	}}
	if d := drive(t.Context(), chain(t, b, rescue), callOf("a.b", ""), failing(module.CodeModuleExecuteError)); d.err != nil {
		t.Fatal(d.err)
	}
	if got := b.State("a.b", ""); got != middleware.CircuitOpen {
		t.Errorf("state %s", got)
	}
}

func TestNewCircuitBreakerRefuses(t *testing.T) {
	for name, cfg := range map[string]middleware.BreakerConfig{
		"window": {WindowSize: -1}, "samples": {MinSamples: -1}, "threshold": {OpenThreshold: 1.1}, "recovery": {RecoveryWindow: -1},
	} {
		_, err := middleware.NewCircuitBreaker(cfg)
		wantInvalid(t, name, err, module.CodeInvalidInput)
	}
}

// The window agrees with a model that keeps every call.
func TestBreakerModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		size := rapid.IntRange(1, 8).Draw(r, "window")
		least := rapid.IntRange(1, 8).Draw(r, "samples")
		b := newBreaker(middleware.BreakerConfig{WindowSize: size, MinSamples: least})
		c := chain(t, b)
		var all []bool
		for _, bad := range rapid.SliceOfN(rapid.Bool(), 0, 40).Draw(r, "calls") {
			run := working
			if bad {
				run = failing(module.CodeModuleExecuteError)
			}
			drive(t.Context(), c, callOf("a.b", ""), run)
			all = append(all, bad)
			recent := all[max(0, len(all)-size):]
			failed := 0
			for _, f := range recent {
				if f {
					failed++
				}
			}
			open := len(recent) >= min(least, size) && 2*failed >= len(recent)
			if got := b.State("a.b", "") == middleware.CircuitOpen; got != open {
				r.Fatalf("after %v: open %v, want %v", all, got, open)
			}
			if open {
				return
			}
		}
	})
}

func BenchmarkBreaker(b *testing.B) {
	c := made(middleware.NewChain(nil, newBreaker(middleware.BreakerConfig{})))
	base, ctx := callOf("a.b", "c.d"), b.Context()
	b.ReportAllocs()
	for b.Loop() {
		call := *base
		_, n, _ := c.Before(ctx, &call)
		_, _ = c.After(ctx, &call, nil)
		c.End(ctx, &call, n, nil)
	}
}
