package executor_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

func echo(_ context.Context, in map[string]any) (map[string]any, error) { return in, nil }

func TestCallEntryGuard(t *testing.T) {
	ran := false
	x := setup{modules: []module.Module{fn("a.b", func(context.Context, map[string]any) (map[string]any, error) {
		ran = true
		return map[string]any{}, nil
	})}}.executor(t)
	tests := []struct {
		name   string
		id     string
		inputs map[string]any
		opts   []module.CallOption
		want   module.Code
	}{
		{"empty", "", nil, nil, module.CodeInvalidModuleID},
		{"upper case", "A.b", nil, nil, module.CodeInvalidModuleID},
		{"too long", strings.Repeat("a", 193), nil, nil, module.CodeInvalidModuleID},
		{"negative timeout", "a.b", nil, []module.CallOption{module.CallTimeout(-1)}, module.CodeInvalidInput},
		{"no json form", "a.b", map[string]any{"n": math.NaN()}, nil, module.CodeInvalidInput},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := x.Call(t.Context(), tt.id, tt.inputs, tt.opts...)
			wantCode(t, err, tt.want)
			if step := new(executor.StepError); errors.As(err, &step) {
				t.Errorf("refused by step %s, want the guard before any step", step.Step)
			}
			if ran {
				t.Error("the module ran")
			}
		})
	}
}

func TestCallInputs(t *testing.T) {
	var seen map[string]any
	x := setup{modules: []module.Module{fn("a", func(_ context.Context, in map[string]any) (map[string]any, error) {
		seen = in
		return map[string]any{"n": 1, "list": []int{1, 2}}, nil
	})}}.executor(t)

	out, err := x.Call(t.Context(), "a", nil)
	if err != nil || seen == nil || len(seen) != 0 {
		t.Fatalf("nil inputs reached the module as %v, error %v; want an empty map", seen, err)
	}
	want := map[string]any{"n": int64(1), "list": []any{int64(1), int64(2)}}
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("output is not in the JSON data model (-want +got):\n%s", diff)
	}
	given := map[string]any{"n": 7, "s": struct {
		A int `json:"a"`
	}{3}}
	if _, err := x.Call(t.Context(), "a", given); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"n": int64(7), "s": map[string]any{"a": int64(3)}}, seen); diff != "" {
		t.Errorf("inputs (-want +got):\n%s", diff)
	}
	if given["n"] != 7 {
		t.Error("the caller's map was changed")
	}
}

func TestCallResults(t *testing.T) {
	foreign := errors.New("disk full")
	tests := []struct {
		name string
		m    *mod
		in   map[string]any
		want module.Code
		step string
	}{
		{"nil output", fn("m", func(context.Context, map[string]any) (map[string]any, error) { return nil, nil }), nil,
			module.CodeModuleExecuteError, executor.StepExecute},
		{"output without json form", fn("m", func(context.Context, map[string]any) (map[string]any, error) {
			return map[string]any{"f": func() {}}, nil
		}), nil, module.CodeModuleExecuteError, executor.StepExecute},
		{"foreign error", fn("m", func(context.Context, map[string]any) (map[string]any, error) { return nil, foreign }), nil,
			module.CodeModuleExecuteError, executor.StepExecute},
		{"coded error", fn("m", func(context.Context, map[string]any) (map[string]any, error) {
			return nil, module.Errorf("MINE_ODD", "odd")
		}), nil, "MINE_ODD", executor.StepExecute},
		{"deadline of its own", fn("m", func(context.Context, map[string]any) (map[string]any, error) {
			return nil, context.DeadlineExceeded
		}), nil, module.CodeModuleTimeout, executor.StepExecute},
		{"wrong inputs", &mod{desc: module.Descriptor{ID: "m", InputSchema: object(map[string]any{"n": map[string]any{"type": "integer"}}, "n")}},
			map[string]any{"n": "secret text"}, module.CodeSchemaValidation, executor.StepInputValidation},
		{"wrong output", &mod{desc: module.Descriptor{ID: "m", OutputSchema: object(map[string]any{"n": map[string]any{"type": "integer"}}, "n")}},
			nil, module.CodeSchemaValidation, executor.StepOutputValidation},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x := setup{modules: []module.Module{tt.m}}.executor(t)
			_, err := x.Call(t.Context(), "m", tt.in)
			e := wantCode(t, err, tt.want)
			wantStep(t, err, tt.step)
			if !errors.Is(err, &module.Error{Code: module.CodePipelineStep}) {
				t.Error("errors.Is does not match PIPELINE_STEP_ERROR")
			}
			if e.ModuleID != "m" || e.TraceID == "" || e.Timestamp.IsZero() {
				t.Errorf("the error does not say where it happened: %+v", e)
			}
			if e.Unexecuted {
				t.Error("the error claims that the module was not started")
			}
		})
	}
	x := setup{modules: []module.Module{tests[2].m}}.executor(t)
	if _, err := x.Call(t.Context(), "m", nil); !errors.Is(err, foreign) {
		t.Errorf("%v does not keep its cause", err)
	}
}

func TestCallSchemaDetails(t *testing.T) {
	x := setup{modules: []module.Module{&mod{desc: module.Descriptor{ID: "m", InputSchema: object(map[string]any{
		"n": map[string]any{"type": "integer"}, "tags": map[string]any{"type": "array", "items": map[string]any{"type": "string"}},
	}, "n", "who")}}}}.executor(t)
	_, err := x.Call(t.Context(), "m", map[string]any{"n": "hidden-value", "tags": []any{"a", 5}})
	e := wantCode(t, err, module.CodeSchemaValidation)
	list, _ := e.Details["errors"].([]any)
	got := map[string]string{}
	for _, item := range list {
		m := item.(map[string]any)
		if len(m) != 3 {
			t.Errorf("item %v, want exactly path, keyword and message", m)
		}
		got[m["path"].(string)] = m["keyword"].(string)
	}
	if diff := cmp.Diff(map[string]string{"": "required", "/n": "type", "/tags/1": "type"}, got); diff != "" {
		t.Errorf("details.errors (-want +got):\n%s", diff)
	}
	if text := err.Error() + cmpText(e.Map()); strings.Contains(text, "hidden-value") {
		t.Errorf("the error quotes the value: %s", text)
	}
}

func cmpText(v any) string { return cmp.Diff(nil, v) }

func TestCallVersions(t *testing.T) {
	x := setup{modules: []module.Module{&mod{desc: module.Descriptor{ID: "m", Version: "2.3.1"}}}}.executor(t)
	for hint, want := range map[string]module.Code{
		"": "", "^2.1": "", "2": "", "^3": module.CodeVersionIncompatible, "latest": module.CodeVersionConstraintInvalid,
	} {
		_, err := x.Call(t.Context(), "m", nil, module.CallVersion(hint))
		if got := module.CodeOf(err); got != want {
			t.Errorf("hint %q: code %q, want %q", hint, got, want)
		}
	}
}

func TestCallUnknownModule(t *testing.T) {
	x := setup{}.executor(t)
	_, err := x.Call(t.Context(), "not.here", nil)
	e := wantCode(t, err, module.CodeModuleNotFound)
	if e.Details["module_id"] != "not.here" {
		t.Errorf("details = %v", e.Details)
	}
	wantStep(t, err, executor.StepModuleLookup)
}

func TestRetryableFollowsIdempotence(t *testing.T) {
	for _, idempotent := range []bool{false, true} {
		m := fn("m", func(context.Context, map[string]any) (map[string]any, error) { return nil, errors.New("x") })
		m.desc.Annotations.Idempotent = idempotent
		_, err := setup{modules: []module.Module{m}}.executor(t).Call(t.Context(), "m", nil)
		e := wantCode(t, err, module.CodeModuleExecuteError)
		if (e.Retryable == module.True) != idempotent {
			t.Errorf("idempotent %v: retryable = %v", idempotent, e.Retryable)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	reg := registry.New(registry.Options{})
	tests := []struct {
		name string
		reg  *registry.Registry
		cfg  executor.Config
	}{
		{"no registry", nil, executor.Config{}},
		{"negative timeout", reg, executor.Config{DefaultTimeout: new(-time.Second)}},
		{"negative global", reg, executor.Config{GlobalTimeout: new(-time.Second)}},
		{"negative grace", reg, executor.Config{GracePeriod: new(-time.Second)}},
		{"negative acl", reg, executor.Config{ACLTimeout: new(-time.Second)}},
		{"depth", reg, executor.Config{MaxCallDepth: 1001}},
		{"negative depth", reg, executor.Config{MaxCallDepth: -1}},
		{"repeat", reg, executor.Config{MaxModuleRepeat: 101}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := executor.New(tt.reg, tt.cfg)
			wantCode(t, err, module.CodeInvalidInput)
		})
	}
}
