package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// Handler governs and runs calls. Both methods may be called from many
// goroutines; they end soon after ctx does.
type Handler interface {
	Invoke(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error)
	Check(ctx context.Context, req *contextwire.Request) (*module.PreflightResult, error)
}

// Inventory is what a process hosts.
type Inventory interface {
	// Descriptors lists the modules, sorted by ID.
	Descriptors() []module.Descriptor
	// OnChange calls f after each change; f must not block.
	OnChange(f func()) (stop func())
}

// Host is what a [Node] puts on the bus; *executor.Executor is one.
type Host interface {
	Handler
	Inventory
	// Debt counts modules that still run although their call has ended. Each
	// keeps its slot.
	Debt() int
}

// NodeOptions configures a [Node].
type NodeOptions struct {
	// ID names the node: 1 to 64 characters of [a-z0-9_-]. Required.
	ID string
	// Namespace is "default" when empty.
	Namespace string
	// Version is the version of the program, 0.0.0 when empty. The micro service
	// shows one that is no SemVer as the build of 0.0.0.
	Version string
	// MaxInFlight is how many calls run at once; 256 when zero.
	MaxInFlight int
	// MaxPerModule limits the calls of one module. When zero, a module may have all
	// slots but a fifth, and all of them where it is the only one.
	MaxPerModule int
	// MaxPerIdentity limits the calls of one identity; those without one count as
	// one. None when zero.
	MaxPerIdentity int
	// QueueSize is how many admitted calls may wait for a slot; twice
	// MaxInFlight when zero, none when negative.
	QueueSize int
	// NamedOnly keeps the node out of all queue groups and of every choice: it takes
	// only calls that name it ([module.CallNode]). Its modules may share their IDs
	// with those of other nodes and mean something else.
	NamedOnly bool
	// DrainGrace is how long Drain lets accepted calls run; 10 s when zero.
	DrainGrace time.Duration
	// Governance tells what stands in front of the modules, for the answer to
	// describe; nil leaves it out. It must not block.
	Governance func() map[string]any
	// CallGrace is announced to callers: how long the executor lets a module
	// clean up after its time is over, asked again each time since it may change.
	// Nil means 5 s. It must not block.
	CallGrace func() time.Duration
	// TracerProvider makes a span of each call that runs here, below the caller's;
	// nil makes none, at no cost.
	TracerProvider trace.TracerProvider
	// Logger is slog.Default() when nil.
	Logger *slog.Logger
	// Limits bound what is accepted; the protocol's defaults when zero.
	Limits contextwire.Limits
}

func (o NodeOptions) withDefaults() NodeOptions {
	if o.MaxInFlight <= 0 {
		o.MaxInFlight = 256
	}
	o.MaxPerModule, o.MaxPerIdentity = max(o.MaxPerModule, 0), max(o.MaxPerIdentity, 0)
	switch {
	case o.QueueSize == 0:
		o.QueueSize = 2 * o.MaxInFlight
	case o.QueueSize < 0:
		o.QueueSize = 0
	}
	if o.DrainGrace <= 0 {
		o.DrainGrace = 10 * time.Second
	}
	if o.CallGrace == nil {
		o.CallGrace = func() time.Duration { return defaultGrace }
	}
	if o.Version == "" {
		o.Version = "0.0.0"
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Limits.MaxBody == 0 {
		o.Limits.MaxBody = contextwire.DefaultLimits().MaxBody
	}
	return o
}

// Node hosts the modules of one process on the bus. Safe for concurrent use.
type Node struct {
	conns    *Conns
	host     Host
	opts     NodeOptions
	boot     string
	subjects subjects
	log      *slog.Logger
	calm     *calmLog
	tracer   trace.Tracer // nil for none
	counts   nodeCounts

	table   *cancel.Table
	gate    *gate
	replay  *replay
	rooms   rooms
	accepts accepts
	workers *workers
	subs    *moduleSubs
	direct  []Subscription // calls to this process by name
	facts   *publisher
	fetched atomic.Int64  // bytes of bodies read from the object store for calls here
	streams StreamHandler // nil when the host does not stream
	flows   outflows

	// beat is when the node last noticed time passing; a gap means that it was
	// stalled and that what waits in its buffers may be stale.
	beat          atomic.Int64
	stalledAt     stamp
	reconnectedAt stamp

	mu       sync.Mutex
	running  map[cancel.Key]*running
	own      map[cancel.Key]*ownCall
	draining bool
	closed   bool
	undo     []func()

	drained   chan struct{} // closed when a drain is complete
	drainOnce sync.Once

	life context.Context // ends last, and with it every call still running
	stop context.CancelCauseFunc
	work sync.WaitGroup // calls
	mine sync.WaitGroup // calls of our own
	wg   sync.WaitGroup // everything else
}

// NewNode puts host on the bus. When it returns, the node is subscribed and its
// record is in the catalogue.
func NewNode(conns *Conns, host Host, o NodeOptions) (*Node, error) {
	if err := ValidateNodeID(o.ID); err != nil {
		return nil, err
	}
	s, err := newSubjects(conns.prefix, o.Namespace)
	if err != nil {
		return nil, module.Errorf(module.CodeConfigInvalid, "node: %w", err)
	}
	o = o.withDefaults()
	log := o.Logger.With("node", o.ID)
	n := &Node{
		conns: conns, host: host, opts: o, boot: newBoot(), subjects: s, log: log, calm: newCalmLog(log),
		tracer:  tracerOf(o.TracerProvider),
		table:   cancel.NewTable(cancel.TableOptions{}),
		replay:  newReplay(),
		running: map[cancel.Key]*running{},
		own:     map[cancel.Key]*ownCall{},
		drained: make(chan struct{}),
	}
	n.gate = newGate(gateLimits{
		max: o.MaxInFlight, perModule: o.MaxPerModule, perIdentity: o.MaxPerIdentity, queueSize: o.QueueSize,
		debt: host.Debt, several: func() bool { return n.subs.hosted.Load() > 1 },
	})
	n.streams, _ = host.(StreamHandler)
	n.life, n.stop = context.WithCancelCause(context.Background())
	n.workers = newWorkers(n.life.Done(), &n.wg)
	n.subs = &moduleSubs{node: n, subs: map[string]*moduleSub{}}
	if err := n.start(); err != nil {
		n.teardown()
		return nil, err
	}
	return n, nil
}

// newBoot names one run of the process.
func newBoot() string { return module.NewSpanID()[:10] }

// ID returns the node's ID.
func (n *Node) ID() string { return n.opts.ID }

// Boot returns the name of this run of the node.
func (n *Node) Boot() string { return n.boot }

// Drained is closed when a drain, asked for here or over the bus, is complete
// and the process may exit.
func (n *Node) Drained() <-chan struct{} { return n.drained }

func (n *Node) start() error {
	n.beat.Store(time.Now().UnixNano())
	setup, stop := context.WithTimeoutCause(n.life, 15*time.Second, errors.New("the bus did not answer"))
	defer stop()
	if n.conns.JS != nil {
		cat, err := openCatalogue(setup, n.conns.JS, n.conns.replicas)
		if err != nil {
			return module.Wrap(module.CodeBusDisconnected, err, "cannot open the catalogue")
		}
		n.facts = newPublisher(n, cat)
		if err := n.learnPayloads(setup, cat); err != nil {
			return err
		}
	}
	if err := n.subscribeControl(); err != nil {
		return err
	}
	if n.streams != nil {
		if err := n.listenForCredit(); err != nil {
			return err
		}
	}
	for _, kind := range []string{kindCall, kindCheck} {
		subject := n.subjects.directed(kind, n.opts.ID, n.boot, ">")
		sub, err := n.conns.Calls.Subscribe(subject, "", func(m *nats.Msg) { n.receive(kind, m) })
		if err != nil {
			return fmt.Errorf("start node: %w", err)
		}
		n.direct = append(n.direct, sub)
	}
	n.wg.Go(n.heartbeat)
	if err := n.subs.update(); err != nil {
		return err
	}
	if err := n.startMicro(); err != nil {
		return err
	}
	for _, conn := range []Conn{n.conns.Calls, n.conns.Control} {
		if err := conn.Flush(setup); err != nil {
			return module.Errorf(module.CodeBusDisconnected, "start node: %w", err)
		}
	}
	n.onUndo(n.conns.OnReconnect(func() {
		n.reconnectedAt.now()
		n.facts.reconnected()
	}))
	n.onUndo(n.host.OnChange(n.changed))
	if n.facts != nil {
		if err := n.facts.publish(setup); err != nil {
			return module.Wrap(module.CodeBusDisconnected, err, "cannot enter the catalogue")
		}
		n.wg.Go(n.facts.run)
	}
	n.wg.Go(n.watchCallers)
	n.sweepBodies()
	return nil
}

func (n *Node) onUndo(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.undo = append(n.undo, f)
}

func (n *Node) subscribe(conn Conn, subject, queue string, handler func(*nats.Msg)) error {
	sub, err := conn.Subscribe(subject, queue, handler)
	if err != nil {
		return fmt.Errorf("start node: %w", err)
	}
	n.onUndo(func() { _ = sub.Unsubscribe() })
	return nil
}

// changed follows a change of the registry.
func (n *Node) changed() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.draining {
		return
	}
	n.wg.Go(func() {
		if err := n.subs.update(); err != nil {
			n.log.Error("cannot follow a change of the registry", "cause", err)
		}
		n.facts.poke()
	})
}

// Close ends the node at once: calls still running are cancelled with cause
// shutdown and waited for. Drain first to let them finish. The connections stay
// open.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	n.draining = true
	n.mu.Unlock()
	n.teardown()
	return nil
}

func (n *Node) teardown() {
	n.leave(n.subs.close())
	cause := cancel.Because(cancel.Shutdown, n.opts.ID, "node closed")
	n.stop(cause)
	n.cancelRunning(cause)
	n.work.Wait()
	n.mine.Wait()
	n.accepts.close()
	n.leave(n.direct)
	if err := n.flushReplies(); err != nil {
		n.log.Warn("closed without the bus", "cause", err)
	}
	n.mu.Lock()
	undo := n.undo
	n.undo, n.closed = nil, true
	n.mu.Unlock()
	for _, f := range undo {
		f()
	}
	n.wg.Wait()
	n.facts.leave()
}

// cancelRunning cancels every call, and lets no other one begin.
func (n *Node) cancelRunning(cause *cancel.Cause) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.draining = true
	for _, r := range n.running {
		r.token.Cancel(cause)
	}
}

// leave gives subscriptions up, after a word to every caller whose request had
// been routed here already.
func (n *Node) leave(subs []Subscription) {
	if n.conns.Calls.Connected() && drainAll(subs, hardStop) == nil {
		return
	}
	for _, sub := range subs {
		_ = sub.Unsubscribe() // the connection is gone when it fails
	}
}

// heartbeat notices stalls and wakes calls that wait for a slot freed by the
// end of an abandoned module.
func (n *Node) heartbeat() {
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-n.life.Done():
			return
		case <-t.C:
			n.noticeStall()
			n.beat.Store(time.Now().UnixNano())
			n.gate.wake()
			n.workers.rest()
			n.replay.expire(time.Now())
		}
	}
}

// stallLimit is the gap after which what waited may be stale.
const stallLimit = 500 * time.Millisecond

func (n *Node) noticeStall() {
	if time.Since(time.Unix(0, n.beat.Load())) > stallLimit {
		n.stalledAt.now()
	}
}

// doubtful reports whether what arrives now may have waited so long that its
// caller has given up.
func (n *Node) doubtful() bool {
	n.noticeStall()
	return n.stalledAt.within(2*time.Second) || n.reconnectedAt.within(time.Second)
}
