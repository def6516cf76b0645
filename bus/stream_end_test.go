package bus_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

func TestCancelledStreamStopsTheModule(t *testing.T) {
	reader := func(int) error { return nil }
	for _, tt := range []struct {
		name   string
		pace   time.Duration
		each   func(i int) error
		window contextwire.Credit
		end    func(m *mesh, c *bus.Client, n *bus.Node, call string, stop context.CancelCauseFunc)
		reason cancel.Reason
		code   module.Code
	}{
		{"by the caller", 10 * time.Millisecond, reader, contextwire.Credit{}, func(_ *mesh, _ *bus.Client, _ *bus.Node, _ string, stop context.CancelCauseFunc) {
			stop(errors.New("enough"))
		}, cancel.Caller, module.CodeExecutionCancelled},
		{"by somebody else", 10 * time.Millisecond, reader, contextwire.Credit{}, func(m *mesh, _ *bus.Client, _ *bus.Node, call string, _ context.CancelCauseFunc) {
			other := m.client()
			res, err := other.Cancel(m.t.Context(), cancel.Selector{Call: call}, "stop it", "eve")
			if err != nil || res.State != bus.StateCancelling {
				m.t.Errorf("%+v, %v", res, err)
			}
		}, cancel.Remote, module.CodeExecutionCancelled},
		{"by its own client", 10 * time.Millisecond, reader, contextwire.Credit{}, func(m *mesh, c *bus.Client, _ *bus.Node, call string, _ context.CancelCauseFunc) {
			if _, err := c.Cancel(m.t.Context(), cancel.Selector{Call: call}, "stop it", "eve"); err != nil {
				m.t.Error(err)
			}
		}, cancel.Remote, module.CodeExecutionCancelled},
		{"out of credit", 0, func(int) error { <-time.After(time.Hour); return nil }, creditOf(2, 1), func(m *mesh, _ *bus.Client, _ *bus.Node, call string, _ context.CancelCauseFunc) {
			if _, err := m.client().Cancel(m.t.Context(), cancel.Selector{Call: call}, "stop it", "eve"); err != nil {
				m.t.Error(err)
			}
		}, cancel.Remote, module.CodeExecutionCancelled},
		{"node closed", 10 * time.Millisecond, reader, contextwire.Credit{}, func(_ *mesh, _ *bus.Client, n *bus.Node, _ string, _ context.CancelCauseFunc) {
			_ = n.Close()
		}, cancel.Shutdown, module.CodeExecutionCancelled},
		{"client closed", 10 * time.Millisecond, reader, contextwire.Credit{}, func(_ *mesh, c *bus.Client, _ *bus.Node, _ string, _ context.CancelCauseFunc) {
			c.Close()
		}, cancel.Shutdown, module.CodeExecutionCancelled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onMesh(t, func(m *mesh) {
				p := newCounting(-1)
				p.every = tt.pace
				n := m.node("n1", newStreamHost().stream("mod.x", module.Annotations{}, p.run))
				c := m.client()
				m.wait(c, "mod.x")
				ctx, stop := context.WithCancelCause(m.t.Context())
				defer stop(nil)
				call := contextwire.NewCallID()
				done := readAside(ctx, c, &contextwire.Request{CallID: call, ModuleID: "mod.x", Credit: tt.window}, tt.each)
				pass(700 * time.Millisecond)
				began := time.Now()
				tt.end(m, c, n, call, stop)
				cause := <-p.ended
				if took := time.Since(began); took > 50*time.Millisecond {
					m.t.Errorf("the module stopped %v later", took)
				}
				if got := cancel.ReasonOf(cause); got != tt.reason {
					m.t.Errorf("it was stopped for %q, want %q", got, tt.reason)
				}
				got := <-done
				wantCode(m.t, got.err, tt.code)
				got.wantInOrder(m.t, -1)
				pass(time.Second)
				if got := n.Tables(); got.Running != 0 || got.Holding != 0 || got.Flows != 0 {
					m.t.Errorf("left behind: %+v", got)
				}
			})
		})
	}
}

func TestReaderThatLeavesStopsTheModule(t *testing.T) {
	broken := module.Errorf("READER_BROKE", "broken")
	for _, tt := range []struct {
		name string
		read func(m *mesh, c *bus.Client)
	}{
		{"break", func(m *mesh, c *bus.Client) {
			for chunk, err := range c.Stream(m.t.Context(), "mod.x", nil) {
				if err != nil {
					m.t.Fatal(err)
				}
				if chunk["i"] == int64(3) {
					break
				}
			}
		}},
		{"panic", func(m *mesh, c *bus.Client) {
			defer func() {
				if v := recover(); v != "mine" {
					m.t.Errorf("recovered %v", v)
				}
			}()
			for range c.Stream(m.t.Context(), "mod.x", nil) {
				panic("mine")
			}
		}},
		{"a coded error", func(m *mesh, c *bus.Client) {
			_, err := c.InvokeStream(m.t.Context(), &contextwire.Request{ModuleID: "mod.x"}, func(module.Chunk) error { return broken })
			wantCode(m.t, err, "READER_BROKE")
		}},
		{"another error", func(m *mesh, c *bus.Client) {
			_, err := c.InvokeStream(m.t.Context(), &contextwire.Request{ModuleID: "mod.x"}, func(module.Chunk) error { return errors.New("no") })
			wantCode(m.t, err, module.CodeExecutionCancelled)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onMesh(t, func(m *mesh) {
				p := newCounting(-1)
				n := m.node("n1", newStreamHost().stream("mod.x", module.Annotations{}, p.run))
				c := m.client()
				m.wait(c, "mod.x")
				began := time.Now()
				tt.read(m, c)
				if got := cancel.ReasonOf(<-p.ended); got != cancel.Caller {
					m.t.Errorf("the module was stopped for %q", got)
				}
				if took := time.Since(began); took > 50*time.Millisecond {
					m.t.Errorf("the module stopped %v later", took)
				}
				pass(5 * time.Second)
				if got := n.Tables(); got.Running != 0 || got.Holding != 0 || got.Flows != 0 {
					m.t.Errorf("left behind on the node: %+v", got)
				}
				if pending, calls, _, open := c.Tables(); pending+calls+open != 0 {
					m.t.Errorf("left behind in the client: %d %d %d", pending, calls, open)
				}
			})
		})
	}
}

func TestErrorAfterChunksEndsTheStream(t *testing.T) {
	onMesh(t, func(m *mesh) {
		for id, err := range map[string]error{
			"mod.coded": module.Errorf("OUT_OF_INK", "no more"),
			// What was not executed is something further down, so it is no reason to
			// send the stream again.
			"mod.nested": module.Errorf(module.CodeBusOverloaded, "no slot").NotExecuted(),
		} {
			m.node(strings.TrimPrefix(id, "mod."), newStreamHost().stream(id, module.Annotations{Idempotent: true}, func(_ context.Context, _ *contextwire.Request, send func(module.Chunk) error) error {
				for i := range 3 {
					if err := send(module.Chunk{"i": int64(i)}); err != nil {
						return err
					}
				}
				return err
			}))
		}
		c := m.client()
		m.wait(c, "mod.coded", "mod.nested")
		got := read(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.coded"}, nil)
		got.wantInOrder(m.t, 3)
		if e := wantCode(m.t, got.err, "OUT_OF_INK"); !e.Remote || e.Unexecuted {
			m.t.Errorf("remote %v, unexecuted %v", e.Remote, e.Unexecuted)
		}
		got = read(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.nested"}, nil)
		got.wantInOrder(m.t, 3)
		if e := wantCode(m.t, got.err, module.CodeBusOverloaded); e.Unexecuted {
			m.t.Error("a stream that gave three chunks says that it was not run")
		}
	})
}

func TestStreamRefusesAChunkThatFitsNoMessage(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStreamHost().stream("mod.x", module.Annotations{}, func(_ context.Context, _ *contextwire.Request, send func(module.Chunk) error) error {
			if err := send(module.Chunk{"i": int64(0)}); err != nil {
				return err
			}
			if err := send(module.Chunk{"i": strings.Repeat("x", 2<<20)}); err != nil {
				return err
			}
			return send(module.Chunk{"i": int64(2)})
		}))
		c := m.client()
		m.wait(c, "mod.x")
		got := read(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"}, nil)
		got.wantInOrder(m.t, 1)
		e := wantCode(m.t, got.err, module.CodeBusPayloadTooLarge)
		if size, _ := e.Details["size"].(int64); size < 2<<20 || e.Details["limit"] != int64(1<<20) || e.Details["chunk_index"] != int64(1) || e.Unexecuted {
			m.t.Errorf("details %v, unexecuted %v", e.Details, e.Unexecuted)
		}
	})
}

func TestStreamEndsWithItsBudget(t *testing.T) {
	for _, tt := range []struct {
		name  string
		every time.Duration
		each  time.Duration
	}{
		{"the module waits", time.Hour, 0},
		{"the module sends", 10 * time.Millisecond, 0},
		{"the reader is slow and the window full", 0, 300 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onMesh(t, func(m *mesh) {
				p := newCounting(-1)
				p.every = tt.every
				m.node("n1", newStreamHost().stream("mod.x", module.Annotations{}, p.run))
				c := m.client()
				m.wait(c, "mod.x")
				began := time.Now()
				got := read(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.x", Budget: time.Second, Credit: creditOf(2, 1<<20)}, func(int) error {
					<-time.After(tt.each)
					return nil
				})
				if e := wantCode(m.t, got.err, module.CodeModuleTimeout); !e.Remote {
					m.t.Error("it is not the owner who ended it")
				}
				if took := got.at.Sub(began); took < time.Second || took > 2*time.Second {
					m.t.Errorf("ended after %v, want 1 s", took)
				}
				if got := cancel.ReasonOf(<-p.ended); got != cancel.Timeout {
					m.t.Errorf("the module was stopped for %q", got)
				}
				got.wantInOrder(m.t, -1)
			})
		})
	}
}

func TestDrainLetsAStreamFinish(t *testing.T) {
	for _, tt := range []struct {
		name  string
		n     int
		grace time.Duration
		cut   bool
	}{
		{"within the grace", 100, 10 * time.Second, false},
		{"beyond it", -1, time.Second, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onMesh(t, func(m *mesh) {
				p := newCounting(tt.n)
				p.every = 20 * time.Millisecond
				n := m.node("n1", newStreamHost().stream("mod.x", module.Annotations{}, p.run), func(o *bus.NodeOptions) { o.DrainGrace = tt.grace })
				c := m.client()
				m.wait(c, "mod.x")
				done := readAside(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.x", Credit: creditOf(4, 1<<20)}, nil)
				pass(200 * time.Millisecond)
				if err := n.Drain(m.t.Context()); (err != nil) != tt.cut {
					m.t.Errorf("drain: %v", err)
				}
				_ = n.Close()
				got := <-done
				got.wantInOrder(m.t, tt.n)
				if !tt.cut {
					if got.err != nil {
						m.t.Error(got.err)
					}
					return
				}
				wantCode(m.t, got.err, module.CodeExecutionCancelled)
				if got := cancel.ReasonOf(<-p.ended); got != cancel.Shutdown {
					m.t.Errorf("the module was stopped for %q", got)
				}
			})
		})
	}
}

// A reader whose connections are gone is noticed by the real server's 503.
func TestReaderWithoutConnectionsIsNoticedAtOnce(t *testing.T) {
	onMesh(t, func(m *mesh) {
		p := newCounting(-1)
		p.every = 10 * time.Millisecond
		m.node("n1", newStreamHost().stream("mod.x", module.Annotations{}, p.run))
		conns := m.conns()
		c := m.clientOn(conns)
		m.wait(c, "mod.x")
		ctx, stop := context.WithCancel(m.t.Context())
		defer stop()
		done := readAside(ctx, c, &contextwire.Request{ModuleID: "mod.x"}, nil)
		pass(105 * time.Millisecond)
		conns.Close()
		lost := time.Now()
		if got := cancel.ReasonOf(<-p.ended); got != cancel.CallerGone {
			m.t.Errorf("the module was stopped for %q", got)
		}
		if took := time.Since(lost); took > 30*time.Millisecond {
			m.t.Errorf("noticed after %v", took)
		}
		stop()
		<-done
	})
}
