package cancel

import (
	"container/heap"
	"container/list"
	"time"
)

// graveyard keeps the tombstones of one table, whose lock guards it. Expiry
// needs no goroutine: a tombstone past its time is not matched, and every
// burial sweeps those that are.
type graveyard struct {
	ttl       time.Duration
	perIssuer int

	byKey    map[graveKey]*tombstone
	byIssuer map[string]*list.List // of *tombstone, oldest first
	byExpiry expiryHeap

	buried, evicted, expired uint64
}

// graveKey is what a tombstone stands for.
type graveKey struct {
	everybody bool   // set by a privileged request; issuer is empty then
	issuer    string // whose calls it stops
	field     field
	value     string
	attempt   int // 0 is any
}

type tombstone struct {
	key     graveKey
	cause   *Cause
	expires time.Time
	owner   string        // issuer whose cap it counts against
	inOwner *list.Element // place in byIssuer[owner]
	inHeap  int           // place in byExpiry
}

func newGraveyard(ttl time.Duration, perIssuer int) graveyard {
	return graveyard{
		ttl:       ttl,
		perIssuer: perIssuer,
		byKey:     make(map[graveKey]*tombstone),
		byIssuer:  make(map[string]*list.List),
	}
}

// bury leaves a tombstone. One that stands already is renewed: it keeps its
// cause, since the first one wins, and the later of the two expiries.
func (g *graveyard) bury(sel Selector, by CancelRequest, now time.Time) {
	g.sweep(now)
	f := sel.field()
	ttl := g.ttl
	if by.TTL > 0 {
		ttl = by.TTL
	}
	stone := &tombstone{
		key:     graveKey{everybody: by.Privileged, issuer: by.Issuer, field: f, value: sel.value(f), attempt: sel.Attempt},
		cause:   by.Cause,
		expires: now.Add(ttl),
		owner:   by.Issuer,
	}
	if by.Privileged {
		stone.key.issuer = ""
	}
	if old := g.byKey[stone.key]; old != nil {
		stone.cause = old.cause
		if old.expires.After(stone.expires) {
			stone.expires = old.expires
		}
		g.remove(old)
	}
	owned := g.byIssuer[stone.owner]
	if owned == nil {
		owned = list.New()
		g.byIssuer[stone.owner] = owned
	}
	for owned.Len() >= g.perIssuer {
		g.remove(owned.Front().Value.(*tombstone))
		g.evicted++
		// remove drops the list of an issuer that has nothing left.
		g.byIssuer[stone.owner] = owned
	}
	stone.inOwner = owned.PushBack(stone)
	g.byKey[stone.key] = stone
	heap.Push(&g.byExpiry, stone)
	g.buried++
}

// match returns the cause of a tombstone that stops the call, nil when none
// does.
func (g *graveyard) match(c *Call, now time.Time) *Cause {
	if len(g.byKey) == 0 {
		return nil
	}
	for f := range fieldIssuer {
		v := c.value(f)
		if v == "" {
			continue
		}
		for _, key := range [...]graveKey{
			{issuer: c.Issuer, field: f, value: v},
			{everybody: true, field: f, value: v},
		} {
			if cause := g.lookup(key, now); cause != nil {
				return cause
			}
			if f != fieldCall || c.Attempt == 0 {
				continue
			}
			key.attempt = c.Attempt
			if cause := g.lookup(key, now); cause != nil {
				return cause
			}
		}
	}
	return nil
}

func (g *graveyard) lookup(key graveKey, now time.Time) *Cause {
	stone := g.byKey[key]
	if stone == nil {
		return nil
	}
	if !now.Before(stone.expires) {
		g.remove(stone)
		g.expired++
		return nil
	}
	return stone.cause
}

// sweep removes every tombstone past its time.
func (g *graveyard) sweep(now time.Time) {
	for len(g.byExpiry) > 0 && !now.Before(g.byExpiry[0].expires) {
		g.remove(g.byExpiry[0])
		g.expired++
	}
}

func (g *graveyard) remove(stone *tombstone) {
	delete(g.byKey, stone.key)
	heap.Remove(&g.byExpiry, stone.inHeap)
	owned := g.byIssuer[stone.owner]
	owned.Remove(stone.inOwner)
	if owned.Len() == 0 {
		delete(g.byIssuer, stone.owner)
	}
}

// expiryHeap has the tombstone that expires next on top.
type expiryHeap []*tombstone

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].expires.Before(h[j].expires) }
func (h expiryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].inHeap, h[j].inHeap = i, j
}

// Push is called by package heap.
func (h *expiryHeap) Push(x any) {
	stone := x.(*tombstone)
	stone.inHeap = len(*h)
	*h = append(*h, stone)
}

// Pop is called by package heap.
func (h *expiryHeap) Pop() any {
	last := len(*h) - 1
	stone := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return stone
}
