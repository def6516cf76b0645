package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/examples"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/internal/heap"
	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/module"
)

// run hosts modules until ctx is done or somebody drains the node over the bus,
// then finishes what it accepted.
func run(ctx context.Context, spec settings.Spec) error {
	cfg, res, err := parse(spec)
	if err != nil || res.Done {
		return err
	}
	log := res.Logger.With("node", cfg.ID)

	mods, err := exampleModules(cfg)
	if err != nil {
		return err
	}
	if len(mods) == 0 && len(cfg.Bindings) == 0 && !cfg.wantsSystem() {
		log.Warn("the node hosts no modules; --examples and --bindings give it some")
	}
	watch, err := openWatch(ctx, cfg, spec, log)
	if err != nil {
		return err
	}
	defer watch.close(ctx)
	defer heap.Tend(ctx, spec.Env)()
	emit := watch.emit() //nolint:contextcheck // an event belongs to no call
	reg := registry.New(registry.Options{Logger: log, Events: emit})
	for _, m := range mods {
		if err := reg.RegisterDeclared(ctx, m, registry.Declaration{}); err != nil {
			return fmt.Errorf("register %s: %w", m.Descriptor().ID, err)
		}
	}
	bound, err := bind(ctx, cfg.Bindings, spec, reg, log)
	if err != nil {
		return err
	}
	rulesSeen := stampOf(cfg.ACL)
	rules, err := loadRules(cfg.ACL, log)
	if err != nil {
		return err
	}

	conns, err := bus.Connect(ctx, bus.Options{
		Servers: cfg.NATS, Name: "apbus-node/" + cfg.ID, Creds: cfg.Creds, Replicas: cfg.Replicas, Logger: log,
	})
	if err != nil {
		return interrupted(ctx, fmt.Errorf("connect to %s: %w", strings.Join(withoutSecrets(cfg.NATS), ", "), err))
	}
	defer conns.Close()
	evidence := openEvidence(ctx, cfg, conns, log)
	defer evidence.close(ctx)
	client, err := bus.NewClient(conns, bus.ClientOptions{ //nolint:contextcheck // a client lives until it is closed
		Namespace: cfg.NS, Name: cfg.ID, Logger: log, TracerProvider: watch.tracing.Provider(),
		Limits: contextwire.Limits{MaxBody: cfg.MaxBody}, Evidence: evidence.client(),
	})
	if err != nil {
		return fmt.Errorf("start the client: %w", err)
	}
	defer client.Close()
	runs := openJournal(ctx, cfg, conns, reg, client, log)
	defer runs.close(ctx)
	seen, watching, err := observe(cfg, emit)
	if err != nil {
		return fmt.Errorf("watch the calls: %w", err)
	}
	eyes, err := watch.options(cfg)
	if err != nil {
		return fmt.Errorf("watch the calls: %w", err)
	}
	watching = append(append(watching, eyes...), evidence.options()...)
	approvals, err := openApprovals(ctx, cfg, conns, log)
	if err != nil {
		return interrupted(ctx, err)
	}
	x, err := newExecutor(cfg.limits(), reg, client, approvals, rules, log, append(watching, executor.WithEvents(emit))...)
	if err != nil {
		return fmt.Errorf("make the executor: %w", err)
	}
	if err := registerSystem(ctx, cfg, x, seen, emit, log); err != nil {
		return fmt.Errorf("register the system modules: %w", err)
	}
	warnUnprotected(x, log)
	node, err := bus.NewNode(conns, x, bus.NodeOptions{ //nolint:contextcheck // a node lives until it is closed
		ID: cfg.ID, Namespace: cfg.NS, Version: spec.Version, MaxInFlight: cfg.MaxInFlight,
		MaxPerModule: cfg.MaxPerModule, MaxPerIdentity: cfg.MaxPerIdentity, Limits: contextwire.Limits{MaxBody: cfg.MaxBody},
		Governance: func() map[string]any { return x.GovernanceState().Map() },
		DrainGrace: max(cfg.DrainGrace, time.Millisecond), CallGrace: func() time.Duration { return *x.Config().GracePeriod }, Logger: log,
		TracerProvider: watch.tracing.Provider(),
	})
	if err != nil {
		return fmt.Errorf("start node %s: %w", cfg.ID, err)
	}

	if err := errors.Join(watch.bus(conns, client, node), evidence.watch(watch.metrics, node.Boot()), runs.watch(watch.metrics, node.Boot())); err != nil {
		return errors.Join(err, node.Close()) //nolint:contextcheck // it must end though ctx is over
	}

	work, err := startTasks(ctx, cfg, conns, node, x, log)
	if err != nil {
		return errors.Join(err, node.Close()) //nolint:contextcheck // it must end though ctx is over
	}
	var wg sync.WaitGroup
	life, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	if bound != nil {
		wg.Go(func() { bound.watch(life) })
	}
	if l := openLearned(ctx, cfg, conns, client, reg, bound, evidence, runs, log); l != nil {
		wg.Go(func() { l.follow(life) })
	}
	if rules != nil {
		wg.Go(func() { watchRules(life, rules, cfg.ACL, rulesSeen, log) })
	}
	fmt.Fprintf(out(spec.Stdout), "apbus-node: id=%s boot=%s nats=%s modules=%d%s\n",
		node.ID(), node.Boot(), strings.Join(withoutSecrets(cfg.NATS), ","), reg.Len(), watch.where())

	select {
	case <-ctx.Done():
		log.Info("draining", "cause", context.Cause(ctx), "grace", cfg.DrainGrace)
		work.drain()
		if err := node.Drain(context.WithoutCancel(ctx)); err != nil {
			log.Warn("calls were cut short by the end of the node", "cause", err)
		}
	case <-node.Drained():
		work.drain()
		log.Info("drained over the bus")
	}
	work.close()       // its attempts may still call over the node's client
	err = node.Close() //nolint:contextcheck // it must end though ctx is over
	stop(errors.New("the node has stopped"))
	wg.Wait()
	log.Info("stopped")
	return err
}

func exampleModules(cfg *config) ([]module.Module, error) {
	if len(cfg.Examples) == 0 {
		return nil, nil
	}
	mods, err := examples.Modules(examples.Options{
		Node: cfg.ID, EffectLog: cfg.EffectLog, Groups: cfg.Examples.groups(),
	})
	if err != nil {
		return nil, settings.Usagef("--examples: %w", err)
	}
	return mods, nil
}

// newExecutor makes the executor that owns this node's modules and reaches all
// others through remote.
func newExecutor(limits executor.Config, reg *registry.Registry, remote executor.Remote, approvals approval.Handler, rules *acl.Policy, log *slog.Logger, more ...executor.Option) (*executor.Executor, error) {
	opts := []executor.Option{
		executor.WithRemote(remote),
		executor.WithLogger(log),
		executor.WithApproval(approvals),
	}
	if rules != nil {
		opts = append(opts, executor.WithACL(rules))
	}
	return executor.New(reg, limits, append(opts, more...)...)
}

func out(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// interrupted tells a signal during the start from a failure.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w while starting", settings.ErrInterrupted)
	}
	return err
}
