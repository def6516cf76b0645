package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/loop/plan"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

const (
	// learnedPoll is how often a node looks for what was learned when nothing told it
	// of news, learnedSettle how long after news it waits for more.
	learnedPoll   = 5 * time.Second
	learnedSettle = 20 * time.Millisecond
	// learnedStart is how long opening the store of the loop may take.
	learnedStart = 5 * time.Second
	// learnedOff is the value of --learned that leaves everything as it was declared.
	learnedOff = "off"
	// planSource is where modules of plans come from.
	planSource = "the loop"
)

// learned makes the node do what people approved and applied: it hosts the plans and
// runs revised programs of its bindings. What is rolled back it undoes.
type learned struct {
	store  *jetstream.LoopStore
	engine *loop.Engine
	reg    *registry.Registry
	bound  *bound
	// evidence says of each call what was in force.
	evidence *recorder
	// runs keeps what the plans did.
	runs *journal
	// hide is what the modules that plans call hide.
	hide *plan.Redaction
	name string
	dir  string // of program texts, "" until there is one; used by follow only
	log  *slog.Logger

	// Used by follow only.
	plans   map[string]string // module ID to the item and the schemas that it is made of
	sources map[string]string // module ID to the hash of the item whose text it runs
	broken  map[string]bool   // items that were complained about
	tried   map[string]bool   // recommendations whose evalset has been run
}

// openLearned takes part; nil where it is switched off or there is no JetStream. A
// node without it still does its work, so a failure is only told of.
func openLearned(ctx context.Context, cfg *config, conns *bus.Conns, client *bus.Client, reg *registry.Registry, b *bound, r *recorder, runs *journal, log *slog.Logger) *learned {
	if cfg.Learned == learnedOff || conns.JS == nil {
		return nil
	}
	l, err := newLearned(ctx, cfg, conns, client, reg, b, r, runs, log)
	if err != nil {
		log.Warn("plans are not hosted and programs not revised", "cause", err)
		return nil
	}
	return l
}

func newLearned(ctx context.Context, cfg *config, conns *bus.Conns, client *bus.Client, reg *registry.Registry, b *bound, r *recorder, runs *journal, log *slog.Logger) (*learned, error) {
	ctx, stop := context.WithTimeoutCause(ctx, learnedStart, errors.New("the store of the loop did not open in time"))
	defer stop()
	store, err := jetstream.OpenLoop(ctx, jetstream.LoopOptions{JS: conns.JS, Namespace: cfg.NS, Replicas: cfg.Replicas, Logger: log})
	if err != nil {
		return nil, err
	}
	// This engine makes no passes; it reads, and journals what evalsets came to.
	engine, err := loop.New(loop.Options{Store: store, Reader: loop.NewMemReader(), Analyzers: []loop.Analyzer{}, Logger: log})
	if err != nil {
		return nil, err
	}
	hide, err := newRedaction(reg, client)
	if err != nil {
		return nil, err
	}
	return &learned{
		store: store, engine: engine, reg: reg, bound: b, evidence: r, runs: runs, hide: hide, name: cfg.ID, log: log,
		plans: map[string]string{}, sources: map[string]string{}, broken: map[string]bool{}, tried: map[string]bool{},
	}, nil
}

// follow does what is live until ctx is done.
func (l *learned) follow(ctx context.Context) {
	defer func() {
		if l.dir != "" {
			_ = os.RemoveAll(l.dir) // what is left is harmless
		}
	}()
	news, end, err := l.store.Changes()
	if err != nil {
		l.log.Warn("news of what was learned arrive late", "cause", err)
	} else {
		defer end()
	}
	tick := time.NewTicker(learnedPoll)
	defer tick.Stop()
	for {
		if err := l.look(ctx); err != nil && ctx.Err() == nil {
			l.log.Debug("cannot look at what was learned", "cause", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-news:
			settle := time.NewTimer(learnedSettle)
			select {
			case <-ctx.Done():
			case <-settle.C:
			}
			settle.Stop()
		}
	}
}

// look makes plans and programs those that are live, and tries out approved ones.
func (l *learned) look(ctx context.Context) error {
	items, _, err := l.engine.Knowledge().Items(ctx, true)
	if err != nil {
		return err
	}
	l.evidence.learned(items)
	l.hostPlans(ctx, items)
	l.runSources(ctx, items)
	return l.tryRevisions(ctx, items)
}

// hostPlans registers the live plans. Of two that make one module ID the first, by
// namespace and name, is hosted.
func (l *learned) hostPlans(ctx context.Context, items []*loop.Item) {
	wanted := map[string]bool{}
	for _, i := range items {
		if i.Type != loop.ItemPlan {
			continue
		}
		m, err := loop.PlanModule(i, l.runs.of(), l.hide)
		if err != nil {
			l.complain(ctx, i, "a plan cannot be run", err)
			continue
		}
		id := m.Descriptor().ID
		if wanted[id] {
			l.complain(ctx, i, "a plan has the name of another one and is not hosted", nil)
			continue
		}
		wanted[id] = true
		// Other schemas of the modules that it calls make it another module.
		d := m.Descriptor()
		made := i.Hash + " " + schema.ContentHash([]any{d.InputSchema, d.OutputSchema})
		if l.plans[id] == made {
			continue
		}
		if err := l.host(ctx, id, m); err != nil {
			l.complain(ctx, i, "a plan is not hosted", err)
			continue
		}
		l.plans[id] = made
		l.log.Info("plan hosted", "module_id", id)
	}
	for id := range l.plans {
		if !wanted[id] {
			l.reg.Unregister(ctx, id)
			delete(l.plans, id)
			l.log.Info("plan no longer hosted", "module_id", id)
		}
	}
}

// host registers a plan, or puts it in the place of the one before, whose calls end
// first.
func (l *learned) host(ctx context.Context, id string, m module.Module) error {
	if _, ok := l.plans[id]; !ok {
		return l.reg.RegisterDeclared(ctx, m, registry.Declaration{Source: planSource})
	}
	_, err := l.reg.Reload(ctx, id, registry.ReloadOptions{
		Factory: func(context.Context) (module.Module, error) { return m, nil },
	})
	return err
}

// complain tells once of an item that cannot be used.
func (l *learned) complain(ctx context.Context, i *loop.Item, message string, err error) {
	if l.broken[i.Hash] {
		return
	}
	const most = 1000
	if len(l.broken) >= most {
		clear(l.broken)
	}
	l.broken[i.Hash] = true
	l.log.LogAttrs(ctx, slog.LevelWarn, "what was learned is not used", slog.String("what", message), slog.Any("cause", err))
}
