package executor

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apbus/apbus/module"
)

// maxTracedCalls is how many nested calls one trace holds, at any depth. The traces
// of other nodes count with all that they hold.
const maxTracedCalls = 128

// nest is where the traces of the calls inside a traced call are gathered. Those
// calls find it in their context, and may run at once and longer than it.
type nest struct {
	trace *Trace
	began time.Time
	room  *atomic.Int64 // how many calls the whole tree may still take

	mu      sync.Mutex
	over    bool
	entered int
	calls   []*Trace
}

// nestKey is where a context has its nest.
type nestKey struct{}

// nestOf returns the nest of the traced call that ctx belongs to, nil for none. It
// costs a load where nobody traces.
func (x *Executor) nestOf(ctx context.Context) *nest {
	if x.traced.Load() == 0 {
		return nil
	}
	n, _ := ctx.Value(nestKey{}).(*nest)
	return n
}

// watch has the call traced, and its trace kept by the one around it, if there is
// one. finish must be called once, when the call is over; only then may others look
// at the trace.
func (p *Pipeline) watch(above *nest) (finish func(error)) {
	t := &Trace{ModuleID: p.moduleID, Strategy: p.strategy.Name()}
	n := &nest{trace: t, began: time.Now()}
	if above == nil {
		n.room = &atomic.Int64{}
		n.room.Store(maxTracedCalls)
	} else {
		n.room, t.Offset = above.room, n.began.Sub(above.began)
	}
	p.trace, p.nest = t, n
	p.x.traced.Add(1)
	return func(err error) {
		p.x.traced.Add(-1)
		n.finish(err)
		if above != nil {
			above.keep(t)
		}
	}
}

// watchNested has a call inside a traced one traced too, unless the trace is full.
// Without a traced call around it, it does nothing.
func (p *Pipeline) watchNested(ctx context.Context) (finish func(error)) {
	above := p.x.nestOf(ctx)
	if above == nil || !above.enter() {
		return func(error) {}
	}
	return p.watch(above)
}

// runTraced is run for a call that may be inside a traced one.
func (p *Pipeline) runTraced(ctx context.Context) (map[string]any, error) {
	finish := p.watchNested(ctx)
	out, err := p.run(ctx)
	finish(err)
	return out, err
}

// enter reports whether the tree has room for one more call.
func (n *nest) enter() bool {
	n.mu.Lock()
	n.entered++
	n.mu.Unlock()
	return n.take(1)
}

// take takes room for some calls, or none.
func (n *nest) take(calls int) bool {
	if n.room.Add(int64(-calls)) >= 0 {
		return true
	}
	n.room.Add(int64(calls))
	return false
}

// keep holds the trace of a call that has ended.
func (n *nest) keep(t *Trace) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.over {
		n.calls = append(n.calls, t)
	}
}

// finish completes the trace. What ends later is not in it.
func (n *nest) finish(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.over = true
	slices.SortStableFunc(n.calls, func(a, b *Trace) int { return cmp.Compare(a.Offset, b.Offset) })
	t := n.trace
	t.Calls, t.CallsDropped = n.calls, n.entered-len(n.calls)
	t.Duration, t.Success, t.Error = time.Since(n.began), err == nil, module.AsError(err)
}
