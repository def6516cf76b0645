package jetstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/module"
)

const (
	// RecStream holds the recommendations and their audit logs in the default
	// namespace; that of another one has _ and its name at the end.
	RecStream = "APBUS_RECS"
	// KnowledgeStream holds what applied recommendations left, likewise.
	KnowledgeStream = "APBUS_KNOWLEDGE"
)

// LoopOptions says where the loop keeps what it knows. JS is required.
type LoopOptions struct {
	// JS is a connection to the servers that hold the streams. It is not closed.
	JS natsjs.JetStream
	// Prefix and Namespace are those of the bus; "apbus" and "default" when empty.
	Prefix, Namespace string
	// Replicas of streams that are to be created, 1 when zero; zero has no opinion on
	// those that exist.
	Replicas int
	// Logger is slog.Default() when nil.
	Logger *slog.Logger
}

// LoopStore is the [loop.Store] of a namespace (durable design, section 4). One
// stream holds what only grows, the bodies and the audit logs; another one the last
// state of everything else: knowledge, the state of the loop, locks. Each key is a
// subject of its own, whose last sequence is its revision; the server compares it.
// A document of knowledge holds its former versions, so that each write carries
// what undoes it.
//
// It is safe for concurrent use, by any number of processes. It starts nothing but
// the renewal of a lock that is held.
type LoopStore struct {
	base  string // subjects, up to the kind
	grown *conn
	kept  *conn
	log   *slog.Logger
	drift []Drift
}

var _ loop.Store = (*LoopStore)(nil)

// The kinds of subjects.
const (
	kindBody      = "body"
	kindAudit     = "audit"
	kindKnowledge = "know"
	kindState     = "state"
	kindLock      = "lock"
)

// OpenLoop opens the streams and creates those that are missing. Existing ones are
// used as they are; where they differ that is logged and kept for Drift. One that
// would lose what it is given is CONFIG_INVALID.
func OpenLoop(ctx context.Context, o LoopOptions) (*LoopStore, error) {
	if o.JS == nil {
		return nil, module.Errorf(module.CodeConfigInvalid, "recommendations need JetStream")
	}
	n, err := newNames(o.Prefix, o.Namespace)
	if err != nil {
		return nil, err
	}
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	ending := ""
	if o.Namespace != DefaultNamespace {
		ending = "_" + o.Namespace
	}
	s := &LoopStore{
		base:  strings.TrimSuffix(n.base, ".task."+o.Namespace) + ".rec." + o.Namespace + ".",
		grown: newConn(o.JS, RecStream+ending), kept: newConn(o.JS, KnowledgeStream+ending), log: o.Logger,
	}
	want := natsjs.StreamConfig{
		Retention: natsjs.LimitsPolicy, Storage: natsjs.FileStorage, Discard: natsjs.DiscardNew, Replicas: max(1, o.Replicas),
		MaxMsgs: -1, MaxBytes: -1, MaxConsumers: -1, MaxMsgSize: -1, AllowDirect: true, DenyDelete: true, DenyPurge: true,
	}
	grown, kept := want, want
	grown.Name, grown.MaxMsgsPerSubject = s.grown.stream, -1
	grown.Description = "Recommendations of Apbus and what became of each; nothing here ever changes."
	grown.Subjects = []string{s.base + kindBody + ".>", s.base + kindAudit + ".>"}
	kept.Name, kept.MaxMsgsPerSubject, kept.AllowMsgTTL = s.kept.stream, 1, true
	kept.Description = "What applied recommendations of Apbus left, and the state of the loop."
	kept.Subjects = []string{s.base + kindKnowledge + ".>", s.base + kindState + ".>", s.base + kindLock + ".>"}
	for _, c := range []natsjs.StreamConfig{grown, kept} {
		if err := s.ensure(ctx, o, c); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// ensure finds or creates a stream.
func (s *LoopStore) ensure(ctx context.Context, o LoopOptions, want natsjs.StreamConfig) error {
	found := &Store{o: Options{JS: o.JS, Stream: want.Name}}
	info, err := found.find(ctx, want)
	if err != nil {
		return loopUnavailable(err)
	}
	var fatal []error
	for _, d := range compare(want, info.Config, o.Replicas) {
		s.drift = append(s.drift, d)
		s.log.WarnContext(ctx, "a stream of the loop differs from what was asked for", "stream", want.Name,
			"setting", d.Setting, "want", d.Want, "got", d.Got, "fatal", d.Fatal)
		if d.Fatal {
			fatal = append(fatal, errors.New(d.String()))
		}
	}
	if len(fatal) > 0 {
		return module.Errorf(module.CodeConfigInvalid,
			"stream %s cannot keep what the loop knows, and an existing stream is not changed: %w", want.Name, errors.Join(fatal...))
	}
	return nil
}

// Drift lists the settings in which existing streams differ.
func (s *LoopStore) Drift() []Drift { return s.drift }

// loopUnavailable says that the store cannot be reached or refuses.
func loopUnavailable(err error) error {
	return module.Errorf(module.CodeLoopStore, "the store of the loop does not answer: %w", err)
}

// place is where a bucket's values are.
func (s *LoopStore) place(b loop.Bucket) (*conn, string, error) {
	switch b {
	case loop.BucketRecs:
		return s.grown, kindBody, nil
	case loop.BucketKnowledge:
		return s.kept, kindKnowledge, nil
	case loop.BucketState:
		return s.kept, kindState, nil
	}
	return nil, "", fmt.Errorf("store of the loop: no bucket %.32q", string(b))
}

func (s *LoopStore) subject(kind, key string) (string, error) {
	ok := key != "" && len(key) <= 128
	for i := 0; i < len(key) && ok; i++ {
		ok = plain(key[i]) || key[i] == '.'
	}
	if !ok {
		return "", fmt.Errorf("store of the loop: key %.140q is not allowed", key)
	}
	return s.base + kind + "." + escape(key), nil
}

// key is the reverse of subject.
func (s *LoopStore) key(kind, subject string) (string, bool) {
	rest, ok := strings.CutPrefix(subject, s.base+kind+".")
	if !ok {
		return "", false
	}
	return unescape(rest)
}
