package loop

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"
)

// MemStore is a [Store] in memory. Locks end by the clock of the process. The zero
// value is not usable; see [NewMemStore].
type MemStore struct {
	mu    sync.Mutex
	rev   uint64
	kv    map[Bucket]map[string]Entry
	logs  map[string][]Entry
	locks map[string]*memLock
}

type memLock struct{ until time.Time }

var _ Store = (*MemStore)(nil)

// NewMemStore makes an empty store.
func NewMemStore() *MemStore {
	return &MemStore{kv: make(map[Bucket]map[string]Entry), logs: make(map[string][]Entry), locks: make(map[string]*memLock)}
}

func checkKey(key string, value []byte) error {
	if !onlyOf(key, 128, "._-") {
		return fmt.Errorf("store: key %.140q is not allowed", key)
	}
	if len(value) > MaxStoreValue {
		return fmt.Errorf("store: value of %d bytes is over the limit of %d", len(value), MaxStoreValue)
	}
	return nil
}

// Get implements [Store].
func (s *MemStore) Get(ctx context.Context, b Bucket, key string) (Entry, error) {
	if err := checkKey(key, nil); err != nil {
		return Entry{}, err
	}
	if ctx.Err() != nil {
		return Entry{}, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.kv[b][key]
	if !ok {
		return Entry{Key: key}, nil
	}
	e.Value = bytes.Clone(e.Value)
	return e, nil
}

// Put implements [Store].
func (s *MemStore) Put(ctx context.Context, b Bucket, key string, value []byte, rev uint64) (uint64, error) {
	if err := checkKey(key, value); err != nil {
		return 0, err
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kv[b][key].Rev != rev {
		return 0, ErrConflict
	}
	if s.kv[b] == nil {
		s.kv[b] = make(map[string]Entry)
	}
	s.rev++
	s.kv[b][key] = Entry{Key: key, Value: bytes.Clone(value), Rev: s.rev}
	return s.rev, nil
}

// List implements [Store], in the order of keys.
func (s *MemStore) List(ctx context.Context, b Bucket) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		s.mu.Lock()
		var all []Entry
		for _, key := range slices.Sorted(maps.Keys(s.kv[b])) {
			e := s.kv[b][key]
			e.Value = bytes.Clone(e.Value)
			all = append(all, e)
		}
		s.mu.Unlock()
		each(ctx, all, yield)
	}
}

// Append implements [Store].
func (s *MemStore) Append(ctx context.Context, log string, entry []byte, after uint64) (uint64, error) {
	if err := checkKey(log, entry); err != nil {
		return 0, err
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last := uint64(0)
	if n := len(s.logs[log]); n > 0 {
		last = s.logs[log][n-1].Rev
	}
	if last != after {
		return 0, ErrConflict
	}
	s.rev++
	s.logs[log] = append(s.logs[log], Entry{Key: log, Value: bytes.Clone(entry), Rev: s.rev})
	return s.rev, nil
}

// Log implements [Store], in the order of names.
func (s *MemStore) Log(ctx context.Context, log string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		s.mu.Lock()
		var all []Entry
		if log != "" {
			all = slices.Clone(s.logs[log])
		} else {
			for _, name := range slices.Sorted(maps.Keys(s.logs)) {
				all = append(all, s.logs[name]...)
			}
		}
		for i := range all {
			all[i].Value = bytes.Clone(all[i].Value)
		}
		s.mu.Unlock()
		each(ctx, all, yield)
	}
}

func each(ctx context.Context, all []Entry, yield func(Entry, error) bool) {
	for _, e := range all {
		if ctx.Err() != nil {
			yield(Entry{}, context.Cause(ctx))
			return
		}
		if !yield(e, nil) {
			return
		}
	}
}

// Lock implements [Store].
func (s *MemStore) Lock(ctx context.Context, name string, ttl time.Duration) (func(context.Context) error, error) {
	if err := checkKey(name, nil); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if l := s.locks[name]; l != nil && now.Before(l.until) {
		return nil, ErrLocked
	}
	mine := &memLock{until: now.Add(ttl)}
	s.locks[name] = mine
	return func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.locks[name] == mine {
			delete(s.locks, name)
		}
		return nil
	}, nil
}
