package executor_test

import (
	"context"
	"strings"
	"testing"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/module"
)

// discreetMod says by its inputs what is a secret.
type discreetMod struct{ *mod }

func (discreetMod) SensitiveInputs(in map[string]any) []string {
	if in["kind"] == "secret" {
		return []string{"value"}
	}
	return nil
}

// What a discreet module calls a secret is masked in the views of the call and
// scrubbed from its errors.
func TestDiscreetModule(t *testing.T) {
	const value = "hunter2-long"
	for kind, hidden := range map[string]bool{"secret": true, "plain": false} {
		t.Run(kind, func(t *testing.T) {
			var seen any
			x := setup{
				modules: []module.Module{discreetMod{fn("m", func(_ context.Context, in map[string]any) (map[string]any, error) {
					return nil, module.Errorf("BAD_VALUE", "cannot use %v", in["value"])
				})}},
				opts: []executor.Option{executor.WithObserver(executor.ObserverFunc(func(c executor.Completion) { seen = c.Inputs()["value"] }))},
			}.executor(t)
			_, err := x.Call(t.Context(), "m", map[string]any{"kind": kind, "value": value})
			wantCode(t, err, "BAD_VALUE")
			if got := strings.Contains(err.Error(), value); got == hidden {
				t.Errorf("the error shows the value %v, want %v: %v", got, !hidden, err)
			}
			if got := seen == value; got == hidden {
				t.Errorf("the observer sees %v", seen)
			}
		})
	}
}
