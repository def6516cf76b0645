package looptest

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/apbus/apbus/loop"
)

// ErrCrash is what a [Faulty] store fails with.
var ErrCrash = errors.New("looptest: the store is gone")

// Faulty is a store that fails from a chosen write on, as if the process had been
// killed there: that write takes place or does not, as chosen, and every call after
// it fails. It is safe for concurrent use.
type Faulty struct {
	loop.Store

	mu     sync.Mutex
	writes int
	at     int
	after  bool
	dead   bool
}

// NewFaulty makes a store that dies at write number at, counted from 1; 0 for
// never. With after the write takes place, without its answer.
func NewFaulty(s loop.Store, at int, after bool) *Faulty {
	return &Faulty{Store: s, at: at, after: after}
}

// Writes counts the writes so far.
func (f *Faulty) Writes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes
}

// Died reports whether the fault has happened.
func (f *Faulty) Died() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dead
}

// write counts a write: whether to do it, and whether to answer.
func (f *Faulty) write() (do, answer bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return false, false
	}
	if f.writes++; f.writes != f.at {
		return true, true
	}
	f.dead = true
	return f.after, false
}

// Get implements [loop.Store].
func (f *Faulty) Get(ctx context.Context, b loop.Bucket, key string) (loop.Entry, error) {
	if f.Died() {
		return loop.Entry{}, ErrCrash
	}
	return f.Store.Get(ctx, b, key)
}

// Put implements [loop.Store].
func (f *Faulty) Put(ctx context.Context, b loop.Bucket, key string, value []byte, rev uint64) (uint64, error) {
	do, answer := f.write()
	if !do {
		return 0, ErrCrash
	}
	n, err := f.Store.Put(ctx, b, key, value, rev)
	if !answer {
		return 0, ErrCrash
	}
	return n, err
}

// Append implements [loop.Store].
func (f *Faulty) Append(ctx context.Context, log string, entry []byte, after uint64) (uint64, error) {
	do, answer := f.write()
	if !do {
		return 0, ErrCrash
	}
	n, err := f.Store.Append(ctx, log, entry, after)
	if !answer {
		return 0, ErrCrash
	}
	return n, err
}

// List implements [loop.Store].
func (f *Faulty) List(ctx context.Context, b loop.Bucket) iter.Seq2[loop.Entry, error] {
	if f.Died() {
		return crashed
	}
	return f.Store.List(ctx, b)
}

// Log implements [loop.Store].
func (f *Faulty) Log(ctx context.Context, log string) iter.Seq2[loop.Entry, error] {
	if f.Died() {
		return crashed
	}
	return f.Store.Log(ctx, log)
}

func crashed(yield func(loop.Entry, error) bool) { yield(loop.Entry{}, ErrCrash) }

// Lock implements [loop.Store]; a lock is no write, and dies with its holder.
func (f *Faulty) Lock(ctx context.Context, name string, ttl time.Duration) (func(context.Context) error, error) {
	if f.Died() {
		return nil, ErrCrash
	}
	return f.Store.Lock(ctx, name, ttl)
}
