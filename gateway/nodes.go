package gateway

import (
	"net/http"
	"time"

	"github.com/apbus/apbus/module"
)

// defaultDrainGrace is how long a drained node may finish what it has, when the
// request does not say; maxDrainGrace is the most it may say.
const (
	defaultDrainGrace = 10 * time.Second
	maxDrainGrace     = 24 * time.Hour
)

// listNodes serves GET /v1/nodes.
func (g *Gateway) listNodes(x *exchange) error {
	list := []any{}
	for _, n := range g.fleet.Nodes() {
		view := n.Map()
		delete(view, "inbox") // where to reach the process on the bus is nobody's business here
		view["seen_at"], view["stale"] = timestamp(n.SeenAt), n.Stale
		list = append(list, view)
	}
	return x.json(http.StatusOK, map[string]any{"nodes": list})
}

// drainNode serves POST /v1/nodes/{id}/drain.
func (g *Gateway) drainNode(x *exchange) error {
	id := x.r.PathValue("id")
	body, err := g.object(x)
	if err != nil {
		return err
	}
	grace, err := drainGrace(body)
	if err != nil {
		return err
	}
	if !g.knowsNode(id) {
		return unknownNode(id)
	}
	inFlight, err := g.fleet.Drain(x.r.Context(), id, grace, x.principal.by(g.name))
	if err != nil {
		return err
	}
	return x.json(http.StatusAccepted, map[string]any{"node": id, "in_flight": int64(inFlight)})
}

func unknownNode(id string) error {
	return notFound("no node of this id is known").WithDetail("node", id)
}

func (g *Gateway) knowsNode(id string) bool {
	for _, n := range g.fleet.Nodes() {
		if n.Node == id {
			return true
		}
	}
	return false
}

func drainGrace(body map[string]any) (time.Duration, error) {
	grace := defaultDrainGrace
	for key, v := range body {
		ms, isInt := v.(int64)
		switch {
		case key != "grace_ms":
			return 0, module.Errorf(module.CodeInvalidInput, "the body may hold grace_ms only")
		case !isInt || ms < 0 || ms > maxDrainGrace.Milliseconds():
			return 0, module.Errorf(module.CodeInvalidInput, "grace_ms must be an integer from 0 to %d", maxDrainGrace.Milliseconds())
		}
		grace = time.Duration(ms) * time.Millisecond
	}
	return grace, nil
}
