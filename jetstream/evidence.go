package jetstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

const (
	// EvidenceStream is the stream of evidence of the default namespace; that of
	// another one has _ and its name at the end.
	EvidenceStream = "APBUS_EVIDENCE"
	// DefaultEvidenceAge and DefaultEvidenceBytes bound it (durable design, section 3):
	// records are kept for a week.
	DefaultEvidenceAge = 7 * 24 * time.Hour
	// DefaultEvidenceBytes bounds the size of the stream, 1 GiB.
	DefaultEvidenceBytes = 1 << 30
)

// EvidenceOptions says where evidence is kept. JS is required.
type EvidenceOptions struct {
	// JS is a connection to the servers that hold the stream. It is not closed.
	JS natsjs.JetStream
	// Prefix and Namespace are those of the bus; "apbus" and "default" when empty.
	Prefix, Namespace string
	// MaxAge, MaxBytes and Replicas are those of a stream that is to be created:
	// 7 days, 1 GiB and 1 when zero. The oldest goes first. A Replicas of zero has no
	// opinion on a stream that exists.
	MaxAge   time.Duration
	MaxBytes int64
	Replicas int
	// Logger is slog.Default() when nil.
	Logger *slog.Logger
}

// EvidenceStore is the stream of evidence of a namespace. It is safe for concurrent
// use and starts nothing by itself.
type EvidenceStore struct {
	o     EvidenceOptions
	base  string // subjects, up to the kind
	raw   *conn
	log   *slog.Logger
	drift []Drift

	index evidenceIndex
	mu    sync.Mutex
	noted map[uint64]bool // records that were complained about
}

// OpenEvidence opens the stream of evidence and creates it where it is missing. One
// that exists is used as it is; where it differs that is logged and kept for Drift.
// A stream under which nothing could be read back is CONFIG_INVALID.
func OpenEvidence(ctx context.Context, o EvidenceOptions) (*EvidenceStore, error) {
	if o.JS == nil {
		return nil, module.Errorf(module.CodeConfigInvalid, "evidence needs JetStream")
	}
	n, err := newNames(o.Prefix, o.Namespace)
	if err != nil {
		return nil, err
	}
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	if o.MaxAge <= 0 {
		o.MaxAge = DefaultEvidenceAge
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultEvidenceBytes
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	name := EvidenceStream
	if o.Namespace != DefaultNamespace {
		name += "_" + o.Namespace
	}
	s := &EvidenceStore{
		o: o, base: strings.TrimSuffix(n.base, ".task."+o.Namespace) + ".evt." + o.Namespace + ".", raw: newConn(o.JS, name), log: o.Logger,
		index: evidenceIndex{at: map[uint64]uint64{}}, noted: map[uint64]bool{},
	}
	return s, s.ensure(ctx)
}

// ensure finds or creates the stream.
func (s *EvidenceStore) ensure(ctx context.Context) error {
	want := s.wanted()
	var err error
	s.drift, err = ensureRecords(ctx, s.o.JS, want, s.o.Replicas, s.log, "evidence")
	return err
}

// ensureRecords finds or creates a stream of records that are only ever added, and
// returns where one that exists differs. From one that is not usable nothing could be
// read back: CONFIG_INVALID.
func ensureRecords(ctx context.Context, js natsjs.JetStream, want natsjs.StreamConfig, replicas int, log *slog.Logger, what string) ([]Drift, error) {
	info, err := findLight(ctx, js, want)
	if err != nil {
		return nil, err
	}
	want.PersistMode = info.PersistMode // either will do
	drift := compare(want, *info, replicas)
	usable := info.AllowDirect && !info.NoAck
	for _, d := range drift {
		log.WarnContext(ctx, "a stream of records differs from what was asked for", "stream", want.Name,
			"setting", d.Setting, "want", d.Want, "got", d.Got)
		usable = usable && (d.Setting != "subjects" || !d.Fatal)
	}
	if !usable {
		return drift, module.Errorf(module.CodeConfigInvalid, "stream %s cannot keep %s, and an existing stream is not changed", want.Name, what)
	}
	return drift, nil
}

// wanted is the stream as it is created. Evidence may be lost with the power of the
// machine, so that it costs little to write.
func (s *EvidenceStore) wanted() natsjs.StreamConfig {
	c := natsjs.StreamConfig{
		Name: s.raw.stream, Description: "Evidence of Apbus: one record for each call, denial and decision, redacted.",
		Retention: natsjs.LimitsPolicy, Storage: natsjs.FileStorage, Discard: natsjs.DiscardOld,
		Replicas: max(1, s.o.Replicas), MaxAge: s.o.MaxAge, MaxBytes: s.o.MaxBytes,
		MaxMsgs: -1, MaxConsumers: -1, MaxMsgSize: -1, MaxMsgsPerSubject: -1,
		AllowDirect: true, DenyDelete: true, DenyPurge: true,
	}
	if c.Replicas == 1 {
		c.PersistMode = natsjs.AsyncPersistMode
	}
	for _, t := range contextwire.EvidenceTypes() {
		c.Subjects = append(c.Subjects, s.base+string(t)+".>")
	}
	return c
}

// findLight returns the settings of a stream of records that may be lost with the power
// of the machine, and creates it where it is missing.
func findLight(ctx context.Context, js natsjs.JetStream, want natsjs.StreamConfig) (*natsjs.StreamConfig, error) {
	for range 4 {
		found, err := js.Stream(ctx, want.Name)
		if err == nil {
			return &found.CachedInfo().Config, nil
		}
		if !errors.Is(err, natsjs.ErrStreamNotFound) {
			return nil, unavailable(fmt.Errorf("look for stream %s: %w", want.Name, err))
		}
		made, err := js.CreateStream(ctx, want)
		if err == nil {
			return &made.CachedInfo().Config, nil
		}
		switch {
		case errors.Is(err, natsjs.ErrStreamNameAlreadyInUse):
		case want.PersistMode != natsjs.DefaultPersistMode:
			want.PersistMode = natsjs.DefaultPersistMode // a server that does not know it
		default:
			return nil, unavailable(fmt.Errorf("create stream %s: %w", want.Name, err))
		}
	}
	return nil, unavailable(fmt.Errorf("stream %s is created and deleted by somebody else", want.Name))
}

// Drift lists the settings in which an existing stream differs.
func (s *EvidenceStore) Drift() []Drift { return s.drift }

// Namespace is the namespace that the evidence is of.
func (s *EvidenceStore) Namespace() string { return s.o.Namespace }

// subject is where a record goes. A note without a module goes to one of its own.
func (s *EvidenceStore) subject(e *contextwire.Evidence) string {
	id := e.ModuleID
	if id == "" {
		id = "_"
	}
	return s.base + string(e.Type) + "." + escape(id)
}
