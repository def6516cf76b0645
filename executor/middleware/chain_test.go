package middleware_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

type obj = map[string]any

// journal notes which hooks ran.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

// noting makes a middleware that notes every hook and changes nothing.
func noting(j *journal, name string, rank int) *middleware.Funcs {
	return &middleware.Funcs{
		Label: name, Rank: &rank,
		OnBefore: func(context.Context, *middleware.Call) (map[string]any, error) {
			j.add("before %s", name)
			return nil, nil
		},
		OnAfter: func(context.Context, *middleware.Call, map[string]any) (map[string]any, error) {
			j.add("after %s", name)
			return nil, nil
		},
		OnFailure: func(context.Context, *middleware.Call, *module.Error) (middleware.Recovery, error) {
			j.add("on_error %s", name)
			return middleware.Recovery{}, nil
		},
	}
}

func chain(t testing.TB, list ...middleware.Middleware) *middleware.Chain {
	t.Helper()
	c, err := middleware.NewChain(slog.New(slog.DiscardHandler), list...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newCall(inputs obj) *middleware.Call {
	return &middleware.Call{ModuleID: "math.add", Inputs: inputs, Context: module.NewContext(module.ContextOptions{})}
}

func TestOrder(t *testing.T) {
	var j journal
	c := chain(t, noting(&j, "low", 5), noting(&j, "first", 100), noting(&j, "high", 900), noting(&j, "second", 100))
	call := newCall(nil)
	_, entered, err := c.Before(t.Context(), call)
	if err != nil || entered != 4 {
		t.Fatalf("entered %d, %v", entered, err)
	}
	if _, err := c.After(t.Context(), call, obj{}); err != nil {
		t.Fatal(err)
	}
	c.OnError(t.Context(), call, 4, module.Errorf(module.CodeInternal, "x"))
	want := []string{
		"before high", "before first", "before second", "before low",
		"after low", "after second", "after first", "after high",
		"on_error low", "on_error second", "on_error first", "on_error high",
	}
	if diff := cmp.Diff(want, j.lines); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"high", "first", "second", "low"}, c.Names()); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// Whatever the registrations, before runs by priority, then registration, and
// after is its mirror image.
func TestOrderProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var j journal
		var list []middleware.Middleware
		rank := rapid.SampledFrom([]int{middleware.MinPriority, 1, middleware.DefaultPriority, middleware.MaxPriority})
		ranks := rapid.SliceOfN(rank, 0, 40).Draw(rt, "ranks") // long enough for an unstable sort to show
		for i, r := range ranks {
			list = append(list, noting(&j, fmt.Sprintf("%d/%d", r, i), r))
		}
		c, err := middleware.NewChain(nil, list...)
		if err != nil {
			rt.Fatal(err)
		}
		call := newCall(nil)
		_, _, _ = c.Before(t.Context(), call)
		_, _ = c.After(t.Context(), call, obj{})
		n := len(ranks)
		lastRank, lastIndex := middleware.MaxPriority+1, -1
		for i := range n {
			var rank, index int
			if _, err := fmt.Sscanf(j.lines[i], "before %d/%d", &rank, &index); err != nil {
				rt.Fatal(err)
			}
			if rank > lastRank || (rank == lastRank && index < lastIndex) {
				rt.Fatalf("order %v", j.lines[:n])
			}
			lastRank, lastIndex = rank, index
			if strings.TrimPrefix(j.lines[i], "before") != strings.TrimPrefix(j.lines[2*n-1-i], "after") {
				rt.Fatalf("after is no mirror: %v", j.lines)
			}
		}
	})
}

func TestReplacement(t *testing.T) {
	set := func(key string) *middleware.Funcs {
		return &middleware.Funcs{
			Label: key,
			OnBefore: func(_ context.Context, call *middleware.Call) (map[string]any, error) {
				return obj{key: len(call.Inputs)}, nil
			},
			OnAfter: func(_ context.Context, _ *middleware.Call, output map[string]any) (map[string]any, error) {
				return obj{key: len(output)}, nil
			},
		}
	}
	silent := &middleware.Funcs{Label: "silent"}
	call := newCall(obj{"a": 1, "b": 2})
	in, _, err := chain(t, set("x"), silent, set("y"), silent).Before(t.Context(), call)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(obj{"y": 1}, in); diff != "" {
		t.Errorf("inputs, replaced and not merged (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(in, call.Inputs); diff != "" {
		t.Errorf("the call has other inputs (-want +got):\n%s", diff)
	}
	out, err := chain(t, set("x"), silent, set("y")).After(t.Context(), call, obj{"a": 1, "b": 2})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(obj{"x": 1}, out); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
	empty := middleware.UseBefore("empty", func(context.Context, *middleware.Call) (map[string]any, error) { return obj{}, nil })
	if in, _, _ := chain(t, empty).Before(t.Context(), newCall(obj{"a": 1})); len(in) != 0 {
		t.Errorf("an empty map did not replace the inputs: %v", in)
	}
}

func TestInputChanges(t *testing.T) {
	replacing := func(name string, enriches bool) *middleware.Funcs {
		m := middleware.UseBefore(name, func(_ context.Context, call *middleware.Call) (map[string]any, error) { return call.Inputs, nil })
		m.Enriches = enriches
		return m
	}
	c := chain(t, replacing("tenant", true), &middleware.Funcs{Label: "silent", Enriches: true}, replacing("rewrite", false))
	call := newCall(obj{"a": 1})
	for range 2 { // a retry starts over
		if _, _, err := c.Before(t.Context(), call); err != nil {
			t.Fatal(err)
		}
	}
	declared, undeclared := call.InputChanges()
	if diff := cmp.Diff([][]string{{"tenant"}, {"rewrite"}}, [][]string{declared, undeclared}); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"tenant", "silent"}, c.Enrichers()); diff != "" {
		t.Errorf("enrichers (-want +got):\n%s", diff)
	}
}

func TestUseAfter(t *testing.T) {
	m := middleware.UseAfter("a", func(_ context.Context, _ *middleware.Call, out map[string]any) (map[string]any, error) {
		return obj{"n": len(out)}, nil
	})
	c := chain(t, m, &middleware.Funcs{Label: "silent"})
	out, err := c.After(t.Context(), newCall(nil), obj{"a": 1, "b": 2})
	if err != nil || out["n"] != 2 || m.Priority() != middleware.DefaultPriority {
		t.Errorf("got %v, %v, priority %d", out, err, m.Priority())
	}
	if c.OnError(t.Context(), newCall(nil), 2, module.Errorf(module.CodeInternal, "x")).Recovered() {
		t.Error("recovered without a hook")
	}
}

func TestBeforeFailure(t *testing.T) {
	var j journal
	bad := noting(&j, "bad", 500)
	cause := module.Errorf(module.CodeApprovalDenied, "no")
	bad.OnBefore = func(context.Context, *middleware.Call) (map[string]any, error) {
		j.add("before bad")
		return obj{"ignored": true}, cause
	}
	c := chain(t, noting(&j, "one", 900), bad, noting(&j, "three", 1))
	call := newCall(obj{"a": 1})
	in, entered, err := c.Before(t.Context(), call)
	var ce *middleware.ChainError
	if !errors.As(err, &ce) {
		t.Fatalf("got %v", err)
	}
	if module.AsError(err) != cause || ce.Original != error(cause) {
		t.Errorf("the original error is not behind it: %v", err)
	}
	if diff := cmp.Diff([]string{"one", "bad"}, ce.Executed); diff != "" || entered != 2 {
		t.Errorf("entered %d, executed (-want +got):\n%s", entered, diff)
	}
	if ce.Failed != "bad" || ce.Hook != "before" {
		t.Errorf("blames %s of %s", ce.Hook, ce.Failed)
	}
	if diff := cmp.Diff(obj{"a": 1}, in); diff != "" {
		t.Errorf("inputs of the failing hook were taken (-want +got):\n%s", diff)
	}
	coded := ce.Coded()
	want := obj{"middleware": "bad", "hook": "before", "executed_middlewares": []any{"one", "bad"}}
	if coded.Code != module.CodeMiddlewareChain || cmp.Diff(want, coded.Details) != "" {
		t.Errorf("coded form %v, details %v", coded, coded.Details)
	}
	c.OnError(t.Context(), call, entered, cause)
	if diff := cmp.Diff([]string{"before one", "before bad", "on_error bad", "on_error one"}, j.lines); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
}

func TestAfterFailure(t *testing.T) {
	var j journal
	bad := noting(&j, "bad", 500)
	bad.OnAfter = func(context.Context, *middleware.Call, map[string]any) (map[string]any, error) {
		return nil, errors.New("broken")
	}
	c := chain(t, noting(&j, "one", 900), bad, noting(&j, "three", 1))
	out, err := c.After(t.Context(), newCall(nil), obj{"a": 1})
	var ce *middleware.ChainError
	if !errors.As(err, &ce) || ce.Hook != "after" || ce.Failed != "bad" {
		t.Fatalf("got %v", err)
	}
	if diff := cmp.Diff([]string{"one", "bad", "three"}, ce.Executed); diff != "" {
		t.Errorf("executed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"after three"}, j.lines); diff != "" {
		t.Errorf("the chain went on (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(obj{"a": 1}, out); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

func TestOnError(t *testing.T) {
	cause := module.Errorf(module.CodeModuleExecuteError, "secret value")
	type answer struct {
		r     middleware.Recovery
		err   error
		panic bool
	}
	tests := []struct {
		name    string
		answers []answer // in before order; asked in reverse
		entered int
		want    middleware.Recovery
		asked   int
		logged  int
	}{
		{"none", nil, 0, middleware.Recovery{}, 0, 0},
		{"nobody recovers", []answer{{}, {}}, 2, middleware.Recovery{}, 2, 0},
		{"first recovery wins", []answer{{r: middleware.Recovery{Output: obj{"n": 1}}}, {r: middleware.Recovery{Output: obj{"n": 2}}}}, 2, middleware.Recovery{Output: obj{"n": 2}}, 1, 0},
		{"an empty output is a recovery", []answer{{r: middleware.Recovery{Output: obj{}}}}, 1, middleware.Recovery{Output: obj{}}, 1, 0},
		{"retry", []answer{{}, {r: middleware.Recovery{Retry: obj{"n": 3}}}}, 2, middleware.Recovery{Retry: obj{"n": 3}}, 1, 0},
		{"failure is skipped", []answer{{r: middleware.Recovery{Output: obj{"n": 1}}}, {err: cause}}, 2, middleware.Recovery{Output: obj{"n": 1}}, 2, 1},
		{"a failing hook recovers nothing", []answer{{r: middleware.Recovery{Output: obj{"n": 1}}, err: errors.New("secret value")}}, 1, middleware.Recovery{}, 1, 1},
		{"panic is skipped", []answer{{r: middleware.Recovery{Output: obj{"n": 1}}}, {panic: true}}, 2, middleware.Recovery{Output: obj{"n": 1}}, 2, 1},
		{"both is a fault", []answer{{r: middleware.Recovery{Output: obj{}, Retry: obj{}}}}, 1, middleware.Recovery{}, 1, 1},
		{"only what was entered", []answer{{}, {r: middleware.Recovery{Output: obj{"n": 2}}}}, 1, middleware.Recovery{}, 1, 0},
		{"more than there is", []answer{{}}, 9, middleware.Recovery{}, 1, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var log bytes.Buffer
			asked := 0
			var list []middleware.Middleware
			for i, a := range tt.answers {
				list = append(list, &middleware.Funcs{Label: fmt.Sprint("m", i), OnFailure: func(_ context.Context, _ *middleware.Call, err *module.Error) (middleware.Recovery, error) {
					asked++
					if err != cause {
						t.Errorf("asked about %v", err)
					}
					if a.panic {
						panic("secret value")
					}
					return a.r, a.err
				}})
			}
			c, err := middleware.NewChain(slog.New(slog.NewTextHandler(&log, nil)), list...)
			if err != nil {
				t.Fatal(err)
			}
			got := c.OnError(t.Context(), newCall(nil), tt.entered, cause)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("recovery (-want +got):\n%s", diff)
			}
			if asked != tt.asked {
				t.Errorf("asked %d hooks, want %d", asked, tt.asked)
			}
			if n := strings.Count(log.String(), "error hook failed"); n != tt.logged {
				t.Errorf("%d log records, want %d:\n%s", n, tt.logged, log.String())
			}
			if strings.Contains(log.String(), "secret") {
				t.Errorf("the log shows an error's text:\n%s", log.String())
			}
		})
	}
}

func TestPanics(t *testing.T) {
	boom := &middleware.Funcs{
		Label:    "boom",
		OnBefore: func(context.Context, *middleware.Call) (map[string]any, error) { panic("secret value") },
		OnAfter: func(context.Context, *middleware.Call, map[string]any) (map[string]any, error) {
			panic(errors.New("secret value"))
		},
	}
	c := chain(t, boom)
	_, entered, before := c.Before(t.Context(), newCall(nil))
	_, after := c.After(t.Context(), newCall(nil), nil)
	if entered != 1 {
		t.Errorf("entered %d", entered)
	}
	for hook, err := range map[string]error{"before": before, "after": after} {
		var p *middleware.PanicError
		if module.CodeOf(err) != module.CodeInternal || !errors.As(err, &p) || p.Hook != hook || len(p.Stack) == 0 {
			t.Errorf("%s: got %v", hook, err)
			continue
		}
		if strings.Contains(err.Error(), "secret") || strings.Contains(module.AsError(err).CauseText(), "secret") {
			t.Errorf("%s: the error shows the panic value: %v", hook, err)
		}
	}
}

type limiter struct {
	middleware.Funcs
	at    time.Time
	panic bool
}

func (l *limiter) Limit(*middleware.Call) (time.Time, bool) {
	if l.panic {
		panic("x")
	}
	return l.at, !l.at.IsZero()
}

func TestLimit(t *testing.T) {
	now := time.Now()
	lim := func(at time.Time) *limiter { return &limiter{Funcs: middleware.Funcs{Label: "l"}, at: at} }
	tests := []struct {
		name string
		list []middleware.Middleware
		want time.Time
	}{
		{"none", nil, time.Time{}},
		{"no limit", []middleware.Middleware{lim(time.Time{})}, time.Time{}},
		{"earliest", []middleware.Middleware{lim(now.Add(2)), lim(now.Add(1)), lim(time.Time{}), lim(now.Add(3))}, now.Add(1)},
		{"panic", []middleware.Middleware{&limiter{Funcs: middleware.Funcs{Label: "l"}, panic: true}, lim(now)}, now},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := chain(t, tt.list...).Limit(newCall(nil))
			if !got.Equal(tt.want) || ok == tt.want.IsZero() {
				t.Errorf("got %v, %v; want %v", got, ok, tt.want)
			}
		})
	}
}

func TestState(t *testing.T) {
	call := newCall(nil)
	a, b := new(int), new(int)
	if call.State(a) != nil {
		t.Error("state of a fresh call")
	}
	call.SetState(a, 1)
	call.SetState(b, 2)
	call.SetState(a, 3)
	if call.State(a) != 3 || call.State(b) != 2 {
		t.Errorf("got %v, %v", call.State(a), call.State(b))
	}
}

func TestEmptyChainCostsNothing(t *testing.T) {
	call, ctx, err := newCall(obj{"a": 1}), t.Context(), module.Errorf(module.CodeInternal, "x")
	for name, c := range map[string]*middleware.Chain{"nil": nil, "empty": chain(t)} {
		out := obj{"b": 2}
		n := testing.AllocsPerRun(100, func() {
			in, entered, e := c.Before(ctx, call)
			o, e2 := c.After(ctx, call, out)
			_, limited := c.Limit(call)
			if len(in) != 1 || entered != 0 || e != nil || len(o) != 1 || e2 != nil || limited || c.OnError(ctx, call, 0, err).Recovered() {
				panic("the empty chain did something")
			}
		})
		if n != 0 || c.Len() != 0 || len(c.Names()) != 0 {
			t.Errorf("%s: %v allocations, %d middlewares", name, n, c.Len())
		}
	}
}

func BenchmarkChain(b *testing.B) {
	pass := func(name string) middleware.Middleware {
		return &middleware.Funcs{
			Label:    name,
			OnBefore: func(context.Context, *middleware.Call) (map[string]any, error) { return nil, nil },
			OnAfter:  func(context.Context, *middleware.Call, map[string]any) (map[string]any, error) { return nil, nil },
		}
	}
	for name, c := range map[string]*middleware.Chain{"0": chain(b), "3": chain(b, pass("a"), pass("b"), pass("c"))} {
		b.Run(name, func(b *testing.B) {
			call, out := newCall(obj{"a": 1}), obj{}
			b.ReportAllocs()
			for b.Loop() {
				_, _, _ = c.Before(b.Context(), call)
				_, _ = c.After(b.Context(), call, out)
			}
		})
	}
}
