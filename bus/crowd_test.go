package bus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// Of 100 streams of one client on one node ten have readers that stopped: the
// other ninety take as long as without them, and what the stopped ones hold is
// their windows.
func TestStoppedReadersSlowNobody(t *testing.T) {
	const readers, chunks, window = 90, 200, 16
	// last is when the last of the ninety was through.
	last := func(t *testing.T, stopped int) (took time.Duration) {
		onMesh(t, func(m *mesh) {
			paced := newCounting(chunks)
			paced.ended = make(chan error, readers)
			paced.every = 5 * time.Millisecond
			blocked := newCounting(-1)
			blocked.pad = 1000
			h := newStreamHost().stream("mod.paced", module.Annotations{}, paced.run).stream("mod.blocked", module.Annotations{}, blocked.run)
			n := m.node("n1", h)
			c := m.client()
			m.wait(c, "mod.paced", "mod.blocked")
			ctx, stop := context.WithCancelCause(m.t.Context())
			defer stop(nil)
			reading := make(chan struct{}, stopped)
			var ends []<-chan *taken
			for range stopped {
				ends = append(ends, readAside(ctx, c, &contextwire.Request{ModuleID: "mod.blocked", Credit: creditOf(window, 1<<20)}, func(int) error {
					reading <- struct{}{}
					<-ctx.Done() // it reads no further
					return context.Cause(ctx)
				}))
			}
			for range stopped {
				<-reading
			}
			pass(time.Second)
			start := time.Now()
			var wg sync.WaitGroup
			for range readers {
				wg.Go(func() {
					got := read(m.t.Context(), c, &contextwire.Request{ModuleID: "mod.paced", Credit: creditOf(window, 1<<20)}, nil)
					if got.err != nil || len(got.is) != chunks {
						m.t.Errorf("%d chunks, %v", len(got.is), got.err)
					}
				})
			}
			wg.Wait()
			took = time.Since(start)
			if sent := blocked.sent.Load(); sent != int64(stopped*window) {
				m.t.Errorf("the blocked modules gave %d chunks, want %d windows of %d", sent, stopped, window)
			}
			stop(errors.New("enough"))
			for _, end := range ends {
				<-end
			}
			pass(2 * time.Minute)
			if got := n.Tables(); got != (bus.Tables{}) {
				m.t.Errorf("the node still remembers %+v", got)
			}
		})
		return took
	}
	alone, beside := last(t, 0), last(t, 10)
	if alone < chunks*5*time.Millisecond {
		t.Errorf("%d chunks took %v", chunks, alone)
	}
	if beside > alone*11/10 {
		t.Errorf("the ninety took %v, and %v beside ten that stopped", alone, beside)
	}
}

// Ten thousand calls and streams, cancelled before, while and after they run,
// leave nothing on either side.
func TestCancelledCrowdLeavesNothing(t *testing.T) {
	onMesh(t, func(m *mesh) {
		endless := newCounting(-1)
		endless.every, endless.ended = 10*time.Millisecond, make(chan error, 10_000)
		h := newStreamHost().stream("mod.stream", module.Annotations{}, endless.run).
			add("mod.wait", module.Annotations{}, func(ctx context.Context, _ *contextwire.Request) (map[string]any, error) {
				select {
				case <-time.After(20 * time.Millisecond):
					return map[string]any{}, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			})
		nodes := []*bus.Node{m.node("n1", h), m.node("n2", h)}
		c := m.client()
		m.waitHosts(c, "mod.wait", 2)
		enough := errors.New("enough")
		ends := map[module.Code]int{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		const workers, each = 100, 100
		for w := range workers {
			wg.Go(func() {
				for i := range each {
					ctx, stop := context.WithCancelCause(m.t.Context())
					cut := time.AfterFunc(time.Duration((w*7+i)%25)*time.Millisecond, func() { stop(enough) })
					var err error
					if (w+i)%2 == 0 {
						_, err = c.Call(ctx, "mod.wait", nil)
					} else {
						err = read(ctx, c, &contextwire.Request{ModuleID: "mod.stream"}, nil).err
					}
					cut.Stop()
					stop(nil)
					mu.Lock()
					ends[module.CodeOf(err)]++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if cancelled := ends[module.CodeExecutionCancelled]; cancelled < workers*each/2 || cancelled+ends[""] != workers*each {
			m.t.Errorf("ends %v", ends)
		}
		pass(2 * time.Minute)
		for _, n := range nodes {
			if got := n.Tables(); got != (bus.Tables{}) {
				m.t.Errorf("%s still remembers %+v", n.ID(), got)
			}
		}
		if pending, calls, hosts, open := c.Tables(); pending+calls+open != 0 || hosts > len(nodes) {
			m.t.Errorf("the client still has %s", fmt.Sprint(pending, calls, hosts, open))
		}
	})
}
