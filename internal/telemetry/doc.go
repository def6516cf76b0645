// Package telemetry shows what the programs do to the tools that people watch
// with: it owns the OpenTelemetry SDK with its OTLP exporter, set up by the
// standard OTEL_* environment variables, and the Prometheus families of the bus.
// What is traced and counted belongs to bus, executor and executor/middleware,
// which know neither; package telemetry only carries it out of the process.
package telemetry
