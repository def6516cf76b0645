package bus_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

func TestNodeAndClientCount(t *testing.T) {
	onMesh(t, func(m *mesh) {
		started, ended := make(chan string, 8), make(chan error, 8)
		tries := 0
		host := newStreamHost().
			add("mod.echo", module.Annotations{}, echo).
			add("mod.fails", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
				return nil, module.Errorf(module.CodeModuleExecuteError, "x")
			}).
			add("mod.second", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
				if tries++; tries == 1 {
					return nil, refusal(module.CodeBusOverloaded)
				}
				return map[string]any{}, nil
			}).
			add("mod.wait", module.Annotations{}, untilDone(started, ended)).
			stream("mod.words", module.Annotations{Streaming: true}, func(_ context.Context, _ *contextwire.Request, send func(module.Chunk) error) error {
				for i := range 3 {
					if err := send(module.Chunk{"i": int64(i)}); err != nil {
						return err
					}
				}
				return nil
			})
		n := m.node("n1", host, func(o *bus.NodeOptions) { o.MaxInFlight, o.QueueSize = 1, 1 })
		conns := m.conns()
		c := m.clientOn(conns)
		m.wait(c, "mod.echo", "mod.fails", "mod.second", "mod.wait", "mod.words")
		ctx := m.t.Context()
		for range 3 {
			if _, err := c.Call(ctx, "mod.echo", map[string]any{"text": "hello"}); err != nil {
				m.t.Fatal(err)
			}
		}
		_, err := c.Call(ctx, "mod.fails", nil)
		wantCode(m.t, err, module.CodeModuleExecuteError)
		if _, err := c.Call(ctx, "mod.second", nil); err != nil {
			m.t.Fatal(err)
		}
		if _, err := c.InvokeStream(ctx, &contextwire.Request{ModuleID: "mod.words", Credit: contextwire.Credit{Frames: 1, Bytes: 1 << 20}}, func(module.Chunk) error {
			pass(100 * time.Millisecond) // the module waits for its reader meanwhile
			return nil
		}); err != nil {
			m.t.Fatal(err)
		}

		// One holds the slot, one waits, the third is refused; then all are cancelled.
		waiting, stop := context.WithCancelCause(ctx)
		done := make(chan error, 2)
		for range 2 {
			go func() { _, err := c.Call(waiting, "mod.wait", nil); done <- err }()
			pass(50 * time.Millisecond)
		}
		if s := n.Stats(); s.InFlight != 1 || s.Waiting != 1 || s.Capacity != 1 {
			m.t.Errorf("load %+v", s)
		}
		limited, free := context.WithTimeoutCause(ctx, time.Second, cancel.Because(cancel.Timeout, "", "test"))
		_, err = c.Call(limited, "mod.echo", nil)
		free()
		wantCode(m.t, err, module.CodeBusOverloaded)
		fleet, err := c.FleetStats(ctx)
		if err != nil || len(fleet) != 1 {
			m.t.Fatalf("%v, %v", fleet, err)
		}
		stop(errors.New("enough"))
		<-done
		<-done
		pass(time.Second)

		s := n.Stats()
		got := map[string]any{}
		for _, one := range s.Modules {
			got[one.ModuleID] = map[string]any{"calls": one.Calls, "errors": one.Errors, "timed": one.Micros.Count}
		}
		calls := func(n int64, errors map[module.Code]int64) map[string]any {
			return map[string]any{"calls": n, "errors": errors, "timed": n}
		}
		var none map[module.Code]int64
		want := map[string]any{
			"mod.echo": calls(3, none), "mod.fails": calls(1, map[module.Code]int64{module.CodeModuleExecuteError: 1}),
			"mod.second": calls(2, map[module.Code]int64{module.CodeBusOverloaded: 1}), "mod.words": calls(1, none),
			"mod.wait": calls(2, map[module.Code]int64{module.CodeExecutionCancelled: 2}),
		}
		if d := cmp.Diff(want, got); d != "" {
			m.t.Error(d)
		}
		if s.Refused[module.CodeBusOverloaded] == 0 || s.CancelsObeyed != 2 || s.CreditStalls == 0 || s.CreditStalled < 50*time.Millisecond {
			m.t.Errorf("refused %v, cancels %d, stalls %d for %v", s.Refused, s.CancelsObeyed, s.CreditStalls, s.CreditStalled)
		}
		if s.Received.Count < 8 || s.Received.Sum == 0 || s.Sent.Count < 8 || s.Sent.Sum == 0 {
			m.t.Errorf("received %+v, sent %+v", s.Received, s.Sent)
		}

		cs := c.Stats()
		if cs.InFlight != 0 || cs.CancelsSent != 2 || cs.Retries[module.CodeBusOverloaded] == 0 || cs.Lost != 0 || cs.Sent.Count < 8 || cs.Received.Count < 8 {
			m.t.Errorf("client %+v", cs)
		}
		byCode := map[string]map[module.Code]int64{}
		for _, one := range cs.Modules {
			byCode[one.ModuleID] = one.Errors
		}
		if d := cmp.Diff(map[string]map[module.Code]int64{
			"mod.echo": {module.CodeBusOverloaded: 1}, "mod.fails": {module.CodeModuleExecuteError: 1},
			"mod.second": nil, "mod.words": nil, "mod.wait": {module.CodeExecutionCancelled: 2},
		}, byCode); d != "" {
			m.t.Error(d)
		}
		up := map[string]bool{}
		for _, one := range conns.Stats() {
			up[one.Name] = one.Connected
		}
		if d := cmp.Diff(map[string]bool{"calls": true, "control": true, "jetstream": true}, up); d != "" {
			m.t.Error(d)
		}

		// What the node told while it was busy.
		told := fleet[0]
		for _, one := range told.Modules {
			if one.ModuleID == "mod.wait" && (one.InFlight != 1 || one.Waiting != 1) {
				m.t.Errorf("mod.wait: %+v", one)
			}
			if one.ModuleID == "mod.echo" && (one.Calls != 3 || contextwire.Quantile(one.Latency, .5) > time.Second) {
				m.t.Errorf("mod.echo: %+v", one)
			}
		}
		if told.Node != "n1" || told.InFlight != 1 || told.Waiting != 1 || len(told.Modules) != 5 {
			m.t.Errorf("told %+v", told)
		}
	})
}

func TestLostCallsAreCounted(t *testing.T) {
	onMesh(t, func(m *mesh) {
		started, ended := make(chan string, 1), make(chan error, 1)
		conns := m.conns()
		m.nodeOn(conns, "n1", newStubHost().add("mod.wait", module.Annotations{}, untilDone(started, ended)))
		c := m.client()
		m.wait(c, "mod.wait")
		done := make(chan error, 1)
		go func() { _, err := c.Call(m.t.Context(), "mod.wait", nil); done <- err }()
		<-started
		conns.Close()
		wantCode(m.t, <-done, module.CodeBusNodeLost)
		if s := c.Stats(); s.Lost != 1 {
			m.t.Errorf("%d lost", s.Lost)
		}
		if s := conns.Stats(); s[0].Connected {
			m.t.Errorf("closed connections are up: %+v", s)
		}
	})
}

// A bucket holds what is at most its end, and more than the end before it.
func TestBuckets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Int64Range(0, 1<<41).Draw(t, "value")
		i := bus.BucketOf(v)
		if end := bus.BucketEnd(i); v > end || end > v+v/4+1 {
			t.Errorf("%d is in the bucket up to %d", v, end)
		}
		if i > 0 && bus.BucketEnd(i-1) >= v {
			t.Errorf("%d fits the bucket before", v)
		}
	})
}

// Counting must not cost a call an allocation.
func TestCountingAllocatesNothing(t *testing.T) {
	if n := testing.AllocsPerRun(100, bus.CountOne()); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
