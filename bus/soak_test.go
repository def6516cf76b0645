package bus_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// soak is 20,000 calls on a mesh where everything goes wrong now and then.
type soak struct {
	*faulty
	mu   sync.Mutex
	rand *rand.Rand
	runs map[string]int // executions by call, of the module that must run once
	ends map[string]int // outcomes by code
}

func (s *soak) chance(percent float64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rand.Float64()*100 < percent
}

func (s *soak) upTo(d time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.rand.Int64N(int64(d)))
}

func (s *soak) work(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
	if req.ModuleID == "soak.once" {
		s.mu.Lock()
		s.runs[req.CallID]++
		s.mu.Unlock()
	}
	if s.chance(5) {
		return nil, module.Errorf(module.CodeModuleExecuteError, "it happens")
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(s.upTo(60 * time.Millisecond)):
		return map[string]any{"call": req.CallID}, nil
	}
}

func (s *soak) host(id string) (*bus.Node, *party) {
	h := newStubHost().add("soak.once", module.Annotations{}, s.work).add("soak.again", module.Annotations{Idempotent: true}, s.work)
	return s.faulty.host(id, h, func(o *bus.NodeOptions) { o.MaxInFlight, o.QueueSize = 12, 12 })
}

// call makes one call and reports how it ended.
func (s *soak) call(c *bus.Client) {
	ctx, stop := context.WithCancelCause(s.t.Context())
	defer stop(nil)
	req := &contextwire.Request{ModuleID: "soak.once", CallID: contextwire.NewCallID()}
	if s.chance(50) {
		req.ModuleID = "soak.again"
	}
	switch {
	case s.chance(10):
		t := time.AfterFunc(s.upTo(80*time.Millisecond), func() { stop(errors.New("enough")) })
		defer t.Stop()
	case s.chance(10): //nolint:gocritic // not the first one again: the dice are thrown anew
		req.Budget = 1 + s.upTo(80*time.Millisecond)
	}
	reply, err := c.Invoke(ctx, req)
	code := "ok"
	switch e := module.AsError(err); {
	case err != nil && e == nil:
		s.t.Errorf("an error without a code: %v", err)
	case err != nil:
		code = string(e.Code)
	case reply.Output["call"] != req.CallID:
		s.t.Errorf("call %s got the answer of %v", req.CallID, reply.Output["call"])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends[code]++
}

func TestSoak(t *testing.T) {
	onFaulty(t, func(f *faulty) {
		s := &soak{faulty: f, rand: rand.New(rand.NewPCG(1, 2)), runs: map[string]int{}, ends: map[string]int{}}
		ids := []string{"n1", "n2", "n3"}
		nodes, parties := make([]*bus.Node, 3), make([]*party, 3)
		for i, id := range ids {
			nodes[i], parties[i] = s.host(id)
		}
		clients := make([]*bus.Client, 4)
		for i := range clients {
			clients[i], _ = f.caller("soak.once", "soak.again")
		}
		calm := f.mem.All.DropIf(func(m *nats.Msg) bool { return !strings.HasPrefix(m.Subject, "$KV") && s.chance(0.2) })

		const workers, each = 40, 250
		var left atomic.Int64
		left.Store(workers * each)
		var wg sync.WaitGroup
		for i := range workers {
			wg.Go(func() {
				for range each {
					s.call(clients[i%len(clients)])
					left.Add(-1)
				}
			})
		}
		over := make(chan struct{})
		go func() { wg.Wait(); close(over) }()
		restarts, began := 0, time.Now()
		for done := false; !done; {
			select {
			case <-over:
				done = true
			case <-time.After(2 * time.Second):
				if time.Since(began) > time.Hour {
					f.t.Fatalf("%d calls have not ended after an hour", left.Load())
				}
				i := restarts % len(ids)
				parties[i].kill()
				if err := nodes[i].Close(); err != nil {
					f.t.Error(err)
				}
				nodes[i], parties[i] = s.host(ids[i])
				restarts++
			}
		}
		calm()
		for call, n := range s.runs {
			if n > 1 {
				f.t.Errorf("call %s, which is not idempotent, ran %d times", call, n)
			}
		}
		total := 0
		for _, n := range s.ends {
			total += n
		}
		if total != workers*each || s.ends["ok"] < total/2 || restarts < 3 {
			f.t.Errorf("%d outcomes of %d calls, %d restarts: %v", total, workers*each, restarts, s.ends)
		}
		for _, code := range []module.Code{module.CodeExecutionCancelled, module.CodeModuleTimeout, module.CodeBusNodeLost, module.CodeModuleExecuteError} {
			if s.ends[string(code)] == 0 {
				f.t.Errorf("no call ended with %s: %v", code, s.ends)
			}
		}
		f.t.Logf("%d restarts in %v, outcomes %v", restarts, time.Since(began), s.ends)
		pass(2 * time.Minute)
		for _, n := range nodes {
			if got := n.Tables(); got != (bus.Tables{}) {
				f.t.Errorf("%s still remembers %+v", n.ID(), got)
			}
		}
		for _, c := range clients {
			pending, calls, hosts, open := c.Tables()
			if pending+calls+open != 0 || hosts > 3*len(ids) {
				f.t.Errorf("a client still has %d attempts, %d calls, %d hosts, %d calls open there", pending, calls, hosts, open)
			}
		}
	})
}
