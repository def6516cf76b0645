package jetstream

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/loop"
)

const (
	// writeTry is how long one attempt of a write waits for its answer, writeTries how
	// often it is made.
	writeTry   = 2 * time.Second
	writeTries = 4
	// readTry is how long one attempt of a read waits.
	readTry = time.Second
	// writePause is the wait before a look at a subject that another write is under
	// way to.
	writePause = 20 * time.Millisecond
)

// Get implements [loop.Store]. It asks the stream's leader.
func (s *LoopStore) Get(ctx context.Context, b loop.Bucket, key string) (loop.Entry, error) {
	c, kind, err := s.place(b)
	if err != nil {
		return loop.Entry{}, err
	}
	subject, err := s.subject(kind, key)
	if err != nil {
		return loop.Entry{}, err
	}
	m, ok, err := c.lastOf(ctx, subject)
	if err != nil || !ok {
		return loop.Entry{Key: key}, err
	}
	return loop.Entry{Key: key, Value: m.data, Rev: m.seq}, nil
}

// lastOf is last within the time that one request may take. It asks more than once,
// since a request that meets the end of a connection is lost.
func (c *conn) lastOf(ctx context.Context, subject string) (*stored, bool, error) {
	ctx, stop := context.WithTimeoutCause(ctx, loadSilence, errNoAnswer)
	defer stop()
	for {
		m, ok, err := c.lastOnce(ctx, subject)
		if !errors.Is(err, errReadLate) && !errors.Is(err, nats.ErrNoResponders) {
			return m, ok, err
		}
		select {
		case <-time.After(writePause):
		case <-ctx.Done():
			return nil, false, fmt.Errorf("read %s: %w", subject, context.Cause(ctx))
		}
	}
}

var errReadLate = errors.New("the answer to a read did not come in time")

func (c *conn) lastOnce(ctx context.Context, subject string) (*stored, bool, error) {
	ctx, stop := context.WithTimeoutCause(ctx, readTry, errReadLate)
	defer stop()
	return c.last(ctx, subject)
}

// Put implements [loop.Store].
func (s *LoopStore) Put(ctx context.Context, b loop.Bucket, key string, value []byte, rev uint64) (uint64, error) {
	c, kind, err := s.place(b)
	if err != nil {
		return 0, err
	}
	return s.write(ctx, c, kind, key, value, rev, 0)
}

// Append implements [loop.Store].
func (s *LoopStore) Append(ctx context.Context, log string, entry []byte, after uint64) (uint64, error) {
	return s.write(ctx, s.grown, kindAudit, log, entry, after, 0)
}

// write stores a value when the subject's last sequence is rev. When an answer is
// lost it asks again: the write names itself, so that one that took place is known
// by its name and is not made twice. life is how long the value lives, 0 for ever.
func (s *LoopStore) write(ctx context.Context, c *conn, kind, key string, value []byte, rev uint64, life time.Duration) (uint64, error) {
	subject, err := s.subject(kind, key)
	if err != nil {
		return 0, err
	}
	if len(value) > loop.MaxStoreValue {
		return 0, fmt.Errorf("store of the loop: value of %d bytes is over the limit of %d", len(value), loop.MaxStoreValue)
	}
	name := rand.Text()
	header := nats.Header{
		headerExpectLast: {strconv.FormatUint(rev, 10)}, headerExpectedIn: {c.stream}, headerCommit: {name},
	}
	if life > 0 {
		header.Set(headerTTL, ttl(life))
	}
	lost := false
	for try := 1; ; try++ {
		seq, err := s.writeOnce(ctx, c, &nats.Msg{Subject: subject, Header: header, Data: value})
		switch {
		case err == nil:
			return seq, nil
		case conflict(err):
			if lost {
				m, ok, err := c.lastOf(ctx, subject)
				if err != nil {
					return 0, err
				}
				if ok && m.header.Get(headerCommit) == name {
					return m.seq, nil
				}
				// An attempt of ours may still be on its way into the stream.
				if (!ok && rev == 0 || ok && m.seq == rev) && try < writeTries {
					break
				}
			}
			return 0, loop.ErrConflict
		case refused(err), ctx.Err() != nil, try == writeTries:
			return 0, err
		}
		lost = true
		select {
		case <-time.After(writePause):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

var errWriteLate = errors.New("the answer to a write did not come in time")

func (s *LoopStore) writeOnce(ctx context.Context, c *conn, m *nats.Msg) (uint64, error) {
	ctx, stop := context.WithTimeoutCause(ctx, writeTry, errWriteLate)
	defer stop()
	return c.publish(ctx, m)
}
