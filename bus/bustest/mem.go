package bustest

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/module"
)

// DefaultMaxPayload is that of nats-server.
const DefaultMaxPayload = 1 << 20

// Options configures a [Mem]. The zero value is valid.
type Options struct {
	// MaxPayload is the largest message, headers included; DefaultMaxPayload when
	// zero.
	MaxPayload int64
}

// Mem is a broker in memory: subjects with wildcards, queue groups, 503 for a
// request nobody listens to, delivery in order. Close it at the end; safe for
// concurrent use.
type Mem struct {
	// All applies to every message once, whoever publishes it.
	All *Faults

	max int64
	wg  sync.WaitGroup

	mu    sync.Mutex
	conns []*Conn
	subs  []*subscription
}

// NewMem starts a broker.
func NewMem(o Options) *Mem {
	b := &Mem{max: o.MaxPayload}
	if b.max <= 0 {
		b.max = DefaultMaxPayload
	}
	b.All = &Faults{mem: b}
	return b
}

// Open makes a connection. Several connections stand for several processes, or
// for the connections of one.
func (b *Mem) Open() *Conn {
	c := &Conn{
		mem: b, inbox: nats.NewInbox(), done: make(chan struct{}),
		waiting: map[string]chan *nats.Msg{}, serving: map[*subscription]struct{}{},
	}
	c.wake.L = &b.mu
	c.In, c.Out = &Faults{mem: b}, &Faults{mem: b}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns = append(b.conns, c)
	return c
}

// Close kills every connection and waits for every handler.
func (b *Mem) Close() {
	b.mu.Lock()
	for _, c := range slices.Clone(b.conns) {
		c.killLocked()
	}
	b.mu.Unlock()
	b.wg.Wait()
}

// Listening reports how many subscriptions match subject.
func (b *Mem) Listening(subject string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, s := range b.subs {
		if Matches(s.pattern, subject) {
			n++
		}
	}
	return n
}

// publishLocked takes a message from a connection.
func (b *Mem) publishLocked(from *Conn, m *nats.Msg) {
	if from.cut {
		return
	}
	from.Out.applyLocked(m, func(m *nats.Msg) {
		b.All.applyLocked(m, func(m *nats.Msg) { b.routeLocked(from, m) })
	})
}

// routeLocked hands a message to every plain subscription and to one member of
// each queue group. With nobody there, the publisher's own connection gets the
// 503 at the reply subject, as with nats-server.
func (b *Mem) routeLocked(from *Conn, m *nats.Msg) {
	groups := map[string][]*subscription{}
	heard := false
	for _, s := range b.subs {
		if !Matches(s.pattern, m.Subject) {
			continue
		}
		heard = true
		if s.queue != "" {
			groups[s.queue] = append(groups[s.queue], s)
			continue
		}
		s.takeLocked(m)
	}
	for _, members := range groups {
		members[rand.IntN(len(members))].takeLocked(m)
	}
	if heard || m.Reply == "" {
		return
	}
	nobody := &nats.Msg{Subject: m.Reply, Header: nats.Header{"Status": {"503"}}}
	for _, s := range b.subs {
		if s.conn == from && Matches(s.pattern, nobody.Subject) {
			s.takeLocked(nobody)
		}
	}
}

// Matches reports whether subject falls under pattern, in which "*" stands for
// one token and a last ">" for one or more.
func Matches(pattern, subject string) bool {
	for {
		p, pRest, pMore := strings.Cut(pattern, ".")
		s, sRest, sMore := strings.Cut(subject, ".")
		switch {
		case p == ">" && !pMore:
			return s != ""
		case p != "*" && p != s, s == "":
			return false
		case !pMore || !sMore:
			return pMore == sMore
		}
		pattern, subject = pRest, sRest
	}
}

// validSubject reports whether s is made of non-empty tokens without spaces.
func validSubject(s string) bool {
	if strings.ContainsAny(s, " \t\r\n") {
		return false
	}
	for token := range strings.SplitSeq(s, ".") {
		if token == "" {
			return false
		}
	}
	return true
}

// subscription is one interest and the goroutine that serves it.
type subscription struct {
	conn           *Conn
	pattern, queue string
	handler        func(*nats.Msg)

	// Guarded by the broker's lock.
	pending []*nats.Msg
	gone    bool // takes nothing more and forgets what it has
	leaving bool // takes nothing more
	ended   chan struct{}
}

func (s *subscription) takeLocked(m *nats.Msg) {
	if s.conn.cut {
		return
	}
	s.conn.In.applyLocked(m, func(m *nats.Msg) {
		if s.gone || s.leaving {
			return
		}
		s.pending = append(s.pending, clone(m))
		s.conn.wake.Broadcast()
	})
}

// serve calls the handler for one message after the other.
func (s *subscription) serve() {
	b := s.conn.mem
	defer close(s.ended)
	for {
		b.mu.Lock()
		for !s.gone && (s.conn.frozen || len(s.pending) == 0 && !s.leaving) {
			s.conn.wake.Wait()
		}
		if s.gone || len(s.pending) == 0 {
			delete(s.conn.serving, s)
			b.mu.Unlock()
			return
		}
		m := s.pending[0]
		s.pending[0] = nil
		s.pending = s.pending[1:]
		b.mu.Unlock()
		s.handler(m)
	}
}

// leaveLocked takes s out of the routing.
func (s *subscription) leaveLocked() {
	b := s.conn.mem
	if i := slices.Index(b.subs, s); i >= 0 {
		b.subs = slices.Delete(b.subs, i, i+1)
	}
	s.conn.wake.Broadcast()
}

// Unsubscribe ends the interest; what was not handled yet is dropped.
func (s *subscription) Unsubscribe() error {
	b := s.conn.mem
	b.mu.Lock()
	defer b.mu.Unlock()
	s.gone, s.pending = true, nil
	s.leaveLocked()
	return s.conn.errLocked()
}

// Drain ends the interest and waits until what had arrived is handled.
func (s *subscription) Drain(ctx context.Context) error {
	b := s.conn.mem
	b.mu.Lock()
	s.leaving = true
	s.leaveLocked()
	err := s.conn.errLocked()
	b.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// clone copies m as a trip through a server would.
func clone(m *nats.Msg) *nats.Msg {
	c := &nats.Msg{Subject: m.Subject, Reply: m.Reply, Data: slices.Clone(m.Data)}
	if len(m.Header) > 0 {
		c.Header = make(nats.Header, len(m.Header))
		for k, v := range m.Header {
			c.Header[k] = slices.Clone(v)
		}
	}
	return c
}

// size is what the server counts against its limit.
func size(m *nats.Msg) int64 {
	n := len(m.Data)
	if len(m.Header) > 0 {
		n += len("NATS/1.0\r\n\r\n")
		for k, values := range m.Header {
			for _, v := range values {
				n += len(k) + len(": \r\n") + len(v)
			}
		}
	}
	return int64(n)
}

func closedError() error {
	return module.Errorf(module.CodeBusDisconnected, "not connected to the bus: %w", nats.ErrConnectionClosed).NotExecuted()
}
