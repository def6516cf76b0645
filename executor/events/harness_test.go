package events_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor/events"
	"github.com/apbus/apbus/module"
)

type obj = map[string]any

var errBroken = errors.New("broken")

// inbox is a subscriber that keeps what it gets and fails as it is told.
type inbox struct {
	mu    sync.Mutex
	got   []string
	times []time.Time
	all   []module.Event
	fail  func(n int, e module.Event) error // n counts tries from 1
	tries int
}

func (b *inbox) OnEvent(_ context.Context, e module.Event) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tries++
	b.times = append(b.times, time.Now())
	if b.fail != nil {
		if err := b.fail(b.tries, e); err != nil {
			return err
		}
	}
	b.got = append(b.got, e.Type)
	b.all = append(b.all, e)
	return nil
}

func (b *inbox) types() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.got...)
}

func (b *inbox) events() []module.Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]module.Event(nil), b.all...)
}

func (b *inbox) attempts() (n int, gaps []time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := 1; i < len(b.times); i++ {
		gaps = append(gaps, b.times[i].Sub(b.times[i-1]))
	}
	return b.tries, gaps
}

// logText is a log that tests read.
type logText struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logText) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

// emitter is one that is shut down with the test.
func emitter(t testing.TB, o events.Options) (*events.Emitter, *logText) {
	t.Helper()
	l := &logText{}
	o.Logger = slog.New(slog.NewTextHandler(l, nil))
	e := events.New(o)
	t.Cleanup(func() {
		if err := e.Shutdown(context.Background()); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	})
	return e, l
}

func subscribe(t testing.TB, e *events.Emitter, s events.Subscriber, o events.SubscribeOptions) *events.Subscription {
	t.Helper()
	sub, err := e.Subscribe(s, o)
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

func emit(e *events.Emitter, types ...string) {
	for _, typ := range types {
		e.Emit(module.Event{Type: typ, ModuleID: "shop.orders", Data: obj{"n": int64(1)}})
	}
}

func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
