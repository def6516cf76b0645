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

// gate admits calls: so many at once in all, of one module and of one identity,
// then a bounded queue (wire protocol section 5, Overload). No module can keep
// the others out: without a limit of its own it leaves them a fifth of the slots,
// a slot that becomes free goes to the module that holds fewest, and a module
// that fills the queue makes room in it. A module that runs on after its call
// ended keeps its slot.
type gate struct {
	gateLimits

	mu         sync.Mutex
	holders    map[*running]struct{}
	modules    map[string]int
	identities map[string]int // of those whose identity is known
	queue      []*running
	// served says when each module last got a slot, as a count.
	served map[string]uint64
	turns  uint64
	// took smooths how long a call holds its slot, for retry-after.
	took time.Duration
}

// gateLimits is what a gate goes by. A limit of zero is none.
type gateLimits struct {
	max, perModule, perIdentity, queueSize int
	debt                                   func() int
	// several reports whether the node hosts more than one module.
	several func() bool
}

func newGate(l gateLimits) *gate {
	return &gate{gateLimits: l, holders: map[*running]struct{}{}, modules: map[string]int{}, identities: map[string]int{}, served: map[string]uint64{}}
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
	blocks := func(*running) bool { return true }
	if g.modules[r.head.ModuleID] >= g.moduleLimit() {
		blocks = func(h *running) bool { return h.head.ModuleID == r.head.ModuleID }
	}
	if g.entangledLocked(r, blocks) {
		return entangled, 0
	}
	if !g.roomLocked(r.head.ModuleID) {
		return refused, g.retryAfterLocked()
	}
	g.waitLocked(r)
	return queued, 0
}

func (g *gate) waitLocked(r *running) {
	r.turn = make(chan struct{})
	g.queue = append(g.queue, r)
}

// claim is asked once the body of a call tells who makes it. When that identity
// has all it may have, the call gives its slot back and waits like any other.
func (g *gate) claim(r *running, identity string) (v verdict, retryAfter time.Duration) {
	if g.perIdentity == 0 {
		return admitted, 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.identified {
		return admitted, 0 // it has waited for this already
	}
	if g.identities[identity] < g.perIdentity {
		g.identities[identity]++
		r.identity, r.identified = identity, true
		return admitted, 0
	}
	if g.entangledLocked(r, func(h *running) bool { return h.identified && h.identity == identity }) {
		return entangled, 0
	}
	if !g.roomLocked(r.head.ModuleID) {
		return refused, g.retryAfterLocked()
	}
	g.dropLocked(r)
	r.identity, r.identified = identity, true
	g.waitLocked(r)
	g.wakeLocked()
	return queued, 0
}

// freeLocked reports whether r could have a slot now.
func (g *gate) freeLocked(r *running) bool {
	return len(g.holders)+g.debt() < g.max && g.modules[r.head.ModuleID] < g.moduleLimit() &&
		(!r.identified || g.identities[r.identity] < g.perIdentity)
}

// moduleLimit is how many slots one module may hold.
func (g *gate) moduleLimit() int {
	switch {
	case g.perModule > 0:
		return min(g.perModule, g.max)
	case g.several():
		return g.max - g.max/5
	}
	return g.max
}

// smallQueue is the size below which a queue is not worth sharing out.
const smallQueue = 16

// roomLocked reports whether a call of the module may wait. In a full queue of
// which another module has more than half, the youngest call of that one makes
// room for a module that has less than a quarter; it is refused in its stead.
func (g *gate) roomLocked(moduleID string) bool {
	if len(g.queue) < g.queueSize {
		return true
	}
	if g.queueSize < smallQueue {
		return false
	}
	waiting, most := map[string]int{}, ""
	for _, q := range g.queue {
		id := q.head.ModuleID
		if waiting[id]++; waiting[id] > waiting[most] {
			most = id
		}
	}
	if 4*waiting[moduleID] >= g.queueSize || 2*waiting[most] <= g.queueSize {
		return false
	}
	for i := len(g.queue) - 1; i >= 0; i-- {
		if q := g.queue[i]; q.head.ModuleID == most {
			q.pushedOut = g.retryAfterLocked()
			g.queue = slices.Delete(g.queue, i, i+1)
			close(q.turn)
			return true
		}
	}
	return false
}

// waitingLocked reports whether a call of the module waits for a slot; one that
// waits for its identity's other calls holds up nobody.
func (g *gate) waitingLocked(moduleID string) bool {
	return slices.ContainsFunc(g.queue, func(q *running) bool {
		return q.head.ModuleID == moduleID && !(q.identified && g.identities[q.identity] >= g.perIdentity)
	})
}

func (g *gate) takeLocked(r *running) {
	if len(g.served) >= maxServed {
		clear(g.served)
	}
	g.turns++
	g.served[r.head.ModuleID] = g.turns
	g.holders[r] = struct{}{}
	g.modules[r.head.ModuleID]++
	if r.identified {
		g.identities[r.identity]++
	}
}

// dropLocked is the opposite of takeLocked.
func (g *gate) dropLocked(r *running) {
	delete(g.holders, r)
	if g.modules[r.head.ModuleID]--; g.modules[r.head.ModuleID] == 0 {
		delete(g.modules, r.head.ModuleID)
	}
	if !r.identified {
		return
	}
	if g.identities[r.identity]--; g.identities[r.identity] == 0 {
		delete(g.identities, r.identity)
	}
}

// entangledLocked reports whether r would wait for a slot that its own chain
// holds, with nobody left who could free another: every holder that blocks it is
// an ancestor of r, or of a call that waits already, so each waits for the rest.
func (g *gate) entangledLocked(r *running, blocks func(h *running) bool) bool {
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
	own := false
	for h := range g.holders {
		if h == r || !blocks(h) {
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
	g.dropLocked(r)
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

// maxServed bounds what is remembered of modules, whose names callers choose.
const maxServed = 1024

// wakeLocked gives out what is free: to the module that holds fewest slots, of
// several to the one whose turn is longest ago, and of its calls to the first.
func (g *gate) wakeLocked() {
	for len(g.holders) < g.max {
		next := -1
		for i, q := range g.queue {
			if (next < 0 || g.beforeLocked(q.head.ModuleID, g.queue[next].head.ModuleID)) && g.freeLocked(q) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		r := g.queue[next]
		g.queue = slices.Delete(g.queue, next, next+1)
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

// beforeLocked reports whether a call of module a goes before an older one of b.
func (g *gate) beforeLocked(a, b string) bool {
	if g.modules[a] != g.modules[b] {
		return g.modules[a] < g.modules[b]
	}
	return g.served[a] < g.served[b]
}

// load returns the calls that hold a slot and those that wait.
func (g *gate) load() (inFlight, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.holders), len(g.queue)
}
