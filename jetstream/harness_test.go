package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/task"
)

// quiet is a logger that says nothing.
func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// modes are the two ways of storing.
var modes = [...]durable.Durability{durable.PowerSafe, durable.ProcessSafe}

// inModes runs a test in a bubble in both modes, each on a server of its own.
func inModes(t *testing.T, test func(t *testing.T, s *natstest.Server, o durable.Options)) {
	t.Helper()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				s := natstest.New(t, natstest.Options{SyncAlways: mode == durable.PowerSafe})
				defer s.Close()
				test(t, s, durable.Options{Durability: mode, Logger: quiet()})
			})
		})
	}
}

// open opens the log on a connection of its own, closed by the returned func.
func open(t *testing.T, s *natstest.Server, o durable.Options, opts ...nats.Option) (*durable.Store, func()) {
	t.Helper()
	nc := s.Connect(opts...)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	o.JS = js
	store, err := durable.Open(t.Context(), o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return store, nc.Close
}

// openOver is open over a way of the test's.
func openOver(t *testing.T, way nats.InProcessConnProvider, o durable.Options) (*durable.Store, func()) {
	t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(way), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.PingInterval(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	o.JS = js
	store, err := durable.Open(t.Context(), o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return store, nc.Close
}

// reign is a leadership that a test holds until it leaves.
type reign struct {
	log   *durable.Log
	ctx   context.Context
	leave func() error
}

// lead waits until store leads and keeps the lead until the test leaves.
func lead(t testing.TB, store *durable.Store) *reign {
	t.Helper()
	ctx, stop := context.WithCancelCause(t.Context())
	began := make(chan *reign, 1)
	end := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- store.Elect(ctx, func(ctx context.Context, log *durable.Log) error {
			select {
			case began <- &reign{log: log, ctx: ctx}:
			default:
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-end:
				return nil
			}
		})
	}()
	select {
	case r := <-began:
		r.leave = sync.OnceValue(func() error {
			close(end)
			stop(errors.New("the test leaves"))
			return <-done
		})
		return r
	case err := <-done:
		stop(nil)
		t.Fatalf("Elect: %v", err)
	case <-time.After(time.Minute):
		stop(nil)
		t.Fatal("no lead within a minute")
	}
	return nil
}

// entries makes n task entries with bodies that name a generation.
func entries(from, n int, generation string) []task.Entry {
	list := make([]task.Entry, n)
	for i := range list {
		key := fmt.Sprintf("task.%06d", from+i)
		list[i] = task.Entry{Key: key, Body: []byte(generation + " " + key)}
	}
	return list
}

// load returns what the log holds as a map from key to body.
func load(t *testing.T, log task.Log, prefixes ...string) map[string]string {
	t.Helper()
	held := map[string]string{}
	var last uint64
	for e, err := range log.Load(t.Context(), prefixes...) {
		if err != nil {
			t.Fatalf("Load: %v", err)
		}
		if e.Seq <= last {
			t.Fatalf("Load: sequence %d of %s after %d", e.Seq, e.Key, last)
		}
		last = e.Seq
		if _, twice := held[e.Key]; twice {
			t.Fatalf("Load: %s twice", e.Key)
		}
		held[e.Key] = string(e.Body)
	}
	return held
}

// expect is what entries leave behind.
func expect(into map[string]string, list []task.Entry) {
	for _, e := range list {
		if e.Delete {
			delete(into, e.Key)
			continue
		}
		into[e.Key] = string(e.Body)
	}
}

func equal(a, b map[string]string) bool { return maps.Equal(a, b) }

// same compares what is held with what should be.
func same(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	if maps.Equal(got, want) {
		return
	}
	var b strings.Builder
	for k, v := range want {
		if g, ok := got[k]; !ok || g != v {
			fmt.Fprintf(&b, "\n%s: got %.80q, want %.80q", k, g, v)
		}
	}
	for k, v := range got {
		if _, ok := want[k]; !ok {
			fmt.Fprintf(&b, "\n%s: got %.80q, want nothing", k, v)
		}
	}
	t.Errorf("%s: %d entries, want %d%.2000s", what, len(got), len(want), b.String())
}

// pass lets time pass in a bubble.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// contextFor is the test's context with a limit.
func contextFor(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeoutCause(t.Context(), d, errors.New("the test waited too long"))
}
