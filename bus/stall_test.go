package bus_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/bus/bustest"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// What waited for a process that stood still is started only when its caller
// still waits for it.
func TestThawedNodeAsksBeforeItStarts(t *testing.T) {
	for _, tt := range []struct {
		name  string
		stall time.Duration
		gone  bool
		ran   int
	}{
		{"caller waits", 2 * time.Second, false, 1},
		{"caller has gone", 2 * time.Second, true, 0},
		{"a short stall is not asked about", 400 * time.Millisecond, true, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onWire(t, func(w *wire) {
				ran := 0
				n := w.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(ctx context.Context, _ *contextwire.Request) (map[string]any, error) {
					ran++
					return map[string]any{}, nil
				}))
				conns := w.conns()
				c := w.clientOn(conns)
				release := conns.Calls.(*bustest.Conn).Out.Hold("apbus.v1.call.>")
				ctx, stop := context.WithCancel(w.t.Context())
				defer stop()
				// No notice reaches the node, as none would reach a process that is
				// too busy with what came before.
				w.mem.All.Drop("apbus.v1.cancel.>", -1)
				done := invoke(ctx, c, &contextwire.Request{ModuleID: "mod.x"})
				pass(time.Second)
				if tt.gone {
					stop()
					<-done
				}
				n.Stall(tt.stall)
				release()
				pass(5 * time.Second)
				if ran != tt.ran {
					w.t.Errorf("ran %d times, want %d", ran, tt.ran)
				}
				if !tt.gone {
					if end := <-done; end.err != nil {
						w.t.Error(end.err)
					}
				}
			})
		})
	}
}

func TestBareCallAfterAStallIsRefused(t *testing.T) {
	onWire(t, func(w *wire) {
		n := w.node("n1", newStubHost().add("mod.x", module.Annotations{}, echo))
		p := w.peer()
		n.Stall(2 * time.Second)
		m, err := p.Request(w.t.Context(), &nats.Msg{Subject: anyHost("mod.x")})
		if err != nil {
			w.t.Fatal(err)
		}
		if got := m.Header.Get("Nats-Service-Error-Code"); got != "429" {
			w.t.Errorf("got %q %s, want 429", got, m.Data)
		}
		pass(3 * time.Second)
		if m, err = p.Request(w.t.Context(), &nats.Msg{Subject: anyHost("mod.x")}); err != nil || m.Header.Get("Nats-Service-Error") != "" {
			w.t.Errorf("3 s later: %v %v", m, err)
		}
	})
}

// A process that stood still does not deny a call that it has not got round to
// reading: its caller would take it for lost.
func TestStalledNodeDeniesNoCall(t *testing.T) {
	onFaulty(t, func(f *faulty) {
		n, host := f.host("n1", newStubHost().add("mod.x", module.Annotations{}, echo))
		c, _ := f.caller("mod.x")
		host.calls.Freeze()
		done := invoke(f.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"})
		pass(400 * time.Millisecond)
		n.Stall(time.Second)
		pass(time.Second) // two pings
		host.calls.Thaw()
		if end := <-done; end.err != nil {
			f.t.Error(end.err)
		}
	})
}
