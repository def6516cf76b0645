package executor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/module"
)

// runSteps walks the strategy and stops at the first failure (core-executor seed,
// Fail-Fast Error Handling).
func (p *Pipeline) runSteps() error {
	steps := p.strategy.steps
	watched := p.opts.RunUntil != nil || p.x.until != nil || p.trace != nil || len(p.strategy.middleware) > 0 || p.x.spans != nil
	for i := 0; i < len(steps); i++ {
		s := steps[i]
		if p.remote && !s.kind.remote() {
			p.trace.skipped(s, "remote")
			continue
		}
		if !s.matches(p.moduleID) {
			p.trace.skipped(s, "no_match")
			continue
		}
		if watched {
			next, err := p.watchStep(s, i)
			if err != nil {
				return err
			}
			if p.stop {
				return nil
			}
			i = next
			continue
		}
		r, err := p.runStep(s)
		if err != nil {
			if p.ignores(s, err) {
				continue
			}
			return &StepError{Step: s.Name, Err: err}
		}
		if r != nil && r.Action != Continue {
			if i, err = p.jump(s, i, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// runStep runs one body; a panic becomes GENERAL_INTERNAL_ERROR.
func (p *Pipeline) runStep(s *Step) (r *StepResult, err error) {
	defer func() {
		if v := recover(); v != nil {
			r, err = nil, p.panicked(s.Name, v, module.CodeInternal)
		}
	}()
	if s.TimeoutMS > 0 {
		return p.runTimed(s)
	}
	return s.Run(p.ctx, p)
}

// runTimed runs a body under the step's own limit. The built-in steps obey their
// context. Any other may not, so it works on a copy of the state that is dropped,
// goroutine and all, when it comes too late.
func (p *Pipeline) runTimed(s *Step) (*StepResult, error) {
	limit := time.Duration(s.TimeoutMS) * time.Millisecond
	cause := cancel.Because(cancel.Timeout, "", "the time of step "+s.Name+" is over")
	base := p.ctx
	ctx, stop := context.WithTimeoutCause(base, limit, cause)
	defer stop()
	var r *StepResult
	var err error
	if s.kind != kindCustom {
		r, err = s.Run(ctx, p)
	} else {
		state := *p
		got, finished := await(ctx, p.x, p.moduleID, func(ctx context.Context) (r *StepResult, err error) {
			defer func() {
				if v := recover(); v != nil {
					err = state.panicked(s.Name, v, module.CodeInternal)
				}
			}()
			return s.Run(ctx, &state)
		})
		if !finished {
			if base.Err() != nil {
				return nil, p.ended(base)
			}
			return nil, p.stepTimeout(s)
		}
		*p, r, err = state, got.value, got.err
	}
	if err != nil && base.Err() == nil && ctx.Err() != nil && (isContextError(err) || module.CodeOf(err) == module.CodeModuleTimeout) {
		return nil, p.stepTimeout(s)
	}
	return r, err
}

func (p *Pipeline) stepTimeout(s *Step) *module.Error {
	return module.Errorf(module.CodeModuleTimeout, "step %s exceeded its time of %d ms", s.Name, s.TimeoutMS).
		WithDetails(map[string]any{"module_id": p.moduleID, "timeout_ms": int64(s.TimeoutMS), "step": s.Name})
}

// ignores reports whether a failure is to be logged and passed over. A cancellation
// is not, and neither is a step that a BeforeStep kept from running: going on
// without it would be a way around the step (protocol, Pipeline Step Middleware).
func (p *Pipeline) ignores(s *Step, err error) bool {
	if !s.IgnoreErrors || module.CodeOf(err) == module.CodeExecutionCancelled {
		return false
	}
	if _, vetoed := errors.AsType[veto](err); vetoed {
		return false
	}
	p.foreign = false
	p.x.log.LogAttrs(p.ctx, levelWarn, "step failed, ignored",
		p.attrs(slog.String("step", s.Name), slog.String("code", string(module.CodeOf(err))))...)
	return true
}

// jump obeys SkipTo and Abort and returns the position to go on from.
func (p *Pipeline) jump(s *Step, i int, r *StepResult) (int, error) {
	if r.Action == Abort {
		why := r.Explanation
		if why == "" {
			why = "aborted by step " + s.Name
		}
		return i, &StepError{Step: s.Name, Err: module.Errorf(module.CodePipelineAbort, "%s", why)}
	}
	to, ok := p.strategy.at[r.Target]
	if !ok || to <= i {
		return i, &StepError{Step: s.Name, Err: module.Errorf(module.CodeStepNotFound, "step %s skips to %q, which is no later step", s.Name, r.Target)}
	}
	for _, over := range p.strategy.steps[i+1 : to] {
		p.trace.skipped(over, "")
	}
	return to - 1, nil
}

// watchStep is the slower way for calls that somebody looks at step by step.
func (p *Pipeline) watchStep(s *Step, i int) (next int, err error) {
	started := time.Now()
	span := p.beginStep(s)
	r, output, err := p.runObserved(s)
	endStep(span, err)
	if err != nil {
		if p.ignores(s, err) {
			p.trace.ran(s, started, nil, "error_ignored", err)
			p.record(s, nil)
			return i, nil
		}
		p.trace.ran(s, started, nil, "", err)
		return i, &StepError{Step: s.Name, Err: err}
	}
	p.trace.ran(s, started, r, "", nil)
	p.record(s, output)
	next = i
	if r != nil && r.Action != Continue {
		if next, err = p.jump(s, i, r); err != nil {
			return i, err
		}
	}
	for _, until := range []func(module.PipelineState) bool{p.x.until, p.opts.RunUntil} {
		if until == nil || p.stop {
			continue
		}
		if p.stop, err = p.asksToStop(s, until); err != nil {
			return i, &StepError{Step: s.Name, Err: err}
		}
	}
	return next, nil
}

// asksToStop evaluates run_until after a clean step, including that step's output
// (core-executor seed, Unified run_until Pattern).
func (p *Pipeline) asksToStop(s *Step, until func(module.PipelineState) bool) (stop bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = p.panicked(s.Name, v, module.CodeInternal)
		}
	}()
	return until(p.state(s)), nil
}

// state is what predicates and step middleware see.
func (p *Pipeline) state(s *Step) module.PipelineState {
	return module.PipelineState{StepName: s.Name, Outputs: p.outputs, Context: p.mctx}
}

func (p *Pipeline) record(s *Step, output any) {
	if p.outputs == nil {
		p.outputs = make(map[string]any, len(p.strategy.steps))
	}
	p.outputs[s.Name] = output
}

// outputOf is what a completed step produced: inputs, output, or nothing.
func (p *Pipeline) outputOf(s *Step) any {
	switch s.kind {
	case kindBefore, kindInput:
		return p.inputs
	case kindExecute, kindOutput, kindAfter, kindReturn:
		return p.output
	}
	return nil
}

// String keeps values out of a log that prints a pipeline.
func (p *Pipeline) String() string { return fmt.Sprintf("pipeline of %s", p.moduleID) }
