package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/loop/plan"
	"github.com/apbus/apbus/module"
)

const (
	// PlanRunStream is the journal of plan runs of the default namespace; that of
	// another one has _ and its name at the end.
	PlanRunStream = "APBUS_PLANRUNS"
	// DefaultPlanRunAge is how long a run is kept: as long as a recommendation may wait.
	DefaultPlanRunAge = 30 * 24 * time.Hour
	// DefaultPlanRunBytes bounds the size of the stream, 256 MiB.
	DefaultPlanRunBytes = 256 << 20
	// PlanRunsKept is how many runs of one version of a plan are kept, the newest.
	PlanRunsKept = 100
)

// PlanRunOptions says where runs of plans are journaled. JS is required.
type PlanRunOptions struct {
	// JS is a connection to the servers that hold the stream. It is not closed.
	JS natsjs.JetStream
	// Prefix and Namespace are those of the bus; "apbus" and "default" when empty.
	Prefix, Namespace string
	// MaxAge, MaxBytes and Replicas are those of a stream that is to be created: 30 days,
	// 256 MiB and 1 when zero. The oldest goes first. A Replicas of zero has no opinion
	// on a stream that exists.
	MaxAge   time.Duration
	MaxBytes int64
	Replicas int
	// Logger is slog.Default() when nil.
	Logger *slog.Logger
}

// PlanRunStore is the journal of plan runs of a namespace. It is safe for concurrent
// use and starts nothing by itself.
type PlanRunStore struct {
	o     PlanRunOptions
	base  string // subjects, up to the hash of the plan
	raw   *conn
	log   *slog.Logger
	drift []Drift
}

var _ loop.PlanRuns = (*PlanRunStore)(nil)

// OpenPlanRuns opens the journal and creates its stream where it is missing. One that
// exists is used as it is; where it differs that is logged and kept for Drift. A stream
// from which nothing could be read back is CONFIG_INVALID.
func OpenPlanRuns(ctx context.Context, o PlanRunOptions) (*PlanRunStore, error) {
	if o.JS == nil {
		return nil, module.Errorf(module.CodeConfigInvalid, "the journal of plan runs needs JetStream")
	}
	n, err := newNames(o.Prefix, o.Namespace)
	if err != nil {
		return nil, err
	}
	o.Namespace = cmp.Or(o.Namespace, DefaultNamespace)
	if o.MaxAge <= 0 {
		o.MaxAge = DefaultPlanRunAge
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultPlanRunBytes
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	name := PlanRunStream
	if o.Namespace != DefaultNamespace {
		name += "_" + o.Namespace
	}
	s := &PlanRunStore{
		o: o, base: strings.TrimSuffix(n.base, ".task."+o.Namespace) + ".planrun." + o.Namespace + ".", raw: newConn(o.JS, name), log: o.Logger,
	}
	return s, s.ensure(ctx)
}

// ensure finds or creates the stream.
func (s *PlanRunStore) ensure(ctx context.Context) error {
	want := natsjs.StreamConfig{
		Name: s.raw.stream, Description: "Runs of the plans of Apbus, redacted: what each node came to, for people and for rehearsals.",
		Subjects:  []string{s.base + ">"},
		Retention: natsjs.LimitsPolicy, Storage: natsjs.FileStorage, Discard: natsjs.DiscardOld,
		Replicas: max(1, s.o.Replicas), MaxAge: s.o.MaxAge, MaxBytes: s.o.MaxBytes, MaxMsgsPerSubject: PlanRunsKept,
		MaxMsgs: -1, MaxConsumers: -1, MaxMsgSize: -1,
		AllowDirect: true, DenyDelete: true, DenyPurge: true,
	}
	if want.Replicas == 1 {
		want.PersistMode = natsjs.AsyncPersistMode
	}
	var err error
	s.drift, err = ensureRecords(ctx, s.o.JS, want, s.o.Replicas, s.log, "runs of plans")
	if err != nil && module.CodeOf(err) != module.CodeConfigInvalid {
		return loopUnavailable(err)
	}
	return err
}

// Drift lists the settings in which an existing stream differs.
func (s *PlanRunStore) Drift() []Drift { return s.drift }

// PlanRunPublisher journals runs in the background. [PlanRunPublisher.Record] never
// blocks. It is safe for concurrent use; close it before the connection.
type PlanRunPublisher struct {
	*publisher[*plan.RunRecord]
}

// Publisher starts a publisher.
func (s *PlanRunStore) Publisher(o PublisherOptions) *PlanRunPublisher {
	if o.Buffer <= 0 {
		o.Buffer = 256
	}
	return &PlanRunPublisher{publish(s.raw, s.log, "runs of plans", o, func(by origin, r *plan.RunRecord) (*nats.Msg, error) {
		if !planHash(r.PlanHash) || module.ValidateID(r.Plan) != nil {
			return nil, errors.New("a run of no plan")
		}
		r.NS, r.Node, r.Boot, r.N = s.o.Namespace, by.node, by.boot, by.n
		body, err := r.Encode()
		if err != nil {
			return nil, err
		}
		m := &nats.Msg{Subject: s.base + r.PlanHash + "." + escape(r.Plan), Data: body}
		m.Header = nats.Header{headerMsgID: {contextwire.EvidenceHash(body)}}
		return m, nil
	})}
}

// planHash reports whether a hash is one, and so a token of a subject.
func planHash(s string) bool {
	return len(s) == 64 && !strings.ContainsFunc(s, func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') })
}

// PlanRuns implements [loop.PlanRuns].
func (s *PlanRunStore) PlanRuns(ctx context.Context, hash string) iter.Seq2[*loop.JournaledRun, error] {
	if !planHash(hash) {
		return func(func(*loop.JournaledRun, error) bool) {}
	}
	return s.read(ctx, s.base+hash+".>")
}

// Newest returns the newest runs of a plan, whatever its version, at most limit, the
// newest first. module is its ID, plan.<name>.
func (s *PlanRunStore) Newest(ctx context.Context, moduleID string, limit int) ([]*loop.JournaledRun, error) {
	if err := module.ValidateID(moduleID); err != nil {
		return nil, err //nolint:wrapcheck // coded
	}
	type place struct {
		seq  uint64
		data []byte
	}
	var last []place // read in full only where they are wanted
	for seq, body := range s.raw.bodies(ctx, readRange{from: 1, subject: s.base + "*." + escape(moduleID)}) {
		if body.err != nil {
			return nil, loopUnavailable(fmt.Errorf("read runs of plans: %w", body.err))
		}
		if last = append(last, place{seq, body.data}); len(last) > 2*limit {
			last = slices.Delete(last, 0, len(last)-limit)
		}
	}
	var runs []*loop.JournaledRun
	for _, p := range slices.Backward(last) {
		if r := s.decode(ctx, p.seq, p.data); r != nil && len(runs) < limit {
			runs = append(runs, r)
		}
	}
	return runs, nil
}

// read ranges over the runs under a subject, in the order of the stream. What cannot
// be read is told of and passed over.
func (s *PlanRunStore) read(ctx context.Context, subject string) iter.Seq2[*loop.JournaledRun, error] {
	return func(yield func(*loop.JournaledRun, error) bool) {
		for seq, body := range s.raw.bodies(ctx, readRange{from: 1, subject: subject}) {
			if body.err != nil {
				yield(nil, loopUnavailable(fmt.Errorf("read runs of plans: %w", body.err)))
				return
			}
			if r := s.decode(ctx, seq, body.data); r != nil && !yield(r, nil) {
				return
			}
		}
	}
}

// decode reads a run, nil for one that cannot be read.
func (s *PlanRunStore) decode(ctx context.Context, seq uint64, data []byte) *loop.JournaledRun {
	r, id, err := plan.DecodeRunRecord(data)
	if err != nil {
		s.log.LogAttrs(ctx, slog.LevelWarn, "a run of a plan cannot be read, passed over", slog.Uint64("seq", seq), slog.Any("cause", err))
		return nil
	}
	return &loop.JournaledRun{ID: id, RunRecord: r}
}
