package bus

import (
	"maps"
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
	r.turn = make(chan struct{})
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

// entangledLocked reports whether r would wait for a slot that its own chain
// holds, with nobody left who could free another: every holder it waits for is
// an ancestor of r, or of a call that waits already, so each waits for the rest.
func (g *gate) entangledLocked(r *running) bool {
	if r.head.Root == "" {
		return false
	}
	byID := make(map[string]*running, len(g.holders))
	for h := range g.holders {
		byID[h.key.Call] = h
	}
	above, complete := ancestors(r, byID)
	stuck := map[string]bool{}
	for _, q := range g.queue {
		ids, _ := ancestors(q, byID)
		for id := range ids {
			stuck[id] = true
		}
	}
	byModule := g.modules[r.head.ModuleID] >= g.perModule
	own := false
	for h := range g.holders {
		if byModule && h.head.ModuleID != r.head.ModuleID {
			continue
		}
		switch {
		case above[h.key.Call], !complete && h.root() == r.head.Root && !beside(h, above, byID):
			own = true
		case !stuck[h.key.Call]:
			return false
		}
	}
	return own
}

// ancestors lists the calls that wait for r, as far as parents lead through
// calls of this node. complete is false when the chain passes through another
// node, so that there may be more of them here.
func ancestors(r *running, byID map[string]*running) (ids map[string]bool, complete bool) {
	ids = map[string]bool{r.head.Root: true}
	for at := r; at != nil; at = byID[at.head.Parent] {
		if at.head.Parent == r.head.Root {
			return ids, true
		}
		if ids[at.head.Parent] {
			return ids, false // parents in a circle
		}
		ids[at.head.Parent] = true
	}
	return ids, false
}

// beside reports whether h is known to be no ancestor: it was called by one, as
// a sibling of the chain, or by such a sibling.
func beside(h *running, above map[string]bool, byID map[string]*running) bool {
	for range len(byID) + 1 {
		if h.head.Parent != "" && h.head.Parent != h.head.Root && above[h.head.Parent] {
			return true
		}
		if h = byID[h.head.Parent]; h == nil {
			return false
		}
	}
	return false
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

// byModule counts those of each module.
func (g *gate) byModule() (holding, waiting map[string]int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	holding, waiting = maps.Clone(g.modules), map[string]int{}
	for _, r := range g.queue {
		waiting[r.head.ModuleID]++
	}
	return holding, waiting
}

// load returns the calls that hold a slot and those that wait.
func (g *gate) load() (inFlight, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.holders), len(g.queue)
}
