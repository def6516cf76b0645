package bus_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

func TestCancelledCallerReturnsAtOnceFromAFrozenOwner(t *testing.T) {
	onFaulty(t, func(f *faulty) {
		started, ended := make(chan string, 1), make(chan error, 1)
		_, owner := f.host("n1", newStubHost().add("demo.wait", module.Annotations{}, untilDone(started, ended)))
		c, _ := f.caller("demo.wait")
		enough := errors.New("enough")
		ctx, stop := context.WithCancelCause(f.t.Context())
		var at time.Time
		go func() {
			<-started
			owner.freeze()
			<-time.After(300 * time.Millisecond)
			at = time.Now()
			stop(enough)
		}()
		_, err := c.Call(ctx, "demo.wait", nil)
		if e := wantCode(f.t, err, module.CodeExecutionCancelled); !errors.Is(e, enough) {
			f.t.Errorf("cause %v, want the caller's", errors.Unwrap(e))
		}
		if took := time.Since(at); took != 0 {
			f.t.Errorf("returned %v after the cancel", took)
		}
		owner.thaw()
		if got := cancel.ReasonOf(<-ended); got != cancel.Caller {
			f.t.Errorf("the module was cancelled for %q, want %q", got, cancel.Caller)
		}
	})
}

// seen collects the cancel notices that pass by.
func seen(w *wire, subject string) *[]*nats.Msg {
	var got []*nats.Msg
	spy := w.mem.Open()
	if _, err := spy.Subscribe(subject, "", func(m *nats.Msg) { got = append(got, m) }); err != nil {
		w.t.Fatal(err)
	}
	return &got
}

func notice(t *testing.T, m *nats.Msg) *contextwire.CancelNotice {
	t.Helper()
	n, err := contextwire.DecodeCancelNotice(m.Data, contextwire.JSON, contextwire.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Where the notice goes depends on what is known of the owner.
func TestCancelNoticeGoesWhereTheCallIs(t *testing.T) {
	for _, tt := range []struct {
		name     string
		accepts  bool // the host says who it is
		answers  bool // the host answers the notice
		directed int
		module   int
		children int
	}{
		{"owner known and alive", true, true, 1, 0, 0},
		{"owner known, silent", true, false, 0, 0, 1},
		{"owner unknown", false, false, 0, 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onWire(t, func(w *wire) {
				p := w.peer()
				p.hosts("mod.x", func(*nats.Msg, string) []*contextwire.Frame {
					if tt.accepts {
						return []*contextwire.Frame{{Kind: contextwire.FrameAccept}}
					}
					return nil
				})
				var told []*contextwire.CancelNotice
				if tt.answers {
					p.plays("peer", "b1", &told)
				}
				byModule := seen(w, "apbus.v1.cancel.default.mod.x")
				all := seen(w, "apbus.v1.cancel.default._all")
				ctx, stop := context.WithCancel(w.t.Context())
				time.AfterFunc(50*time.Millisecond, stop)
				began := time.Now()
				_, err := w.client().Invoke(ctx, &contextwire.Request{ModuleID: "mod.x", CallID: "call-0123456789abcdef"})
				wantCode(w.t, err, module.CodeExecutionCancelled)
				if took := time.Since(began); took != 50*time.Millisecond {
					w.t.Errorf("returned after %v, want 50ms", took)
				}
				pass(3 * time.Second)
				if len(told) != tt.directed || len(*byModule) != tt.module || len(*all) != tt.children {
					w.t.Fatalf("notices: %d directed, %d by module, %d for the children", len(told), len(*byModule), len(*all))
				}
				for _, m := range *byModule {
					told = append(told, notice(w.t, m))
				}
				for _, n := range told {
					if n.Call != "call-0123456789abcdef" || n.Attempt != 1 || n.Reason != "caller" || n.By != "test" || n.At.IsZero() {
						w.t.Errorf("notice %+v", n)
					}
				}
				for _, m := range *all {
					if n := notice(w.t, m); n.Parent != "call-0123456789abcdef" || n.Call != "" {
						w.t.Errorf("children are cancelled by %+v, want by parent", n)
					}
				}
			})
		})
	}
}

// tree runs a.top on n1, which calls a.mid on n2, which calls a.leaf on n3.
func tree(m *mesh, leaf stubRun) *bus.Client {
	nested := func(c **bus.Client, id string) stubRun {
		return func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
			root := req.Root
			if root == "" {
				root = req.CallID
			}
			reply, err := (*c).Invoke(ctx, &contextwire.Request{ModuleID: id, Root: root, Parent: req.CallID, Context: req.Context.Child(req.ModuleID)})
			if err != nil {
				return nil, err
			}
			return reply.Output, nil
		}
	}
	var c1, c2 *bus.Client
	m.node("n1", newStubHost().add("a.top", module.Annotations{}, nested(&c1, "a.mid")))
	m.node("n2", newStubHost().add("a.mid", module.Annotations{}, nested(&c2, "a.leaf")))
	m.node("n3", newStubHost().add("a.leaf", module.Annotations{}, leaf))
	c1, c2 = m.client(), m.client()
	c := m.client()
	for _, one := range []*bus.Client{c1, c2, c} {
		m.wait(one, "a.top", "a.mid", "a.leaf")
	}
	return c
}

func TestCancelGoesDownTheTreeHopByHop(t *testing.T) {
	onMesh(t, func(m *mesh) {
		started, ended := make(chan string, 1), make(chan error, 1)
		c := tree(m, untilDone(started, ended))
		ctx, stop := context.WithCancel(m.t.Context())
		go func() { <-started; stop() }()
		_, err := c.Call(ctx, "a.top", nil)
		wantCode(m.t, err, module.CodeExecutionCancelled)
		at := time.Now()
		<-ended
		if took := time.Since(at); took > 100*time.Millisecond {
			m.t.Errorf("the leaf was cancelled after %v", took)
		}
		pass(time.Second)
		if calls, err := c.Calls(m.t.Context()); err != nil || len(calls) != 0 {
			m.t.Errorf("calls left: %v, %v", calls, err)
		}
	})
}

func TestClientCancel(t *testing.T) {
	const id = "call-0123456789abcdef"
	for _, tt := range []struct {
		name  string
		sel   func(leaf contextwire.CallRecord) cancel.Selector
		state string
		calls int
	}{
		{"call", func(contextwire.CallRecord) cancel.Selector { return cancel.Selector{Call: id} }, bus.StateCancelling, 1},
		{"call and attempt", func(contextwire.CallRecord) cancel.Selector { return cancel.Selector{Call: id, Attempt: 1} }, bus.StateCancelling, 1},
		{"root", func(contextwire.CallRecord) cancel.Selector { return cancel.Selector{Root: id} }, bus.StateCancelling, 3},
		{"parent", func(r contextwire.CallRecord) cancel.Selector { return cancel.Selector{Parent: r.Parent} }, bus.StateCancelling, 1},
		{"trace", func(r contextwire.CallRecord) cancel.Selector { return cancel.Selector{Trace: r.TraceID} }, bus.StateCancelling, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onMesh(t, func(m *mesh) {
				started, ended := make(chan string, 1), make(chan error, 1)
				c := tree(m, untilDone(started, ended))
				other := m.client()
				m.wait(other, "a.top")
				failed := make(chan error, 1)
				go func() {
					_, err := c.Invoke(m.t.Context(), &contextwire.Request{ModuleID: "a.top", CallID: id})
					failed <- err
				}()
				<-started
				list, err := other.Calls(m.t.Context())
				if err != nil || len(list) != 3 {
					m.t.Fatalf("%d calls in flight, %v", len(list), err)
				}
				leaf := list[slices.IndexFunc(list, func(r contextwire.CallRecord) bool { return r.ModuleID == "a.leaf" })]
				res, err := other.Cancel(m.t.Context(), tt.sel(leaf), "enough of it", "ana")
				if err != nil {
					m.t.Fatal(err)
				}
				// The hops race the broadcast: what they have ended by then does not
				// answer any more.
				if n := len(res.Calls); res.State != tt.state || n < 1 || n > tt.calls || len(res.Nodes) != n {
					m.t.Errorf("result %+v, want state %s and up to %d calls", res, tt.state, tt.calls)
				}
				var cause *cancel.Cause
				if err := <-ended; !errors.As(err, &cause) {
					m.t.Errorf("the leaf ended without a cause: %v", err)
				}
				if err := <-failed; module.CodeOf(err) != module.CodeExecutionCancelled {
					m.t.Errorf("the call ended with %v", err)
				}
			})
		})
	}
}

func TestClientCancelsItsOwnCall(t *testing.T) {
	onMesh(t, func(m *mesh) {
		started, ended := make(chan string, 1), make(chan error, 1)
		m.node("n1", newStubHost().add("demo.wait", module.Annotations{}, untilDone(started, ended)))
		c := m.client()
		m.wait(c, "demo.wait")
		failed := make(chan error, 1)
		go func() {
			_, err := c.Call(m.t.Context(), "demo.wait", nil)
			failed <- err
		}()
		id := <-started
		res, err := c.Cancel(m.t.Context(), cancel.Selector{Call: id}, "enough of it", "ana")
		if err != nil {
			m.t.Fatal(err)
		}
		if diff := cmp.Diff(bus.CancelResult{Nodes: []string{"n1"}, Calls: []string{id}, State: bus.StateCancelling}, res); diff != "" {
			m.t.Errorf("result (-want +got):\n%s", diff)
		}
		var cause *cancel.Cause
		if err := <-ended; !errors.As(err, &cause) || cause.By != "ana" || cause.Text != "enough of it" || cause.Reason != cancel.Remote {
			m.t.Errorf("the module saw %v, want who asked and why", err)
		}
		wantCode(m.t, <-failed, module.CodeExecutionCancelled)
	})
}

func TestClientCancelOfWhatNobodyKnows(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, echo))
		c := m.client()
		m.wait(c, "mod.x")
		for name, sel := range map[string]cancel.Selector{
			"call": {Call: "call-0123456789abcdef"}, "root": {Root: "call-0123456789abcdef"},
			"trace": {Trace: "0123456789abcdef0123456789abcdef"},
		} {
			began := time.Now()
			res, err := c.Cancel(m.t.Context(), sel, "", "")
			if err != nil || res.State != bus.StateUnknown || len(res.Nodes)+len(res.Calls) != 0 {
				m.t.Errorf("%s: %+v, %v", name, res, err)
			}
			if took := time.Since(began); took > time.Second {
				m.t.Errorf("%s: took %v", name, took)
			}
		}
		for name, sel := range map[string]cancel.Selector{
			"nothing": {}, "two": {Call: "call-0123456789abcdef", Root: "x"}, "issuer": {Issuer: "x"},
		} {
			_, err := c.Cancel(m.t.Context(), sel, "", "")
			if module.CodeOf(err) != module.CodeInvalidInput {
				m.t.Errorf("%s: %v, want %s", name, err, module.CodeInvalidInput)
			}
		}
		reply, err := c.Invoke(m.t.Context(), &contextwire.Request{ModuleID: "mod.x"})
		if err != nil {
			m.t.Fatal(err)
		}
		_ = reply
	})
}

func TestCancelOfAFinishedCall(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, echo))
		c := m.client()
		m.wait(c, "mod.x")
		const id = "call-0123456789abcdef"
		if _, err := c.Invoke(m.t.Context(), &contextwire.Request{ModuleID: "mod.x", CallID: id}); err != nil {
			m.t.Fatal(err)
		}
		res, err := m.client().Cancel(m.t.Context(), cancel.Selector{Call: id}, "", "")
		if diff := cmp.Diff(bus.CancelResult{Nodes: []string{"n1"}, Calls: []string{id}, State: bus.StateFinished}, res); err != nil || diff != "" {
			m.t.Errorf("%v; result (-want +got):\n%s", err, diff)
		}
	})
}

func TestCancelBeforeItsCall(t *testing.T) {
	const id = "call-0123456789abcdef"
	for _, tt := range []struct {
		name    string
		notice  contextwire.CancelNotice
		attempt int
		wait    time.Duration
		stopped bool
	}{
		{"call", contextwire.CancelNotice{Call: id}, 1, 0, true},
		{"call, a later attempt", contextwire.CancelNotice{Call: id}, 2, 0, true},
		{"attempt", contextwire.CancelNotice{Call: id, Attempt: 1}, 1, 0, true},
		{"another attempt", contextwire.CancelNotice{Call: id, Attempt: 1}, 2, 0, false},
		{"another call", contextwire.CancelNotice{Call: "call-fedcba9876543210"}, 1, 0, false},
		{"root", contextwire.CancelNotice{Root: "root-0123456789abcdef"}, 1, 0, true},
		{"parent", contextwire.CancelNotice{Parent: "parent-0123456789abcdef"}, 1, 0, true},
		{"nearly 2 minutes ago", contextwire.CancelNotice{Call: id}, 1, 119 * time.Second, true},
		{"over 2 minutes ago", contextwire.CancelNotice{Call: id}, 1, 121 * time.Second, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onWire(t, func(w *wire) {
				ran := 0
				n := w.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
					ran++
					return map[string]any{}, nil
				}))
				p := w.peer()
				tt.notice.Reason, tt.notice.By, tt.notice.At = "caller", "ana", time.Now()
				f := p.ask(control(n, "cancel"), &tt.notice)
				if f.Kind != contextwire.FrameResult || f.Body["state"] != bus.StateTombstoned {
					w.t.Fatalf("the notice was answered with %+v", f)
				}
				pass(tt.wait)
				p.send(p.request(&contextwire.Request{
					ModuleID: "mod.x", CallID: id, Attempt: tt.attempt, Root: "root-0123456789abcdef", Parent: "parent-0123456789abcdef",
				}))
				got := p.next()
				if tt.stopped {
					if got.Kind != contextwire.FrameError || got.Err.Code != module.CodeExecutionCancelled || !got.Err.Unexecuted || ran != 0 {
						w.t.Errorf("ran %d times, got %+v", ran, got)
					}
				} else if got.Kind != contextwire.FrameResult || ran != 1 {
					w.t.Errorf("ran %d times, got %+v", ran, got)
				}
			})
		})
	}
}

// A notice without an attempt stops the attempt that runs, though an earlier one
// has ended here.
func TestCancelFindsTheAttemptThatRuns(t *testing.T) {
	onWire(t, func(w *wire) {
		started, ended := make(chan string, 1), make(chan error, 1)
		wait := untilDone(started, ended)
		n := w.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
			if req.Attempt == 1 {
				return nil, module.Errorf(module.CodeModuleExecuteError, "the first fails")
			}
			return wait(ctx, req)
		}))
		p := w.peer()
		const id = "call-0123456789abcdef"
		p.send(p.request(&contextwire.Request{ModuleID: "mod.x", CallID: id}))
		p.next()
		p.send(p.request(&contextwire.Request{ModuleID: "mod.x", CallID: id, Attempt: 2}))
		<-started
		f := p.ask(control(n, "cancel"), &contextwire.CancelNotice{Call: id, Reason: "caller", By: "ana", At: time.Now()})
		if f.Body["state"] != bus.StateCancelling {
			w.t.Errorf("answered %v", f.Body)
		}
		select {
		case <-ended:
		case <-time.After(time.Second):
			w.t.Error("the attempt that runs was not cancelled")
			_ = n.Close()
		}
	})
}

// A cancel that overtakes its call on the other connection still stops it.
func TestCancelOvertakesItsCall(t *testing.T) {
	onFaulty(t, func(f *faulty) {
		ran := make(chan string, 10)
		f.host("n1", newStubHost().add("mod.x", module.Annotations{}, func(_ context.Context, req *contextwire.Request) (map[string]any, error) {
			ran <- req.CallID
			return map[string]any{}, nil
		}))
		c, p := f.caller("mod.x")
		release := p.calls.Out.Hold("apbus.v1.call.>")
		ctx, stop := context.WithCancel(f.t.Context())
		time.AfterFunc(100*time.Millisecond, stop)
		_, err := c.Call(ctx, "mod.x", nil)
		wantCode(f.t, err, module.CodeExecutionCancelled)
		pass(time.Second)
		release()
		pass(time.Second)
		if len(ran) != 0 {
			f.t.Error("the call ran after its cancel")
		}
	})
}

func TestClosingAClientStopsItsCalls(t *testing.T) {
	onMesh(t, func(m *mesh) {
		started, ended := make(chan string, 1), make(chan error, 1)
		m.node("n1", newStubHost().add("demo.wait", module.Annotations{}, untilDone(started, ended)))
		c := m.client()
		m.wait(c, "demo.wait")
		failed := make(chan error, 1)
		go func() {
			_, err := c.Call(m.t.Context(), "demo.wait", nil)
			failed <- err
		}()
		<-started
		at := time.Now()
		c.Close()
		wantCode(m.t, <-failed, module.CodeExecutionCancelled)
		if got := cancel.ReasonOf(<-ended); got != cancel.Shutdown {
			m.t.Errorf("the module was cancelled for %q, want %q", got, cancel.Shutdown)
		}
		if took := time.Since(at); took > 100*time.Millisecond {
			m.t.Errorf("the module was told after %v", took)
		}
		_, err := c.Call(m.t.Context(), "demo.wait", nil)
		wantCode(m.t, err, module.CodeBusDisconnected)
	})
}
