package bus_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

func TestTypedCallWithinACall(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(_ context.Context, req *contextwire.Request) (map[string]any, error) {
			return map[string]any{"trace": req.Context.TraceID(), "sum": req.Inputs["a"].(int64) + 1}, nil
		}))
		c := m.client()
		m.wait(c, "mod.x")
		type in struct {
			A int `json:"a"`
		}
		type out struct {
			Trace string `json:"trace"`
			Sum   int    `json:"sum"`
		}
		parent := module.NewContext(module.ContextOptions{})
		got, err := bus.Call[out](module.WithContext(m.t.Context(), parent), c, "mod.x", in{A: 41})
		if err != nil || got.Sum != 42 || got.Trace != parent.TraceID() {
			m.t.Errorf("got %+v, %v, want sum 42 in trace %s", got, err, parent.TraceID())
		}
		for _, id := range []string{"", "Bad Id", "a..b", "a.*", "a.>"} {
			if _, err := c.Call(m.t.Context(), id, nil); module.AsError(err) == nil {
				m.t.Errorf("a call to %q: %v", id, err)
			}
		}
	})
}

func TestConstructorsRefuseBadNames(t *testing.T) {
	onWire(t, func(w *wire) {
		for _, bad := range []string{"A", "a.b", "a b", "*", strings.Repeat("x", 65)} {
			if _, err := bus.NewNode(w.conns(), newStubHost(), bus.NodeOptions{ID: bad, Logger: quiet()}); err == nil {
				w.t.Errorf("NewNode takes id %q", bad)
			}
			if _, err := bus.NewNode(w.conns(), newStubHost(), bus.NodeOptions{ID: "n1", Namespace: bad, Logger: quiet()}); err == nil {
				w.t.Errorf("NewNode takes namespace %q", bad)
			}
			if _, err := bus.NewClient(w.conns(), bus.ClientOptions{Namespace: bad, Logger: quiet()}); err == nil {
				w.t.Errorf("NewClient takes namespace %q", bad)
			}
		}
		if _, err := bus.NewNode(w.conns(), newStubHost(), bus.NodeOptions{Logger: quiet()}); err == nil {
			w.t.Error("NewNode takes a node without an id")
		}
		taken := &contextwire.Request{ModuleID: "mod.x", CallID: "call-0123456789abcdef"}
		w.peer().hosts("mod.x", func(*nats.Msg, string) []*contextwire.Frame { return nil })
		c := w.client()
		ctx, stop := context.WithCancel(w.t.Context())
		done := invoke(ctx, c, taken)
		pass(0)
		_, err := c.Invoke(w.t.Context(), taken)
		wantCode(w.t, err, module.CodeInvalidInput)
		stop()
		<-done
	})
}

func TestNamespacesAreApart(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, echo), func(o *bus.NodeOptions) { o.Namespace = "other" })
		c := m.client()
		pass(time.Second)
		if len(c.Nodes())+len(c.Modules()) != 0 {
			m.t.Errorf("another namespace is shown: %v", c.Nodes())
		}
		_, err := c.Call(m.t.Context(), "mod.x", nil)
		if module.AsError(err) == nil {
			m.t.Errorf("a call crosses namespaces: %v", err)
		}
	})
}

// A module that leaves is gone from the bus at once; a new major version moves
// its subject.
func TestModulesComeAndGo(t *testing.T) {
	onWire(t, func(w *wire) {
		h := newStubHost().add("mod.x", module.Annotations{}, echo).add("mod.y", module.Annotations{}, echo)
		w.node("n1", h)
		h.remove("mod.x")
		pass(0)
		for subject, want := range map[string]int{
			anyHost("mod.x"): 0, "apbus.v1.check.default._.mod.x": 0, "apbus.v1.call.default.1.mod.x": 0, "apbus.v1.cancel.default.mod.x": 0,
			anyHost("mod.y"): 1, "apbus.v1.call.default.1.mod.y": 1,
		} {
			if got := w.mem.Listening(subject); got != want {
				w.t.Errorf("%d listen to %s, want %d", got, subject, want)
			}
		}
		h.version("mod.y", "2.0.0")
		pass(0)
		if w.mem.Listening("apbus.v1.call.default.1.mod.y") != 0 || w.mem.Listening("apbus.v1.call.default.2.mod.y") != 1 {
			w.t.Error("a new major version does not move its subject")
		}
	})
}

// While a module changes its version, calls to it go on.
func TestVersionChangeFailsNoCall(t *testing.T) {
	onMesh(t, func(m *mesh) {
		h := newStubHost().add("mod.x", module.Annotations{}, echo)
		m.node("n1", h)
		nc := m.connect()
		ctx := m.within(time.Minute)
		for i := range 20 {
			var wg sync.WaitGroup
			for n := range 100 {
				if n == 50 {
					h.version("mod.x", strconv.Itoa(i+2)+".0.0")
				}
				wg.Go(func() {
					reply, err := nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: anyHost("mod.x")})
					if err != nil || reply.Header.Get("Nats-Service-Error") != "" {
						m.t.Errorf("a call failed: %v %v", reply, err)
					}
				})
			}
			wg.Wait()
		}
	})
}

func (h *stubHost) remove(id string) {
	h.mu.Lock()
	delete(h.modules, id)
	h.mu.Unlock()
	h.changed()
}

func (h *stubHost) version(id, version string) {
	h.mu.Lock()
	m := h.modules[id]
	m.desc.Version = version
	h.modules[id] = m
	h.mu.Unlock()
	h.changed()
}

func (h *stubHost) changed() {
	h.mu.Lock()
	fs := h.onChg
	h.mu.Unlock()
	for _, f := range fs {
		f()
	}
}

// However many reports a caller has no time to read, the end gets through.
func TestTheEndGetsPastUnreadProgress(t *testing.T) {
	onWire(t, func(w *wire) {
		p := w.peer()
		p.hosts("mod.x", func(*nats.Msg, string) []*contextwire.Frame {
			var frames []*contextwire.Frame
			for i := range 1000 {
				frames = append(frames, &contextwire.Frame{Kind: contextwire.FrameProgress, Progress: &module.ProgressReport{Done: float64(i)}})
			}
			return append(frames, result(map[string]any{"n": strconv.Itoa(len(frames))}))
		})
		reports := 0
		reply, err := w.client().Invoke(w.t.Context(), &contextwire.Request{ModuleID: "mod.x", Progress: func(module.ProgressReport) {
			reports++
			<-time.After(10 * time.Millisecond)
		}})
		if err != nil || reply.Output["n"] != "1000" || reports == 0 || reports > 100 {
			w.t.Errorf("%d reports, %+v, %v", reports, reply, err)
		}
	})
}

// The chain comes back to a node by way of another: still nobody can free the
// slot.
func TestCallThatWaitsForItselfByAnotherNode(t *testing.T) {
	onMesh(t, func(m *mesh) {
		c := m.client()
		m.node("n1", newStubHost().add("mod.a", module.Annotations{}, nest(&c, "mod.b")).add("mod.c", module.Annotations{}, echo),
			func(o *bus.NodeOptions) { o.MaxInFlight = 1 })
		m.node("n2", newStubHost().add("mod.b", module.Annotations{}, nest(&c, "mod.c")))
		m.wait(c, "mod.a", "mod.b", "mod.c")
		// The root is elsewhere, so that no parent leads to mod.a by name.
		root := "root-0123456789abcdef"
		began := time.Now()
		_, err := c.Invoke(m.t.Context(), &contextwire.Request{ModuleID: "mod.a", Root: root, Parent: root})
		wantCode(m.t, err, module.CodeBusOverloaded)
		if took := time.Since(began); took > time.Second {
			m.t.Errorf("failed after %v", took)
		}
	})
}
