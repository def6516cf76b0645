package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/task"
)

const (
	// loadBatch is how many messages one request brings, loadBytes bounds them in bytes.
	loadBatch, loadBytes = 512, 2 << 20
	// loadAhead is how many requests are under way, so that the server has always
	// something to send. The answer to a renewal of the lead comes behind what it sent on
	// the same connection.
	loadAhead = 2
	// loadSilence is how long the server may take to the next message.
	loadSilence = 5 * time.Second
	// loadDoubt is after how much of it requests are taken for lost, and loadLost how
	// often: those that were not bring more than is due, for which there is room.
	loadDoubt, loadLost = loadSilence / 5, 2
)

// Load implements [task.Log]. It sees everything that any former leader has stored:
// the lead record is newer than all of that, and Load does not end before it has
// come to it, even where a replica lags behind.
func (l *Log) Load(ctx context.Context, prefixes ...string) iter.Seq2[task.Entry, error] {
	return func(yield func(task.Entry, error) bool) {
		s := l.lead.s
		// With replicas one that lags may still show a message that has been replaced,
		// and the stream is read twice: for what is last, and for the entries.
		var last map[subjectHash]uint64
		if !s.direct {
			last = map[subjectHash]uint64{}
			for m, err := range s.scan(ctx, l.lead.begun, prefixes) {
				if err != nil {
					yield(task.Entry{}, unavailable(err))
					return
				}
				last[hashOf(m.subject)] = m.seq
			}
		}
		for m, err := range s.scan(ctx, l.lead.begun, prefixes) {
			if err != nil {
				yield(task.Entry{}, unavailable(err))
				return
			}
			key, ok := s.names.key(m.subject)
			if !ok || !m.holds() || !hasPrefix(key, prefixes) || last != nil && last[hashOf(m.subject)] != m.seq {
				continue
			}
			if !yield(task.Entry{Key: key, Body: m.data, Seq: m.seq}, nil) {
				return
			}
		}
	}
}

// subjectHash stands for a subject; two of a million share one less often than once
// in 10^26 logs.
type subjectHash [16]byte

func hashOf(subject string) subjectHash {
	h := fnv.New128a()
	_, _ = h.Write([]byte(subject)) // never fails
	var sum subjectHash
	h.Sum(sum[:0])
	return sum
}

func hasPrefix(key string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return len(prefixes) == 0
}

// filters are the subjects to read for prefixes, the lead's among them, and the
// others of the stream.
func (n names) filters(prefixes []string) (wanted, others []string) {
	wanted = []string{n.lead()}
	for _, kind := range kinds {
		all := n.base + "." + kind + ".>"
		// A prefix may be longer or shorter than the kind of a key.
		if len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(prefix string) bool {
			return strings.HasPrefix(kind+".", prefix) || strings.HasPrefix(prefix, kind+".")
		}) {
			wanted = append(wanted, all)
		} else {
			others = append(others, all)
		}
	}
	return wanted, others
}

// page is what one request brought, or why it did not.
type page struct {
	messages []stored
	err      error
}

// scan reads the stream from its beginning at least to the sequence upTo. The next
// page is on its way while the reader works on one.
func (s *Store) scan(ctx context.Context, upTo uint64, prefixes []string) iter.Seq2[*stored, error] {
	return func(yield func(*stored, error) bool) {
		reading, stop := context.WithCancelCause(ctx)
		pages := make(chan page, 1)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop(errors.New("nobody reads on"))
		wg.Go(func() {
			defer close(pages)
			s.fetch(reading, upTo, prefixes, pages)
		})
		for p := range pages {
			for i := range p.messages {
				if !yield(&p.messages[i], nil) {
					return
				}
			}
			if p.err != nil {
				yield(nil, p.err)
				return
			}
		}
		if ctx.Err() != nil {
			yield(nil, fmt.Errorf("read the task log: %w", context.Cause(ctx)))
		}
	}
}

// fetch sends the pages of the stream until it has come to upTo and there is no more.
func (s *Store) fetch(ctx context.Context, upTo uint64, prefixes []string, pages chan<- page) {
	send := func(p page) bool {
		select {
		case pages <- p:
			return p.err == nil
		case <-ctx.Done():
			return false
		}
	}
	r, err := s.openReader(ctx, prefixes)
	if err != nil {
		send(page{err: err})
		return
	}
	defer r.close()
	opened := time.Now()
	for {
		var p page
		var end bool
		p.messages, end, p.err = r.next(ctx)
		if errors.Is(p.err, errNoConsumer) && r.count == 0 && time.Since(opened) < loadSilence {
			select {
			case <-time.After(s.o.LeaseTTL / 40):
			case <-ctx.Done():
			}
			continue // the server that is to serve the new consumer has not heard of it
		}
		if !send(p) || end && r.seq >= upTo {
			return
		}
		if !end {
			continue
		}
		// A replica that has not come so far.
		select {
		case <-time.After(s.o.LeaseTTL / 40):
		case <-ctx.Done():
			return
		}
	}
}

// errNoConsumer says that no server serves the consumer.
var errNoConsumer = errors.New("no server answers for the consumer")

// reader reads the messages of the stream in their order through a consumer of its
// own, which costs the server less than direct gets.
type reader struct {
	conn     *conn
	consumer string
	request  []byte
	inbox    string
	sub      *nats.Subscription
	arrived  chan *nats.Msg
	drop     func()
	seq      uint64 // of the last message of the stream that was read
	count    uint64 // messages that were read

	requests int // that were sent
	over     int // the last of those that are known to be over
	// due is how many messages are still to come, as far as is known: the server may end a
	// request early, and need not always say so.
	due    int
	lost   int  // how often requests were taken for lost
	scarce bool // there is less than what was asked for
}

func (s *Store) openReader(ctx context.Context, prefixes []string) (*reader, error) {
	filters, others := s.names.filters(prefixes)
	everything, err := s.readsAll(ctx, others)
	if err != nil {
		return nil, err
	}
	if everything {
		filters = nil
	}
	c, err := s.consumer(ctx, filters)
	if err != nil {
		return nil, err
	}
	name := c.CachedInfo().Name
	r := &reader{conn: s.raw, consumer: name, inbox: s.raw.nc.NewInbox(), arrived: make(chan *nats.Msg, (loadAhead*(loadLost+1)+1)*loadBatch)}
	r.drop = func() { s.dropConsumer(ctx, name) }
	// One message must fit, however large the server lets it be.
	bytes := max(loadBytes, s.raw.nc.MaxPayload()+headerRoom)
	r.request, err = json.Marshal(map[string]any{"batch": loadBatch, "max_bytes": bytes, "no_wait": true})
	if err == nil {
		r.sub, err = s.raw.nc.ChanSubscribe(r.inbox+".*", r.arrived)
	}
	if err != nil {
		r.drop()
		return nil, fmt.Errorf("read the task log: %w", err)
	}
	return r, nil
}

const (
	// fewUnwanted is how many messages are rather read for nothing than left out.
	fewUnwanted = 1000
	// smallStream is how many bytes a stream may have to be read as a whole anyway.
	smallStream = 2 << 30
)

// readsAll says whether to read the whole stream, though some subjects of it are not
// wanted. To find the next message that a filter lets through, the server looks at all
// subjects of a block once messages of it have been replaced; a reader of everything
// gets the next one. For a log of tasks that have lived, that is the tenth of the time
// and less. Only many large outputs are better left out.
func (s *Store) readsAll(ctx context.Context, unwanted []string) (bool, error) {
	if s.shared {
		return false, nil
	}
	if len(unwanted) == 0 {
		return true, nil
	}
	stream, err := s.o.JS.Stream(ctx, s.o.Stream)
	if err != nil {
		return false, fmt.Errorf("read the task log: %w", withCause(ctx, err))
	}
	if stream.CachedInfo().State.Bytes <= smallStream {
		return true, nil
	}
	c, err := s.consumer(ctx, unwanted)
	if err != nil {
		return false, err
	}
	info := c.CachedInfo()
	s.dropConsumer(ctx, info.Name)
	return info.NumPending <= fewUnwanted, nil
}

// consumer makes a consumer that reads from the beginning of the stream, of all
// subjects without filters.
func (s *Store) consumer(ctx context.Context, filters []string) (natsjs.Consumer, error) {
	c, err := s.o.JS.CreateConsumer(ctx, s.o.Stream, natsjs.ConsumerConfig{
		Description: "a writer of tasks begins", FilterSubjects: filters, DeliverPolicy: natsjs.DeliverAllPolicy,
		AckPolicy: natsjs.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: time.Minute,
	})
	if err != nil {
		return nil, fmt.Errorf("read the task log: %w", withCause(ctx, err))
	}
	return c, nil
}

// dropConsumer removes a consumer. One that is left behind goes by itself.
func (s *Store) dropConsumer(ctx context.Context, name string) {
	ctx, stop := s.patient(context.WithoutCancel(ctx))
	defer stop()
	if err := s.o.JS.DeleteConsumer(ctx, s.o.Stream, name); err != nil {
		s.o.Logger.Debug("a consumer is left to expire", "stream", s.o.Stream, "cause", err)
	}
}

func (r *reader) close() {
	_ = r.sub.Unsubscribe() // fails only on a closed connection
	r.drop()
}

// ask sends requests until there is enough under way.
func (r *reader) ask() error {
	for r.due == 0 || !r.scarce && r.due <= (loadAhead-1)*loadBatch {
		r.requests++
		m := &nats.Msg{
			Subject: r.conn.api + "CONSUMER.MSG.NEXT." + r.conn.stream + "." + r.consumer,
			Reply:   r.inbox + "." + strconv.Itoa(r.requests), Data: r.request,
		}
		if err := r.conn.nc.PublishMsg(m); err != nil {
			return fmt.Errorf("read the task log: %w", err)
		}
		r.due += loadBatch
	}
	return nil
}

// next reads a page. end is true when the server says that there is no more.
func (r *reader) next(ctx context.Context) (messages []stored, end bool, err error) {
	messages = make([]stored, 0, loadBatch)
	silence := time.NewTimer(loadDoubt)
	defer silence.Stop()
	for silent := time.Duration(0); len(messages) < loadBatch; {
		if err := r.ask(); err != nil {
			return messages, false, err
		}
		select {
		case <-ctx.Done():
			return messages, false, fmt.Errorf("read the task log: %w", context.Cause(ctx))
		case <-silence.C:
			if silent += loadDoubt; silent >= loadSilence {
				return messages, false, fmt.Errorf("read the task log: %w", errNoAnswer)
			}
			if r.lost < loadLost { // one that filled its bytes to the last one ends without a word
				r.lost, r.due = r.lost+1, 0
			}
			silence.Reset(loadDoubt)
		case m := <-r.arrived:
			silence.Reset(loadDoubt)
			silent = 0
			if status := m.Header.Get("Status"); status != "" {
				over, err := r.told(m, status)
				if over || err != nil {
					return messages, over && len(messages) == 0, err
				}
				continue
			}
			one, err := r.read(m)
			if err != nil {
				return messages, false, err
			}
			messages = append(messages, one)
			r.due = max(r.due-1, 0)
		}
	}
	return messages, false, nil
}

// told takes what the server says about a request; over is that there are no more
// messages.
func (r *reader) told(m *nats.Msg, status string) (over bool, err error) {
	request, _ := strconv.Atoi(m.Subject[len(r.inbox)+1:])
	if request <= r.over { // is told that it is over when the next ones are under way
		return false, nil
	}
	switch status {
	case "100":
	case "404": // there are no more, which ends all of them
		r.over, r.due, r.scarce = r.requests, 0, false
		return true, nil
	case "408", "409": // the end of one, which says what it did not bring
		left := m.Header.Get("Nats-Pending-Messages")
		if n, err := strconv.Atoi(left); err == nil {
			r.due = max(r.due-n, 0)
		} else { // it was refused, since those before it bring all there is
			r.due, r.scarce = max(r.due-loadBatch, 0), true
		}
	case "503": // no responders
		r.over, r.due = r.requests, 0
		return false, fmt.Errorf("read the task log: %w", errNoConsumer)
	default:
		return false, fmt.Errorf("read the task log: %s %s", status, m.Header.Get("Description"))
	}
	return false, nil
}

// read takes a message of the consumer, whose reply subject says where it stands. One
// that was lost on the way is an error.
func (r *reader) read(m *nats.Msg) (stored, error) {
	// $JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<tries>.<sequence>.<count>.<time>.<pending>[.<random>]
	at := 5
	n := strings.Count(m.Reply, ".") + 1
	if n > 9 {
		at += 2
	}
	if n < 9 {
		return stored{}, fmt.Errorf("read the task log: a message without its place in the stream")
	}
	place := m.Reply
	for range at {
		_, place, _ = strings.Cut(place, ".")
	}
	first, place, _ := strings.Cut(place, ".")
	second, _, _ := strings.Cut(place, ".")
	seq, err1 := strconv.ParseUint(first, 10, 64)
	count, err2 := strconv.ParseUint(second, 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return stored{}, fmt.Errorf("read the task log: place in the stream: %w", err)
	}
	if r.count++; count != r.count {
		return stored{}, fmt.Errorf("read the task log: message %d came as the %dth", count, r.count)
	}
	r.seq = seq
	return stored{subject: m.Subject, seq: seq, header: m.Header, data: m.Data}, nil
}
