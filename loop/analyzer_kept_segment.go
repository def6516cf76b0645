package loop

import (
	"cmp"
	"unsafe"
)

// open begins a segment, and a pass of each run over it. A pass that cannot be merged
// is fed directly.
func (p *keptPass) open(from uint64) (*segment, []*guarded) {
	passes := make([]*guarded, len(p.runs))
	for _, i := range p.of {
		if passes[i] = p.passes[i]; p.passes[i].mergeable() {
			passes[i] = p.begin(i)
		}
	}
	return &segment{from: from, parts: make([]part, len(p.runs))}, passes
}

// closeSegment ends a segment that is read: what was made of it belongs to the pass,
// and is kept.
func (p *keptPass) closeSegment(s *segment, passes []*guarded, to uint64) {
	s.to = to
	if s.n > 0 {
		for _, i := range p.of {
			if g := passes[i]; g != p.passes[i] {
				region, whole := s.region(p.passes[i].pass)
				if made := p.close(i, g, region); whole {
					s.parts[i] = made
				}
			}
		}
	}
	p.k.segments = append(p.k.segments, s)
	for p.k.size() > p.k.most() && p.k.shed() {
	}
}

func (s *segment) add(r *Record) {
	if s.n == 0 {
		s.oldest, s.newest = r.CreatedAtMS, r.CreatedAtMS
	}
	s.n++
	s.oldest, s.newest = min(s.oldest, r.CreatedAtMS), max(s.newest, r.CreatedAtMS)
}

// region is how many of the cuts of a pass come before the segment; whole is false
// when one goes through it, or when the pass has none.
func (s *segment) region(pass Pass) (region int, whole bool) {
	m, ok := pass.(mergeable)
	if !ok {
		return 0, false
	}
	end := 0
	for _, cut := range m.cuts() {
		if cut <= s.oldest {
			region++
		}
		if cut <= s.newest {
			end++
		}
	}
	return region, region == end
}

// forget drops what was made of a segment.
func (s *segment) forget() { clear(s.parts) }

func (s *segment) size() int {
	size := int(unsafe.Sizeof(*s))
	for i := range s.parts {
		size += int(unsafe.Sizeof(s.parts[i])) + s.parts[i].size
	}
	return size
}

func (k *Kept) length() uint64 { return cmp.Or(k.SegmentLength, DefaultSegmentLength) }

func (k *Kept) most() int { return cmp.Or(k.MaxBytes, DefaultKeptBytes) }

func (k *Kept) size() int {
	size := 0
	for _, s := range k.segments {
		size += s.size()
	}
	return size
}

// shed forgets the oldest segment of which something is kept; false when there is
// none.
func (k *Kept) shed() bool {
	for _, s := range k.segments {
		for i := range s.parts {
			if s.parts[i].pass != nil {
				s.forget()
				return true
			}
		}
	}
	return false
}

// compact joins neighbours as long as they are one segment in length, so that many
// passes over little leave few of them.
func (k *Kept) compact() {
	joined := k.segments[:0]
	for _, s := range k.segments {
		if n := len(joined); n > 0 && joined[n-1].join(s, k.length()) {
			continue
		}
		joined = append(joined, s)
	}
	clear(k.segments[len(joined):])
	k.segments = joined
}

// join takes the segment after s into it, unless something would be lost by it.
func (s *segment) join(o *segment, most uint64) bool {
	if o.to-s.from >= most {
		return false
	}
	switch {
	case o.n == 0:
		s.to = o.to
		return true
	case s.n == 0:
		o.from = s.from
		*s = *o
		return true
	}
	for i := range s.parts {
		a, b := &s.parts[i], &o.parts[i]
		if (a.pass == nil) != (b.pass == nil) || a.pass != nil && a.region != b.region {
			return false
		}
	}
	for i := range s.parts {
		if a, b := &s.parts[i], &o.parts[i]; a.pass != nil {
			g := &guarded{pass: a.pass}
			g.merge(b.pass)
			g.try(func() { a.size = a.pass.settle() })
			if g.found.Err != nil {
				*a = part{}
			}
		}
	}
	s.to, s.n = o.to, s.n+o.n
	s.oldest, s.newest = min(s.oldest, o.oldest), max(s.newest, o.newest)
	return true
}
