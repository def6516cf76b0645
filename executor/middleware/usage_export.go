package middleware

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/apbus/apbus/module"
)

// UsageExporter receives usage for a system outside (protocol §10.4).
type UsageExporter interface {
	Export(ctx context.Context, s UsageSummary) error
	// Shutdown releases what the exporter holds.
	Shutdown(ctx context.Context) error
}

// NoopUsageExporter exports nothing; it is the default.
type NoopUsageExporter struct{}

// Export does nothing.
func (NoopUsageExporter) Export(context.Context, UsageSummary) error { return nil }

// Shutdown does nothing.
func (NoopUsageExporter) Shutdown(context.Context) error { return nil }

// PeriodicUsageOptions configures [PeriodicUsage]. Zero fields have defaults.
type PeriodicUsageOptions struct {
	// Exporter is [NoopUsageExporter] when nil.
	Exporter UsageExporter
	// Interval is an hour by default; it is also the period of each summary.
	Interval time.Duration
	// Logger is slog.Default when nil; it hears of failed exports.
	Logger *slog.Logger
}

// PeriodicUsage exports a collector's summary of every interval, the first one
// interval after Start.
type PeriodicUsage struct {
	collector *UsageCollector
	o         PeriodicUsageOptions

	mu      sync.Mutex
	stop    context.CancelCauseFunc // nil before Start
	done    chan struct{}
	stopped bool
	failure error
}

// errUsageStopped is why an export under way is given up.
var errUsageStopped = errors.New("usage export: stopped")

// NewPeriodicUsage makes one that is not started.
func NewPeriodicUsage(c *UsageCollector, o PeriodicUsageOptions) (*PeriodicUsage, error) {
	if c == nil || o.Interval < 0 {
		return nil, module.Errorf(module.CodeInvalidInput, "usage export needs a collector and an interval")
	}
	if o.Exporter == nil {
		o.Exporter = NoopUsageExporter{}
	}
	if o.Interval == 0 {
		o.Interval = time.Hour
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &PeriodicUsage{collector: c, o: o}, nil
}

// Start begins exporting until Stop; ctx gives values to the exports, its end stops
// nothing. A second Start, and one after Stop, do nothing.
func (p *PeriodicUsage) Start(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop != nil || p.stopped {
		return
	}
	ctx, p.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	p.done = make(chan struct{})
	go p.run(ctx, p.done)
}

func (p *PeriodicUsage) run(ctx context.Context, done chan struct{}) {
	defer close(done)
	ticker := time.NewTicker(p.o.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := p.export(ctx); err != nil {
				p.o.Logger.WarnContext(ctx, "usage export failed", "cause", err)
			}
		}
	}
}

// export turns a panic of the exporter into an error.
func (p *PeriodicUsage) export(ctx context.Context) (err error) {
	defer func() {
		if recover() != nil {
			err = module.Errorf(module.CodeInternal, "usage exporter panicked")
		}
	}()
	return p.o.Exporter.Export(ctx, p.collector.Summary(p.o.Interval))
}

// Stop ends the exports, waits for the one under way until ctx ends, and shuts the
// exporter down, which happens exactly once; later calls return the same result.
func (p *PeriodicUsage) Stop(ctx context.Context) error {
	p.mu.Lock()
	stop, done, stopped := p.stop, p.done, p.stopped
	p.stopped = true
	p.mu.Unlock()
	if stop != nil {
		stop(errUsageStopped)
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	if stopped {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.failure
	}
	err := p.o.Exporter.Shutdown(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failure = err
	return err
}
