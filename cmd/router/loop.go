package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/module"
)

const (
	// loopSchedule is who has the passes of the schedule made.
	loopSchedule = "system:loop"
	// lastRunKey is where the last pass is kept.
	lastRunKey = "router.last-run"
)

// learning is the loop of the namespace, as this router has part in it.
type learning struct {
	*loop.Engine
	store  *jetstream.LoopStore
	runs   *jetstream.PlanRunStore
	w      *witness
	router string
	log    *slog.Logger

	mu sync.Mutex
	// items are the live knowledge as of a revision.
	items    []*loop.Item
	revision uint64
	read     bool
}

var _ gateway.Loop = (*learning)(nil)

// openLoop opens the loop; nil without JetStream or evidence, of which it lives.
func openLoop(ctx context.Context, cfg *config, conns *bus.Conns, client *bus.Client, w *witness, work *tasks, log *slog.Logger) (*learning, error) {
	if conns.JS == nil || w == nil {
		if cfg.wantsModel() {
			log.Warn("there is no loop, for want of evidence")
		}
		return nil, nil
	}
	policy, err := openPolicy(cfg.LoopPolicy)
	if err != nil {
		return nil, err
	}
	model, err := openModel(ctx, cfg, log)
	if err != nil {
		return nil, err
	}
	embedder, err := openEmbedder(cfg)
	if err != nil {
		return nil, err
	}
	store, err := jetstream.OpenLoop(ctx, jetstream.LoopOptions{
		JS: conns.JS, Namespace: cfg.NS, Replicas: cfg.Replicas, Logger: log,
	})
	if err != nil {
		return nil, fmt.Errorf("open the loop: %w", err)
	}
	runs, err := jetstream.OpenPlanRuns(ctx, jetstream.PlanRunOptions{JS: conns.JS, Namespace: cfg.NS, Replicas: cfg.Replicas, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("open the journal of plan runs: %w", err)
	}
	seen := &firstSeen{at: map[string]time.Time{}}
	engine, err := loop.New(loop.Options{
		Store:   store,
		Reader:  loop.JoinReaders(w.store, loop.Snapshots(snapshotsOf(cfg.NS, client, work, seen, time.Now))),
		Backend: model, Embedder: embedder, PlanRuns: runs, Policy: policy, Logger: log,
		Registered: func(id string) bool {
			_, ok := client.Module(id)
			return ok
		},
	})
	if err != nil {
		return nil, err
	}
	return &learning{Engine: engine, store: store, runs: runs, w: w, router: routerName(), log: log}, nil
}

// routerName tells routers apart, for people.
func routerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "router"
	}
	return host + "/" + strconv.Itoa(os.Getpid())
}

// shown is the gateway's part.
func (l *learning) shown() gateway.Loop {
	if l == nil {
		return nil
	}
	return l
}

// Run makes a pass and keeps what it did for whoever asks any router.
func (l *learning) Run(ctx context.Context, now time.Time, o loop.RunOptions) (*loop.Result, error) {
	res, err := l.Engine.Run(ctx, now, o)
	if err != nil {
		return nil, err
	}
	if res.Outcome == "ran" {
		if err := l.keep(ctx, now, o.Trigger.ID, res); err != nil {
			l.log.WarnContext(ctx, "what the last pass did is not kept", "cause", err)
		}
	}
	return res, nil
}

// lastRun is the stored form of the last pass.
type lastRun struct {
	V       int          `json:"v"`
	AtMS    int64        `json:"at_ms"`
	Trigger string       `json:"trigger"`
	Router  string       `json:"router"`
	Result  *loop.Result `json:"result"`
}

func (l *learning) keep(ctx context.Context, now time.Time, trigger string, res *loop.Result) error {
	m, err := module.ToMap(lastRun{1, now.UnixMilli(), trigger, l.router, res})
	if err != nil {
		return err
	}
	raw, err := contextwire.EncodeCanonical(contextwire.JSON, m)
	if err != nil {
		return err
	}
	for {
		e, err := l.store.Get(ctx, loop.BucketState, lastRunKey)
		if err != nil {
			return err
		}
		if _, err = l.store.Put(ctx, loop.BucketState, lastRunKey, raw, e.Rev); !errors.Is(err, loop.ErrConflict) {
			return err
		}
	}
}

// LastRun implements [gateway.LoopRunner].
func (l *learning) LastRun(ctx context.Context) (*gateway.LoopRun, error) {
	e, err := l.store.Get(ctx, loop.BucketState, lastRunKey)
	if err != nil {
		return nil, module.Errorf(module.CodeLoopStore, "reading the last pass: %w", err)
	}
	if e.Rev == 0 {
		return nil, nil
	}
	var r lastRun
	m, err := contextwire.DecodeMap(contextwire.JSON, e.Value, contextwire.Limits{})
	if err == nil {
		err = module.FromMap(m, &r)
	}
	if err != nil || r.V != 1 || r.Result == nil {
		l.log.WarnContext(ctx, "what the last pass did cannot be read", "cause", err)
		return nil, nil
	}
	return &gateway.LoopRun{At: time.UnixMilli(r.AtMS), Trigger: r.Trigger, Router: r.Router, Result: r.Result}, nil
}

// Guidance implements [gateway.LoopLessons]. Knowledge is read again only when it
// has changed, which one request tells.
func (l *learning) Guidance(ctx context.Context, moduleID string) ([]loop.Guidance, error) {
	items, err := l.known(ctx)
	if err != nil {
		return nil, module.Errorf(module.CodeLoopStore, "reading what was learned: %w", err)
	}
	return loop.GuidanceOf(items, moduleID), nil
}

// PlanRuns implements [gateway.LoopLessons].
func (l *learning) PlanRuns(ctx context.Context, moduleID string, limit int) ([]*loop.JournaledRun, error) {
	return l.runs.Newest(ctx, moduleID, limit)
}

func (l *learning) known(ctx context.Context) ([]*loop.Item, error) {
	revision, err := l.store.Revision(ctx)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	items, fresh := l.items, l.read && l.revision == revision
	l.mu.Unlock()
	if fresh {
		return items, nil
	}
	if items, _, err = l.Knowledge().Items(ctx, true); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.read || revision > l.revision {
		l.items, l.revision, l.read = items, revision, true
		if l.w != nil {
			l.w.inForce.Set(items)
		}
	}
	return items, nil
}

const (
	// mendAfter is how long after news of a decision this router looks whether whoever
	// took it came to an end with it. To look earlier would do no harm, but work twice.
	mendAfter = 3 * time.Second
	// mendPoll is how often it looks when no news arrive, which may be missed while the
	// server is away.
	mendPoll = time.Minute
)

// mend finishes what routers that died left half done, at once and whenever a decision
// was taken, until ctx is done. Of several routers all do so; it does no harm.
func (l *learning) mend(ctx context.Context) {
	news, end, err := l.store.Changes()
	if err != nil {
		l.log.Warn("news of decisions arrive late", "cause", err)
	} else {
		defer end()
	}
	for {
		switch n, err := l.Recover(ctx, time.Now()); {
		case ctx.Err() != nil:
			return
		case err != nil:
			l.log.Warn("what was cut off cannot be finished now", "cause", err)
		case n > 0:
			l.log.Info("what was cut off is finished", "count", n)
		}
		if _, err := l.known(ctx); err != nil && ctx.Err() == nil {
			l.log.Debug("cannot look at what was learned", "cause", err)
		}
		if !l.waitForNews(ctx, news) {
			return
		}
	}
}

// waitForNews is false when ctx is done.
func (l *learning) waitForNews(ctx context.Context, news <-chan struct{}) bool {
	poll := time.NewTimer(mendPoll)
	defer poll.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-poll.C:
		return true
	case <-news:
	}
	after := time.NewTimer(mendAfter)
	defer after.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-after.C:
		return true
	}
}

// follow makes a pass whenever the last one of any router is as long ago as every,
// until ctx is done. Routers take turns by the lock of the loop and by when the last
// pass was, so that their number makes no difference.
func (l *learning) follow(ctx context.Context, every time.Duration) {
	const soonest, latest = time.Second, time.Minute
	tick := time.NewTicker(min(max(every/8, soonest), latest))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		res, err := l.Run(ctx, time.Now(), loop.RunOptions{
			IfStale: every, Trigger: loop.Actor{ID: loopSchedule, Observer: loop.ObserverSystem},
		})
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			l.log.Warn("a pass of the loop failed", "cause", err)
		case res.Outcome == "ran":
			l.log.Info("a pass of the loop is done", "proposed", res.Proposed, "stored", res.Stored)
		}
	}
}
