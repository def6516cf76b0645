package executor

import (
	"slices"
	"strings"

	"github.com/apbus/apbus/module"
)

// replaceAll checks a whole list and installs it.
func (s *Strategy) replaceAll(steps []*Step) error {
	seen := make(map[string]bool, len(steps))
	provided := make(map[string]bool)
	for _, step := range steps {
		if err := step.check(); err != nil {
			return err
		}
		if seen[step.Name] {
			return module.Errorf(module.CodeStepNameDuplicate, "step %q is in the strategy already", step.Name)
		}
		seen[step.Name] = true
		var missing []string
		for _, token := range step.Requires {
			if !provided[token] {
				missing = append(missing, token)
			}
		}
		if missing != nil {
			return module.Errorf(module.CodePipelineDependency, "step %q requires %s, which no earlier step provides",
				step.Name, strings.Join(missing, ", "))
		}
		for _, token := range step.Provides {
			provided[token] = true
		}
	}
	s.install(steps)
	return nil
}

// check refuses an unusable step and a weakened gate (decision D-130).
func (s *Step) check() error {
	switch {
	case s == nil || s.Name == "" || s.Run == nil:
		return module.Errorf(module.CodePipelineConfiguration, "a step needs a name and a function")
	case s.TimeoutMS < 0:
		return module.Errorf(module.CodePipelineConfiguration, "step %q: timeout_ms is negative", s.Name)
	case s.kind.gate() && s.IgnoreErrors:
		return module.Errorf(module.CodePipelineConfiguration, "step %q is a gate: ignore_errors is not allowed", s.Name)
	case s.kind.gate() && s.MatchModules != nil:
		return module.Errorf(module.CodePipelineConfiguration, "step %q is a gate: match_modules is not allowed", s.Name)
	case s.policy.Validate() != nil:
		return module.Errorf(module.CodePipelineConfiguration, "step %q: %w", s.Name, s.policy.Validate())
	case s.kind == kindApproval && s.Pure:
		return module.Errorf(module.CodePipelineConfiguration, "step %q asks people: pure is not allowed", s.Name)
	}
	return nil
}

// InsertAfter puts a step behind the one named anchor. Errors: STEP_NOT_FOUND,
// STEP_NAME_DUPLICATE, and those of [NewStrategy].
func (s *Strategy) InsertAfter(anchor string, step *Step) error { return s.insert(anchor, 1, step) }

// InsertBefore puts a step in front of the one named anchor.
func (s *Strategy) InsertBefore(anchor string, step *Step) error { return s.insert(anchor, 0, step) }

func (s *Strategy) insert(anchor string, offset int, step *Step) error {
	i, ok := s.at[anchor]
	if !ok {
		return stepNotFound(module.CodeStepNotFound, anchor)
	}
	return s.replaceAll(slices.Insert(slices.Clone(s.steps), i+offset, step))
}

// Remove takes a step out. Errors: STEP_NOT_FOUND, STEP_NOT_REMOVABLE.
func (s *Strategy) Remove(name string) error {
	i, ok := s.at[name]
	switch {
	case !ok:
		return stepNotFound(module.CodeStepNotFound, name)
	case !s.steps[i].Removable:
		return module.Errorf(module.CodeStepNotRemovable, "step %q cannot be removed", name)
	}
	// Dependencies are not checked again: removing a provider is the caller's choice.
	s.install(slices.Delete(slices.Clone(s.steps), i, i+1))
	return nil
}

// Replace puts another step in the place of the one named. Errors:
// STEP_NOT_FOUND, STEP_NOT_REPLACEABLE, STEP_NAME_DUPLICATE.
func (s *Strategy) Replace(name string, step *Step) error {
	return s.swap(module.CodeStepNotFound, name, step)
}

// ConfigureStep swaps the whole step and keeps its position; doing it twice
// changes nothing more (core-executor seed, Contract: Pipeline.configure_step).
// Errors: PIPELINE_STEP_NOT_FOUND, STEP_NOT_REPLACEABLE, STEP_NAME_DUPLICATE.
func (s *Strategy) ConfigureStep(name string, step *Step) error {
	return s.swap(module.CodePipelineStepNotFound, name, step)
}

func (s *Strategy) swap(missing module.Code, name string, step *Step) error {
	i, ok := s.at[name]
	switch {
	case !ok:
		return stepNotFound(missing, name)
	case !s.steps[i].Replaceable:
		return module.Errorf(module.CodeStepNotReplaceable, "step %q cannot be replaced", name)
	}
	steps := slices.Clone(s.steps)
	steps[i] = step.inPlaceOf(s.steps[i])
	return s.replaceAll(steps)
}

// inPlaceOf returns a copy of s that takes over what belongs to the position:
// whether it may be removed and replaced, and what the steps around it rely on
// unless s says so itself.
func (s *Step) inPlaceOf(old *Step) *Step {
	if s == nil {
		return nil
	}
	c := *s
	c.Removable, c.Replaceable = old.Removable, old.Replaceable
	if c.Requires == nil && c.Provides == nil {
		c.Requires, c.Provides = old.Requires, old.Provides
	}
	return &c
}

func stepNotFound(code module.Code, name string) error {
	return module.Errorf(code, "step %q is not in the strategy", name)
}

// AddStepMiddleware registers a step middleware, in the order of the calls.
func (s *Strategy) AddStepMiddleware(m StepMiddleware) { s.middleware = append(s.middleware, m) }
