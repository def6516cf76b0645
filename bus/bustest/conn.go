package bustest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/module"
)

var _ bus.Conn = (*Conn)(nil)

// Conn is one connection to a [Mem]. Safe for concurrent use.
type Conn struct {
	// In applies to each delivery to this connection, Out to each message it
	// publishes.
	In, Out *Faults

	mem   *Mem
	inbox string
	done  chan struct{} // closed by Kill

	// Guarded by the broker's lock.
	wake    sync.Cond // a message, a thaw or an end
	serving map[*subscription]struct{}
	frozen  bool
	cut     bool
	closed  bool
	outbox  []*nats.Msg // published while frozen
	waiting map[string]chan *nats.Msg
	asked   int
	muxed   bool
}

// Freeze stops the connection as if its process were stopped: its handlers are
// not called and what it publishes does not leave, while others still see its
// subscriptions. Thaw goes on with everything, in order.
func (c *Conn) Freeze() { c.set(func() { c.frozen = true }) }

// Thaw ends Freeze.
func (c *Conn) Thaw() {
	c.set(func() {
		c.frozen = false
		out := c.outbox
		c.outbox = nil
		if c.closed {
			return
		}
		for _, m := range out {
			c.mem.publishLocked(c, m)
		}
	})
}

// Partition makes the connection a black hole: messages in both directions are
// lost, and neither side is told.
func (c *Conn) Partition() { c.set(func() { c.cut = true }) }

// Heal ends Partition.
func (c *Conn) Heal() { c.set(func() { c.cut = false }) }

// Kill closes the connection as the end of its process does: its subscriptions
// are gone at once and its own requests fail. It does not wait for handlers.
func (c *Conn) Kill() { c.set(c.killLocked) }

func (c *Conn) set(change func()) {
	c.mem.mu.Lock()
	defer c.mem.mu.Unlock()
	change()
	c.wake.Broadcast()
}

func (c *Conn) killLocked() {
	if c.closed {
		return
	}
	c.closed = true
	close(c.done)
	b := c.mem
	for s := range c.serving {
		s.gone, s.pending = true, nil
		s.leaveLocked()
	}
	if i := slices.Index(b.conns, c); i >= 0 {
		b.conns = slices.Delete(b.conns, i, i+1)
	}
	c.wake.Broadcast()
}

func (c *Conn) errLocked() error {
	if c.closed {
		return closedError()
	}
	return nil
}

// Publish implements bus.Conn.
func (c *Conn) Publish(m *nats.Msg) error {
	if !validSubject(m.Subject) {
		return fmt.Errorf("publish to %q: %w", m.Subject, nats.ErrBadSubject)
	}
	c.mem.mu.Lock()
	defer c.mem.mu.Unlock()
	if err := c.errLocked(); err != nil {
		return err
	}
	if n := size(m); n > c.mem.max {
		return module.Errorf(module.CodeBusPayloadTooLarge, "message is larger than the broker takes: %w", nats.ErrMaxPayload).
			WithDetail("limit", c.mem.max).NotExecuted()
	}
	m = clone(m)
	if c.frozen {
		c.outbox = append(c.outbox, m)
		return nil
	}
	c.mem.publishLocked(c, m)
	return nil
}

// Subscribe implements bus.Conn.
func (c *Conn) Subscribe(subject, queue string, handler func(*nats.Msg)) (bus.Subscription, error) {
	if !validSubject(subject) {
		return nil, fmt.Errorf("subscribe to %q: %w", subject, nats.ErrBadSubject)
	}
	c.mem.mu.Lock()
	defer c.mem.mu.Unlock()
	return c.subscribeLocked(subject, queue, handler)
}

func (c *Conn) subscribeLocked(subject, queue string, handler func(*nats.Msg)) (bus.Subscription, error) {
	if err := c.errLocked(); err != nil {
		return nil, err
	}
	s := &subscription{conn: c, pattern: subject, queue: queue, handler: handler, ended: make(chan struct{})}
	c.mem.subs = append(c.mem.subs, s)
	c.serving[s] = struct{}{}
	c.mem.wg.Go(s.serve)
	return s, nil
}

// Request implements bus.Conn. Like that of nats.go it listens to one wildcard
// for all requests of the connection.
func (c *Conn) Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	answer := make(chan *nats.Msg, 1)
	c.mem.mu.Lock()
	if !c.muxed {
		if _, err := c.subscribeLocked(c.inbox+".*", "", c.answered); err != nil {
			c.mem.mu.Unlock()
			return nil, err
		}
		c.muxed = true
	}
	c.asked++
	reply := c.inbox + "." + strconv.Itoa(c.asked)
	c.waiting[reply] = answer
	c.mem.mu.Unlock()
	defer c.set(func() { delete(c.waiting, reply) })

	out := *m
	out.Reply = reply
	if err := c.Publish(&out); err != nil {
		return nil, err
	}
	select {
	case got := <-answer:
		if len(got.Data) == 0 && got.Header.Get("Status") == "503" {
			return nil, fmt.Errorf("request to %s: %w", m.Subject, bus.ErrNoResponders)
		}
		return got, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-c.done:
		return nil, closedError()
	}
}

// answered hands the first answer to the request that waits for it.
func (c *Conn) answered(m *nats.Msg) {
	c.mem.mu.Lock()
	answer := c.waiting[m.Subject]
	delete(c.waiting, m.Subject)
	c.mem.mu.Unlock()
	if answer != nil {
		answer <- m
	}
}

// Flush implements bus.Conn. What is published is routed at once, so it only
// waits for a connection that is frozen or cut.
func (c *Conn) Flush(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { c.set(func() {}) })
	defer stop()
	c.mem.mu.Lock()
	defer c.mem.mu.Unlock()
	for !c.closed && ctx.Err() == nil && (c.frozen || c.cut) {
		c.wake.Wait()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return c.errLocked()
}

// MaxPayload implements bus.Conn.
func (c *Conn) MaxPayload() int64 { return c.mem.max }

// Connected implements bus.Conn. A partition is not noticed.
func (c *Conn) Connected() bool {
	c.mem.mu.Lock()
	defer c.mem.mu.Unlock()
	return !c.closed
}

// NewInbox implements bus.Conn.
func (c *Conn) NewInbox() string { return nats.NewInbox() }
