package bus_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// outcome is how a call ended and when.
type outcome struct {
	reply *contextwire.Reply
	err   error
	at    time.Time
}

func invoke(ctx context.Context, c *bus.Client, req *contextwire.Request) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		reply, err := c.Invoke(ctx, req)
		done <- outcome{reply, err, time.Now()}
	}()
	return done
}

// offsets are moments between two ticks at which something may happen.
var offsets = []time.Duration{0, time.Millisecond, 30 * time.Millisecond, 260 * time.Millisecond, 499 * time.Millisecond, 510 * time.Millisecond, 740 * time.Millisecond, 990 * time.Millisecond}

func TestLostHostIsNoticed(t *testing.T) {
	for _, tt := range []struct {
		name  string
		how   func(*party)
		limit time.Duration
	}{
		{"killed", (*party).kill, 1500 * time.Millisecond},
		{"frozen", (*party).freeze, 3 * time.Second},
		{"cut off", (*party).partition, 3 * time.Second},
	} {
		for _, offset := range offsets {
			t.Run(fmt.Sprint(tt.name, " after ", offset), func(t *testing.T) {
				onFaulty(t, func(f *faulty) {
					started, ended := make(chan string, 1), make(chan error, 1)
					n, owner := f.host("n1", newStubHost().add("mod.x", module.Annotations{}, untilDone(started, ended)))
					c, _ := f.caller("mod.x")
					done := invoke(f.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"})
					<-started
					pass(offset)
					lost := time.Now()
					tt.how(owner)
					end := <-done
					e := wantCode(f.t, end.err, module.CodeBusNodeLost)
					if took := end.at.Sub(lost); took > tt.limit {
						f.t.Errorf("noticed after %v, want within %v", took, tt.limit)
					}
					if e.Unexecuted || e.Remote || e.Retryable != module.False || e.Details["node"] != "n1" || e.Details["boot"] != n.Boot() {
						f.t.Errorf("unexecuted %v, remote %v, retryable %v, details %v", e.Unexecuted, e.Remote, e.Retryable, e.Details)
					}
					if len(started) != 0 {
						f.t.Error("a call that is not idempotent was run again")
					}
				})
			})
		}
	}
}

func TestLostCallerIsNoticed(t *testing.T) {
	for _, tt := range []struct {
		name  string
		how   func(*party)
		limit time.Duration
	}{
		{"killed", (*party).kill, 1500 * time.Millisecond},
		{"frozen", (*party).freeze, 4 * time.Second},
		{"cut off", (*party).partition, 4 * time.Second},
	} {
		for _, offset := range offsets {
			t.Run(fmt.Sprint(tt.name, " after ", offset), func(t *testing.T) {
				onFaulty(t, func(f *faulty) {
					started, ended := make(chan string, 1), make(chan error, 1)
					f.host("n1", newStubHost().add("mod.x", module.Annotations{}, untilDone(started, ended)))
					c, caller := f.caller("mod.x")
					pass(offset / 3) // the node's tick and the call are not in step
					ctx, stop := context.WithCancel(f.t.Context())
					defer stop()
					done := invoke(ctx, c, &contextwire.Request{ModuleID: "mod.x"})
					<-started
					pass(offset)
					lost := time.Now()
					tt.how(caller)
					cause := <-ended
					if took := time.Since(lost); took > tt.limit {
						f.t.Errorf("noticed after %v, want within %v", took, tt.limit)
					}
					if got := cancel.ReasonOf(cause); got != cancel.CallerGone {
						f.t.Errorf("the module was cancelled for %q, want %q", got, cancel.CallerGone)
					}
					stop()
					<-done
				})
			})
		}
	}
}

func TestWhoMayBeRunAgain(t *testing.T) {
	for _, tt := range []struct {
		name  string
		ann   module.Annotations
		again bool
	}{
		{"neither", module.Annotations{}, false},
		{"idempotent", module.Annotations{Idempotent: true}, true},
		{"readonly", module.Annotations{Readonly: true}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onFaulty(t, func(f *faulty) {
				owners := map[string]*party{}
				started := make(chan string, 10)
				var again atomic.Bool
				for _, id := range []string{"n1", "n2"} {
					_, owners[id] = f.host(id, newStubHost().add("mod.x", tt.ann, func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
						started <- id
						if !again.Swap(true) {
							<-ctx.Done()
							return nil, ctx.Err()
						}
						return map[string]any{"node": id, "attempt": int64(req.Attempt)}, nil
					}))
				}
				c, _ := f.caller("mod.x")
				f.waitHosts(c, "mod.x", 2)
				done := invoke(f.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"})
				victim := <-started
				owners[victim].kill()
				end := <-done
				if !tt.again {
					wantCode(f.t, end.err, module.CodeBusNodeLost)
					if len(started) != 0 {
						f.t.Error("it was run again")
					}
					return
				}
				if end.err != nil {
					f.t.Fatal(end.err)
				}
				if end.reply.Node == victim || end.reply.Attempt != 2 || end.reply.Output["attempt"] != int64(2) {
					f.t.Errorf("%s was killed, reply %+v", victim, end.reply)
				}
			})
		})
	}
}

func (m *mesh) waitHosts(c *bus.Client, id string, n int) {
	m.t.Helper()
	for range 100 {
		if info, ok := c.Module(id); ok && len(info.Hosts) == n {
			return
		}
		pass(100 * time.Millisecond)
	}
	m.t.Fatalf("the catalogue never showed %d hosts of %s", n, id)
}

// The one host of an idempotent module is lost: the caller learns at once, and
// that trying again is safe. The queue group of a frozen host still takes calls;
// another attempt there would double the wait and then say that nothing ran.
func TestLostOnlyHostOfAnIdempotentModule(t *testing.T) {
	for _, tt := range []struct {
		name  string
		how   func(*party)
		limit time.Duration
	}{
		{"killed", (*party).kill, 1500 * time.Millisecond},
		{"frozen", (*party).freeze, 3 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onFaulty(t, func(f *faulty) {
				started, ended := make(chan string, 1), make(chan error, 1)
				_, owner := f.host("n1", newStubHost().add("mod.x", module.Annotations{Idempotent: true}, untilDone(started, ended)))
				c, _ := f.caller("mod.x")
				done := invoke(f.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"})
				<-started
				lost := time.Now()
				tt.how(owner)
				end := <-done
				e := wantCode(f.t, end.err, module.CodeBusNodeLost)
				if e.Retryable != module.True || e.Unexecuted || e.Details["node"] != "n1" {
					f.t.Errorf("retryable %v, unexecuted %v, details %v", e.Retryable, e.Unexecuted, e.Details)
				}
				if took := end.at.Sub(lost); took > tt.limit {
					f.t.Errorf("noticed after %v, want within %v", took, tt.limit)
				}
			})
		})
	}
}

// A node that comes back under its name is another process: it neither answers
// for its former life nor is it taken for it.
func TestRestartedNodeIsNotItsFormerLife(t *testing.T) {
	onFaulty(t, func(f *faulty) {
		started, ended := make(chan string, 2), make(chan error, 2)
		host := newStubHost().add("mod.x", module.Annotations{}, untilDone(started, ended)).add("mod.y", module.Annotations{}, echo)
		before, owner := f.host("n1", host)
		c, _ := f.caller("mod.x", "mod.y")
		done := invoke(f.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"})
		<-started
		owner.kill()
		after, _ := f.host("n1", newStubHost().add("mod.x", module.Annotations{}, untilDone(started, ended)).add("mod.y", module.Annotations{}, echo))
		if before.Boot() == after.Boot() {
			f.t.Fatal("two lives of a node share a boot")
		}
		reply, err := c.Invoke(f.t.Context(), &contextwire.Request{ModuleID: "mod.y"})
		if err != nil || reply.Boot != after.Boot() {
			f.t.Errorf("a call right after the restart: %+v, %v", reply, err)
		}
		wantCode(f.t, (<-done).err, module.CodeBusNodeLost)
		if len(started) != 0 {
			f.t.Error("the new life ran the old life's call")
		}
	})
}

func TestBlipsLoseNothing(t *testing.T) {
	for _, tt := range []struct {
		name string
		blip func(f *faulty, owner, caller *party)
	}{
		{"one ping", func(_ *faulty, _, caller *party) { caller.control.Out.Drop("apbus.v1.node.>", 1) }},
		{"three pings", func(_ *faulty, _, caller *party) { caller.control.Out.Drop("apbus.v1.node.>", 3) }},
		{"one pong", func(_ *faulty, _, caller *party) { caller.control.In.Drop("_INBOX.>", 1) }},
		{"probes for two seconds", func(_ *faulty, owner, _ *party) { owner.control.Out.Drop("_INBOX.*.probe", 4) }},
		{"a caller that stalls for 2 s", func(_ *faulty, _, caller *party) {
			caller.freeze()
			time.AfterFunc(1500*time.Millisecond, caller.thaw)
		}},
		{"an owner that stalls for 1.5 s", func(_ *faulty, owner, _ *party) {
			owner.freeze()
			time.AfterFunc(1500*time.Millisecond, owner.thaw)
		}},
		{"no connection for 1.5 s", func(_ *faulty, owner, _ *party) {
			owner.partition()
			time.AfterFunc(1500*time.Millisecond, owner.heal)
		}},
	} {
		for _, offset := range offsets[2:5] {
			t.Run(fmt.Sprint(tt.name, " after ", offset), func(t *testing.T) {
				onFaulty(t, func(f *faulty) {
					started := make(chan string, 10)
					_, owner := f.host("n1", newStubHost().add("mod.x", module.Annotations{}, func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
						started <- req.CallID
						select {
						case <-ctx.Done():
							return nil, ctx.Err()
						case <-time.After(6 * time.Second):
							return map[string]any{"ok": true}, nil
						}
					}))
					c, caller := f.caller("mod.x")
					done := invoke(f.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"})
					<-started
					pass(offset)
					tt.blip(f, owner, caller)
					if end := <-done; end.err != nil || end.reply.Output["ok"] != true || end.reply.Attempt != 1 {
						f.t.Errorf("ended with %+v, %v", end.reply, end.err)
					}
				})
			})
		}
	}
}

// A lost answer is sent again with the next pong; a lost request is a lost call.
func TestPongsMendWhatWasLost(t *testing.T) {
	onFaulty(t, func(f *faulty) {
		ran := 0
		f.host("n1", newStubHost().add("mod.x", module.Annotations{}, func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
			ran++
			return lasting(ctx, req)
		}))
		c, p := f.caller("mod.x")
		p.calls.In.Drop("_INBOX.>", 1)
		began := time.Now()
		end := <-invoke(f.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"})
		if took := end.at.Sub(began); end.err != nil || ran != 1 || took > 1500*time.Millisecond {
			f.t.Errorf("lost answer: %v after %v, ran %d times", end.err, took, ran)
		}
		pass(time.Minute)
		p.calls.Out.Drop("apbus.v1.call.>", 1)
		began = time.Now()
		end = <-invoke(f.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"})
		wantCode(f.t, end.err, module.CodeBusNodeLost)
		if took := end.at.Sub(began); ran != 1 || took > 1500*time.Millisecond {
			f.t.Errorf("lost request: noticed after %v, ran %d times", took, ran)
		}
	})
}

// Calls in flight outlive a restart of the server.
func TestServerRestartLosesNoCall(t *testing.T) {
	onMesh(t, func(m *mesh) {
		started := make(chan string, 100)
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
			started <- req.CallID
			return lasting(ctx, req)
		}))
		c := m.client()
		m.wait(c, "mod.x")
		var calls []<-chan outcome
		for i := range 20 { // they end before, during and after the outage
			calls = append(calls, invoke(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.x", Inputs: map[string]any{"ms": 200 * i}}))
			<-started
		}
		pass(700 * time.Millisecond)
		m.stopServer()
		pass(time.Second)
		begun := time.Now()
		_, err := c.Call(m.t.Context(), "mod.x", nil)
		wantCode(m.t, err, module.CodeBusDisconnected)
		if took := time.Since(begun); took > time.Second {
			m.t.Errorf("a call without a connection failed after %v", took)
		}
		m.start()
		for i, call := range calls {
			if end := <-call; end.err != nil || end.reply.Output["ms"] != int64(200*i) {
				m.t.Errorf("call %d: %v", i, end.err)
			}
		}
		if _, err := c.Call(m.t.Context(), "mod.x", nil); err != nil {
			m.t.Errorf("a call after the restart: %v", err)
		}
		if len(started) != 1 {
			m.t.Errorf("%d calls ran again, want none", len(started)-1)
		}
	})
}

// The node in the middle of a tree dies: what it had called elsewhere ends too,
// long before it would have.
func TestLostNodeInTheMiddleStopsTheLeaves(t *testing.T) {
	for name, how := range map[string]func(*party){"killed": (*party).kill, "frozen": (*party).freeze} {
		t.Run(name, func(t *testing.T) {
			onFaulty(t, func(f *faulty) {
				started, ended := make(chan string, 1), make(chan error, 1)
				f.host("n2", newStubHost().add("a.leaf", module.Annotations{}, untilDone(started, ended)))
				middle := f.party()
				inner := f.clientOn(middle.conns)
				f.nodeOn(middle.conns, "n1", newStubHost().add("a.mid", module.Annotations{}, nest(&inner, "a.leaf")))
				f.wait(inner, "a.leaf")
				c, _ := f.caller("a.mid", "a.leaf")
				done := invoke(f.t.Context(), c, &contextwire.Request{ModuleID: "a.mid"})
				<-started
				pass(300 * time.Millisecond)
				lost := time.Now()
				how(middle)
				cause := <-ended
				if took := time.Since(lost); took > 4*time.Second {
					f.t.Errorf("the leaf ended %v later", took)
				}
				if got := cancel.ReasonOf(cause); got != cancel.CallerGone && got != cancel.NodeLost {
					f.t.Errorf("the leaf was cancelled for %q", got)
				}
				wantCode(f.t, (<-done).err, module.CodeBusNodeLost)
			})
		})
	}
}

// Who was lost is remembered for whoever asks the fleet, until it is heard of again or
// another life of the node is there; who takes leave was never lost.
func TestLostHostsAreRemembered(t *testing.T) {
	onFaulty(t, func(f *faulty) {
		started, ended := make(chan string, 4), make(chan error, 4)
		_, owner := f.host("n1", newStubHost().add("mod.x", module.Annotations{}, untilDone(started, ended)))
		c, _ := f.caller("mod.x")
		lost := func(when, want string) {
			f.t.Helper()
			pass(time.Second) // for what is on its way
			var got []string
			for _, h := range c.Lost("mod.x") {
				got = append(got, h.Node)
			}
			if strings.Join(got, " ") != want {
				f.t.Errorf("%s, %q are lost, want %q", when, got, want)
			}
		}
		done := invoke(f.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"})
		<-started
		lost("while it runs", "")
		owner.freeze()
		wantCode(f.t, (<-done).err, module.CodeBusNodeLost)
		lost("after it froze", "n1")
		owner.thaw()
		pass(6 * time.Second)
		lost("after it thawed", "")
		done = invoke(f.t.Context(), c, &contextwire.Request{ModuleID: "mod.x"})
		<-started
		owner.kill()
		wantCode(f.t, (<-done).err, module.CodeBusNodeLost)
		lost("after it was killed", "n1")
		next, _ := f.host("n1", newStubHost().add("mod.x", module.Annotations{}, echo))
		lost("in its next life", "")
		if err := next.Close(); err != nil {
			f.t.Fatal(err)
		}
		lost("after it took leave", "")
	})
}
