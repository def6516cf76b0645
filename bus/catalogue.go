package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// The two buckets of the catalogue (wire protocol, section 11).
const (
	nodesBucket   = "APBUS_NODES"
	modulesBucket = "APBUS_MODULES"
)

const (
	// recordTTL is how long a node's record counts as live after it was written,
	// and after that how long it stays usable as stale.
	recordTTL = 15 * time.Second
	// recordEvery is how often a node writes its record.
	recordEvery = 5 * time.Second
)

// catalogue is the pair of buckets.
type catalogue struct {
	nodes, modules jetstream.KeyValue
}

// openCatalogue opens the buckets and makes them where they are missing.
func openCatalogue(ctx context.Context, js jetstream.JetStream, replicas int) (*catalogue, error) {
	nodes, err := openBucket(ctx, js, jetstream.KeyValueConfig{
		Bucket: nodesBucket, Description: "processes that host modules", History: 1,
		TTL: recordTTL, Storage: jetstream.MemoryStorage, Replicas: replicas,
	})
	if err != nil {
		return nil, err
	}
	modules, err := openBucket(ctx, js, jetstream.KeyValueConfig{
		Bucket: modulesBucket, Description: "descriptors by content hash", History: 1, Storage: jetstream.FileStorage,
		Replicas: replicas,
	})
	if err != nil {
		return nil, err
	}
	return &catalogue{nodes: nodes, modules: modules}, nil
}

func openBucket(ctx context.Context, js jetstream.JetStream, cfg jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	kv, err := js.KeyValue(ctx, cfg.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = js.CreateKeyValue(ctx, cfg)
		if errors.Is(err, jetstream.ErrBucketExists) { // another process was faster
			kv, err = js.KeyValue(ctx, cfg.Bucket)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", cfg.Bucket, err)
	}
	return kv, nil
}

// recordKey is the key of one process in the nodes bucket.
func recordKey(ns, node, boot string) string { return ns + "." + node + "." + boot }

// nodeRecordSubject matches the writes to the records of a namespace as they
// pass through the server.
func nodeRecordSubject(ns string) string { return "$KV." + nodesBucket + "." + ns + ".>" }

// moduleKey says in the modules bucket that a module has been hosted, so that
// one without a live host can be told from one that does not exist.
func moduleKey(id string) string { return "id." + id }

// putDescriptor stores a descriptor under its hash, once.
func (c *catalogue) putDescriptor(ctx context.Context, d module.Descriptor, hash string) error {
	body, err := contextwire.Encode(contextwire.JSON, d.Map())
	if err != nil {
		return fmt.Errorf("encode descriptor %s: %w", d.ID, err)
	}
	if _, err := c.modules.Create(ctx, hash, body); err != nil && !errors.Is(err, jetstream.ErrKeyExists) {
		return fmt.Errorf("store descriptor %s: %w", d.ID, err)
	}
	if _, err := c.modules.Create(ctx, moduleKey(d.ID), []byte(hash)); err != nil && !errors.Is(err, jetstream.ErrKeyExists) {
		return fmt.Errorf("store module %s: %w", d.ID, err)
	}
	return nil
}

// descriptor reads a descriptor and makes sure that it is the one hash names.
func (c *catalogue) descriptor(ctx context.Context, hash string) (module.Descriptor, error) {
	entry, err := c.modules.Get(ctx, hash)
	if err != nil {
		return module.Descriptor{}, fmt.Errorf("read descriptor: %w", err)
	}
	m, err := contextwire.DecodeMap(contextwire.JSON, entry.Value(), contextwire.DefaultLimits())
	if err != nil {
		return module.Descriptor{}, fmt.Errorf("read descriptor: %w", err)
	}
	d, err := module.DescriptorFromMap(m)
	if err != nil {
		return module.Descriptor{}, fmt.Errorf("read descriptor: %w", err)
	}
	if d.Hash() != hash {
		return module.Descriptor{}, module.Errorf(module.CodeBusBadMessage, "the descriptor is not the one its hash names")
	}
	return d, nil
}

// records lists the live records of a namespace.
func (c *catalogue) records(ctx context.Context, ns string) ([]contextwire.NodeRecord, error) {
	w, err := c.nodes.Watch(ctx, ns+".>", jetstream.IgnoreDeletes())
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	defer func() { _ = w.Stop() }() // nothing can be done about a watcher that will not stop
	var out []contextwire.NodeRecord
	for {
		select {
		case entry := <-w.Updates():
			if entry == nil { // everything stored has been seen
				return out, nil
			}
			if r, err := decodeRecord(entry.Value()); err == nil {
				out = append(out, r)
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("list nodes: %w", context.Cause(ctx))
		}
	}
}

func decodeRecord(body []byte) (contextwire.NodeRecord, error) {
	r, err := contextwire.DecodeNodeRecord(body, contextwire.JSON, contextwire.DefaultLimits())
	if err != nil {
		return contextwire.NodeRecord{}, err
	}
	if !isToken(r.Node, 64) || !isToken(strings.ToLower(r.Boot), 64) {
		return contextwire.NodeRecord{}, module.Errorf(module.CodeBusBadMessage, "node record names no process")
	}
	return *r, nil
}
