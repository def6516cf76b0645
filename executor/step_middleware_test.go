package executor_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/module"
)

// A step whose BeforeStep failed never ran. To ignore that, or to take an
// observer's word for its output, would be a way around the step.
func TestBeforeStepFailureCannotBeIgnored(t *testing.T) {
	ran, cleaned := false, 0
	s := executor.Internal()
	own := &executor.Step{Name: "own", IgnoreErrors: true, Run: nop}
	if err := s.InsertAfter(executor.StepModuleLookup, own); err != nil {
		t.Fatal(err)
	}
	s.AddStepMiddleware(&stepNotes{
		before: func(step string, _ module.PipelineState) error {
			if step == "own" {
				return errors.New("not now")
			}
			return nil
		},
		failed: func(string, error) (any, bool) {
			cleaned++
			return map[string]any{"made": "up"}, true
		},
	})
	x := setup{modules: []module.Module{fn("m", func(context.Context, map[string]any) (map[string]any, error) {
		ran = true
		return map[string]any{}, nil
	})}, opts: []executor.Option{executor.WithStrategy(s)}}.executor(t)
	_, err := x.Call(t.Context(), "m", nil)
	wantCode(t, err, module.CodeMiddlewareChain)
	wantStep(t, err, "own")
	if ran || cleaned != 1 {
		t.Errorf("module ran %t, on_step_error %d times", ran, cleaned)
	}
}

// What recovers a step of one's own becomes that step's output.
func TestRecoveredOutputOfACustomStep(t *testing.T) {
	made := map[string]any{"made": "up"}
	s := executor.Internal()
	own := &executor.Step{Name: "own", Run: func(context.Context, *executor.Pipeline) (*executor.StepResult, error) {
		return nil, errors.New("boom")
	}}
	if err := s.InsertAfter(executor.StepModuleLookup, own); err != nil {
		t.Fatal(err)
	}
	s.AddStepMiddleware(&stepNotes{failed: func(string, error) (any, bool) { return made, true }})
	x := setup{modules: []module.Module{fn("m", echo)}, opts: []executor.Option{executor.WithStrategy(s)}}.executor(t)
	var outputs map[string]any
	_, err := x.Call(t.Context(), "m", nil, module.CallUntil(func(s module.PipelineState) bool {
		if s.StepName == "own" {
			outputs = map[string]any{"own": s.Outputs["own"]}
		}
		return false
	}))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"own": made}, outputs); diff != "" {
		t.Errorf("outputs (-want +got):\n%s", diff)
	}
}
