package task

import "encoding/binary"

// shards is how many parts the table has. IDs are random, so that parts grow one at
// a time and none holds the writer up for longer than a thousandth of a second.
const shards = 256

// table finds the item of an ID in 12 to 24 bytes, where a map of IDs takes 50 and
// more.
type table struct {
	shard [shards]shard
	n     int
}

// shard is an open hash table with linear probing. It has a power of two of places, of
// which at most two thirds are taken.
type shard struct {
	slots []*item
	n     int
}

// leastSlots is the size of a shard that has items.
const leastSlots = 8

// home is where an item belongs. The first eight bytes of an ID are random, all but
// six bits.
func (s *shard) home(id taskID) int {
	return int(binary.LittleEndian.Uint64(id[:])>>8) & (len(s.slots) - 1)
}

func (t *table) of(id taskID) *shard { return &t.shard[id[0]] }

// get returns the item of an ID, nil when there is none.
func (t *table) get(id taskID) *item {
	s := t.of(id)
	if s.n == 0 {
		return nil
	}
	for i := s.home(id); s.slots[i] != nil; i = (i + 1) & (len(s.slots) - 1) {
		if s.slots[i].id == id {
			return s.slots[i]
		}
	}
	return nil
}

// put adds an item, whose ID has none.
func (t *table) put(it *item) {
	s := t.of(it.id)
	if 3*(s.n+1) > 2*len(s.slots) {
		s.resize(max(2*len(s.slots), leastSlots))
	}
	s.place(it)
	s.n++
	t.n++
}

func (s *shard) place(it *item) {
	i := s.home(it.id)
	for s.slots[i] != nil {
		i = (i + 1) & (len(s.slots) - 1)
	}
	s.slots[i] = it
}

func (s *shard) resize(n int) {
	old := s.slots
	s.slots = make([]*item, n)
	for _, it := range old {
		if it != nil {
			s.place(it)
		}
	}
}

// remove takes the item of an ID out. Those behind it move up, so that each is still
// found from its home. A shard that has become much too large is made smaller.
func (t *table) remove(id taskID) {
	s := t.of(id)
	if s.n == 0 {
		return
	}
	mask := len(s.slots) - 1
	i := s.home(id)
	for ; s.slots[i] == nil || s.slots[i].id != id; i = (i + 1) & mask {
		if s.slots[i] == nil {
			return
		}
	}
	for j := (i + 1) & mask; s.slots[j] != nil; j = (j + 1) & mask {
		// What lies at j may move to the gap at i unless its home is between them.
		if home := s.home(s.slots[j].id); (j-home)&mask >= (j-i)&mask {
			s.slots[i], i = s.slots[j], j
		}
	}
	s.slots[i] = nil
	s.n--
	t.n--
	switch {
	case s.n == 0:
		s.slots = nil
	case len(s.slots) > leastSlots && 8*s.n < len(s.slots):
		s.resize(len(s.slots) / 2)
	}
}
