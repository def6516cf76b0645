package executor

import (
	"slices"

	"github.com/apbus/apbus/module"
)

// Strategy is a named, ordered list of steps. It is not synchronised: finish
// editing before the first call.
type Strategy struct {
	name        string
	description string
	steps       []*Step
	at          map[string]int // position by name, changed together with steps
	middleware  []StepMiddleware
	notices     *notices
}

// NewStrategy makes a strategy of the given steps. Names must be unique
// (STEP_NAME_DUPLICATE), every required token must be provided by an earlier step
// (PIPELINE_DEPENDENCY_ERROR), and a gate must not be weakened
// (PIPELINE_CONFIGURATION_ERROR).
func NewStrategy(name, description string, steps ...*Step) (*Strategy, error) {
	s := &Strategy{name: name, description: description}
	if err := s.replaceAll(steps); err != nil {
		return nil, err
	}
	return s, nil
}

// The presets, each new and free to be edited (protocol §7.4).

// Standard has all eleven steps.
func Standard() *Strategy { return preset("standard", "all eleven steps") }

// Internal leaves out the two gates.
func Internal() *Strategy {
	return preset("internal", "without acl and approval", kindACL, kindApproval)
}

// Testing leaves out the gates and the call-chain guard.
func Testing() *Strategy {
	return preset("testing", "without acl, approval and call-chain guard", kindACL, kindApproval, kindGuard)
}

// Performance leaves out the middlewares.
func Performance() *Strategy {
	return preset("performance", "without middleware", kindBefore, kindAfter)
}

// Minimal keeps context creation, lookup, execution and return only.
func Minimal() *Strategy {
	return preset("minimal", "the four steps that cannot be removed",
		kindGuard, kindACL, kindApproval, kindBefore, kindInput, kindOutput, kindAfter)
}

// Preset returns the preset of that name, or STRATEGY_NOT_FOUND.
func Preset(name string) (*Strategy, error) {
	switch name {
	case "standard":
		return Standard(), nil
	case "internal":
		return Internal(), nil
	case "testing":
		return Testing(), nil
	case "performance":
		return Performance(), nil
	case "minimal":
		return Minimal(), nil
	}
	return nil, module.Errorf(module.CodeStrategyNotFound, "strategy %q does not exist", name)
}

// builtinSteps is the order of the pipeline.
func builtinSteps() []*Step {
	return []*Step{
		contextStep(), guardStep(), lookupStep(), ACLStep(nil), ApprovalStep(nil), beforeStep(),
		inputStep(), executeStep(), outputStep(), afterStep(), returnStep(),
	}
}

func preset(name, description string, without ...stepKind) *Strategy {
	s := &Strategy{name: name, description: description}
	s.install(slices.DeleteFunc(builtinSteps(), func(step *Step) bool { return slices.Contains(without, step.kind) }))
	return s
}

// Name returns the strategy's name.
func (s *Strategy) Name() string { return s.name }

// StepNames lists the steps in order.
func (s *Strategy) StepNames() []string {
	names := make([]string, len(s.steps))
	for i, step := range s.steps {
		names[i] = step.Name
	}
	return names
}

// Step returns the step of that name.
func (s *Strategy) Step(name string) (*Step, bool) {
	i, ok := s.at[name]
	if !ok {
		return nil, false
	}
	return s.steps[i], true
}

// StrategyInfo describes a strategy.
type StrategyInfo struct {
	Name        string
	StepCount   int
	StepNames   []string
	Description string
}

// Info describes the strategy.
func (s *Strategy) Info() StrategyInfo {
	return StrategyInfo{Name: s.name, StepCount: len(s.steps), StepNames: s.StepNames(), Description: s.description}
}

// find returns the built-in step of a kind, nil when it is not wired.
func (s *Strategy) find(k stepKind) *Step {
	for _, step := range s.steps {
		if step.kind == k {
			return step
		}
	}
	return nil
}

// install puts a list and its index in place as one.
func (s *Strategy) install(steps []*Step) {
	at := make(map[string]int, len(steps))
	for i, step := range steps {
		at[step.Name] = i
	}
	s.steps, s.at = steps, at
}
