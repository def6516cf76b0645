package jetstream

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

const (
	// ObjectStore is the Store of a result that lies in the object store.
	ObjectStore = "object"
	// maxInLog is the largest output that travels and is kept in the log; a larger
	// one goes to the object store (durable design, rule 10).
	maxInLog = 512 << 10
	// maxBlob is the largest body or output there is.
	maxBlob = 64 << 20

	// bodiesKept is how long a body is kept that its reader did not remove.
	bodiesKept = 10 * time.Minute
	// resultsKept is how long outputs are kept: a day longer than the longest that
	// package task keeps a record by default.
	resultsKept = 8 * 24 * time.Hour
)

// blobs are the two buckets of a namespace: bodies of requests on their way, and
// outputs of tasks. Safe for concurrent use.
type blobs struct {
	js              natsjs.JetStream
	bodies, results bucket
	log             *slog.Logger

	mu   sync.Mutex
	open map[string]natsjs.ObjectStore
}

type bucket struct {
	name     string
	kept     time.Duration
	replicas int
	about    string
}

func newBlobs(o *Options) *blobs {
	return &blobs{
		js: o.JS, log: o.Logger, open: map[string]natsjs.ObjectStore{},
		bodies: bucket{o.Stream + "_BODIES", bodiesKept, max(1, o.Replicas),
			"Requests about tasks of Apbus, and answers, that are too large for a message."},
		results: bucket{o.Stream + "_RESULTS", resultsKept, max(1, o.Replicas),
			"Outputs of tasks of Apbus over 512 KiB."},
	}
}

// store opens a bucket, which is made when it is used first.
func (b *blobs) store(ctx context.Context, bk bucket) (natsjs.ObjectStore, error) {
	b.mu.Lock()
	os := b.open[bk.name]
	b.mu.Unlock()
	if os != nil {
		return os, nil
	}
	os, err := b.js.ObjectStore(ctx, bk.name)
	if errors.Is(err, natsjs.ErrBucketNotFound) || errors.Is(err, natsjs.ErrStreamNotFound) {
		os, err = b.js.CreateObjectStore(ctx, natsjs.ObjectStoreConfig{
			Bucket: bk.name, Description: bk.about, TTL: bk.kept, Replicas: bk.replicas, Storage: natsjs.FileStorage,
		})
		if errors.Is(err, natsjs.ErrBucketExists) {
			os, err = b.js.ObjectStore(ctx, bk.name)
		}
	}
	if err != nil {
		return nil, unavailable(fmt.Errorf("object store %s: %w", bk.name, withCause(ctx, err)))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open[bk.name] = os
	return os, nil
}

// put stores a body under a name. The same body under the same name is stored once.
func (b *blobs) put(ctx context.Context, bk bucket, name string, body []byte) (*contextwire.BodyRef, error) {
	if len(body) > maxBlob {
		return nil, contextwire.TooLarge(int64(len(body)), maxBlob)
	}
	os, err := b.store(ctx, bk)
	if err != nil {
		return nil, err
	}
	ref := contextwire.NewBodyRef(name, body)
	if info, err := os.GetInfo(ctx, name); err == nil && info.Digest == digestOf(ref) && int64(info.Size) == ref.Size { //nolint:gosec // a size below maxBlob
		return ref, nil
	}
	if _, err := os.PutBytes(ctx, name, body); err != nil {
		return nil, unavailable(fmt.Errorf("store in %s: %w", bk.name, withCause(ctx, err)))
	}
	return ref, nil
}

// digestOf is a digest as the object store writes it.
func digestOf(ref *contextwire.BodyRef) string {
	sum, err := hex.DecodeString(ref.SHA256)
	if err != nil {
		return ""
	}
	return "SHA-256=" + base64.URLEncoding.EncodeToString(sum)
}

// get reads a body and makes sure that it is the one that was referred to. One that
// is not there, or no longer, is TASK_EXPIRED.
func (b *blobs) get(ctx context.Context, bk bucket, ref contextwire.BodyRef) ([]byte, error) {
	if ref.Size > maxBlob {
		return nil, contextwire.TooLarge(ref.Size, maxBlob)
	}
	os, err := b.store(ctx, bk)
	if err != nil {
		return nil, err
	}
	var body []byte
	// A replica may lag behind the one that was written to.
	for wait := 10 * time.Millisecond; ; wait *= 2 {
		body, err = os.GetBytes(ctx, ref.Name)
		if !errors.Is(err, natsjs.ErrObjectNotFound) || wait > time.Second || !replicated(ctx, os) {
			break
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(wait):
		}
	}
	if errors.Is(err, natsjs.ErrObjectNotFound) {
		return nil, module.Errorf(module.CodeTaskExpired, "the object store no longer has what belongs to this task")
	}
	if err != nil {
		return nil, unavailable(fmt.Errorf("read from %s: %w", bk.name, withCause(ctx, err)))
	}
	if err := ref.Check(body); err != nil {
		return nil, err
	}
	return body, nil
}

// replicated reports whether a bucket is, whoever made it.
func replicated(ctx context.Context, os natsjs.ObjectStore) bool {
	status, err := os.Status(ctx)
	return err == nil && status.Replicas() > 1
}

// remove deletes a body; what stays behind expires.
func (b *blobs) remove(ctx context.Context, bk bucket, name string) {
	os, err := b.store(ctx, bk)
	if err == nil {
		err = os.Delete(ctx, name)
	}
	if err != nil && !errors.Is(err, natsjs.ErrObjectNotFound) {
		b.log.Debug("an object is left to expire", "bucket", bk.name, "cause", err)
	}
}
