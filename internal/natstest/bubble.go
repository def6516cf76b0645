package natstest

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server/ats"
)

// Bubble runs f in a testing/synctest bubble in which a server of this process
// and nats.go work. Both keep things that belong to the whole process and must
// not be left in a bubble: the server a clock, nats.go a pool of timers.
func Bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	// While somebody has it registered, the clock of the server's file store ticks
	// outside; started inside, it would keep the bubble's time from passing.
	ats.Register()
	defer ats.Unregister()
	synctest.Test(t, func(t *testing.T) {
		defer leave()
		f(t)
	})
}

func leave() {
	// nats.go looks at drained subscriptions every 100 ms.
	time.Sleep(time.Second)
	synctest.Wait()
	// A timer made in this bubble must not be used in the next: two collections
	// empty the pool.
	runtime.GC()
	runtime.GC()
}
