package bus

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// ClientOptions configures a [Client]. The zero value is valid.
type ClientOptions struct {
	// Namespace is "default" when empty.
	Namespace string
	// Name says in logs and cancel notices who calls; "client" when empty.
	Name string
	// Logger is slog.Default() when nil.
	Logger *slog.Logger
	// Limits bound what is accepted from peers; the protocol's defaults when zero.
	Limits contextwire.Limits
	// StreamWindow is how far a stream may be ahead of its reader unless the request
	// says so itself; contextwire.DefaultCredit when zero.
	StreamWindow contextwire.Credit
	// TracerProvider makes a span of each call; nil makes none, at no cost. The span
	// goes along as traceparent.
	TracerProvider trace.TracerProvider
	// Sweep makes the client tidy the object store of large bodies every two
	// seconds: what belongs to callers that are gone is deleted. Nodes do so too,
	// less often. For a process that is always there, such as a router.
	Sweep bool
	// Evidence takes a record of each call that ended where no executor saw it; nil
	// makes none. It must not block; it may keep the record.
	Evidence func(*contextwire.Evidence)
	// Events is told of nodes that come and go, and of modules that nodes disagree on,
	// as the catalogue shows them from the start of the client on; nil for none. It
	// must not block.
	Events func(module.Event)
}

// Client calls, checks and cancels modules on any node. Safe for concurrent
// use. Close it before its connections.
type Client struct {
	conns    *Conns
	subjects subjects
	name     string
	log      *slog.Logger
	limits   contextwire.Limits
	window   contextwire.Credit
	tracer   trace.Tracer // nil for none
	counts   clientCounts
	evidence func(*contextwire.Evidence) // nil for none
	dir      *directory
	// inbox is the prefix under which replies and probes arrive.
	inbox string

	rooms   rooms
	waiters waiters

	mu     sync.Mutex
	calls  map[string]*outgoing
	hosts  map[proc]*host
	closed bool

	active        sync.WaitGroup // calls
	reconnectedAt stamp
	life          context.Context
	stop          context.CancelCauseFunc
	wg            sync.WaitGroup
	undo          []func()
}

// outgoing is one call of this client, over all its attempts.
type outgoing struct {
	req contextwire.Request // the attempts write into it
	// first is the attempt that nearly always is the only one.
	first attempt
	// current is the attempt that waits for its end, nil while there is none. The
	// client's lock guards it.
	current *attempt
	// trace is that of the attempt that ended last; only its attempts write it.
	trace map[string]any
	// body is where the request's body is, when it is too large for a message.
	body *largeBody
	wait *waiter

	mu      sync.Mutex
	owner   proc          // the process that has it, as far as known
	cause   error         // why it was stopped, nil while it was not
	stopped chan struct{} // made by done, closed by stop
}

// stop ends the call on this side, whatever the caller's context says.
func (o *outgoing) stop(cause error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cause != nil {
		return
	}
	o.cause = cause
	if o.stopped != nil {
		close(o.stopped)
	}
	o.wait.poke()
}

// stopCause is why the call was stopped, nil when it was not.
func (o *outgoing) stopCause() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.cause
}

// done is closed when the call is stopped.
func (o *outgoing) done() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped == nil {
		o.stopped = make(chan struct{})
		if o.cause != nil {
			close(o.stopped)
		}
	}
	return o.stopped
}

func (o *outgoing) setOwner(p proc) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.owner = p
}

func (o *outgoing) currentOwner() proc {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.owner
}

// NewClient starts a client: it subscribes to its inbox and reads the catalogue
// before it returns.
func NewClient(conns *Conns, o ClientOptions) (*Client, error) {
	s, err := newSubjects(conns.prefix, o.Namespace)
	if err != nil {
		return nil, module.Errorf(module.CodeConfigInvalid, "client: %w", err)
	}
	c := &Client{
		conns: conns, subjects: s, name: o.Name, log: o.Logger, limits: o.Limits, window: o.StreamWindow,
		evidence: o.Evidence,
		tracer:   tracerOf(o.TracerProvider),
		inbox:    conns.Calls.NewInbox(),
		calls:    map[string]*outgoing{}, hosts: map[proc]*host{},
	}
	if c.name == "" {
		c.name = "client"
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	if c.window == (contextwire.Credit{}) {
		c.window = contextwire.DefaultCredit()
	}
	if c.window.Frames < 1 || c.window.Bytes < 1 {
		return nil, module.Errorf(module.CodeConfigInvalid, "client: stream window is below 1/1")
	}
	if c.limits == (contextwire.Limits{}) {
		c.limits = contextwire.DefaultLimits()
	}
	c.life, c.stop = context.WithCancelCause(context.Background())
	if err := c.listen(); err != nil {
		c.unlisten()
		return nil, err
	}
	if c.dir, err = startDirectory(conns, s, c.log); err != nil {
		c.unlisten()
		return nil, err
	}
	if o.Events != nil {
		c.dir.follow(o.Events)
	}
	if o.Sweep {
		c.sweepBodies()
	}
	return c, nil
}

func (c *Client) listen() error {
	replies, err := c.conns.Calls.Subscribe(c.inbox+".*", "", c.onReply)
	if err != nil {
		return err
	}
	c.undo = append(c.undo, func() { _ = replies.Unsubscribe() })
	// Probes are answered from the control connection, so that a flood of
	// replies cannot make this client look dead.
	probes, err := c.conns.Control.Subscribe(c.inbox+"."+probeToken, "", c.onProbe)
	if err != nil {
		return err
	}
	c.undo = append(c.undo, func() { _ = probes.Unsubscribe() },
		c.conns.OnReconnect(c.reconnectedAt.now))
	ctx, stop := context.WithTimeoutCause(c.life, 5*time.Second, errors.New("the bus did not answer"))
	defer stop()
	for _, conn := range []Conn{c.conns.Calls, c.conns.Control} {
		if err := conn.Flush(ctx); err != nil {
			return module.Errorf(module.CodeBusDisconnected, "start client: %w", err)
		}
	}
	return nil
}

func (c *Client) unlisten() {
	for _, undo := range c.undo {
		undo()
	}
}

// Close cancels the calls in flight with cause shutdown, waits for everything
// the client started, and leaves the connections open. It must not be called
// from a call's progress function.
func (c *Client) Close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	open := make([]*outgoing, 0, len(c.calls))
	for _, o := range c.calls {
		open = append(open, o)
	}
	c.mu.Unlock()
	for _, o := range open {
		o.stop(cancel.Because(cancel.Shutdown, c.name, "client closed"))
	}
	c.active.Wait() // they end at once, and tell their owners
	c.dir.close()
	c.mu.Lock() // see giveUp
	c.stop(cancel.Because(cancel.Shutdown, c.name, "client closed"))
	c.mu.Unlock()
	c.wg.Wait()
	c.unlisten()
}

// Call runs a module and returns its output. in is a map, a struct or nil. When
// ctx is cancelled the remote work is cancelled too and Call returns at once;
// when its deadline passes, the owner's answer is awaited a little longer. ctx
// may carry a Context (module.WithContext), which becomes the caller's.
func (c *Client) Call(ctx context.Context, id string, in any, opts ...module.CallOption) (map[string]any, error) {
	inputs, err := module.ToMap(in)
	if err != nil {
		return nil, err
	}
	req, ctx, stop, err := requestFor(ctx, id, inputs, opts)
	if err != nil {
		return nil, err
	}
	defer stop()
	output, _, err := c.exchange(ctx, kindCall, &req, nil)
	if err != nil {
		return nil, err
	}
	return output, nil
}

// Call is [Client.Call] with a typed output.
func Call[Out any](ctx context.Context, c *Client, id string, in any, opts ...module.CallOption) (Out, error) {
	var out Out
	m, err := c.Call(ctx, id, in, opts...)
	if err != nil {
		return out, err
	}
	return out, module.FromMap(m, &out)
}

func noStop() {}

// requestFor turns call options into a request.
func requestFor(ctx context.Context, id string, inputs map[string]any, opts []module.CallOption) (contextwire.Request, context.Context, context.CancelFunc, error) {
	if len(opts) > 0 {
		return requestWith(ctx, id, inputs, opts)
	}
	req := contextwire.Request{ModuleID: id, Inputs: inputs, Context: module.FromContext(ctx)}
	if req.Context != nil {
		descend(&req)
		return req, ctx, noStop, nil
	}
	// The call belongs to the trace that its caller is in; without one exchange makes
	// a Context, and a trace.
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		req.Context = module.NewContext(module.ContextOptions{TraceParent: traceParentOf(sc)})
	}
	return req, ctx, noStop, nil
}

// descend puts a call below the one that req's Context belongs to.
func descend(req *contextwire.Request) {
	if info := req.Context.Call(); info.ID != "" {
		req.Parent, req.Root = info.ID, info.Root
		if req.Root == "" {
			req.Root = info.ID
		}
	}
}

func requestWith(ctx context.Context, id string, inputs map[string]any, opts []module.CallOption) (contextwire.Request, context.Context, context.CancelFunc, error) {
	var o module.CallOptions
	for _, opt := range opts {
		opt(&o)
	}
	stop := context.CancelFunc(noStop)
	if o.Timeout != nil {
		switch {
		case *o.Timeout < 0:
			return contextwire.Request{}, nil, nil, module.Errorf(module.CodeInvalidInput, "call timeout is negative")
		case *o.Timeout > 0:
			ctx, stop = context.WithTimeoutCause(ctx, *o.Timeout, cancel.Because(cancel.Timeout, "", "call timeout"))
		}
	}
	parent := module.FromContext(ctx)
	req := contextwire.Request{ModuleID: id, Inputs: inputs, Version: o.VersionHint, Progress: o.Progress, Node: o.Node}
	if parent == nil && o.TraceParent == nil {
		if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
			o.TraceParent = traceParentOf(sc)
		}
	}
	switch {
	case parent != nil:
		req.Context = parent
		descend(&req)
		if o.Identity != nil || o.TraceParent != nil {
			req.Context = override(parent, o)
		}
	case o.Identity != nil || o.TraceParent != nil:
		req.Context = module.NewContext(module.ContextOptions{Identity: o.Identity, TraceParent: o.TraceParent})
	}
	return req, ctx, stop, nil
}

// override copies a Context with another identity or trace.
func override(parent *module.Context, o module.CallOptions) *module.Context {
	w := parent.Wire()
	if o.Identity != nil {
		w.Identity = o.Identity
	}
	if tp := o.TraceParent; tp != nil && module.ValidTraceID(tp.TraceID) {
		w.TraceID = tp.TraceID
	}
	return module.RestoreContext(w)
}

// Invoke sends one call and waits for its end. A missing call ID is minted, a
// missing Context made. Every error is a *module.Error; those the owner sent
// are marked Remote. With req.Trace the reply holds the pipeline's trace; then,
// and only then, a failed call may have a reply beside its error.
func (c *Client) Invoke(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
	return c.reply(ctx, req, nil)
}

func (c *Client) reply(ctx context.Context, req *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error) {
	body, final, err := c.exchange(ctx, kindCall, req, send)
	if err != nil && final.trace == nil {
		return nil, err
	}
	return &contextwire.Reply{
		Output: body, Node: final.node, Boot: final.boot, Attempt: final.attempt, Trace: final.trace,
	}, err
}

// Check validates a call on its owner without running it.
func (c *Client) Check(ctx context.Context, req *contextwire.Request) (*module.PreflightResult, error) {
	body, _, err := c.exchange(ctx, kindCheck, req, nil)
	if err != nil {
		return nil, err
	}
	return module.PreflightFromMap(body)
}

// onReply hands a reply to the attempt that waits for it. What nobody waits for
// any more is dropped.
func (c *Client) onReply(m *nats.Msg) {
	c.counts.in.observe(int64(len(m.Data)))
	token := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	call := token[:max(strings.LastIndexByte(token, '-'), 0)]
	c.mu.Lock()
	a := c.waitingLocked(call, token)
	c.mu.Unlock()
	if a != nil {
		a.deliver(m)
	}
}

// waitingLocked returns the attempt of a call whose reply subject ends in token, nil
// when it no longer waits.
func (c *Client) waitingLocked(call, token string) *attempt {
	if o := c.calls[call]; o != nil && o.current != nil && o.current.token == token {
		return o.current
	}
	return nil
}

// probeToken is the last token of the subject on which a client is probed.
const probeToken = "probe"

// onProbe tells a node that this client lives, and which of the calls the node
// asks about it no longer waits for.
func (c *Client) onProbe(m *nats.Msg) {
	if m.Reply == "" {
		return
	}
	ct, err := controlType(m)
	if err != nil {
		return
	}
	probe, err := contextwire.DecodeProbe(m.Data, ct, c.limits)
	if err != nil {
		return
	}
	answer := contextwire.ProbeAnswer{}
	c.mu.Lock()
	for _, key := range probe.Calls {
		call, n, ok := contextwire.ParseKey(key)
		if !ok || c.waitingLocked(call, replyToken(call, n)) == nil {
			answer.Unknown = append(answer.Unknown, key)
		}
	}
	c.mu.Unlock()
	h, body, err := contextwire.EncodeFrame(&contextwire.Frame{Kind: contextwire.FrameResult, Body: answer.Map()}, contextwire.JSON)
	if err != nil {
		return
	}
	// A lost answer is asked for again.
	_ = c.conns.Control.Publish(&nats.Msg{Subject: m.Reply, Header: nats.Header(h), Data: body})
}

// Ready makes a round trip through the bus and, where there is one, the
// catalogue.
func (c *Client) Ready(ctx context.Context) error {
	for _, conn := range []Conn{c.conns.Calls, c.conns.Control} {
		if !conn.Connected() {
			return module.Errorf(module.CodeBusDisconnected, "not connected to the bus")
		}
		if err := conn.Flush(ctx); err != nil {
			return module.Errorf(module.CodeBusDisconnected, "the bus does not answer: %w", err)
		}
	}
	return nil
}

// Modules lists the modules of the catalogue, sorted by ID.
func (c *Client) Modules() []ModuleInfo { return c.dir.moduleList() }

// Module returns one module of the catalogue.
func (c *Client) Module(id string) (ModuleInfo, bool) { return c.dir.module(id) }

// Lost lists the processes that hosted the module and within the last 30 s were lost:
// they died or stand still, and nothing came from a later life of the same node. One
// that writes its record again is lost no longer.
func (c *Client) Lost(moduleID string) []HostRef { return c.dir.lostHosts(moduleID) }

// Nodes lists the processes of the catalogue, sorted by node.
func (c *Client) Nodes() []NodeInfo { return c.dir.nodeList() }

// WaitModule waits until the catalogue shows a live host of the module and its
// descriptor.
func (c *Client) WaitModule(ctx context.Context, id string) error {
	return c.dir.waitFor(ctx, func() bool {
		_, described := c.dir.module(id)
		hosts, _ := c.dir.candidates(nil, id)
		return described && len(hosts) > 0
	})
}
