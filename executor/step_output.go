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
	redactor, compiled, output := p.x.redactor, p.entry.Output, p.output
	p.mctx.SetRedactedOutput(func() map[string]any { return redactor.Redact(compiled, output) })
	if err := compiled.Validate(output); err != nil {
		return nil, invalid(p.moduleID, "output", err)
	}
	return nil, nil
}
