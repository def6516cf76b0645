package bus

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

const (
	// bodyChunk is the size of one message of a body; less where messages must be
	// smaller.
	bodyChunk = 256 << 10
	// bodyWindow is how many of them may be unacknowledged, so that many uploads
	// do not fill the server's queue.
	bodyWindow = 16
)

// objectInfo is the record of one object, in the form of the object store of
// every NATS client.
type objectInfo = jetstream.ObjectInfo

func decodeObjectInfo(raw []byte) (*objectInfo, error) {
	info := &objectInfo{}
	if err := json.Unmarshal(raw, info); err != nil {
		return nil, module.Errorf(module.CodeBusBadMessage, "the record of a stored body is malformed: %w", err)
	}
	if info.Deleted {
		return nil, nil //nolint:nilnil // it was there
	}
	return info, nil
}

// leftover is what an upload may have left in the object store, complete or not.
type leftover struct {
	name string
	// open counts the messages that the server has not acknowledged: what is
	// deleted before it has would come after. Their acknowledgements come to acks.
	open int
	acks *nats.Subscription // nil when there is nothing to wait for
}

// errNoBucket is a message that no stream took.
var errNoBucket = errors.New("there is no object store")

// put writes body under a name and returns the reference to it. Whatever else it
// returns, the leftover must be given to discard once the body is not needed any
// more or was not stored.
func (s *bodyStore) put(ctx context.Context, name string, body []byte) (*contextwire.BodyRef, *leftover, error) {
	left := &leftover{name: name}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, left, context.Cause(ctx)
	}
	// The digest is needed last, and takes about as long as the rest of the sending.
	var ref *contextwire.BodyRef
	var hashing sync.WaitGroup
	hashing.Go(func() { ref = contextwire.NewBodyRef(name, body) })
	defer hashing.Wait()
	described := func() *contextwire.BodyRef {
		hashing.Wait()
		return ref
	}
	err := s.upload(ctx, described, body, left, false)
	if errors.Is(err, errNoBucket) { // the server has lost it since
		err = s.upload(ctx, described, body, left, true)
	}
	if err != nil {
		return nil, left, err
	}
	left.close()
	return described(), left, nil
}

// upload sends the chunks and, when the server has them all, the record that
// makes an object of them. fresh looks for the bucket although it is known.
func (s *bodyStore) upload(ctx context.Context, ref func() *contextwire.BodyRef, body []byte, left *leftover, fresh bool) error {
	if _, err := s.open(ctx, fresh); err != nil {
		return err
	}
	nc := s.js.Conn()
	inbox := nc.NewRespInbox()
	acks, err := nc.SubscribeSync(inbox)
	if err != nil {
		return s.failed(ctx, "write to", err)
	}
	left.close()
	left.acks, left.open = acks, 0
	size := bodyChunk
	if limit := nc.MaxPayload() / 2; limit > 0 && limit < bodyChunk {
		size = int(limit)
	}
	send := func(m *nats.Msg) error {
		m.Reply = inbox
		if err := s.acknowledged(ctx, left, bodyWindow-1); err != nil {
			return err
		}
		if err := nc.PublishMsg(m); err != nil {
			return s.failed(ctx, "write to", err)
		}
		left.open++
		return nil
	}
	chunks := 0
	for rest := body; len(rest) > 0; chunks++ {
		n := min(size, len(rest))
		if err := send(&nats.Msg{Subject: chunksOf(left.name), Data: rest[:n]}); err != nil {
			return err
		}
		rest = rest[n:]
	}
	if err := s.acknowledged(ctx, left, 0); err != nil {
		return err
	}
	record, err := json.Marshal(newObjectInfo(ref(), size, chunks))
	if err != nil {
		return module.Errorf(module.CodeInternal, "encode the record of a stored body: %w", err)
	}
	err = send(&nats.Msg{
		Subject: metaOf(left.name), Data: record,
		Header: nats.Header{jetstream.MsgRollup: {jetstream.MsgRollupSubject}},
	})
	if err != nil {
		return err
	}
	return s.acknowledged(ctx, left, 0)
}

// acknowledged waits until at most open messages are unacknowledged.
func (s *bodyStore) acknowledged(ctx context.Context, left *leftover, open int) error {
	if left.open <= open {
		return nil
	}
	step, stop := within(ctx)
	defer stop()
	for left.open > open {
		m, err := left.acks.NextMsgWithContext(step)
		if err == nil {
			left.open--
			err = ackError(m)
		} else if errors.Is(err, nats.ErrNoResponders) { // which the library makes of the server's 503
			left.open--
			err = errNoBucket
		}
		if err != nil {
			return s.failed(ctx, "write to", err)
		}
	}
	return nil
}

// ackError is why the server did not store a message.
func ackError(m *nats.Msg) error {
	var ack struct {
		Error *jetstream.APIError `json:"error"`
		// Stream is missing when something else than JetStream answered.
		Stream string `json:"stream"`
	}
	switch err := json.Unmarshal(m.Data, &ack); {
	case err != nil:
		return fmt.Errorf("an acknowledgement is malformed: %w", err)
	case ack.Error != nil:
		return ack.Error
	case ack.Stream != bodyStream:
		return fmt.Errorf("stream %q took a message that was not meant for it", ack.Stream)
	}
	return nil
}

func (l *leftover) close() {
	if l.acks != nil {
		_ = l.acks.Unsubscribe() // the connection is gone when it fails
		l.acks = nil
	}
}

// discard deletes what an upload left.
func (s *bodyStore) discard(ctx context.Context, left *leftover) error {
	defer left.close()
	for left.acks != nil && left.open > 0 {
		if _, err := left.acks.NextMsgWithContext(ctx); err != nil && !errors.Is(err, nats.ErrNoResponders) {
			break
		}
		left.open--
	}
	return s.remove(ctx, left.name)
}

func newObjectInfo(ref *contextwire.BodyRef, size, chunks int) *objectInfo {
	sum, _ := hex.DecodeString(ref.SHA256) // we wrote it
	return &objectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: ref.Name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: uint32(size)}}, //nolint:gosec // at most bodyChunk
		Bucket:     bodyBucket,
		NUID:       base64.RawURLEncoding.EncodeToString([]byte(ref.Name)),
		Size:       uint64(ref.Size), //nolint:gosec // a length
		Chunks:     uint32(chunks),   //nolint:gosec // a body has far fewer
		ModTime:    time.Now().UTC(),
		Digest:     "SHA-256=" + base64.URLEncoding.EncodeToString(sum),
	}
}
