package executor

import (
	"context"
	"errors"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// maxReruns bounds how often middlewares may have the pipeline run again in one
// call, so that two of them cannot keep it alive for ever.
const maxReruns = 16

// admit is the entry guard: what is wrong with the call itself is refused before
// there is a pipeline (core-executor seed, Contract: Executor.call).
func (p *Pipeline) admit(inputs map[string]any) error {
	if err := module.ValidateID(p.moduleID); err != nil {
		return err
	}
	if t := p.opts.Timeout; t != nil && *t < 0 {
		return module.Errorf(module.CodeInvalidInput, "call timeout is negative")
	}
	normal, err := module.NormalizeMap(inputs)
	if err != nil {
		return err
	}
	p.raw, p.inputs = normal, normal
	return nil
}

// run brings the call to its end: the steps, the recovery of a failure, and the
// observer.
func (p *Pipeline) run(ctx context.Context) (map[string]any, error) {
	err := p.attempts(ctx)
	if err == nil {
		p.complete(nil)
		return p.output, p.deliverWhole()
	}
	p.complete(module.AsError(err))
	return nil, err
}

// attempts runs the pipeline until it is done or no middleware asks for more.
func (p *Pipeline) attempts(ctx context.Context) error {
	for {
		again, err := p.attempt(ctx)
		if !again {
			return err
		}
		p.retries++
	}
}

// attempt runs the pipeline once. again says that a middleware put new inputs in
// place and wants another run.
//
//nolint:contextcheck // p.ctx is ctx, or what the steps made of it
func (p *Pipeline) attempt(ctx context.Context) (again bool, err error) {
	p.ctx, p.outer = ctx, ctx
	defer p.release()
	if err = p.runSteps(); err == nil {
		if p.output == nil {
			p.output = map[string]any{}
		}
		p.chain.End(p.ctx, p.call, p.entered, nil)
		return false, nil
	}
	var step *StepError
	if !errors.As(err, &step) {
		step = &StepError{Err: err}
	}
	coded := p.surface(step)
	chain, call, entered := p.chain, p.call, p.entered // another run forgets them
	if p.streamed {
		p.failedAfterStream(ctx, step.Step, coded)
		chain.End(p.ctx, call, entered, coded)
		return false, nil
	}
	// Cancellation is looked for after unwrapping and never reaches on_error
	// (core-executor seed, Cancellation Short-Circuit, D-20).
	if p.entered > 0 && coded.Code != module.CodeExecutionCancelled {
		again, recovered := p.recover(ctx, coded)
		switch {
		case again:
			chain.End(p.ctx, call, entered, coded)
			return true, nil
		case recovered:
			chain.End(p.ctx, call, entered, nil)
			return false, nil
		}
	}
	chain.End(p.ctx, call, entered, coded)
	return false, &StepError{Step: step.Step, Err: coded}
}

// recover asks the middlewares that were entered. They get a context without the
// call's own limits, since on_error is not timed and the failure may be that very
// limit; it ends with the caller's.
func (p *Pipeline) recover(ctx context.Context, failure *module.Error) (again, recovered bool) {
	r := p.chain.OnError(module.WithContext(ctx, p.mctx), p.call, p.entered, failure)
	switch {
	case p.chunks > 0 || p.streamed:
		// What the reader has got cannot be taken back or begun again.
		if r.Recovered() {
			p.x.log.LogAttrs(ctx, levelWarn, "recovery of a stream that has begun, ignored", p.attrs()...)
		}
		return false, false
	case r.Output != nil:
		output, err := module.NormalizeMap(r.Output)
		if err != nil {
			p.x.log.LogAttrs(ctx, levelError, "recovery output has no json form, ignored", p.attrs()...)
			return false, false
		}
		p.output = output
		return false, true
	case r.Retry != nil && p.retries < maxReruns && ctx.Err() == nil:
		inputs, err := module.NormalizeMap(r.Retry)
		if err != nil {
			p.x.log.LogAttrs(ctx, levelError, "retry inputs have no json form, ignored", p.attrs()...)
			return false, false
		}
		p.rerun(inputs)
		return true, false
	case r.Retry != nil:
		p.x.log.LogAttrs(ctx, levelWarn, "retry signal ignored", p.attrs()...)
	}
	return false, false
}

// rerun resets what belongs to one run. An approval stays good for the arguments
// it was given for, and for what the before hooks made of them; for any others it
// must be asked anew.
func (p *Pipeline) rerun(inputs map[string]any) {
	if p.approved != "" {
		digest := schema.ContentHash(inputs)
		if digest != p.approved && digest != p.runnable {
			digest = ""
		}
		p.approved, p.runnable = digest, digest
	}
	p.inputs, p.output = inputs, nil
	p.mctx, p.token = nil, nil
	p.aclApproval, p.foreign, p.stop = false, false, false
	p.chain, p.call, p.entered = nil, nil, 0
	p.outputs = nil
}

// release ends what the run held: the token and with it the context, the clock,
// and the module, unless its abandoned goroutine still runs in it.
func (p *Pipeline) release() {
	if p.token != nil {
		p.token.Release() // before the clock, so that its cause is what is left
	}
	p.clock.release()
	if p.held {
		p.held = false
		p.entry.Release()
	}
}
