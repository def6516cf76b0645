package executor_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/module"
)

func distinct(n int) []string {
	chain := make([]string, n)
	for i := range chain {
		chain[i] = fmt.Sprintf("m%d", i)
	}
	return chain
}

func TestGuardCallChain(t *testing.T) {
	tests := []struct {
		name    string
		chain   []string // target last
		depth   int
		repeat  int
		want    module.Code
		details map[string]any
	}{
		{"target alone", []string{"a"}, 32, 3, "", nil},
		{"empty", nil, 32, 3, "", nil},
		{"exactly the depth", distinct(32), 32, 3, "", nil},
		{"one deeper", distinct(33), 32, 3, module.CodeCallDepthExceeded, map[string]any{"module_id": "m32", "depth": int64(33), "max_depth": int64(32)}},
		{"cycle", []string{"a", "b", "a"}, 32, 3, module.CodeCircularCall, map[string]any{"module_id": "a", "cycle_start": int64(0)}},
		{"cycle starts at the last occurrence", []string{"a", "a", "b", "c", "a"}, 32, 9, module.CodeCircularCall, map[string]any{"cycle_start": int64(1)}},
		{"itself is no cycle", []string{"a", "a"}, 32, 3, "", nil},
		{"three times", []string{"a", "a", "a"}, 32, 3, "", nil},
		{"four times", []string{"a", "a", "a", "a"}, 32, 3, module.CodeCallFrequencyExceeded, map[string]any{"module_id": "a", "count": int64(4), "max_repeat": int64(3)}},
		{"other cycles do not concern the target", []string{"b", "c", "b", "a"}, 32, 3, "", nil},
		{"depth before cycle", []string{"a", "b", "a"}, 2, 3, module.CodeCallDepthExceeded, nil},
		{"cycle before frequency", []string{"a", "b", "a"}, 32, 1, module.CodeCircularCall, nil},
		{"repeats far from the end", []string{"a", "b", "a", "a"}, 32, 2, module.CodeCallFrequencyExceeded, map[string]any{"count": int64(3)}},
		{"no depth", []string{"a"}, 0, 3, module.CodeInvalidInput, nil},
		{"no repeat", []string{"a"}, 32, 0, module.CodeInvalidInput, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			target := ""
			if len(tt.chain) > 0 {
				target = tt.chain[len(tt.chain)-1]
			}
			err := executor.GuardCallChain(target, tt.chain, tt.depth, tt.repeat)
			if got := module.CodeOf(err); got != tt.want {
				t.Fatalf("code = %q, want %q", got, tt.want)
			}
			if err == nil {
				return
			}
			e := module.AsError(err)
			for k, want := range tt.details {
				if diff := cmp.Diff(want, e.Details[k]); diff != "" {
					t.Errorf("details.%s (-want +got):\n%s", k, diff)
				}
			}
			if e.Code != module.CodeInvalidInput && len(e.Details["call_chain"].([]any)) != len(tt.chain) {
				t.Errorf("details.call_chain = %v", e.Details["call_chain"])
			}
		})
	}
}

// The guard agrees with the definition of A20 written out naively.
func TestGuardCallChainProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chain := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 1, 8).Draw(t, "chain")
		depth, repeat := rapid.IntRange(1, 8).Draw(t, "depth"), rapid.IntRange(1, 4).Draw(t, "repeat")
		target := chain[len(chain)-1]
		before := chain[:len(chain)-1]
		last := -1
		for i, id := range before {
			if id == target {
				last = i
			}
		}
		count := 0
		for _, id := range chain {
			if id == target {
				count++
			}
		}
		var want module.Code
		switch {
		case len(chain) > depth:
			want = module.CodeCallDepthExceeded
		case last >= 0 && len(before[last+1:]) > 0:
			want = module.CodeCircularCall
		case count > repeat:
			want = module.CodeCallFrequencyExceeded
		}
		if got := module.CodeOf(executor.GuardCallChain(target, chain, depth, repeat)); got != want {
			t.Fatalf("%v depth %d repeat %d: %q, want %q", chain, depth, repeat, got, want)
		}
	})
}

func TestGuardThroughCall(t *testing.T) {
	var chain []string
	x := setup{modules: []module.Module{fn("last", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
		chain = module.FromContext(ctx).CallChain()
		return map[string]any{}, nil
	})}}.executor(t)
	call := func(parents int) error {
		parent := module.RestoreContext(module.ContextWire{TraceID: module.NewTraceID(), CallChain: distinct(parents)})
		_, err := x.Call(module.WithContext(t.Context(), parent), "last", nil)
		return err
	}
	if err := call(31); err != nil {
		t.Fatalf("a chain of 32 with the target: %v", err)
	}
	if !slices.Equal(chain, append(distinct(31), "last")) {
		t.Errorf("chain = %v", chain)
	}
	err := call(32)
	wantCode(t, err, module.CodeCallDepthExceeded)
	wantStep(t, err, executor.StepCallChainGuard)
}

func TestNestedCyclesAreCaught(t *testing.T) {
	x := setup{modules: []module.Module{
		fn("a", func(ctx context.Context, _ map[string]any) (map[string]any, error) { return module.Call(ctx, "b", nil) }),
		fn("b", func(ctx context.Context, _ map[string]any) (map[string]any, error) { return module.Call(ctx, "a", nil) }),
		fn("self", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			return module.Call(ctx, "self", nil)
		}),
	}}.executor(t)
	_, err := x.Call(t.Context(), "a", nil)
	e := wantCode(t, err, module.CodeCircularCall)
	if diff := cmp.Diff([]any{"a", "b", "a"}, e.Details["call_chain"]); diff != "" {
		t.Errorf("chain (-want +got):\n%s", diff)
	}
	_, err = x.Call(t.Context(), "self", nil)
	wantCode(t, err, module.CodeCallFrequencyExceeded)
}
