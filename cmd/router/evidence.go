package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/internal/telemetry"
	"github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/loop"
)

const (
	// evidenceStart is how long opening the stream of evidence may take, evidenceEnd
	// how long the last records may take to be stored.
	evidenceStart = 5 * time.Second
	evidenceEnd   = 2 * time.Second
	// evidenceOff is the value of --evidence that leaves and shows none.
	evidenceOff = "off"
)

// witness shows the evidence of the namespace and adds what only the router sees:
// decisions of people, and calls that reached no node. A nil one does neither.
type witness struct {
	store   *jetstream.EvidenceStore
	p       *jetstream.EvidencePublisher
	inForce loop.InForce // for the records of calls
}

// record records with the guidance that was in force.
func (w *witness) record(e *contextwire.Evidence) {
	w.inForce.Stamp(e)
	w.p.Record(e)
}

// openEvidence opens the stream of evidence, unless it is switched off or there is
// no JetStream. A router without it still does its work, so a failure is only told of.
func openEvidence(ctx context.Context, cfg *config, conns *bus.Conns, log *slog.Logger) *witness {
	if cfg.Evidence == evidenceOff || conns.JS == nil {
		return nil
	}
	ctx, stop := context.WithTimeoutCause(ctx, evidenceStart, errors.New("the stream of evidence did not open in time"))
	defer stop()
	store, err := jetstream.OpenEvidence(ctx, jetstream.EvidenceOptions{JS: conns.JS, Namespace: cfg.NS, Replicas: cfg.Replicas, Logger: log})
	if err != nil {
		log.Warn("evidence is neither kept nor shown", "cause", err)
		return nil
	}
	return &witness{store: store, p: store.Publisher(jetstream.PublisherOptions{Node: "router"})}
}

// shown is the gateway's part.
func (w *witness) shown() gateway.Evidence {
	if w == nil {
		return nil
	}
	return w.store
}

// client is for those who record by themselves, the bus client and the writer of the
// tasks; nil for none.
func (w *witness) client() func(*contextwire.Evidence) {
	if w == nil {
		return nil
	}
	return w.record
}

// decided records what a person decided; nil for none.
func (w *witness) decided() func(context.Context, approval.Record) {
	if w == nil {
		return nil
	}
	return func(_ context.Context, r approval.Record) {
		if e, ok := executor.ApprovalEvidence(r); ok {
			w.p.Record(e)
		}
	}
}

// watch shows what is dropped.
func (w *witness) watch(m *telemetry.Metrics) error {
	if w == nil || m == nil {
		return nil
	}
	return m.Evidence(func() (stored, lost uint64) {
		s := w.p.Stats()
		return s.Published, s.Dropped + s.Refused
	})
}

// close stores what is left, though ctx is over.
func (w *witness) close(ctx context.Context) {
	if w == nil {
		return
	}
	ctx, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), evidenceEnd, errors.New("the router has stopped"))
	defer stop()
	w.p.Close(ctx)
}
