package bus_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/module"
)

func TestDescribe(t *testing.T) {
	onMesh(t, func(m *mesh) {
		state := map[string]any{"acl_configured": true, "policy_strict": false}
		m.node("n1", newStubHost().add("math.add", module.Annotations{}, echo), func(o *bus.NodeOptions) {
			o.Version, o.MaxInFlight = "1.2.3", 7
			o.Governance = func() map[string]any { return state }
		})
		silent := m.node("n2", newStubHost().add("text.count", module.Annotations{}, echo))
		c := m.client()
		m.wait(c, "math.add", "text.count")
		facts, err := c.Describe(m.t.Context(), "n1")
		if err != nil {
			m.t.Fatal(err)
		}
		got := map[string]any{}
		for _, key := range []string{"node", "version", "capacity", "draining", "modules", "governance"} {
			got[key] = facts[key]
		}
		want := map[string]any{
			"node": "n1", "version": "1.2.3", "capacity": int64(7), "draining": false,
			"modules": []any{"math.add"}, "governance": state,
		}
		if d := cmp.Diff(want, got); d != "" {
			m.t.Error(d)
		}
		if facts, err = c.Describe(m.t.Context(), "n2"); err != nil {
			m.t.Fatal(err)
		}
		if _, there := facts["governance"]; there {
			m.t.Errorf("a node that does not tell its governance: %v", facts)
		}
		_, err = c.Describe(m.t.Context(), "absent")
		wantCode(m.t, err, module.CodeBusNoResponders)
		if err := silent.Close(); err != nil {
			m.t.Fatal(err)
		}
		_, err = c.Describe(m.t.Context(), "n2")
		wantCode(m.t, err, module.CodeBusNoResponders)
	})
}
