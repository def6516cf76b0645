package executor

import (
	"log/slog"
	"slices"
	"time"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// StepMiddleware is called around every step and filters by name itself
// (core-executor seed, Step-Level Middleware). BeforeStep and AfterStep observe;
// state.Outputs holds the steps completed before this one. It must be safe for
// concurrent use.
type StepMiddleware interface {
	// BeforeStep runs in registration order. Its error is final: the step does not
	// run and the call fails with MIDDLEWARE_CHAIN_ERROR.
	BeforeStep(step string, state module.PipelineState) error
	// AfterStep runs in reverse order; its error fails the step.
	AfterStep(step string, state module.PipelineState, output any) error
	// OnStepError runs in reverse order. recovered true ends the walk and makes
	// output the step's own.
	OnStepError(step string, state module.PipelineState, err error) (output any, recovered bool)
}

// veto is the failure of a BeforeStep, which nothing may pass over.
type veto struct{ error }

func (v veto) Unwrap() error { return v.error }

// runObserved runs a step inside the step middlewares and returns its output too.
func (p *Pipeline) runObserved(s *Step) (r *StepResult, output any, err error) {
	around := p.strategy.middleware
	if len(around) == 0 {
		r, err = p.runStep(s)
		return r, p.outputOf(s), err
	}
	for i, m := range around {
		started := time.Now()
		err := p.guarded(s, func() error { return m.BeforeStep(s.Name, p.state(s)) })
		p.watchStepHook(s, m, "before_step", started, false, err)
		if err != nil {
			for _, entered := range slices.Backward(around[:i+1]) {
				_, _ = p.stepRecovery(s, entered, err)
			}
			chain := &middleware.ChainError{Original: err, Failed: s.Name, Hook: "before_step"}
			return nil, nil, veto{chain.Coded()}
		}
	}
	r, err = p.runStep(s)
	output = p.outputOf(s)
	if err != nil {
		recovered := false
		for _, m := range slices.Backward(around) {
			recovery, ok := p.stepRecovery(s, m, err)
			if !ok {
				continue
			}
			if recovered = p.adopt(s, recovery); recovered {
				// A step of one's own has no other output than this one.
				if output = p.outputOf(s); s.kind == kindCustom {
					output = recovery
				}
				break
			}
		}
		if !recovered {
			return nil, nil, err
		}
		p.foreign = false
	}
	for _, m := range slices.Backward(around) {
		started := time.Now()
		err := p.guarded(s, func() error { return m.AfterStep(s.Name, p.state(s), output) })
		p.watchStepHook(s, m, "after_step", started, false, err)
		if err != nil {
			p.foreign = true
			return nil, nil, err
		}
	}
	return r, output, nil
}

// stepRecovery asks one middleware. A cancelled call is not recovered.
func (p *Pipeline) stepRecovery(s *Step, m StepMiddleware, err error) (output any, recovered bool) {
	if module.CodeOf(err) == module.CodeExecutionCancelled {
		return nil, false
	}
	started := time.Now()
	failure := p.guarded(s, func() error {
		output, recovered = m.OnStepError(s.Name, p.state(s), err)
		return nil
	})
	recovered = recovered && failure == nil
	p.watchStepHook(s, m, "on_step_error", started, recovered, failure)
	return output, recovered
}

// adopt makes a recovery the output of the step where the step has one.
func (p *Pipeline) adopt(s *Step, output any) bool {
	m, isMap := output.(map[string]any)
	switch s.kind {
	case kindBefore, kindInput:
		if isMap {
			p.inputs = m
		}
	case kindExecute, kindOutput, kindAfter:
		if !isMap {
			return false
		}
		p.output = m
	case kindACL, kindApproval, kindContext, kindLookup, kindGuard:
		// What these steps establish cannot be made up by an observer.
		p.x.log.LogAttrs(p.ctx, levelWarn, "recovery of a step that cannot be recovered, ignored",
			p.attrs(slog.String("step", s.Name))...)
		return false
	}
	return true
}

// guarded runs a hook; its panic becomes GENERAL_INTERNAL_ERROR.
func (p *Pipeline) guarded(s *Step, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = p.panicked(s.Name, v, module.CodeInternal)
		}
	}()
	return f()
}
