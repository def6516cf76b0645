package bus_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// byNode returns how many of n calls each node got.
func byNode(f *mesh, invokeOne func() (*contextwire.Reply, error), n int) map[string]int {
	f.t.Helper()
	got := map[string]int{}
	for range n {
		reply, err := invokeOne()
		if err != nil {
			f.t.Fatal(err)
		}
		got[reply.Node]++
	}
	return got
}

func TestKnownHostsAreCalledByName(t *testing.T) {
	onFaulty(t, func(f *faulty) {
		f.host("n1", newStubHost().add("mod.x", module.Annotations{}, echo))
		c, _ := f.caller("mod.x")
		var subjects []string
		if _, err := f.mem.Open().Subscribe("apbus.v1.call.>", "", func(m *nats.Msg) { subjects = append(subjects, m.Subject) }); err != nil {
			f.t.Fatal(err)
		}
		n2, _ := f.host("n2", newStubHost().add("mod.y", module.Annotations{}, echo))
		f.wait(c, "mod.y")
		if _, err := c.Call(f.t.Context(), "mod.y", nil); err != nil {
			f.t.Fatal(err)
		}
		pass(0)
		if len(subjects) != 1 || subjects[0] != directed(n2, "mod.y") {
			f.t.Errorf("sent to %v, want %s", subjects, directed(n2, "mod.y"))
		}
	})
}

func TestUnknownHostsAreFoundByTheQueueGroup(t *testing.T) {
	onWire(t, func(w *wire) {
		w.node("n1", newStubHost().add("mod.x", module.Annotations{}, echo))
		w.node("n2", newStubHost().add("mod.x", module.Annotations{}, echo))
		c := w.client()
		got := map[string]int{}
		for range 100 {
			reply, err := c.Invoke(w.t.Context(), &contextwire.Request{ModuleID: "mod.x"})
			if err != nil {
				w.t.Fatal(err)
			}
			got[reply.Node]++
		}
		if got["n1"] < 20 || got["n2"] < 20 {
			w.t.Errorf("calls by node %v, want both to get many", got)
		}
	})
}

// Of two hosts the one that is slow gets less.
func TestASlowHostGetsLess(t *testing.T) {
	onMesh(t, func(m *mesh) {
		host := func(d time.Duration) *stubHost {
			return newStubHost().add("mod.x", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
				<-time.After(d)
				return map[string]any{}, nil
			})
		}
		m.node("fast", host(10*time.Millisecond))
		m.node("slow", host(100*time.Millisecond))
		c := m.client()
		m.waitHosts(c, "mod.x", 2)
		done := make(chan string, 400)
		for range 20 { // 20 callers at once
			go func() {
				for range 20 {
					reply, err := c.Invoke(m.t.Context(), &contextwire.Request{ModuleID: "mod.x"})
					if err != nil {
						m.t.Error(err)
						done <- ""
						continue
					}
					done <- reply.Node
				}
			}()
		}
		got := map[string]int{}
		for range 400 {
			got[<-done]++
		}
		if got["slow"] == 0 || got["slow"]*3 > got["fast"] {
			m.t.Errorf("calls by node %v, want the slow one to get some, and far fewer", got)
		}
	})
}

// A host that does not answer pings is not given new calls.
func TestSuspectHostIsSkipped(t *testing.T) {
	onFaulty(t, func(f *faulty) {
		started, ended := make(chan string, 10), make(chan error, 10)
		mods := func() *stubHost {
			return newStubHost().add("mod.x", module.Annotations{}, echo).add("mod.wait", module.Annotations{}, untilDone(started, ended))
		}
		_, p1 := f.host("n1", mods())
		_, p2 := f.host("n2", mods())
		c, _ := f.caller("mod.x", "mod.wait")
		f.waitHosts(c, "mod.wait", 2)
		ctx, stop := context.WithCancel(f.t.Context())
		one := func() (*contextwire.Reply, error) {
			return c.Invoke(f.t.Context(), &contextwire.Request{ModuleID: "mod.x"})
		}
		byNode(f.mesh, one, 20)
		done := invoke(ctx, c, &contextwire.Request{ModuleID: "mod.wait"})
		<-started
		calls, err := c.Calls(f.t.Context())
		if err != nil || len(calls) != 1 {
			f.t.Fatal(calls, err)
		}
		frozen, other := p1, "n2"
		if calls[0].Node == "n2" {
			frozen, other = p2, "n1"
		}
		frozen.freeze()
		pass(1100 * time.Millisecond) // one ping was missed
		if got := byNode(f.mesh, one, 50); got[other] != 50 {
			f.t.Errorf("calls by node %v, want all on %s", got, other)
		}
		stop()
		<-done
		frozen.thaw()
	})
}

// A record that outlives its process: the call falls back to another host.
func TestCallFallsBackAfter503(t *testing.T) {
	onFaulty(t, func(f *faulty) {
		ran := 0
		mods := func() *stubHost {
			return newStubHost().add("mod.x", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
				ran++
				return map[string]any{}, nil
			})
		}
		_, p1 := f.host("n1", mods())
		f.host("n2", mods())
		for range 10 {
			ran = 0
			c, _ := f.caller("mod.x")
			f.waitHosts(c, "mod.x", 2)
			if p1 != nil {
				p1.kill()
				p1 = nil
			}
			began := time.Now()
			reply, err := c.Invoke(f.t.Context(), &contextwire.Request{ModuleID: "mod.x"})
			if err != nil || reply.Node != "n2" || ran != 1 {
				f.t.Fatalf("ran %d times, %+v, %v", ran, reply, err)
			}
			if took := time.Since(began); took > 100*time.Millisecond {
				f.t.Errorf("took %v", took)
			}
		}
	})
}

func TestVersionConstraintChoosesTheHost(t *testing.T) {
	onMesh(t, func(m *mesh) {
		host := func(version string) *stubHost {
			h := newStubHost().add("mod.x", module.Annotations{}, echo)
			one := h.modules["mod.x"]
			one.desc.Version = version
			h.modules["mod.x"] = one
			return h
		}
		m.node("n1", host("1.4.0"))
		m.node("n2", host("2.0.1"))
		c := m.client()
		m.waitHosts(c, "mod.x", 2)
		for constraint, want := range map[string]string{"^1.0": "n1", "^2.0": "n2", "2.0.1": "n2", "~1.4": "n1"} {
			got := byNode(m, func() (*contextwire.Reply, error) {
				return c.Invoke(m.t.Context(), &contextwire.Request{ModuleID: "mod.x", Version: constraint})
			}, 20)
			if got[want] != 20 {
				m.t.Errorf("%s: calls by node %v, want all on %s", constraint, got, want)
			}
		}
		if info, _ := c.Module("mod.x"); info.Descriptor.Version != "2.0.1" {
			m.t.Errorf("the catalogue describes %s, want the highest version", info.Descriptor.Version)
		}
	})
}
