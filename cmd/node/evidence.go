package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/internal/telemetry"
	"github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/loop"
)

const (
	// evidenceStart is how long opening the stream of evidence may take.
	evidenceStart = 5 * time.Second
	// evidenceEnd is how long the last records may take to be stored.
	evidenceEnd = 2 * time.Second
)

// recorder leaves evidence of what this node does, with the guidance that was in force.
// A nil one leaves none.
type recorder struct {
	p       *jetstream.EvidencePublisher
	inForce loop.InForce
}

// Record implements [executor.EvidenceSink].
func (r *recorder) Record(e *contextwire.Evidence) {
	r.inForce.Stamp(e)
	r.p.Record(e)
}

// learned takes the knowledge that is live from now on.
func (r *recorder) learned(live []*loop.Item) {
	if r != nil {
		r.inForce.Set(live)
	}
}

// openEvidence opens the stream of evidence, unless it is switched off or there is
// no JetStream. A node without evidence still does its work, so a failure is only
// told of.
func openEvidence(ctx context.Context, cfg *config, conns *bus.Conns, log *slog.Logger) *recorder {
	if cfg.Evidence == evidenceOff || conns.JS == nil {
		return nil
	}
	ctx, stop := context.WithTimeoutCause(ctx, evidenceStart, errors.New("the stream of evidence did not open in time"))
	defer stop()
	store, err := jetstream.OpenEvidence(ctx, jetstream.EvidenceOptions{JS: conns.JS, Namespace: cfg.NS, Replicas: cfg.Replicas, Logger: log})
	if err != nil {
		log.Warn("no evidence is left of what this node does", "cause", err)
		return nil
	}
	return &recorder{p: store.Publisher(jetstream.PublisherOptions{Node: cfg.ID})}
}

// evidenceOff is the value of --evidence that leaves none.
const evidenceOff = "off"

// options are the executor's part.
func (r *recorder) options() []executor.Option {
	if r == nil {
		return nil
	}
	return []executor.Option{executor.WithObserver(executor.EvidenceObserver(r))}
}

// client is the bus client's part, nil for none.
func (r *recorder) client() func(*contextwire.Evidence) {
	if r == nil {
		return nil
	}
	return r.Record
}

// watch shows what is dropped, where metrics are served, and takes the name of the
// node's run.
func (r *recorder) watch(m *telemetry.Metrics, boot string) error {
	if r == nil {
		return nil
	}
	r.p.SetBoot(boot)
	if m == nil {
		return nil
	}
	return m.Evidence(func() (stored, lost uint64) {
		s := r.p.Stats()
		return s.Published, s.Dropped + s.Refused
	})
}

// close stores what is left, though ctx is over.
func (r *recorder) close(ctx context.Context) {
	if r == nil {
		return
	}
	ctx, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), evidenceEnd, errors.New("the node has stopped"))
	defer stop()
	r.p.Close(ctx)
}
