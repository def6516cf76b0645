package loop

import (
	"context"
	"errors"
	"iter"
	"time"
)

// Bucket is one part of a [Store].
type Bucket string

// The buckets.
const (
	// BucketRecs holds the bodies of recommendations by hash; they never change.
	BucketRecs Bucket = "recs"
	// BucketState holds the state of the loop and the configuration of analyzers.
	BucketState Bucket = "state"
	// BucketKnowledge holds what applied recommendations left, one document a name.
	BucketKnowledge Bucket = "knowledge"
)

// Entry is one value of a bucket or one entry of a log.
type Entry struct {
	// Key is the key, or the name of the log.
	Key   string
	Value []byte
	// Rev is the revision of the value, or the sequence of the log entry: above 0
	// and rising within one key.
	Rev uint64
}

// Store is where the engine writes. Every write is a compare-and-set on one key,
// so that any number of engines may share it, and no write needs another one
// beside it. Keys and names of logs are 1 to 128 of [A-Za-z0-9._-]; values are at
// most [MaxStoreValue] bytes. Implementations are safe for concurrent use, copy
// what they are given, and pass looptest.TestStore. An error that is neither
// [ErrConflict] nor [ErrLocked] leaves open whether the write took place.
type Store interface {
	// Get returns the value under a key; an Entry with Rev 0 when there is none.
	Get(ctx context.Context, b Bucket, key string) (Entry, error)
	// Put writes a value when the key's revision is rev, 0 for a key that does not
	// exist, and returns the new revision; else it fails with ErrConflict.
	Put(ctx context.Context, b Bucket, key string, value []byte, rev uint64) (uint64, error)
	// List ranges over the newest values of a bucket in any order. An error ends it.
	List(ctx context.Context, b Bucket) iter.Seq2[Entry, error]
	// Append adds an entry to a log when the log's last sequence is after, 0 for an
	// empty log, and returns its sequence; else it fails with ErrConflict.
	Append(ctx context.Context, log string, entry []byte, after uint64) (uint64, error)
	// Log ranges over the entries of one log in order, or with "" over those of all
	// logs, in order within each.
	Log(ctx context.Context, log string) iter.Seq2[Entry, error]
	// Lock takes a lock that ends by itself after ttl, or fails with ErrLocked at
	// once when somebody holds it. unlock gives it back, and only if it is still held
	// by this call.
	Lock(ctx context.Context, name string, ttl time.Duration) (unlock func(context.Context) error, err error)
}

// MaxStoreValue is the largest value of a [Store] in bytes.
const MaxStoreValue = 512 << 10

var (
	// ErrConflict says that a compare-and-set met another revision.
	ErrConflict = errors.New("the revision has changed")
	// ErrLocked says that a lock is held by somebody else.
	ErrLocked = errors.New("the lock is held")
)
