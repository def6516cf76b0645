package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
)

const (
	evidencePage      = 2048
	evidencePageBytes = 4 << 20
	// countLimit is how many records Count decodes to tell the errors.
	countLimit = 100_000
)

var _ loop.Reader = (*EvidenceStore)(nil)

// evidenceRange is which part of the stream is read.
type evidenceRange struct {
	from    uint64    // the first sequence
	upTo    uint64    // the last one, 0 for the end of the stream
	since   time.Time // instead of from, when not zero
	subject string    // filter, all when empty
}

// evidencePages is what one request brought: bodies without headers, in order.
type evidencePages struct {
	messages []*nats.Msg
	first    uint64 // sequence of the first, when they are without headers
	next     uint64
	end      bool
	err      error
}

// pages reads a range in batches, one ahead of the receiver, and never one record a
// request.
func (s *EvidenceStore) pages(ctx context.Context, r evidenceRange) iter.Seq[evidencePages] {
	return func(yield func(evidencePages) bool) {
		ctx, stop := context.WithCancelCause(ctx)
		ahead := make(chan evidencePages)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop(errors.New("nobody reads on"))
		wg.Go(func() {
			defer close(ahead)
			s.fetch(ctx, r, ahead)
		})
		for p := range ahead {
			if !yield(p) {
				return
			}
		}
	}
}

func (s *EvidenceStore) fetch(ctx context.Context, r evidenceRange, ahead chan<- evidencePages) {
	inbox := s.raw.nc.NewInbox()
	arrived := make(chan *nats.Msg, evidencePage+1)
	sub, err := s.raw.nc.ChanSubscribe(inbox, arrived)
	if err == nil {
		defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection
	}
	// The first page says the place of each record; the ones after it follow on.
	bare := false
	for {
		p := evidencePages{err: err}
		if err == nil {
			p = s.page(ctx, inbox, arrived, r, bare)
		}
		if errors.Is(p.err, errGap) {
			bare = false // something went meanwhile; each record has to say its place
			continue
		}
		select {
		case ahead <- p:
		case <-ctx.Done():
			return
		}
		if p.err != nil || p.end {
			return
		}
		r.from, r.since = p.next, time.Time{}
		bare = r.subject == "" // with a filter, sequences have gaps
	}
}

var errGap = errors.New("sequences have gaps")

// page asks for one batch. Without headers an answer is half as large, and the
// sequences follow from the last one, which the end of the batch tells.
func (s *EvidenceStore) page(ctx context.Context, inbox string, arrived <-chan *nats.Msg, r evidenceRange, bare bool) evidencePages {
	batch := uint64(evidencePage)
	if r.upTo > 0 && r.subject == "" {
		batch = min(batch, r.upTo-min(r.upTo, r.from)+1)
	}
	ask := map[string]any{"batch": batch, "max_bytes": evidencePageBytes}
	if r.since.IsZero() {
		ask["seq"] = max(r.from, 1)
	} else {
		ask["start_time"] = r.since.UTC()
	}
	if r.subject != "" {
		ask["next_by_subj"] = r.subject
	}
	if bare {
		ask["no_hdr"] = true
	}
	request, err := json.Marshal(ask)
	if err != nil {
		return evidencePages{err: fmt.Errorf("read evidence: %w", err)}
	}
	if err := s.raw.nc.PublishMsg(&nats.Msg{Subject: s.raw.api + "DIRECT.GET." + s.raw.stream, Reply: inbox, Data: request}); err != nil {
		return evidencePages{err: unavailable(fmt.Errorf("read evidence: %w", err))}
	}
	var p evidencePages
	silence := time.NewTimer(loadSilence)
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			p.err = context.Cause(ctx)
			return p
		case <-silence.C:
			p.err = unavailable(fmt.Errorf("read evidence: %w", errNoAnswer))
			return p
		case m := <-arrived:
			silence.Reset(loadSilence)
			switch status := m.Header.Get("Status"); status {
			case "":
				p.messages = append(p.messages, m)
			case "404":
				p.end = true
				return p
			case "204":
				return p.finish(m, r)
			default:
				p.err = unavailable(fmt.Errorf("read evidence: %s %s", status, m.Header.Get("Description")))
				return p
			}
		}
	}
}

// finish reads the end of a batch.
func (p evidencePages) finish(m *nats.Msg, r evidenceRange) evidencePages {
	last, err := strconv.ParseUint(m.Header.Get("Nats-Last-Sequence"), 10, 64)
	if err != nil {
		p.err = unavailable(fmt.Errorf("read evidence: sequence: %w", err))
		return p
	}
	n := uint64(len(p.messages))
	p.next = last + 1
	p.end = n == 0 || m.Header.Get("Nats-Num-Pending") == "0" || (r.upTo > 0 && last >= r.upTo)
	if n > 0 && p.messages[0].Header.Get("Nats-Sequence") == "" {
		if p.first = r.from; p.next-n != r.from {
			p.err = errGap
		}
	}
	return p
}

// seq is the sequence of the i-th record.
func (p *evidencePages) seq(i int) uint64 {
	if p.first > 0 {
		return p.first + uint64(i) //nolint:gosec // not negative
	}
	n, _ := strconv.ParseUint(p.messages[i].Header.Get("Nats-Sequence"), 10, 64) // 0 matches nothing
	return n
}

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
		for seq, body := range s.bodies(ctx, part) {
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

func (s *EvidenceStore) rangeOf(q loop.Query) evidenceRange {
	r := evidenceRange{from: q.AfterSeq + 1}
	if q.AfterSeq == 0 && !q.Since.IsZero() {
		// A record is stored after it ended, so what ended since then is stored since.
		r.since = q.Since
	}
	if len(q.Types) == 1 {
		r.subject = s.base + string(q.Types[0]) + ".>"
	}
	return r
}

type evidenceBody struct {
	data []byte
	err  error
}

// bodies ranges over a part of the stream.
func (s *EvidenceStore) bodies(ctx context.Context, r evidenceRange) iter.Seq2[uint64, evidenceBody] {
	return func(yield func(uint64, evidenceBody) bool) {
		for p := range s.pages(ctx, r) {
			for i, m := range p.messages {
				seq := p.seq(i)
				if (r.upTo > 0 && seq > r.upTo) || !yield(seq, evidenceBody{data: m.Data}) {
					return
				}
			}
			if p.err != nil {
				yield(0, evidenceBody{err: p.err})
				return
			}
		}
	}
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

// bounds are the first and the last sequence of the stream.
func (s *EvidenceStore) bounds(ctx context.Context) (first, last uint64, err error) {
	stream, err := s.o.JS.Stream(ctx, s.raw.stream)
	if err != nil {
		return 0, 0, unavailable(fmt.Errorf("look at stream %s: %w", s.raw.stream, err))
	}
	state := stream.CachedInfo().State
	return state.FirstSeq, state.LastSeq, nil
}
