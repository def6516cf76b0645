package gateway

import (
	"context"
	"net/http"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/module"
)

// healthz serves GET /healthz: the process lives.
func (g *Gateway) healthz(x *exchange) error {
	return x.json(http.StatusOK, map[string]any{"status": "ok"})
}

// readyz serves GET /readyz: a probe went through the bus just now.
func (g *Gateway) readyz(x *exchange) error {
	notReady := func(why string) error {
		return module.Errorf(module.CodeBusDisconnected, "%s", why)
	}
	if g.detached.isClosed() {
		return notReady("the router shuts down")
	}
	ctx, stop := context.WithTimeoutCause(x.r.Context(), g.limits.ReadyTimeout,
		cancel.Because(cancel.Timeout, g.name, "the readiness probe took too long"))
	defer stop()
	if err := g.readiness.Ready(ctx); err != nil {
		g.log.DebugContext(ctx, "not ready", "cause", err)
		return notReady("no probe passes through the bus")
	}
	return x.json(http.StatusOK, map[string]any{"status": "ready"})
}

// serveOpenAPI serves GET /openapi.json.
func (g *Gateway) serveOpenAPI(x *exchange) error { return x.raw(http.StatusOK, g.openAPI) }
