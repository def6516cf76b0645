// Package heap owns how much garbage the programs let gather. It is for programs
// only: a library leaves the settings of its process alone.
package heap

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// Go lets the garbage grow to the size of what is alive. For a router or node that is
// too little while it holds next to nothing, since it then collects a hundred times a
// second under load, and too much for a router that holds a million tasks, whose place
// would be taken twice.
const (
	leastGarbage = 48 << 20
	mostGarbage  = 128 << 20
	// poll is how often it is looked at.
	poll = 250 * time.Millisecond
)

// liveHeap is what the last collection left.
const liveHeap = "/gc/heap/live:bytes"

// Tend bounds the garbage in the heap of this process until the returned func is
// called, which gives back what was set before. env looks a variable up: whoever sets
// GOGC or GOMEMLIMIT is left alone. One call at a time.
func Tend(ctx context.Context, env func(string) (string, bool)) (leave func()) {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		if env != nil {
			if value, set := env(name); set && value != "" {
				return func() {}
			}
		}
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var owned sync.WaitGroup
	owned.Go(func() {
		live := []metrics.Sample{{Name: liveHeap}}
		percent := func() int {
			metrics.Read(live)
			return garbagePercent(live[0].Value.Uint64())
		}
		now := percent()
		before := debug.SetGCPercent(now)
		defer debug.SetGCPercent(before)
		tick := time.NewTicker(poll)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			// Setting it stops the world for a moment, so it has to be worth it.
			if p := percent(); p > now+now/8 || p < now-now/8 {
				now = p
				debug.SetGCPercent(now)
			}
		}
	})
	return func() {
		stop()
		owned.Wait()
	}
}

// garbagePercent is how much may be garbage beside so many bytes alive, in percent of
// them.
func garbagePercent(live uint64) int {
	live = max(live, 4<<20)
	garbage := min(max(live, leastGarbage), mostGarbage)
	return int(max(garbage*100/live, 10))
}
