package task

import (
	"bytes"
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// MemLog is a log in memory, for tests and for programs that need no durability. It
// fences like a durable one: a [MemLog] has views, of which the last one taken leads.
// The zero value is not usable; see [NewMemLog].
type MemLog struct {
	mu      sync.Mutex
	entries map[string]memEntry
	seq     uint64
	leader  int
}

type memEntry struct {
	body    []byte
	seq     uint64
	expires time.Time
}

// NewMemLog makes an empty log.
func NewMemLog() *MemLog { return &MemLog{entries: make(map[string]memEntry)} }

// Lead returns the log as a new leader sees it, and deposes the one before.
func (m *MemLog) Lead() Log {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leader++
	return &memView{m, m.leader}
}

// Len returns how many keys it holds.
func (m *MemLog) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.entries)
}

type memView struct {
	m    *MemLog
	term int
}

var _ Log = (*memView)(nil)

func (v *memView) Load(ctx context.Context, prefixes ...string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for _, e := range v.m.snapshot(prefixes) {
			if err := context.Cause(ctx); err != nil {
				yield(Entry{}, err)
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// snapshot returns the live entries under prefixes in the order of their last
// writes.
func (m *MemLog) snapshot(prefixes []string) []Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(m.entries, func(_ string, e memEntry) bool { return e.over(now) })
	var list []Entry
	for key, e := range m.entries {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) }) {
			list = append(list, Entry{Key: key, Body: e.body, Seq: e.seq})
		}
	}
	slices.SortFunc(list, func(a, b Entry) int { return int(a.Seq) - int(b.Seq) })
	return list
}

func (e memEntry) over(now time.Time) bool { return !e.expires.IsZero() && !now.Before(e.expires) }

func (v *memView) Commit(ctx context.Context, entries []Entry) error {
	v.m.mu.Lock()
	defer v.m.mu.Unlock()
	if v.term != v.m.leader {
		return ErrDeposed
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	now := time.Now()
	for _, e := range entries {
		v.m.seq++
		if e.Delete {
			delete(v.m.entries, e.Key)
			continue
		}
		me := memEntry{body: bytes.Clone(e.Body), seq: v.m.seq}
		if e.TTL > 0 {
			me.expires = now.Add(e.TTL)
		}
		v.m.entries[e.Key] = me
	}
	return nil
}

func (v *memView) Get(ctx context.Context, key string) (Entry, bool, error) {
	if err := context.Cause(ctx); err != nil {
		return Entry{}, false, err
	}
	v.m.mu.Lock()
	defer v.m.mu.Unlock()
	e, ok := v.m.entries[key]
	if !ok || e.over(time.Now()) {
		return Entry{}, false, nil
	}
	return Entry{Key: key, Body: e.body, Seq: e.seq}, true, nil
}
