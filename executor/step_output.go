package executor

import "context"

// outputStep is step 9.
func outputStep() *Step {
	return &Step{
		Name: StepOutputValidation, Description: "validate the output",
		Pure: true, Removable: true, Replaceable: true,
		Requires: []string{"module", "output"}, Provides: []string{"validated_output"}, kind: kindOutput, Run: runOutput,
	}
}

func runOutput(_ context.Context, p *Pipeline) (*StepResult, error) {
	if p.entry == nil || p.output == nil {
		return nil, nil
	}
	p.mctx.ShowOutput(p.x.redactor, p.entry.Output, p.output)
	if err := p.entry.Output.Validate(p.output); err != nil {
		return nil, invalid(p.moduleID, "output", err)
	}
	return nil, nil
}
