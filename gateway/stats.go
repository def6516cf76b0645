package gateway

import (
	"context"
	"net/http"
	"time"

	"github.com/apbus/apbus/contextwire"
)

// Stats knows what the processes of the namespace do and have done.
type Stats interface {
	// FleetStats lists those that answer, sorted by node.
	FleetStats(ctx context.Context) ([]contextwire.NodeStats, error)
}

// StatsFunc makes a [Stats] of a function; a nil one is GENERAL_NOT_IMPLEMENTED.
type StatsFunc func(ctx context.Context) ([]contextwire.NodeStats, error)

var _ Stats = StatsFunc(nil)

// FleetStats calls f.
func (f StatsFunc) FleetStats(ctx context.Context) ([]contextwire.NodeStats, error) {
	if f == nil {
		return nil, notImplemented("stats")
	}
	return f(ctx)
}

// showStats serves GET /v1/stats: counts that only grow, so that two answers tell
// of the time between them.
func (g *Gateway) showStats(x *exchange) error {
	nodes, err := g.stats.FleetStats(x.r.Context())
	if err != nil {
		return err
	}
	list := make([]any, len(nodes))
	for i := range nodes {
		list[i] = nodes[i].Map()
	}
	return x.json(http.StatusOK, map[string]any{"at": timestamp(time.Now()), "nodes": list})
}

// showMetrics serves GET /metrics with what the program gave.
func (g *Gateway) showMetrics(x *exchange) error {
	if g.metrics == nil {
		return notFound("metrics are served elsewhere, or not at all")
	}
	g.metrics.ServeHTTP(x.w, x.r)
	return nil
}
