package main

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/internal/telemetry"
	"github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/loop/plan"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// journalEnd is how long the last runs of plans may take to be stored.
const journalEnd = 2 * time.Second

// journal keeps what plans did that this node hosts. A nil one keeps nothing.
type journal struct {
	p    *jetstream.PlanRunPublisher
	hide *plan.Redaction
	log  *slog.Logger
}

var _ plan.Journal = (*journal)(nil)

// openJournal opens the journal of plan runs. A node without one still runs its plans,
// so a failure is only told of.
func openJournal(ctx context.Context, cfg *config, conns *bus.Conns, reg *registry.Registry, client *bus.Client, log *slog.Logger) *journal {
	if cfg.Learned == learnedOff || cfg.Evidence == evidenceOff || conns.JS == nil {
		return nil
	}
	ctx, stop := context.WithTimeoutCause(ctx, evidenceStart, errors.New("the journal of plan runs did not open in time"))
	defer stop()
	store, err := jetstream.OpenPlanRuns(ctx, jetstream.PlanRunOptions{JS: conns.JS, Namespace: cfg.NS, Replicas: cfg.Replicas, Logger: log})
	if err != nil {
		log.Warn("runs of plans are not journaled", "cause", err)
		return nil
	}
	hide, err := newRedaction(reg, client)
	if err != nil {
		log.Warn("runs of plans are not journaled", "cause", err)
		return nil
	}
	return &journal{
		p:    store.Publisher(jetstream.PublisherOptions{Node: cfg.ID}),
		hide: hide, log: log,
	}
}

// newRedaction hides what the modules hide that plans call, this node's own and those
// of others.
func newRedaction(reg *registry.Registry, client *bus.Client) (*plan.Redaction, error) {
	redactor, err := schema.NewRedactor(schema.RedactOptions{})
	if err != nil {
		return nil, err
	}
	known := &knownSchemas{own: reg, catalogue: client.Module, compiled: map[string]schemaPair{}}
	return &plan.Redaction{Redactor: redactor, Schemas: known.of}, nil
}

// Ran implements [plan.Journal]. A run never fails by its journal.
func (j *journal) Ran(p *plan.Plan, about plan.RunAbout, res *plan.Result, err error) {
	defer func() {
		if v := recover(); v != nil {
			j.log.Error("a run of a plan is not journaled", "module_id", about.Plan, "call_id", about.Call.ID, "stack", string(debug.Stack()))
		}
	}()
	j.p.Record(plan.NewRunRecord(p, about, res, err, j.hide))
}

// of is what plans tell of their runs, nil for nobody.
func (j *journal) of() plan.Journal {
	if j == nil {
		return nil
	}
	return j
}

// watch shows what is dropped, where metrics are served, and takes the name of the
// node's run.
func (j *journal) watch(m *telemetry.Metrics, boot string) error {
	if j == nil {
		return nil
	}
	j.p.SetBoot(boot)
	if m == nil {
		return nil
	}
	return m.PlanRuns(func() (stored, lost uint64) {
		s := j.p.Stats()
		return s.Published, s.Dropped + s.Refused
	})
}

// close stores what is left, though ctx is over.
func (j *journal) close(ctx context.Context) {
	if j == nil {
		return
	}
	ctx, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), journalEnd, errors.New("the node has stopped"))
	defer stop()
	j.p.Close(ctx)
}

// schemaPair is what the values of a module are redacted by.
type schemaPair struct {
	hash          string // of the descriptor
	input, output *schema.Compiled
}

// knownSchemas finds the schemas of modules: of this node's own, else as the catalogue
// has them. It is safe for concurrent use.
type knownSchemas struct {
	own       *registry.Registry
	catalogue func(id string) (bus.ModuleInfo, bool)

	mu sync.Mutex
	// compiled are the newest schemas by module, also of those that are away now.
	compiled map[string]schemaPair
}

// maxSchemas is how many modules of others are remembered.
const maxSchemas = 512

func (k *knownSchemas) of(id string, inputs map[string]any) (input, output *schema.Compiled, known bool) {
	if entry, ok := k.own.Get(id); ok {
		if _, depends := entry.Module.(module.Discreet); depends && inputs == nil {
			return nil, nil, false // what it hides depends on the inputs
		}
		return entry.Marks(inputs), entry.Output, true
	}
	info, there := k.catalogue(id)
	k.mu.Lock()
	pair, ok := k.compiled[id]
	k.mu.Unlock()
	if ok && (!there || pair.hash == info.Hash) {
		return pair.input, pair.output, true
	}
	if !there {
		return nil, nil, false
	}
	pair, err := compilePair(&info)
	if err != nil {
		return nil, nil, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.compiled) >= maxSchemas {
		clear(k.compiled)
	}
	k.compiled[id] = pair
	return pair.input, pair.output, true
}

func compilePair(info *bus.ModuleInfo) (p schemaPair, err error) {
	p.hash = info.Hash
	if p.input, err = schema.Compile(info.Descriptor.InputSchema); err != nil {
		return p, err
	}
	p.output, err = schema.Compile(info.Descriptor.OutputSchema)
	return p, err
}
