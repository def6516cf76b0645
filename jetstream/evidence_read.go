package jetstream

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
)

// countLimit is how many records Count decodes to tell the errors.
const countLimit = 100_000

var (
	_ loop.Reader   = (*EvidenceStore)(nil)
	_ loop.Extender = (*EvidenceStore)(nil)
)

// decode reads a record. One that cannot be read is told of once and passed over.
func (s *EvidenceStore) decode(ctx context.Context, seq uint64, body []byte) (*contextwire.Evidence, string, bool) {
	e, hash, err := contextwire.DecodeEvidence(body)
	return e, hash, s.readable(ctx, seq, err)
}

// readable reports whether a record could be read, and tells of it once if not.
func (s *EvidenceStore) readable(ctx context.Context, seq uint64, err error) bool {
	if err == nil {
		return true
	}
	s.mu.Lock()
	told := s.noted[seq]
	if len(s.noted) < 1000 {
		s.noted[seq] = true
	}
	s.mu.Unlock()
	if !told {
		s.log.LogAttrs(ctx, slog.LevelWarn, "evidence cannot be read, passed over",
			slog.Uint64("seq", seq), slog.Any("cause", err))
	}
	return false
}

// Records implements [loop.Reader]: evidence in the order of the stream, without
// inputs, at which the loop does not look. Nothing but evidence is in it, and nothing
// is ever superseded. What is read on the way is found by its hash later.
func (s *EvidenceStore) Records(ctx context.Context, q loop.Query) iter.Seq2[*loop.Record, error] {
	return func(yield func(*loop.Record, error) bool) {
		if !s.mayHold(q) {
			return
		}
		part := s.rangeOf(q)
		var notes *indexNotes
		if part.subject == "" {
			s.startIndex(ctx)
			notes = s.index.begin()
			defer notes.end()
		}
		for seq, body := range s.raw.bodies(ctx, part) {
			if body.err != nil {
				yield(nil, body.err)
				return
			}
			e, hash, err := contextwire.DecodeEvidenceBrief(body.data)
			notes.add(hash, seq)
			if !s.readable(ctx, seq, err) {
				continue
			}
			if r := loop.EvidenceRecord(seq, hash, e); q.Wants(r) && !yield(r, nil) {
				return
			}
		}
	}
}

// mayHold reports whether the store can have what is asked for.
func (s *EvidenceStore) mayHold(q loop.Query) bool {
	for _, t := range loop.EvidenceTypes() {
		if q.WantsType(t) {
			return true
		}
	}
	return false
}

func (s *EvidenceStore) rangeOf(q loop.Query) readRange {
	r := readRange{from: q.AfterSeq + 1, upTo: q.UpToSeq}
	if q.AfterSeq == 0 && !q.Since.IsZero() {
		// A record is stored after it ended, so what ended since then is stored since.
		r.since = q.Since
	}
	if len(q.Types) == 1 {
		r.subject = s.base + string(q.Types[0]) + ".>"
	}
	return r
}

// Count implements [loop.Reader]. To tell errors it decodes at most 100,000 records.
func (s *EvidenceStore) Count(ctx context.Context, q loop.Query) (loop.Counts, error) {
	var c loop.Counts
	_, last, err := s.bounds(ctx)
	if err != nil {
		return c, err
	}
	c.LastSeq = last
	q.Since = time.Time{}
	for r, err := range s.Records(ctx, q) {
		if err != nil {
			return loop.Counts{}, err
		}
		if r.Seq > last {
			break
		}
		if c.Records++; loop.Failed(r.Evidence.Outcome) {
			c.Errors++
		}
		if c.Records >= countLimit && r.Seq < last {
			c.Records += int(last - r.Seq) //nolint:gosec // a stream does not get so far
			c.Partial = true
			break
		}
	}
	return c, nil
}

// Extent implements [loop.Extender].
func (s *EvidenceStore) Extent(ctx context.Context) (loop.Extent, error) {
	stream, err := s.o.JS.Stream(ctx, s.raw.stream)
	if err != nil {
		return loop.Extent{}, unavailable(fmt.Errorf("look at stream %s: %w", s.raw.stream, err))
	}
	info := stream.CachedInfo()
	return loop.Extent{
		Stream: s.raw.stream + " of " + info.Created.UTC().Format(time.RFC3339Nano), First: info.State.FirstSeq, Last: info.State.LastSeq,
	}, nil
}

// bounds are the first and the last sequence of the stream.
func (s *EvidenceStore) bounds(ctx context.Context) (first, last uint64, err error) {
	x, err := s.Extent(ctx)
	return x.First, x.Last, err
}
