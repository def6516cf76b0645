package events_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/executor/events"
	"github.com/apbus/apbus/module"
)

func TestRetry(t *testing.T) {
	broken := func(int, module.Event) error { return errBroken }
	until := func(n int) func(int, module.Event) error {
		return func(try int, _ module.Event) error {
			if try < n {
				return errBroken
			}
			return nil
		}
	}
	ms := time.Millisecond
	for _, tt := range []struct {
		name  string
		retry events.RetryPolicy
		fail  func(int, module.Event) error
		tries int
		gaps  []time.Duration
		lost  bool
	}{
		{"at once", events.RetryPolicy{}, nil, 1, nil, false},
		{"second try", events.RetryPolicy{}, until(2), 2, []time.Duration{100 * ms}, false},
		{"used up", events.RetryPolicy{}, broken, 3, []time.Duration{100 * ms, 200 * ms}, true},
		{"no retry", events.RetryPolicy{MaxAttempts: 1}, broken, 1, nil, true},
		{
			"bounded", events.RetryPolicy{MaxAttempts: 5, InitialBackoff: 10 * ms, MaxBackoff: 50 * ms, Multiplier: 3}, broken, 5,
			[]time.Duration{10 * ms, 30 * ms, 50 * ms, 50 * ms}, true,
		},
		{"permanent", events.RetryPolicy{}, func(int, module.Event) error { return events.Permanent(errBroken) }, 1, nil, true},
		{"panic", events.RetryPolicy{}, func(int, module.Event) error { panic("secret") }, 1, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, log := emitter(t, events.Options{})
				in, letters := &inbox{fail: tt.fail}, &inbox{}
				var lost []string
				subscribe(t, e, in, events.SubscribeOptions{ID: "in", Pattern: "a", Retry: tt.retry, OnFailure: func(ev module.Event, err error, n int) {
					lost = append(lost, fmt.Sprint(ev.Type, n, errors.Is(err, errBroken)))
					panic("a handler may do that")
				}})
				subscribe(t, e, letters, events.SubscribeOptions{Pattern: events.DeliveryFailed})
				emit(e, "a")
				e.Flush(time.Minute)
				tries, gaps := in.attempts()
				equal(t, "tries", tries, tt.tries)
				equal(t, "waits", gaps, tt.gaps)
				if got := len(letters.types()) == 1 && len(lost) == 1; got != tt.lost {
					t.Errorf("dead letters %v, told %v", letters.types(), lost)
				}
				if log.count("secret") > 0 {
					t.Error("values in the log")
				}
			})
		})
	}
	if events.Permanent(nil) != nil {
		t.Error("no error became one")
	}
}

func TestDeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := emitter(t, events.Options{})
		letters := &inbox{}
		subscribe(t, e, letters, events.SubscribeOptions{Pattern: "apcore.event.*"})
		subscribe(t, e, &inbox{fail: func(int, module.Event) error { return errBroken }}, events.SubscribeOptions{
			ID: "audit", Pattern: "shop.sold", Retry: events.RetryPolicy{MaxAttempts: 2},
		})
		at := time.Now().UTC()
		emit(e, "shop.sold")
		e.Flush(0)
		got := letters.events()
		if len(got) != 1 {
			t.Fatalf("dead letters %v", got)
		}
		equal(t, "severity", got[0].Severity, module.SeverityError)
		equal(t, "module", got[0].ModuleID, "shop.orders")
		stamp := func(t time.Time) string { return t.Format("2006-01-02T15:04:05.000Z") }
		equal(t, "data", got[0].Data, obj{
			"subscriber_type": "custom", "subscriber_id": "audit", "attempt_count": int64(2),
			"original_event": obj{
				"name": "shop.sold", "payload": obj{"n": int64(1)},
				"metadata": obj{"module_id": "shop.orders", "timestamp": stamp(at)},
			},
			"error":     obj{"type": "*errors.errorString", "message": "broken"},
			"timestamp": stamp(at.Add(100 * time.Millisecond)),
		})
	})
}

// A failed delivery of the event about failed deliveries is one line in the log.
func TestNoSecondOrderDeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, log := emitter(t, events.Options{})
		in := &inbox{fail: func(int, module.Event) error { return errBroken }}
		subscribe(t, e, in, events.SubscribeOptions{Pattern: "apcore.*"})
		emit(e, "apcore.x")
		e.Flush(0)
		if n, _ := in.attempts(); n != 3+1 {
			t.Errorf("%d tries, want 3 and 1", n)
		}
		if n := log.count("level=ERROR"); n != 1 {
			t.Errorf("%d errors in the log", n)
		}
	})
}

func TestTryTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := emitter(t, events.Options{})
		letters := &inbox{}
		subscribe(t, e, letters, events.SubscribeOptions{Pattern: events.DeliveryFailed})
		slow := events.SubscriberFunc(func(ctx context.Context, _ module.Event) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		subscribe(t, e, slow, events.SubscribeOptions{Pattern: "a", Retry: events.RetryPolicy{MaxAttempts: 1}})
		start := time.Now()
		emit(e, "a")
		e.Flush(time.Minute)
		if d := time.Since(start); d != 5*time.Second {
			t.Errorf("took %v", d)
		}
		if got := letters.events(); len(got) != 1 || got[0].Data["error"].(obj)["type"] != "timeout" {
			t.Errorf("dead letters %v", got)
		}
	})
}

func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := emitter(t, events.Options{})
		broken := true
		in := &inbox{fail: func(int, module.Event) error {
			if broken {
				return errBroken
			}
			return nil
		}}
		watch := &inbox{}
		subscribe(t, e, in, events.SubscribeOptions{ID: "in", Pattern: "a", Retry: events.RetryPolicy{MaxAttempts: 1}, Breaker: &events.BreakerPolicy{}})
		subscribe(t, e, watch, events.SubscribeOptions{Pattern: "apcore.subscriber.*"})
		send := func(wantTries int) {
			t.Helper()
			emit(e, "a")
			e.Flush(0)
			if n, _ := in.attempts(); n != wantTries {
				t.Errorf("%d tries, want %d", n, wantTries)
			}
		}
		for i := range 5 {
			send(i + 1)
		}
		send(5) // open: discarded
		time.Sleep(time.Minute - time.Nanosecond)
		send(5)
		time.Sleep(time.Nanosecond)
		send(6) // the probe fails
		send(6)
		time.Sleep(time.Minute)
		broken = false
		send(7)
		send(8)
		var got []string
		for _, ev := range watch.events() {
			got = append(got, fmt.Sprint(ev.Type, " ", ev.Severity, " ", ev.Data))
		}
		equal(t, "events", got, []string{
			"apcore.subscriber.circuit_opened warn map[consecutive_failures:5 subscriber_id:in subscriber_type:custom]",
			"apcore.subscriber.circuit_opened warn map[consecutive_failures:6 subscriber_id:in subscriber_type:custom]",
			"apcore.subscriber.circuit_closed info map[recovery_attempt:2 subscriber_id:in subscriber_type:custom]",
		})
		equal(t, "delivered", in.types(), []string{"a", "a"})
	})
}

// Failures that are not in a row do not open the circuit.
func TestBreakerCountsInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := emitter(t, events.Options{})
		in := &inbox{fail: func(n int, _ module.Event) error {
			if n%2 == 0 {
				return errBroken
			}
			return nil
		}}
		subscribe(t, e, in, events.SubscribeOptions{
			Retry: events.RetryPolicy{MaxAttempts: 1}, Breaker: &events.BreakerPolicy{OpenThreshold: 2},
		})
		emit(e, "1", "2", "3", "4", "5", "6")
		e.Flush(0)
		equal(t, "delivered", in.types(), []string{"1", "3", "5"})
	})
}
