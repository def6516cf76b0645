package bus_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

func TestBudgetTravelsAsTimeLeft(t *testing.T) {
	for _, tt := range []struct {
		name   string
		ctx    time.Duration // deadline of the context, 0 none
		budget time.Duration // of the request, 0 none
		want   string
	}{
		{"none", 0, 0, ""},
		{"deadline", 1500 * time.Millisecond, 0, "1500"},
		{"budget", 0, 700 * time.Millisecond, "700"},
		{"the shorter: budget", time.Second, 700 * time.Millisecond, "700"},
		{"the shorter: deadline", time.Second, time.Minute, "1000"},
		{"rounded up", 0, 100 * time.Microsecond, "1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onWire(t, func(w *wire) {
				var got []string
				w.peer().hosts("mod.x", func(m *nats.Msg, _ string) []*contextwire.Frame {
					got = append(got, contextwire.Header(m.Header).Get(contextwire.HeaderBudget))
					return []*contextwire.Frame{result(map[string]any{})}
				})
				ctx, stop := w.t.Context(), func() {}
				if tt.ctx > 0 {
					ctx, stop = context.WithTimeout(ctx, tt.ctx)
				}
				defer stop()
				if _, err := w.client().Invoke(ctx, &contextwire.Request{ModuleID: "mod.x", Budget: tt.budget}); err != nil {
					w.t.Fatal(err)
				}
				if len(got) != 1 || got[0] != tt.want {
					w.t.Errorf("%s = %q, want %q", contextwire.HeaderBudget, got, tt.want)
				}
			})
		})
	}
}

func TestHostGetsTheBudgetLessItsWait(t *testing.T) {
	onWire(t, func(w *wire) {
		var got []time.Duration
		h := newStubHost().add("mod.x", module.Annotations{}, func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
			got = append(got, req.Budget)
			<-time.After(300 * time.Millisecond)
			return map[string]any{}, nil
		})
		w.node("n1", h, func(o *bus.NodeOptions) { o.MaxInFlight = 1 })
		p := w.peer()
		p.send(p.request(&contextwire.Request{ModuleID: "mod.x", Budget: time.Second}))
		p.send(p.request(&contextwire.Request{ModuleID: "mod.x", Budget: time.Second}))
		pass(time.Second)
		if len(got) != 2 || got[0] != time.Second || got[1] != 700*time.Millisecond {
			w.t.Errorf("budgets %v, want 1s and, after waiting for the first, 700ms", got)
		}
	})
}

func TestNoBudgetIsRefusedUnexecuted(t *testing.T) {
	onWire(t, func(w *wire) {
		ran := 0
		h := newStubHost().add("mod.x", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
			ran++
			return map[string]any{}, nil
		})
		w.node("n1", h)
		p := w.peer()
		for _, left := range []string{"0", "-1", "-60000"} {
			m := p.request(&contextwire.Request{ModuleID: "mod.x"})
			m.Header.Set(contextwire.HeaderBudget, left)
			p.send(m)
			f := p.next()
			if f.Kind != contextwire.FrameError || f.Err.Code != module.CodeBusBudgetExhausted || !f.Err.Unexecuted {
				w.t.Errorf("budget %s: %+v", left, f)
			}
		}
		if ran != 0 {
			w.t.Error("a call without time was run")
		}
	})
}

// The owner answers when the time is over, also for a call that never got its
// turn: it must not wait for a slot that frees much later.
func TestBudgetEndsInTheQueue(t *testing.T) {
	onWire(t, func(w *wire) {
		ran := 0
		h := newStubHost().add("mod.x", module.Annotations{}, func(ctx context.Context, _ *contextwire.Request) (map[string]any, error) {
			ran++
			<-ctx.Done()
			return nil, ctx.Err()
		})
		w.node("n1", h, func(o *bus.NodeOptions) { o.MaxInFlight = 1 })
		p := w.peer()
		first := p.request(&contextwire.Request{ModuleID: "mod.x", Budget: 10 * time.Second})
		p.send(first)
		second := p.request(&contextwire.Request{ModuleID: "mod.x", Budget: 500 * time.Millisecond})
		began := time.Now()
		p.send(second)
		for {
			f := p.next()
			if f.Kind == contextwire.FrameAccept {
				continue
			}
			if f.Kind != contextwire.FrameError || f.Err.Code != module.CodeBusBudgetExhausted || !f.Err.Unexecuted {
				w.t.Fatalf("got %+v, want %s, unexecuted", f, module.CodeBusBudgetExhausted)
			}
			break
		}
		if took := time.Since(began); took != 500*time.Millisecond {
			w.t.Errorf("answered after %v, want 500ms", took)
		}
		pass(10 * time.Second)
		if ran != 1 {
			w.t.Errorf("%d calls ran, want the first only", ran)
		}
	})
}

// The caller waits for the owner's own answer: budget, the owner's grace and
// half a second.
func TestBackstopWaitsForTheOwner(t *testing.T) {
	for _, tt := range []struct {
		name  string
		grace time.Duration
		want  time.Duration
		ctx   bool
	}{
		{"deadline, grace unknown", 0, time.Second + 5*time.Second + 500*time.Millisecond, true},
		{"deadline, grace announced", 2 * time.Second, 3500 * time.Millisecond, true},
		{"budget, grace unknown", 0, time.Second + 5*time.Second + 500*time.Millisecond, false},
		{"budget, grace announced", 2 * time.Second, 3500 * time.Millisecond, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onWire(t, func(w *wire) {
				p := w.peer()
				p.hosts("mod.x", func(*nats.Msg, string) []*contextwire.Frame {
					return []*contextwire.Frame{{Kind: contextwire.FrameAccept, Node: "n", Boot: "b", Grace: tt.grace}}
				})
				var cancelled []*contextwire.CancelNotice
				p.plays("n", "b", &cancelled)
				ctx, req := w.t.Context(), &contextwire.Request{ModuleID: "mod.x"}
				if tt.ctx {
					var stop context.CancelFunc
					ctx, stop = context.WithTimeout(ctx, time.Second)
					defer stop()
				} else {
					req.Budget = time.Second
				}
				began := time.Now()
				_, err := w.client().Invoke(ctx, req)
				wantCode(w.t, err, module.CodeModuleTimeout)
				if took := time.Since(began); took != tt.want {
					w.t.Errorf("gave up after %v, want %v", took, tt.want)
				}
				synctest.Wait()
				if len(cancelled) != 1 || cancelled[0].Reason != "timeout" || cancelled[0].Attempt != 1 {
					w.t.Errorf("the owner was told %+v, want one cancel for timeout", cancelled)
				}
			})
		})
	}
}

// plays answers pings and cancels of a process that hosts by hand.
func (p *peer) plays(node, boot string, cancelled *[]*contextwire.CancelNotice) {
	p.t.Helper()
	base := "apbus.v1.node.default." + node + "." + boot + "."
	if _, err := p.Subscribe(base+"ping", "", func(m *nats.Msg) {
		p.answer(m, result((&contextwire.Pong{Node: node, Boot: boot}).Map()))
	}); err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.Subscribe(base+"cancel", "", func(m *nats.Msg) {
		notice, err := contextwire.DecodeCancelNotice(m.Data, contextwire.JSON, contextwire.DefaultLimits())
		if err != nil {
			p.t.Error(err)
			return
		}
		*cancelled = append(*cancelled, notice)
		p.answer(m, result((&contextwire.CancelAnswer{Node: node, Boot: boot, Calls: []string{notice.Call}, State: bus.StateCancelling}).Map()))
	}); err != nil {
		p.t.Fatal(err)
	}
}

func TestOwnersLateAnswerCounts(t *testing.T) {
	onWire(t, func(w *wire) {
		p := w.peer()
		p.plays("peer", "b1", &[]*contextwire.CancelNotice{})
		p.hosts("mod.x", func(m *nats.Msg, _ string) []*contextwire.Frame {
			ms, err := strconv.Atoi(contextwire.Header(m.Header).Get(contextwire.HeaderBudget))
			if err != nil {
				w.t.Error(err)
			}
			// Not at the time of a ping: its answer would race the end of the test.
			time.AfterFunc(time.Duration(ms)*time.Millisecond+1100*time.Millisecond, func() {
				p.answer(m, failure(module.Errorf(module.CodeModuleTimeout, "the module had its time")))
			})
			return []*contextwire.Frame{{Kind: contextwire.FrameAccept}}
		})
		ctx, stop := context.WithTimeout(w.t.Context(), time.Second)
		defer stop()
		_, err := w.client().Call(ctx, "mod.x", nil)
		if e := wantCode(w.t, err, module.CodeModuleTimeout); !e.Remote || e.Message != "the module had its time" {
			w.t.Errorf("got %v, want the owner's own words", e)
		}
	})
}
