package executor_test

import (
	"context"
	"testing"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/module"
)

// A module that is switched off fails at lookup, is not run, is not sought
// elsewhere and does not validate.
func TestDisabledModule(t *testing.T) {
	ran := false
	m := fn("m", func(context.Context, map[string]any) (map[string]any, error) {
		ran = true
		return map[string]any{}, nil
	})
	elsewhere := &remote{}
	x, reg := setup{modules: []module.Module{m}, opts: []executor.Option{executor.WithRemote(elsewhere)}}.build(t)
	reg.SetEnabled("m", false)
	_, err := x.Call(t.Context(), "m", nil)
	e := wantCode(t, err, module.CodeModuleDisabled)
	wantStep(t, err, executor.StepModuleLookup)
	if !e.Unexecuted || ran {
		t.Errorf("unexecuted %v, ran %v", e.Unexecuted, ran)
	}
	_, err = x.Invoke(t.Context(), &contextwire.Request{ModuleID: "m"})
	wantCode(t, err, module.CodeModuleDisabled)
	if r := x.Validate(t.Context(), "m", nil); r.Valid {
		t.Errorf("a disabled module is valid to call: %+v", r)
	}
	reg.SetEnabled("m", true)
	if _, err := x.Call(t.Context(), "m", nil); err != nil || !ran {
		t.Errorf("after it was switched on: %v, ran %v", err, ran)
	}
}
