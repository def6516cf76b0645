package executor_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/module"
)

// tree renders what called what.
func tree(t *executor.Trace) string {
	var b strings.Builder
	b.WriteString(t.ModuleID)
	if t.Error != nil {
		b.WriteString(" " + string(t.Error.Code))
	}
	if t.Remote != nil {
		b.WriteString(" remote")
	}
	for _, c := range t.Calls {
		b.WriteString(" (" + tree(c) + ")")
	}
	if t.CallsDropped > 0 {
		fmt.Fprintf(&b, " +%d", t.CallsDropped)
	}
	return b.String()
}

// calling makes a module that calls others, one after the other.
func calling(id string, targets ...string) *mod {
	return fn(id, func(ctx context.Context, in map[string]any) (map[string]any, error) {
		for _, target := range targets {
			if _, err := module.Call(ctx, target, in); err != nil && target != "fails" {
				return nil, err
			}
		}
		return in, nil
	})
}

// A trace holds the calls inside the call, at any depth, failed ones and those of
// other nodes too.
func TestTraceOfNestedCalls(t *testing.T) {
	owner := &remote{invoke: func(_ context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
		if !req.Trace {
			return nil, module.Errorf(module.CodeInternal, "no trace was asked for")
		}
		return &contextwire.Reply{Output: map[string]any{}, Trace: map[string]any{"module_id": req.ModuleID, "node": "n2"}}, nil
	}}
	x := setup{modules: []module.Module{
		calling("root", "a", "fails", "far.away"), calling("a", "b", "b"), fn("b", echo),
		fn("fails", func(context.Context, map[string]any) (map[string]any, error) { return nil, module.Errorf("NO", "no") }),
	}, opts: []executor.Option{executor.WithRemote(owner)}}.executor(t)
	_, tr, err := x.CallWithTrace(t.Context(), "root", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := tree(tr), "root (a (b) (b)) (fails NO) (far.away remote)"; got != want {
		t.Errorf("tree %s, want %s", got, want)
	}
	for _, c := range tr.Calls {
		if c.Offset <= 0 || c.Duration <= 0 || c.Offset+c.Duration > tr.Duration || len(c.Steps) == 0 {
			t.Errorf("%s: offset %v, duration %v of %v, %d steps", c.ModuleID, c.Offset, c.Duration, tr.Duration, len(c.Steps))
		}
	}
	m := tr.Map()
	if calls, _ := m["calls"].([]any); len(calls) != 3 || calls[0].(map[string]any)["offset_ms"] == nil {
		t.Errorf("wire form %v", m["calls"])
	}
	if n := contextwire.CountTraceCalls(m); n != 5 {
		t.Errorf("%d calls in the wire form, want 5", n)
	}
}

// The owner's reply carries the calls that its module made.
func TestTraceOfNestedCallsOverTheBus(t *testing.T) {
	x := setup{modules: []module.Module{calling("a", "b"), fn("b", echo)}}.executor(t)
	reply, err := x.Invoke(t.Context(), &contextwire.Request{ModuleID: "a", Trace: true})
	if err != nil || contextwire.CountTraceCalls(reply.Trace) != 1 {
		t.Fatalf("reply %+v, %v", reply, err)
	}
	if reply, err := x.Invoke(t.Context(), &contextwire.Request{ModuleID: "a"}); err != nil || reply.Trace != nil {
		t.Errorf("untraced: reply %+v, %v", reply, err)
	}
}

// A call that nobody traces leaves nothing in the trace of another, whatever runs
// beside it.
func TestTraceIsOfItsOwnCall(t *testing.T) {
	x := setup{modules: []module.Module{calling("a", "b"), fn("b", echo)}}.executor(t)
	var wg sync.WaitGroup
	defer wg.Wait()
	for range 4 {
		wg.Go(func() {
			for range 50 {
				if _, err := x.Call(t.Context(), "a", nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 50 {
		_, tr, err := x.CallWithTrace(t.Context(), "a", nil)
		if err != nil || tree(tr) != "a (b)" {
			t.Fatalf("tree %s, %v", tree(tr), err)
		}
	}
}

// Calls made at once stand in the order in which they began.
func TestTraceOfCallsAtOnce(t *testing.T) {
	x := setup{modules: []module.Module{fn("b", echo), fn("a", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := module.Call(ctx, "b", nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		return map[string]any{}, nil
	})}}.executor(t)
	_, tr, err := x.CallWithTrace(t.Context(), "a", nil)
	if err != nil || len(tr.Calls) != 20 {
		t.Fatalf("%d calls, %v", len(tr.Calls), err)
	}
	for i, c := range tr.Calls[1:] {
		if c.Offset < tr.Calls[i].Offset {
			t.Errorf("call %d began at %v, the one before it at %v", i+1, c.Offset, tr.Calls[i].Offset)
		}
	}
}

// A trace has an end: what is beyond it is counted, what another node sends too.
func TestTraceIsBounded(t *testing.T) {
	const most = 128
	many := make([]any, 100)
	for i := range many {
		many[i] = map[string]any{"module_id": "x"}
	}
	owner := &remote{invoke: func(context.Context, *contextwire.Request) (*contextwire.Reply, error) {
		return &contextwire.Reply{Output: map[string]any{}, Trace: map[string]any{"module_id": "far", "calls": many}}, nil
	}}
	times := func(n int, target string) *mod {
		return fn("a", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			for range n {
				if _, err := module.Call(ctx, target, nil); err != nil {
					return nil, err
				}
			}
			return map[string]any{}, nil
		})
	}
	for _, tt := range []struct {
		name    string
		a       *mod
		kept    int // direct calls
		dropped int
		all     int // calls at any depth
	}{
		{"own", times(most+7, "b"), most, 7, most},
		{"deep", times(most, "c"), most / 2, most, most}, // those of a dropped call count too
		{"remote", times(2, "far"), 2, 0, 102},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := setup{modules: []module.Module{tt.a, fn("b", echo), calling("c", "b")}, opts: []executor.Option{executor.WithRemote(owner)}}.executor(t)
			_, tr, err := x.CallWithTrace(t.Context(), "a", nil)
			if err != nil || len(tr.Calls) != tt.kept || tr.CallsDropped != tt.dropped {
				t.Fatalf("%d calls, %d dropped, %v; want %d, %d", len(tr.Calls), tr.CallsDropped, err, tt.kept, tt.dropped)
			}
			if n := contextwire.CountTraceCalls(tr.Map()); n != tt.all {
				t.Errorf("%d calls in all, want %d", n, tt.all)
			}
			if tt.name == "remote" && (tr.Calls[1].Remote["calls"] != nil || tr.Calls[1].Remote["calls_dropped"] != int64(100)) {
				t.Errorf("the second: %v", tr.Calls[1].Remote)
			}
		})
	}
}

// What still runs when the call ends is not in its trace, which nobody touches any
// more.
func TestTraceOfACallThatOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := setup{modules: []module.Module{
			fn("b", func(context.Context, map[string]any) (map[string]any, error) {
				time.Sleep(time.Second)
				return map[string]any{}, nil
			}),
			fn("a", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
				go func() { _, _ = module.Call(ctx, "b", nil) }()
				time.Sleep(time.Millisecond)
				return map[string]any{}, nil
			}),
		}}.executor(t)
		_, tr, err := x.CallWithTrace(t.Context(), "a", nil)
		if err != nil || len(tr.Calls) != 0 || tr.CallsDropped != 1 {
			t.Fatalf("%d calls, %d dropped, %v", len(tr.Calls), tr.CallsDropped, err)
		}
		before := tr.Map()
		time.Sleep(2 * time.Second)
		if diff := cmp.Diff(before, tr.Map()); diff != "" {
			t.Errorf("changed afterwards (-before +after):\n%s", diff)
		}
	})
}
