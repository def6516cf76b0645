package examples

import "sync"

// recent is a map of bounded size that forgets its oldest keys first. Its user
// guards it.
type recent[V any] struct {
	values map[string]V
	ring   []string // the keys in the order they came
	next   int      // where in ring the next key goes once it is full
	size   int
}

func newRecent[V any](size int) recent[V] {
	return recent[V]{values: map[string]V{}, size: size}
}

// put stores v under key. When that makes the oldest key forgotten, it returns
// what was stored there.
func (r *recent[V]) put(key string, v V) (forgotten V, forgot bool) {
	if _, known := r.values[key]; known || len(r.ring) < r.size {
		if !known {
			r.ring = append(r.ring, key)
		}
		r.values[key] = v
		return forgotten, false
	}
	oldest := r.ring[r.next]
	forgotten = r.values[oldest]
	delete(r.values, oldest)
	r.ring[r.next], r.values[key] = key, v
	r.next = (r.next + 1) % r.size
	return forgotten, true
}

// tally counts by key. It is safe for concurrent use.
type tally struct {
	mu     sync.Mutex
	counts recent[int64]
}

// keysKept bounds the keys of a tally.
const keysKept = 100_000

func newTally() *tally { return &tally{counts: newRecent[int64](keysKept)} }

// add counts key once more unless it was counted limit times already; limit 0
// is none. It returns the count and whether it grew.
func (t *tally) add(key string, limit int64) (count int64, grew bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	count = t.counts.values[key]
	if limit > 0 && count >= limit {
		return count, false
	}
	count++
	t.counts.put(key, count)
	return count, true
}
