package bus_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

func TestDrainFinishesWhatWasAccepted(t *testing.T) {
	onMesh(t, func(m *mesh) {
		started := make(chan string, 1)
		n := m.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
			started <- req.CallID
			return lasting(ctx, req)
		}))
		c := m.client()
		m.wait(c, "mod.x")
		done := invoke(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.x", Inputs: map[string]any{"ms": 3000}})
		<-started
		drained := make(chan error, 1)
		go func() { drained <- n.Drain(m.t.Context()) }()
		pass(100 * time.Millisecond)
		if info, ok := c.Module("mod.x"); ok {
			m.t.Errorf("the catalogue still shows hosts %v", info.Hosts)
		}
		if nodes := c.Nodes(); len(nodes) != 1 || !nodes[0].Draining {
			m.t.Errorf("nodes %+v, want one that drains", nodes)
		}
		_, err := c.Call(m.t.Context(), "mod.x", nil)
		wantCode(m.t, err, module.CodeBusNoResponders)
		select {
		case err := <-drained:
			m.t.Errorf("drained with a call in flight: %v", err)
		default:
		}
		if end := <-done; end.err != nil {
			m.t.Errorf("the accepted call: %v", end.err)
		}
		if err := <-drained; err != nil {
			m.t.Errorf("Drain: %v", err)
		}
		<-n.Drained()
	})
}

func TestDrainCutsWhatOutlivesTheGrace(t *testing.T) {
	onMesh(t, func(m *mesh) {
		started, ended := make(chan string, 1), make(chan error, 1)
		n := m.node("n1", newStubHost().add("mod.x", module.Annotations{}, untilDone(started, ended)), func(o *bus.NodeOptions) { o.DrainGrace = 2 * time.Second })
		c := m.client()
		m.wait(c, "mod.x")
		done := invoke(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"})
		<-started
		began := time.Now()
		if err := n.Drain(m.t.Context()); err == nil {
			m.t.Error("Drain does not say that it cut calls short")
		}
		if took := time.Since(began); took < 2*time.Second || took > 2100*time.Millisecond {
			m.t.Errorf("drained after %v, want the grace of 2s", took)
		}
		if got := cancel.ReasonOf(<-ended); got != cancel.Shutdown {
			m.t.Errorf("cancelled for %q, want %q", got, cancel.Shutdown)
		}
		if e := wantCode(m.t, (<-done).err, module.CodeExecutionCancelled); !e.Remote {
			m.t.Error("the owner did not say so itself")
		}
	})
}

func TestDrainByMessage(t *testing.T) {
	onMesh(t, func(m *mesh) {
		started := make(chan string, 1)
		n := m.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
			started <- req.CallID
			return lasting(ctx, req)
		}))
		c := m.client()
		m.wait(c, "mod.x")
		done := invoke(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.x", Inputs: map[string]any{"ms": 1000}})
		<-started
		inFlight, err := c.Drain(m.t.Context(), "n1", 5*time.Second, "ana")
		if err != nil || inFlight != 1 {
			m.t.Fatalf("%d in flight, %v", inFlight, err)
		}
		began := time.Now()
		<-n.Drained()
		if took := time.Since(began); took > 1100*time.Millisecond {
			m.t.Errorf("drained after %v", took)
		}
		if end := <-done; end.err != nil {
			m.t.Error(end.err)
		}
		_, err = c.Drain(m.t.Context(), "nobody", 0, "ana")
		wantCode(m.t, err, module.CodeBusNoResponders)
	})
}

func TestDirectedCallToADrainingNodeIsRefused(t *testing.T) {
	onWire(t, func(w *wire) {
		n := w.node("n1", newStubHost().add("mod.x", module.Annotations{}, echo))
		if err := n.Drain(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
		if w.mem.Listening(anyHost("mod.x")) != 0 {
			w.t.Error("a draining node is still in the queue group")
		}
		p := w.peer()
		m := p.request(&contextwire.Request{ModuleID: "mod.x"})
		m.Subject = directed(n, "mod.x")
		p.send(m)
		if f := p.next(); f.Kind != contextwire.FrameError || f.Err.Code != module.CodeBusOverloaded || !f.Err.Unexecuted {
			w.t.Errorf("got %+v", f)
		}
	})
}

// Nodes come and go under load, in the gentle way: no call fails.
func TestRollingRestartFailsNoCall(t *testing.T) {
	onMesh(t, func(m *mesh) {
		host := func() *stubHost {
			return newStubHost().add("mod.x", module.Annotations{}, func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
				<-time.After(5 * time.Millisecond)
				return map[string]any{}, nil
			})
		}
		stay := []*bus.Conns{m.conns(), m.conns()}
		nodes := []*bus.Node{m.nodeOn(stay[0], "n0", host()), m.nodeOn(stay[1], "n1", host())}
		c := m.client()
		m.waitHosts(c, "mod.x", 2)
		ctx, stop := context.WithCancel(m.t.Context())
		defer stop()
		var wg sync.WaitGroup
		var calls atomic.Int64
		for range 8 {
			wg.Go(func() {
				for ctx.Err() == nil {
					calls.Add(1)
					if _, err := c.Call(m.t.Context(), "mod.x", nil); err != nil {
						m.t.Errorf("a call failed: %v", err)
						return
					}
				}
			})
		}
		for i := range 6 {
			pass(100 * time.Millisecond)
			old := nodes[i%2]
			if err := old.Drain(m.t.Context()); err != nil {
				m.t.Error(err)
			}
			if err := old.Close(); err != nil {
				m.t.Error(err)
			}
			nodes[i%2] = m.nodeOn(stay[i%2], old.ID(), host())
			m.waitHosts(c, "mod.x", 2)
		}
		stop()
		wg.Wait()
		if calls.Load() < 500 {
			m.t.Errorf("only %d calls were made", calls.Load())
		}
	})
}
