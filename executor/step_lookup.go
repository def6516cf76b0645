package executor

import (
	"context"

	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

// lookupStep is step 3: the module, or the knowledge that it lives elsewhere.
func lookupStep() *Step {
	return &Step{
		Name: StepModuleLookup, Description: "find the module",
		Pure: true, Requires: []string{"context"}, Provides: []string{"module"}, kind: kindLookup, Run: runLookup,
	}
}

func runLookup(_ context.Context, p *Pipeline) (*StepResult, error) {
	if p.opts.Node != "" && !p.owned {
		return nil, p.elsewhere()
	}
	e, err := p.x.reg.Lookup(p.moduleID, p.opts.VersionHint)
	if err == nil && !e.Acquire() {
		e, err = nil, registry.NotFound(p.moduleID) // it is being unregistered
	}
	if err != nil {
		return nil, p.missing(err)
	}
	p.entry, p.held = e, true
	if err := checkLimit(e.Descriptor); err != nil {
		return nil, err
	}
	p.showInputs()
	return nil, nil
}

// elsewhere leaves the call to the node that the caller named. That it may be this
// one only the bus knows.
func (p *Pipeline) elsewhere() error {
	if p.x.remote == nil {
		return module.Errorf(module.CodeBusNoResponders, "the call names a node, and this executor is on no bus").
			WithDetails(map[string]any{"module_id": p.moduleID, "node": p.opts.Node}).NotExecuted()
	}
	p.remote = true
	return nil
}

// missing decides what becomes of a module that is not here. A call that came over
// the bus is never sent on: this process was taken for the owner.
func (p *Pipeline) missing(err error) error {
	switch module.CodeOf(err) {
	case module.CodeVersionConstraintInvalid:
		return err
	case module.CodeModuleDisabled: // nobody else is asked to run what was switched off here
		return module.AsError(err).NotExecuted()
	}
	if !p.owned && p.x.remote != nil {
		p.remote = true
		return nil
	}
	coded := module.AsError(err).NotExecuted()
	if p.owned && coded.Code == module.CodeVersionIncompatible {
		return module.Errorf(module.CodeBusVersionMismatch, "%s", coded.Message).WithDetails(coded.Details).NotExecuted()
	}
	return coded
}

// showInputs installs the redacted view of the inputs; it is made when read.
func (p *Pipeline) showInputs() {
	p.mctx.ShowInputs(p.x.redactor, p.entry.Marks(p.inputs), p.inputs)
}
