package loop

import (
	"cmp"
	"encoding/hex"
	"slices"
	"strings"
	"time"
)

// maxCells is how many different keys one table of an analyzer holds.
const maxCells = 16 << 10

// table counts by key in bounded memory. While there are at most limit keys it holds
// them all. Beyond, it keeps those whose digest is below a threshold that halves as
// often as it must, so that what is left is complete for its keys, does not depend
// on the order of the records, and is a fair sample.
type table[V any] struct {
	cells  map[string]*V
	limit  int
	halved int
}

func newTable[V any](limit int) table[V] { return table[V]{cells: map[string]*V{}, limit: limit} }

// at returns the cell of a key, which is copied when it is kept; nil when the key
// is not in the sample.
func (t *table[V]) at(key []byte) *V {
	if c := t.cells[string(key)]; c != nil {
		return c
	}
	if t.halved > 0 && !sampled(key, t.halved) {
		return nil
	}
	c := new(V)
	t.cells[string(key)] = c
	for len(t.cells) > t.limit {
		t.halve()
	}
	return t.cells[string(key)]
}

func (t *table[V]) halve() {
	t.halved++
	for k := range t.cells {
		if !sampled([]byte(k), t.halved) {
			delete(t.cells, k)
		}
	}
}

// scale is by how much a count over the cells stands for all.
func (t *table[V]) scale() int { return 1 << t.halved }

// sorted lists the keys in order.
func (t *table[V]) sorted() []string {
	keys := make([]string, 0, len(t.cells))
	for k := range t.cells {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// sampled reports whether the digest of a key is below 2^-halved of its range.
func sampled(key []byte, halved int) bool { return digest(key)>>(64-min(halved, 63)) == 0 }

// digest is FNV-1a of 64 bits with a final mix, the same in every process.
func digest(key []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range key {
		h = (h ^ uint64(c)) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// digestText is digest of parts that cannot run into each other.
func digestText(parts ...string) uint64 {
	var room [256]byte
	return digest(joinKey(room[:0], parts...))
}

// unitSeparator stands between the parts of a key; clean text does not hold it.
const unitSeparator = 0x1f

// joinKey appends the parts of a key to dst.
func joinKey(dst []byte, parts ...string) []byte {
	for i, p := range parts {
		if i > 0 {
			dst = append(dst, unitSeparator)
		}
		dst = append(dst, p...)
	}
	return dst
}

// cited is one record in a sample: its time and hash.
type cited struct {
	at   int64
	hash [32]byte
}

func compareCited(a, b cited) int {
	if c := cmp.Compare(b.at, a.at); c != 0 {
		return c
	}
	return slices.Compare(a.hash[:], b.hash[:])
}

// sample is the newest records that were added, at most [MaxDraftEvidence], ties by
// hash. It does not depend on the order of adding.
type sample struct {
	list []cited
	// trimmed is true while the list is in order and no longer than it may be.
	trimmed bool
}

func (s *sample) add(r *Record) {
	var c cited
	c.at = r.CreatedAtMS
	if n, err := hex.Decode(c.hash[:], []byte(r.Hash)); err != nil || n != len(c.hash) {
		return
	}
	s.take(c)
}

func (s *sample) take(c cited) {
	s.list, s.trimmed = append(s.list, c), false
	if len(s.list) >= 2*MaxDraftEvidence {
		s.trim()
	}
}

func (s *sample) trim() {
	if s.trimmed {
		return
	}
	s.trimmed = true
	slices.SortFunc(s.list, compareCited)
	s.list = slices.Compact(s.list)
	if len(s.list) > MaxDraftEvidence {
		s.list = slices.Clip(s.list[:MaxDraftEvidence:MaxDraftEvidence])
	}
}

// merge adds what another sample holds.
func (s *sample) merge(o *sample) {
	s.trim()
	if len(o.list) == 0 || o.trimmed && len(s.list) == MaxDraftEvidence && compareCited(o.list[0], s.list[len(s.list)-1]) >= 0 {
		return // all of it is older
	}
	s.list, s.trimmed = append(s.list, o.list...), false
	s.trim()
}

// since drops what is older.
func (s *sample) since(ms int64) {
	s.list = slices.DeleteFunc(s.list, func(c cited) bool { return c.at < ms })
}

// hashes are the hashes, newest first.
func (s *sample) hashes() []string {
	s.trim()
	out := make([]string, len(s.list))
	for i, c := range s.list {
		out[i] = hex.EncodeToString(c.hash[:])
	}
	return out
}

// window is a stretch of time that ends now.
type window struct{ from, to int64 }

func windowOf(now time.Time, d time.Duration) window {
	return window{now.Add(-d).UnixMilli(), now.UnixMilli()}
}

func (w window) holds(r *Record) bool { return r.CreatedAtMS >= w.from && r.CreatedAtMS <= w.to }

// cuts are the times at which w begins to hold records, and ceases to.
func (w window) cuts() []int64 { return []int64{w.from, w.to + 1} }

func (w window) since() time.Time { return time.UnixMilli(w.from) }

// tally counts names of which there are few.
type tally map[string]int

func (t *tally) add(name string) {
	if *t == nil {
		*t = tally{}
	}
	if n, ok := (*t)[name]; ok {
		(*t)[name] = n + 1
		return
	}
	(*t)[strings.Clone(name)] = 1
}

// dominant is the most frequent name, of equals the smallest.
func (t tally) dominant() string {
	best, most := "", 0
	for k, n := range t {
		if n > most || (n == most && k < best) {
			best, most = k, n
		}
	}
	return best
}

// names lists the names, the most frequent first.
func (t tally) names() []string {
	names := make([]string, 0, len(t))
	for k := range t {
		names = append(names, k)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(t[b], t[a]), cmp.Compare(a, b)) })
	return names
}
