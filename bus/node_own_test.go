package bus_test

import (
	"context"
	"testing"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// ownResult is the end of a call that a node made of itself.
type ownResult struct {
	reply *contextwire.Reply
	err   error
}

func ownCall(t *testing.T, n *bus.Node, req *contextwire.Request) <-chan ownResult {
	t.Helper()
	end := make(chan ownResult, 1)
	go func() {
		reply, err := n.Invoke(t.Context(), req)
		end <- ownResult{reply, err}
	}()
	return end
}

// A call that a node makes of itself is listed and cancelled like any other.
func TestOwnCallsAreListedAndCancelled(t *testing.T) {
	const call = "own-call-000000000001"
	mctx := module.NewContext(module.ContextOptions{Identity: module.NewIdentity("ann", "user", nil, nil)})
	tests := []struct {
		name string
		sel  cancel.Selector
	}{
		{"by call", cancel.Selector{Call: call}},
		{"by root", cancel.Selector{Root: call}},
		{"by trace", cancel.Selector{Trace: mctx.TraceID()}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			onMesh(t, func(m *mesh) {
				started, ended := make(chan string, 1), make(chan error, 1)
				n := m.node("n1", newStubHost().add("demo.wait", module.Annotations{}, untilDone(started, ended)))
				c := m.client()
				end := ownCall(m.t, n, &contextwire.Request{CallID: call, Attempt: 3, ModuleID: "demo.wait", Context: mctx, Budget: time.Hour})
				<-started
				m.wait(c, "demo.wait")
				lists, err := c.Calls(m.t.Context())
				if err != nil || len(lists) != 1 {
					m.t.Fatalf("calls: %v, %v", lists, err)
				}
				got := lists[0]
				want := contextwire.CallRecord{
					Call: call, Attempt: 3, Root: call, ModuleID: "demo.wait", Node: "n1", Boot: n.Boot(), IdentityID: "ann",
					TraceID: mctx.TraceID(), Mode: contextwire.ModeUnary, StartedAt: got.StartedAt, BudgetMS: 3_600_000, State: cancel.StateRunning,
				}
				if got != want || got.StartedAt.IsZero() {
					m.t.Errorf("listed as %+v, want %+v", got, want)
				}
				answer, err := c.Cancel(m.t.Context(), tt.sel, "enough", "bob")
				if err != nil || len(answer.Calls) != 1 || answer.Calls[0] != call {
					m.t.Fatalf("cancel: %+v, %v", answer, err)
				}
				if got := cancel.ReasonOf(<-ended); got != cancel.Remote {
					m.t.Errorf("the module was cancelled for %q, want %q", got, cancel.Remote)
				}
				wantCode(m.t, (<-end).err, module.CodeExecutionCancelled)
				if lists, err := c.Calls(m.t.Context()); err != nil || len(lists) != 0 {
					m.t.Errorf("calls after the end: %v, %v", lists, err)
				}
			})
		})
	}
}

// They take no slots of the callers, and a drain leaves them to whoever made them.
func TestOwnCallsTakeNoSlot(t *testing.T) {
	onMesh(t, func(m *mesh) {
		started, ended := make(chan string, 3), make(chan error, 3)
		host := newStubHost().add("demo.wait", module.Annotations{}, untilDone(started, ended)).add("demo.echo", module.Annotations{}, echo)
		n := m.node("n1", host, func(o *bus.NodeOptions) { o.MaxInFlight, o.QueueSize = 1, -1 })
		c := m.client()
		m.wait(c, "demo.echo")
		var ends []<-chan ownResult
		for range 3 {
			ends = append(ends, ownCall(m.t, n, &contextwire.Request{ModuleID: "demo.wait"}))
			<-started
		}
		if _, err := c.Call(m.t.Context(), "demo.echo", nil); err != nil {
			m.t.Errorf("a call beside them: %v", err)
		}
		if err := n.Drain(m.t.Context()); err != nil {
			m.t.Errorf("drain: %v", err)
		}
		if len(ended) != 0 {
			m.t.Error("a drain ended them")
		}
		if err := n.Close(); err != nil {
			m.t.Error(err)
		}
		for _, end := range ends {
			select { // Close has waited
			case e := <-end:
				wantCode(m.t, e.err, module.CodeExecutionCancelled)
			case <-time.After(time.Second):
				m.t.Fatal("a call outlives its node")
			}
			if got := cancel.ReasonOf(<-ended); got != cancel.Shutdown {
				m.t.Errorf("cancelled for %q, want %q", got, cancel.Shutdown)
			}
		}
		_, err := n.Invoke(m.t.Context(), &contextwire.Request{ModuleID: "demo.echo"})
		wantCode(m.t, err, module.CodeBusOverloaded)
	})
}

// A cancel that comes before its call stops it, and the caller's own end does.
func TestOwnCallsMeetTombstonesAndTheirCaller(t *testing.T) {
	onMesh(t, func(m *mesh) {
		started, ended := make(chan string, 1), make(chan error, 1)
		n := m.node("n1", newStubHost().add("demo.wait", module.Annotations{}, untilDone(started, ended)).add("demo.echo", module.Annotations{}, echo))
		c := m.client()
		m.wait(c, "demo.echo")
		a, err := c.Cancel(m.t.Context(), cancel.Selector{Call: "own-call-000000000002"}, "enough", "bob")
		if err != nil || len(a.Calls) != 0 {
			m.t.Errorf("cancel of what is not there: %+v, %v", a, err)
		}
		_, err = n.Invoke(m.t.Context(), &contextwire.Request{CallID: "own-call-000000000002", ModuleID: "demo.echo"})
		if e := wantCode(m.t, err, module.CodeExecutionCancelled); !e.Unexecuted {
			m.t.Error("it may have run")
		}
		ctx, stop := context.WithCancelCause(m.t.Context())
		end := make(chan error, 1)
		req := &contextwire.Request{CallID: "own-call-000000000003", ModuleID: "demo.wait"}
		go func() { _, err := n.Invoke(ctx, req); end <- err }()
		<-started
		_, err = n.Invoke(m.t.Context(), req)
		wantCode(m.t, err, module.CodeInvalidInput)
		stop(cancel.Because(cancel.LeaseLost, "", ""))
		if got := cancel.ReasonOf(<-ended); got != cancel.LeaseLost {
			m.t.Errorf("cancelled for %q, want %q", got, cancel.LeaseLost)
		}
		wantCode(m.t, <-end, module.CodeExecutionCancelled)
		if s := n.Stats(); s.InFlight != 0 {
			m.t.Errorf("stats %+v", s)
		}
	})
}
