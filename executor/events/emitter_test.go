package events_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/executor/events"
	"github.com/apbus/apbus/module"
)

func TestPatterns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const failed = events.DeliveryFailed
		all := []string{"apcore.acl.denied", "apcore.acl.audit", "apcore.acls", "ACL", failed}
		for _, tt := range []struct {
			name    string
			pattern string
			exact   bool
			want    []string
		}{
			{"default", "", false, all[:4]},
			{"everything", "*", false, all[:4]},
			{"a family", "apcore.acl.*", false, all[:2]},
			{"one character", "apcore.acl?", false, all[2:3]},
			{"case counts", "acl", false, nil},
			{"literal", "apcore.acl.denied", false, all[:1]},
			{"no classes", "apcore.acl[s]", false, nil},
			{"delivery failures by name", failed, false, all[4:]},
			{"delivery failures by another pattern", "apcore.*", false, []string{all[0], all[1], all[2], failed}},
			{"exact", "apcore.acl.denied", true, all[:1]},
			{"exact knows no pattern", "apcore.acl.*", true, nil},
		} {
			e, _ := emitter(t, events.Options{})
			in := &inbox{}
			subscribe(t, e, in, events.SubscribeOptions{Pattern: tt.pattern, Exact: tt.exact})
			emit(e, all...)
			e.Flush(0)
			equal(t, tt.name, in.types(), tt.want)
		}
	})
}

func TestEmitFillsIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := emitter(t, events.Options{})
		in := &inbox{}
		sub := subscribe(t, e, in, events.SubscribeOptions{})
		at := time.Now().Add(-time.Hour)
		e.Emit(module.Event{Type: "a"})
		e.Emit(module.Event{Type: "b", At: at, Severity: module.SeverityFatal})
		e.Flush(0)
		equal(t, "events", in.events(), []module.Event{
			{Type: "a", At: time.Now().UTC(), Severity: "info"}, {Type: "b", At: at, Severity: "fatal"},
		})
		if sub.ID() != "custom-1" || sub.Type() != "custom" {
			t.Errorf("id %s, type %s", sub.ID(), sub.Type())
		}
		if other := subscribe(t, e, in, events.SubscribeOptions{}); other.ID() != "custom-2" {
			t.Errorf("second id %s", other.ID())
		}
	})
}

func TestSubscribeRefuses(t *testing.T) {
	e, _ := emitter(t, events.Options{})
	in := &inbox{}
	for name, o := range map[string]events.SubscribeOptions{
		"attempts":   {Retry: events.RetryPolicy{MaxAttempts: -1}},
		"backoff":    {Retry: events.RetryPolicy{InitialBackoff: -1}},
		"multiplier": {Retry: events.RetryPolicy{Multiplier: .5}},
		"threshold":  {Breaker: &events.BreakerPolicy{OpenThreshold: -1}},
	} {
		if _, err := e.Subscribe(in, o); module.CodeOf(err) != module.CodeInvalidInput {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := e.Subscribe(nil, events.SubscribeOptions{}); module.CodeOf(err) != module.CodeInvalidInput {
		t.Errorf("nil: %v", err)
	}
	if _, err := e.On("x", nil); module.CodeOf(err) != module.CodeInvalidInput {
		t.Errorf("nil function: %v", err)
	}
}

func TestUnsubscribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := emitter(t, events.Options{})
		var got []string
		sub, err := e.On("a", func(ev module.Event) { got = append(got, ev.Type) })
		if err != nil {
			t.Fatal(err)
		}
		emit(e, "a", "a.b")
		e.Flush(0)
		sub.Unsubscribe()
		sub.Unsubscribe() // nothing is there any more
		emit(e, "a")
		<-sub.Done()
		equal(t, "events", got, []string{"a"})

		// A subscriber may end itself, and what waits for it is dropped in peace.
		in := &inbox{}
		var self *events.Subscription
		in.fail = func(int, module.Event) error { self.Unsubscribe(); return nil }
		self = subscribe(t, e, in, events.SubscribeOptions{OnFailure: func(ev module.Event, err error, _ int) {
			t.Errorf("event %s nobody wants any more is a failure: %v", ev.Type, err)
		}})
		emit(e, "1", "2", "3")
		<-self.Done()
		e.Flush(0)
		if n, _ := in.attempts(); n > 3 || n < 1 {
			t.Errorf("%d deliveries", n)
		}
	})
}

// A slow subscriber holds up neither the emitter nor the others; what does not fit
// its queue is a dead letter.
func TestOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, log := emitter(t, events.Options{QueueSize: 2})
		release := make(chan struct{})
		slow := &inbox{fail: func(int, module.Event) error { <-release; return nil }}
		var lost []string
		subscribe(t, e, slow, events.SubscribeOptions{ID: "slow", OnFailure: func(ev module.Event, err error, n int) {
			if !errors.Is(err, events.ErrOverflow) || n != 0 {
				t.Errorf("failure %v after %d", err, n)
			}
			lost = append(lost, ev.Type)
		}})
		fast, letters := &inbox{}, &inbox{}
		subscribe(t, e, fast, events.SubscribeOptions{})
		subscribe(t, e, letters, events.SubscribeOptions{Pattern: events.DeliveryFailed})
		for i := range 5 {
			emit(e, fmt.Sprint(i))
			synctest.Wait()
		}
		equal(t, "fast", fast.types(), []string{"0", "1", "2", "3", "4"})
		equal(t, "lost", lost, []string{"3", "4"})
		if got := letters.events(); len(got) != 2 || got[0].Data["error"].(obj)["type"] != "pending_overflow" ||
			got[0].Data["subscriber_id"] != "slow" || got[0].Data["attempt_count"] != int64(0) {
			t.Errorf("dead letters %v", got)
		}
		close(release)
		start := time.Now()
		if e.Flush(0); time.Since(start) != 0 {
			t.Errorf("a flush waits %v for events that were lost", time.Since(start))
		}
		equal(t, "slow", slow.types(), []string{"0", "1", "2"})
		if log.count("event not delivered") != 2 {
			t.Error("the log does not say so")
		}
	})
}

func TestFlushGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := emitter(t, events.Options{})
		release := make(chan struct{})
		subscribe(t, e, &inbox{fail: func(int, module.Event) error { <-release; return nil }}, events.SubscribeOptions{})
		e.Flush(time.Hour) // nothing waits: at once
		start := time.Now()
		emit(e, "a")
		e.Flush(0)
		if d := time.Since(start); d != events.DefaultFlushTimeout {
			t.Errorf("waited %v", d)
		}
		close(release)
	})
}

func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := events.New(events.Options{Logger: quiet()})
		in := &inbox{fail: func(int, module.Event) error { time.Sleep(time.Second); return nil }}
		sub := subscribe(t, e, in, events.SubscribeOptions{})
		emit(e, "a", "b")
		if err := e.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		emit(e, "late")
		equal(t, "events", in.types(), []string{"a", "b"})
		<-sub.Done()
		if _, err := e.Subscribe(in, events.SubscribeOptions{}); !errors.Is(err, events.ErrClosed) {
			t.Errorf("subscribe after the end: %v", err)
		}
		if err := e.Shutdown(t.Context()); err != nil {
			t.Errorf("second shutdown: %v", err)
		}
	})
}

// What a shutdown has no time for is told, and its subscriber's context ends.
func TestShutdownRunsOutOfTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := events.New(events.Options{Logger: quiet()})
		var mu sync.Mutex
		lost := map[string]error{}
		stuck := events.SubscriberFunc(func(ctx context.Context, _ module.Event) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		subscribe(t, e, stuck, events.SubscribeOptions{Timeout: -1, OnFailure: func(ev module.Event, err error, _ int) {
			mu.Lock()
			defer mu.Unlock()
			lost[ev.Type] = err
		}})
		emit(e, "a", "b")
		reason := errors.New("in a hurry")
		ctx, stop := context.WithTimeoutCause(t.Context(), time.Second, reason)
		defer stop()
		if err := e.Shutdown(ctx); !errors.Is(err, events.ErrClosed) || !errors.Is(err, reason) {
			t.Errorf("shutdown: %v", err)
		}
		if err := e.Shutdown(t.Context()); err != nil { // the subscriber has obeyed
			t.Errorf("second shutdown: %v", err)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(lost) != 2 || !errors.Is(lost["a"], events.ErrClosed) || !errors.Is(lost["b"], events.ErrClosed) {
			t.Errorf("lost %v", lost)
		}
	})
}

// Every event is delivered once or told as lost, whatever happens at the same time.
func TestConcurrentUse(t *testing.T) {
	e := events.New(events.Options{QueueSize: 8, Logger: quiet()})
	var mu sync.Mutex
	seen := map[string]int{}
	note := func(typ string) {
		mu.Lock()
		defer mu.Unlock()
		seen[typ]++
	}
	_, err := e.Subscribe(events.SubscriberFunc(func(_ context.Context, ev module.Event) error {
		note(ev.Type)
		return nil
	}), events.SubscribeOptions{OnFailure: func(ev module.Event, _ error, _ int) { note(ev.Type) }})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 200 {
				emit(e, fmt.Sprintf("%d-%d", w, i))
				if i%10 == 0 {
					s, err := e.On("x", func(module.Event) {})
					if err != nil {
						t.Error(err)
						return
					}
					s.Unsubscribe()
				}
			}
		})
	}
	wg.Wait()
	if err := e.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 800 {
		t.Errorf("%d of 800 events are accounted for", len(seen))
	}
	for typ, n := range seen {
		if n != 1 {
			t.Errorf("%s came %d times", typ, n)
		}
	}
}
