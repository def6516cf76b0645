package bus

import (
	"slices"
	"sync"
	"time"
)

// verdict is what the gate says to a call.
type verdict int

const (
	admitted verdict = iota
	queued
	refused
	// entangled: it would wait for a slot that only its own tree can free.
	entangled
)

// gate admits calls: so many at once in all and per module, then a bounded
// queue in order of arrival (wire protocol section 5, Overload). A module that
// runs on after its call ended keeps its slot.
type gate struct {
	max, perModule, queueSize int
	debt                      func() int

	mu      sync.Mutex
	holders map[*running]struct{}
	modules map[string]int
	queue   []*running
	// took smooths how long a call holds its slot, for retry-after.
	took time.Duration
}

func newGate(limit, perModule, queueSize int, debt func() int) *gate {
	return &gate{
		max: limit, perModule: perModule, queueSize: queueSize, debt: debt,
		holders: map[*running]struct{}{}, modules: map[string]int{},
	}
}

// enter decides about a call. A queued one is started later through its turn
// channel.
func (g *gate) enter(r *running) (v verdict, retryAfter time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.queue) == 0 && g.freeLocked(r) {
		g.takeLocked(r)
		return admitted, 0
	}
	if g.freeLocked(r) && !g.waitingLocked(r.head.ModuleID) {
		g.takeLocked(r) // what waits, waits for another module's limit
		return admitted, 0
	}
	if g.entangledLocked(r) {
		return entangled, 0
	}
	if len(g.queue) >= g.queueSize {
		return refused, g.retryAfterLocked()
	}
	g.queue = append(g.queue, r)
	return queued, 0
}

func (g *gate) freeLocked(r *running) bool {
	return len(g.holders)+g.debt() < g.max && g.modules[r.head.ModuleID] < g.perModule
}

func (g *gate) waitingLocked(moduleID string) bool {
	return slices.ContainsFunc(g.queue, func(q *running) bool { return q.head.ModuleID == moduleID })
}

func (g *gate) takeLocked(r *running) {
	g.holders[r] = struct{}{}
	g.modules[r.head.ModuleID]++
}

// entangledLocked reports whether every slot that r could wait for is held by
// r's own tree: then nothing would ever free one.
func (g *gate) entangledLocked(r *running) bool {
	if r.head.Root == "" {
		return false
	}
	byModule := g.modules[r.head.ModuleID] >= g.perModule
	held := 0
	for h := range g.holders {
		if byModule && h.head.ModuleID != r.head.ModuleID {
			continue
		}
		if h.root() != r.head.Root {
			return false
		}
		held++
	}
	return held > 0
}

func (g *gate) retryAfterLocked() time.Duration {
	wait := g.took * time.Duration(len(g.queue)+1) / time.Duration(g.max)
	return min(max(wait, 10*time.Millisecond), 5*time.Second)
}

// leave gives r's slot back and starts what may start now.
func (g *gate) leave(r *running, held time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, had := g.holders[r]; !had {
		return
	}
	delete(g.holders, r)
	if g.modules[r.head.ModuleID]--; g.modules[r.head.ModuleID] == 0 {
		delete(g.modules, r.head.ModuleID)
	}
	g.took += (held - g.took) / 8
	g.wakeLocked()
}

// abandon takes a call out of the queue, unless it was given its turn meanwhile;
// then leave gives the slot back.
func (g *gate) abandon(r *running) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.queue, r); i >= 0 {
		g.queue = slices.Delete(g.queue, i, i+1)
	}
}

func (g *gate) wake() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wakeLocked()
}

func (g *gate) wakeLocked() {
	for i := 0; i < len(g.queue); {
		r := g.queue[i]
		if !g.freeLocked(r) {
			i++
			continue
		}
		g.queue = slices.Delete(g.queue, i, i+1)
		g.takeLocked(r)
		close(r.turn)
	}
}

// load returns the calls that hold a slot and those that wait.
func (g *gate) load() (inFlight, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.holders), len(g.queue)
}
