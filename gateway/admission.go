package gateway

import (
	"sync/atomic"
)

// class says which limit a route counts against.
type class int

const (
	work    class = iota // calls and checks
	control              // everything that looks at or steers them
	probe                // health, never refused
)

// gate lets a number of requests in at once and refuses the rest.
type gate struct {
	limit int64
	in    atomic.Int64
}

func newGate(limit int) *gate { return &gate{limit: int64(limit)} }

func (g *gate) enter() bool {
	if g.in.Add(1) > g.limit {
		g.in.Add(-1)
		return false
	}
	return true
}

func (g *gate) leave() { g.in.Add(-1) }

// budget bounds the bytes of all request bodies in memory.
type budget struct {
	limit int64
	used  atomic.Int64
}

func (b *budget) take(n int64) bool {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return false
	}
	return true
}

func (b *budget) give(n int64) { b.used.Add(-n) }
