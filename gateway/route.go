package gateway

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/apbus/apbus/module"
)

// handler answers one request. A returned error is written as the answer,
// unless the answer was begun.
type handler func(x *exchange) error

// route is one line of the table: what is served and, for the OpenAPI
// document, what it means.
type route struct {
	// method "" is every method.
	method, pattern string
	operation       string // operationId
	summary         string
	// scope is what the caller's token must grant; "" admits everybody.
	scope Scope
	class class
	query []param
	// headers are the request headers that the route reads.
	headers []param
	// body names the schema of the request body, "" when there is none.
	body    string
	answers []outcome
	handle  handler
}

// param is a query parameter or request header.
type param struct{ name, help string }

// outcome is one documented answer; schema "" is a body without a schema.
type outcome struct {
	status int
	schema string
	help   string
}

// eventsSchema is the schema of answers that are event streams.
const eventsSchema = "Events"

// metricsSchema is the schema of metrics, which are text.
const metricsSchema = "Metrics"

// newMux puts the table before Go's router. Each route is wrapped by the same
// list, which runs from its first line to its last.
func (g *Gateway) newMux(table []*route) (mux *http.ServeMux, err error) {
	defer func() { // ServeMux panics on patterns that clash; the table is ours, its extensions may not be
		if v := recover(); v != nil {
			err = fmt.Errorf("new gateway: routes: %v", v)
		}
	}()
	mux = http.NewServeMux()
	for _, rt := range table {
		h := chain(rt.handle,
			g.guarded(rt),
			g.timedBody,
			g.bounded(rt),
			g.headerLimit,
			g.sameOrigin,
			g.authorized(rt),
		)
		mux.HandleFunc(strings.TrimSpace(rt.method+" "+rt.pattern), func(w http.ResponseWriter, r *http.Request) {
			// The guard in front of the chain has answered every error.
			_ = h(&exchange{w: &answer{ResponseWriter: w}, r: r})
		})
	}
	mux.HandleFunc(elsewhere, g.unrouted)
	return mux, nil
}

// chain wraps h so that the first wrapper runs first.
func chain(h handler, wrappers ...func(handler) handler) handler {
	for _, wrap := range slices.Backward(wrappers) {
		h = wrap(h)
	}
	return h
}

// ServeHTTP serves the API.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	g.mux.ServeHTTP(w, r)
}

// elsewhere is the pattern of all that no route has.
const elsewhere = "/"

// unrouted answers a path that no route has, or not with this method.
func (g *Gateway) unrouted(w http.ResponseWriter, r *http.Request) {
	x := &exchange{w: &answer{ResponseWriter: w}, r: r}
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		other := r.WithContext(r.Context())
		other.Method = method
		if _, pattern := g.mux.Handler(other); pattern != "" && pattern != elsewhere {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		x.fail(notFound("no such path; GET /openapi.json lists what there is"))
		return
	}
	x.w.Header().Set("Allow", strings.Join(allowed, ", "))
	x.fail(module.Errorf(CodeMethodNotAllowed, "this path does not know the method").WithRetryable(module.False))
}

// guarded writes errors, turns a panic into one, and logs what went wrong here.
func (g *Gateway) guarded(rt *route) func(handler) handler {
	return func(next handler) handler {
		return func(x *exchange) (err error) {
			start := time.Now()
			defer func() {
				if v := recover(); v != nil {
					if v == http.ErrAbortHandler { //nolint:errorlint // this very value, as net/http compares it
						panic(v)
					}
					g.log.ErrorContext(x.r.Context(), "handler panicked",
						"route", rt.operation, "call_id", x.callID, "trace_id", x.traceID, "cause", fmt.Sprint(v), "stack", string(debug.Stack()))
					err = module.Errorf(module.CodeInternal, internalMessage)
				}
				if err != nil {
					g.answerError(rt, x, err)
				}
				g.log.LogAttrs(x.r.Context(), slog.LevelDebug, "request served",
					slog.String("route", rt.operation), slog.Int("status", x.w.status), slog.Float64("duration_ms", float64(time.Since(start))/float64(time.Millisecond)),
					slog.String("call_id", x.callID), slog.String("trace_id", x.traceID))
			}()
			return next(x)
		}
	}
}

func (g *Gateway) answerError(rt *route, x *exchange, err error) {
	e := coded(err)
	status := StatusOf(e.Code)
	if !e.Remote && status >= 500 && status != http.StatusServiceUnavailable && status != http.StatusGatewayTimeout {
		g.log.LogAttrs(x.r.Context(), slog.LevelError, "request failed",
			slog.String("route", rt.operation), slog.String("code", string(e.Code)), slog.String("cause", err.Error()),
			slog.String("call_id", x.callID), slog.String("trace_id", x.traceID))
	}
	if x.w.status == 0 {
		x.fail(outward(e, x.traceID))
	}
}

// bounded admits as many requests at once as the route's class allows.
func (g *Gateway) bounded(rt *route) func(handler) handler {
	return func(next handler) handler {
		limit := g.requests[rt.class]
		if limit == nil {
			return next
		}
		return func(x *exchange) error {
			if !limit.enter() {
				return overloaded("too many requests at once", time.Second)
			}
			defer limit.leave()
			return next(x)
		}
	}
}

// headerLimit refuses a request whose line and headers are too large.
func (g *Gateway) headerLimit(next handler) handler {
	return func(x *exchange) error {
		size := len(x.r.Method) + len(x.r.RequestURI) + len(x.r.Host)
		for name, values := range x.r.Header {
			for _, v := range values {
				size += len(name) + len(v) + len(": \r\n")
			}
		}
		if limit := g.limits.MaxHeader; size > limit {
			return module.Errorf(CodeHeaderTooLarge, "request line and headers of %d bytes are over the limit of %d", size, limit).
				WithDetails(map[string]any{"size": int64(size), "limit": int64(limit)}).WithRetryable(module.False)
		}
		return next(x)
	}
}

// sameOrigin refuses a browser that changes state from another site's page.
func (g *Gateway) sameOrigin(next handler) handler {
	return func(x *exchange) error {
		if err := g.origin.Check(x.r); err != nil {
			return denied("cross_origin", "a page of another origin may not do this")
		}
		return next(x)
	}
}

// authorized finds out who asks and whether they may.
func (g *Gateway) authorized(rt *route) func(handler) handler {
	return func(next handler) handler {
		if rt.scope == "" {
			return next
		}
		return func(x *exchange) error {
			p, err := g.auth.Authenticate(x.r)
			if err != nil {
				return err
			}
			if !p.May(rt.scope) {
				return unscoped(x.r, rt.scope)
			}
			x.principal = p
			return next(x)
		}
	}
}

// unscoped says what is missing: a token, or the scope that the one sent lacks.
func unscoped(r *http.Request, scope Scope) *module.Error {
	text := "the caller's token lacks the scope " + string(scope)
	if r.Header.Get("Authorization") == "" {
		text = "this takes a token with the scope " + string(scope) + ", and none was sent"
	}
	return denied("scope", text).WithDetail("scope", string(scope))
}
