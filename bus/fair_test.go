package bus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// as is a Context of somebody.
func as(id string) *module.Context {
	if id == "" {
		return module.NewContext(module.ContextOptions{})
	}
	return module.NewContext(module.ContextOptions{Identity: module.NewIdentity(id, "user", nil, nil)})
}

// gauge counts what runs at once, by a name that each run gives.
type gauge struct {
	mu        sync.Mutex
	now, most map[string]int
}

func newGauge() *gauge { return &gauge{now: map[string]int{}, most: map[string]int{}} }

func (g *gauge) during(name string, f func()) {
	g.mu.Lock()
	g.now[name]++
	g.most[name] = max(g.most[name], g.now[name])
	g.mu.Unlock()
	f()
	g.mu.Lock()
	g.now[name]--
	g.mu.Unlock()
}

func TestIdentityLimit(t *testing.T) {
	onWire(t, func(w *wire) {
		g := newGauge()
		w.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(_ context.Context, req *contextwire.Request) (map[string]any, error) {
			who := ""
			if id := req.Context.Identity(); id != nil {
				who = id.ID()
			}
			g.during(who, func() { <-time.After(100 * time.Millisecond) })
			return map[string]any{"who": who}, nil
		}), func(o *bus.NodeOptions) { o.MaxPerIdentity = 2 })
		c := w.client()
		type end struct {
			who  string
			took time.Duration
		}
		ends := make(chan end, 100)
		for who, calls := range map[string]int{"ana": 20, "ben": 2, "": 4} {
			for range calls {
				go func() {
					start := time.Now()
					_, err := c.Invoke(w.t.Context(), &contextwire.Request{ModuleID: "mod.x", Context: as(who)})
					if err != nil {
						w.t.Errorf("a call of %q: %v", who, err)
					}
					ends <- end{who, time.Since(start)}
				}()
			}
		}
		longest := map[string]time.Duration{}
		for range 26 {
			e := <-ends
			longest[e.who] = max(longest[e.who], e.took)
		}
		for _, who := range []string{"ana", "ben", ""} {
			if g.most[who] != 2 {
				w.t.Errorf("%q had %d calls at once, want 2", who, g.most[who])
			}
		}
		if longest["ana"] != time.Second || longest["ben"] != 100*time.Millisecond || longest[""] != 200*time.Millisecond {
			w.t.Errorf("longest calls %v: one identity's flood held up another's", longest)
		}
	})
}

// A call of an identity that has all it may have is refused when it cannot wait.
func TestIdentityLimitWithoutRoomToWait(t *testing.T) {
	onWire(t, func(w *wire) {
		n := w.node("n1", newStubHost().add("mod.x", module.Annotations{}, lasting), func(o *bus.NodeOptions) { o.MaxPerIdentity, o.QueueSize = 1, -1 })
		p := w.peer()
		for range 3 {
			p.send(p.request(&contextwire.Request{ModuleID: "mod.x", Inputs: map[string]any{"ms": 10}, Context: as("ana")}))
		}
		pass(time.Second)
		results, refused := 0, 0
		for _, f := range p.frames() {
			switch {
			case f.Kind == contextwire.FrameResult:
				results++
			case f.Err.Code == module.CodeBusOverloaded && f.Err.Unexecuted && f.RetryAfter > 0:
				refused++
			}
		}
		if results != 1 || refused != 2 {
			w.t.Errorf("%d results, %d refused, want 1 and 2", results, refused)
		}
		if got := n.Tables(); got.Holding+got.Waiting+got.Running != 0 {
			w.t.Errorf("left: %+v", got)
		}
	})
}

// With one call for each identity a chain that comes back waits for itself.
func TestIdentityThatWaitsForItselfFailsFast(t *testing.T) {
	onWire(t, func(w *wire) {
		c := w.client()
		h := newStubHost().add("mod.a", module.Annotations{}, nest(&c, "mod.b")).add("mod.b", module.Annotations{}, echo)
		w.node("n1", h, func(o *bus.NodeOptions) { o.MaxPerIdentity = 1 })
		began := time.Now()
		_, err := c.Invoke(w.t.Context(), &contextwire.Request{ModuleID: "mod.a", Context: as("ana")})
		e := wantCode(w.t, err, module.CodeBusOverloaded)
		if took := time.Since(began); took > time.Second || e.Unexecuted {
			w.t.Errorf("failed after %v, unexecuted %v", took, e.Unexecuted)
		}
		if chain, _ := e.Details["call_chain"].([]any); fmt.Sprint(chain) != "[mod.a mod.b]" {
			w.t.Errorf("chain %v, want mod.a, mod.b", chain)
		}
	})
}

// One module's flood leaves others their part: with calls that last for minutes
// another module's call is served at once.
func TestFloodLeavesSlotsToOthers(t *testing.T) {
	onWire(t, func(w *wire) {
		w.node("n1", newStubHost().add("mod.flood", module.Annotations{}, lasting).add("mod.other", module.Annotations{}, echo),
			func(o *bus.NodeOptions) { o.MaxInFlight = 10 })
		p, q := w.peer(), w.peer()
		for range 50 {
			p.send(p.request(&contextwire.Request{ModuleID: "mod.flood", Inputs: map[string]any{"ms": 60_000}}))
		}
		pass(time.Second)
		q.send(q.request(&contextwire.Request{ModuleID: "mod.other"}))
		if got := kinds(q.frames()); !slices.Equal(got, []contextwire.FrameKind{contextwire.FrameResult}) {
			w.t.Errorf("another module's call got %v", got)
		}
		pass(10 * time.Minute)
	})
}

// The only module of a node may have all of it.
func TestOnlyModuleHasAllSlots(t *testing.T) {
	onWire(t, func(w *wire) {
		g := newGauge()
		w.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
			g.during("", func() { <-time.After(time.Second) })
			return map[string]any{}, nil
		}), func(o *bus.NodeOptions) { o.MaxInFlight = 10 })
		p := w.peer()
		for range 20 {
			p.send(p.request(&contextwire.Request{ModuleID: "mod.x"}))
		}
		pass(time.Minute)
		if g.most[""] != 10 {
			w.t.Errorf("%d ran at once, want 10", g.most[""])
		}
	})
}

// A queue that one module has filled makes room for another, whose call is then
// the next.
func TestFullQueueMakesRoomForOthers(t *testing.T) {
	onWire(t, func(w *wire) {
		var order []string
		var mu sync.Mutex
		run := func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
			mu.Lock()
			order = append(order, req.ModuleID)
			mu.Unlock()
			return lasting(ctx, req)
		}
		w.node("n1", newStubHost().add("mod.flood", module.Annotations{}, run).add("mod.other", module.Annotations{}, run),
			func(o *bus.NodeOptions) { o.MaxInFlight, o.QueueSize = 1, 20 })
		p, q := w.peer(), w.peer()
		for range 21 {
			p.send(p.request(&contextwire.Request{ModuleID: "mod.flood", Inputs: map[string]any{"ms": 1000}}))
		}
		if got := p.frames(); len(got) != 0 {
			w.t.Fatalf("%v before the queue was full", kinds(got))
		}
		q.send(q.request(&contextwire.Request{ModuleID: "mod.other", Inputs: map[string]any{"ms": 1}}))
		pass(10 * time.Millisecond)
		if got := p.frames(); len(got) != 1 || got[0].Err == nil || got[0].Err.Code != module.CodeBusOverloaded || !got[0].Err.Unexecuted || got[0].RetryAfter <= 0 {
			w.t.Errorf("the flood got %v, want one call refused", kinds(got))
		}
		pass(1500 * time.Millisecond)
		if got := kinds(q.frames()); !slices.Contains(got, contextwire.FrameResult) {
			w.t.Errorf("the other module's call got %v", got)
		}
		pass(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(order) != 21 || order[1] != "mod.other" {
			w.t.Errorf("%d ran, in the order %v", len(order), order[:3])
		}
	})
}

// At 80 % load and beyond, one module's flood delays neither another's calls nor
// a ping or a cancel: 99 of 100 within 20 ms.
func TestFloodDelaysNobodyElse(t *testing.T) {
	const rounds = 100
	onWire(t, func(w *wire) {
		started, ended := make(chan string, 1000), make(chan error, 1000)
		n := w.node("n1", newStubHost().add("mod.flood", module.Annotations{}, lasting).add("mod.other", module.Annotations{}, lasting).
			add("mod.wait", module.Annotations{}, untilDone(started, ended)), func(o *bus.NodeOptions) { o.MaxInFlight = 20 })
		ctx, stop := context.WithCancel(w.t.Context())
		var flood sync.WaitGroup
		// 16 of 20 slots, which is 80 %, would need 320 calls of 50 ms a second: these
		// are 1,000.
		c := w.client()
		var refused atomic.Int64
		flood.Go(func() {
			for ctx.Err() == nil {
				flood.Go(func() {
					if _, err := c.Call(ctx, "mod.flood", map[string]any{"ms": 50}); module.CodeOf(err) == module.CodeBusOverloaded {
						refused.Add(1)
					}
				})
				<-time.After(time.Millisecond)
			}
		})
		pass(time.Second)
		other := w.client()
		p := w.peer()
		slow := map[string]int{}
		measure := func(what string, f func()) {
			start := time.Now()
			if f(); time.Since(start) > 20*time.Millisecond {
				slow[what]++
			}
		}
		for range rounds {
			measure("call", func() {
				if _, err := other.Call(w.t.Context(), "mod.other", map[string]any{"ms": 5}); err != nil {
					w.t.Errorf("another module's call: %v", err)
				}
			})
			measure("ping", func() { p.ask(control(n, "ping"), &contextwire.Ping{Client: p.inbox}) })
			waiting, leave := context.WithCancelCause(w.t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := other.Call(waiting, "mod.wait", nil)
				done <- err
			}()
			<-started
			measure("cancel", func() {
				leave(errors.New("enough"))
				<-ended
			})
			<-done
		}
		for _, what := range []string{"call", "ping", "cancel"} {
			if 100*slow[what] > rounds {
				w.t.Errorf("%d of %d %ss took more than 20 ms", slow[what], rounds, what)
			}
		}
		if refused.Load() == 0 {
			w.t.Error("the flood was no flood")
		}
		stop()
		flood.Wait()
	})
}

// Of a slow and an idle node the idle one gets nearly everything, so that 95 of
// 100 calls take no more than half as long again as on the idle one alone.
func TestSlowNodeDelaysFew(t *testing.T) {
	for _, callers := range []int{1, 8, 32} {
		t.Run(fmt.Sprint(callers, " callers"), func(t *testing.T) {
			onMesh(t, func(m *mesh) {
				host := func(d time.Duration) *stubHost {
					return newStubHost().add("mod.x", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
						<-time.After(d)
						return map[string]any{}, nil
					})
				}
				const idle = 10 * time.Millisecond
				m.node("idle", host(idle))
				m.node("slow", host(50*idle))
				c := m.client()
				m.waitHosts(c, "mod.x", 2)
				const each = 200
				late := make(chan int, callers)
				for range callers {
					go func() {
						n := 0
						for range each {
							start := time.Now()
							if _, err := c.Call(m.t.Context(), "mod.x", nil); err != nil {
								m.t.Error(err)
							}
							if time.Since(start) > idle*3/2 {
								n++
							}
						}
						late <- n
					}()
				}
				total := 0
				for range callers {
					total += <-late
				}
				if 20*total > each*callers {
					m.t.Errorf("%d of %d calls took more than 1.5 × of the idle node's time", total, each*callers)
				}
			})
		})
	}
}
