package approval

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/apbus/apbus/module"
)

// MemStore is a [Store] in this process. It is safe for concurrent use and needs
// no shutdown.
type MemStore struct {
	most int

	mu       sync.Mutex
	entries  map[string]Entry
	order    []string // IDs, oldest first; may name records that are gone
	revision uint64
	changed  chan struct{} // closed and replaced with every write
}

var _ Store = (*MemStore)(nil)

// NewMemStore makes an empty store that holds most records, 10,000 when zero.
// Finished ones make room, oldest first; open ones never do.
func NewMemStore(most int) *MemStore {
	if most <= 0 {
		most = 10_000
	}
	return &MemStore{most: most, entries: map[string]Entry{}, changed: make(chan struct{})}
}

// Create stores a new record.
func (s *MemStore) Create(_ context.Context, r Record) (uint64, error) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.entries[r.ID]; taken {
		return 0, ErrExists
	}
	if len(s.entries) >= s.most && !s.evictLocked(now) {
		return 0, module.Errorf(module.CodeTaskLimitExceeded, "%d approval requests are open, the limit", len(s.entries))
	}
	s.order = append(s.order, r.ID)
	return s.putLocked(r), nil
}

// Get returns a record.
func (s *MemStore) Get(_ context.Context, id string) (Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[id]
	if !ok {
		return Entry{}, ErrNotFound
	}
	return e.copy(), nil
}

// Update replaces a record.
func (s *MemStore) Update(_ context.Context, r Record, revision uint64) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[r.ID]
	switch {
	case !ok:
		return 0, ErrNotFound
	case e.Revision != revision:
		return 0, ErrConflict
	}
	return s.putLocked(r), nil
}

// List returns a page.
func (s *MemStore) List(_ context.Context, f Filter) (Page, error) {
	s.mu.Lock()
	all := make([]Record, 0, len(s.entries))
	for _, e := range s.entries {
		all = append(all, e.Record)
	}
	s.mu.Unlock()
	page, err := f.Page(all, time.Now())
	for i, r := range page.Records {
		page.Records[i] = r.copy()
	}
	return page, err
}

// Watch follows the store. Every change costs a look at every record unless id
// says which.
func (s *MemStore) Watch(ctx context.Context, id string, after uint64) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		seen := after
		for ctx.Err() == nil {
			fresh, changed := s.since(id, seen)
			for _, e := range fresh {
				if ctx.Err() != nil || !yield(e, nil) {
					return
				}
				seen = e.Revision
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}
}

// since returns what was written after a revision, and a channel that is closed
// with the next write.
func (s *MemStore) since(id string, after uint64) ([]Entry, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var fresh []Entry
	add := func(e Entry) {
		if e.Revision > after {
			fresh = append(fresh, e.copy())
		}
	}
	if id != "" {
		add(s.entries[id]) // none has revision 0
		return fresh, s.changed
	}
	for _, e := range s.entries {
		add(e)
	}
	slices.SortFunc(fresh, func(a, b Entry) int { return cmp.Compare(a.Revision, b.Revision) })
	return fresh, s.changed
}

func (s *MemStore) putLocked(r Record) uint64 {
	s.revision++
	s.entries[r.ID] = Entry{r.copy(), s.revision}
	close(s.changed)
	s.changed = make(chan struct{})
	return s.revision
}

// evictLocked drops the oldest tenth of the limit, at least one, of the
// finished records, so that a full store does not pay for a walk at every
// request. It reports whether anything went.
func (s *MemStore) evictLocked(now time.Time) bool {
	quota := max(1, s.most/10)
	kept := s.order[:0]
	dropped := false
	for _, id := range s.order {
		if quota > 0 && s.entries[id].Record.At(now).State.Final() {
			delete(s.entries, id)
			quota--
			dropped = true
			continue
		}
		kept = append(kept, id)
	}
	clear(s.order[len(kept):])
	s.order = kept
	return dropped
}

func (e Entry) copy() Entry { return Entry{e.Record.copy(), e.Revision} }

// copy copies what a reader could change.
func (r Record) copy() Record {
	r.Inputs = maps.Clone(r.Inputs)
	r.Changes = slices.Clone(r.Changes)
	r.Warnings = slices.Clone(r.Warnings)
	r.Tags = slices.Clone(r.Tags)
	r.Enrichers = slices.Clone(r.Enrichers)
	r.CallChain = slices.Clone(r.CallChain)
	return r
}
