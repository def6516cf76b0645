package executor_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// verdicts renders checks as "name" or "!name" for a failed one.
func verdicts(r *module.PreflightResult) []string {
	var out []string
	for _, c := range r.Checks {
		if c.Passed {
			out = append(out, c.Check)
		} else {
			out = append(out, "!"+c.Check)
		}
	}
	return out
}

func TestValidateChecks(t *testing.T) {
	charge := module.Change{Action: "charge", Target: "card", Summary: "Charge it", Extra: map[string]any{"x-foo": "bar"}}
	predicted := func(context.Context, map[string]any) (*module.PreviewResult, error) {
		return &module.PreviewResult{Changes: []module.Change{charge}}, nil
	}
	no := func(context.Context, map[string]any) (*module.PreviewResult, error) { return nil, nil }
	quiet := func(context.Context, map[string]any) ([]string, error) { return nil, nil }
	head := []string{"module_id", "executor_binding", "context", "call_chain"}
	tests := []struct {
		name      string
		id        string
		preview   func(context.Context, map[string]any) (*module.PreviewResult, error)
		preflight func(context.Context, map[string]any) ([]string, error)
		deny      bool
		inputs    map[string]any
		want      []string
		changes   int
		warnings  []string
	}{
		{"all pass", "m", predicted, quiet, false, map[string]any{"n": 1},
			append(head, "module_lookup", "acl", "approval", "schema", "module_preflight", "module_preview"), 1, nil},
		{"inputs are wrong", "m", predicted, quiet, false, nil,
			append(head, "module_lookup", "acl", "approval", "!schema", "module_preflight", "module_preview"), 1, nil},
		{"inputs have no json form", "m", predicted, quiet, false, map[string]any{"n": func() {}},
			append(head, "module_lookup", "acl", "approval", "!schema", "module_preflight", "module_preview"), 1, nil},
		{"denied and wrong", "m", predicted, quiet, true, nil,
			append(head, "module_lookup", "!acl", "approval", "!schema"), 0, nil},
		{"unknown", "gone", predicted, quiet, false, nil, append(head, "!module_lookup", "acl", "approval"), 0, nil},
		{"malformed id", "No", predicted, quiet, false, nil,
			[]string{"!module_id", "executor_binding", "context", "call_chain", "!module_lookup", "acl", "approval"}, 0, nil},
		{"nothing predicted", "m", no, quiet, false, map[string]any{"n": 1},
			append(head, "module_lookup", "acl", "approval", "schema", "module_preflight"), 0, nil},
		{"token is no string", "m", no, quiet, false, map[string]any{"n": 1, "_approval_token": 1},
			append(head, "module_lookup", "acl", "!approval", "schema", "module_preflight"), 0, nil},
		{"preview fails", "m", func(context.Context, map[string]any) (*module.PreviewResult, error) {
			return nil, errors.New("db down")
		}, quiet, false,
			map[string]any{"n": 1}, append(head, "module_lookup", "acl", "approval", "schema", "module_preflight", "module_preview"), 0, []string{"preview failed: db down"}},
		{"preview panics", "m", func(context.Context, map[string]any) (*module.PreviewResult, error) { panic("x") }, quiet, false,
			map[string]any{"n": 1}, append(head, "module_lookup", "acl", "approval", "schema", "module_preflight", "module_preview"), 0, []string{"preview panicked"}},
		{"an invalid change predicts nothing", "m", func(context.Context, map[string]any) (*module.PreviewResult, error) {
			return &module.PreviewResult{Changes: []module.Change{{Action: "a", Target: "t"}, charge}}, nil
		}, quiet, false, map[string]any{"n": 1},
			append(head, "module_lookup", "acl", "approval", "schema", "module_preflight", "module_preview"), 1,
			[]string{"predicted change 0 is invalid: GENERAL_INVALID_INPUT: change has no summary"}},
		{"preflight warns", "m", no, func(context.Context, map[string]any) ([]string, error) { return []string{"slow today"}, nil }, false,
			map[string]any{"n": 1}, append(head, "module_lookup", "acl", "approval", "schema", "module_preflight"), 0, []string{"slow today"}},
		{"preflight fails", "m", no, func(context.Context, map[string]any) ([]string, error) { return nil, errors.New("db down") }, false,
			map[string]any{"n": 1}, append(head, "module_lookup", "acl", "approval", "schema", "module_preflight"), 0, []string{"preflight failed: db down"}},
		{"preflight panics", "m", no, func(context.Context, map[string]any) ([]string, error) { panic("x") }, false,
			map[string]any{"n": 1}, append(head, "module_lookup", "acl", "approval", "schema", "module_preflight"), 0, []string{"preflight panicked"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			asked := 0
			m := &hooked{mod: mod{desc: module.Descriptor{ID: "m", InputSchema: object(map[string]any{"n": map[string]any{"type": "integer"}}, "n")},
				execute: func(context.Context, map[string]any) (map[string]any, error) {
					t.Error("the module ran")
					return nil, nil
				}},
				preview: func(ctx context.Context, in map[string]any) (*module.PreviewResult, error) {
					asked++
					if module.FromContext(ctx) == nil {
						t.Error("preview has no Context")
					}
					return tt.preview(ctx, in)
				},
				preflight: func(ctx context.Context, in map[string]any) ([]string, error) { asked++; return tt.preflight(ctx, in) },
			}
			x, reg := setup{modules: []module.Module{m}, opts: []executor.Option{
				executor.WithACL(decides(acl.Decision{Allowed: !tt.deny})),
				executor.WithMiddleware(middleware.UseBefore("no", func(context.Context, *middleware.Call) (map[string]any, error) {
					t.Error("a middleware ran")
					return nil, nil
				})),
				executor.WithObserver(executor.ObserverFunc(func(executor.Completion) { t.Error("a validation was reported as a call") })),
			}}.build(t)
			r := x.Validate(t.Context(), tt.id, tt.inputs)
			if diff := cmp.Diff(tt.want, verdicts(r)); diff != "" {
				t.Errorf("checks (-want +got):\n%s", diff)
			}
			if r.PredictedChanges == nil || len(r.PredictedChanges) != tt.changes {
				t.Errorf("predicted changes = %v, want %d, never nil", r.PredictedChanges, tt.changes)
			}
			if diff := cmp.Diff(tt.warnings, r.Warnings()); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			if failed := strings.Contains(strings.Join(tt.want, " "), "!"); r.Valid == failed {
				t.Errorf("valid = %v", r.Valid)
			}
			if tt.deny && asked > 0 {
				t.Error("a denied caller had the module asked")
			}
			if e, ok := reg.Get("m"); !ok || e.InFlight() != 0 {
				t.Error("the validation still holds the module")
			}
		})
	}
}

func TestValidateScrubsWhatTheModuleSays(t *testing.T) {
	m := &hooked{
		mod: mod{desc: module.Descriptor{ID: "m"}},
		preflight: func(_ context.Context, in map[string]any) ([]string, error) {
			return []string{"uses " + in["password"].(string)}, nil
		},
		preview: func(_ context.Context, in map[string]any) (*module.PreviewResult, error) {
			pw := in["password"]
			return &module.PreviewResult{Changes: []module.Change{{
				Action: "set", Target: "pw", Summary: "Set " + pw.(string), After: module.Known(map[string]any{"pw": pw}),
				Extra: map[string]any{"x-old": []any{pw}},
			}}}, nil
		},
	}
	r := setup{modules: []module.Module{m}}.executor(t).Validate(t.Context(), "m", map[string]any{"password": "hunter22"})
	if len(r.PredictedChanges) != 1 {
		t.Fatalf("result %+v", r)
	}
	if text := cmpText(r.Map()); strings.Contains(text, "hunter22") {
		t.Errorf("leaks: %s", text)
	}
}

func TestValidateIgnoresOtherExecutors(t *testing.T) {
	s := setup{modules: []module.Module{fn("m", echo)}}
	x, y := s.executor(t), s.executor(t)
	c := module.NewContext(module.ContextOptions{})
	if err := c.BindExecutor(x); err != nil {
		t.Fatal(err)
	}
	r := y.Validate(module.WithContext(t.Context(), c), "m", nil)
	want := []string{"module_id", "!executor_binding", "context", "call_chain", "module_lookup", "acl", "approval", "schema"}
	if diff := cmp.Diff(want, verdicts(r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if r.Checks[1].Error.Code != module.CodeContextBindingError {
		t.Errorf("error = %v", r.Checks[1].Error)
	}
}

func TestValidateRemote(t *testing.T) {
	answer := &module.PreflightResult{Valid: true, PredictedChanges: []module.Change{}}
	var req *contextwire.Request
	var failure error
	r := &remote{check: func(_ context.Context, q *contextwire.Request) (*module.PreflightResult, error) {
		req = q
		return answer, failure
	}}
	x := setup{opts: []executor.Option{executor.WithRemote(r)}}.executor(t)
	if got := x.Validate(t.Context(), "far", map[string]any{"n": 1}); got != answer {
		t.Errorf("= %+v, want the owner's result", got)
	}
	if req.ModuleID != "far" || req.Inputs["n"] != int64(1) || len(req.Context.ChainView()) != 0 {
		t.Errorf("request = %+v", req)
	}
	failure = module.Errorf(module.CodeBusNoResponders, "nobody")
	got := x.Validate(t.Context(), "far", nil)
	if got.Valid || len(got.Errors()) != 1 || got.Errors()[0].Code != module.CodeBusNoResponders {
		t.Errorf("= %+v", got)
	}
	req = nil
	if got, err := x.Check(t.Context(), &contextwire.Request{ModuleID: "far"}); err != nil || got.Valid || req != nil {
		t.Errorf("a check that came over the bus = %+v, %v, sent on: %v", got, err, req != nil)
	}
	if got := x.Validate(t.Context(), "Bad id", nil); got.Valid || req != nil {
		t.Error("a malformed ID was sent to others")
	}
}

func TestValidateFollowsTheStrategy(t *testing.T) {
	s := executor.Minimal()
	if err := s.InsertAfter(executor.StepModuleLookup, &executor.Step{Name: "quota", Pure: true, Run: func(_ context.Context, p *executor.Pipeline) (*executor.StepResult, error) {
		if !p.DryRun() {
			t.Error("not a dry run")
		}
		return nil, module.Errorf("QUOTA_USED", "used up")
	}}); err != nil {
		t.Fatal(err)
	}
	if err := s.InsertAfter("quota", &executor.Step{Name: "effect", Run: func(context.Context, *executor.Pipeline) (*executor.StepResult, error) {
		t.Error("a step with effects ran")
		return nil, nil
	}}); err != nil {
		t.Fatal(err)
	}
	x := setup{modules: []module.Module{fn("m", echo)}, opts: []executor.Option{executor.WithStrategy(s)}}.executor(t)
	want := []string{"module_id", "executor_binding", "context", "module_lookup", "!quota"}
	if diff := cmp.Diff(want, verdicts(x.Validate(t.Context(), "m", nil))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
