package bus_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

func TestACallThatNamesItsNodeGoesThere(t *testing.T) {
	onMesh(t, func(m *mesh) {
		for _, id := range []string{"n1", "n2", "n3"} {
			m.node(id, newStubHost().add("mod.x", module.Annotations{}, echo))
		}
		m.node("n4", newStubHost().add("mod.y", module.Annotations{}, echo))
		c := m.client()
		m.waitHosts(c, "mod.x", 3)
		m.wait(c, "mod.y")
		got := byNode(m, func() (*contextwire.Reply, error) {
			return c.Invoke(m.t.Context(), &contextwire.Request{ModuleID: "mod.x", Node: "n2"})
		}, 30)
		if got["n2"] != 30 {
			m.t.Errorf("calls by node %v, want all on n2", got)
		}
		if _, err := c.Call(m.t.Context(), "mod.x", nil, module.CallNode("n3")); err != nil {
			m.t.Error(err)
		}
		for _, tt := range []struct {
			name, node, version string
			want                module.Code
		}{
			{"no such node", "n9", "", module.CodeBusNoResponders},
			{"a node without the module", "n4", "", module.CodeModuleNotFound},
			{"a node with another version", "n1", "^7.0", module.CodeBusVersionMismatch},
		} {
			req := &contextwire.Request{ModuleID: "mod.x", Node: tt.node, Version: tt.version}
			_, err := c.Invoke(m.t.Context(), req)
			e := module.AsError(err)
			if e == nil || e.Code != tt.want || !e.Unexecuted || e.Details["node"] != tt.node {
				m.t.Errorf("%s: %v, want %s, unexecuted, with the node", tt.name, err, tt.want)
			}
			if _, err := c.Check(m.t.Context(), req); module.CodeOf(err) != tt.want {
				m.t.Errorf("%s, checked: %v, want %s", tt.name, err, tt.want)
			}
		}
	})
}

// A node that must be named is never chosen, not by its queue group either, and what
// it hosts is not what the catalogue shows under the same ID.
func TestANodeThatMustBeNamed(t *testing.T) {
	onMesh(t, func(m *mesh) {
		named := func(o *bus.NodeOptions) { o.NamedOnly = true }
		m.node("hub", newStubHost().add("mod.x", module.Annotations{Readonly: true}, echo).add("mod.y", module.Annotations{}, echo), named)
		c := m.client()
		call := func(id, node string) (*contextwire.Reply, error) {
			return c.Invoke(m.t.Context(), &contextwire.Request{ModuleID: id, Node: node})
		}
		for len(c.Nodes()) == 0 {
			pass(10 * time.Millisecond)
		}
		if _, err := call("mod.y", ""); module.CodeOf(err) != module.CodeBusNoResponders {
			m.t.Errorf("a module that only a named node has: %v", err)
		}
		if info, ok := c.Module("mod.y"); ok {
			m.t.Errorf("the catalogue shows %+v", info)
		}
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, echo))
		m.wait(c, "mod.x")
		if got := byNode(m, func() (*contextwire.Reply, error) { return call("mod.x", "") }, 30); got["n1"] != 30 {
			m.t.Errorf("calls by node %v, want all on n1", got)
		}
		if info, _ := c.Module("mod.x"); len(info.Hosts) != 1 || info.Descriptor.Annotations.Readonly {
			m.t.Errorf("the catalogue shows %+v", info)
		}
		for _, id := range []string{"mod.x", "mod.y"} {
			if reply, err := call(id, "hub"); err != nil || reply.Node != "hub" {
				m.t.Errorf("%s by name: %+v, %v", id, reply, err)
			}
		}
		bare := m.conns().Calls
		if m2, err := bare.Request(m.t.Context(), &nats.Msg{Subject: "apbus.v1.call.default._.mod.y", Data: []byte("{}")}); err == nil {
			m.t.Errorf("the queue group answered %s", m2.Data)
		}
	})
}

// A node that is overloaded for a moment is asked again, since no other may be.
func TestANamedNodeIsTriedAgain(t *testing.T) {
	onMesh(t, func(m *mesh) {
		var calls atomic.Int64
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
			if calls.Add(1) == 1 {
				return nil, module.Errorf(module.CodeBusOverloaded, "busy").WithDetail("retry_after_ms", int64(50)).NotExecuted()
			}
			return map[string]any{}, nil
		}))
		m.node("n2", newStubHost().add("mod.x", module.Annotations{}, echo))
		c := m.client()
		m.waitHosts(c, "mod.x", 2)
		reply, err := c.Invoke(m.t.Context(), &contextwire.Request{ModuleID: "mod.x", Node: "n1"})
		if err != nil || reply.Node != "n1" || reply.Attempt != 2 {
			m.t.Errorf("%+v, %v, want the second attempt on n1", reply, err)
		}
	})
}

func TestADrainingNodeTakesNoCallByName(t *testing.T) {
	onMesh(t, func(m *mesh) {
		started, ended := make(chan string, 1), make(chan error, 1)
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, untilDone(started, ended)))
		m.node("n2", newStubHost().add("mod.x", module.Annotations{}, echo))
		c := m.client()
		m.waitHosts(c, "mod.x", 2)
		ctx, stop := context.WithCancel(m.t.Context())
		over := make(chan struct{})
		go func() {
			defer close(over)
			_, _ = c.Invoke(ctx, &contextwire.Request{ModuleID: "mod.x", Node: "n1"})
		}()
		<-started
		if _, err := c.Drain(m.t.Context(), "n1", 0, "test"); err != nil {
			m.t.Error(err)
		}
		_, err := c.Invoke(m.t.Context(), &contextwire.Request{ModuleID: "mod.x", Node: "n1"})
		if module.CodeOf(err) != module.CodeBusNoResponders {
			m.t.Errorf("got %v, want BUS_NO_RESPONDERS", err)
		}
		stop()
		<-ended
		<-over
	})
}

func TestProgressOfACall(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(_ context.Context, req *contextwire.Request) (map[string]any, error) {
			req.Progress(module.ProgressReport{Done: 1, Total: 2, Note: "half"})
			return map[string]any{}, nil
		}))
		c := m.client()
		m.wait(c, "mod.x")
		var got []module.ProgressReport
		_, err := c.Call(m.t.Context(), "mod.x", nil, module.CallProgress(func(r module.ProgressReport) { got = append(got, r) }))
		if want := (module.ProgressReport{Done: 1, Total: 2, Note: "half"}); err != nil || len(got) != 1 || got[0] != want {
			m.t.Errorf("progress %v, %v", got, err)
		}
	})
}

// The caller learns who has a call that takes a while, once.
func TestWhoHasTheCall(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(_ context.Context, req *contextwire.Request) (map[string]any, error) {
			<-time.After(100 * time.Millisecond)
			req.Progress(module.ProgressReport{Done: 1})
			return map[string]any{}, nil
		}))
		c := m.client()
		m.wait(c, "mod.x")
		var told []string
		reply, err := c.Invoke(m.t.Context(), &contextwire.Request{
			ModuleID: "mod.x",
			Accepted: func(node, boot string) { told = append(told, node+"."+boot) },
			Progress: func(module.ProgressReport) { told = append(told, "progress") },
		})
		if err != nil {
			m.t.Fatal(err)
		}
		if want := []string{"n1." + reply.Boot, "progress"}; !slices.Equal(told, want) {
			m.t.Errorf("told %q, want %q", told, want)
		}
	})
}
