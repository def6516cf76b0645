package loop

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
)

// MemReader holds records in memory. It is safe for concurrent use; what is added
// while somebody reads may or may not be read.
type MemReader struct {
	mu      sync.RWMutex
	records []*Record
	byHash  map[string]*Record
}

var _ Reader = (*MemReader)(nil)

// NewMemReader makes a reader of records, which it keeps.
func NewMemReader(records ...*Record) *MemReader {
	m := &MemReader{byHash: map[string]*Record{}}
	m.Add(records...)
	return m
}

// Add adds records. One whose hash is there already is not added again.
func (m *MemReader) Add(records ...*Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range records {
		if m.byHash[r.Hash] != nil {
			continue
		}
		m.byHash[r.Hash] = r
		m.records = append(m.records, r)
	}
	slices.SortStableFunc(m.records, func(a, b *Record) int { return cmp.Compare(a.Seq, b.Seq) })
}

// Records implements [Reader].
func (m *MemReader) Records(ctx context.Context, q Query) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		m.mu.RLock()
		records := slices.Clone(m.records)
		m.mu.RUnlock()
		for _, r := range records {
			if ctx.Err() != nil {
				yield(nil, context.Cause(ctx))
				return
			}
			if q.Wants(r) && !yield(r, nil) {
				return
			}
		}
	}
}

// ByHash implements [Reader].
func (m *MemReader) ByHash(_ context.Context, hashes []string) (map[string]*Record, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	found := make(map[string]*Record, len(hashes))
	for _, h := range hashes {
		if r := m.byHash[h]; r != nil {
			found[h] = r
		}
	}
	return found, nil
}

// Count implements [Reader].
func (m *MemReader) Count(_ context.Context, q Query) (Counts, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var c Counts
	for _, r := range m.records {
		c.LastSeq = max(c.LastSeq, r.Seq)
		if r.Evidence != nil && q.Wants(r) {
			c.Records++
			if Failed(r.Evidence.Outcome) {
				c.Errors++
			}
		}
	}
	return c, nil
}

// JoinReaders makes one reader of several, each of which has records of its own:
// evidence of one, knowledge of another, snapshots of a third. They are read one
// after the other.
func JoinReaders(readers ...Reader) Reader { return joined(slices.Clone(readers)) }

type joined []Reader

// Records implements [Reader].
func (j joined) Records(ctx context.Context, q Query) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		for _, rd := range j {
			for r, err := range rd.Records(ctx, q) {
				if !yield(r, err) || err != nil {
					return
				}
			}
		}
	}
}

// Extent implements [Extender], if it is one of its readers only that does.
func (j joined) Extent(ctx context.Context) (Extent, error) {
	var found Extent
	for _, rd := range j {
		x, ok := rd.(Extender)
		if !ok {
			continue
		}
		e, err := x.Extent(ctx)
		if err != nil || e.Stream != "" && found.Stream != "" {
			return Extent{}, err
		}
		if e.Stream != "" {
			found = e
		}
	}
	return found, nil
}

// ByHash implements [Reader].
func (j joined) ByHash(ctx context.Context, hashes []string) (map[string]*Record, error) {
	found := make(map[string]*Record, len(hashes))
	for _, rd := range j {
		some, err := rd.ByHash(ctx, hashes)
		if err != nil {
			return nil, err
		}
		maps.Copy(found, some)
	}
	return found, nil
}

// Count implements [Reader].
func (j joined) Count(ctx context.Context, q Query) (Counts, error) {
	var sum Counts
	for _, rd := range j {
		c, err := rd.Count(ctx, q)
		if err != nil {
			return Counts{}, err
		}
		sum.Records, sum.Errors = sum.Records+c.Records, sum.Errors+c.Errors
		sum.Partial = sum.Partial || c.Partial
		sum.LastSeq = max(sum.LastSeq, c.LastSeq)
	}
	return sum, nil
}
