package bus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// bodyBatch is about how many bytes the server sends at a time, well below what
// it takes a slow consumer for.
const bodyBatch = 4 << 20

// get reads the object that ref names and makes sure that it has the size and
// the digest that ref says. No more memory is allocated than eight times what has
// arrived. A replica may lag behind the one that was written to: of several, what one
// does not have is asked for again.
func (s *bodyStore) get(ctx context.Context, ref *contextwire.BodyRef) ([]byte, error) {
	stream, err := s.existing(ctx)
	if err != nil {
		return nil, err
	}
	if stream == nil {
		return nil, missingBody()
	}
	for wait := 10 * time.Millisecond; ; wait *= 2 {
		body, err := s.getOnce(ctx, stream, ref)
		// As many as the stream has, whoever made it.
		if !errors.Is(err, errNotThere) || stream.CachedInfo().Config.Replicas <= 1 || wait > time.Second {
			return body, err
		}
		select {
		case <-ctx.Done():
			return nil, s.failed(ctx, "read", context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}

// errNotThere is the cause of what a replica that lags would also say.
var errNotThere = errors.New("not all of it is there")

func (s *bodyStore) getOnce(ctx context.Context, stream jetstream.Stream, ref *contextwire.BodyRef) ([]byte, error) {
	info, err := s.info(ctx, stream, ref.Name)
	switch {
	case err != nil:
		return nil, err
	case info == nil:
		return nil, missingBody()
	case info.Size != uint64(ref.Size) || !validToken(info.NUID): //nolint:gosec // never negative
		return nil, badBody("has another size than its reference says")
	}
	r := &bodyReader{store: s, subject: bodyChunks + info.NUID, size: int(ref.Size), digest: sha256.New()}
	body, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	if hex.EncodeToString(r.digest.Sum(nil)) != ref.SHA256 {
		return nil, badBody("has another digest than its reference says")
	}
	return body, nil
}

func missingBody() error {
	return module.Errorf(module.CodeBusBadMessage, "the body is not in the object store any more").WithCause(errNotThere)
}

func incompleteBody() error {
	return module.Errorf(module.CodeBusBadMessage, "the stored body is incomplete").WithCause(errNotThere)
}

func badBody(what string) error {
	return module.Errorf(module.CodeBusBadMessage, "the stored body %s", what)
}

// bodyReader reads the chunks of one object in batches of direct gets, which
// need no consumer on the server.
type bodyReader struct {
	store   *bodyStore
	subject string
	size    int

	sub    *nats.Subscription
	body   []byte
	digest hash.Hash
	seq    uint64 // of the next chunk, at least
}

// chunkRequest is what a batch asks the server for.
type chunkRequest struct {
	Seq      uint64 `json:"seq"`
	Subject  string `json:"next_by_subj"`
	Batch    int    `json:"batch"`
	MaxBytes int    `json:"max_bytes"`
}

func (r *bodyReader) read(ctx context.Context) ([]byte, error) {
	nc := r.store.js.Conn()
	inbox := nc.NewRespInbox()
	var err error
	if r.sub, err = nc.SubscribeSync(inbox); err != nil {
		return nil, r.store.failed(ctx, "read", err)
	}
	defer func() { _ = r.sub.Unsubscribe() }() // the connection is gone when it fails
	for r.seq = 1; len(r.body) < r.size; {
		ask, err := json.Marshal(chunkRequest{Seq: r.seq, Subject: r.subject, Batch: 1024, MaxBytes: bodyBatch})
		if err != nil {
			return nil, module.Errorf(module.CodeInternal, "ask for a stored body: %w", err)
		}
		if err := nc.PublishRequest(r.store.apiPrefix()+"DIRECT.GET."+bodyStream, inbox, ask); err != nil {
			return nil, r.store.failed(ctx, "read", err)
		}
		before := len(r.body)
		if err := r.batch(ctx); err != nil {
			return nil, err
		}
		if len(r.body) == before {
			return nil, incompleteBody()
		}
	}
	return r.body, nil
}

// batch reads the answers to one request.
func (r *bodyReader) batch(ctx context.Context) error {
	step, stop := within(ctx)
	defer stop()
	for {
		m, err := r.sub.NextMsgWithContext(step)
		if errors.Is(err, nats.ErrNoResponders) {
			return missingBody()
		}
		if err != nil {
			return r.store.failed(ctx, "read", err)
		}
		switch status := m.Header.Get("Status"); status {
		case "":
		case "204": // the end of the batch
			return nil
		case "404":
			return incompleteBody()
		default:
			return r.store.failed(ctx, "read", fmt.Errorf("the server answered %s %s", status, m.Header.Get("Description")))
		}
		if len(r.body)+len(m.Data) > r.size {
			return badBody("is larger than its reference says")
		}
		r.grow(len(m.Data))
		r.body = append(r.body, m.Data...)
		_, _ = r.digest.Write(m.Data) // documented never to fail
		seq, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
		if err != nil {
			return r.store.failed(ctx, "read", fmt.Errorf("a chunk without a sequence: %w", err))
		}
		r.seq = seq + 1
		if m.Header.Get("Nats-Num-Pending") == "" {
			return nil // a server that does not know batches sends one message
		}
	}
}

// grow makes room for n more bytes, and for the rest as far as what has arrived
// vouches for it.
func (r *bodyReader) grow(n int) {
	if len(r.body)+n <= cap(r.body) {
		return
	}
	bigger := make([]byte, len(r.body), min(r.size, 8*(len(r.body)+n)))
	copy(bigger, r.body)
	r.body = bigger
}

// apiPrefix is where the server's JetStream answers.
func (s *bodyStore) apiPrefix() string {
	switch o := s.js.Options(); {
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "."
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	}
	return jetstream.DefaultAPIPrefix
}
