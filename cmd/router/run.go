package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/internal/heap"
	"github.com/apbus/apbus/internal/settings"
)

const (
	// drainGrace is how long requests and detached calls may run on when the
	// router stops.
	drainGrace = 10 * time.Second
	// afterGrace is how long cancelled calls may take to answer.
	afterGrace = time.Second
	// startLimit is how long the first probe through the bus may take.
	startLimit = 10 * time.Second
	// tokensPoll is how often the tokens file is read again.
	tokensPoll = time.Second
)

// run serves until ctx is done, then stops softly: requests and detached calls
// may finish within a grace, the rest is cancelled. A start that ctx cut short
// is settings.ErrInterrupted.
func run(ctx context.Context, spec settings.Spec) error {
	err := serve(ctx, spec)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", settings.ErrInterrupted, err)
	}
	return err
}

func serve(ctx context.Context, spec settings.Spec) error {
	cfg, res, err := parse(spec)
	if err != nil || res.Done {
		return err
	}
	log := res.Logger

	// The address comes first: a busy port should not cost a server start.
	listener, err := listen(ctx, cfg.Listen)
	if err != nil {
		return err
	}
	defer heap.Tend(ctx, spec.Env)()
	defer func() { _ = listener.Close() }() // closed by the server already, except on an early error

	conns, where, doctor, closeBus, err := openBus(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer closeBus()
	if err := bus.CheckStreams(ctx, conns, cfg.NS); err != nil {
		return fmt.Errorf("check the streams: %w", err)
	}
	eyes, err := openWatch(ctx, cfg, spec, log)
	if err != nil {
		return err
	}
	defer eyes.close(ctx)
	evidence := openEvidence(ctx, cfg, conns, log)
	defer evidence.close(ctx)
	client, err := bus.NewClient(conns, bus.ClientOptions{ //nolint:contextcheck // a client lives until it is closed
		TracerProvider: eyes.tracing.Provider(), Evidence: evidence.client(), Events: eyes.emit(),
		Namespace: cfg.NS, Name: "router", Logger: log, Limits: contextwire.Limits{MaxBody: int(cfg.MaxBody)},
		Sweep: true,
	})
	if err != nil {
		return fmt.Errorf("start the client: %w", err)
	}
	defer client.Close()
	if err := errors.Join(eyes.metrics.WatchBus(conns, client, nil), evidence.watch(eyes.metrics)); err != nil {
		return err
	}

	fleet, err := openFleet(cfg, client)
	if err != nil {
		return err
	}
	closeFleet, err := hostFleet(cfg, spec, conns, fleet, eyes, log) //nolint:contextcheck // a node lives until it is closed
	if err != nil {
		return err
	}
	defer closeFleet()

	var wg sync.WaitGroup
	defer wg.Wait()
	life, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(cancel.Because(cancel.Shutdown, "router", "the router has stopped"))

	auth, err := openAuth(life, &wg, cfg, log)
	if err != nil {
		return err
	}
	governance := governanceOf(client, log)
	approvals, requests, err := openApprovals(ctx, cfg, conns, eyes.decided(evidence.decided()), log)
	if err != nil {
		return err
	}
	work, err := startTasks(ctx, cfg, conns, client, requests, evidence, log)
	if err != nil {
		return err
	}
	defer work.close()
	learned, err := openLoop(ctx, cfg, conns, client, evidence, work, log)
	if err != nil {
		return err
	}
	g, err := gateway.New(gateway.Options{ //nolint:contextcheck // a request brings its own
		Invoker: fleet, Streamer: client, Catalog: catalog{client, fleet}, Fleet: fleetOf(client), Calls: callsOf(client),
		Readiness: gateway.ReadyFunc(client.Ready), Governance: governance, Doctor: doctor, Approvals: approvals, Evidence: evidence.shown(), Tasks: work.shown(), Loop: learned.shown(), Auth: auth, Name: "router", Version: spec.Version, Logger: log,
		Stats: client, Metrics: eyes.handler(),
		Limits: gateway.Limits{
			MaxBody: cfg.MaxBody, MaxHeader: cfg.MaxHeader, MaxRequests: cfg.MaxRequests, MaxDetached: cfg.MaxDetached,
			Heartbeat: cfg.Heartbeat, StreamStall: cfg.StreamStall,
		},
	})
	if err != nil {
		return err
	}
	if err := probe(ctx, client); err != nil {
		return err
	}
	wg.Go(func() { warnUnprotected(life, governance, log) })
	if learned != nil {
		wg.Go(func() { learned.mend(life) })
	}
	if learned != nil && cfg.LoopEvery > 0 {
		wg.Go(func() { learned.follow(life, cfg.LoopEvery) })
	}
	srv := g.Server()
	srv.Handler = eyes.traced(g)
	failed := make(chan error, 1)
	wg.Go(func() { failed <- srv.Serve(listener) })

	fmt.Fprintf(out(spec.Stdout), "apbus-router: http=http://%s nats=%s%s\n", listener.Addr(), where, eyes.where())
	select {
	case <-ctx.Done():
		log.Info("stopping", "cause", context.Cause(ctx), "grace", drainGrace)
		err = nil
	case err = <-failed:
		err = fmt.Errorf("serve HTTP: %w", err)
	}
	shutdown(srv, g, log) //nolint:contextcheck // it must end though ctx is over
	log.Info("stopped")
	return err
}

// shutdown lets requests and detached calls finish, cancels what is left after
// the grace, and waits for that too.
func shutdown(srv *http.Server, g *gateway.Gateway, log *slog.Logger) {
	grace, stop := context.WithTimeoutCause(context.Background(), drainGrace,
		cancel.Because(cancel.Shutdown, "router", "the grace is over"))
	defer stop()
	early := srv.Shutdown(grace)
	g.Close(grace)
	if early == nil {
		return
	}
	last, stopLast := context.WithTimeoutCause(context.Background(), afterGrace, errors.New("requests do not end"))
	defer stopLast()
	if err := srv.Shutdown(last); err != nil {
		log.Warn("requests cut off", "cause", err)
		_ = srv.Close() // there is no softer way left
	}
}

// openBus connects to the servers given, or starts the embedded one. where is
// what to tell people, without secrets.
func openBus(ctx context.Context, cfg *config, log *slog.Logger) (conns *bus.Conns, where string, doctor gateway.Doctor, closeBus func(), err error) {
	o := bus.Options{Name: "apbus-router", Servers: cfg.NATS, Creds: cfg.Creds, Replicas: cfg.Replicas, Logger: log}
	var embedded *bus.Embedded
	closeServer := func() {}
	if len(cfg.NATS) > 0 {
		safe := make([]string, len(cfg.NATS))
		for i, s := range cfg.NATS {
			safe[i] = withoutSecrets(s)
		}
		where = strings.Join(safe, ",")
	} else {
		embedded, err = bus.StartEmbedded(bus.EmbedOptions{
			Listen: cfg.EmbedListen, DataDir: cfg.Data, PowerSafe: cfg.Durability == "power-safe", Logger: log,
		})
		if err != nil {
			return nil, "", nil, nil, fmt.Errorf("start the embedded server: %w", err)
		}
		o.InProcess, where, closeServer = embedded.Server(), embedded.URL(), embedded.Shutdown
	}
	conns, err = bus.Connect(ctx, o)
	if err != nil {
		closeServer()
		return nil, "", nil, nil, fmt.Errorf("connect to %s: %w", where, err)
	}
	return conns, where, doctorOf(o, cfg.NS, embedded), func() {
		conns.Close()
		closeServer()
	}, nil
}

// openAuth reads the tokens file and follows it until ctx is done.
func openAuth(ctx context.Context, wg *sync.WaitGroup, cfg *config, log *slog.Logger) (gateway.Authenticator, error) {
	if cfg.Tokens == "" {
		return gateway.Loopback{}, nil
	}
	tokens, err := gateway.OpenTokens(cfg.Tokens, log)
	if err != nil {
		return nil, settings.Usagef("--tokens: %w", err)
	}
	wg.Go(func() { tokens.Watch(ctx, tokensPoll) })
	if cfg.AdmitLocal {
		return gateway.LocalOr{Tokens: tokens}, nil
	}
	return tokens, nil
}

// listen opens the HTTP address; a busy port says what to do.
func listen(ctx context.Context, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s is in use, perhaps by another router: choose another --listen, port 0 picks a free one: %w", address, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w", err)
	}
	return l, nil
}

// probe waits until a message went through the bus and back.
func probe(ctx context.Context, client *bus.Client) error {
	ctx, stop := context.WithTimeoutCause(ctx, startLimit, errors.New("no probe passed through the bus in time"))
	defer stop()
	if err := client.Ready(ctx); err != nil {
		return fmt.Errorf("wait for the bus: %w", err)
	}
	return nil
}

func out(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}
