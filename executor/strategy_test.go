package executor_test

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/module"
)

func eleven() []string {
	return []string{
		"context_creation", "call_chain_guard", "module_lookup", "acl_check", "approval_gate", "middleware_before",
		"input_validation", "execute", "output_validation", "middleware_after", "return_result",
	}
}

func without(names ...string) []string {
	return slices.DeleteFunc(eleven(), func(n string) bool { return slices.Contains(names, n) })
}

func TestPresets(t *testing.T) {
	tests := map[string][]string{
		"standard":    eleven(),
		"internal":    without("acl_check", "approval_gate"),
		"testing":     without("acl_check", "approval_gate", "call_chain_guard"),
		"performance": without("middleware_before", "middleware_after"),
		"minimal":     {"context_creation", "module_lookup", "execute", "return_result"},
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := executor.Preset(name)
			if err != nil {
				t.Fatal(err)
			}
			info := s.Info()
			if diff := cmp.Diff(want, info.StepNames); diff != "" || info.Name != name || info.StepCount != len(want) {
				t.Errorf("%+v (-want +got):\n%s", info, diff)
			}
			x := setup{modules: []module.Module{fn("m", echo)}, opts: []executor.Option{executor.WithStrategy(s)}}.executor(t)
			if out, err := x.Call(t.Context(), "m", map[string]any{"n": 1}); err != nil || out["n"] != int64(1) {
				t.Errorf("call = %v, %v", out, err)
			}
		})
	}
	_, err := executor.Preset("fast")
	wantCode(t, err, module.CodeStrategyNotFound)
}

// The metadata of the steps is the protocol's table (§7.4).
func TestStepMetadata(t *testing.T) {
	rows := []struct {
		name                         string
		pure, removable, replaceable bool
	}{
		{"context_creation", true, false, false},
		{"call_chain_guard", true, true, true},
		{"module_lookup", true, false, false},
		{"acl_check", true, true, true},
		{"approval_gate", false, true, true},
		{"middleware_before", false, true, false},
		{"input_validation", true, true, true},
		{"execute", false, false, true},
		{"output_validation", true, true, true},
		{"middleware_after", false, true, false},
		{"return_result", true, false, false},
	}
	s := executor.Standard()
	for _, r := range rows {
		step, ok := s.Step(r.name)
		if !ok || step.Pure != r.pure || step.Removable != r.removable || step.Replaceable != r.replaceable ||
			step.IgnoreErrors || step.TimeoutMS != 0 || step.MatchModules != nil {
			t.Errorf("%s: %+v", r.name, step)
		}
	}
}

func nop(context.Context, *executor.Pipeline) (*executor.StepResult, error) { return nil, nil }

func TestStrategyEdits(t *testing.T) {
	custom := func(name string) *executor.Step { return &executor.Step{Name: name, Run: nop} }
	tests := []struct {
		name string
		edit func(s *executor.Strategy) error
		code module.Code
		want []string // nil: unchanged
	}{
		{"insert after", func(s *executor.Strategy) error { return s.InsertAfter("module_lookup", custom("x")) }, "", slices.Insert(eleven(), 3, "x")},
		{"insert before", func(s *executor.Strategy) error { return s.InsertBefore("execute", custom("x")) }, "", slices.Insert(eleven(), 7, "x")},
		{"insert at nothing", func(s *executor.Strategy) error { return s.InsertAfter("no", custom("x")) }, module.CodeStepNotFound, nil},
		{"insert twice", func(s *executor.Strategy) error { return s.InsertAfter("execute", custom("acl_check")) }, module.CodeStepNameDuplicate, nil},
		{"insert without function", func(s *executor.Strategy) error { return s.InsertAfter("execute", &executor.Step{Name: "x"}) }, module.CodePipelineConfiguration, nil},
		{"unmet requirement", func(s *executor.Strategy) error {
			return s.InsertBefore("module_lookup", &executor.Step{Name: "x", Run: nop, Requires: []string{"module", "gold"}})
		}, module.CodePipelineDependency, nil},
		{"remove", func(s *executor.Strategy) error { return s.Remove("acl_check") }, "", without("acl_check")},
		{"remove nothing", func(s *executor.Strategy) error { return s.Remove("no") }, module.CodeStepNotFound, nil},
		{"remove a fixed one", func(s *executor.Strategy) error { return s.Remove("execute") }, module.CodeStepNotRemovable, nil},
		{"replace", func(s *executor.Strategy) error { return s.Replace("input_validation", custom("mine")) }, "", func() []string { l := eleven(); l[6] = "mine"; return l }()},
		{"replace nothing", func(s *executor.Strategy) error { return s.Replace("no", custom("x")) }, module.CodeStepNotFound, nil},
		{"replace a fixed one", func(s *executor.Strategy) error { return s.Replace("middleware_before", custom("x")) }, module.CodeStepNotReplaceable, nil},
		{"replace by a taken name", func(s *executor.Strategy) error { return s.Replace("acl_check", custom("execute")) }, module.CodeStepNameDuplicate, nil},
		{"configure twice", func(s *executor.Strategy) error {
			for range 2 {
				if err := s.ConfigureStep("input_validation", custom("input_validation")); err != nil {
					return err
				}
			}
			return nil
		}, "", eleven()},
		{"configure nothing", func(s *executor.Strategy) error { return s.ConfigureStep("no", custom("x")) }, module.CodePipelineStepNotFound, nil},
		{"weakened gate", func(s *executor.Strategy) error {
			gate := executor.ACLStep(nil)
			gate.IgnoreErrors = true
			return s.ConfigureStep("acl_check", gate)
		}, module.CodePipelineConfiguration, nil},
		{"exempting gate", func(s *executor.Strategy) error {
			gate := executor.ApprovalStep(nil)
			gate.MatchModules = []string{}
			return s.ConfigureStep("approval_gate", gate)
		}, module.CodePipelineConfiguration, nil},
		{"pure approval", func(s *executor.Strategy) error {
			gate := executor.ApprovalStep(nil)
			gate.Pure = true
			return s.ConfigureStep("approval_gate", gate)
		}, module.CodePipelineConfiguration, nil},
		{"timed gate", func(s *executor.Strategy) error {
			gate := executor.ACLStep(nil)
			gate.TimeoutMS = 500
			return s.ConfigureStep("acl_check", gate)
		}, "", eleven()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := executor.Standard()
			if got := module.CodeOf(tt.edit(s)); got != tt.code {
				t.Fatalf("code %q, want %q", got, tt.code)
			}
			want := tt.want
			if want == nil {
				want = eleven()
			}
			if diff := cmp.Diff(want, s.StepNames()); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			for _, name := range want {
				if step, ok := s.Step(name); !ok || step.Name != name {
					t.Errorf("list and index disagree about %s", name)
				}
			}
		})
	}
}
