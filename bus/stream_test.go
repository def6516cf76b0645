package bus_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

func TestStreamBringsEveryChunkInOrder(t *testing.T) {
	for _, tt := range []struct {
		name   string
		n, pad int
		window contextwire.Credit
	}{
		{"the default window", 1000, 0, contextwire.Credit{}},
		{"one at a time", 200, 0, creditOf(1, 1)},
		{"one byte of room", 200, 10, creditOf(64, 1)},
		{"two at a time", 200, 0, creditOf(2, 1<<20)},
		{"room for three and a half", 200, 1000, creditOf(1000, 3500)},
		{"more room than chunks", 1000, 0, creditOf(1<<40, 1<<62)},
		{"none", 0, 0, contextwire.Credit{}},
		{"as many as the window", 64, 0, contextwire.Credit{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onMesh(t, func(m *mesh) {
				p := newCounting(tt.n)
				p.pad = tt.pad
				n := m.node("n1", newStreamHost().stream("mod.x", module.Annotations{}, p.run))
				c := m.client()
				m.wait(c, "mod.x")
				began := time.Now()
				got := read(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.x", Credit: tt.window}, nil)
				if got.err != nil {
					m.t.Fatal(got.err)
				}
				got.wantInOrder(m.t, tt.n)
				if last := got.reply.Output["i"]; tt.n > 0 && last != int64(tt.n-1) {
					m.t.Errorf("merged value ends with %v", last)
				}
				if got.reply.Node != "n1" || got.reply.Boot != n.Boot() || got.reply.Attempt != 1 {
					m.t.Errorf("reply %+v", got.reply)
				}
				if took := time.Since(began); took > 100*time.Millisecond {
					m.t.Errorf("it took %v: somebody waited for a grant that was not sent", took)
				}
			})
		})
	}
}

// A frame that does not fit what is left of the window does not wait for the
// next regular grant, although the reader has taken less than half a window.
func TestStreamOfUnevenChunksDoesNotStall(t *testing.T) {
	onWire(t, func(w *wire) {
		w.node("n1", newStreamHost().stream("mod.x", module.Annotations{}, func(_ context.Context, _ *contextwire.Request, send func(module.Chunk) error) error {
			for i, size := range []int{400, 900, 10, 5000, 400, 980, 1, 300, 300, 300, 300} {
				if err := send(module.Chunk{"i": int64(i), "pad": strings.Repeat("x", size)}); err != nil {
					return err
				}
			}
			return nil
		}))
		began := time.Now()
		got := read(w.t.Context(), w.client(), &contextwire.Request{ModuleID: "mod.x", Credit: creditOf(64, 1000)}, nil)
		if got.err != nil {
			w.t.Fatal(got.err)
		}
		got.wantInOrder(w.t, 11)
		if took := time.Since(began); took > 100*time.Millisecond {
			w.t.Errorf("it took %v", took)
		}
	})
}

func TestStreamRangesOverChunks(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStreamHost().stream("mod.x", module.Annotations{}, newCounting(3).run))
		c := m.client()
		m.wait(c, "mod.x")
		stream := c.Stream(m.t.Context(), "mod.x", nil)
		for range 2 { // each range is a call of its own
			var got []module.Chunk
			for chunk, err := range stream {
				if err != nil {
					m.t.Fatal(err)
				}
				got = append(got, chunk)
			}
			want := []module.Chunk{{"i": int64(0)}, {"i": int64(1)}, {"i": int64(2)}}
			if diff := cmp.Diff(want, got); diff != "" {
				m.t.Errorf("chunks (-want +got):\n%s", diff)
			}
		}
		n := 0
		for chunk, err := range c.Stream(m.t.Context(), "no.such", nil) {
			n++
			if chunk != nil {
				m.t.Errorf("chunk %v with an error", chunk)
			}
			wantCode(m.t, err, module.CodeModuleNotFound)
		}
		for _, err := range c.Stream(m.t.Context(), "mod.x", 5) {
			n++
			wantCode(m.t, err, module.CodeInvalidInput)
		}
		if n != 2 {
			m.t.Errorf("%d elements for two failed streams", n)
		}
	})
}

func TestStreamOfAModuleThatDoesNotStream(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStreamHost().stream("mod.s", module.Annotations{}, newCounting(5).run).add("mod.u", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
			return map[string]any{"i": int64(0), "x": "y"}, nil
		}))
		m.node("n2", newStubHost().add("mod.no", module.Annotations{}, echo)) // whose host does not stream at all
		c := m.client()
		m.wait(c, "mod.s", "mod.u", "mod.no")
		got := read(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.u"}, nil)
		if got.err != nil || got.reply.Output["x"] != "y" {
			m.t.Fatalf("%+v, %v", got.reply, got.err)
		}
		got.wantInOrder(m.t, 1)
		out, err := c.Call(m.t.Context(), "mod.s", nil)
		if err != nil || out["i"] != int64(4) {
			m.t.Errorf("plain call of a streaming module: %v, %v", out, err)
		}
		e := wantCode(m.t, read(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.no"}, nil).err, module.CodeNotImplemented)
		if !e.Unexecuted {
			m.t.Error("a host that does not stream may have run it")
		}
		res, err := c.Check(m.t.Context(), &contextwire.Request{ModuleID: "mod.no", Stream: true})
		if err != nil || !res.Valid {
			m.t.Errorf("check: %+v, %v", res, err)
		}
	})
}

// What the node sends, frame by frame, and how far it goes without a grant.
func TestStreamOnTheWire(t *testing.T) {
	onWire(t, func(w *wire) {
		n := w.node("n1", newStreamHost().stream("mod.x", module.Annotations{}, newCounting(10).run), func(o *bus.NodeOptions) { o.CallGrace = 1500 * time.Millisecond })
		p := w.peer()
		m := p.request(&contextwire.Request{ModuleID: "mod.x", Stream: true, Credit: creditOf(4, 1<<20)})
		p.send(m)
		synctest.Wait()
		accept := p.decode(<-p.got)
		if accept.Kind != contextwire.FrameAccept || accept.CreditTo == "" || accept.Grace != 1500*time.Millisecond || accept.Boot != n.Boot() {
			w.t.Fatalf("first frame %+v", accept)
		}
		expect := func(from, to uint64) {
			w.t.Helper()
			synctest.Wait()
			for seq := from; seq < to; seq++ {
				if len(p.got) == 0 {
					w.t.Fatalf("frame %d is missing", seq)
				}
				msg := <-p.got
				f := p.decode(msg)
				if f.Kind != contextwire.FrameData || f.Seq != seq || f.Body["i"] != int64(seq) || msg.Reply != accept.CreditTo {
					w.t.Fatalf("frame %+v with reply subject %q, want data %d", f, msg.Reply, seq)
				}
				if len(msg.Header) != 2 {
					w.t.Errorf("headers of a data frame: %v", msg.Header)
				}
			}
			if len(p.got) > 0 {
				w.t.Fatalf("%+v came beyond frame %d", p.decode(<-p.got), to)
			}
		}
		grant := func(frames, bytes int64) {
			p.send(&nats.Msg{Subject: accept.CreditTo, Header: nats.Header(contextwire.EncodeCredit(creditOf(frames, bytes)))})
		}
		expect(0, 4)
		grant(6, 1<<20)
		expect(4, 6)
		grant(5, 1<<20) // late, changes nothing
		p.send(&nats.Msg{Subject: accept.CreditTo, Header: nats.Header{contextwire.HeaderCredit: {"-1/x"}}})
		p.send(&nats.Msg{Subject: accept.CreditTo})
		expect(6, 6)
		grant(6, 1<<30) // room for bytes alone is none
		expect(6, 6)
		if calls := p.ask(control(n, "calls"), &contextwire.CallsRequest{}); fmt.Sprint(calls.Body["calls"]) == "" || !strings.Contains(fmt.Sprint(calls.Body), "mode:stream") {
			w.t.Errorf("list of calls %v", calls.Body)
		}
		grant(9, 1<<30)
		expect(6, 9)
		grant(100, 1<<30)
		synctest.Wait()
		if f := p.decode(<-p.got); f.Seq != 9 {
			w.t.Fatalf("got %+v", f)
		}
		end := p.decode(<-p.got)
		if end.Kind != contextwire.FrameEnd || end.Seq != 10 || end.Body["i"] != int64(9) || len(p.got) != 0 {
			w.t.Errorf("end %+v", end)
		}
		p.send(m) // the same attempt again: the same end, no chunks
		if got := p.frames(); len(got) != 1 || got[0].Kind != contextwire.FrameEnd || got[0].Seq != 10 {
			w.t.Errorf("again: %v", kinds(got))
		}
		if got := n.Tables(); got.Running != 0 || got.Holding != 0 || got.Flows != 0 {
			w.t.Errorf("left behind: %+v", got)
		}
	})
}

// A reader that takes its time holds back its own module, a window ahead of it,
// and no other call.
func TestSlowReaderHoldsBackOnlyItsModule(t *testing.T) {
	onMesh(t, func(m *mesh) {
		p := newCounting(200)
		m.node("n1", newStreamHost().stream("mod.x", module.Annotations{}, p.run).add("mod.y", module.Annotations{}, echo))
		c := m.client()
		m.wait(c, "mod.x", "mod.y")
		resume := make(chan struct{})
		done := readAside(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.x", Credit: creditOf(16, 1<<20)}, func(i int) error {
			if i == 20 {
				<-resume
			}
			return nil
		})
		pass(10 * time.Second)
		// 20 chunks are taken and one is in the reader's hands.
		if sent := p.sent.Load(); sent < 20+8 || sent > 20+16 {
			m.t.Errorf("%d chunks sent to a reader that stopped at 20, the window being 16", sent)
		}
		for range 100 {
			if _, err := c.Call(m.t.Context(), "mod.y", nil); err != nil {
				m.t.Fatal(err)
			}
		}
		got := read(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.y"}, nil)
		if got.err != nil {
			m.t.Errorf("another stream: %v", got.err)
		}
		close(resume)
		end := <-done
		if end.err != nil {
			m.t.Fatal(end.err)
		}
		end.wantInOrder(m.t, 200)
	})
}

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

// Streams take slots like any call, and the one that waits knows who has it.
func TestStreamsTakeSlots(t *testing.T) {
	onMesh(t, func(m *mesh) {
		p := newCounting(100)
		p.every = 50 * time.Millisecond
		m.node("n1", newStreamHost().stream("mod.x", module.Annotations{}, p.run), func(o *bus.NodeOptions) { o.MaxInFlight, o.QueueSize = 1, 1 })
		c := m.client()
		m.wait(c, "mod.x")
		first := readAside(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"}, nil)
		pass(time.Second)
		second := readAside(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"}, nil)
		pass(time.Second)
		third := read(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.x", Budget: 200 * time.Millisecond}, nil)
		if e := wantCode(m.t, third.err, module.CodeBusOverloaded); !e.Unexecuted {
			m.t.Error("refused after it was run")
		}
		for _, done := range []<-chan *taken{first, second} {
			got := <-done
			if got.err != nil {
				m.t.Fatal(got.err)
			}
			got.wantInOrder(m.t, 100)
		}
	})
}

// A cancel that overtakes its stream stops it all the same.
func TestTombstoneStopsAStream(t *testing.T) {
	onWire(t, func(w *wire) {
		p := newCounting(3)
		n := w.node("n1", newStreamHost().stream("mod.x", module.Annotations{}, p.run))
		a := w.peer()
		m := a.request(&contextwire.Request{ModuleID: "mod.x", Stream: true})
		a.ask(control(n, "cancel"), &contextwire.CancelNotice{Call: m.Header.Get(contextwire.HeaderCall), Reason: "caller", By: "test", At: time.Now()})
		a.send(m)
		got := a.frames()
		if len(got) != 1 || got[0].Kind != contextwire.FrameError || got[0].Err.Code != module.CodeExecutionCancelled || !got[0].Err.Unexecuted || p.sent.Load() != 0 {
			w.t.Errorf("%v, %d chunks sent", kinds(got), p.sent.Load())
		}
	})
}

func TestProgressAndTraceOfAStream(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStreamHost().stream("mod.x", module.Annotations{}, func(_ context.Context, req *contextwire.Request, send func(module.Chunk) error) error {
			req.Progress(module.ProgressReport{Done: 1})
			return send(module.Chunk{"i": int64(0)})
		}))
		c := m.client()
		m.wait(c, "mod.x")
		var reports []module.ProgressReport
		got := read(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.x", Progress: func(r module.ProgressReport) { reports = append(reports, r) }}, nil)
		if got.err != nil || len(reports) != 1 {
			m.t.Errorf("%v, reports %v", got.err, reports)
		}
		got.wantInOrder(m.t, 1)
	})
}

// Many streams at once, ended in every way, leave nothing behind.
func TestStreamsLeaveNothingBehind(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStreamHost().stream("mod.x", module.Annotations{}, newCountingMany().run))
		c := m.client()
		m.wait(c, "mod.x")
		round := func() {
			var all []<-chan *taken
			for i := range 60 {
				ctx, stop := context.WithTimeout(m.t.Context(), 30*time.Second)
				all = append(all, readAside(ctx, c, &contextwire.Request{ModuleID: "mod.x", Credit: creditOf(int64(i%5+1), 1<<20)}, func(n int) error {
					switch {
					case i%3 == 1 && n == 5:
						return errors.New("left")
					case i%3 == 2 && n == 5:
						stop()
					}
					return nil
				}))
				defer stop()
			}
			for i, done := range all {
				got := <-done
				got.wantInOrder(m.t, -1)
				if (got.err == nil) != (i%3 == 0) {
					m.t.Errorf("stream %d: %v", i, got.err)
				}
			}
			pass(10 * time.Second)
		}
		round()
		before := runtime.NumGoroutine()
		for range 3 {
			round()
		}
		if after := runtime.NumGoroutine(); after > before+2 {
			m.t.Errorf("%d goroutines, %d before", after, before)
		}
	})
}

func newCountingMany() *counting { return &counting{n: 50, ended: make(chan error, 1000)} }
