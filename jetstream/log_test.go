package jetstream_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/task"
)

func TestCommitAndLoad(t *testing.T) {
	inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
		store, disconnect := open(t, s, o)
		defer disconnect()
		r := lead(t, store)
		defer func() { _ = r.leave() }()
		want := map[string]string{}
		for _, batch := range [][]task.Entry{
			nil,
			entries(0, 1, "a"),
			entries(1, 7, "a"),
			entries(3, 3, "b"),
			entries(8, 9500, "c"),
			{{Key: "task.000003", Delete: true}, {Key: "queue.math.add", Body: []byte("q")}},
			{{Key: "schedule.a b:é.", Body: []byte{}}, {Key: "result.x", Body: []byte{0, 1, 255}}},
		} {
			if err := r.log.Commit(t.Context(), batch); err != nil {
				t.Fatalf("Commit of %d: %v", len(batch), err)
			}
			expect(want, batch)
		}
		same(t, "all", load(t, r.log), want)
		same(t, "queues", load(t, r.log, task.KeyQueue), map[string]string{"queue.math.add": "q"})

		e, ok, err := r.log.Get(t.Context(), "task.000004")
		if err != nil || !ok || string(e.Body) != "b task.000004" || e.Seq == 0 {
			t.Errorf("Get = %+v, %v, %v", e, ok, err)
		}
		for _, key := range []string{"task.000003", "task.never"} {
			if _, ok, err := r.log.Get(t.Context(), key); ok || err != nil {
				t.Errorf("Get of %s = %v, %v; want nothing", key, ok, err)
			}
		}
		if _, _, err := r.log.Get(t.Context(), "lead.x"); err == nil {
			t.Error("Get of a key that is none: no error")
		}
	})
}

func TestCommitSeesItsOwnWrites(t *testing.T) {
	inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
		store, disconnect := open(t, s, o)
		defer disconnect()
		r := lead(t, store)
		defer func() { _ = r.leave() }()
		for i := range 50 {
			body := strings.Repeat("x", i)
			if err := r.log.Commit(t.Context(), []task.Entry{{Key: "task.one", Body: []byte(body)}}); err != nil {
				t.Fatal(err)
			}
			e, ok, err := r.log.Get(t.Context(), "task.one")
			if err != nil || !ok || string(e.Body) != body {
				t.Fatalf("Get = %q, %v, %v; want %q", e.Body, ok, err, body)
			}
		}
	})
}

func TestEntriesExpire(t *testing.T) {
	inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
		store, disconnect := open(t, s, o)
		defer disconnect()
		r := lead(t, store)
		defer func() { _ = r.leave() }()
		err := r.log.Commit(t.Context(), []task.Entry{
			{Key: "task.kept", Body: []byte("k")},
			{Key: "task.short", Body: []byte("s"), TTL: 1500 * time.Millisecond},
			{Key: "result.hour", Body: []byte("h"), TTL: time.Minute},
			{Key: "task.gone", Delete: true},
		})
		if err != nil {
			t.Fatal(err)
		}
		pass(1400 * time.Millisecond)
		same(t, "at first", load(t, r.log), map[string]string{"task.kept": "k", "task.short": "s", "result.hour": "h"})
		pass(10 * time.Second)
		same(t, "later", load(t, r.log), map[string]string{"task.kept": "k", "result.hour": "h"})
		pass(time.Minute)
		same(t, "much later", load(t, r.log), map[string]string{"task.kept": "k"})
		// The chain goes on over what has expired.
		if err := r.log.Commit(t.Context(), entries(0, 3, "n")); err != nil {
			t.Errorf("Commit after entries expired: %v", err)
		}
	})
}

func TestCommitTooLarge(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t, natstest.Options{})
		defer s.Close()
		store, disconnect := open(t, s, durable.Options{Logger: quiet()})
		defer disconnect()
		r := lead(t, store)
		defer func() { _ = r.leave() }()
		big := make([]byte, 1<<20)
		err := r.log.Commit(t.Context(), []task.Entry{{Key: "task.a", Body: []byte("a")}, {Key: "task.big", Body: big}})
		if module.CodeOf(err) != module.CodeBusPayloadTooLarge {
			t.Fatalf("Commit = %v", err)
		}
		same(t, "after the refusal", load(t, r.log), map[string]string{})
		if err := r.log.Commit(t.Context(), []task.Entry{{Key: "task.big", Body: big[:1<<20-1024]}}); err != nil {
			t.Errorf("Commit of the largest: %v", err)
		}
	})
}

// A full stream refuses and says so; it drops nothing, and what was full once can
// be written again when there is room.
func TestCommitToFullStream(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				s := natstest.New(t, natstest.Options{})
				defer s.Close()
				store, disconnect := open(t, s, durable.Options{Durability: mode, MaxBytes: 64 << 10, Logger: quiet()})
				defer disconnect()
				r := lead(t, store)
				defer func() { _ = r.leave() }()
				body := make([]byte, 10<<10)
				want := map[string]string{}
				var err error
				for i := 0; err == nil && i < 20; i++ {
					batch := entries(2*i, 2, "x")
					batch[0].Body, batch[1].Body = body, body
					if err = r.log.Commit(t.Context(), batch); err == nil {
						expect(want, batch)
					}
				}
				if module.CodeOf(err) != module.CodeTaskStoreUnavailable || errors.Is(err, task.ErrDeposed) {
					t.Fatalf("Commit to a full stream = %v", err)
				}
				held := load(t, r.log)
				for key, body := range want {
					if held[key] != body {
						t.Errorf("%s was dropped", key)
					}
				}
				if mode == durable.PowerSafe && len(held) != len(want) {
					t.Errorf("a refused batch left %d of its entries", len(held)-len(want))
				}
				pass(10 * time.Second)
				if r.ctx.Err() != nil {
					t.Errorf("the lead was lost over a full stream")
				}
				if err := r.log.Commit(t.Context(), []task.Entry{{Key: "task.000000", Delete: true}}); err != nil {
					t.Fatalf("make room: %v", err)
				}
				if err := r.log.Commit(t.Context(), []task.Entry{{Key: "task.000000", Body: []byte("y")}}); err != nil {
					t.Errorf("Commit with room: %v", err)
				}
			})
		})
	}
}
