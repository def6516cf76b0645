package jetstream_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/loop/looptest"
	"github.com/apbus/apbus/module"
)

// openLoop opens the store on a connection of its own, closed by the returned func.
func openLoop(t *testing.T, s *natstest.Server, o durable.LoopOptions) (*durable.LoopStore, func()) {
	t.Helper()
	nc := s.Connect()
	js, err := natsjs.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	o.JS, o.Logger = js, quiet()
	store, err := durable.OpenLoop(t.Context(), o)
	if err != nil {
		t.Fatalf("OpenLoop: %v", err)
	}
	return store, nc.Close
}

// inLoop runs a test in a bubble with a server of its own.
func inLoop(t *testing.T, test func(t *testing.T, s *natstest.Server, store *durable.LoopStore)) {
	t.Helper()
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t, natstest.Options{})
		defer s.Close()
		store, disconnect := openLoop(t, s, durable.LoopOptions{})
		defer disconnect()
		test(t, s, store)
	})
}

func TestLoopStoreContract(t *testing.T) {
	looptest.TestStore(t, func(t *testing.T) loop.Store {
		s := natstest.New(t, natstest.Options{})
		t.Cleanup(s.Close)
		store, disconnect := openLoop(t, s, durable.LoopOptions{})
		t.Cleanup(disconnect)
		return store
	})
}

func TestLoopStoreSurvivesTheServer(t *testing.T) {
	inLoop(t, func(t *testing.T, s *natstest.Server, store *durable.LoopStore) {
		ctx := t.Context()
		rev, err := store.Put(ctx, loop.BucketKnowledge, "fact.a", []byte("1"), 0)
		if err != nil {
			t.Fatal(err)
		}
		first, err := store.Append(ctx, "log", []byte("one"), 0)
		if err != nil {
			t.Fatal(err)
		}
		s.Restart()
		if e, err := store.Get(ctx, loop.BucketKnowledge, "fact.a"); err != nil || string(e.Value) != "1" || e.Rev != rev {
			t.Errorf("got %+v, %v", e, err)
		}
		if _, err := store.Append(ctx, "log", []byte("late"), 0); !errors.Is(err, loop.ErrConflict) {
			t.Errorf("late append after a restart: %v, want a conflict", err)
		}
		if _, err := store.Append(ctx, "log", []byte("two"), first); err != nil {
			t.Error(err)
		}
	})
}

func TestLoopLockOfADeadHolder(t *testing.T) {
	inLoop(t, func(t *testing.T, s *natstest.Server, store *durable.LoopStore) {
		other, kill := openLoop(t, s, durable.LoopOptions{})
		unlock, err := other.Lock(t.Context(), "run.all", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		// It is renewed for longer than it would live by itself.
		pass(time.Minute)
		if _, err := store.Lock(t.Context(), "run.all", time.Hour); !errors.Is(err, loop.ErrLocked) {
			t.Fatalf("a held lock: %v, want ErrLocked", err)
		}
		kill()
		pass(15 * time.Second)
		mine, err := store.Lock(t.Context(), "run.all", time.Hour)
		if err != nil {
			t.Fatalf("the lock of a dead holder: %v", err)
		}
		ctx, stop := context.WithCancelCause(t.Context())
		stop(errors.New("it is dead"))
		_ = unlock(ctx) // only ends its goroutine
		if err := mine(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestLoopLockEndsByItself(t *testing.T) {
	inLoop(t, func(t *testing.T, _ *natstest.Server, store *durable.LoopStore) {
		unlock, err := store.Lock(t.Context(), "run.all", 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		pass(35 * time.Second)
		next, err := store.Lock(t.Context(), "run.all", 20*time.Second)
		if err != nil {
			t.Fatalf("after its time: %v", err)
		}
		// Whoever held it before does not give back what is somebody else's now.
		if err := unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := store.Lock(t.Context(), "run.all", time.Second); !errors.Is(err, loop.ErrLocked) {
			t.Errorf("%v, want ErrLocked", err)
		}
		if err := next(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestLoopNamespacesAreApart(t *testing.T) {
	inLoop(t, func(t *testing.T, s *natstest.Server, store *durable.LoopStore) {
		other, disconnect := openLoop(t, s, durable.LoopOptions{Namespace: "blue"})
		defer disconnect()
		if _, err := other.Put(t.Context(), loop.BucketKnowledge, "fact.a", []byte("x"), 0); err != nil {
			t.Fatal(err)
		}
		if n, err := store.Revision(t.Context()); err != nil || n != 0 {
			t.Errorf("revision %d, %v, want none", n, err)
		}
		for e, err := range store.List(t.Context(), loop.BucketKnowledge) {
			t.Errorf("listed %+v, %v", e, err)
		}
	})
}

func TestLoopStoreTellsOfChanges(t *testing.T) {
	inLoop(t, func(t *testing.T, _ *natstest.Server, store *durable.LoopStore) {
		news, end, err := store.Changes()
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		seq, err := store.Put(t.Context(), loop.BucketKnowledge, "fact.a", []byte("x"), 0)
		if err != nil {
			t.Fatal(err)
		}
		<-news
		if n, err := store.Revision(t.Context()); err != nil || n != seq {
			t.Errorf("revision %d, %v, want %d", n, err, seq)
		}
	})
}

// A page of a list ends in the middle of what there is.
func TestLoopListOfManyLargeValues(t *testing.T) {
	inLoop(t, func(t *testing.T, _ *natstest.Server, store *durable.LoopStore) {
		const n = 40
		value := []byte(strings.Repeat("v", 300<<10)) // 12 MB, more than one batch
		for i := range n {
			if _, err := store.Put(t.Context(), loop.BucketRecs, strings.Repeat("a", i+1), value, 0); err != nil {
				t.Fatal(err)
			}
		}
		var keys []string
		for e, err := range store.List(t.Context(), loop.BucketRecs) {
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, e.Key)
		}
		if len(keys) != n || !slices.IsSorted(keys) {
			t.Errorf("%d keys, want %d sorted ones", len(keys), n)
		}
	})
}

func TestOpenLoopRefusesWhatLosesThings(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t, natstest.Options{})
		defer s.Close()
		nc := s.Connect()
		defer nc.Close()
		js, err := natsjs.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		_, err = js.CreateStream(t.Context(), natsjs.StreamConfig{
			Name: durable.RecStream, Subjects: []string{"apbus.v1.rec.default.body.>", "apbus.v1.rec.default.audit.>"}, MaxAge: time.Hour, AllowDirect: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := durable.OpenLoop(t.Context(), durable.LoopOptions{JS: js, Logger: quiet()}); module.CodeOf(err) != module.CodeConfigInvalid ||
			!strings.Contains(err.Error(), "max_age") {
			t.Errorf("got %v, want a refusal that names max_age", err)
		}
	})
}
