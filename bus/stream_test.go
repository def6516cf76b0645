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
		n := w.node("n1", newStreamHost().stream("mod.x", module.Annotations{}, newCounting(10).run), func(o *bus.NodeOptions) { o.CallGrace = func() time.Duration { return 1500 * time.Millisecond } })
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

// The window in bytes of bodies holds a module back like the one in frames.
func TestStreamWaitsForBytes(t *testing.T) {
	onWire(t, func(w *wire) {
		p := newCounting(10)
		w.node("n1", newStreamHost().stream("mod.x", module.Annotations{}, p.run))
		a := w.peer()
		a.send(a.request(&contextwire.Request{ModuleID: "mod.x", Stream: true, Credit: creditOf(100, 30)}))
		const body = 7 // {"i":0}
		got := a.frames()
		if len(got) != 1+30/body {
			w.t.Fatalf("%d frames within 30 bytes, want accept and 4 chunks", len(got))
		}
		grant := func(frames, bytes int64) int {
			a.send(&nats.Msg{Subject: got[0].CreditTo, Header: nats.Header(contextwire.EncodeCredit(creditOf(frames, bytes)))})
			return len(a.frames())
		}
		if n := grant(1000, 34); n != 0 {
			w.t.Errorf("%d chunks more within 34 bytes", n)
		}
		if n := grant(1000, 35); n != 1 {
			w.t.Errorf("%d chunks more within 35 bytes, want 1", n)
		}
		if n := grant(1000, 1000); n != 6 {
			w.t.Errorf("%d frames at the end, want five chunks and the end", n)
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
