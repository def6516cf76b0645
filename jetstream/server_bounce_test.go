package jetstream_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/task"
)

// A node that was killed while it waited for work leaves its claim with the writer.
// What is granted to it has no receiver any more and goes to the next that waits at
// once, not after the lease of a grant.
func TestGrantsToDeadConnectionsComeBackAtOnce(t *testing.T) {
	inModes(t, func(t *testing.T, s *natstest.Server, o durable.Options) {
		r := runRouter(t, s, o)
		defer r.stop()
		r.submit("other.module", "", `{}`) // the writer is there
		const killed = 3
		for range killed {
			nc, err := nats.Connect("", nats.InProcessServer(s))
			if err != nil {
				t.Fatal(err)
			}
			inbox := nc.NewInbox()
			if _, err := nc.SubscribeSync(inbox); err != nil {
				t.Fatal(err)
			}
			err = nc.PublishMsg(&nats.Msg{
				Subject: "apbus.v1.task.default.rpc.claim", Reply: inbox,
				Header: nats.Header{"apbus-version": {"1"}, "apbus-call": {inbox}, "apbus-budget-ms": {"60000"}},
				Data:   []byte(`{"node":"dead","boot":"b0","modules":["math.add"],"slots":8,"wait_ms":60000}`),
			})
			if err == nil {
				err = nc.Flush()
			}
			if err != nil {
				t.Fatal(err)
			}
			nc.Close() // without a word, as when the process is killed
		}
		time.Sleep(100 * time.Millisecond) //archtest:real-time not real: every use is inside a bubble
		grants := make(chan []task.Grant, 1)
		go func() { grants <- r.claim(8, "math.add") }()
		time.Sleep(100 * time.Millisecond) //archtest:real-time not real: every use is inside a bubble
		began := time.Now()
		id := r.submit("math.add", "", `{"a":1}`).TaskID
		got := <-grants
		if took := time.Since(began); len(got) != 1 || got[0].TaskID != id || took > time.Second {
			t.Fatalf("granted %+v after %v", got, took)
		}
		r.run(got[0], `{"sum":1}`)
		rec, err := r.client.Get(t.Context(), id)
		if err != nil || rec.Deliveries != 0 || rec.Attempt != 1 {
			t.Errorf("record = %+v, %v", rec, err)
		}
	})
}
