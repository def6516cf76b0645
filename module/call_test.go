package module_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/module"
)

func TestCallOutsideACall(t *testing.T) {
	unbound := module.WithContext(t.Context(), module.NewContext(module.ContextOptions{}))
	for name, ctx := range map[string]context.Context{"no Context": t.Context(), "unbound Context": unbound} {
		out, err := module.Call(ctx, "math.add", nil)
		if out != nil {
			t.Errorf("%s: output %v", name, out)
		}
		hasCode(t, err, module.CodeContextBindingError)
		_, err = module.CallAs[obj](ctx, "math.add", nil)
		hasCode(t, err, module.CodeContextBindingError)
	}
}

func TestCall(t *testing.T) {
	type in struct {
		A int      `json:"a"`
		L []string `json:"l"`
	}
	type out struct {
		Sum int `json:"sum"`
	}
	var got obj
	var gotID string
	x := &executor{call: func(_ context.Context, id string, inputs map[string]any, _ module.CallOptions) (map[string]any, error) {
		gotID, got = id, inputs
		return obj{"sum": int64(3)}, nil
	}}
	ctx := inside(t, x, "a.b", module.CallScope{})
	for _, tt := range []struct {
		name string
		in   any
		want obj
	}{
		{"struct", in{A: 1}, obj{"a": int64(1), "l": []any{}}},
		{"pointer", &in{A: 1}, obj{"a": int64(1), "l": []any{}}},
		{"map", obj{"a": 1}, obj{"a": int64(1)}},
		{"nil", nil, obj{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got = nil
			v, err := module.CallAs[out](ctx, "math.add", tt.in)
			if err != nil || v.Sum != 3 || gotID != "math.add" {
				t.Fatalf("output %v, error %v, called %s", v, err, gotID)
			}
			equal(t, "inputs", got, tt.want)
		})
	}
	t.Run("inputs without a JSON form", func(t *testing.T) {
		got = nil
		_, err := module.Call(ctx, "math.add", obj{"f": func() {}})
		hasCode(t, err, module.CodeInvalidInput)
		if got != nil {
			t.Error("called all the same")
		}
	})
	t.Run("inputs no object", func(t *testing.T) {
		_, err := module.Call(ctx, "math.add", []int{1})
		hasCode(t, err, module.CodeInvalidInput)
	})
}

func TestCallAsMisfit(t *testing.T) {
	type out struct {
		First string `json:"first"`
		Sum   int    `json:"sum"`
	}
	x := &executor{call: func(context.Context, string, map[string]any, module.CallOptions) (map[string]any, error) {
		return obj{"first": "x", "sum": "hunter2"}, nil
	}}
	v, err := module.CallAs[out](inside(t, x, "a.b", module.CallScope{}), "math.add", nil)
	// Not GENERAL_INVALID_INPUT, which would blame the caller's caller.
	hasCode(t, err, module.CodeModuleExecuteError)
	if v != (out{}) {
		t.Errorf("half an output: %v", v)
	}
	if msg := err.Error(); !strings.Contains(msg, "/sum") || strings.Contains(msg, "hunter2") {
		t.Errorf("message %q", msg)
	}
}

func TestCallError(t *testing.T) {
	want := module.Errorf(module.CodeACLDenied, "no")
	x := &executor{call: func(context.Context, string, map[string]any, module.CallOptions) (map[string]any, error) {
		return nil, want
	}}
	ctx := inside(t, x, "a.b", module.CallScope{})
	if _, err := module.CallAs[obj](ctx, "math.add", nil); !errors.Is(err, want) {
		t.Errorf("error %v", err)
	}
}

func TestCallOptions(t *testing.T) {
	id, tp := module.NewIdentity("u", "", nil, nil), &module.TraceParent{TraceID: traceID}
	var got module.CallOptions
	x := &executor{call: func(_ context.Context, _ string, _ map[string]any, o module.CallOptions) (map[string]any, error) {
		got = o
		return obj{}, nil
	}}
	ctx := inside(t, x, "a.b", module.CallScope{})
	_, err := module.Call(ctx, "math.add", nil, module.CallIdentity(id), module.CallTraceParent(tp), module.CallTimeout(0),
		module.CallVersion("^2.1"), module.CallUntil(func(s module.PipelineState) bool { return s.StepName == "acl_check" }))
	if err != nil {
		t.Fatal(err)
	}
	if got.Identity != id || got.TraceParent != tp || got.Timeout == nil || *got.Timeout != 0 || got.VersionHint != "^2.1" ||
		!got.RunUntil(module.PipelineState{StepName: "acl_check"}) {
		t.Errorf("options %+v", got)
	}
	if _, err := module.Call(ctx, "math.add", nil, module.CallTimeout(-time.Second)); err != nil || *got.Timeout != -time.Second {
		t.Error("a negative timeout is the executor's to refuse")
	}
	if _, err := module.Call(ctx, "math.add", nil); err != nil || got.Timeout != nil {
		t.Error("no option, no timeout")
	}
}

func TestProgress(t *testing.T) {
	var got []module.ProgressReport
	ctx := inside(t, &executor{}, "a.b", module.CallScope{Progress: func(r module.ProgressReport) { got = append(got, r) }})
	module.Progress(ctx, 1, 4, "first")
	module.Progress(ctx, 2, 0, "")
	module.Progress(ctx, math.NaN(), 1, "not a number")
	module.Progress(ctx, 1, math.Inf(1), "not finite")
	want := []module.ProgressReport{{Done: 1, Total: 4, Note: "first"}, {Done: 2}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Nobody listens: outside a call, in a call without a listener, in a nested call.
	module.Progress(t.Context(), 1, 1, "")
	module.Progress(inside(t, &executor{}, "a.b", module.CallScope{}), 1, 1, "")
	nested := module.FromContext(ctx).Enter("b.c", module.CallScope{})
	module.Progress(module.WithContext(t.Context(), nested), 1, 1, "")
	if len(got) != 2 {
		t.Errorf("a nested call reports to its own caller, not here: %v", got)
	}
}
