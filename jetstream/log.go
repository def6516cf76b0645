package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/task"
)

const (
	// maxBatch is how many messages the server takes in one atomic batch.
	maxBatch = 1000
	// maxChain is how many messages go out before an acknowledgement is awaited.
	maxChain = 1000
	// headerRoom is kept free for headers below the server's max_payload.
	headerRoom = 1024
)

// Log is the task log during one leadership. Commits end with [task.ErrDeposed] as
// soon as the lead is lost.
//
// A commit of up to 1,000 entries to a power-safe log, or to one with replicas, is
// one atomic batch: all of it or nothing is stored, whatever breaks. A larger one
// is several batches, and one to a process-safe log a chain of messages in which
// each names the one before; when the process ends in the middle, the first of
// them are stored, in order, and none of the others. New outputs come first in that
// order and removed ones last, so that no record is without its output.
type Log struct{ lead *lead }

var _ task.Log = (*Log)(nil)

// write is an entry on its way to the stream.
type write struct {
	subject string
	body    []byte
	ttl     string
	gone    bool
	result  bool
}

// Commit implements [task.Log]. An entry that no message can hold is
// BUS_PAYLOAD_TOO_LARGE; a server that refuses to store, because it is full for
// one, TASK_STORE_UNAVAILABLE. Once something was sent, the end of ctx is not
// waited for: Commit returns when the outcome is known or the lead is over.
func (l *Log) Commit(ctx context.Context, entries []task.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	writes, err := l.encode(entries)
	if err != nil {
		return err
	}
	if err := l.lead.take(ctx); err != nil {
		return fmt.Errorf("wait to commit: %w", err)
	}
	defer l.lead.give()
	size := len(writes)
	if l.lead.s.atomic {
		size = maxBatch
	}
	for start := 0; start < len(writes); start += size {
		part := writes[start:min(start+size, len(writes))]
		if err := l.lead.commit(context.WithoutCancel(ctx), part); err != nil {
			return err
		}
	}
	return nil
}

// Leading reports whether this process leads for certain: nobody else can have
// begun to. It asks a clock, not the server.
func (l *Log) Leading() bool { return time.Now().Before(l.lead.deadline()) }

// Durability is what a commit promises.
func (l *Log) Durability() Durability { return l.lead.s.o.Durability }

// MaxEntry is the largest body of an entry in bytes.
func (l *Log) MaxEntry() int64 { return l.lead.s.raw.nc.MaxPayload() - headerRoom }

// encode checks everything before anything is sent.
func (l *Log) encode(entries []task.Entry) ([]write, error) {
	limit := l.MaxEntry()
	writes := make([]write, len(entries))
	for i, e := range entries {
		subject, err := l.lead.s.names.entry(e.Key)
		if err != nil {
			return nil, err
		}
		if size := int64(len(e.Body)); size > limit {
			return nil, contextwire.TooLarge(size, limit)
		}
		w := write{subject: subject, body: e.Body, gone: e.Delete, result: strings.HasPrefix(e.Key, task.KeyResult)}
		switch {
		case e.Delete:
			// The end of a key is a message too, since only messages are fenced. It has
			// replaced the last one, and goes by itself.
			w.body, w.ttl = nil, ttl(goneFor)
		case e.TTL > 0:
			w.ttl = ttl(e.TTL)
		}
		writes[i] = w
	}
	// Should only the first of them be stored: an output without its record harms
	// nobody, a record whose output is not there does.
	slices.SortStableFunc(writes, func(a, b write) int { return cmp.Compare(a.rank(), b.rank()) })
	return writes, nil
}

// rank is the place of a write in its commit.
func (w *write) rank() int {
	switch {
	case !w.result:
		return 1
	case w.gone:
		return 2
	}
	return 0
}

// goneFor is how long the mark of a deleted key is kept.
const goneFor = time.Minute

// commit stores writes or finds out that it cannot, with turn held.
func (l *lead) commit(ctx context.Context, writes []write) error {
	l.commits++
	id := l.term + "." + strconv.FormatUint(l.commits, 10)
	for again := false; ; again = true {
		if !time.Now().Before(l.deadline()) {
			l.stop(errLost)
			return errLost
		}
		err := l.send(ctx, id, writes, again)
		if err == nil {
			return nil
		}
		if refused(err) {
			return unavailable(err)
		}
		l.s.o.Logger.Debug("a commit has no clear answer", "entries", len(writes), "cause", err)
		// From here on the attempt is stored already or never will be.
		if err := l.fenceOff(ctx); err != nil {
			l.stop(errLost)
			return fmt.Errorf("commit: %w", asLost(err))
		}
		if stored, err := l.stored(ctx, id, writes); err == nil && stored {
			return nil
		}
	}
}

// asLost makes sure that the end of a leadership is recognised as one.
func asLost(err error) error {
	if errors.Is(err, task.ErrDeposed) {
		return err
	}
	return fmt.Errorf("%w: %w", errLost, err)
}

// stored looks whether an attempt that was fenced off has worked: its last
// message, which is stored after or with all others, is the one that counts.
func (l *lead) stored(ctx context.Context, id string, writes []write) (bool, error) {
	ctx, stop := l.bounded(ctx)
	defer stop()
	last := writes[len(writes)-1]
	m, ok, err := l.s.raw.last(ctx, last.subject)
	if err != nil || !ok {
		return false, err
	}
	return m.header.Get(headerCommit) == id, nil
}

// send makes one attempt, with turn held. Its error is the server's answer, or
// says that there was none. diagnose asks for an answer to each message, so that
// the one that is refused can say why.
func (l *lead) send(ctx context.Context, id string, writes []write, diagnose bool) error {
	ctx, stop := l.s.patient(ctx)
	defer stop()
	if len(writes) > 1 && l.s.atomic {
		return l.sendBatch(ctx, id, writes, diagnose)
	}
	for start := 0; start < len(writes); start += maxChain {
		if err := l.sendChain(ctx, id, writes[start:min(start+maxChain, len(writes))], diagnose); err != nil {
			return err
		}
	}
	return nil
}

// sendChain sends messages of which each is stored only right after the one before
// it. So the answer to the last is the answer to all.
func (l *lead) sendChain(ctx context.Context, id string, writes []write, diagnose bool) error {
	h := nats.Header{headerExpectedIn: {l.s.o.Stream}}
	l.fenced(h)
	// One message needs no chain, and with replicas there is never more than one.
	chained := l.s.direct && len(writes) > 1
	for i, w := range writes {
		if chained {
			h[headerExpectSeq] = []string{strconv.FormatUint(l.tip+uint64(i), 10)}
		}
		if i == len(writes)-1 {
			h[headerCommit] = []string{id}
		}
		m := w.message(h)
		if i == len(writes)-1 || diagnose {
			seq, err := l.s.raw.publish(ctx, m)
			if err != nil {
				return err
			}
			if i == len(writes)-1 {
				l.tip = seq
			}
		} else if err := l.s.raw.nc.PublishMsg(m); err != nil {
			return fmt.Errorf("publish %s: %w", w.subject, err)
		}
		if !chained {
			continue
		}
		// The chain is the fence of the rest. The number alone would not do: where our
		// tip is one behind, because a renewal landed whose answer was lost, the first is
		// refused and the second would fit. So each also names the one before it.
		h[headerExpectLast] = []string{strconv.FormatUint(l.tip+uint64(i)+1, 10)}
		h[headerExpectOn] = []string{w.subject}
		delete(h, headerExpectedIn)
	}
	return nil
}

// sendBatch sends messages that the server stores together or not at all.
func (l *lead) sendBatch(ctx context.Context, id string, writes []write, diagnose bool) error {
	// A second attempt is another batch.
	l.batches++
	batch := l.term + "." + strconv.FormatUint(l.batches, 10)
	h := nats.Header{headerExpectedIn: {l.s.o.Stream}, headerBatchID: {batch}}
	l.fenced(h)
	for i, w := range writes {
		h[headerBatchSeq] = []string{strconv.Itoa(i + 1)}
		if i == len(writes)-1 {
			h[headerBatchCommit], h[headerCommit] = []string{"1"}, []string{id}
			seq, err := l.s.raw.publish(ctx, w.message(h))
			if err != nil {
				return err
			}
			l.tip = seq
			return nil
		}
		m := w.message(h)
		if i == 0 && diagnose {
			// The server answers the first message too, and says what is wrong with it.
			answer, err := l.s.raw.nc.RequestMsgWithContext(ctx, m)
			if err != nil {
				return fmt.Errorf("publish %s: %w", w.subject, withCause(ctx, err))
			}
			if len(answer.Data) > 0 {
				if _, err := readAck(w.subject, answer.Data, l.s.o.Stream); err != nil {
					return err
				}
			}
		} else if err := l.s.raw.nc.PublishMsg(m); err != nil {
			return fmt.Errorf("publish %s: %w", w.subject, err)
		}
		delete(h, headerExpectLast)
		delete(h, headerExpectOn)
	}
	return nil
}

// fenced names the lead record that must still be the last.
func (l *lead) fenced(h nats.Header) {
	h[headerExpectLast] = []string{strconv.FormatUint(l.fence, 10)}
	h[headerExpectOn] = []string{l.s.names.lead()}
}

// message makes the message of a write; h is written out before it is used again.
func (w *write) message(h nats.Header) *nats.Msg {
	delete(h, headerTTL)
	delete(h, headerGone)
	if w.ttl != "" {
		h[headerTTL] = []string{w.ttl}
	}
	if w.gone {
		h[headerGone] = []string{"1"}
	}
	return &nats.Msg{Subject: w.subject, Data: w.body, Header: h}
}

// Get implements [task.Log]: it asks the stream's leader, or the only server there
// is.
func (l *Log) Get(ctx context.Context, key string) (task.Entry, bool, error) {
	s := l.lead.s
	subject, err := s.names.entry(key)
	if err != nil {
		return task.Entry{}, false, err
	}
	read := s.raw.lastOf // of replicas the leader may change, and a request to it be lost
	if s.direct {
		read = s.raw.direct
		var stop context.CancelFunc
		ctx, stop = s.patient(ctx)
		defer stop()
	}
	m, ok, err := read(ctx, subject)
	if err != nil {
		return task.Entry{}, false, unavailable(err)
	}
	if !ok || !m.holds() {
		return task.Entry{}, false, nil
	}
	return task.Entry{Key: key, Body: m.data, Seq: m.seq}, true, nil
}

// holds reports whether the message is an entry, not the mark of its end: ours, or
// the server's.
func (m *stored) holds() bool {
	return m.header.Get(headerGone) == "" && m.header.Get("Nats-Marker-Reason") == ""
}
