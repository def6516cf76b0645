package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics is the registry of a program and how it is read.
type Metrics struct{ reg *prometheus.Registry }

// NewMetrics makes one with the families of the Go runtime and of the process.
func NewMetrics() *Metrics { return &Metrics{NewRegistry()} }

// Registerer is where a middleware or the program adds its own families.
func (m *Metrics) Registerer() prometheus.Registerer { return m.reg }

// WatchBus adds the families of the bus; what is nil is left out.
func (m *Metrics) WatchBus(conns Conns, client Client, node Node) error {
	if err := m.reg.Register(NewBusMetrics(conns, client, node)); err != nil {
		return fmt.Errorf("metrics of the bus: %w", err)
	}
	return nil
}

// Count adds a counter that read tells, such as of records that were dropped.
// read must be safe for concurrent use.
func (m *Metrics) Count(name, help string, read func() float64) error {
	if err := m.reg.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, read)); err != nil {
		return fmt.Errorf("metric %s: %w", name, err)
	}
	return nil
}

// Evidence counts the records of evidence that a process has stored and lost, as read
// tells, which must be safe for concurrent use.
func (m *Metrics) Evidence(read func() (stored, lost uint64)) error {
	return errors.Join(
		m.Count("apbus_evidence_published_total", "Records of evidence that were stored.", func() float64 {
			stored, _ := read()
			return float64(stored)
		}),
		m.Count("apbus_evidence_dropped_total", "Records of evidence that were lost, for want of room or of the server.", func() float64 {
			_, lost := read()
			return float64(lost)
		}),
	)
}

// PlanRuns shows what became of the journal of plan runs.
func (m *Metrics) PlanRuns(read func() (stored, lost uint64)) error {
	return errors.Join(
		m.Count("apbus_plan_runs_journaled_total", "Runs of plans that were journaled.", func() float64 {
			stored, _ := read()
			return float64(stored)
		}),
		m.Count("apbus_plan_runs_dropped_total", "Runs of plans that were not journaled, for want of room or of the server.", func() float64 {
			_, lost := read()
			return float64(lost)
		}),
	)
}

// Handler serves the metrics in the format that the scraper asks for.
func (m *Metrics) Handler() http.Handler { return Handler(m.reg) }

// Server serves /metrics and nothing else.
type Server struct {
	addr string
	srv  *http.Server
	wg   sync.WaitGroup
}

// Listen serves the metrics at an address until Close.
func (m *Metrics) Listen(ctx context.Context, address string, log *slog.Logger) (*Server, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.Handler())
	s := &Server{addr: l.Addr().String(), srv: &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
	s.wg.Go(func() {
		if err := s.srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics are no longer served", "cause", err)
		}
	})
	return s, nil
}

// Addr is where it listens, host and port.
func (s *Server) Addr() string { return s.addr }

// Close ends it, requests under way included. A nil one is closed already.
func (s *Server) Close() {
	if s == nil {
		return
	}
	_ = s.srv.Close() // nobody is left to tell
	s.wg.Wait()
}
