package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/task"
)

func TestOneLeads(t *testing.T) {
	inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
		ctx, stop := context.WithCancelCause(t.Context())
		var (
			wg      sync.WaitGroup
			mu      sync.Mutex
			leading int
			terms   int
			closers []func()
		)
		for i := range 5 {
			o.Holder = fmt.Sprint("router-", i)
			store, disconnect := open(t, s, o)
			closers = append(closers, disconnect)
			wg.Go(func() {
				for ctx.Err() == nil {
					err := store.Elect(ctx, func(ctx context.Context, log *durable.Log) error {
						mu.Lock()
						leading++
						terms++
						if leading != 1 {
							t.Errorf("%d lead at once", leading)
						}
						mu.Unlock()
						defer func() { mu.Lock(); leading--; mu.Unlock() }()
						select {
						case <-ctx.Done():
							return context.Cause(ctx)
						case <-time.After(3 * time.Second):
							return nil
						}
					})
					if err != nil {
						t.Errorf("Elect: %v", err)
					}
				}
			})
		}
		pass(time.Minute)
		stop(errors.New("over"))
		wg.Wait()
		for _, c := range closers {
			c()
		}
		if terms < 18 {
			t.Errorf("%d terms of 3 s in a minute", terms)
		}
	})
}

func TestHandOverIsQuick(t *testing.T) {
	inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
		one, closeOne := open(t, s, o)
		defer closeOne()
		two, closeTwo := open(t, s, o)
		defer closeTwo()
		first := lead(t, one)
		next := make(chan *reign, 1)
		go func() { next <- lead(t, two) }()
		pass(5 * time.Second)
		if len(next) != 0 {
			t.Fatal("two lead at once")
		}
		began := time.Now()
		if err := first.leave(); err != nil {
			t.Fatalf("leave: %v", err)
		}
		second := <-next
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("hand-over took %v", took)
		}
		if first.log.Leading() && !second.log.Leading() {
			t.Error("the wrong one believes that it leads")
		}
		if err := first.log.Commit(t.Context(), entries(0, 1, "late")); !errors.Is(err, task.ErrDeposed) {
			t.Errorf("Commit after leaving = %v", err)
		}
		_ = second.leave()
	})
}

// A leader that is frozen and comes back late stores nothing, whatever it had
// begun.
func TestFrozenLeaderStoresNothing(t *testing.T) {
	for _, size := range []int{1, 2, 40} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
				way := newIce(s)
				one, closeOne := open(t, s, o, nats.InProcessServer(way), nats.PingInterval(time.Hour))
				defer closeOne()
				two, closeTwo := open(t, s, o)
				defer closeTwo()
				first := lead(t, one)
				want := entries(0, size, "first")
				if err := first.log.Commit(t.Context(), want); err != nil {
					t.Fatal(err)
				}
				held := map[string]string{}
				expect(held, want)

				way.freeze(false)
				late := make(chan error, 1)
				go func() { late <- first.log.Commit(t.Context(), entries(0, size, "late")) }()
				began := time.Now()
				second := lead(t, two)
				if took := time.Since(began); took > 3*time.Second {
					t.Errorf("takeover took %v", took)
				}
				if first.ctx.Err() == nil || first.log.Leading() {
					t.Error("the frozen leader still believes that it leads")
				}
				want = entries(1, size, "second")
				if err := second.log.Commit(t.Context(), want); err != nil {
					t.Fatal(err)
				}
				expect(held, want)

				way.thaw()
				if err := <-late; !errors.Is(err, task.ErrDeposed) {
					t.Errorf("late Commit = %v", err)
				}
				if err := first.log.Commit(t.Context(), entries(0, size, "later")); !errors.Is(err, task.ErrDeposed) {
					t.Errorf("later Commit = %v", err)
				}
				pass(5 * time.Second)
				same(t, "after the thaw", load(t, second.log), held)
				if err := second.log.Commit(t.Context(), entries(100, size, "second")); err != nil {
					t.Errorf("the new leader: %v", err)
				}
				_ = first.leave()
				_ = second.leave()
			})
		})
	}
}

// A leader that is cut off gives up before another one begins.
func TestCutOffLeaderStepsDownFirst(t *testing.T) {
	inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
		way := newIce(s)
		one, closeOne := open(t, s, o, nats.InProcessServer(way), nats.PingInterval(time.Hour))
		defer closeOne()
		two, closeTwo := open(t, s, o)
		defer closeTwo()
		first := lead(t, one)
		next := make(chan *reign, 1)
		go func() { next <- lead(t, two) }()
		pass(10 * time.Second)
		way.freeze(true)
		began := time.Now()
		<-first.ctx.Done()
		if len(next) != 0 {
			t.Error("another one led before the first had given up")
		}
		if !errors.Is(context.Cause(first.ctx), task.ErrDeposed) {
			t.Errorf("cause = %v", context.Cause(first.ctx))
		}
		second := <-next
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("takeover took %v", took)
		}
		way.thaw()
		synctest.Wait()
		_ = second.leave()
		_ = first.leave()
	})
}

// What is lost on the way to the server, or back, is found out and mended.
func TestCommitOverBrokenConnection(t *testing.T) {
	for _, size := range []int{1, 3, 1500} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
				way := newIce(s)
				store, disconnect := open(t, s, o, nats.InProcessServer(way), nats.PingInterval(time.Hour))
				defer disconnect()
				r := lead(t, store)
				held := map[string]string{}
				for i := range 5 {
					batch := entries(i, size, fmt.Sprint("round ", i))
					done := make(chan error, 1)
					way.freeze(true)
					go func() { done <- r.log.Commit(t.Context(), batch) }()
					pass(time.Duration(i*100) * time.Millisecond)
					way.thaw()
					if err := <-done; err != nil {
						t.Fatalf("Commit %d: %v", i, err)
					}
					expect(held, batch)
					pass(5 * time.Second)
					same(t, fmt.Sprint("after round ", i), load(t, r.log), held)
				}
				_ = r.leave()
			})
		})
	}
}
