package jetstream_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/task"
)

// BenchmarkCommit compares commits of entries of 512 bytes with plain publishes to
// a stream of the same server: one at a time, and with many on their way.
func BenchmarkCommit(b *testing.B) {
	for _, mode := range modes {
		s := natstest.New(b, natstest.Options{SyncAlways: mode == durable.PowerSafe})
		js := s.JetStream()
		body := make([]byte, 512)
		if _, err := js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "RAW", Subjects: []string{"raw.>"}, MaxMsgsPerSubject: 1}); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("%s/raw-one", mode), func(b *testing.B) {
			for i := range b.N {
				if _, err := js.Publish(b.Context(), fmt.Sprint("raw.", i), body); err != nil {
					b.Fatal(err)
				}
			}
			rate(b, 1)
		})
		b.Run(fmt.Sprintf("%s/raw-many", mode), func(b *testing.B) {
			async, err := jetstream.New(js.Conn(), jetstream.WithPublishAsyncMaxPending(256))
			if err != nil {
				b.Fatal(err)
			}
			for i := range b.N {
				if _, err := async.PublishMsgAsync(&nats.Msg{Subject: fmt.Sprint("raw.", i), Data: body}); err != nil {
					b.Fatal(err)
				}
			}
			<-async.PublishAsyncComplete()
			rate(b, 1)
		})
		store, err := durable.Open(b.Context(), durable.Options{JS: js, Durability: mode, Logger: quiet()})
		if err != nil {
			b.Fatal(err)
		}
		r := lead(b, store)
		for _, size := range []int{1, 2, 10, 50, 200, 1000} {
			b.Run(fmt.Sprintf("%s/commit-%d", mode, size), func(b *testing.B) {
				list := make([]task.Entry, size)
				for i := range b.N {
					for k := range list {
						list[k] = task.Entry{Key: fmt.Sprintf("task.%d", i*size+k), Body: body}
					}
					if err := r.log.Commit(b.Context(), list); err != nil {
						b.Fatal(err)
					}
				}
				rate(b, size)
			})
		}
		_ = r.leave()
		s.Close()
	}
}

// rate reports messages rather than rounds.
func rate(b *testing.B, each int) {
	b.Helper()
	b.ReportMetric(float64(b.N*each)/b.Elapsed().Seconds(), "msgs/s")
}
