package bus_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

func TestOverload(t *testing.T) {
	onWire(t, func(w *wire) {
		var ran atomic.Int64
		w.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
			ran.Add(1)
			return lasting(ctx, req)
		}), func(o *bus.NodeOptions) { o.MaxInFlight, o.QueueSize = 2, 3 })
		p := w.peer()
		for range 8 {
			p.send(p.request(&contextwire.Request{ModuleID: "mod.x", Inputs: map[string]any{"ms": 100}}))
		}
		refused := p.frames()
		if len(refused) != 3 {
			w.t.Fatalf("%d refused at once, want 3 of 8: 2 run, 3 wait", len(refused))
		}
		for _, f := range refused {
			if f.Kind != contextwire.FrameError || f.Err.Code != module.CodeBusOverloaded || !f.Err.Unexecuted || f.RetryAfter <= 0 {
				w.t.Errorf("got %+v", f)
			}
		}
		pass(time.Second)
		results := 0
		for _, f := range p.frames() {
			if f.Kind == contextwire.FrameResult {
				results++
			}
		}
		if results != 5 || ran.Load() != 5 {
			w.t.Errorf("%d results of %d runs, want 5", results, ran.Load())
		}
	})
}

func TestModuleLimitDoesNotHoldUpOtherModules(t *testing.T) {
	onWire(t, func(w *wire) {
		w.node("n1", newStubHost().add("mod.slow", module.Annotations{}, lasting).add("mod.fast", module.Annotations{}, echo),
			func(o *bus.NodeOptions) { o.MaxPerModule = 1 })
		p, q := w.peer(), w.peer()
		for range 5 {
			p.send(p.request(&contextwire.Request{ModuleID: "mod.slow", Inputs: map[string]any{"ms": 1000}}))
		}
		q.send(q.request(&contextwire.Request{ModuleID: "mod.fast"}))
		if got := kinds(q.frames()); len(got) != 1 || got[0] != contextwire.FrameResult {
			w.t.Errorf("another module's call got %v", got)
		}
		pass(10 * time.Second)
	})
}

// Slots that an abandoned module holds count.
func TestDebtTakesSlots(t *testing.T) {
	onWire(t, func(w *wire) {
		h := newStubHost().add("mod.x", module.Annotations{}, echo)
		w.node("n1", h, func(o *bus.NodeOptions) { o.MaxInFlight, o.QueueSize = 1, 1 })
		h.debt.Store(1)
		p := w.peer()
		p.send(p.request(&contextwire.Request{ModuleID: "mod.x"}))
		pass(time.Second)
		if got := kinds(p.frames()); len(got) != 1 || got[0] != contextwire.FrameAccept {
			w.t.Errorf("got %v, want the call to wait", got)
		}
		h.debt.Store(0)
		pass(200 * time.Millisecond)
		if got := kinds(p.frames()); len(got) != 1 || got[0] != contextwire.FrameResult {
			w.t.Errorf("got %v, want the result once the debt is gone", got)
		}
	})
}

func TestOverloadedCallGoesElsewhere(t *testing.T) {
	onMesh(t, func(m *mesh) {
		started, ended := make(chan string, 10), make(chan error, 10)
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, untilDone(started, ended)), func(o *bus.NodeOptions) { o.MaxInFlight, o.QueueSize = 1, -1 })
		c := m.client()
		m.wait(c, "mod.x")
		ctx, stop := context.WithCancelCause(m.t.Context())
		defer stop(nil)
		long := invoke(ctx, c, &contextwire.Request{ModuleID: "mod.x"})
		<-started
		m.node("n2", newStubHost().add("mod.x", module.Annotations{}, echo))
		m.waitHosts(c, "mod.x", 2)
		for range 50 {
			reply, err := c.Invoke(m.t.Context(), &contextwire.Request{ModuleID: "mod.x"})
			if err != nil || reply.Node != "n2" {
				m.t.Fatalf("%+v, %v", reply, err)
			}
		}
		stop(errors.New("enough"))
		<-long
	})
}

// nest makes a module that calls the next on the same node and waits for it.
func nest(c **bus.Client, next ...string) stubRun {
	return func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
		root := req.Root
		if root == "" {
			root = req.CallID
		}
		var wg sync.WaitGroup
		errs := make([]error, len(next))
		for i, id := range next {
			wg.Go(func() {
				_, errs[i] = (*c).Invoke(ctx, &contextwire.Request{ModuleID: id, Root: root, Parent: req.CallID, Context: req.Context.Child(req.ModuleID)})
			})
		}
		wg.Wait()
		return map[string]any{}, errors.Join(errs...)
	}
}

func TestCallThatWaitsForItselfFailsFast(t *testing.T) {
	onWire(t, func(w *wire) {
		c := w.client()
		h := newStubHost().add("mod.a", module.Annotations{}, nest(&c, "mod.b")).add("mod.b", module.Annotations{}, echo)
		w.node("n1", h, func(o *bus.NodeOptions) { o.MaxInFlight = 1 })
		began := time.Now()
		_, err := c.Call(w.t.Context(), "mod.a", nil)
		e := wantCode(w.t, err, module.CodeBusOverloaded)
		if took := time.Since(began); took > time.Second {
			w.t.Errorf("failed after %v", took)
		}
		chain, _ := e.Details["call_chain"].([]any)
		if len(chain) != 2 || chain[0] != "mod.a" || chain[1] != "mod.b" {
			w.t.Errorf("chain %v, want mod.a, mod.b", chain)
		}
		if e.Unexecuted {
			w.t.Error("the outer call says that it was not executed")
		}
	})
}

// A wide fan-out waits for its own siblings, which end; only its ancestors never
// would.
func TestFanOutWaitsForItsSiblings(t *testing.T) {
	onWire(t, func(w *wire) {
		c := w.client()
		var next []string
		for range 20 {
			next = append(next, "mod.b")
		}
		h := newStubHost().add("mod.a", module.Annotations{}, nest(&c, next...)).
			add("mod.b", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
				<-time.After(50 * time.Millisecond)
				return map[string]any{}, nil
			})
		w.node("n1", h, func(o *bus.NodeOptions) { o.MaxInFlight, o.QueueSize = 4, 100 })
		if _, err := c.Call(w.t.Context(), "mod.a", nil); err != nil {
			w.t.Error(err)
		}
	})
}

// Two trees that wait for each other's slots are freed by failing one.
func TestTreesThatWaitForEachOther(t *testing.T) {
	onWire(t, func(w *wire) {
		c := w.client()
		h := newStubHost().add("mod.a", module.Annotations{}, func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
			<-time.After(50 * time.Millisecond)
			return nest(&c, "mod.b")(ctx, req)
		}).add("mod.b", module.Annotations{}, echo)
		w.node("n1", h, func(o *bus.NodeOptions) { o.MaxInFlight = 2 })
		one := invoke(w.t.Context(), c, &contextwire.Request{ModuleID: "mod.a"})
		two := invoke(w.t.Context(), c, &contextwire.Request{ModuleID: "mod.a"})
		failed := 0
		for _, call := range []<-chan outcome{one, two} {
			select {
			case end := <-call:
				if end.err != nil {
					wantCode(w.t, end.err, module.CodeBusOverloaded)
					failed++
				}
			case <-time.After(10 * time.Second):
				w.t.Fatal("the trees wait for each other for ever")
			}
		}
		if failed > 1 {
			w.t.Error("both failed, one would have been enough")
		}
	})
}

// What would wait for itself on one node runs on another.
func TestEntangledCallGoesElsewhere(t *testing.T) {
	onMesh(t, func(m *mesh) {
		c := m.client()
		m.node("n1", newStubHost().add("mod.a", module.Annotations{}, nest(&c, "mod.b")).add("mod.b", module.Annotations{}, echo),
			func(o *bus.NodeOptions) { o.MaxInFlight = 1 })
		m.node("n2", newStubHost().add("mod.b", module.Annotations{}, echo))
		m.wait(c, "mod.a")
		m.waitHosts(c, "mod.b", 2)
		for range 20 {
			if _, err := c.Call(m.t.Context(), "mod.a", nil); err != nil {
				m.t.Fatal(err)
			}
		}
	})
}
