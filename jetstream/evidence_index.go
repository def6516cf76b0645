package jetstream

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
)

// maxIndexed is how many records the index holds; beyond it begins anew with the
// newest.
const maxIndexed = 4 << 20

// evidenceIndex finds records by hash. It is filled when it is first asked, and from
// then on reads only what has come since.
type evidenceIndex struct {
	mu   sync.Mutex
	at   map[uint64]uint64 // the first 8 bytes of the hash, to the sequence
	next uint64            // the first sequence it has not seen
}

// startIndex tells an index that has seen nothing where the stream begins, so that it can
// go on from there. It costs a request the first time.
func (s *EvidenceStore) startIndex(ctx context.Context) {
	x := &s.index
	if !x.mu.TryLock() {
		return
	}
	fresh := x.next == 0
	x.mu.Unlock()
	if !fresh {
		return
	}
	first, _, err := s.bounds(ctx)
	if err != nil || !x.mu.TryLock() {
		return // it is filled when it is asked
	}
	defer x.mu.Unlock()
	x.next = max(x.next, first)
}

// put notes a record; the lock is held.
func (x *evidenceIndex) put(key, seq uint64) {
	if len(x.at) >= maxIndexed {
		x.at = map[uint64]uint64{}
	}
	x.at[key] = seq
}

// indexNotes are records that somebody reads in the order of the stream, on their way
// into the index. They are of use where the index goes on. A nil one takes none.
type indexNotes struct {
	x    *evidenceIndex
	keys []uint64
	from uint64 // sequence of the first key
	next uint64 // the sequence after the last one
}

// indexNoted is how many notes are taken into the index at a time.
const indexNoted = 4096

func (x *evidenceIndex) begin() *indexNotes {
	return &indexNotes{x: x, keys: make([]uint64, 0, indexNoted)}
}

// add notes a record. hash is "" for one that cannot be read.
func (n *indexNotes) add(hash string, seq uint64) {
	if n == nil {
		return
	}
	if len(n.keys) > 0 && seq != n.next || len(n.keys) == cap(n.keys) {
		n.end()
	}
	if len(n.keys) == 0 {
		n.from = seq
	}
	key, _ := indexKey(hash) // 0 is a place that nobody asks for
	n.keys, n.next = append(n.keys, key), seq+1
}

// end takes what is noted into the index, if it goes on there. Nobody waits for it:
// while somebody fills the index it does so without these notes.
func (n *indexNotes) end() {
	if n == nil || len(n.keys) == 0 {
		return
	}
	if n.x.mu.TryLock() {
		if x := n.x; n.from <= x.next && n.next > x.next {
			for i, key := range n.keys {
				x.put(key, n.from+uint64(i)) //nolint:gosec // not negative
			}
			x.next = n.next
		}
		n.x.mu.Unlock()
	}
	n.keys = n.keys[:0]
}

func indexKey(hash string) (uint64, bool) {
	var b [32]byte
	if n, err := hex.Decode(b[:], []byte(hash)); len(hash) != 64 || err != nil || n != len(b) {
		return 0, false
	}
	return binary.BigEndian.Uint64(b[:8]), true
}

// ByHash implements [loop.Reader]. The first call reads the whole stream.
func (s *EvidenceStore) ByHash(ctx context.Context, hashes []string) (map[string]*loop.Record, error) {
	found := make(map[string]*loop.Record, len(hashes))
	wanted := false
	for _, h := range hashes {
		if _, ok := indexKey(h); ok {
			wanted = true
		}
	}
	if !wanted {
		return found, nil
	}
	places, err := s.places(ctx, hashes)
	if err != nil {
		return nil, err
	}
	for group := range groups(slices.Sorted(maps.Keys(places))) {
		for seq, body := range s.raw.bodies(ctx, readRange{from: group[0], upTo: group[len(group)-1]}) {
			if body.err != nil {
				return nil, body.err
			}
			if places[seq] == "" {
				continue
			}
			if e, hash, ok := s.decode(ctx, seq, body.data); ok && hash == places[seq] {
				found[hash] = loop.EvidenceRecord(seq, hash, e)
			}
		}
	}
	return found, nil
}

// groups joins sequences that are worth one request.
func groups(seqs []uint64) iter.Seq[[]uint64] {
	return func(yield func([]uint64) bool) {
		for from := 0; from < len(seqs); {
			to := from + 1
			for to < len(seqs) && seqs[to]-seqs[to-1] <= 32 {
				to++
			}
			if !yield(seqs[from:to]) {
				return
			}
			from = to
		}
	}
}

// places brings the index up to date and looks up hashes.
func (s *EvidenceStore) places(ctx context.Context, hashes []string) (map[uint64]string, error) {
	x := &s.index
	x.mu.Lock() // reading under it is what makes others wait for the same reading
	defer x.mu.Unlock()
	for seq, body := range s.raw.bodies(ctx, readRange{from: max(x.next, 1)}) {
		if body.err != nil {
			return nil, body.err
		}
		if key, ok := indexKey(contextwire.EvidenceHash(body.data)); ok {
			x.put(key, seq)
		}
		x.next = seq + 1
	}
	places := map[uint64]string{}
	for _, h := range hashes {
		if key, ok := indexKey(h); ok {
			if seq, known := x.at[key]; known {
				places[seq] = h
			}
		}
	}
	return places, nil
}
