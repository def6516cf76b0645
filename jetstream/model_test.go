package jetstream_test

import (
	"flag"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/apbus/apbus/internal/natstest"
	durable "github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/task"
	"github.com/apbus/apbus/task/tasktest"
)

var modelTraces = flag.Int("model.traces", 4, "how many random traces TestModel runs in each mode")

// TestModel runs random traces of the model of package task against routers on a real
// server: requests, elections, commits and takeovers are those that ship. A failure
// prints the shortest trace that rapid finds.
func TestModel(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			runs := 0
			rapid.Check(t, func(rt *rapid.T) {
				steps := tasktest.Steps(rt, 40)
				if runs++; runs > *modelTraces {
					return
				}
				var complaint string
				natstest.Bubble(t, func(t *testing.T) {
					s := openStage(t, mode)
					defer s.close()
					complaint = tasktest.Play(s, steps)
				})
				if complaint != "" {
					rt.Fatal(complaint)
				}
			})
		})
	}
}

// stage has routers on a server of this process, one of which leads.
type stage struct {
	t      *testing.T
	server *natstest.Server
	o      durable.Options
	client *durable.TaskClient
	hangUp func()
	leads  *seat
}

var _ tasktest.TraceStage = (*stage)(nil)

// seat is a router, its way to the log, and the writer that it has when it leads.
type seat struct {
	*router
	way    *ice
	writer atomic.Pointer[task.Writer]
	began  chan struct{} // closed when it has led for the first time
}

func openStage(t *testing.T, mode durable.Durability) *stage {
	t.Helper()
	s := &stage{
		t: t, server: natstest.New(t, natstest.Options{SyncAlways: mode == durable.PowerSafe}),
		o: durable.Options{Durability: mode, Logger: quiet()},
	}
	s.leads = s.seat()
	js := s.server.JetStream()
	o := s.o
	o.JS = js
	client, err := durable.NewTaskClient(durable.ClientOptions{Options: o, Patience: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	s.client, s.hangUp = client, js.Conn().Close
	s.answers()
	return s
}

func (s *stage) close() {
	s.leads.kill()
	s.client.Close()
	s.hangUp()
	s.server.Close()
}

func (s *stage) seat() *seat {
	e := &seat{way: newIce(s.server), began: make(chan struct{})}
	e.router = runRouterWith(s.t, e.way, s.server, s.o, func(log *durable.Log, o task.WriterOptions) (durable.LeadingWriter, error) {
		tasktest.TraceOptions(&o)
		w, err := task.NewWriter(log, o)
		if e.writer.Swap(w) == nil {
			close(e.began)
		}
		return w, err
	})
	return e
}

func (s *stage) Client() tasktest.TraceClient { return s.client }

// Crash kills the router that leads, or the server, or cuts the router off for longer
// than its lead lasts.
func (s *stage) Crash(n int) {
	switch n % 3 {
	case 0:
		s.leads.kill()
		s.leads = s.seat()
	case 1:
		s.server.Restart()
	case 2:
		s.leads.way.freeze(true)
		pass(4 * time.Second)
		s.leads.way.thaw()
	}
	s.answers()
}

// answers returns once somebody does.
func (s *stage) answers() {
	if _, err := s.client.Queues(s.t.Context()); err != nil {
		s.t.Errorf("nobody leads: %v", err)
	}
}

// Depose freezes the router that leads. It is asked for something meanwhile, which it
// gives to the log when it thaws, after another one has begun to lead.
func (s *stage) Depose() tasktest.Deposed {
	old := s.leads
	w := old.writer.Load()
	old.way.freeze(false)
	late := make(chan error, 1)
	go func() {
		_, err := w.Pause(s.t.Context(), "job.safe", "nobody", "too late")
		late <- err
	}()
	s.leads = s.seat()
	<-s.leads.began // the old one answers until it knows
	s.answers()
	old.way.thaw()
	if err := <-late; err == nil {
		s.t.Error("a deposed writer has stored something")
	}
	pass(time.Second)
	old.kill()
	return w
}
