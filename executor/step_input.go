package executor

import (
	"context"
	"errors"
	"fmt"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// inputStep is step 7.
func inputStep() *Step {
	return &Step{
		Name: StepInputValidation, Description: "validate the inputs",
		Pure: true, Removable: true, Replaceable: true,
		Requires: []string{"module"}, Provides: []string{"validated_inputs"}, kind: kindInput, Run: runInput,
	}
}

func runInput(ctx context.Context, p *Pipeline) (*StepResult, error) {
	if p.entry == nil {
		return nil, nil
	}
	if err := p.unapproved(ctx); err != nil {
		return nil, err
	}
	if err := p.entry.Input.Validate(p.inputs); err != nil {
		return nil, invalid(p.moduleID, "inputs", err)
	}
	if !sameMap(p.inputs, p.raw) {
		p.showInputs() // a hook replaced them, or the approval token came out
	}
	return nil, nil
}

// invalid turns a schema verdict into the coded error. Neither its message nor its
// details quote the value.
func invalid(moduleID, what string, err error) *module.Error {
	verdict, ok := errors.AsType[*schema.ValidationError](err)
	if !ok {
		return module.Errorf(module.CodeInternal, "module %s: %s cannot be validated: %w", moduleID, what, err)
	}
	list := make([]any, len(verdict.Violations))
	for i, v := range verdict.Violations {
		list[i] = map[string]any{"path": v.Path, "keyword": v.Keyword, "message": v.Message}
	}
	code := module.Code(verdict.Code)
	if !code.Known() {
		code = module.CodeSchemaValidation
	}
	return module.Errorf(code, "%s", fmt.Sprintf("module %s: %s do not fit the schema", moduleID, what)).
		WithCause(verdict).WithDetails(map[string]any{"errors": list})
}
