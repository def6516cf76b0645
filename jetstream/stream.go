package jetstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/module"
)

// Durability says what acknowledged data survives; receipts carry it.
type Durability string

const (
	// PowerSafe survives loss of power: the server syncs every write, or the
	// stream has three replicas or more.
	PowerSafe Durability = "power-safe"
	// ProcessSafe survives the end of any process, but not loss of power.
	ProcessSafe Durability = "process-safe"
)

// Options says where the task log of a namespace is. JS is required.
type Options struct {
	// JS is a connection to the servers that hold the stream. It is not closed.
	JS natsjs.JetStream
	// Prefix and Namespace are those of the bus; "apbus" and "default" when empty.
	Prefix, Namespace string
	// Stream is the stream's name, [DefaultStream] when empty, with _ and the
	// namespace at the end unless that is the default one.
	Stream string
	// Replicas of a stream that is to be created, 1 when zero; zero has no opinion on
	// one that exists.
	Replicas int
	// MaxBytes limits a stream that is to be created, no limit when zero. A full
	// stream refuses writes; it never drops what it holds.
	MaxBytes int64
	// Durability is what receipts promise, [PowerSafe] when empty. Whether one
	// server syncs its writes cannot be asked; the caller has to know. A stream with
	// three replicas is always PowerSafe.
	Durability Durability
	// Holder names this process in the lead record, for people.
	Holder string
	// LeaseTTL is how long a lead lasts without a renewal, 2 s when zero, at least
	// 200 ms. It is renewed five times in that time.
	LeaseTTL time.Duration
	// Logger receives drift and changes of the lead; slog.Default() when nil.
	Logger *slog.Logger
}

func (o *Options) setDefaults() error {
	if o.JS == nil {
		return module.Errorf(module.CodeConfigInvalid, "the task log needs JetStream")
	}
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	if o.Stream == "" {
		o.Stream = streamName(o.Namespace)
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = -1
	}
	switch o.Durability {
	case "":
		o.Durability = PowerSafe
	case PowerSafe, ProcessSafe:
	default:
		return module.Errorf(module.CodeConfigInvalid, "durability %q: want %s or %s", o.Durability, PowerSafe, ProcessSafe)
	}
	const shortest = 200 * time.Millisecond
	if o.LeaseTTL == 0 {
		o.LeaseTTL = 2 * time.Second
	}
	if o.LeaseTTL < shortest {
		return module.Errorf(module.CodeConfigInvalid, "the lease of the lead is %v, want at least %v", o.LeaseTTL, shortest)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return nil
}

// Store is the stream of a namespace's tasks, in which one process at a time may
// write: see [Store.Elect]. Safe for concurrent use.
type Store struct {
	o      Options
	names  names
	raw    *conn
	drift  []Drift
	direct bool // one replica: a direct get is never stale
	atomic bool // commits of several entries are atomic batches
	shared bool // the stream has subjects of others too
}

// Open finds the stream or creates it. One that exists is never changed: where
// its settings differ that is logged and kept for [Store.Drift], and a setting
// under which tasks would be lost is an error with code CONFIG_INVALID that names
// it. Without JetStream or connection the code is TASK_STORE_UNAVAILABLE.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	n, err := newNames(o.Prefix, o.Namespace)
	if err != nil {
		return nil, err
	}
	s := &Store{o: o, names: n, raw: newConn(o.JS, o.Stream)}
	want := s.wanted()
	info, err := s.find(ctx, want)
	if err != nil {
		return nil, err
	}
	s.drift = compare(want, info.Config, s.o.Replicas)
	var fatal []error
	for _, d := range s.drift {
		o.Logger.Warn("the task stream differs from what was asked for", "stream", o.Stream,
			"setting", d.Setting, "want", d.Want, "got", d.Got, "fatal", d.Fatal)
		if d.Fatal {
			fatal = append(fatal, errors.New(d.String()))
		}
	}
	if len(fatal) > 0 {
		return nil, module.Errorf(module.CodeConfigInvalid,
			"stream %s cannot keep tasks, and an existing stream is not changed: %w", o.Stream, errors.Join(fatal...))
	}
	s.shared = len(info.Config.Subjects) > len(want.Subjects)
	s.direct = info.Config.Replicas <= 1
	if info.Config.Replicas >= 3 {
		s.o.Durability, o.Durability = PowerSafe, PowerSafe
	}
	s.atomic = o.Durability == PowerSafe || !s.direct
	return s, nil
}

// wanted is the stream as it is created.
func (s *Store) wanted() natsjs.StreamConfig {
	return natsjs.StreamConfig{
		Name:              s.o.Stream,
		Description:       "Tasks of Apbus, one subject each; written by the elected writer only.",
		Subjects:          s.names.captured(),
		Retention:         natsjs.LimitsPolicy,
		Storage:           natsjs.FileStorage,
		Replicas:          max(1, s.o.Replicas),
		MaxMsgsPerSubject: 1,
		MaxMsgs:           -1,
		MaxBytes:          s.o.MaxBytes,
		MaxConsumers:      -1,
		MaxMsgSize:        -1,
		// Nobody sends IDs to be told apart, and a server that starts reads everything that
		// is younger than this once more. It is the least there is.
		Duplicates: 100 * time.Millisecond,
		// A full stream says so; it never drops a task to make room.
		Discard:            natsjs.DiscardNew,
		AllowDirect:        true,
		AllowMsgTTL:        true,
		AllowAtomicPublish: true,
		// The writer deletes with a message that the fence guards; the API's delete
		// and purge have no fence.
		DenyDelete: true,
		DenyPurge:  true,
	}
}

// find returns the stream, which it creates when there is none. Two routers may
// do so at once.
func (s *Store) find(ctx context.Context, want natsjs.StreamConfig) (*natsjs.StreamInfo, error) {
	for range 3 {
		found, err := s.o.JS.Stream(ctx, s.o.Stream)
		if err == nil {
			return found.CachedInfo(), nil
		}
		if !errors.Is(err, natsjs.ErrStreamNotFound) {
			return nil, unavailable(fmt.Errorf("look for stream %s: %w", s.o.Stream, err))
		}
		made, err := s.o.JS.CreateStream(ctx, want)
		if err == nil {
			return made.CachedInfo(), nil
		}
		if !errors.Is(err, natsjs.ErrStreamNameAlreadyInUse) {
			return nil, unavailable(fmt.Errorf("create stream %s: %w", s.o.Stream, err))
		}
	}
	return nil, unavailable(fmt.Errorf("stream %s is created and deleted by somebody else", s.o.Stream))
}

// Drift lists the settings in which an existing stream differs.
func (s *Store) Drift() []Drift { return s.drift }

// Durability is what receipts promise.
func (s *Store) Durability() Durability { return s.o.Durability }

// unavailable says that the store cannot be reached or refuses.
func unavailable(cause error) *module.Error {
	return module.Errorf(module.CodeTaskStoreUnavailable, "the task store does not answer: %w", cause)
}
