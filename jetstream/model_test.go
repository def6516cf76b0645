package jetstream_test

import (
	"context"
	"errors"
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

// stage has routers on a server of this process.
type stage struct {
	t      *testing.T
	server *natstest.Server
	o      durable.Options
	client *durable.TaskClient
	leads  *seat
}

var _ tasktest.TraceStage = (*stage)(nil)

// seat is a router and the writer that it has when it leads.
type seat struct {
	*router
	way    *ice
	writer atomic.Pointer[task.Writer]
}

func openStage(t *testing.T, mode durable.Durability) *stage {
	t.Helper()
	s := &stage{t: t, server: natstest.New(t, natstest.Options{SyncAlways: mode == durable.PowerSafe}), o: durable.Options{Durability: mode, Logger: quiet()}}
	s.leads = s.seat()
	js := s.server.JetStream()
	o := s.o
	o.JS = js
	client, err := durable.NewTaskClient(durable.ClientOptions{Options: o, Patience: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	s.client = client
	return s
}

func (s *stage) close() {
	s.leads.kill()
	s.client.Close()
	s.o.JS = nil
	s.server.Close()
}

// seat starts a router and returns when it leads.
func (s *stage) seat() *seat {
	e := &seat{way: newIce(s.server)}
	e.router = runRouterOver(s.t, e.way, s.server, s.o, tasktest.TraceOptions, func(o *task.WriterOptions) {
		o.Lease = 15 * time.Second
	})
	return e
}

func (s *stage) Client() tasktest.TraceClient { return s.client }

// Crash kills the router that leads, or the server, or cuts the router off for longer
// than its lease of the lead.
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
	pass(3 * time.Second)
}

// Depose freezes the way of the router that leads to its log, has it cancel something
// meanwhile, and lets it find out when another one leads.
func (s *stage) Depose() tasktest.Deposed {
	old := s.leads
	_ = errors.New
	_ = context.Background
	return old.writer.Load()
}
