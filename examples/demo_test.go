package examples_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/examples"
	"github.com/apbus/apbus/module"
)

const trace = "4bf92f3577b34da6a3ce929d0e0e4736"

func TestWhoami(t *testing.T) {
	x := newDirect(t, examples.Options{Node: "n1", Groups: []string{"demo", "near"}})
	c := module.NewContext(module.ContextOptions{
		TraceParent: &module.TraceParent{TraceID: trace},
		Identity:    module.NewIdentity("ana", "user", []string{"ops"}, obj("team", "pay")),
		Data:        obj("tenant", "t1", "_local", 1),
	})
	if err := c.BindExecutor(x); err != nil {
		t.Fatal(err)
	}
	ctx := module.WithContext(t.Context(), c.Enter("test.caller", module.CallScope{Call: module.CallInfo{ID: "call-1", Attempt: 2}}))
	got, err := x.Call(ctx, "near.whoami", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := obj("node", "n1", "module_id", "near.whoami", "trace_id", trace,
		"caller_id", "test.caller", "call_chain", []any{"test.caller", "near.whoami"},
		"identity", obj("id", "ana", "type", "user", "roles", []any{"ops"}, "attrs", obj("team", "pay")),
		"data", obj("tenant", "t1"), "budget_ms", nil, "attempt", int64(2))
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestWhoamiAtTheTop(t *testing.T) {
	x := newDirect(t, examples.Options{Groups: []string{"demo"}})
	got := mustCall(t, x, "demo.whoami", nil)
	delete(got, "trace_id")
	want := obj("node", "local", "module_id", "demo.whoami", "caller_id", nil, "call_chain", []any{"demo.whoami"},
		"identity", nil, "data", obj(), "budget_ms", nil)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestWhoamiShowsTheBudget(t *testing.T) {
	mods := newDirect(t, examples.Options{Groups: []string{"demo"}})
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer stop()
		out, err := mods.Call(ctx, "demo.whoami", nil)
		if err != nil {
			t.Fatal(err)
		}
		if out["budget_ms"] != int64(1500) {
			t.Errorf("budget_ms = %v, want 1500", out["budget_ms"])
		}
	})
}

func TestModulesOutsideACall(t *testing.T) {
	x := newDirect(t, examples.Options{})
	for id, in := range map[string]map[string]any{
		"demo.whoami":  obj(),
		"demo.chain":   obj("path", []any{}),
		"orders.place": obj("customer", "ana", "items", items("tea", int64(1)), "card", "4111"),
	} {
		_, err := x.mods[id].Execute(t.Context(), in)
		wantCode(t, err, module.CodeContextBindingError)
	}
}

func TestSleepReportsItsSteps(t *testing.T) {
	x := newDirect(t, examples.Options{Groups: []string{"demo"}})
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var got []string
		c := module.NewContext(module.ContextOptions{}).Enter("demo.sleep", module.CallScope{
			Progress: func(p module.ProgressReport) {
				got = append(got, fmt.Sprintf("%v/%v at %v", p.Done, p.Total, time.Since(start)))
			},
		})
		out, err := x.mods["demo.sleep"].Execute(module.WithContext(t.Context(), c), obj("ms", int64(1000), "steps", int64(4)))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(obj("slept_ms", int64(1000)), out); d != "" {
			t.Error(d)
		}
		want := []string{"1/4 at 250ms", "2/4 at 500ms", "3/4 at 750ms", "4/4 at 1s"}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	})
}

func TestSleepAndCancellation(t *testing.T) {
	because := errors.New("changed my mind")
	for _, tt := range []struct {
		name   string
		inputs map[string]any
		want   time.Duration
		err    error
	}{
		{"obeys at once", obj("ms", 60_000), time.Second, because},
		{"obeys between steps", obj("ms", 60_000, "steps", 100_000), time.Second, because},
		{"stubborn sleeps on", obj("ms", 3_000, "stubborn", true), 3 * time.Second, nil},
		{"a very long sleep does not overflow", obj("ms", int64(1)<<62), time.Second, because},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := newDirect(t, examples.Options{Groups: []string{"far"}})
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancelCause(t.Context())
				defer stop(nil)
				time.AfterFunc(time.Second, func() { stop(because) })
				start := time.Now()
				_, err := x.Call(ctx, "far.sleep", tt.inputs)
				if !errors.Is(err, tt.err) {
					t.Errorf("err = %v, want %v", err, tt.err)
				}
				if got := time.Since(start); got != tt.want {
					t.Errorf("returned after %v, want %v", got, tt.want)
				}
			})
		})
	}
}

func TestSleepDeclaresItsTimeout(t *testing.T) {
	x := newDirect(t, examples.Options{})
	for id, m := range x.mods {
		got := m.Descriptor().Timeout
		isSleep := strings.HasSuffix(id, ".sleep")
		if isSleep && (got == nil || *got != 600*time.Second) || !isSleep && got != nil {
			t.Errorf("%s declares the timeout %v", id, got)
		}
	}
}

func TestFail(t *testing.T) {
	x := newDirect(t, examples.Options{Groups: []string{"demo"}})
	for _, tt := range []struct {
		name      string
		inputs    map[string]any
		code      module.Code
		message   string
		retryable module.Tri
	}{
		{"bare", obj(), "MODULE_EXECUTE_ERROR", "failed as asked", module.Unset},
		{"coded", obj("code", "SHOP_CLOSED", "message", "100% closed"), "SHOP_CLOSED", "100% closed", module.Unset},
		{"retryable", obj("retryable", true), "MODULE_EXECUTE_ERROR", "failed as asked", module.True},
		{"default of the code", obj("code", "BUS_OVERLOADED"), "BUS_OVERLOADED", "failed as asked", module.True},
		{"against the code", obj("code", "BUS_OVERLOADED", "retryable", false), "BUS_OVERLOADED", "failed as asked", module.False},
		{"times without key", obj("times", 1), "MODULE_EXECUTE_ERROR", "failed as asked", module.Unset},
		{"key without times", obj("key", "k"), "MODULE_EXECUTE_ERROR", "failed as asked", module.Unset},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 {
				_, err := x.Call(t.Context(), "demo.fail", tt.inputs)
				e := module.AsError(err)
				if e == nil {
					t.Fatalf("err = %v, want a coded one", err)
				}
				if e.Code != tt.code || e.Message != tt.message || e.Retryable != tt.retryable {
					t.Errorf("got %s %q retryable %v, want %s %q %v", e.Code, e.Message, e.Retryable, tt.code, tt.message, tt.retryable)
				}
			}
		})
	}
}

func TestFailUntil(t *testing.T) {
	x := newDirect(t, examples.Options{Groups: []string{"demo"}})
	call := func(key string, times int) bool {
		_, err := x.Call(t.Context(), "demo.fail", obj("key", key, "times", times))
		return err == nil
	}
	var got []bool
	for range 4 {
		got = append(got, call("k", 2))
	}
	got = append(got, call("other", 1), call("other", 1), call("never", 0))
	if d := cmp.Diff([]bool{false, false, true, true, false, true, true}, got); d != "" {
		t.Error(d)
	}
}

func TestFailCountsConcurrentCalls(t *testing.T) {
	x := newDirect(t, examples.Options{Groups: []string{"demo"}})
	const times, calls = 40, 100
	var mu sync.Mutex
	failed := 0
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			if _, err := x.Call(t.Context(), "demo.fail", obj("key", "k", "times", times)); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed++
			}
		})
	}
	wg.Wait()
	if failed != times {
		t.Errorf("%d calls failed, want %d", failed, times)
	}
}

func TestChain(t *testing.T) {
	x := newDirect(t, examples.Options{Node: "n1", Groups: []string{"demo", "near", "far"}})
	out := mustCall(t, x, "demo.chain", obj("path", []any{"near.chain", "far.chain", "near.sleep"}, "input", obj("ms", 1)))
	var got []string
	traces := map[string]bool{}
	for _, h := range out["hops"].([]any) {
		hop := h.(map[string]any)
		traces[hop["trace_id"].(string)] = true
		got = append(got, fmt.Sprint(hop["node"], " ", hop["module_id"], " ", hop["caller_id"], " ", hop["call_chain"]))
	}
	want := []string{
		"n1 demo.chain <nil> [demo.chain]",
		"n1 near.chain demo.chain [demo.chain near.chain]",
		"n1 far.chain near.chain [demo.chain near.chain far.chain]",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if len(traces) != 1 {
		t.Errorf("%d traces, want one", len(traces))
	}
	if d := cmp.Diff(obj("slept_ms", int64(1)), out["last"]); d != "" {
		t.Error(d)
	}
}

func TestChainEnds(t *testing.T) {
	x := newDirect(t, examples.Options{Groups: []string{"demo", "near", "far"}})
	for _, tt := range []struct {
		name string
		path []any
		hops int
		last func(map[string]any) bool
		code module.Code
	}{
		{"no path", []any{}, 1, func(m map[string]any) bool { return len(m) == 0 }, ""},
		{"a chain last", []any{"near.chain"}, 2, func(m map[string]any) bool { return len(m) == 0 }, ""},
		{"a module last", []any{"far.whoami"}, 1, func(m map[string]any) bool { return m["caller_id"] == "demo.chain" }, ""},
		{"a module in the middle", []any{"far.whoami", "near.chain"}, 0, nil, module.CodeInvalidInput},
		{"an unknown module", []any{"near.chain", "no.such"}, 0, nil, module.CodeModuleNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := x.Call(t.Context(), "demo.chain", obj("path", tt.path))
			wantCode(t, err, tt.code)
			if err != nil {
				return
			}
			if got := len(out["hops"].([]any)); got != tt.hops {
				t.Errorf("%d hops, want %d", got, tt.hops)
			}
			if !tt.last(out["last"].(map[string]any)) {
				t.Errorf("last = %v", out["last"])
			}
		})
	}
}

func TestEffectAppendsOneLineACall(t *testing.T) {
	log := filepath.Join(t.TempDir(), "effects")
	x := newDirect(t, examples.Options{Node: "n1", EffectLog: log, Groups: []string{"demo"}})
	const calls = 50
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			c := module.NewContext(module.ContextOptions{}).Enter("demo.effect",
				module.CallScope{Call: module.CallInfo{ID: "c", Attempt: 1 + i%3}})
			if _, err := x.mods["demo.effect"].Execute(module.WithContext(t.Context(), c), obj("key", "k")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	raw, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
	if len(lines) != calls {
		t.Errorf("%d lines, want %d", len(lines), calls)
	}
	slices.Sort(lines)
	if d := cmp.Diff([]string{"k 1 n1", "k 2 n1", "k 3 n1"}, slices.Compact(lines)); d != "" {
		t.Error(d)
	}
	if got := mustCall(t, x, "demo.effect", obj("key", "k"))["count"]; got != int64(calls+1) {
		t.Errorf("count = %v, want %d", got, calls+1)
	}
	if got := mustCall(t, x, "demo.effect", obj("key", "other"))["count"]; got != int64(1) {
		t.Errorf("count of another key = %v, want 1", got)
	}
}

func TestEffectThatCannotBeWrittenFails(t *testing.T) {
	x := newDirect(t, examples.Options{EffectLog: filepath.Join(t.TempDir(), "no", "such", "folder"), Groups: []string{"demo"}})
	if _, err := x.Call(t.Context(), "demo.effect", obj("key", "k")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("err = %v, want %v", err, os.ErrNotExist)
	}
}

func TestEffectOfACancelledCall(t *testing.T) {
	log := filepath.Join(t.TempDir(), "effects")
	x := newDirect(t, examples.Options{EffectLog: log, Groups: []string{"demo"}})
	because := errors.New("stop")
	ctx, stop := context.WithCancelCause(t.Context())
	stop(because)
	if _, err := x.Call(ctx, "demo.effect", obj("key", "k")); !errors.Is(err, because) {
		t.Errorf("err = %v, want the cause", err)
	}
	if _, err := os.Stat(log); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a call that was over before it began had its effect (%v)", err)
	}
}
