package bus_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/module"
)

func TestCallReachesTheHostAndComesBack(t *testing.T) {
	onMesh(t, func(m *mesh) {
		t := m.t
		m.node("n1", newStubHost().add("math.echo", module.Annotations{}, echo))
		c := m.client()
		m.wait(c, "math.echo")
		got, err := c.Call(t.Context(), "math.echo", map[string]any{"n": int64(1) << 62, "nil": nil})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]any{"n": int64(1) << 62, "nil": nil}, got["inputs"]); diff != "" {
			t.Errorf("inputs (-want +got):\n%s", diff)
		}
	})
}

func TestUnknownModuleIsNotFound(t *testing.T) {
	onMesh(t, func(m *mesh) {
		t := m.t
		_, err := m.client().Call(t.Context(), "no.such", nil)
		wantCode(t, err, module.CodeModuleNotFound)
	})
}

func TestCancelledCallerStopsTheModule(t *testing.T) {
	onMesh(t, func(m *mesh) {
		t := m.t
		started, ended := make(chan string, 1), make(chan error, 1)
		m.node("n1", newStubHost().add("demo.wait", module.Annotations{}, untilDone(started, ended)))
		c := m.client()
		m.wait(c, "demo.wait")
		ctx, stop := context.WithCancelCause(t.Context())
		go func() { <-started; stop(errors.New("enough")) }()
		_, err := c.Call(ctx, "demo.wait", nil)
		wantCode(t, err, module.CodeExecutionCancelled)
		if got := cancel.ReasonOf(<-ended); got != cancel.Caller {
			t.Errorf("the module was cancelled for %q, want %q", got, cancel.Caller)
		}
	})
}
