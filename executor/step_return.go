package executor

import "context"

// returnStep is step 11: the bare output is the result, without an envelope.
func returnStep() *Step {
	return &Step{
		Name: StepReturnResult, Description: "return the output",
		Pure: true, Requires: []string{"output"}, kind: kindReturn, Run: runReturn,
	}
}

func runReturn(context.Context, *Pipeline) (*StepResult, error) { return nil, nil }
