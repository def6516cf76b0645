package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/apbus/apbus/module"
)

// Subscription is one subscriber at one emitter.
type Subscription struct {
	emitter    *Emitter
	subscriber Subscriber
	o          SubscribeOptions
	kind       string

	ctx      context.Context // the life of the goroutine
	end      context.CancelCauseFunc
	queue    chan module.Event
	stopOnce sync.Once
	stopping chan struct{} // closed: deliver what waits, then end
	done     chan struct{} // closed: the goroutine has ended

	// Owned by the goroutine.
	breaker breaker
}

// ID names the subscription.
func (s *Subscription) ID() string { return s.o.ID }

// Type returns the subscriber's type.
func (s *Subscription) Type() string { return s.kind }

// Done is closed when the subscription has ended.
func (s *Subscription) Done() <-chan struct{} { return s.done }

// Unsubscribe ends the subscription; events that still wait for it are dropped. It
// does not wait, and a second one does nothing. A subscriber may call it.
func (s *Subscription) Unsubscribe() {
	s.emitter.remove(s)
	s.end(errUnsubscribed)
	s.drain()
}

func (s *Subscription) drain() { s.stopOnce.Do(func() { close(s.stopping) }) }

func (s *Subscription) run() {
	defer close(s.done)
	defer s.close()
	defer s.end(ErrClosed)
	for {
		select {
		case ev := <-s.queue:
			s.take(ev)
			continue
		case <-s.ctx.Done():
		case <-s.stopping:
		}
		break
	}
	for { // nobody adds to the queue any more
		select {
		case ev := <-s.queue:
			s.take(ev)
		default:
			return
		}
	}
}

// take brings one event to its end.
func (s *Subscription) take(ev module.Event) {
	defer s.emitter.finish(1)
	switch cause := context.Cause(s.ctx); {
	case errors.Is(cause, errUnsubscribed):
		return
	case cause != nil:
		s.dead(ev, cause, 0)
		return
	}
	probe, open := s.breaker.admit(s.o.Breaker)
	if open {
		return
	}
	attempts := s.o.Retry.MaxAttempts
	if probe || ev.Type == DeliveryFailed {
		attempts = 1
	}
	tries, err := s.deliver(ev, attempts)
	s.judge(err == nil)
	if err != nil && !errors.Is(context.Cause(s.ctx), errUnsubscribed) {
		s.dead(ev, err, tries)
	}
}

// deliver tries until it works, it cannot, or the tries are used up.
func (s *Subscription) deliver(ev module.Event, attempts int) (tries int, err error) {
	for tries = 1; ; tries++ {
		if err = s.try(ev); err == nil || tries >= attempts || isPermanent(err) {
			return tries, err
		}
		timer := time.NewTimer(s.o.Retry.backoff(tries - 1))
		select {
		case <-timer.C:
		case <-s.ctx.Done():
			timer.Stop()
			return tries, err
		}
	}
}

func (s *Subscription) try(ev module.Event) (err error) {
	ctx := s.ctx
	if s.o.Timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, s.o.Timeout, fmt.Errorf("events: no answer within %v: %w", s.o.Timeout, context.DeadlineExceeded))
		defer stop()
	}
	defer func() {
		if v := recover(); v != nil {
			s.log(slog.LevelError, "event subscriber panicked", ev, slog.String("stack", string(debug.Stack())))
			err = Permanent(errors.New("events: the subscriber panicked"))
		}
	}()
	return s.subscriber.OnEvent(ctx, ev)
}

// dead is the end of an event that was not delivered. One about delivery is logged
// and makes no further event.
func (s *Subscription) dead(ev module.Event, err error, attempts int) {
	if ev.Type == DeliveryFailed {
		s.log(slog.LevelError, "event about a failed delivery not delivered", ev, slog.String("cause", err.Error()))
		return
	}
	s.log(slog.LevelWarn, "event not delivered", ev, slog.String("cause", err.Error()), slog.Int("attempts", attempts))
	if s.o.OnFailure != nil {
		s.tellFailure(ev, err, attempts)
	}
	now := time.Now().UTC()
	s.emitter.Emit(module.Event{
		Type: DeliveryFailed, ModuleID: ev.ModuleID, Severity: module.SeverityError, At: now,
		Data: map[string]any{
			"subscriber_type": s.kind, "subscriber_id": s.o.ID,
			"original_event": map[string]any{
				"name": ev.Type, "payload": payload(ev),
				"metadata": map[string]any{"module_id": nullText(ev.ModuleID), "timestamp": timestamp(ev.At)},
			},
			"error":         map[string]any{"type": errorType(err), "message": err.Error()},
			"attempt_count": int64(attempts), "timestamp": timestamp(now),
		},
	})
}

func (s *Subscription) tellFailure(ev module.Event, err error, attempts int) {
	defer func() {
		if recover() != nil {
			s.log(slog.LevelError, "event failure handler panicked", ev)
		}
	}()
	s.o.OnFailure(ev, err, attempts)
}

// errorType is a short name of what went wrong.
func errorType(err error) string {
	switch {
	case errors.Is(err, ErrOverflow):
		return "pending_overflow"
	case errors.Is(err, ErrClosed):
		return "closed"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	if e := module.AsError(err); e != nil {
		return string(e.Code)
	}
	if p, ok := errors.AsType[permanentError](err); ok {
		err = p.error
	}
	return fmt.Sprintf("%T", err)
}

func (s *Subscription) close() {
	if err := closeSubscriber(s.subscriber); err != nil {
		s.log(slog.LevelWarn, "event subscriber not closed", module.Event{}, slog.String("cause", err.Error()))
	}
}

func (s *Subscription) log(level slog.Level, msg string, ev module.Event, more ...slog.Attr) {
	attrs := append([]slog.Attr{slog.String("subscriber_id", s.o.ID), slog.String("subscriber_type", s.kind)}, more...)
	if ev.Type != "" {
		attrs = append(attrs, slog.String("event_type", ev.Type), slog.String("module_id", ev.ModuleID))
	}
	s.emitter.o.Logger.LogAttrs(context.Background(), level, msg, attrs...)
}
