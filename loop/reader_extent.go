package loop

import (
	"context"
	"strings"
)

// Extent is how far a stream of evidence goes. As long as Stream is the same, a sequence
// names the same record, or one that is gone, and First never becomes smaller.
type Extent struct {
	// Stream identifies the stream; "" when what a reader has is no such stream.
	Stream string
	// First and Last are the sequences of the oldest and the newest record; there is
	// none when First is above Last.
	First, Last uint64
}

// Extender is a [Reader] of one stream of evidence, to which records are only ever
// added at its end, and which loses them at its begin. What passes found in its parts
// can be kept for the next one.
type Extender interface {
	Extent(ctx context.Context) (Extent, error)
}

// extentOf is the extent of a reader, the zero one when it has none.
func extentOf(ctx context.Context, rd Reader) (Extent, error) {
	x, ok := rd.(Extender)
	if !ok {
		return Extent{}, nil
	}
	extent, err := x.Extent(ctx)
	if err != nil {
		return Extent{}, storeError("looking at the evidence", err)
	}
	return extent, nil
}

// streamMark is the newest record of a stream when it was last read, by which is seen
// whether the stream only went on since. A server that lost its newest records with the
// power gives their sequences again.
type streamMark struct {
	stream string
	seq    uint64
	hash   string // "" when there is no record that can be read
}

// markOf is the mark at the end of a stream.
func markOf(ctx context.Context, rd Reader, x Extent) (streamMark, error) {
	hash, err := hashAt(ctx, rd, x.Last)
	return streamMark{x.Stream, x.Last, hash}, err
}

// holds reports whether the marked record is where it was, or among the oldest that the
// stream has lost.
func (m streamMark) holds(ctx context.Context, rd Reader, x Extent) (bool, error) {
	switch {
	case m.stream != x.Stream || x.Last < m.seq:
		return false, nil
	case m.seq < x.First:
		return true, nil
	}
	hash, err := hashAt(ctx, rd, m.seq)
	return hash == m.hash, err
}

// hashAt is the hash of the piece of evidence at a sequence, of whatever type.
func hashAt(ctx context.Context, rd Reader, seq uint64) (string, error) {
	if seq == 0 {
		return "", nil
	}
	for r, err := range rd.Records(ctx, Query{Types: EvidenceTypes(), AfterSeq: seq - 1, UpToSeq: seq}) {
		if err != nil {
			return "", storeError("looking at the evidence", err)
		}
		return strings.Clone(r.Hash), nil
	}
	return "", nil
}
