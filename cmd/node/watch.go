package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/events"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/internal/telemetry"
	"github.com/apbus/apbus/module"
)

// farewell is how long the last spans and events may take to be delivered.
const farewell = 5 * time.Second

// watch is how people see what the node does: traces, metrics, logs and events, as
// far as they are asked for.
type watch struct {
	tracing *telemetry.Tracing
	metrics *telemetry.Metrics // nil unless they are served
	server  *telemetry.Server
	events  *events.Emitter // nil without subscribers
	log     *slog.Logger
}

// openWatch starts what the flags and the environment ask for.
func openWatch(ctx context.Context, cfg *config, spec settings.Spec, log *slog.Logger) (*watch, error) {
	w := &watch{log: log}
	var err error
	if w.events, err = telemetry.OpenEvents(cfg.Events, out(spec.Stdout), log); err != nil {
		return nil, settings.Usagef("--events: %w", err)
	}
	w.tracing, err = telemetry.OpenTracing(ctx, telemetry.TracingOptions{
		Service: "apbus-node", Version: spec.Version, Instance: cfg.ID, Env: spec.Env, Logger: log,
	})
	if err == nil && cfg.MetricsListen != "" {
		w.metrics = telemetry.NewMetrics()
		w.server, err = w.metrics.Listen(ctx, cfg.MetricsListen, log)
	}
	if err != nil {
		w.close(ctx)
		return nil, err
	}
	return w, nil
}

// close delivers what is left, though ctx is over.
func (w *watch) close(ctx context.Context) {
	w.server.Close()
	ctx, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), farewell, errors.New("the node has stopped"))
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

// emit tells of an event: the log, and the subscribers.
func (w *watch) emit() func(module.Event) {
	toLog := logEvents(w.log)
	if w.events == nil {
		return toLog
	}
	return func(e module.Event) {
		toLog(e)
		w.events.Emit(e)
	}
}

// options are the executor's part.
func (w *watch) options(cfg *config) ([]executor.Option, error) {
	var opts []executor.Option
	if p := w.tracing.Provider(); p != nil {
		spans, err := middleware.NewTracing(middleware.TracingOptions{Provider: p})
		if err != nil {
			return nil, err
		}
		opts = append(opts, executor.WithMiddleware(spans))
		if cfg.TraceSteps {
			opts = append(opts, executor.WithStepSpans(p))
		}
	}
	if w.metrics != nil {
		counts, err := middleware.NewMetrics(w.metrics.Registerer())
		if err != nil {
			return nil, err
		}
		opts = append(opts, executor.WithMiddleware(counts))
	}
	if cfg.LogCalls {
		opts = append(opts, executor.WithMiddleware(middleware.NewLogging(middleware.LoggingOptions{Logger: w.log})))
	}
	return opts, nil
}

// bus shows what the bus counts, once it is there.
func (w *watch) bus(conns *bus.Conns, client *bus.Client, node *bus.Node) error {
	if w.metrics == nil {
		return nil
	}
	return w.metrics.WatchBus(conns, client, node)
}

// where is what the ready line says of the metrics.
func (w *watch) where() string {
	if w.server == nil {
		return ""
	}
	return " metrics=http://" + w.server.Addr() + "/metrics"
}

// checkWatch finds what no single flag shows.
func (c *config) checkWatch() error {
	if c.MetricsListen == "" {
		return nil
	}
	if host, err := hostOfAddress(c.MetricsListen); err != nil {
		return settings.Usagef("--metrics-listen: %w", err)
	} else if !c.Insecure && !isLoopback(host) {
		return settings.Usagef("--metrics-listen %s is reachable from other machines: give --insecure if you mean it", c.MetricsListen)
	}
	return nil
}

func hostOfAddress(address string) (string, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("want HOST:PORT: %w", err)
	}
	return net.JoinHostPort(host, "0"), nil
}
