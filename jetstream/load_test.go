package jetstream_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/task"
)

// BenchmarkLoad reads a log of 100,000 entries, as a takeover does.
func BenchmarkLoad(b *testing.B) {
	const stored = 100_000
	s := natstest.New(b, natstest.Options{})
	defer s.Close()
	store, err := durable.Open(b.Context(), durable.Options{JS: s.JetStream(), Durability: durable.ProcessSafe, LeaseTTL: time.Minute, Logger: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	r := lead(b, store)
	body := make([]byte, 600)
	for i := 0; i < stored; i += 1000 {
		list := make([]task.Entry, 1000)
		for k := range list {
			list[k] = task.Entry{Key: fmt.Sprintf("task.%08d", i+k), Body: body}
		}
		if err := r.log.Commit(b.Context(), list); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("written once", func(b *testing.B) { readLog(b, r, stored) })
	for i := 0; i < stored; i += 2000 {
		list := make([]task.Entry, 1000)
		for k := range list {
			list[k] = task.Entry{Key: fmt.Sprintf("task.%08d", i+2*k), Body: body}
		}
		if err := r.log.Commit(b.Context(), list); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("half replaced", func(b *testing.B) { readLog(b, r, stored) })
	_ = r.leave()
}

// TestLoadReadsBodiesOfEverySize reads more entries than one request brings, some of
// which fill the bytes of a request before its number.
func TestLoadReadsBodiesOfEverySize(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t, natstest.Options{})
		defer s.Close()
		store, err := durable.Open(t.Context(), durable.Options{JS: s.JetStream(), Durability: durable.ProcessSafe, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		r := lead(t, store)
		large := int(r.log.MaxEntry())
		var want []string
		var list []task.Entry
		for i := range 2600 {
			size := 1 + i%700
			switch {
			case i%200 == 0:
				size = large // never two in the bytes of three
			case i%200 < 5:
				size = large / 3
			}
			list = append(list, task.Entry{Key: fmt.Sprintf("task.%08d", i), Body: make([]byte, size)})
			want = append(want, fmt.Sprintf("task.%08d %d", i, size))
			if len(list) == 100 {
				if err := r.log.Commit(t.Context(), list); err != nil {
					t.Fatal(err)
				}
				list = nil
			}
		}
		for range 2 { // the second is after the end of the first, on the same connection
			var got []string
			for e, err := range r.log.Load(t.Context(), task.KeyTask) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, fmt.Sprintf("%s %d", e.Key, len(e.Body)))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("the log (-want +got):\n%s", diff)
			}
		}
		if err := r.leave(); err != nil {
			t.Fatal(err)
		}
	})
}

// readLog reads a log that has so many entries.
func readLog(b *testing.B, r *reign, stored int) {
	b.Helper()
	runtime.GC()
	began := processor()
	b.ResetTimer()
	for range b.N {
		n := 0
		for _, err := range r.log.Load(b.Context(), task.KeyTask, task.KeyQueue, task.KeySchedule) {
			if err != nil {
				b.Fatal(err)
			}
			n++
		}
		if n != stored {
			b.Fatalf("%d entries, want %d", n, stored)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(stored*b.N)/b.Elapsed().Seconds(), "entries/s")
	b.ReportMetric(float64((processor()-began).Nanoseconds())/float64(stored*b.N)/1000, "µs/entry")
}
