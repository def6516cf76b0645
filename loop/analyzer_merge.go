package loop

import (
	"slices"
	"strings"
	"unsafe"
)

// mergeable is a [Pass] whose result can be put together from passes over parts of
// the evidence: what one was given depends on nothing but which records it was given,
// and on which side of its cuts they lie.
type mergeable interface {
	Pass
	// cuts are the times, in Unix milliseconds, at which Add begins to treat evidence
	// otherwise, in any order. Two records between the same two of them are treated
	// alike, whatever the time of the pass.
	cuts() []int64
	// merge takes what another pass of the same analyzer with the same parameters was
	// given. It neither changes nor keeps the other.
	merge(o mergeable)
	// settle makes the pass as small as it can be, to be kept, and estimates its size in
	// bytes. It can be added to and merged afterwards.
	settle() int
}

// merge takes the cells of another table of the same limit, as if their records had
// been added here: which keys are sampled follows from the keys alone.
func (t *table[V]) merge(o *table[V], add func(to, from *V)) {
	for t.halved < o.halved {
		t.halve()
	}
	for key, from := range o.cells {
		to := t.cells[key]
		if to == nil {
			if t.halved > o.halved && !sampled([]byte(key), t.halved) {
				continue
			}
			to = new(V)
			t.cells[key] = to
		}
		add(to, from)
		for len(t.cells) > t.limit {
			t.halve()
		}
	}
}

// cellOverhead is about what a map needs for an entry beside key and cell.
const cellOverhead = 48

// settle settles the cells with inner, nil for cells that hold nothing beside
// themselves, and estimates the size of all.
func (t *table[V]) settle(inner func(*V) int) int {
	size := 0
	for key, c := range t.cells {
		size += len(key) + cellOverhead + int(unsafe.Sizeof(*c))
		if inner != nil {
			size += inner(c)
		}
	}
	return size
}

func (s *sample) settle() int {
	s.trim()
	s.list = slices.Clip(s.list)
	return len(s.list) * int(unsafe.Sizeof(cited{}))
}

func (t *tally) merge(o tally) {
	if *t == nil && len(o) > 0 {
		*t = tally{}
	}
	for name, n := range o {
		(*t)[name] += n
	}
}

func (t tally) settle() int {
	size := 0
	for name := range t {
		size += len(name) + cellOverhead
	}
	return size
}

func (h *histogram) merge(o *histogram) {
	if h.buckets == nil && len(o.buckets) > 0 {
		h.buckets = map[int16]int{}
	}
	h.n += o.n
	for b, n := range o.buckets {
		h.buckets[b] += n
	}
}

func (h *histogram) settle() int { return len(h.buckets) * 2 * int(unsafe.Sizeof(h.n)) }

// sum merges counts.
func sum(to, from *int) { *to += *from }

// names holds one copy of each name that is kept, however often it is. It is not part
// of any result.
type names map[string]string

func (n *names) of(s string) string {
	if known, ok := (*n)[s]; ok {
		return known
	}
	if *n == nil || len(*n) > maxCells {
		*n = names{}
	}
	s = strings.Clone(s)
	(*n)[s] = s
	return s
}
