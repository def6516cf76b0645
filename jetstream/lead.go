package jetstream

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/task"
)

// leadRecord is the body of the lead subject.
type leadRecord struct {
	Version int `json:"v"`
	// Term is unique to one leadership.
	Term string `json:"term"`
	// Holder names the process for people.
	Holder string `json:"holder"`
	// Released is set by a leader that left of its own accord.
	Released bool `json:"released,omitempty"`
}

// lead is one leadership, from the election to its end.
type lead struct {
	s    *Store
	term string
	stop context.CancelCauseFunc // ends the leadership
	// begun is the sequence of the first lead record of this term, which is newer than
	// everything that others have stored.
	begun uint64

	// turn is held by whoever writes to the stream: a commit, or a renewal.
	turn chan struct{}
	// fence is the sequence of the lead record that commits name; only with turn.
	fence uint64
	// tip is the sequence of our last write, which is the stream's last; only with
	// turn.
	tip uint64
	// commits and batches number what was sent; only with turn.
	commits, batches uint64

	mu sync.Mutex
	// until is when the leadership ends unless it is renewed: before anybody else
	// may take it.
	until time.Time
}

// errLost is the cause of the end of a leadership that another one replaced or
// that ran out.
var errLost = fmt.Errorf("the lead is lost: %w", task.ErrDeposed)

// margin is the part of a lease that a leader does not use, so that it has
// stopped acting before another may begin.
func (s *Store) margin() time.Duration { return s.o.LeaseTTL / 5 }

// deadline is when the leadership ends.
func (l *lead) deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until
}

func (l *lead) extend(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if until := sent.Add(l.s.o.LeaseTTL - l.s.margin()); until.After(l.until) {
		l.until = until
	}
}

// bounded returns ctx with the end of the leadership, as it stands now, as its
// deadline.
func (l *lead) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(ctx, l.deadline(), errLost)
}

// take waits for its turn to write.
func (l *lead) take(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *lead) give() { <-l.turn }

// put writes the lead record over the one with the given sequence, 0 for none.
func (s *Store) put(ctx context.Context, over uint64, r leadRecord) (uint64, error) {
	r.Version = 1
	body, err := json.Marshal(r)
	if err != nil {
		return 0, fmt.Errorf("lead record: %w", err)
	}
	m := &nats.Msg{Subject: s.names.lead(), Data: body, Header: nats.Header{
		headerExpectedIn: {s.o.Stream},
		headerExpectLast: {strconv.FormatUint(over, 10)},
		// A leader that is gone leaves nothing behind; others do not wait for that.
		headerTTL: {ttl(2 * s.o.LeaseTTL)},
	}}
	return s.raw.publish(ctx, m)
}

// current reads the lead record; seq is 0 when there is none. One that cannot be
// read is somebody's, and may be taken over like any other.
func (s *Store) current(ctx context.Context) (seq uint64, r leadRecord, err error) {
	m, ok, err := s.raw.last(ctx, s.names.lead())
	if err != nil || !ok {
		return 0, leadRecord{}, err
	}
	if json.Unmarshal(m.data, &r) != nil {
		r = leadRecord{}
	}
	return m.seq, r, nil
}

// acquire tries to put a new leadership over the record with the given sequence.
func (s *Store) acquire(ctx context.Context, over uint64) (*lead, bool, error) {
	l := &lead{s: s, term: rand.Text(), turn: make(chan struct{}, 1)}
	sent := time.Now()
	r := leadRecord{Term: l.term, Holder: s.o.Holder}
	attempt, stop := s.patient(ctx)
	seq, err := s.put(attempt, over, r)
	stop()
	if err != nil && !conflict(err) && ctx.Err() == nil {
		// It may have been stored all the same.
		attempt, stop := s.patient(ctx)
		defer stop()
		if at, found, readErr := s.current(attempt); readErr == nil && found.Term == l.term {
			seq, err = at, nil
		}
	}
	if conflict(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	l.begun, l.fence, l.tip = seq, seq, seq
	l.extend(sent)
	return l, true, nil
}

// patient bounds one exchange with the server. Half a lease leaves time to find out
// what became of it.
func (s *Store) patient(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, min(s.o.LeaseTTL/2, longestExchange), errNoAnswer)
}

// longestExchange is how long an answer is waited for with a long lease.
const longestExchange = 2 * time.Second

var errNoAnswer = errors.New("the server does not answer")

// renew writes the lead record again, with turn held. When it returns nil every
// write that named the former fence is stored or never will be. It returns
// errLost when somebody else leads, and any other error when that is not known.
func (l *lead) renew(ctx context.Context) error {
	r := leadRecord{Term: l.term, Holder: l.s.o.Holder}
	for {
		sent := time.Now()
		attempt, stop := l.s.patient(ctx)
		seq, err := l.s.put(attempt, l.fence, r)
		stop()
		if err == nil {
			l.fence, l.tip = seq, seq
			l.extend(sent)
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("renew the lead: %w", context.Cause(ctx))
		}
		attempt, stop = l.s.patient(ctx)
		now, found, readErr := l.s.current(attempt)
		stop()
		switch {
		case readErr != nil:
			return fmt.Errorf("renew the lead: %w", err)
		case found.Term != l.term || found.Released:
			return errLost
		case now == l.fence && !conflict(err):
			return fmt.Errorf("renew the lead: %w", err)
		}
		// A renewal whose answer was lost stands there, or is on its way: once more,
		// from what is there.
		l.fence = now
	}
}

// fenceOff renews until it has worked or the leadership is over, with turn held.
func (l *lead) fenceOff(ctx context.Context) error {
	ctx, stop := l.bounded(ctx)
	defer stop()
	for {
		err := l.renew(ctx)
		if err == nil || errors.Is(err, task.ErrDeposed) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(l.s.o.LeaseTTL / 50):
		}
	}
}

// hold renews the lead until ctx is done, and ends it when that does not work.
func (l *lead) hold(ctx context.Context) {
	beat := l.s.o.LeaseTTL / 5
	next := time.NewTimer(beat)
	defer next.Stop()
	for {
		end := time.NewTimer(time.Until(l.deadline()))
		select {
		case <-ctx.Done():
			end.Stop()
			return
		case <-end.C:
			l.stop(errLost)
			return
		case <-next.C:
			end.Stop()
		}
		err := l.beat(ctx)
		if errors.Is(err, task.ErrDeposed) {
			l.stop(err)
			return
		}
		if err != nil {
			next.Reset(beat / 4)
			continue
		}
		next.Reset(beat)
	}
}

func (l *lead) beat(ctx context.Context) error {
	ctx, stop := l.bounded(ctx)
	defer stop()
	if err := l.take(ctx); err != nil {
		return err
	}
	defer l.give()
	return l.renew(ctx)
}

// release lets others lead at once.
func (l *lead) release(ctx context.Context) error {
	ctx, stop := l.bounded(ctx)
	defer stop()
	if err := l.take(ctx); err != nil {
		return err
	}
	defer l.give()
	_, err := l.s.put(ctx, l.fence, leadRecord{Term: l.term, Holder: l.s.o.Holder, Released: true})
	if err != nil {
		return fmt.Errorf("release the lead: %w", err)
	}
	return nil
}
