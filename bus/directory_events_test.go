package bus_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// A client tells of the nodes that come and go after it, each once, and of modules
// that they disagree on.
func TestEventsOfNodes(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("old", newStubHost().add("mod.x", module.Annotations{}, echo))
		var (
			mu   sync.Mutex
			told []string
			self atomic.Pointer[bus.Client]
		)
		c, err := bus.NewClient(m.conns(), bus.ClientOptions{Logger: quiet(), Events: func(e module.Event) {
			if c := self.Load(); c != nil {
				c.Nodes() // an event may ask back
			}
			mu.Lock()
			defer mu.Unlock()
			told = append(told, e.Type+" "+e.Data["node"].(string)+" "+e.Severity+" "+e.ModuleID)
		}})
		if err != nil {
			m.t.Fatal(err)
		}
		defer c.Close()
		self.Store(c)
		n1 := m.node("n1", newStubHost().add("mod.x", module.Annotations{Readonly: true}, echo))
		m.waitHosts(c, "mod.x", 2)
		if err := n1.Drain(context.Background()); err != nil {
			m.t.Error(err)
		}
		pass(time.Second)
		if err := n1.Close(); err != nil {
			m.t.Error(err)
		}
		pass(time.Second)
		// One that vanished without a word, while a call was to go there.
		conns := m.conns()
		m.nodeOn(conns, "n2", newStubHost().add("mod.y", module.Annotations{}, echo))
		m.wait(c, "mod.y")
		conns.Close()
		if _, err := c.Invoke(context.Background(), &contextwire.Request{ModuleID: "mod.y"}); err == nil {
			m.t.Error("a call of a node that is gone was answered")
		}
		pass(10 * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		want := []string{
			"apbus.module.version_fork n1 warn mod.x", "apbus.node.joined n1 info ", "apbus.node.draining n1 info ", "apbus.node.left n1 info ",
			"apbus.node.joined n2 info ", "apbus.node.lost n2 warn ",
		}
		if d := cmp.Diff(want, slices.Compact(told)); d != "" {
			m.t.Error(d)
		}
	})
}
