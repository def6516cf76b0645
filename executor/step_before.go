package executor

import (
	"context"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// beforeStep is step 6, where the module's time begins to count.
func beforeStep() *Step {
	return &Step{
		Name: StepMiddlewareBefore, Description: "before hooks",
		Removable: true, kind: kindBefore, Run: runBefore,
	}
}

func runBefore(_ context.Context, p *Pipeline) (*StepResult, error) {
	p.chain = p.x.chain.Chain()
	if p.chain.Len() == 0 {
		p.startClock()
		return nil, nil
	}
	p.call = &middleware.Call{ModuleID: p.moduleID, Inputs: p.inputs, Context: p.mctx, Descriptor: p.Descriptor()}
	if p.trace != nil {
		p.call.Watch(p.watchHook)
	}
	var given string
	if p.approved != "" {
		given = schema.ContentHash(p.inputs)
		p.call.Guard()
	}
	p.startClock()
	inputs, entered, err := p.chain.Before(p.ctx, p.call) //nolint:contextcheck // p.ctx is what the steps made of the caller's context
	p.entered = entered
	p.ctx = p.call.Derived(p.ctx)
	if err != nil {
		p.foreign = true
		return nil, err
	}
	if !sameMap(inputs, p.inputs) {
		if p.inputs, err = module.NormalizeMap(inputs); err != nil {
			return nil, module.Wrap(module.CodeInternal, err, "a before hook returned inputs without a json form")
		}
	}
	if p.approved != "" {
		p.enriched(given)
	}
	return nil, nil
}
