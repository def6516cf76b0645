package bus

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

const (
	// bodyBucket is the object store for bodies that are too large for a message
	// (wire protocol, section 6).
	bodyBucket = "APBUS_BLOBS"
	// bodyTTL is the backstop for bodies that nobody deletes.
	bodyTTL = time.Hour
	// bodyStream is the stream below the bucket, as every NATS client names it.
	bodyStream = "OBJ_" + bodyBucket
	bodyChunks = "$O." + bodyBucket + ".C."
	bodyMeta   = "$O." + bodyBucket + ".M."

	// bodyUploads is how many bodies a process sends at once; more would only
	// share the same connection.
	bodyUploads = 4
	// bodyPatience is how long one step of the server may take.
	bodyPatience = 10 * time.Second
)

// bodyStore reads, writes and deletes bodies in the object store. It writes what
// every NATS client reads as an object and reads what they write, but speaks to
// the stream itself: the library's own object store cannot delete what an upload
// that was cut short left behind, keeps a marker for every object ever deleted,
// and hashes and copies once more on each side.
//
// The name of the chunks' subject is the object's name in base64, so that also
// what a killed process left half done shows whose it is.
type bodyStore struct {
	js       jetstream.JetStream
	replicas int // of the stream, where this process creates it
	slots    chan struct{}

	mu     sync.Mutex
	stream jetstream.Stream // nil until it is needed
}

func newBodyStore(js jetstream.JetStream, replicas int) *bodyStore {
	return &bodyStore{js: js, replicas: replicas, slots: make(chan struct{}, bodyUploads)}
}

// bodies is the object store of large bodies, nil without JetStream.
func (c *Conns) bodies() *bodyStore {
	if c.JS == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.large == nil {
		c.large = newBodyStore(c.JS, c.replicas)
	}
	return c.large
}

// storeFor returns where a body of the given size goes: nil when it goes into
// the message, because it is at most three quarters of the smallest max_payload
// known or because there is no object store.
func (c *Conns) storeFor(size int) *bodyStore {
	limit := c.floor.of(c.Calls.MaxPayload())
	if limit <= 0 || int64(size) <= limit/4*3 {
		return nil
	}
	return c.bodies()
}

// open returns the stream, which it makes when it is missing. fresh looks again.
func (s *bodyStore) open(ctx context.Context, fresh bool) (jetstream.Stream, error) {
	s.mu.Lock()
	known := s.stream
	s.mu.Unlock()
	if known != nil && !fresh {
		return known, nil
	}
	ctx, stop := within(ctx)
	defer stop()
	stream, err := s.js.Stream(ctx, bodyStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = s.create(ctx)
	}
	if err != nil {
		return nil, s.failed(ctx, "open", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stream = stream
	return stream, nil
}

// create makes the stream of an object store, as NATS clients do, but one whose
// server does not sync it even where it syncs everything else: a body is needed
// no longer than the processes that hold the call.
func (s *bodyStore) create(ctx context.Context) (jetstream.Stream, error) {
	cfg := jetstream.StreamConfig{
		Name: bodyStream, Description: "bodies too large for a message", Subjects: []string{bodyChunks + ">", bodyMeta + ">"},
		MaxAge: bodyTTL, MaxBytes: -1, Storage: jetstream.FileStorage, Replicas: s.replicas, Discard: jetstream.DiscardNew,
		AllowRollup: true, AllowDirect: true, PersistMode: jetstream.AsyncPersistMode,
	}
	stream, err := s.js.CreateStream(ctx, cfg)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process was faster
		return s.js.Stream(ctx, bodyStream)
	}
	if err != nil { // a server before 2.12 may not know the mode
		cfg.PersistMode = jetstream.DefaultPersistMode
		stream, err = s.js.CreateStream(ctx, cfg)
	}
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return s.js.Stream(ctx, bodyStream)
	}
	return stream, err
}

// existing returns the stream, nil when it is missing.
func (s *bodyStore) existing(ctx context.Context) (jetstream.Stream, error) {
	s.mu.Lock()
	known := s.stream
	s.mu.Unlock()
	if known != nil {
		return known, nil
	}
	step, stop := within(ctx)
	defer stop()
	stream, err := s.js.Stream(step, bodyStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil //nolint:nilnil // nothing is there and nothing is wrong
	}
	if err != nil {
		return nil, s.failed(ctx, "look for", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stream = stream
	return stream, nil
}

// chunksOf is the subject of the chunks of an object that we wrote.
func chunksOf(name string) string {
	return bodyChunks + base64.RawURLEncoding.EncodeToString([]byte(name))
}

func metaOf(name string) string { return bodyMeta + base64.URLEncoding.EncodeToString([]byte(name)) }

// nameOf is the name of the object that a subject of the stream belongs to, ""
// when the subject does not tell.
func nameOf(subject string) string {
	var raw []byte
	var err error
	if token, ok := strings.CutPrefix(subject, bodyMeta); ok {
		raw, err = base64.URLEncoding.DecodeString(token)
	} else if token, ok := strings.CutPrefix(subject, bodyChunks); ok {
		raw, err = base64.RawURLEncoding.DecodeString(token)
	}
	if err != nil || !nameable(string(raw)) {
		return ""
	}
	return string(raw)
}

// nameable reports whether an object can have the name.
func nameable(name string) bool {
	ref := contextwire.BodyRef{Name: name, SHA256: strings.Repeat("0", 64)}
	_, ok := contextwire.ParseBodyRef(ref.String())
	return ok
}

// failed explains a failure of the object store: the cause of ctx when that has
// ended, else that there is no connection to it.
func (s *bodyStore) failed(ctx context.Context, step string, err error) error {
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), errBodyLate) {
		return context.Cause(ctx)
	}
	return module.Errorf(module.CodeBusDisconnected, "%s the object store of large bodies: %w", step, err)
}

var errBodyLate = errors.New("the object store did not answer")

// within bounds one step.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, bodyPatience, errBodyLate)
}

// info is what an object says of itself, nil when there is none of that name.
func (s *bodyStore) info(ctx context.Context, stream jetstream.Stream, name string) (*objectInfo, error) {
	step, stop := within(ctx)
	defer stop()
	raw, err := stream.GetLastMsgForSubject(step, metaOf(name))
	if errors.Is(err, jetstream.ErrMsgNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, nats.ErrNoResponders) {
		return nil, nil //nolint:nilnil // nothing is there and nothing is wrong
	}
	if err != nil {
		return nil, s.failed(ctx, "read", err)
	}
	return decodeObjectInfo(raw.Data)
}

// remove deletes everything of an object, also one that was never completed.
// There being none is no error.
func (s *bodyStore) remove(ctx context.Context, name string) error {
	stream, err := s.existing(ctx)
	if err != nil || stream == nil {
		return err
	}
	chunks := []string{chunksOf(name)}
	info, err := s.info(ctx, stream, name)
	if err != nil && module.CodeOf(err) != module.CodeBusBadMessage {
		return err
	}
	if info != nil && bodyChunks+info.NUID != chunks[0] && validToken(info.NUID) {
		chunks = append(chunks, bodyChunks+info.NUID) // written by another client
	}
	// The object first: nobody finds one without its chunks.
	for _, subject := range append([]string{metaOf(name)}, chunks...) {
		if err := stream.Purge(ctx, jetstream.WithPurgeSubject(subject)); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("delete a large body: %w", err)
		}
	}
	return nil
}

// validToken reports whether s is one token of a subject without wildcards.
func validToken(s string) bool {
	return s != "" && len(s) <= 512 && !strings.ContainsAny(s, ".*> \t\r\n")
}
