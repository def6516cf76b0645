package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// TracingOptions says who is traced.
type TracingOptions struct {
	// Service is the name of the program and Instance that of this one of its
	// processes, where OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say nothing else.
	Service, Version, Instance string
	// Env looks up environment variables; nil finds none. It only decides whether
	// there is tracing: how spans are sampled, batched and sent the SDK reads from
	// the environment of the process itself.
	Env func(string) (string, bool)
	// Logger gets what the exporter complains about; slog.Default() when nil.
	Logger *slog.Logger
}

// Tracing sends spans to an OTLP receiver. A nil one traces nothing.
type Tracing struct{ provider *sdktrace.TracerProvider }

// OpenTracing starts tracing where the environment asks for it, and returns nil
// where it does not. It asks by OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, or by OTEL_TRACES_EXPORTER=otlp, which sends to
// http://localhost:4318; OTEL_TRACES_EXPORTER=none and OTEL_SDK_DISABLED=true outrank
// those. The protocol is http/protobuf. Asking for another exporter or protocol is
// logged and traces nothing: a program does not fail for want of a watcher.
//
// The SDK has one error handler for a process, which OpenTracing sets.
func OpenTracing(ctx context.Context, o TracingOptions) (*Tracing, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	wanted, obstacle := wants(o.Env)
	if obstacle != "" {
		o.Logger.Warn("tracing is off", "cause", obstacle)
	}
	if !wanted {
		return nil, nil
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	who, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", o.Service), attribute.String("service.version", o.Version),
		attribute.String("service.instance.id", o.Instance),
	), resource.WithFromEnv())
	if err != nil {
		// What could be read counts all the same.
		o.Logger.Warn("tracing resource is incomplete", "cause", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { o.Logger.Warn("tracing failed", "cause", err) }))
	return &Tracing{sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(who))}, nil
}

// wants reads what the environment asks for. obstacle says why it cannot be had.
func wants(env func(string) (string, bool)) (wanted bool, obstacle string) {
	get := func(names ...string) string {
		for _, name := range names {
			if env != nil {
				if v, _ := env(name); v != "" {
					return strings.TrimSpace(v)
				}
			}
		}
		return ""
	}
	exporter := get("OTEL_TRACES_EXPORTER")
	switch {
	case strings.EqualFold(get("OTEL_SDK_DISABLED"), "true"), exporter == "none":
		return false, ""
	case exporter == "" && get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT") == "":
		return false, ""
	case exporter != "" && exporter != "otlp":
		return false, fmt.Sprintf("OTEL_TRACES_EXPORTER is %q, and the exporter there is is otlp", exporter)
	}
	if p := get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); p != "" && p != "http/protobuf" {
		return false, fmt.Sprintf("the OTLP protocol asked for is %q, and the one there is is http/protobuf", p)
	}
	return true, ""
}

// Provider is what libraries take; nil when there is no tracing.
func (t *Tracing) Provider() trace.TracerProvider {
	if t == nil {
		return nil
	}
	return t.provider
}

// Close sends what is left until ctx is done.
func (t *Tracing) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last spans: %w", err)
	}
	return nil
}
