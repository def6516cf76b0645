package bus_test

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

type stubRun = func(context.Context, *contextwire.Request) (map[string]any, error)

// lasting runs for a time that the input "ms" says.
func lasting(_ context.Context, req *contextwire.Request) (map[string]any, error) {
	ms, _ := req.Inputs["ms"].(int64)
	<-time.After(time.Duration(ms) * time.Millisecond)
	return map[string]any{"ms": ms}, nil
}

func TestAcceptTellsWhoHasACallThatLasts(t *testing.T) {
	for _, tt := range []struct {
		name string
		ms   int
		want []contextwire.FrameKind
	}{
		{"finished within 20 ms", 19, []contextwire.FrameKind{contextwire.FrameResult}},
		{"not finished within 20 ms", 21, []contextwire.FrameKind{contextwire.FrameAccept, contextwire.FrameResult}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onWire(t, func(w *wire) {
				n := w.node("n1", newStubHost().add("mod.x", module.Annotations{}, lasting), func(o *bus.NodeOptions) { o.CallGrace = func() time.Duration { return 1500 * time.Millisecond } })
				p := w.peer()
				m := p.request(&contextwire.Request{ModuleID: "mod.x", Inputs: map[string]any{"ms": tt.ms}})
				p.send(m)
				pass(20 * time.Millisecond)
				early := p.frames()
				pass(time.Second)
				all := slices.Concat(early, p.frames())
				if diff := cmp.Diff(tt.want, kinds(all)); diff != "" {
					w.t.Fatalf("frames (-want +got):\n%s", diff)
				}
				for _, f := range all {
					if f.Node != n.ID() || f.Boot != n.Boot() || f.CallID != m.Header.Get(contextwire.HeaderCall) {
						w.t.Errorf("%s frame of %s.%s for call %q", f.Kind, f.Node, f.Boot, f.CallID)
					}
					if f.Kind == contextwire.FrameAccept && f.Grace != 1500*time.Millisecond {
						w.t.Errorf("announced grace %v, want 1.5s", f.Grace)
					}
				}
				if len(all) == 2 && len(early) != 1 {
					w.t.Error("the accept frame did not come at 20 ms")
				}
			})
		})
	}
}

func TestProgressIsDeliveredTenTimesASecond(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(_ context.Context, req *contextwire.Request) (map[string]any, error) {
			for i := range 200 {
				req.Progress(module.ProgressReport{Done: float64(i), Note: "step"})
				<-time.After(10 * time.Millisecond)
			}
			return map[string]any{}, nil
		}))
		c := m.client()
		m.wait(c, "mod.x")
		var got []module.ProgressReport
		_, err := c.Invoke(m.t.Context(), &contextwire.Request{ModuleID: "mod.x", Progress: func(r module.ProgressReport) { got = append(got, r) }})
		if err != nil {
			m.t.Fatal(err)
		}
		if len(got) < 18 || len(got) > 21 {
			m.t.Fatalf("%d reports in 2 s, want ten a second", len(got))
		}
		for i, r := range got {
			if r.Note != "step" || i > 0 && r.Done <= got[i-1].Done {
				m.t.Errorf("report %d is %+v", i, r)
			}
		}
	})
}

// A module may report after its call has ended; nothing follows the end.
func TestNothingFollowsTheTerminalFrame(t *testing.T) {
	onWire(t, func(w *wire) {
		late := make(chan struct{})
		w.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(_ context.Context, req *contextwire.Request) (map[string]any, error) {
			go func() {
				defer close(late)
				for range 50 {
					req.Progress(module.ProgressReport{Done: 1})
					<-time.After(110 * time.Millisecond)
				}
			}()
			<-time.After(200 * time.Millisecond)
			return map[string]any{}, nil
		}))
		p := w.peer()
		p.send(p.request(&contextwire.Request{ModuleID: "mod.x"}))
		<-late
		all := kinds(p.frames())
		if n := len(all); n < 2 || all[n-1] != contextwire.FrameResult || slices.Index(all, contextwire.FrameResult) != n-1 {
			w.t.Errorf("frames %v, want one result and nothing after it", all)
		}
	})
}

func TestDuplicateOfOneAttempt(t *testing.T) {
	onWire(t, func(w *wire) {
		ran := 0
		n := w.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
			ran++
			return lasting(ctx, req)
		}))
		p := w.peer()
		m := p.request(&contextwire.Request{ModuleID: "mod.x", Inputs: map[string]any{"ms": 100}})
		p.send(m)
		p.send(m) // in flight: ignored
		pass(50 * time.Millisecond)
		direct := *m
		direct.Subject = directed(n, "mod.x")
		p.send(&direct)
		pass(time.Second)
		want := []contextwire.FrameKind{contextwire.FrameAccept, contextwire.FrameResult}
		if diff := cmp.Diff(want, kinds(p.frames())); diff != "" || ran != 1 {
			w.t.Fatalf("in flight: ran %d times, frames (-want +got):\n%s", ran, diff)
		}
		p.send(m) // finished: the same end again
		again := p.frames()
		if len(again) != 1 || again[0].Kind != contextwire.FrameResult || again[0].Body["ms"] != int64(100) || ran != 1 {
			w.t.Errorf("finished: ran %d times, got %v", ran, kinds(again))
		}
		second := p.request(&contextwire.Request{CallID: m.Header.Get(contextwire.HeaderCall), Attempt: 2, ModuleID: "mod.x"})
		p.send(second) // another attempt is another execution
		if got := kinds(p.frames()); len(got) != 1 || ran != 2 {
			w.t.Errorf("attempt 2: ran %d times in all, got %v", ran, got)
		}
	})
}

// Every message sent twice: no module runs twice.
func TestDuplicatedMessagesRunOnce(t *testing.T) {
	onWire(t, func(w *wire) {
		ran := map[string]int{}
		h := newStubHost().add("mod.x", module.Annotations{}, func(_ context.Context, req *contextwire.Request) (map[string]any, error) {
			return map[string]any{"call": req.CallID}, nil
		})
		count := make(chan string, 1000)
		h.add("mod.y", module.Annotations{}, func(_ context.Context, req *contextwire.Request) (map[string]any, error) {
			count <- req.CallID
			return map[string]any{"call": req.CallID}, nil
		})
		w.node("n1", h)
		c := w.client()
		w.mem.All.Duplicate("apbus.v1.call.>", 500)
		for range 500 {
			req := &contextwire.Request{CallID: contextwire.NewCallID(), ModuleID: "mod.y"}
			reply, err := c.Invoke(w.t.Context(), req)
			if err != nil || reply.Output["call"] != req.CallID {
				w.t.Fatalf("got %v, %v", reply, err)
			}
		}
		synctest.Wait()
		close(count)
		for call := range count {
			ran[call]++
		}
		for call, n := range ran {
			if n != 1 {
				w.t.Errorf("call %s ran %d times", call, n)
			}
		}
		if len(ran) != 500 {
			w.t.Errorf("%d calls ran, want 500", len(ran))
		}
	})
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// Terminal frames are kept for callers that may have missed them, and given up
// when it is known that they did not, or after 30 s.
func TestKeptFramesAreGivenUp(t *testing.T) {
	onWire(t, func(w *wire) {
		big := map[string]any{"body": string(make([]byte, 2000))}
		w.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
			return big, nil
		}))
		c := w.client()
		call := func(n int) {
			for range n {
				if _, err := c.Call(w.t.Context(), "mod.x", nil); err != nil {
					w.t.Fatal(err)
				}
			}
		}
		call(100)
		pass(time.Minute)
		before := heap()
		call(8_000)
		if kept := heap(); kept < before+10<<20 {
			w.t.Errorf("only %d bytes more after 8,000 calls: nothing seems to be kept", kept-before)
		}
		pass(5 * time.Second) // the caller's pings say that nothing is open
		call(1)
		pass(5 * time.Second)
		if after := heap(); after > before+2<<20 {
			w.t.Errorf("%d bytes more after the caller said that nothing is open", after-before)
		}
		p := w.peer() // a caller that never pings
		for range 4000 {
			p.send(p.request(&contextwire.Request{ModuleID: "mod.x"}))
			<-p.got
		}
		pass(time.Minute)
		if after := heap(); after > before+4<<20 {
			w.t.Errorf("%d bytes more, 60 s after a silent caller's calls", after-before)
		}
	})
}
