package jetstream

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/contextwire"
)

const (
	// evidenceScan is how many records one query looks at, at most.
	evidenceScan = 500_000
	// evidencePoll is how long a follower waits when nothing told it of news,
	// evidenceSettle how long after that it looks.
	evidencePoll   = time.Second
	evidenceSettle = 20 * time.Millisecond
)

// filter is the narrowest subject that holds what is asked for, "" for all.
func (s *EvidenceStore) filter(q *contextwire.EvidenceQuery) string {
	kind := "*"
	if len(q.Types) == 1 {
		kind = string(q.Types[0])
	}
	switch {
	case q.ModuleID != "":
		return s.base + kind + "." + escape(q.ModuleID)
	case kind != "*":
		return s.base + kind + ".>"
	}
	return ""
}

// Evidence answers a query: the newest matches, oldest first. It reads backwards in
// growing stretches and looks at no more than 500,000 records.
func (s *EvidenceStore) Evidence(ctx context.Context, q contextwire.EvidenceQuery) (contextwire.EvidencePage, error) {
	if q.Limit <= 0 {
		q.Limit = contextwire.DefaultEvidenceLimit
	}
	oldest, last, err := s.bounds(ctx)
	if err != nil {
		return contextwire.EvidencePage{}, err
	}
	page := contextwire.EvidencePage{Last: last}
	end := last
	if q.Before > 0 {
		end = min(end, q.Before-1)
	}
	var found []contextwire.EvidenceItem // newest stretch last
	looked := uint64(0)
	for stretch := uint64(1024); end >= max(oldest, 1) && len(found) <= q.Limit; stretch *= 4 {
		if looked >= evidenceScan {
			page.More = true
			break
		}
		stretch = min(stretch, evidenceScan-looked)
		begin := max(oldest, 1)
		if end-begin >= stretch {
			begin = end - stretch + 1
		}
		looked += end - begin + 1
		part, old, err := s.stretch(ctx, &q, begin, end)
		if err != nil {
			return contextwire.EvidencePage{}, err
		}
		found = append(part, found...)
		if old {
			break
		}
		end = begin - 1
	}
	if over := len(found) - q.Limit; over > 0 {
		found, page.More = found[over:], true
	}
	page.Items = found
	return page, nil
}

// stretch reads the matches between two sequences. old is true when everything
// before is older than what is wanted, or gone.
func (s *EvidenceStore) stretch(ctx context.Context, q *contextwire.EvidenceQuery, begin, end uint64) (found []contextwire.EvidenceItem, old bool, err error) {
	first := true
	for seq, body := range s.raw.bodies(ctx, readRange{from: begin, upTo: end, subject: s.filter(q)}) {
		if body.err != nil {
			return nil, false, body.err
		}
		e, hash, ok := s.decode(ctx, seq, body.data)
		if !ok {
			continue
		}
		if first && !q.Since.IsZero() && e.At.Before(q.Since.Add(-time.Hour)) {
			old = true // records are stored about in the order of their ends
		}
		first = false
		if q.Wants(e) {
			found = append(found, contextwire.EvidenceItem{Seq: seq, Hash: hash, Evidence: e})
		}
		if len(found) > 2*contextwire.MaxEvidenceLimit+q.Limit {
			found = slices.Delete(found, 0, len(found)-q.Limit-1) // the newest are wanted
		}
	}
	return found, old, nil
}

// Follow ranges over the matches after a sequence as they come, until ctx ends,
// which is no error. It survives a restart of the server; the limit of the query is
// not used.
func (s *EvidenceStore) Follow(ctx context.Context, q contextwire.EvidenceQuery, after uint64) iter.Seq2[contextwire.EvidenceItem, error] {
	return func(yield func(contextwire.EvidenceItem, error) bool) {
		subject := s.filter(&q)
		news := make(chan struct{}, 1)
		sub, err := s.raw.nc.Subscribe(s.nudges(subject), func(*nats.Msg) {
			select {
			case news <- struct{}{}:
			default: // it looks anyway
			}
		})
		if err != nil {
			yield(contextwire.EvidenceItem{}, unavailable(fmt.Errorf("follow evidence: %w", err)))
			return
		}
		defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection
		tick := time.NewTicker(evidencePoll)
		defer tick.Stop()
		for {
			for seq, body := range s.raw.bodies(ctx, readRange{from: after + 1, subject: subject}) {
				if body.err != nil {
					if ctx.Err() != nil {
						return
					}
					break // the server is away; the next look goes on from here
				}
				after = seq
				e, hash, ok := s.decode(ctx, seq, body.data)
				if ok && q.Wants(e) && !yield(contextwire.EvidenceItem{Seq: seq, Hash: hash, Evidence: e}, nil) {
					return
				}
			}
			if !s.wait(ctx, news, tick.C) {
				return
			}
		}
	}
}

// nudges is what a follower listens to in order to look soon.
func (s *EvidenceStore) nudges(subject string) string {
	if subject == "" {
		return s.base + "*.>"
	}
	return subject
}

// wait waits for news or the next tick; it is false when ctx ended.
func (s *EvidenceStore) wait(ctx context.Context, news <-chan struct{}, tick <-chan time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-tick:
		return true
	case <-news:
	}
	settle := time.NewTimer(evidenceSettle)
	defer settle.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-settle.C:
		return true
	}
}
