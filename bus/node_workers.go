package bus

import "sync"

// idleWorkers is how many goroutines wait for another call when theirs is over.
const idleWorkers = 64

// workers runs calls. A goroutine whose call is over waits for the next one, up
// to a number of them: its stack has grown to what a call needs, and growing
// one anew for each call is a good part of what a call costs.
type workers struct {
	next chan *running
	done <-chan struct{}
	wg   *sync.WaitGroup

	mu   sync.Mutex
	idle int
}

func newWorkers(done <-chan struct{}, wg *sync.WaitGroup) *workers {
	return &workers{next: make(chan *running), done: done, wg: wg}
}

// run starts r in a goroutine of its own and returns.
func (w *workers) run(r *running) {
	select {
	case w.next <- r: // one is waiting
	default:
		w.wg.Go(func() { w.loop(r) })
	}
}

func (w *workers) loop(r *running) {
	for {
		r.run()
		r.node.work.Done()
		if !w.stay() {
			return
		}
		select {
		case r = <-w.next:
			w.leave()
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
