package bus_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

func frameKind(m *nats.Msg) contextwire.FrameKind {
	return contextwire.FrameKind(contextwire.Header(m.Header).Get(contextwire.HeaderFrame))
}

// nth matches one message of a kind, the n-th from 1.
func nth(kind contextwire.FrameKind, n int64) func(*nats.Msg) bool {
	var seen atomic.Int64
	return func(m *nats.Msg) bool { return frameKind(m) == kind && seen.Add(1) == n }
}

func isGrant(m *nats.Msg) bool {
	h := contextwire.Header(m.Header)
	return h.Has(contextwire.HeaderCredit) && !h.Has(contextwire.HeaderMode)
}

func TestLostChunkIsNeverSuccess(t *testing.T) {
	for _, tt := range []struct {
		name string
		ann  module.Annotations
		lose int64
		came int
	}{
		{"the first", module.Annotations{}, 1, 0},
		{"one in the middle", module.Annotations{}, 7, 6},
		{"the last", module.Annotations{Readonly: true}, 10, 9},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onFaulty(t, func(f *faulty) {
				p := newCounting(10)
				_, host := f.host("n1", newStreamHost().stream("mod.x", tt.ann, p.run))
				c, _ := f.caller("mod.x")
				host.calls.Out.DropIf(nth(contextwire.FrameData, tt.lose))
				got := read(f.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"}, nil)
				e := wantCode(f.t, got.err, module.CodeBusStreamTruncated)
				got.wantInOrder(f.t, tt.came)
				if want := module.TriOf(tt.ann.Readonly); e.Retryable != want || e.Unexecuted || e.Details["chunks"] != int64(tt.came) {
					f.t.Errorf("retryable %v, unexecuted %v, details %v", e.Retryable, e.Unexecuted, e.Details)
				}
				if len(p.ended) != 1 && p.sent.Load() > 10 {
					f.t.Error("it was run again")
				}
			})
		})
	}
}

func TestRepeatedChunkIsNeverSuccess(t *testing.T) {
	onFaulty(t, func(f *faulty) {
		p := newCounting(-1)
		p.every = 10 * time.Millisecond
		_, host := f.host("n1", newStreamHost().stream("mod.x", module.Annotations{}, p.run))
		c, _ := f.caller("mod.x")
		host.calls.Out.Duplicate("_INBOX.>", 4) // the accept frame and three chunks
		got := read(f.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"}, nil)
		wantCode(f.t, got.err, module.CodeBusStreamTruncated)
		got.wantInOrder(f.t, 1)
		if got := cancel.ReasonOf(<-p.ended); got != cancel.Caller {
			f.t.Errorf("the module was stopped for %q", got)
		}
	})
}

// A lost accept frame, lost grants and a lost end cost time and nothing else.
func TestStreamHeals(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lose  func(caller, host *party) (stop func())
		n     int
		limit time.Duration
	}{
		{"lost accept", func(_, host *party) func() { return host.calls.Out.DropIf(nth(contextwire.FrameAccept, 1)) }, 100, 100 * time.Millisecond},
		{"lost grant", func(caller, _ *party) func() {
			var seen atomic.Int64
			return caller.calls.Out.DropIf(func(m *nats.Msg) bool { return isGrant(m) && seen.Add(1) == 3 })
		}, 100, 600 * time.Millisecond},
		{"every other grant", func(caller, _ *party) func() {
			var seen atomic.Int64
			return caller.calls.Out.DropIf(func(m *nats.Msg) bool { return isGrant(m) && seen.Add(1)%2 == 1 })
		}, 20, 10 * time.Second},
		{"lost end", func(_, host *party) func() { return host.calls.Out.DropIf(nth(contextwire.FrameEnd, 1)) }, 5, 1600 * time.Millisecond},
		{"lost end of none", func(_, host *party) func() { return host.calls.Out.DropIf(nth(contextwire.FrameEnd, 1)) }, 0, 1600 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onFaulty(t, func(f *faulty) {
				p := newCounting(tt.n)
				_, host := f.host("n1", newStreamHost().stream("mod.x", module.Annotations{}, p.run))
				c, caller := f.caller("mod.x")
				defer tt.lose(caller, host)()
				began := time.Now()
				got := read(f.t.Context(), c, &contextwire.Request{ModuleID: "mod.x", Credit: creditOf(2, 1<<20)}, nil)
				if got.err != nil {
					f.t.Fatal(got.err)
				}
				got.wantInOrder(f.t, tt.n)
				if took := got.at.Sub(began); took > tt.limit {
					f.t.Errorf("it took %v, want at most %v", took, tt.limit)
				}
				if len(p.ended) != 1 {
					f.t.Errorf("it was run %d times", len(p.ended))
				}
			})
		})
	}
}

func TestKilledReaderIsNoticedByTheNextChunk(t *testing.T) {
	onFaulty(t, func(f *faulty) {
		p := newCounting(-1)
		p.every = 10 * time.Millisecond
		n, _ := f.host("n1", newStreamHost().stream("mod.x", module.Annotations{}, p.run))
		c, caller := f.caller("mod.x")
		ctx, stop := context.WithCancel(f.t.Context())
		defer stop()
		done := readAside(ctx, c, &contextwire.Request{ModuleID: "mod.x"}, nil)
		pass(105 * time.Millisecond)
		sent := p.sent.Load()
		caller.kill()
		lost := time.Now()
		cause := <-p.ended
		if got := cancel.ReasonOf(cause); got != cancel.CallerGone {
			f.t.Errorf("the module was stopped for %q", got)
		}
		if took := time.Since(lost); took > 20*time.Millisecond || p.sent.Load() > sent+1 {
			f.t.Errorf("noticed after %v and %d chunks", took, p.sent.Load()-sent)
		}
		stop()
		<-done
		pass(time.Second)
		if got := n.Tables(); got.Running != 0 || got.Holding != 0 || got.Flows != 0 {
			f.t.Errorf("left behind: %+v", got)
		}
	})
}

// A reader that was away for a moment, say because it reconnects, learns that
// its stream is broken, not that somebody cancelled it.
func TestReaderThatComesBackFindsTheStreamBroken(t *testing.T) {
	onWire(t, func(w *wire) {
		p := newCounting(-1)
		p.every = 10 * time.Millisecond
		n := w.node("n1", newStreamHost().stream("mod.x", module.Annotations{Idempotent: true}, p.run))
		a := w.peer()
		m := a.request(&contextwire.Request{ModuleID: "mod.x", Stream: true})
		m.Reply = "_INBOX.away.1"
		got := make(chan *nats.Msg, 100)
		sub, err := a.Subscribe("_INBOX.away.*", "", func(m *nats.Msg) { got <- m })
		if err != nil {
			w.t.Fatal(err)
		}
		a.send(m)
		pass(25 * time.Millisecond)
		if len(got) != 3 {
			w.t.Fatalf("%d frames in 25 ms, want accept and two chunks", len(got))
		}
		if err := sub.Unsubscribe(); err != nil {
			w.t.Fatal(err)
		}
		if cause := cancel.ReasonOf(<-p.ended); cause != cancel.CallerGone {
			w.t.Errorf("the module was stopped for %q", cause)
		}
		pass(0)
		m.Reply = a.inbox + ".1"
		if _, err := a.Subscribe("_INBOX.away.*", "", func(m *nats.Msg) { a.got <- m }); err != nil {
			w.t.Fatal(err)
		}
		m.Subject = directed(n, "mod.x")
		a.send(m) // the node still has the end
		e := a.next()
		if e.Kind != contextwire.FrameError || e.Err.Code != module.CodeBusStreamTruncated || e.Err.Retryable != module.True || e.Err.Unexecuted {
			w.t.Errorf("the end is %+v, %v", e, e.Err)
		}
	})
}

// One that is killed or frozen while the module waits for credit is noticed by
// the probe, as with any call.
func TestLostReaderOfABlockedStreamIsNoticed(t *testing.T) {
	for _, tt := range []struct {
		name  string
		how   func(*party)
		limit time.Duration
	}{
		{"killed", (*party).kill, 1500 * time.Millisecond},
		{"frozen", (*party).freeze, 4 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onFaulty(t, func(f *faulty) {
				p := newCounting(-1)
				f.host("n1", newStreamHost().stream("mod.x", module.Annotations{}, p.run))
				c, caller := f.caller("mod.x")
				ctx, stop := context.WithCancel(f.t.Context())
				defer stop()
				done := readAside(ctx, c, &contextwire.Request{ModuleID: "mod.x", Credit: creditOf(3, 1<<20)}, func(int) error {
					<-ctx.Done()
					return nil
				})
				pass(time.Second)
				lost := time.Now()
				tt.how(caller)
				if got := cancel.ReasonOf(<-p.ended); got != cancel.CallerGone {
					f.t.Errorf("the module was stopped for %q", got)
				}
				if took := time.Since(lost); took > tt.limit {
					f.t.Errorf("noticed after %v", took)
				}
				stop()
				<-done
			})
		})
	}
}

func TestLostHostEndsTheStream(t *testing.T) {
	for _, tt := range []struct {
		name  string
		how   func(*party)
		limit time.Duration
	}{
		{"killed", (*party).kill, 1500 * time.Millisecond},
		{"frozen", (*party).freeze, 3 * time.Second},
		{"cut off", (*party).partition, 3 * time.Second},
	} {
		for _, ann := range []module.Annotations{{}, {Idempotent: true}} {
			t.Run(fmt.Sprint(tt.name, " idempotent ", ann.Idempotent), func(t *testing.T) {
				onFaulty(t, func(f *faulty) {
					p, q := newCounting(-1), newCounting(-1)
					p.every, q.every = 10*time.Millisecond, 10*time.Millisecond
					n, host := f.host("n1", newStreamHost().stream("mod.x", ann, p.run))
					c, _ := f.caller("mod.x")
					done := readAside(f.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"}, nil)
					pass(300 * time.Millisecond)
					f.host("n2", newStreamHost().stream("mod.x", ann, q.run)) // where it must not go on
					pass(300 * time.Millisecond)
					lost := time.Now()
					tt.how(host)
					got := <-done
					e := wantCode(f.t, got.err, module.CodeBusNodeLost)
					got.wantInOrder(f.t, -1)
					if took := got.at.Sub(lost); took > tt.limit {
						f.t.Errorf("noticed after %v", took)
					}
					if e.Retryable != module.TriOf(ann.Idempotent) || e.Details["boot"] != n.Boot() || len(got.is) == 0 {
						f.t.Errorf("retryable %v, details %v after %d chunks", e.Retryable, e.Details, len(got.is))
					}
					if q.sent.Load() != 0 {
						f.t.Error("a stream that had begun was sent again")
					}
				})
			})
		}
	}
}

// Before its first chunk a stream may be sent again like any call.
func TestStreamIsTriedAgainBeforeItsFirstChunk(t *testing.T) {
	onFaulty(t, func(f *faulty) {
		parties := map[string]*party{}
		started := make(chan string, 10)
		var again atomic.Bool
		for _, id := range []string{"n1", "n2"} {
			_, parties[id] = f.host(id, newStreamHost().stream("mod.x", module.Annotations{Idempotent: true}, func(ctx context.Context, _ *contextwire.Request, send func(module.Chunk) error) error {
				started <- id
				if !again.Swap(true) {
					<-ctx.Done()
					return context.Cause(ctx)
				}
				return send(module.Chunk{"i": int64(0)})
			}))
		}
		c, _ := f.caller("mod.x")
		f.waitHosts(c, "mod.x", 2)
		done := readAside(f.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"}, nil)
		victim := <-started
		parties[victim].kill()
		got := <-done
		if got.err != nil || got.reply.Attempt != 2 || got.reply.Node == victim {
			f.t.Fatalf("%s was killed: %+v, %v", victim, got.reply, got.err)
		}
		got.wantInOrder(f.t, 1)
	})
}

// A slow reader whose host dies after the end was sent still gets everything:
// the chunks and the end are here.
func TestStreamThatHasEndedOutlivesItsHost(t *testing.T) {
	onFaulty(t, func(f *faulty) {
		p := newCounting(10)
		p.every = 200 * time.Millisecond // long enough for a ping to list it
		_, host := f.host("n1", newStreamHost().stream("mod.x", module.Annotations{}, p.run))
		c, _ := f.caller("mod.x")
		var resent atomic.Int64
		host.calls.Out.DropIf(func(m *nats.Msg) bool {
			if frameKind(m) == contextwire.FrameEnd {
				resent.Add(1)
			}
			return false
		})
		done := readAside(f.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"}, func(i int) error {
			if i == 2 {
				<-time.After(time.Minute)
			}
			return nil
		})
		pass(40 * time.Second)
		host.kill()
		got := <-done
		if got.err != nil {
			f.t.Fatal(got.err)
		}
		got.wantInOrder(f.t, 10)
		if n := resent.Load(); n > 2 {
			f.t.Errorf("the end was sent %d times to a client that has it", n)
		}
	})
}

// A server that goes away and comes back breaks a stream whose chunks it lost;
// it never makes a success of it.
func TestServerRestartDuringAStream(t *testing.T) {
	onMesh(t, func(m *mesh) {
		p := newCounting(200)
		p.every = 10 * time.Millisecond
		m.node("n1", newStreamHost().stream("mod.x", module.Annotations{Idempotent: true}, p.run))
		c := m.client()
		m.wait(c, "mod.x")
		done := readAside(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.x", Budget: 20 * time.Second}, nil)
		pass(300 * time.Millisecond)
		m.stopServer()
		pass(500 * time.Millisecond)
		m.start()
		got := <-done
		e := wantCode(m.t, got.err, module.CodeBusStreamTruncated)
		got.wantInOrder(m.t, -1)
		if e.Retryable != module.True || e.Unexecuted {
			m.t.Errorf("retryable %v, unexecuted %v", e.Retryable, e.Unexecuted)
		}
		again := read(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"}, nil)
		if again.err != nil {
			m.t.Fatal(again.err)
		}
		again.wantInOrder(m.t, 200)
	})
}

// Hosts that break the protocol never make a success.
func TestBrokenStreamsOfForeignHosts(t *testing.T) {
	accept := &contextwire.Frame{Kind: contextwire.FrameAccept, CreditTo: "_INBOX.peer.credit"}
	data := func(seq uint64) *contextwire.Frame {
		return &contextwire.Frame{Kind: contextwire.FrameData, Seq: seq, Body: map[string]any{"i": int64(seq)}}
	}
	end := func(seq uint64) *contextwire.Frame {
		return &contextwire.Frame{Kind: contextwire.FrameEnd, Seq: seq, Body: map[string]any{}}
	}
	var flood []*contextwire.Frame
	for i := range uint64(50) {
		flood = append(flood, data(i))
	}
	for _, tt := range []struct {
		name   string
		frames []*contextwire.Frame
		code   module.Code
		came   int
	}{
		{"good", []*contextwire.Frame{accept, data(0), data(1), end(2)}, "", 2},
		{"no accept", []*contextwire.Frame{data(0), end(1)}, "", 1},
		{"none", []*contextwire.Frame{end(0)}, "", 0},
		{"accept over and over", append([]*contextwire.Frame{accept, accept, accept, accept, accept, accept, accept, accept, accept, accept, accept}, data(0), end(1)), "", 1},
		{"count too large", []*contextwire.Frame{accept, data(0), end(2)}, module.CodeBusStreamTruncated, 1},
		{"count too small", []*contextwire.Frame{accept, data(0), data(1), end(1)}, module.CodeBusStreamTruncated, 2},
		{"gap", []*contextwire.Frame{accept, data(0), data(2), end(2)}, module.CodeBusStreamTruncated, 1},
		{"repeat", []*contextwire.Frame{accept, data(0), data(0), end(2)}, module.CodeBusStreamTruncated, 1},
		{"out of order", []*contextwire.Frame{accept, data(1), data(0), end(2)}, module.CodeBusStreamTruncated, 0},
		{"result instead", []*contextwire.Frame{accept, data(0), result(map[string]any{})}, module.CodeBusStreamTruncated, 1},
		{"more than the window", append(append([]*contextwire.Frame{accept}, flood...), end(50)), module.CodeBusStreamTruncated, -1},
		{"unexecuted after a chunk", []*contextwire.Frame{accept, data(0), failure(module.Errorf(module.CodeBusOverloaded, "no").NotExecuted())}, module.CodeBusOverloaded, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onWire(t, func(w *wire) {
				host := w.peer()
				host.hosts("mod.x", func(*nats.Msg, string) []*contextwire.Frame { return tt.frames })
				if _, err := host.Subscribe("_INBOX.peer.credit", "", func(*nats.Msg) {}); err != nil {
					w.t.Fatal(err)
				}
				c := w.client()
				got := read(w.t.Context(), c, &contextwire.Request{ModuleID: "mod.x", Credit: creditOf(4, 1<<20)}, func(i int) error {
					if i == 0 {
						pass(time.Millisecond) // so that what the host sends is all here
					}
					return nil
				})
				pass(0) // the host may not have said everything yet
				if code := module.CodeOf(got.err); code != tt.code {
					w.t.Fatalf("code %q, want %q (%v)", code, tt.code, got.err)
				}
				got.wantInOrder(w.t, tt.came)
				if e := module.AsError(got.err); e != nil && e.Unexecuted {
					w.t.Error("it says that it was not run")
				}
			})
		})
	}
	t.Run("in answer to a plain call", func(t *testing.T) {
		onWire(t, func(w *wire) {
			host := w.peer()
			host.hosts("mod.x", func(*nats.Msg, string) []*contextwire.Frame { return []*contextwire.Frame{accept, data(0), end(1)} })
			_, err := w.client().Call(w.t.Context(), "mod.x", nil)
			pass(0)
			wantCode(w.t, err, module.CodeBusBadMessage)
		})
	})
}

// The grants of a client are totals of what was taken and a window more, at half
// a window and every 500 ms.
func TestGrantsOfAClient(t *testing.T) {
	onWire(t, func(w *wire) {
		host := w.peer()
		calls := make(chan *nats.Msg, 1)
		host.hosts("mod.x", func(m *nats.Msg, _ string) []*contextwire.Frame { calls <- m; return nil })
		type grant struct {
			total contextwire.Credit
			at    time.Duration
		}
		began := time.Now()
		grants := make(chan grant, 100)
		if _, err := host.Subscribe("_INBOX.peer.credit", "", func(m *nats.Msg) {
			total, err := contextwire.DecodeCredit(contextwire.Header(m.Header))
			if err != nil || len(m.Data) > 0 {
				w.t.Errorf("grant %v: %v", m, err)
			}
			grants <- grant{total, time.Since(began)}
		}); err != nil {
			w.t.Fatal(err)
		}
		if _, err := host.Subscribe("apbus.v1.node.default.peer.b1.ping", "", func(m *nats.Msg) {
			host.answer(m, result((&contextwire.Pong{Node: "peer", Boot: "b1"}).Map()))
		}); err != nil {
			w.t.Fatal(err)
		}
		resume := make(chan struct{})
		c, err := bus.NewClient(w.conns(), bus.ClientOptions{Logger: quiet(), StreamWindow: creditOf(8, 1000)})
		if err != nil {
			w.t.Fatal(err)
		}
		defer c.Close()
		done := readAside(w.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"}, func(i int) error {
			if i == 6 {
				<-resume
			}
			return nil
		})
		m := <-calls
		if got := contextwire.Header(m.Header).Get(contextwire.HeaderCredit); got != "8/1000" {
			w.t.Errorf("window %q", got)
		}
		host.answer(m, &contextwire.Frame{Kind: contextwire.FrameAccept, CreditTo: "_INBOX.peer.credit"})
		for i := range uint64(8) {
			host.answer(m, &contextwire.Frame{Kind: contextwire.FrameData, Seq: i, Body: map[string]any{"i": int64(i)}})
		}
		pass(0)
		const body = 7 // {"i":0}
		if g := <-grants; g.total != creditOf(4+8, 4*body+1000) || g.at != 0 {
			w.t.Errorf("first grant %+v", g)
		}
		pass(3 * time.Second) // the reader holds the seventh
		if len(grants) != 0 {
			w.t.Errorf("%d grants for what nobody took", len(grants))
		}
		close(resume)
		pass(0)
		if g := <-grants; g.total != creditOf(8+8, 8*body+1000) {
			w.t.Errorf("second grant %+v", g)
		}
		pass(1600 * time.Millisecond)
		if n := len(grants); n != 3 {
			w.t.Errorf("%d grants in 1.6 s of silence, want 3", n)
		}
		for len(grants) > 0 {
			if g := <-grants; g.total != creditOf(16, 8*body+1000) {
				w.t.Errorf("repeated grant %+v", g)
			}
		}
		host.answer(m, &contextwire.Frame{Kind: contextwire.FrameEnd, Seq: 8, Body: map[string]any{}})
		if got := <-done; got.err != nil {
			w.t.Error(got.err)
		}
	})
}
