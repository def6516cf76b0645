package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/task"
)

const (
	// loadBatch is how many messages one request brings.
	loadBatch = 4096
	// loadBytes bounds them in bytes.
	loadBytes = 16 << 20
)

// Load implements [task.Log]. It sees everything that any former leader has stored:
// the lead record is newer than all of that, and Load does not end before it has
// come to it, even where a replica lags behind.
func (l *Log) Load(ctx context.Context, prefixes ...string) iter.Seq2[task.Entry, error] {
	return func(yield func(task.Entry, error) bool) {
		reader := ctx
		ctx, stop := context.WithCancelCause(ctx)
		pages := make(chan page, 1)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop(errors.New("nobody reads on"))
		wg.Go(func() {
			defer close(pages)
			l.lead.s.scan(ctx, l.lead.begun, pages)
		})
		for p := range pages {
			for _, m := range p.messages {
				key, ok := l.lead.s.names.key(m.subject)
				if !ok || !m.holds() || !wanted(key, prefixes) {
					continue
				}
				if !yield(task.Entry{Key: key, Body: m.data, Seq: m.seq}, nil) {
					return
				}
			}
			if p.err != nil {
				yield(task.Entry{}, unavailable(p.err))
				return
			}
		}
		if reader.Err() != nil {
			yield(task.Entry{}, unavailable(context.Cause(reader)))
		}
	}
}

func wanted(key string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return len(prefixes) == 0
}

// page is what one request brought, or why it did not.
type page struct {
	messages []*stored
	err      error
}

// scan reads the stream from its beginning at least to the sequence upTo, and sends
// what it finds while the receiver works on what came before.
func (s *Store) scan(ctx context.Context, upTo uint64, pages chan<- page) {
	inbox := s.raw.nc.NewInbox()
	arrived := make(chan *nats.Msg, loadBatch+1)
	sub, err := s.raw.nc.ChanSubscribe(inbox, arrived)
	if err == nil {
		defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection
	}
	for from := uint64(1); ; {
		var p page
		if err != nil {
			p.err = fmt.Errorf("read the task log: %w", err)
		} else {
			p.messages, p.err = s.page(ctx, inbox, arrived, from)
		}
		if n := len(p.messages); n > 0 {
			from = p.messages[n-1].seq + 1
		}
		select {
		case pages <- p:
		case <-ctx.Done():
			return
		}
		switch {
		case p.err != nil, len(p.messages) == 0 && from > upTo:
			return
		case len(p.messages) == 0:
			// A replica that has not come so far; another one may answer, or this one
			// later.
			select {
			case <-time.After(s.o.LeaseTTL / 40):
			case <-ctx.Done():
				return
			}
		}
	}
}

// page reads the messages from a sequence on, none when there are no more.
func (s *Store) page(ctx context.Context, inbox string, arrived <-chan *nats.Msg, from uint64) ([]*stored, error) {
	request, err := json.Marshal(map[string]any{"seq": from, "batch": loadBatch, "max_bytes": loadBytes})
	if err != nil {
		return nil, fmt.Errorf("read the task log: %w", err)
	}
	m := &nats.Msg{Subject: s.raw.api + "DIRECT.GET." + s.o.Stream, Reply: inbox, Data: request}
	if err := s.raw.nc.PublishMsg(m); err != nil {
		return nil, fmt.Errorf("read the task log: %w", err)
	}
	var messages []*stored
	silence := time.NewTimer(loadSilence)
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			return messages, context.Cause(ctx)
		case <-silence.C:
			return messages, fmt.Errorf("read the task log: %w", errNoAnswer)
		case m := <-arrived:
			silence.Reset(loadSilence)
			switch status := m.Header.Get("Status"); status {
			case "":
				one, err := fromDirect(m)
				if err != nil {
					return messages, fmt.Errorf("read the task log: %w", err)
				}
				messages = append(messages, one)
			case "204", "404": // the end of the page; nothing there
				return messages, nil
			default:
				return messages, fmt.Errorf("read the task log: %s %s", status, m.Header.Get("Description"))
			}
		}
	}
}

// loadSilence is how long the server may take to the next message.
const loadSilence = 5 * time.Second
