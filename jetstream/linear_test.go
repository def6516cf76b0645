package jetstream_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/task"
	"github.com/apbus/apbus/task/tasktest"
)

// 32 clients on four connections act on the same tasks while the routers that write
// are killed: the history of each task is that of one record in one place.
func TestLinearizable(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			var seen *tasktest.History
			natstest.Bubble(t, func(t *testing.T) {
				s := natstest.New(t, natstest.Options{SyncAlways: mode == durable.PowerSafe})
				defer s.Close()
				o := durable.Options{Durability: mode, Logger: quiet()}
				long := func(w *task.WriterOptions) { w.Lease = time.Hour }
				first, second := runRouter(t, s, o, long), runRouter(t, s, o, long)
				defer second.stop()
				var clients []tasktest.LinearClient
				for range 4 {
					js := s.JetStream()
					defer js.Conn().Close()
					mine := o
					mine.JS = js
					client, err := durable.NewTaskClient(durable.ClientOptions{Options: mine, Patience: time.Minute})
					if err != nil {
						t.Fatal(err)
					}
					defer client.Close()
					for range 8 {
						clients = append(clients, client)
					}
				}
				over, chaos := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(chaos)
					<-time.After(5 * time.Millisecond)
					first.kill()
					third := runRouter(t, s, o, long)
					defer third.stop()
					select {
					case <-time.After(2500 * time.Millisecond):
						second.kill()
					case <-over:
					}
					<-over
				}()
				seen = tasktest.RunLinear(t, tasktest.Linear{
					Seed: rand.Uint64(), Clients: clients, Steps: 25, Module: "math.add", Repeats: true,
					Pause: func(d time.Duration) { <-time.After(50 * d) },
				})
				close(over)
				<-chaos
			})
			seen.Judge(t)
		})
	}
}
