package jetstream

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/loop"
)

const (
	recPage      = 1024
	recPageBytes = 8 << 20
)

// List implements [loop.Store], in the order of keys. It has all values in memory.
func (s *LoopStore) List(ctx context.Context, b loop.Bucket) iter.Seq2[loop.Entry, error] {
	return func(yield func(loop.Entry, error) bool) {
		c, kind, err := s.place(b)
		if err != nil {
			yield(loop.Entry{}, err)
			return
		}
		// A value that is written meanwhile is met twice; the later one counts.
		newest := map[string]loop.Entry{}
		for m, err := range c.all(ctx, s.base+kind+".>") {
			if err != nil {
				yield(loop.Entry{}, err)
				return
			}
			if key, ok := s.key(kind, m.subject); ok {
				newest[key] = loop.Entry{Key: key, Value: m.data, Rev: m.seq}
			}
		}
		for _, key := range slices.Sorted(maps.Keys(newest)) {
			if !yield(newest[key], nil) {
				return
			}
		}
	}
}

// Log implements [loop.Store], in the order of the stream.
func (s *LoopStore) Log(ctx context.Context, log string) iter.Seq2[loop.Entry, error] {
	return func(yield func(loop.Entry, error) bool) {
		filter := s.base + kindAudit + ".>"
		if log != "" {
			var err error
			if filter, err = s.subject(kindAudit, log); err != nil {
				yield(loop.Entry{}, err)
				return
			}
		}
		for m, err := range s.grown.all(ctx, filter) {
			if err != nil {
				yield(loop.Entry{}, err)
				return
			}
			key, ok := s.key(kindAudit, m.subject)
			if ok && !yield(loop.Entry{Key: key, Value: m.data, Rev: m.seq}, nil) {
				return
			}
		}
	}
}

// Revision is a number that changes with every change of knowledge, 0 while there
// is none. It costs one request.
func (s *LoopStore) Revision(ctx context.Context) (uint64, error) {
	m, ok, err := s.kept.lastOf(ctx, s.base+kindKnowledge+".>")
	if err != nil || !ok {
		return 0, err
	}
	return m.seq, nil
}

// Changes tells of changes of knowledge and of recommendations, soon after each and
// possibly after several at once, until the returned func is called. One may be
// missed while the server is away.
func (s *LoopStore) Changes() (<-chan struct{}, func(), error) {
	news := make(chan struct{}, 1)
	var subs []*nats.Subscription
	end := func() {
		for _, sub := range subs {
			_ = sub.Unsubscribe() // fails only on a closed connection
		}
	}
	for _, kind := range []string{kindKnowledge, kindAudit} {
		sub, err := s.kept.nc.Subscribe(s.base+kind+".>", func(*nats.Msg) {
			select {
			case news <- struct{}{}:
			default: // it is about to look
			}
		})
		if err != nil {
			end()
			return nil, nil, fmt.Errorf("follow the knowledge: %w", err)
		}
		subs = append(subs, sub)
	}
	return news, end, nil
}

// all ranges over the messages of the subjects in their order, in batches. It goes
// at least as far as the stream's leader was when it began, though the replica that
// answers may lag behind.
func (c *conn) all(ctx context.Context, filter string) iter.Seq2[*stored, error] {
	return func(yield func(*stored, error) bool) {
		last, ok, err := c.lastOf(ctx, filter)
		if err != nil {
			yield(nil, err)
			return
		}
		if !ok {
			return
		}
		r, err := c.openBatches(filter)
		if err != nil {
			yield(nil, err)
			return
		}
		defer r.close()
		late := time.Now().Add(loadSilence)
		for from := uint64(1); ; {
			messages, end, err := r.batch(ctx, from)
			for _, m := range messages {
				if !yield(m, nil) {
					return
				}
				from = m.seq + 1
			}
			switch {
			case err != nil:
				yield(nil, err)
				return
			case !end:
				continue
			case from > last.seq:
				return
			case time.Now().After(late):
				yield(nil, fmt.Errorf("read %s: %w", filter, errNoAnswer))
				return
			}
			select {
			case <-time.After(writePause):
			case <-ctx.Done():
				yield(nil, context.Cause(ctx))
				return
			}
		}
	}
}

// batches reads messages of some subjects by direct gets.
type batches struct {
	c       *conn
	filter  string
	inbox   string
	asked   int
	sub     *nats.Subscription
	arrived chan *nats.Msg
}

func (c *conn) openBatches(filter string) (*batches, error) {
	r := &batches{c: c, filter: filter, inbox: c.nc.NewInbox(), arrived: make(chan *nats.Msg, recPage+16)}
	var err error
	if r.sub, err = c.nc.ChanSubscribe(r.inbox+".*", r.arrived); err != nil {
		return nil, fmt.Errorf("read %s: %w", filter, err)
	}
	return r, nil
}

func (r *batches) close() { _ = r.sub.Unsubscribe() } // fails only on a closed connection

// batch reads from a sequence on. end is true when there is no more.
func (r *batches) batch(ctx context.Context, from uint64) (messages []*stored, end bool, err error) {
	request, err := json.Marshal(map[string]any{"batch": recPage, "max_bytes": recPageBytes, "seq": from, "next_by_subj": r.filter})
	if err != nil {
		return nil, false, fmt.Errorf("read %s: %w", r.filter, err)
	}
	r.asked++
	reply := r.inbox + "." + strconv.Itoa(r.asked)
	if err := r.c.nc.PublishMsg(&nats.Msg{Subject: r.c.api + "DIRECT.GET." + r.c.stream, Reply: reply, Data: request}); err != nil {
		return nil, false, fmt.Errorf("read %s: %w", r.filter, err)
	}
	silence := time.NewTimer(loadSilence)
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			return messages, false, context.Cause(ctx)
		case <-silence.C:
			return messages, false, fmt.Errorf("read %s: %w", r.filter, errNoAnswer)
		case m := <-r.arrived:
			if m.Subject != reply {
				continue // of a batch that was given up
			}
			silence.Reset(loadSilence)
			switch status := m.Header.Get("Status"); status {
			case "":
				one, err := fromDirect(m)
				if err != nil {
					return messages, false, fmt.Errorf("read %s: %w", r.filter, err)
				}
				messages = append(messages, one)
			case "404":
				return messages, true, nil
			case "204":
				return messages, len(messages) == 0 || m.Header.Get("Nats-Num-Pending") == "0", nil
			default:
				return messages, false, fmt.Errorf("read %s: %s %s", r.filter, status, m.Header.Get("Description"))
			}
		}
	}
}
