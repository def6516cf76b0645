package loop

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// seenGrains counts the records of evidence that came since something was applied, and
// goes on where the pass before stopped. It changes no count. It is safe for concurrent
// use.
type seenGrains struct {
	mu     sync.Mutex
	mark   streamMark
	counts map[string]*grainCount // by recommendation
}

type grainCount struct {
	appliedMS int64
	first     uint64 // sequence of the first that was counted
	n         int
}

func (g *grainCount) add(r *Record) {
	if r.CreatedAtMS <= g.appliedMS {
		return
	}
	if g.n++; g.n == 1 {
		g.first = r.Seq
	}
}

// since returns how many records each of those that wait has seen since its time.
func (s *seenGrains) since(ctx context.Context, rd Reader, waiting map[string]int64) (map[string]int, error) {
	extent, err := extentOf(ctx, rd)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.goOn(ctx, rd, extent, waiting); err != nil {
		s.mark, s.counts = streamMark{}, nil
		return nil, err
	}
	seen := make(map[string]int, len(waiting))
	for rec, g := range s.counts {
		seen[rec] = g.n
	}
	if extent.Stream == "" {
		s.counts = nil // nothing tells what is new in it
	}
	return seen, nil
}

func (s *seenGrains) goOn(ctx context.Context, rd Reader, extent Extent, waiting map[string]int64) error {
	same, err := s.mark.holds(ctx, rd, extent)
	if err != nil {
		return err
	}
	maps.DeleteFunc(s.counts, func(rec string, g *grainCount) bool {
		at, waits := waiting[rec]
		return !same || !waits || at != g.appliedMS || g.n > 0 && g.first < extent.First
	})
	if s.counts == nil {
		s.counts = make(map[string]*grainCount)
	}
	if len(s.counts) > 0 && s.mark.seq < extent.Last {
		q := Query{Types: EvidenceTypes(), AfterSeq: s.mark.seq, UpToSeq: extent.Last}
		if err := count(ctx, rd, q, slices.Collect(maps.Values(s.counts))); err != nil {
			return err
		}
	}
	var fresh []*grainCount
	oldest := int64(0)
	for rec, at := range waiting {
		if s.counts[rec] != nil {
			continue
		}
		g := &grainCount{appliedMS: at}
		s.counts[rec] = g
		if fresh = append(fresh, g); oldest == 0 || at < oldest {
			oldest = at
		}
	}
	if len(fresh) > 0 {
		q := Query{Types: EvidenceTypes(), Since: time.UnixMilli(oldest), UpToSeq: extent.Last}
		if err := count(ctx, rd, q, fresh); err != nil {
			return err
		}
	}
	s.mark, err = markOf(ctx, rd, extent)
	return err
}

func count(ctx context.Context, rd Reader, q Query, all []*grainCount) error {
	for r, err := range rd.Records(ctx, q) {
		if err != nil {
			return storeError("measuring outcomes", err)
		}
		for _, g := range all {
			g.add(r)
		}
	}
	return nil
}
