package loop

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/apbus/apbus/schema"
)

// Kept is what passes of the analyzers keep for the next one, so that it need not read
// all of its windows again: for each segment of the stream of evidence what each
// analyzer made of it. It changes no result. What is kept of a segment is used as long
// as every record of it lies on the same side of the analyzer's cuts as when it was
// made; a segment that the edge of a window has reached is read again. It is safe for
// concurrent use and helps only with a [Reader] that is an [Extender]. The zero value is
// empty.
type Kept struct {
	// SegmentLength is how many sequences a segment has at most, default
	// [DefaultSegmentLength]. A longer one costs more when the edge of a window reaches
	// it, a shorter one more memory.
	SegmentLength uint64
	// MaxBytes bounds what is kept, as estimated, default [DefaultKeptBytes]. What is
	// beyond, the oldest of it, is read again by each pass.
	MaxBytes int

	mu sync.Mutex
	// identity is what the segments hold for: analyzers, parameters, namespaces.
	identity string
	// since is from when on the segments hold all evidence, in ms; time goes on.
	since    int64
	segments []*segment
	mark     streamMark
}

// Defaults of [Kept].
const (
	DefaultSegmentLength = 8 << 10
	DefaultKeptBytes     = 64 << 20
)

// segment is a part of the stream.
type segment struct {
	from, to uint64 // sequences, both inclusive
	n        int    // records
	// oldest and newest are the times of its records in ms.
	oldest, newest int64
	parts          []part // one a run
}

// part is what one analyzer made of a segment; without a pass it has to be made.
type part struct {
	pass   mergeable
	region int // how many of the cuts come before the segment
	size   int
}

// Analyze is [Analyze], with what is kept.
func (k *Kept) Analyze(ctx context.Context, rd Reader, now time.Time, q Query, outcomes []Outcome, runs []Run) ([]Found, error) {
	extent, err := extentOf(ctx, rd)
	if err != nil {
		return nil, err
	}
	if !k.mu.TryLock() { // another pass is at it
		return Analyze(ctx, rd, now, q, outcomes, runs)
	}
	defer k.mu.Unlock()
	p := &keptPass{k: k, analysis: newAnalysis(rd, now, q, outcomes, runs), extent: extent}
	if !p.split() {
		return Analyze(ctx, rd, now, q, outcomes, runs)
	}
	if err := p.run(ctx); err != nil {
		return nil, err
	}
	return p.drafts(ctx), nil
}

// keptPass is one pass over what is kept and what is not.
type keptPass struct {
	*analysis
	k      *Kept
	extent Extent
	// evidence selects evidence, rest everything else that is looked at.
	evidence, rest Query
	// of are the runs that look at evidence.
	of []int
}

// split tells evidence from the rest; false when there is nothing to keep.
func (p *keptPass) split() bool {
	p.evidence, p.rest = p.q, p.q
	isEvidence := func(t Type) bool { return has(EvidenceTypes(), t) }
	p.evidence.Types = slices.DeleteFunc(slices.Clone(p.q.Types), func(t Type) bool { return !isEvidence(t) })
	p.rest.Types = slices.DeleteFunc(slices.Clone(p.q.Types), isEvidence)
	for i, types := range p.types {
		if p.passes[i].found.Err == nil && slices.ContainsFunc(types, isEvidence) {
			p.of = append(p.of, i)
		}
	}
	return p.extent.Stream != "" && len(p.of) > 0
}

func (p *keptPass) run(ctx context.Context) error {
	if err := p.fit(ctx); err != nil {
		return err
	}
	if len(p.rest.Types) > 0 {
		if err := p.feed(ctx, p.rest, p.passes); err != nil {
			return err
		}
	}
	old := slices.Clone(p.k.segments)
	if err := p.readNew(ctx); err != nil {
		p.k.segments = old // what was read since is not made sure of
		return err
	}
	for _, s := range slices.Backward(old) {
		if err := p.use(ctx, s); err != nil {
			return err
		}
	}
	p.k.compact()
	return nil
}

// fit drops what is kept and does not fit this pass, or the stream as it is.
func (p *keptPass) fit(ctx context.Context) error {
	k := p.k
	id := []any{p.q.Namespaces}
	for i, r := range p.runs {
		id = append(id, p.passes[i].found.ID, map[string]any(r.Params), p.passes[i].found.Err == nil)
	}
	identity, since := schema.ContentHash(id), p.q.Since.UnixMilli()
	same, err := k.mark.holds(ctx, p.rd, p.extent)
	if err != nil {
		return err
	}
	if !same || identity != k.identity || since < k.since {
		k.identity, k.segments = identity, nil
	}
	k.since = since
	// What the stream has lost at its begin no analyzer may know of.
	for len(k.segments) > 0 && k.segments[0].from < p.extent.First {
		s := k.segments[0]
		if s.to < p.extent.First {
			k.segments = k.segments[1:]
			continue
		}
		s.from = p.extent.First
		s.forget()
		break
	}
	return nil
}

// use takes what is kept of a segment, and reads it again for whom that is not enough.
func (p *keptPass) use(ctx context.Context, s *segment) error {
	again := make([]*guarded, len(p.runs))
	made := make(map[int]int) // runs whose part is made, to its region
	for _, i := range p.of {
		g := p.passes[i]
		if g.found.Err != nil || s.n == 0 {
			continue
		}
		if since := g.pass.Since(); !since.IsZero() && s.newest < since.UnixMilli() {
			s.parts[i] = part{} // over for this analyzer
			continue
		}
		region, whole := s.region(g.pass)
		switch {
		case whole && s.parts[i].pass != nil && s.parts[i].region == region:
			g.merge(s.parts[i].pass)
		case whole:
			again[i], made[i] = p.begin(i), region
		default:
			again[i] = g
		}
	}
	if !slices.ContainsFunc(again, func(g *guarded) bool { return g != nil }) {
		return nil
	}
	q := p.evidence
	q.AfterSeq, q.UpToSeq = s.from-1, s.to
	if err := p.feed(ctx, q, again); err != nil {
		return err
	}
	for i, region := range made {
		s.parts[i] = p.close(i, again[i], region)
	}
	if p.k.size() > p.k.most() {
		s.forget() // those after it are worth more
	}
	return nil
}

// close ends the pass over a segment.
func (p *keptPass) close(i int, g *guarded, region int) part {
	var made part
	if pass, ok := g.pass.(mergeable); ok && g.found.Err == nil {
		g.try(func() { made = part{pass, region, pass.settle()} })
		p.passes[i].merge(pass)
	}
	if g.found.Err != nil {
		p.passes[i].found.Err = g.found.Err
		return part{}
	}
	return made
}

// readNew reads what came since the last pass, a segment at a time.
func (p *keptPass) readNew(ctx context.Context) error {
	k := p.k
	q, from := p.evidence, max(p.extent.First, 1)
	if n := len(k.segments); n > 0 {
		from = max(from, k.segments[n-1].to+1)
		q.AfterSeq = from - 1
	}
	if q.UpToSeq = p.extent.Last; from > q.UpToSeq {
		return nil
	}
	s, passes := p.open(from)
	byType, n := p.byType(passes), 0
	for r, err := range p.rd.Records(ctx, q) {
		if err := p.reading(ctx, err, &n); err != nil {
			return err
		}
		if s.n > 0 && r.Seq-s.from >= k.length() {
			p.closeSegment(s, passes, r.Seq-1)
			s, passes = p.open(r.Seq)
			byType = p.byType(passes)
		}
		s.add(r)
		for _, g := range byType[r.Type] {
			g.add(r)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p.closeSegment(s, passes, q.UpToSeq)
	mark, err := markOf(ctx, p.rd, p.extent)
	if err == nil {
		k.mark = mark
	}
	return err
}
