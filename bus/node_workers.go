package bus

import (
	"slices"
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
// needs, and growing one anew for each call is a good part of what a call costs. The
// one that waits least long gets the next call, since what it uses is still at hand.
type workers struct {
	done <-chan struct{}
	wg   *sync.WaitGroup

	used  atomic.Bool // since the last round
	quiet int         // rounds without a call; only rest looks at it

	mu   sync.Mutex
	idle []*worker // the last one waits least long
}

// worker is a goroutine that waits for a call.
type worker struct {
	next chan job // capacity 1; who takes the worker off the list sends once, nil to send it home
}

func newWorkers(done <-chan struct{}, wg *sync.WaitGroup) *workers {
	return &workers{done: done, wg: wg}
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
	w.mu.Lock()
	idle := w.idle
	w.idle = nil
	w.mu.Unlock()
	for _, one := range idle {
		one.next <- nil
	}
}

// run starts j in a goroutine of its own and returns.
func (w *workers) run(j job) {
	w.used.Store(true)
	if one := w.take(); one != nil {
		one.next <- j
		return
	}
	w.wg.Go(func() { w.loop(j) })
}

// take takes a worker off the list, nil when none waits.
func (w *workers) take() *worker {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.idle)
	if n == 0 {
		return nil
	}
	one := w.idle[n-1]
	w.idle[n-1] = nil
	w.idle = w.idle[:n-1]
	return one
}

func (w *workers) loop(j job) {
	me := &worker{next: make(chan job, 1)}
	for j != nil {
		j.serve()
		j = w.await(me)
	}
}

// await waits for the next call, nil when there is none to wait for.
func (w *workers) await(me *worker) job {
	if !w.stay(me) {
		return nil
	}
	select {
	case j := <-me.next:
		return j
	case <-w.done:
		if w.withdraw(me) {
			return nil
		}
		return <-me.next // it was taken off the list already
	}
}

func (w *workers) stay(me *worker) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.idle) == idleWorkers {
		return false
	}
	w.idle = append(w.idle, me)
	return true
}

func (w *workers) withdraw(me *worker) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.idle, me)
	if i < 0 {
		return false
	}
	w.idle = slices.Delete(w.idle, i, i+1)
	return true
}
