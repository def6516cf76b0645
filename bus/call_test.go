package bus_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
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

// A trace that was asked for comes with the end, also with a failed one.
func TestTraceComesWithTheEnd(t *testing.T) {
	onMesh(t, func(m *mesh) {
		traced := tracingHost{newStubHost().
			add("mod.ok", module.Annotations{}, echo).
			add("mod.bad", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
				return nil, module.Errorf(module.CodeModuleExecuteError, "broken")
			})}
		m.node("n1", traced)
		c := m.client()
		m.wait(c, "mod.ok", "mod.bad")
		for _, tt := range []struct {
			id    string
			trace bool
			code  module.Code
		}{
			{"mod.ok", true, ""}, {"mod.ok", false, ""},
			{"mod.bad", true, module.CodeModuleExecuteError}, {"mod.bad", false, module.CodeModuleExecuteError},
		} {
			reply, err := c.Invoke(m.t.Context(), &contextwire.Request{ModuleID: tt.id, Trace: tt.trace})
			if got := module.CodeOf(err); got != tt.code {
				m.t.Errorf("%s: code = %q, want %q", tt.id, got, tt.code)
			}
			var got any
			if reply != nil {
				got = reply.Trace["module_id"]
			}
			if want := map[bool]any{true: tt.id}[tt.trace]; got != want {
				m.t.Errorf("%s with trace %v: traced module = %v, want %v", tt.id, tt.trace, got, want)
			}
		}
	})
}

// tracingHost answers with a trace where one is asked for, as the executor does.
type tracingHost struct{ *stubHost }

func (h tracingHost) Invoke(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
	reply, err := h.stubHost.Invoke(ctx, req)
	if !req.Trace {
		return reply, err
	}
	if reply == nil {
		reply = &contextwire.Reply{}
	}
	reply.Trace = map[string]any{"module_id": req.ModuleID}
	if n, ok := req.Inputs["nested"].(int64); ok {
		reply.Trace["calls"] = slices.Repeat([]any{map[string]any{"module_id": strings.Repeat("x", 1<<10)}}, int(n))
	}
	return reply, err
}

// A trace names its node, and one that no message holds arrives without its nested
// calls, which it counts.
func TestTraceFitsAMessage(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", tracingHost{newStubHost().add("mod.ok", module.Annotations{}, echo)})
		c := m.client()
		m.wait(c, "mod.ok")
		for _, n := range []int64{3, 2000} {
			reply, err := c.Invoke(m.t.Context(), &contextwire.Request{ModuleID: "mod.ok", Trace: true, Inputs: map[string]any{"nested": n}})
			if err != nil || reply.Trace["node"] != "n1" {
				m.t.Fatalf("%d nested calls: %v, %v", n, reply, err)
			}
			calls, _ := reply.Trace["calls"].([]any)
			switch dropped := reply.Trace["calls_dropped"]; n {
			case 3:
				if len(calls) != 3 || dropped != nil {
					m.t.Errorf("%d calls, %v dropped", len(calls), dropped)
				}
			default:
				if len(calls) != 0 || dropped != n {
					m.t.Errorf("%d calls, %v dropped, want %d", len(calls), dropped, n)
				}
			}
		}
	})
}
