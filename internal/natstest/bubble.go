package natstest

import (
	"runtime"
	"strings"
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
	failed := false
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if onlyStores(string(stacks)) {
			t.Logf("the server has left a file store behind: %v", v)
			if failed {
				t.FailNow()
			}
			return
		}
		// Who was left behind stands in the panic of a test that ends with it, but not
		// where somebody recovers, as rapid does to find a shorter trace.
		t.Logf("%v\n%s", v, stacks)
		panic(v)
	}()
	synctest.Test(t, func(t *testing.T) {
		defer func() { failed = t.Failed() }()
		defer leave()
		f(t)
	})
}

// onlyStores reports whether nothing is left in a bubble but the two goroutines of a file
// store of the server, which one that is stopped while it works may not end
// (nats-server 2.15). They hold nothing of ours.
func onlyStores(stacks string) bool {
	left := 0
	for goroutine := range strings.SplitSeq(stacks, "\n\n") {
		head, body, _ := strings.Cut(goroutine, "\n")
		if !strings.Contains(head, "synctest bubble") {
			continue
		}
		left++
		if !strings.Contains(body, "server.(*fileStore).flushStreamStateLoop(") && !strings.Contains(body, "server.(*msgBlock).flushLoop(") {
			return false
		}
	}
	return left > 0
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
