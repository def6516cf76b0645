package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/executor/events"
	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/internal/telemetry"
	"github.com/apbus/apbus/module"
)

// farewell is how long the last spans may take to be sent.
const farewell = 5 * time.Second

// watch is how people see what the router does.
type watch struct {
	tracing *telemetry.Tracing
	metrics *telemetry.Metrics
	events  *events.Emitter   // nil without subscribers
	server  *telemetry.Server // nil when the API's own listener serves them
	log     *slog.Logger
}

// openWatch starts what the flags and the environment ask for.
func openWatch(ctx context.Context, cfg *config, spec settings.Spec, log *slog.Logger) (*watch, error) {
	w := &watch{metrics: telemetry.NewMetrics(), log: log}
	var err error
	if w.events, err = telemetry.OpenEvents(cfg.Events, out(spec.Stdout), log); err != nil {
		return nil, settings.Usagef("--events: %w", err)
	}
	w.tracing, err = telemetry.OpenTracing(ctx, telemetry.TracingOptions{
		Service: "apbus-router", Version: spec.Version, Instance: cfg.Listen, Env: spec.Env, Logger: log,
	})
	if err == nil && cfg.MetricsListen != "" {
		w.server, err = w.metrics.Listen(ctx, cfg.MetricsListen, log)
	}
	if err != nil {
		w.close(ctx)
		return nil, err
	}
	return w, nil
}

// close sends the last spans and events, though ctx is over.
func (w *watch) close(ctx context.Context) {
	w.server.Close()
	ctx, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), farewell, errors.New("the router has stopped"))
	defer stop()
	if w.events != nil {
		if err := w.events.Shutdown(ctx); err != nil {
			w.log.Warn("events were not delivered", "cause", err)
		}
	}
	if err := w.tracing.Close(ctx); err != nil {
		w.log.Warn("tracing ended early", "cause", err)
	}
}

// emit tells of an event; nil when nobody listens.
func (w *watch) emit() func(module.Event) {
	if w.events == nil {
		return nil
	}
	return w.events.Emit
}

// decided is next, which may be nil, and an event of the decision. Denials are
// warnings, as those of the gate are.
func (w *watch) decided(next func(context.Context, approval.Record)) func(context.Context, approval.Record) {
	if w.events == nil {
		return next
	}
	return func(ctx context.Context, r approval.Record) {
		if next != nil {
			next(ctx, r)
		}
		severity := module.SeverityInfo
		if r.State != approval.StateApproved {
			severity = module.SeverityWarn
		}
		w.events.Emit(module.Event{ //nolint:contextcheck // an event belongs to no call
			Type: module.EventApprovalDecision, ModuleID: r.Binding.ModuleID, Severity: severity, At: r.DecidedAt,
			Data: map[string]any{
				"module_id": r.Binding.ModuleID, "status": string(r.State), "approved_by": r.DecidedBy, "reason": r.BecauseOf,
				"approval_id": r.ID, "trace_id": r.TraceID,
			},
		})
	}
}

// handler is what the API serves as metrics; nil where another address does.
func (w *watch) handler() http.Handler {
	if w.server != nil {
		return nil
	}
	return w.metrics.Handler()
}

// where is what the ready line says of metrics that have an address of their own.
func (w *watch) where() string {
	if w.server == nil {
		return ""
	}
	return " metrics=http://" + w.server.Addr() + "/metrics"
}

// traced makes a span of each request that makes a call, below the one that its
// traceparent names, and puts it into that header: the gateway takes the call's
// trace and parent from there.
func (w *watch) traced(next http.Handler) http.Handler {
	provider := w.tracing.Provider()
	if provider == nil {
		return next
	}
	tracer := provider.Tracer("github.com/apbus/apbus/cmd/router")
	w3c := propagation.TraceContext{}
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || !strings.HasPrefix(r.URL.Path, "/v1/modules/") {
			next.ServeHTTP(rw, r)
			return
		}
		headers := propagation.HeaderCarrier(r.Header)
		ctx, span := tracer.Start(w3c.Extract(r.Context(), headers), "POST /v1/modules",
			trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attribute.String("http.request.method", r.Method)))
		defer span.End()
		w3c.Inject(ctx, headers)
		answer := &statusWriter{ResponseWriter: rw, status: http.StatusOK}
		next.ServeHTTP(answer, r)
		if r.Pattern != "" && r.Pattern != "/" { // the route that served it
			span.SetName(r.Pattern)
			_, route, _ := strings.Cut(r.Pattern, " ")
			span.SetAttributes(attribute.String("http.route", route))
		}
		if call := rw.Header().Get("Apbus-Call"); call != "" {
			span.SetAttributes(attribute.String("call_id", call))
		}
		span.SetAttributes(attribute.Int("http.response.status_code", answer.status))
		if answer.status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, "")
		}
	})
}

// statusWriter notes the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
	begun  bool
}

// WriteHeader notes the first final status.
func (w *statusWriter) WriteHeader(status int) {
	if !w.begun && status >= http.StatusOK {
		w.status, w.begun = status, true
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
