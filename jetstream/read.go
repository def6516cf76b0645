package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	readPage      = 2048
	readPageBytes = 4 << 20
)

// readRange is which part of the stream is read.
type readRange struct {
	from    uint64    // the first sequence
	upTo    uint64    // the last one, 0 for the end of the stream
	since   time.Time // instead of from, when not zero
	subject string    // filter, all when empty
}

// readPages is what one request brought: bodies without headers, in order.
type readPages struct {
	messages []*nats.Msg
	first    uint64 // sequence of the first, when they are without headers
	next     uint64
	end      bool
	err      error
}

// pages reads a range in batches, one ahead of the receiver, and never one record a
// request.
func (c *conn) pages(ctx context.Context, r readRange) iter.Seq[readPages] {
	return func(yield func(readPages) bool) {
		ctx, stop := context.WithCancelCause(ctx)
		ahead := make(chan readPages)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop(errors.New("nobody reads on"))
		wg.Go(func() {
			defer close(ahead)
			c.fetch(ctx, r, ahead)
		})
		for p := range ahead {
			if !yield(p) {
				return
			}
		}
	}
}

func (c *conn) fetch(ctx context.Context, r readRange, ahead chan<- readPages) {
	inbox := c.nc.NewInbox()
	arrived := make(chan *nats.Msg, readPage+1)
	sub, err := c.nc.ChanSubscribe(inbox, arrived)
	if err == nil {
		defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection
	}
	// The first page says the place of each record; the ones after it follow on.
	bare := false
	for {
		p := readPages{err: err}
		if err == nil {
			p = c.page(ctx, inbox, arrived, r, bare)
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
func (c *conn) page(ctx context.Context, inbox string, arrived <-chan *nats.Msg, r readRange, bare bool) readPages {
	batch := uint64(readPage)
	if r.upTo > 0 && r.subject == "" {
		batch = min(batch, r.upTo-min(r.upTo, r.from)+1)
	}
	ask := map[string]any{"batch": batch, "max_bytes": readPageBytes}
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
		return readPages{err: fmt.Errorf("read records: %w", err)}
	}
	if err := c.nc.PublishMsg(&nats.Msg{Subject: c.api + "DIRECT.GET." + c.stream, Reply: inbox, Data: request}); err != nil {
		return readPages{err: unavailable(fmt.Errorf("read records: %w", err))}
	}
	var p readPages
	silence := time.NewTimer(loadSilence)
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			p.err = context.Cause(ctx)
			return p
		case <-silence.C:
			p.err = unavailable(fmt.Errorf("read records: %w", errNoAnswer))
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
				p.err = unavailable(fmt.Errorf("read records: %s %s", status, m.Header.Get("Description")))
				return p
			}
		}
	}
}

// finish reads the end of a batch.
func (p readPages) finish(m *nats.Msg, r readRange) readPages {
	last, err := strconv.ParseUint(m.Header.Get("Nats-Last-Sequence"), 10, 64)
	if err != nil {
		p.err = unavailable(fmt.Errorf("read records: sequence: %w", err))
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
func (p *readPages) seq(i int) uint64 {
	if p.first > 0 {
		return p.first + uint64(i) //nolint:gosec // not negative
	}
	n, _ := strconv.ParseUint(p.messages[i].Header.Get("Nats-Sequence"), 10, 64) // 0 matches nothing
	return n
}

type readBody struct {
	data []byte
	err  error
}

// bodies ranges over a part of the stream.
func (c *conn) bodies(ctx context.Context, r readRange) iter.Seq2[uint64, readBody] {
	return func(yield func(uint64, readBody) bool) {
		for p := range c.pages(ctx, r) {
			for i, m := range p.messages {
				seq := p.seq(i)
				if (r.upTo > 0 && seq > r.upTo) || !yield(seq, readBody{data: m.Data}) {
					return
				}
			}
			if p.err != nil {
				yield(0, readBody{err: p.err})
				return
			}
		}
	}
}
