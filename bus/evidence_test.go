package bus_test

import (
	"context"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// A client records what no executor can have seen, and nothing else (durable design,
// section 3).
func TestClientRecordsWhatNoOwnerSaw(t *testing.T) {
	onMesh(t, func(m *mesh) {
		host := newStubHost().add("mod.ok", module.Annotations{}, echo).
			add("mod.bad", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
				return nil, module.Errorf(module.CodeModuleExecuteError, "broken")
			}).
			add("mod.wait", module.Annotations{}, untilDone(make(chan string, 1), make(chan error, 1)))
		node := m.node("n1", host)
		var mu sync.Mutex
		var got []*contextwire.Evidence
		c, err := bus.NewClient(m.conns(), bus.ClientOptions{Name: "t", Logger: quiet(), Evidence: func(e *contextwire.Evidence) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, e)
		}})
		if err != nil {
			m.t.Fatal(err)
		}
		m.undo = append(m.undo, c.Close)
		m.wait(c, "mod.ok", "mod.bad", "mod.wait")
		secret := map[string]any{"card": "4111-1111-2222-3333"}
		call := func(id string) { _, _ = c.Call(m.t.Context(), id, secret) }
		call("mod.ok")
		call("mod.bad")  // its owner records it
		call("no.such")  // nobody
		call("no a id!") // no call at all
		gone, stop := context.WithCancel(m.t.Context())
		stop()
		_, _ = c.Call(gone, "mod.wait", nil)
		if err := node.Close(); err != nil {
			m.t.Fatal(err)
		}
		call("mod.ok") // known, and no host
		var ends []string
		for _, e := range got {
			ends = append(ends, e.ModuleID+" "+string(e.Code))
			if !e.MadeHere || !e.Unexecuted || e.Outcome != contextwire.OutcomeError || e.Call == "" || e.TraceID == "" || e.Inputs != nil || e.CallChain[0] != e.ModuleID {
				m.t.Errorf("record %+v", e)
			}
		}
		if diff := cmp.Diff([]string{"no.such MODULE_NOT_FOUND", "mod.ok BUS_NO_RESPONDERS"}, ends); diff != "" {
			m.t.Errorf("records (-want +got):\n%s", diff)
		}
	})
}
