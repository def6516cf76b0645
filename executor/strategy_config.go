package executor

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/apbus/apbus/module"
)

// StrategyFromConfig builds the strategy that a decoded `pipeline:` section asks
// for: the standard one with the entries of remove taken out, then those of
// configure overlaid, then those of steps put in, in their order (protocol §5.16). A
// nil or empty section is the standard strategy. Nothing is left for the first call
// to find out:
//
//   - PIPELINE_CONFIGURATION_ERROR for anything unknown, of the wrong type or
//     without its place, naming every offending key, and for a weakened gate
//     (decision D-130): ignore_errors true or any match_modules on either gate, pure
//     true on the approval gate;
//   - STEP_NOT_REMOVABLE for a fixed step under remove;
//   - STEP_NAME_DUPLICATE for an inserted step whose name is taken;
//   - PIPELINE_HANDLER_NOT_SUPPORTED for a step given as handler: code cannot be
//     loaded here, steps come from types;
//   - PIPELINE_DEPENDENCY_ERROR when a step stands before what it requires.
//
// A removed gate is a notice, logged as WARN by the executor that is made with the
// strategy. types may be nil.
func StrategyFromConfig(section map[string]any, types *StepTypes) (*Strategy, error) {
	c := &pipelineConfig{strategy: Standard(), types: types, seen: map[string]bool{}}
	c.checkKeys("pipeline", section, "remove", "configure", "steps")
	if err := c.failure(); err != nil {
		return nil, err
	}
	for _, stage := range []func(map[string]any) error{c.remove, c.configure, c.insert} {
		if err := stage(section); err != nil {
			return nil, err
		}
	}
	return c.strategy, nil
}

// StepTypes are the kinds of steps that a configuration may insert. The zero value
// knows none. It is safe for concurrent use, except for its limits.
type StepTypes struct {
	// MaxNameLength and MaxTimeoutMS bound configured names, in bytes, and time
	// limits (validation.pipeline.step_name_max_length and timeout_ms_max); 0 is no
	// bound.
	MaxNameLength, MaxTimeoutMS int

	mu        sync.RWMutex
	factories map[string]StepFactory
}

// StepFactory makes a step from the `config` of its entry, nil when there is none.
// The name and the step fields of the entry are put in afterwards.
type StepFactory func(config map[string]any) (*Step, error)

// Register adds a type. A taken or empty name and a nil factory are
// GENERAL_INVALID_INPUT.
func (t *StepTypes) Register(name string, factory StepFactory) error {
	if name == "" || factory == nil {
		return module.Errorf(module.CodeInvalidInput, "a step type needs a name and a factory")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, taken := t.factories[name]; taken {
		return module.Errorf(module.CodeInvalidInput, "step type %q is registered already", name)
	}
	if t.factories == nil {
		t.factories = map[string]StepFactory{}
	}
	t.factories[name] = factory
	return nil
}

// Names lists the types, sorted.
func (t *StepTypes) Names() []string {
	if t == nil {
		return nil
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Sorted(maps.Keys(t.factories))
}

func (t *StepTypes) factory(name string) StepFactory {
	if t == nil {
		return nil
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.factories[name]
}

// notices are what a strategy has to say once, to whoever runs it first.
type notices struct {
	once sync.Once
	list []string // names of removed gates
}

func (n *notices) log(to *slog.Logger) {
	if n == nil {
		return
	}
	n.once.Do(func() {
		for _, step := range n.list {
			to.Warn("the configuration removes a step that protects modules", "step", step)
		}
	})
}

// pipelineConfig builds one strategy and collects what is wrong.
type pipelineConfig struct {
	strategy *Strategy
	types    *StepTypes
	wrong    []string
	seen     map[string]bool
}

func (c *pipelineConfig) complain(format string) {
	if !c.seen[format] {
		c.seen[format] = true
		c.wrong = append(c.wrong, format)
	}
}

// failure makes one error of everything that is wrong so far.
func (c *pipelineConfig) failure() error {
	if len(c.wrong) == 0 {
		return nil
	}
	return module.Errorf(module.CodePipelineConfiguration, "pipeline configuration: %s", strings.Join(c.wrong, "; "))
}

func (c *pipelineConfig) remove(section map[string]any) error {
	names := c.strings("remove", section["remove"])
	for _, name := range names {
		if _, ok := c.strategy.at[name]; !ok {
			c.complain("remove: step " + quoted(name) + " does not exist")
		}
	}
	if err := c.failure(); err != nil {
		return err
	}
	gone := &notices{}
	for _, name := range names {
		step, ok := c.strategy.Step(name)
		if !ok {
			return module.Errorf(module.CodePipelineConfiguration, "pipeline configuration: remove: step %q is named twice", name)
		}
		if err := c.strategy.Remove(name); err != nil {
			return err
		}
		if step.kind.gate() {
			gone.list = append(gone.list, name)
		}
	}
	if gone.list != nil {
		c.strategy.notices = gone
	}
	return nil
}

// configure overlays fields of steps that are there, fixed ones included.
func (c *pipelineConfig) configure(section map[string]any) error {
	entries := c.object("configure", section["configure"])
	steps := slices.Clone(c.strategy.steps)
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		where := "configure." + name
		fields := c.object(where, entries[name])
		i, ok := c.strategy.at[name]
		if !ok {
			c.complain("configure: step " + quoted(name) + " does not exist")
			continue
		}
		c.checkKeys(where, fields, overlayKeys()...)
		step := *steps[i]
		c.overlay(where, &step, fields)
		steps[i] = &step
	}
	if err := c.failure(); err != nil {
		return err
	}
	return c.strategy.replaceAll(steps)
}

// insert puts new steps in, each of which may be placed beside an earlier one.
func (c *pipelineConfig) insert(section map[string]any) error {
	entries := c.list("steps", section["steps"])
	read := make([]stepEntry, 0, len(entries))
	for i, raw := range entries {
		read = append(read, c.entry(i, raw))
	}
	// All of them are judged before the first is built.
	if err := c.failure(); err != nil {
		return err
	}
	for _, e := range read {
		if e.handler {
			return module.Errorf(module.CodePipelineHandler, "pipeline configuration: step %q is given as handler, which cannot be loaded here: register a type", e.name)
		}
		if err := c.place(e); err != nil {
			return err
		}
	}
	return nil
}

func (c *pipelineConfig) place(e stepEntry) error {
	if _, taken := c.strategy.at[e.name]; taken {
		return module.Errorf(module.CodeStepNameDuplicate, "step %q is in the strategy already", e.name)
	}
	if _, ok := c.strategy.at[e.anchor]; !ok {
		return module.Errorf(module.CodePipelineConfiguration, "pipeline configuration: %s: there is no step %q to be put beside", e.where, e.anchor)
	}
	made, err := buildStep(e)
	if err != nil {
		return err
	}
	step := *made
	step.Name = e.name
	c.overlay(e.where, &step, e.fields)
	if err := c.failure(); err != nil {
		return err
	}
	if e.before {
		return c.strategy.InsertBefore(e.anchor, &step)
	}
	return c.strategy.InsertAfter(e.anchor, &step)
}

func buildStep(e stepEntry) (step *Step, err error) {
	defer func() {
		if recover() != nil {
			step, err = nil, module.Errorf(module.CodePipelineConfiguration, "pipeline configuration: %s: the factory of the type panicked", e.where)
		}
	}()
	if step, err = e.make(e.config); err != nil {
		return nil, module.Errorf(module.CodePipelineConfiguration, "pipeline configuration: %s: %w", e.where, err)
	}
	if step == nil {
		return nil, module.Errorf(module.CodePipelineConfiguration, "pipeline configuration: %s: the factory of the type made nothing", e.where)
	}
	return step, nil
}
