package bustest

import (
	"runtime"
	"testing/synctest"
	"time"
)

// EndBubble is called last in a testing/synctest bubble that used nats.go. The
// library keeps timers in a pool shared by the whole process, and a timer made
// in one bubble must not be used in the next; two collections empty the pool.
func EndBubble() {
	time.Sleep(time.Second) // it looks at drained subscriptions every 100 ms
	synctest.Wait()
	runtime.GC()
	runtime.GC()
}
