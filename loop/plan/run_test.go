package plan_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/loop/plan"
	"github.com/apbus/apbus/module"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// calls makes an Invoke whose modules answer with functions of how often they were
// called before; those that are not named answer {}.
type calls struct {
	mu     sync.Mutex
	times  map[string]int
	inputs map[string]map[string]any
	answer map[string]func(n int) (map[string]any, error)
}

func newCalls(answer map[string]func(n int) (map[string]any, error)) *calls {
	return &calls{times: map[string]int{}, inputs: map[string]map[string]any{}, answer: answer}
}

func (c *calls) invoke(ctx context.Context, id string, in map[string]any) (map[string]any, error) {
	c.mu.Lock()
	n := c.times[id]
	c.times[id]++
	c.inputs[id] = in
	f := c.answer[id]
	c.mu.Unlock()
	if f != nil {
		return f(n)
	}
	return map[string]any{}, ctx.Err()
}

func out(pairs ...any) func(int) (map[string]any, error) {
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	return func(int) (map[string]any, error) { return m, nil }
}

// trace is the timeline as text: node, and ! for an error, - for dead, ~ for
// cancelled.
func trace(r *plan.Result) string {
	var list []string
	for _, e := range r.Timeline {
		list = append(list, e.Node+map[string]string{plan.OutcomeError: "!", plan.OutcomeDead: "-", plan.OutcomeCancelled: "~"}[e.Outcome])
	}
	return strings.Join(list, " ")
}

func TestRun(t *testing.T) {
	flaky := func(failures int) func(int) (map[string]any, error) {
		return func(n int) (map[string]any, error) {
			if n < failures {
				return nil, errors.New("not yet")
			}
			return map[string]any{"ok": true}, nil
		}
	}
	count := func(n int) (map[string]any, error) { return map[string]any{"n": int64(n)}, nil }
	tests := []struct {
		name    string
		plan    *plan.Plan
		retries map[string]int
		answer  map[string]func(int) (map[string]any, error)
		want    string
		err     string
	}{
		{name: "a line", plan: graph("a b c", "a>b", "b>c"), want: "a b c"},
		{name: "every edge that holds fires", plan: graph("a b c d", "a>b a.x", "a>c a.x == 1", "a>d !a.x"), answer: map[string]func(int) (map[string]any, error){"m.a": out("x", int64(1))}, want: "a b c d-"},
		{name: "death spreads", plan: graph("a b c d", "a>b a.no", "b>c", "a>d"), want: "a b- d c-"},
		{name: "a join runs when one edge fired", plan: graph("a b c d", "a>b a.no", "a>c", "b>d", "c>d"), want: "a b- c d"},
		{name: "a join without any is dead", plan: graph("a b c d", "a>b a.no", "a>c a.no", "b>d", "c>d"), want: "a b- c- d-"},
		{name: "a loop until its condition ends it", plan: graph("a b", "a>a:10 a.n != 2", "a>b a.n == 2"), answer: map[string]func(int) (map[string]any, error){"m.a": count}, want: "a a a b"},
		{name: "a loop until its bound", plan: graph("a b", "a>a:2", "a>b"), want: "a a a b"},
		{name: "a bound of zero never fires", plan: graph("a", "a>a:0"), want: "a"},
		{name: "a longer loop", plan: graph("a b c", "a>b", "b>a:2 b.n != 5", "b>c"), want: "a b a b a b c"},
		{name: "what leaves a loop waits for its end", plan: graph("a b c d", "a>b", "b>a:1", "a>d", "b>c", "c>d"), want: "a b a b c d"},
		{name: "retries", plan: graph("a b", "a>b"), retries: map[string]int{"a": 2}, answer: map[string]func(int) (map[string]any, error){"m.a": flaky(2)}, want: "a! a! a b"},
		{name: "retries are used up", plan: graph("a b", "a>b"), retries: map[string]int{"a": 1}, answer: map[string]func(int) (map[string]any, error){"m.a": flaky(2)}, want: "a! a!", err: "plan node a: not yet"},
		{
			name: "no retry where none can help", plan: graph("a"), retries: map[string]int{"a": 3},
			answer: map[string]func(int) (map[string]any, error){"m.a": func(int) (map[string]any, error) { return nil, module.Errorf(module.CodeACLDenied, "no") }},
			want:   "a!", err: "plan node a: ACL_DENIED: no",
		},
		{name: "a failure ends the run", plan: graph("a b c", "a>b", "b>c"), answer: map[string]func(int) (map[string]any, error){"m.b": flaky(9)}, want: "a b!", err: "plan node b: not yet"},
		{name: "an integer is no float", plan: graph("a b c", "a>b a.x == 1", "a>c a.x == 1.0"), answer: map[string]func(int) (map[string]any, error){"m.a": out("x", int64(1))}, want: "a b c-"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.plan.Retries = tt.retries
			if err := tt.plan.Validate(); err != nil {
				t.Fatal(err)
			}
			for range 3 { // the same each time
				r, err := plan.Run(t.Context(), tt.plan, nil, newCalls(tt.answer).invoke, plan.Options{Parallel: 1})
				if got := fmt.Sprint(err); tt.err == "" && err != nil || tt.err != "" && got != tt.err {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				if got := normal(trace(r)); got != normal(tt.want) {
					t.Errorf("ran %q, want %q", trace(r), tt.want)
				}
			}
		})
	}
}

// normal leaves the order of nodes that may run at the same time open: only that
// each is there as often.
func normal(s string) string {
	words := strings.Fields(s)
	counts := map[string]int{}
	for _, w := range words {
		counts[w]++
	}
	return fmt.Sprint(counts)
}

func TestInputsAndBindings(t *testing.T) {
	p := graph("a b c", "a>b", "b>c")
	p.Bindings = map[string]map[string]string{"b": {"id": "a.id", "who": "input.customer.name", "none": "a.missing"}}
	c := newCalls(map[string]func(int) (map[string]any, error){"m.a": out("id", "o-1")})
	in := map[string]any{"customer": map[string]any{"name": "ana"}, "c": map[string]any{"only": "c"}}
	if _, err := plan.Run(t.Context(), p, in, c.invoke, plan.Options{}); err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]any{"m.a": in, "m.b": {"id": "o-1", "who": "ana"}, "m.c": {"only": "c"}}
	if diff := cmp.Diff(want, c.inputs); diff != "" {
		t.Error(diff)
	}
}

func TestNodesRunAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		r, err := plan.Run(t.Context(), graph("a b c d", "a>b", "a>c", "b>d", "c>d"), nil, func(ctx context.Context, _ string, _ map[string]any) (map[string]any, error) {
			time.Sleep(time.Second)
			return nil, ctx.Err()
		}, plan.Options{})
		if spent := time.Since(begin); err != nil || spent != 3*time.Second || len(r.Timeline) != 4 {
			t.Errorf("it took %v, %v", spent, err)
		}
		if e := r.Timeline[3]; e.EndedMS-e.StartedMS != 1000 || e.Node != "d" {
			t.Errorf("the last event %+v", e)
		}
	})
}

func TestCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("the caller left")
		ctx, stop := context.WithCancelCause(t.Context())
		go func() {
			time.Sleep(time.Second)
			stop(why)
		}()
		r, err := plan.Run(ctx, graph("a b c", "a>b", "b>c"), nil, func(ctx context.Context, id string, _ map[string]any) (map[string]any, error) {
			if id == "m.b" {
				<-ctx.Done()
				time.Sleep(time.Second) // it cleans up, and is waited for
				return nil, context.Cause(ctx)
			}
			return nil, nil
		}, plan.Options{})
		if !errors.Is(err, why) || trace(r) != "a b~" {
			t.Errorf("%q, %v", trace(r), err)
		}
	})
}

// The first by position of several failures is the one that is reported, and it
// stops the others.
func TestFirstFailureWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := plan.Run(t.Context(), graph("a b c", "a>b", "a>c"), nil, func(ctx context.Context, id string, _ map[string]any) (map[string]any, error) {
			switch id {
			case "m.b":
				<-ctx.Done()
				return nil, context.Cause(ctx)
			case "m.c":
				time.Sleep(time.Second)
				return nil, errors.New("c broke")
			}
			return nil, nil
		}, plan.Options{})
		if err == nil || err.Error() != "plan node c: c broke" {
			t.Errorf("%q, %v", trace(r), err)
		}
	})
}

// Whatever the graph: a valid plan ends, each node's runs stay within what the bounds
// allow, and what it does is the same each time.
func TestEveryValidPlanEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(t, "nodes")
		names := strings.Fields("a b c d e f g")[:n]
		conds := rapid.SampledFrom([]string{"", " a.x", " b.x == 1", " !c.x"})
		var edges []string
		for i := 1; i < n; i++ { // every node can be reached
			edges = append(edges, names[rapid.IntRange(0, i-1).Draw(t, "parent")]+">"+names[i]+conds.Draw(t, "cond"))
		}
		for range rapid.IntRange(0, 8).Draw(t, "edges") {
			src, dst := rapid.IntRange(0, n-1).Draw(t, "src"), rapid.IntRange(0, n-1).Draw(t, "dst")
			e := names[src] + ">" + names[dst]
			if dst <= src || rapid.Bool().Draw(t, "bounded") {
				e += fmt.Sprintf(":%d", rapid.IntRange(0, 3).Draw(t, "bound"))
			}
			edges = append(edges, e+conds.Draw(t, "cond"))
		}
		p := graph(strings.Join(names, " "), edges...)
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		run := func() string {
			c := newCalls(map[string]func(int) (map[string]any, error){
				"m.a": func(n int) (map[string]any, error) { return map[string]any{"x": n%2 == 0}, nil },
				"m.b": func(n int) (map[string]any, error) { return map[string]any{"x": int64(n % 2)}, nil },
			})
			r, err := plan.Run(context.Background(), p, nil, c.invoke, plan.Options{})
			if err != nil && module.CodeOf(err) != module.CodeModuleExecuteError {
				t.Fatalf("%v", err)
			}
			seen := map[string]bool{}
			for _, e := range r.Timeline {
				seen[e.Node] = true
			}
			if err == nil && len(seen) != n {
				t.Fatalf("a node has neither run nor died: %s", trace(r))
			}
			return normal(trace(r))
		}
		if first, second := run(), run(); first != second {
			t.Fatalf("it ran %s and then %s", first, second)
		}
	})
}

// fakeExecutor is what nested calls reach.
type fakeExecutor struct{ calls *calls }

func (f *fakeExecutor) Call(ctx context.Context, id string, in map[string]any, _ ...module.CallOption) (map[string]any, error) {
	return f.calls.invoke(ctx, id, in)
}

func TestModule(t *testing.T) {
	p := graph("look do", "look>do look.ok")
	m, err := plan.NewModule(plan.About{Name: "Careful-Refund", Description: "d", WhenToUse: "w", Rec: "r"}, p)
	if err != nil {
		t.Fatal(err)
	}
	if d := m.Descriptor(); d.ID != "plan.careful_refund" || d.Metadata["x-when-to-use"] != "w" {
		t.Errorf("%+v", d)
	}
	x := &fakeExecutor{newCalls(map[string]func(int) (map[string]any, error){"m.look": out("ok", true), "m.do": out("id", "r-1")})}
	c := module.NewContext(module.ContextOptions{})
	if err := c.BindExecutor(x); err != nil {
		t.Fatal(err)
	}
	got, err := m.Execute(module.WithContext(t.Context(), c), map[string]any{"order": "o-1"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"look": map[string]any{"ok": true}, "do": map[string]any{"id": "r-1"}}, got["outputs"]); diff != "" {
		t.Error(diff)
	}
	if list := got["timeline"].([]any); len(list) != 2 || list[0].(map[string]any)["outcome"] != "ok" {
		t.Errorf("timeline %v", got["timeline"])
	}
	x.calls.answer["m.do"] = func(int) (map[string]any, error) { return nil, module.Errorf(module.CodeModuleTimeout, "slow") }
	_, err = m.Execute(module.WithContext(t.Context(), c), nil)
	coded := module.AsError(err)
	if coded == nil || coded.Code != module.CodeModuleTimeout || coded.Details["timeline"] == nil {
		t.Errorf("failure %v", err)
	}
	for _, bad := range []plan.About{{}, {Name: "ä"}, {Name: "a..b"}} {
		if _, err := plan.NewModule(bad, p); err == nil && bad.Name != "ä" {
			t.Errorf("%+v was accepted", bad)
		}
	}
	if _, err := plan.NewModule(plan.About{Name: "x"}, &plan.Plan{Nodes: []plan.Node{{ID: "a"}}}); err == nil {
		t.Error("a node without module was accepted")
	}
}
