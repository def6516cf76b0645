package jetstream_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/task"
)

// The server goes down in the middle of commits and comes back: each that was
// acknowledged is there, and each that was not is there completely or not at all
// in power-safe mode, and its first entries or none otherwise.
func TestServerRestartsUnderCommits(t *testing.T) {
	inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
		o.LeaseTTL = 5 * time.Second
		store, disconnect := open(t, s, o)
		defer disconnect()
		r := lead(t, store)
		held := map[string]string{}
		for round := range 6 {
			batch := entries(round*50, 120, fmt.Sprint("round ", round))
			done := make(chan error, 1)
			go func() { done <- r.log.Commit(t.Context(), batch) }()
			if round%2 == 1 {
				pass(time.Duration(rand.Int64N(int64(3 * time.Millisecond))))
			}
			s.Stop()
			pass(200 * time.Millisecond)
			s.Start()
			if err := <-done; err != nil {
				t.Fatalf("Commit %d: %v", round, err)
			}
			expect(held, batch)
		}
		same(t, "at the end", load(t, r.log), held)
		_ = r.leave()
	})
}

// The server is away for longer than a lease: the commit under way ends without an
// answer that could be wrong, and the next leader goes by what is stored.
func TestServerIsAwayForLong(t *testing.T) {
	inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
		store, disconnect := open(t, s, o)
		defer disconnect()
		r := lead(t, store)
		batch := entries(0, 10, "a")
		if err := r.log.Commit(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		s.Stop()
		began := time.Now()
		unanswered := entries(0, 10, "b")
		err := r.log.Commit(t.Context(), unanswered)
		if !errors.Is(err, task.ErrDeposed) {
			t.Errorf("Commit without a server = %v", err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v, longer than the lease", took)
		}
		<-r.ctx.Done()
		_ = r.leave()
		pass(time.Minute)
		s.Start()
		next := lead(t, store)
		held := map[string]string{}
		expect(held, batch)
		now := load(t, next.log)
		if !outcomeAllowed(held, unanswered, now, o.Durability) {
			same(t, "after the return", now, held)
		}
		pass(time.Minute)
		same(t, "a minute later", load(t, next.log), now)
		_ = next.leave()
	})
}

// A machine that loses its power keeps everything that a power-safe log has
// acknowledged. The copy is taken while the server runs, as a disk would be found.
func TestPowerLoss(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t, natstest.Options{SyncAlways: true})
		defer s.Close()
		store, disconnect := open(t, s, durable.Options{Durability: durable.PowerSafe, Logger: quiet()})
		defer disconnect()
		held := map[string]string{}
		for round := range 4 {
			r := lead(t, store)
			same(t, fmt.Sprint("before round ", round), load(t, r.log), held)
			for i, size := range []int{1, 2, 60, 1} {
				batch := entries(100*round+10*i, size, fmt.Sprint("round ", round))
				if err := r.log.Commit(t.Context(), batch); err != nil {
					t.Fatal(err)
				}
				expect(held, batch)
			}
			disk := s.CopyData()
			_ = r.leave()
			s.RestartFrom(disk)
		}
		r := lead(t, store)
		same(t, "at the end", load(t, r.log), held)
		_ = r.leave()
	})
}

// Random traces over the real log, with an oracle: commits of any kind, freezes,
// cuts, restarts and changes of the leader. Nothing acknowledged is lost or undone;
// what had no answer is there or not, in one piece where the mode says so.
func TestTraces(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			runs := 0
			rapid.Check(t, func(rt *rapid.T) {
				if runs++; runs > 6 && !testing.Short() {
					return // each is many commits on a real server
				}
				trace(t, rt, mode)
			})
		})
	}
}

type step struct{ kind, size, key, wait int }

// A renewal whose answer is lost leaves the writer one behind the stream. The first
// message of its next commit is refused then, and none of the others may be stored
// without it.
func TestChainWithoutItsFirst(t *testing.T) {
	inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
		store, disconnect := open(t, s, o)
		defer disconnect()
		r := lead(t, store)
		defer func() { _ = r.leave() }()
		held := map[string]string{}
		for n, size := range []int{3, 2, 7} {
			renewUnheard(t, s)
			batch := entries(n, size, fmt.Sprint("commit ", n))
			if err := r.log.Commit(t.Context(), batch); err != nil {
				t.Fatalf("Commit of %d: %v", size, err)
			}
			expect(held, batch)
			same(t, fmt.Sprint("after commit ", n), load(t, r.log), held)
		}
	})
}

// renewUnheard writes the lead record again as its holder would, who does not hear
// of it.
func renewUnheard(t *testing.T, s *natstest.Server) {
	t.Helper()
	js := s.JetStream()
	defer js.Conn().Close()
	const subject = "apbus.v1.task.default.lead"
	stream, err := js.StreamNameBySubject(t.Context(), subject)
	if err != nil {
		t.Fatal(err)
	}
	in, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	last, err := in.GetLastMsgForSubject(t.Context(), subject)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), subject, last.Data, jetstream.WithMsgTTL(time.Minute)); err != nil {
		t.Fatal(err)
	}
}

func trace(t *testing.T, rt *rapid.T, mode durable.Durability) {
	steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
		return step{
			kind: rapid.IntRange(0, 9).Draw(rt, "kind"), size: rapid.SampledFrom([]int{1, 1, 2, 7, 40}).Draw(rt, "size"),
			key: rapid.IntRange(0, 30).Draw(rt, "key"), wait: rapid.IntRange(0, 900).Draw(rt, "wait"),
		}
	}), 5, 25).Draw(rt, "steps")
	play(t, mode, steps)
	if t.Failed() {
		rt.Fatalf("the trace fails")
	}
}

// play commits once a step, disturbs each commit as the step says, and looks at what
// is stored.
func play(t *testing.T, mode durable.Durability, steps []step) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t, natstest.Options{SyncAlways: mode == durable.PowerSafe})
		defer s.Close()
		way := newIce(s)
		store, disconnect := openOver(t, way, durable.Options{Durability: mode, Logger: quiet()})
		defer disconnect()
		held := map[string]string{}
		r := lead(t, store)
		var late sync.WaitGroup
		defer late.Wait()
		for n, st := range steps {
			batch := entries(st.key, st.size, fmt.Sprint("step ", n))
			if st.kind == 1 {
				for i := range batch {
					batch[i].Delete = i%2 == 0
				}
			}
			done := make(chan error, 1)
			log := r.log
			late.Go(func() { done <- log.Commit(t.Context(), batch) })
			switch st.kind {
			case 2, 3: // frozen, or cut off, for a while
				way.freeze(st.kind == 3)
				pass(time.Duration(st.wait) * time.Millisecond)
				way.thaw()
			case 4: // cut off for longer than a lease
				way.freeze(true)
				pass(4 * time.Second)
				way.thaw()
			case 5:
				s.Restart()
			}
			err := <-done
			switch {
			case err == nil:
				expect(held, batch)
			case errors.Is(err, task.ErrDeposed):
				// Stored or not; the next leader reads which.
				_ = r.leave()
				r = lead(t, store)
				now := load(t, r.log)
				if !outcomeAllowed(held, batch, now, mode) {
					same(t, fmt.Sprintf("after step %d, %+v", n, st), now, held)
				}
				held = now
			default:
				t.Fatalf("step %d, %+v: %v", n, st, err)
			}
			if st.kind == 6 {
				_ = r.leave()
				r = lead(t, store)
			}
		}
		if r.ctx.Err() != nil {
			_ = r.leave()
			r = lead(t, store)
		}
		same(t, fmt.Sprintf("at the end of %+v", steps), load(t, r.log), held)
		_ = r.leave()
	})
}

// outcomeAllowed reports whether now is before with the first n entries of batch, for
// an n that the mode allows.
func outcomeAllowed(before map[string]string, batch []task.Entry, now map[string]string, mode durable.Durability) bool {
	for n := 0; n <= len(batch); n++ {
		if mode == durable.PowerSafe && n != 0 && n != len(batch) {
			continue
		}
		want := map[string]string{}
		for k, v := range before {
			want[k] = v
		}
		expect(want, batch[:n])
		if equal(want, now) {
			return true
		}
	}
	return false
}
