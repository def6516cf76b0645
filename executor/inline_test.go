package executor_test

import (
	"context"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/module"
)

type napIn struct {
	MS int `json:"ms"`
}

type napOut struct {
	Inline bool `json:"inline"`
}

// nap sleeps, deaf to everything, and says whether it runs in the goroutine of the
// test named within.
func nap(within string, opts ...module.Option) *module.Func {
	return module.New("m", "Nap", func(_ context.Context, in napIn) (napOut, error) {
		time.Sleep(time.Duration(in.MS) * time.Millisecond) //archtest:real-time not real: every use is inside a bubble
		return napOut{Inline: strings.Contains(string(debug.Stack()), within)}, nil
	}, opts...)
}

// A module that declares to return by itself runs where its caller does; a late
// result is a timeout all the same; and one that was slow gets a goroutine, so that
// its next caller is not held.
func TestInlineModules(t *testing.T) {
	build := func(t *testing.T, opts ...module.Option) (*executor.Executor, *journal) {
		j := &journal{}
		x, _ := setup{
			cfg: executor.Config{DefaultTimeout: new(100 * time.Millisecond), GracePeriod: new(50 * time.Millisecond)}, log: j,
			modules: []module.Module{nap("TestInlineModules", opts...)},
		}.build(t)
		return x, j
	}
	call := func(t *testing.T, x *executor.Executor, ms int) (map[string]any, *module.Error, time.Duration) {
		began := time.Now()
		out, err := x.Call(t.Context(), "m", map[string]any{"ms": ms})
		return out, module.AsError(err), time.Since(began)
	}
	inBubble := func(name string, f func(t *testing.T)) {
		t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
	}
	inBubble("quick", func(t *testing.T) {
		for _, inline := range []bool{true, false} {
			var opts []module.Option
			if inline {
				opts = append(opts, module.WithInline())
			}
			x, _ := build(t, opts...)
			if out, err, _ := call(t, x, 0); err != nil || out["inline"] != inline {
				t.Errorf("declared %v: %v, %v", inline, out, err)
			}
		}
	})
	inBubble("slow", func(t *testing.T) {
		x, j := build(t, module.WithInline())
		for i, ms := range []int{21, 21, 20, 21, 21, 21} { // one in time starts the count again
			if out, err, _ := call(t, x, ms); err != nil || out["inline"] != true {
				t.Errorf("call %d: %v, %v", i, out, err)
			}
		}
		if out, err, _ := call(t, x, 21); err != nil || out["inline"] != false {
			t.Errorf("after three slow calls: %v, %v", out, err)
		}
		if _, err, took := call(t, x, 1000); err == nil || took != 150*time.Millisecond {
			t.Errorf("a deaf call: %v after %v", err, took)
		}
		if n := j.count("module is too slow to run inline and gets a goroutine from now on"); n != 1 {
			t.Errorf("warned %d times", n)
		}
		if err := x.Settle(t.Context()); err != nil {
			t.Error(err)
		}
	})
	inBubble("far too slow", func(t *testing.T) {
		x, j := build(t, module.WithInline())
		_, err, _ := call(t, x, 201)
		wantCode(t, err, module.CodeModuleTimeout)
		if out, err, _ := call(t, x, 0); err != nil || out["inline"] != false {
			t.Errorf("the call after it: %v, %v", out, err)
		}
		if n := j.count("module is too slow to run inline and gets a goroutine from now on"); n != 1 {
			t.Errorf("warned %d times", n)
		}
	})
	for _, tt := range []struct {
		name    string
		ms      int
		partial bool
	}{{"inside the grace", 120, true}, {"after the grace", 1000, false}} {
		inBubble(tt.name, func(t *testing.T) {
			x, j := build(t, module.WithInline())
			_, err, took := call(t, x, tt.ms)
			if err == nil || err.Code != module.CodeModuleTimeout || took != time.Duration(tt.ms)*time.Millisecond {
				t.Fatalf("= %v after %v", err, took)
			}
			if _, ok := err.Details["partial"]; ok != tt.partial {
				t.Errorf("details %v", err.Details)
			}
			if n := j.count("late result discarded"); (n == 0) != tt.partial {
				t.Errorf("discarded %d results", n)
			}
		})
	}
	inBubble("cancelled", func(t *testing.T) {
		x, _ := build(t, module.WithInline())
		ctx, stop := context.WithCancelCause(t.Context())
		time.AfterFunc(5*time.Millisecond, func() { stop(cancel.Because(cancel.Remote, "test", "")) })
		_, err := x.Call(ctx, "m", map[string]any{"ms": 10})
		wantCode(t, err, module.CodeExecutionCancelled)
	})
}

// A panic in a module that runs inline is the module's error and not its caller's
// panic.
func TestInlinePanic(t *testing.T) {
	x, reg := setup{modules: []module.Module{module.New("m", "Panic",
		func(context.Context, napIn) (napOut, error) { panic("inline") }, module.WithInline())}}.build(t)
	_, err := x.Call(t.Context(), "m", map[string]any{"ms": 0})
	wantCode(t, err, module.CodeModuleExecuteError)
	if e, _ := reg.Get("m"); e.InFlight() != 0 {
		t.Errorf("held %d times", e.InFlight())
	}
}

// The limit of a module that runs inline needs no timer until the module looks; then
// it is there on the very moment, however the module looks.
func TestInlineModulesSeeTheirTime(t *testing.T) {
	for _, tt := range []struct {
		name string
		wait func(ctx context.Context)
	}{
		{"done", func(ctx context.Context) { <-ctx.Done() }},
		{"derived", func(ctx context.Context) {
			ctx, stop := context.WithCancelCause(ctx)
			defer stop(nil)
			<-ctx.Done()
		}},
		{"poll", func(ctx context.Context) {
			for ctx.Err() == nil {
				time.Sleep(700 * time.Microsecond) //archtest:real-time not real: every use is inside a bubble
			}
		}},
		{"token", func(ctx context.Context) {
			for !module.FromContext(ctx).Token().IsCancelled() {
				time.Sleep(700 * time.Microsecond) //archtest:real-time not real: every use is inside a bubble
			}
		}},
		{"nested", func(ctx context.Context) {
			_, _ = module.FromContext(ctx).Executor().Call(ctx, "waits", nil)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x, _ := setup{
					cfg: executor.Config{DefaultTimeout: new(15 * time.Millisecond)},
					modules: []module.Module{
						module.New("m", "Wait", func(ctx context.Context, _ struct{}) (napOut, error) {
							tt.wait(ctx)
							return napOut{Inline: ctx.Err() != nil && cancel.ReasonOf(context.Cause(ctx)) == cancel.Timeout}, nil
						}, module.WithInline()),
						module.New("waits", "Wait", func(ctx context.Context, _ struct{}) (napOut, error) {
							<-ctx.Done()
							return napOut{}, context.Cause(ctx)
						}, module.WithTimeout(time.Hour)),
					},
				}.build(t)
				began := time.Now()
				_, err := x.Call(t.Context(), "m", nil)
				wantCode(t, err, module.CodeModuleTimeout)
				if took := time.Since(began).Truncate(time.Millisecond); took != 15*time.Millisecond {
					t.Errorf("took %v", took)
				}
				if partial, _ := module.AsError(err).Details["partial"].(map[string]any); partial["inline"] != true {
					t.Errorf("the module saw no timeout: %v", module.AsError(err).Details)
				}
			})
		})
	}
}
