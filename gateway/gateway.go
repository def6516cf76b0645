package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
)

// Options says what the gateway stands before. Invoker, Catalog, Fleet, Calls
// and Readiness are required.
type Options struct {
	Invoker   Invoker
	Catalog   Catalog
	Fleet     Fleet
	Calls     Calls
	Readiness Readiness
	// Streamer is GENERAL_NOT_IMPLEMENTED when nil, for modules that stream.
	Streamer Streamer
	// Doctor is GENERAL_NOT_IMPLEMENTED when nil.
	Doctor Doctor
	// Governance and Approvals are GENERAL_NOT_IMPLEMENTED when nil.
	Governance Governance
	Approvals  Approvals
	// Tasks is GENERAL_NOT_IMPLEMENTED when nil.
	Tasks Tasks
	// Evidence is GENERAL_NOT_IMPLEMENTED when nil.
	Evidence Evidence
	// Loop is GENERAL_NOT_IMPLEMENTED when nil; modules then have no guidance.
	Loop Loop
	// Stats is GENERAL_NOT_IMPLEMENTED when nil.
	Stats Stats
	// Metrics serves GET /metrics to those who may call; nil is 404. It names
	// modules, which is nothing for strangers.
	Metrics http.Handler
	// Auth admits callers; nil is [Loopback].
	Auth Authenticator
	// Limits bound what is accepted; zero fields mean the defaults.
	Limits Limits
	// Name says in cancel notices and logs who acts, "router" when empty.
	Name string
	// Version goes into the OpenAPI document.
	Version string
	// Logger is slog.Default() when nil.
	Logger *slog.Logger
}

// Limits bound requests and what is kept of them. A zero field means its
// default; a negative one is refused by [New].
type Limits struct {
	// MaxBody is the largest request body in bytes, 64 MiB (bus.max_body).
	MaxBody int64
	// MaxBodies bounds the request bodies that are being read, together, in
	// bytes, 512 MiB and never less than MaxBody and a little.
	MaxBodies int64
	// MaxHeader is the largest request line and headers together in bytes, 32 KiB.
	MaxHeader int
	// MaxRequests is how many calls and checks are served at once, 1024; as many
	// other requests are served beside them, so that a full gateway can still be
	// looked at and its calls cancelled. Health is always answered.
	MaxRequests int
	// MaxDetached is how many detached calls run at once, 1024.
	MaxDetached int
	// OutcomeTTL is how long the outcome of a detached call is kept, 5 minutes.
	OutcomeTTL time.Duration
	// MaxOutcomes and MaxOutcomeBytes bound the outcomes kept, 10,000 and 64 MiB;
	// the oldest goes first.
	MaxOutcomes     int
	MaxOutcomeBytes int64
	// ReadHeaderTimeout is how long a client may take for the headers, 10 s;
	// BodyTimeout for the body, 2 min; IdleTimeout between requests, 2 min.
	ReadHeaderTimeout, BodyTimeout, IdleTimeout time.Duration
	// Heartbeat is how long an event stream may be silent before a comment is sent,
	// 15 s. StreamStall is how long its reader may take nothing of what waits for it
	// before the call is cancelled, 2 min.
	Heartbeat, StreamStall time.Duration
	// ReadyTimeout is how long the readiness probe may take, 2 s.
	ReadyTimeout time.Duration
}

// DefaultLimits returns the limits that zero fields stand for.
func DefaultLimits() Limits {
	return Limits{
		MaxBody: int64(contextwire.DefaultLimits().MaxBody), MaxBodies: 512 << 20, MaxHeader: 32 << 10,
		MaxRequests: 1024, MaxDetached: 1024,
		OutcomeTTL: 5 * time.Minute, MaxOutcomes: 10_000, MaxOutcomeBytes: 64 << 20,
		ReadHeaderTimeout: 10 * time.Second, BodyTimeout: 2 * time.Minute, IdleTimeout: 2 * time.Minute,
		Heartbeat: 15 * time.Second, StreamStall: 2 * time.Minute, ReadyTimeout: 2 * time.Second,
	}
}

func (l Limits) withDefaults() (Limits, error) {
	d := DefaultLimits()
	bad := fill(&l.MaxBody, d.MaxBody) || fill(&l.MaxBodies, d.MaxBodies) || fill(&l.MaxHeader, d.MaxHeader) ||
		fill(&l.MaxRequests, d.MaxRequests) || fill(&l.MaxDetached, d.MaxDetached) ||
		fill(&l.OutcomeTTL, d.OutcomeTTL) || fill(&l.MaxOutcomes, d.MaxOutcomes) || fill(&l.MaxOutcomeBytes, d.MaxOutcomeBytes) ||
		fill(&l.ReadHeaderTimeout, d.ReadHeaderTimeout) || fill(&l.BodyTimeout, d.BodyTimeout) ||
		fill(&l.Heartbeat, d.Heartbeat) || fill(&l.StreamStall, d.StreamStall) ||
		fill(&l.IdleTimeout, d.IdleTimeout) || fill(&l.ReadyTimeout, d.ReadyTimeout)
	if bad {
		return l, errors.New("a limit is negative")
	}
	l.MaxBodies = max(l.MaxBodies, l.MaxBody+2*meterStep)
	return l, nil
}

// fill sets a zero field to its default and reports whether it is negative.
func fill[T int | int64 | time.Duration](field *T, otherwise T) (negative bool) {
	if *field == 0 {
		*field = otherwise
	}
	return *field < 0
}

// Gateway serves the HTTP API. Close it when it is no longer served.
type Gateway struct {
	invoker   Invoker
	streamer  Streamer
	catalog   Catalog
	fleet     Fleet
	calls     Calls
	readiness Readiness
	auth      Authenticator
	limits    Limits
	decode    contextwire.Limits
	name      string
	log       *slog.Logger

	governance Governance
	approvals  Approvals
	evidence   Evidence
	tasks      Tasks
	loop       Loop
	doctor     Doctor
	stats      Stats
	metrics    http.Handler

	origin   *http.CrossOriginProtection
	table    []*route
	mux      *http.ServeMux
	openAPI  []byte
	requests map[class]*gate
	bodies   *budget

	// inFlight holds the calls that this gateway makes, detached or not.
	inFlight *cancel.Table
	detached *outcomes

	life context.Context
	stop context.CancelCauseFunc
	// watching ends when the server begins to stop: for answers without an end.
	watching context.Context
	unwatch  context.CancelCauseFunc
	wg       sync.WaitGroup
}

var _ http.Handler = (*Gateway)(nil)

// New makes a gateway. It starts nothing.
func New(o Options) (*Gateway, error) {
	for what, missing := range map[string]bool{
		"Invoker": o.Invoker == nil, "Catalog": o.Catalog == nil, "Fleet": o.Fleet == nil,
		"Calls": o.Calls == nil, "Readiness": o.Readiness == nil,
	} {
		if missing {
			return nil, fmt.Errorf("new gateway: no %s", what)
		}
	}
	limits, err := o.Limits.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new gateway: %w", err)
	}
	if o.Auth == nil {
		o.Auth = Loopback{}
	}
	if o.Streamer == nil {
		o.Streamer = StreamerFunc(nil)
	}
	if o.Governance == nil {
		o.Governance = GovernanceFunc(nil)
	}
	if o.Doctor == nil {
		o.Doctor = DoctorFunc(nil)
	}
	if o.Approvals == nil {
		o.Approvals = noApprovals{}
	}
	if o.Evidence == nil {
		o.Evidence = noEvidence{}
	}
	if o.Stats == nil {
		o.Stats = StatsFunc(nil)
	}
	if o.Name == "" {
		o.Name = "router"
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	g := &Gateway{
		invoker: o.Invoker, streamer: o.Streamer, catalog: o.Catalog, fleet: o.Fleet, calls: o.Calls, readiness: o.Readiness, governance: o.Governance,
		approvals: o.Approvals, evidence: o.Evidence, tasks: o.Tasks, loop: o.Loop, doctor: o.Doctor, auth: o.Auth, limits: limits, decode: contextwire.Limits{MaxBody: int(limits.MaxBody)},
		stats: o.Stats, metrics: o.Metrics,
		name: o.Name, log: o.Logger,
		origin:   http.NewCrossOriginProtection(),
		requests: map[class]*gate{work: newGate(limits.MaxRequests), control: newGate(limits.MaxRequests)},
		bodies:   &budget{limit: limits.MaxBodies},
		inFlight: cancel.NewTable(cancel.TableOptions{}),
		detached: newOutcomes(limits),
	}
	g.life, g.stop = context.WithCancelCause(context.Background())
	g.watching, g.unwatch = context.WithCancelCause(g.life)
	g.table = g.routes()
	if g.mux, err = g.newMux(g.table); err != nil {
		return nil, err
	}
	if g.openAPI, err = openAPIDocument(g.table, o.Version); err != nil {
		return nil, fmt.Errorf("new gateway: %w", err)
	}
	return g, nil
}

// Server returns an http.Server for the gateway with its time and header
// limits. The caller listens, serves and shuts it down.
func (g *Gateway) Server() *http.Server {
	srv := &http.Server{
		Handler:           g,
		ReadHeaderTimeout: g.limits.ReadHeaderTimeout,
		IdleTimeout:       g.limits.IdleTimeout,
		// The handler refuses what is over MaxHeader with a coded error; the
		// server itself only stops what is far beyond.
		MaxHeaderBytes: 2*g.limits.MaxHeader + 4096,
		ErrorLog:       slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
	}
	// Who only watches must not hold up those whose calls may still finish.
	srv.RegisterOnShutdown(func() { g.unwatch(cancel.Because(cancel.Shutdown, g.name, "the router shuts down")) })
	return srv
}

// Close waits for the detached calls until ctx is done, then cancels every
// call of the gateway with cause shutdown, and waits for the goroutines to
// end. New detached calls are refused from the beginning.
func (g *Gateway) Close(ctx context.Context) {
	g.detached.close()
	if err := g.inFlight.WaitEmpty(ctx); err != nil {
		g.log.Warn("calls cut short by shutdown", "count", g.inFlight.Len())
	}
	g.stop(cancel.Because(cancel.Shutdown, g.name, "the router shuts down"))
	g.wg.Wait()
}
