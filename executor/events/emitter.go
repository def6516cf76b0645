package events

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// Types of the events this package makes (protocol §9.16).
const (
	DeliveryFailed          = "apcore.event.delivery_failed"
	SubscriberCircuitOpened = "apcore.subscriber.circuit_opened"
	SubscriberCircuitClosed = "apcore.subscriber.circuit_closed"
)

// everything is the pattern that matches every type but DeliveryFailed.
const everything = "*"

// DefaultFlushTimeout is how long [Emitter.Flush] waits when it is given nothing.
const DefaultFlushTimeout = 5 * time.Second

// Options configures an [Emitter]. The zero value has defaults.
type Options struct {
	// QueueSize is how many events may wait for one subscriber, 1024 by default.
	QueueSize int
	// Logger is slog.Default when nil.
	Logger *slog.Logger
}

// Emitter delivers events to subscribers. Safe for concurrent use.
type Emitter struct {
	o    Options
	work sync.WaitGroup

	mu     sync.RWMutex // writing: subscribe, unsubscribe, shut down; reading: emit
	subs   []*Subscription
	closed bool
	counts map[string]int // IDs given out, by subscriber type

	waiting sync.Mutex
	pending int
	idle    chan struct{} // closed when pending is 0; nil while nobody waits
}

// New makes an emitter without subscribers, which costs next to nothing.
func New(o Options) *Emitter {
	if o.QueueSize <= 0 {
		o.QueueSize = 1024
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Emitter{o: o, counts: map[string]int{}}
}

// SubscribeOptions says what a subscriber gets and how. The zero value is every
// event with the defaults.
type SubscribeOptions struct {
	// Pattern is matched with the event's type by algorithm A25 ('*' and '?', case
	// counts); "*" when empty, which is every event but DeliveryFailed. That one
	// comes only through any other pattern that matches it.
	Pattern string
	// Exact compares Pattern with the type instead of matching it.
	Exact bool
	// ID names the subscription in events and logs, "<type>-<n>" when empty.
	ID string
	// Retry is how a failed delivery is tried again.
	Retry RetryPolicy
	// Timeout bounds one try, 5 s by default; a negative one is none.
	Timeout time.Duration
	// OnFailure is told of every dead letter of this subscription, in its goroutine,
	// or in the emitting one, with 0 tries, for an event that found the queue full
	// (then err is [ErrOverflow]). It must not block.
	OnFailure func(e module.Event, err error, attempts int)
	// Breaker, when not nil, gives up on a subscriber that keeps failing.
	Breaker *BreakerPolicy
}

// Causes of dead letters that no subscriber returned.
var (
	// ErrOverflow is that of an event that found the queue full.
	ErrOverflow = errors.New("events: pending_overflow")
	// ErrClosed is that of an event that was waiting when a shutdown ran out of
	// time.
	ErrClosed = errors.New("events: the emitter is closed")
)

// errUnsubscribed ends a subscriber that is no longer wanted.
var errUnsubscribed = errors.New("events: unsubscribed")

// Subscribe adds a subscriber; its goroutine lives until [Subscription.Unsubscribe]
// or the end of Shutdown. Policies out of range and a nil subscriber are
// GENERAL_INVALID_INPUT, and so is a closed emitter.
func (e *Emitter) Subscribe(s Subscriber, o SubscribeOptions) (*Subscription, error) {
	if s == nil {
		return nil, module.Errorf(module.CodeInvalidInput, "subscriber is nil")
	}
	var err error
	if o.Retry, err = o.Retry.withDefaults(); err != nil {
		return nil, err
	}
	if o.Breaker != nil {
		policy, err := o.Breaker.withDefaults()
		if err != nil {
			return nil, err
		}
		o.Breaker = &policy
	}
	if o.Pattern == "" {
		o.Pattern = everything
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	sub := &Subscription{
		emitter: e, subscriber: s, o: o, kind: typeOf(s),
		queue: make(chan module.Event, e.o.QueueSize), stopping: make(chan struct{}), done: make(chan struct{}),
	}
	sub.ctx, sub.end = context.WithCancelCause(context.Background())
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		sub.end(ErrClosed)
		return nil, module.Errorf(module.CodeInvalidInput, "the emitter is closed: %w", ErrClosed)
	}
	if sub.o.ID == "" {
		e.counts[sub.kind]++
		sub.o.ID = fmt.Sprintf("%s-%d", sub.kind, e.counts[sub.kind])
	}
	e.subs = append(e.subs, sub)
	e.work.Go(sub.run)
	return sub, nil
}

// On calls fn for events of exactly one type (protocol, client on).
func (e *Emitter) On(eventType string, fn func(module.Event)) (*Subscription, error) {
	if fn == nil {
		return nil, module.Errorf(module.CodeInvalidInput, "subscriber is nil")
	}
	return e.Subscribe(SubscriberFunc(func(_ context.Context, ev module.Event) error {
		fn(ev)
		return nil
	}), SubscribeOptions{Pattern: eventType, Exact: true, Retry: RetryPolicy{MaxAttempts: 1}})
}

func typeOf(s Subscriber) string {
	if t, ok := s.(Typed); ok {
		return t.SubscriberType()
	}
	return "custom"
}

// Emit hands the event to every subscription that wants it. It never blocks and
// never fails; after Shutdown it drops. A missing time is now and a missing severity
// info. The data must not be changed afterwards.
func (e *Emitter) Emit(ev module.Event) {
	var full []*Subscription
	e.mu.RLock()
	if e.closed || len(e.subs) == 0 {
		e.mu.RUnlock()
		return
	}
	if ev.At.IsZero() {
		ev.At = time.Now().UTC()
	}
	if ev.Severity == "" {
		ev.Severity = module.SeverityInfo
	}
	for _, s := range e.subs {
		if !s.wants(ev.Type) {
			continue
		}
		e.add()
		select {
		case s.queue <- ev:
		default:
			e.finish(1)
			full = append(full, s)
		}
	}
	e.mu.RUnlock()
	for _, s := range full {
		s.dead(ev, ErrOverflow, 0)
	}
}

// Flush waits until every event emitted so far is delivered or a dead letter, for
// timeout at most, [DefaultFlushTimeout] for 0. Running out of time is no error.
func (e *Emitter) Flush(timeout time.Duration) {
	if timeout <= 0 {
		timeout = DefaultFlushTimeout
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-e.drained():
	case <-timer.C:
	}
}

// Shutdown stops taking events, delivers those that wait until ctx ends, and ends
// every subscription. What could not be delivered is logged and told to OnFailure;
// the error, ErrClosed with ctx's cause, says so. A subscriber that ignores its
// context is not waited for. Later calls wait in the same way.
func (e *Emitter) Shutdown(ctx context.Context) error {
	e.mu.Lock()
	e.closed = true
	subs := e.subs
	e.subs = nil
	e.mu.Unlock()
	for _, s := range subs {
		s.drain()
	}
	done := make(chan struct{})
	go func() {
		e.work.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	for _, s := range subs {
		s.end(ErrClosed)
	}
	return fmt.Errorf("%w before every event was delivered: %w", ErrClosed, context.Cause(ctx))
}

// add and finish count what waits or is being delivered.
func (e *Emitter) add() {
	e.waiting.Lock()
	e.pending++
	e.waiting.Unlock()
}

func (e *Emitter) finish(n int) {
	e.waiting.Lock()
	defer e.waiting.Unlock()
	e.pending -= n
	if e.pending == 0 && e.idle != nil {
		close(e.idle)
		e.idle = nil
	}
}

// drained is closed when nothing waits.
func (e *Emitter) drained() <-chan struct{} {
	e.waiting.Lock()
	defer e.waiting.Unlock()
	if e.pending == 0 {
		now := make(chan struct{})
		close(now)
		return now
	}
	if e.idle == nil {
		e.idle = make(chan struct{})
	}
	return e.idle
}

func (e *Emitter) remove(s *Subscription) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if i := slices.Index(e.subs, s); i >= 0 {
		e.subs = slices.Delete(slices.Clone(e.subs), i, i+1)
	}
}

// wants reports whether the subscription's pattern lets a type through.
func (s *Subscription) wants(eventType string) bool {
	switch {
	case s.o.Exact:
		return s.o.Pattern == eventType
	case s.o.Pattern == everything:
		return eventType != DeliveryFailed
	}
	return schema.MatchGlob(s.o.Pattern, eventType)
}

func closeSubscriber(s Subscriber) error {
	if c, ok := s.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
