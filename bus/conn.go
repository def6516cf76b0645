package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/module"
)

// Conn is what the package needs of a NATS connection. [WrapNATS] gives it for
// a *nats.Conn; bustest has one in memory.
//
// Publish only buffers: it returns before the message left the process, and keeps
// nothing of m, whose header and data are then used for another one. A
// handler is called for one message at a time per subscription, in order, and
// must not block. Request returns an error that matches ErrNoResponders at once
// when nobody listens, and the cause of ctx when it ends first.
type Conn interface {
	Publish(m *nats.Msg) error
	Subscribe(subject, queue string, handler func(*nats.Msg)) (Subscription, error)
	Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error)
	// Flush waits until the server has seen everything published and
	// subscribed before it.
	Flush(ctx context.Context) error
	// MaxPayload is the largest message in bytes, headers included.
	MaxPayload() int64
	// Connected reports whether the connection is up, as far as is known.
	Connected() bool
	// NewInbox returns a subject for replies that nobody else uses.
	NewInbox() string
}

// Subscription is an interest that can be given up.
type Subscription interface {
	// Unsubscribe gives it up at once: messages that have arrived and were not
	// handled yet are dropped.
	Unsubscribe() error
	// Drain takes nothing new and returns when what the server had already routed
	// here is handled, or with the cause of ctx. Not for use in a handler.
	Drain(ctx context.Context) error
}

// ErrNoResponders is what a request to a subject without listeners ends with.
var ErrNoResponders = nats.ErrNoResponders

// WrapNATS makes a Conn of a connection. It sets no handler on it and does not
// close it.
func WrapNATS(nc *nats.Conn) Conn { return natsConn{nc} }

type natsConn struct{ nc *nats.Conn }

func (c natsConn) Publish(m *nats.Msg) error {
	if err := c.nc.PublishMsg(m); err != nil {
		return c.translate(m.Subject, err)
	}
	return nil
}

// translate names the reason that callers act on: nothing was sent because
// there is no connection, or because the message is too large.
func (c natsConn) translate(subject string, err error) error {
	switch {
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionClosed),
		errors.Is(err, nats.ErrConnectionDraining), errors.Is(err, nats.ErrConnectionReconnecting):
		return module.Errorf(module.CodeBusDisconnected, "not connected to the bus: %w", err).NotExecuted()
	case errors.Is(err, nats.ErrMaxPayload):
		return module.Errorf(module.CodeBusPayloadTooLarge, "message is larger than the server takes: %w", err).
			WithDetail("limit", c.MaxPayload()).NotExecuted()
	}
	return fmt.Errorf("publish to %s: %w", subject, err)
}

func (c natsConn) Subscribe(subject, queue string, handler func(*nats.Msg)) (Subscription, error) {
	sub, err := c.nc.QueueSubscribe(subject, queue, handler)
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	return natsSub{sub}, nil
}

type natsSub struct{ sub *nats.Subscription }

func (s natsSub) Unsubscribe() error { return s.sub.Unsubscribe() }

func (s natsSub) Drain(ctx context.Context) error {
	if !s.sub.IsValid() {
		return nil // given up already
	}
	handled := make(chan struct{})
	s.sub.SetClosedHandler(func(string) { close(handled) }) // called once
	if err := s.sub.Drain(); err != nil {
		return fmt.Errorf("drain %s: %w", s.sub.Subject, err)
	}
	select {
	case <-handled:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c natsConn) Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	reply, err := c.nc.RequestMsgWithContext(ctx, m)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil, context.Cause(ctx) // the library returns ctx.Err()
	}
	if err != nil {
		return nil, c.translate(m.Subject, err)
	}
	return reply, nil
}

func (c natsConn) Flush(ctx context.Context) error {
	limited := ctx
	if _, has := ctx.Deadline(); !has { // the library insists on one
		var stop context.CancelFunc
		limited, stop = context.WithTimeout(ctx, 24*time.Hour)
		defer stop()
	}
	err := c.nc.FlushWithContext(limited)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (c natsConn) MaxPayload() int64 { return c.nc.MaxPayload() }

func (c natsConn) NewInbox() string { return c.nc.NewInbox() }

// isNoResponders reports whether m is the server's word that nobody listens.
func isNoResponders(m *nats.Msg) bool {
	return len(m.Data) == 0 && m.Header.Get("Status") == "503"
}

func (c natsConn) Connected() bool { return c.nc.IsConnected() }
