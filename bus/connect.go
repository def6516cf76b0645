package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/module"
)

// Options says how to reach the bus. The zero value connects to the default
// NATS address.
type Options struct {
	// Servers are NATS URLs; nats://127.0.0.1:4222 when empty.
	Servers []string
	// InProcess, when set, is an embedded server to connect to without a socket.
	InProcess nats.InProcessConnProvider
	// Name shows in the server's connection list.
	Name string
	// Creds is a NATS credentials file.
	Creds string
	// Prefix is the first part of every subject, [DefaultPrefix] when empty.
	Prefix string
	// Replicas of the catalogue and of the store of large bodies, where this process
	// creates them; 1 when zero.
	Replicas int
	// ConnectTimeout limits one attempt to connect, 10 s when zero: a server that is
	// starting on a busy machine takes the connection long before it speaks.
	ConnectTimeout time.Duration
	// Logger receives connection events; slog.Default() when nil.
	Logger *slog.Logger
	// Extra is appended to the options of each connection.
	Extra []nats.Option
}

// Conns are the three connections of a process: calls, control and JetStream,
// so that a slow consumer on one cannot hold up a cancel on another (wire
// protocol, section 1). Safe for concurrent use.
type Conns struct {
	// Calls carries requests and replies. Nothing published while it is
	// disconnected runs later: its reconnect buffer is off.
	Calls Conn
	// Control carries pings, probes, cancels and drains.
	Control Conn
	// JS is nil when there is no JetStream; then there is no catalogue.
	JS jetstream.JetStream

	prefix   string
	replicas int // of buckets that are created
	log      *slog.Logger
	nats     []*nats.Conn
	floor    payloadFloor

	mu          sync.Mutex
	large       *bodyStore // made when it is needed
	onReconnect map[int]func()
	next        int
}

// NewConns makes Conns of connections that the caller owns, for tests and for
// other transports. js may be nil.
func NewConns(calls, control Conn, js jetstream.JetStream, o Options) *Conns {
	c := &Conns{Calls: calls, Control: control, JS: js, prefix: o.Prefix, replicas: max(1, o.Replicas), log: o.Logger}
	if c.log == nil {
		c.log = slog.Default()
	}
	return c
}

// Connect opens the connections. They reconnect for ever; an unreachable server
// at the start is an error with code BUS_DISCONNECTED. Close them with Close,
// after every client and node on them.
func Connect(ctx context.Context, o Options) (*Conns, error) {
	c := NewConns(nil, nil, nil, o)
	open := func(role string, extra ...nats.Option) (*nats.Conn, error) {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("connect: %w", context.Cause(ctx))
		}
		nc, err := nats.Connect(serverList(o), append(c.natsOptions(o, role), extra...)...)
		if err != nil {
			return nil, module.Errorf(module.CodeBusDisconnected, "cannot connect to NATS: %w", err)
		}
		c.nats = append(c.nats, nc)
		return nc, nil
	}
	calls, err := open(connCalls, nats.ReconnectBufSize(-1))
	if err != nil {
		return nil, err
	}
	control, err := open(connControl)
	if err != nil {
		c.Close()
		return nil, err
	}
	durable, err := open(connJetStream)
	if err != nil {
		c.Close()
		return nil, err
	}
	c.Calls, c.Control = WrapNATS(calls), WrapNATS(control)
	if c.JS, err = probeJetStream(ctx, durable); err != nil {
		c.log.Warn("no JetStream, working without a catalogue", "cause", err)
	}
	return c, nil
}

// The names of the connections.
const (
	connCalls     = "calls"
	connControl   = "control"
	connJetStream = "jetstream"
)

func serverList(o Options) string {
	if len(o.Servers) == 0 {
		return nats.DefaultURL
	}
	list := o.Servers[0]
	for _, s := range o.Servers[1:] {
		list += "," + s
	}
	return list
}

func (c *Conns) natsOptions(o Options, role string) []nats.Option {
	timeout := o.ConnectTimeout
	if timeout <= 0 {
		timeout = 10 * time.Second
	}
	opts := []nats.Option{
		nats.Name(o.Name + "/" + role),
		nats.Timeout(timeout),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 250*time.Millisecond),
		nats.PingInterval(15 * time.Second),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectHandler(func(*nats.Conn) {
			c.log.Info("reconnected to the bus", "connection", role)
			c.reconnected()
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				c.log.Warn("disconnected from the bus", "connection", role, "cause", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			c.log.Error("bus connection error", "connection", role, "subject", subject, "cause", err)
		}),
	}
	if o.InProcess != nil {
		opts = append(opts, nats.InProcessServer(o.InProcess))
	}
	if o.Creds != "" {
		opts = append(opts, nats.UserCredentials(o.Creds))
	}
	return append(opts, o.Extra...)
}

// probeJetStream returns nil and the reason when the server has no JetStream.
func probeJetStream(ctx context.Context, nc *nats.Conn) (jetstream.JetStream, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	ctx, stop := context.WithTimeoutCause(ctx, 5*time.Second, errors.New("jetstream did not answer"))
	defer stop()
	if _, err := js.AccountInfo(ctx); err != nil {
		return nil, fmt.Errorf("jetstream account info: %w", err)
	}
	return js, nil
}

// OnReconnect calls f after each reconnect of any connection, from a goroutine
// of the NATS library; f must not block. The returned func ends that.
func (c *Conns) OnReconnect(f func()) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.onReconnect == nil {
		c.onReconnect = map[int]func(){}
	}
	id := c.next
	c.next++
	c.onReconnect[id] = f
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.onReconnect, id)
	}
}

func (c *Conns) reconnected() {
	c.mu.Lock()
	fs := make([]func(), 0, len(c.onReconnect))
	for _, f := range c.onReconnect {
		fs = append(fs, f)
	}
	c.mu.Unlock()
	for _, f := range fs {
		f()
	}
}

// NATS is the connection of the calls, for adapters that share it: nothing
// published on it while it is disconnected runs later. It is nil when the
// connections are the caller's own, and closed by Close alone.
func (c *Conns) NATS() *nats.Conn {
	if len(c.nats) == 0 {
		return nil
	}
	return c.nats[0]
}

// Close closes the connections at once. Drain nodes first.
func (c *Conns) Close() {
	for _, nc := range c.nats {
		nc.Close()
	}
}

// CheckStreams fails when a JetStream stream captures the subjects of calls,
// checks, cancels or control: its acknowledgements would arrive as replies.
func CheckStreams(ctx context.Context, c *Conns, namespace string) error {
	if c.JS == nil {
		return nil
	}
	s, err := newSubjects(c.prefix, namespace)
	if err != nil {
		return err
	}
	streams := c.JS.ListStreams(ctx)
	for info := range streams.Info() {
		for _, o := range s.overlaps(info.Config) {
			return module.Errorf(module.CodeConfigInvalid,
				"stream %s captures %s, which overlaps the call subjects %s: narrow the stream's subjects",
				info.Config.Name, o.captured, o.ours)
		}
	}
	if err := streams.Err(); err != nil {
		return fmt.Errorf("list streams: %w", err)
	}
	return nil
}
