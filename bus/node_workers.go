package bus

import (
	"sync"
	"sync/atomic"
)

const (
	// idleWorkers is how many goroutines wait for another call when theirs is over.
	idleWorkers = 64
	// idleRounds is how many rounds without a call they wait.
	idleRounds = 10
)

// job is what a worker does.
type job interface{ serve() }

// workers runs calls. A goroutine whose call is over waits for the next one, up
// to a number of them and for about a second: its stack has grown to what a call
// needs, and growing one anew for each call is a good part of what a call costs.
type workers struct {
	next chan job
	home chan struct{} // sends a waiting goroutine home
	done <-chan struct{}
	wg   *sync.WaitGroup

	used  atomic.Bool // since the last round
	quiet int         // rounds without a call; only rest looks at it

	mu   sync.Mutex
	idle int
}

func newWorkers(done <-chan struct{}, wg *sync.WaitGroup) *workers {
	return &workers{next: make(chan job), home: make(chan struct{}), done: done, wg: wg}
}

// rest is called every round, by one goroutine. It sends the waiting ones home
// when there was nothing to do for a while.
func (w *workers) rest() {
	if w.used.Swap(false) {
		w.quiet = 0
		return
	}
	if w.quiet++; w.quiet < idleRounds {
		return
	}
	for {
		select {
		case w.home <- struct{}{}:
		default: // nobody waits
			return
		}
	}
}

// run starts j in a goroutine of its own and returns.
func (w *workers) run(j job) {
	w.used.Store(true)
	select {
	case w.next <- j: // one is waiting
	default:
		w.wg.Go(func() { w.loop(j) })
	}
}

func (w *workers) loop(j job) {
	for {
		j.serve()
		if !w.stay() {
			return
		}
		select {
		case j = <-w.next:
			w.leave()
		case <-w.home:
			w.leave()
			return
		case <-w.done:
			w.leave()
			return
		}
	}
}

func (w *workers) stay() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.idle == idleWorkers {
		return false
	}
	w.idle++
	return true
}

func (w *workers) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle--
}
