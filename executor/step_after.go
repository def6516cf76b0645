package executor

import (
	"context"

	"github.com/apbus/apbus/module"
)

// afterStep is step 10. What an after hook returns is not validated again
// (protocol §11.8.3).
func afterStep() *Step {
	return &Step{
		Name: StepMiddlewareAfter, Description: "after hooks in reverse",
		Removable: true, kind: kindAfter, Run: runAfter,
	}
}

func runAfter(_ context.Context, p *Pipeline) (*StepResult, error) {
	if p.chain.Len() == 0 {
		return nil, nil
	}
	output, err := p.chain.After(p.ctx, p.call, p.output) //nolint:contextcheck // p.ctx is what the steps made of the caller's context
	if err != nil {
		p.foreign = true
		return nil, err
	}
	if sameMap(output, p.output) {
		return nil, nil
	}
	if p.output, err = module.NormalizeMap(output); err != nil {
		return nil, module.Wrap(module.CodeInternal, err, "an after hook returned an output without a json form")
	}
	return nil, nil
}
