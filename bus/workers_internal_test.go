package bus

import (
	"sync"
	"testing"
	"testing/synctest"
)

// Goroutines kept for the next call are used again, are not more than their
// number, and go home when nothing comes.
func TestWorkersAreKeptAndSentHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		var wg sync.WaitGroup
		w := newWorkers(done, &wg)
		waiting := func() int {
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.idle)
		}
		together(w, 3*idleWorkers)
		if got := waiting(); got != idleWorkers {
			t.Errorf("%d goroutines are kept, want %d", got, idleWorkers)
		}
		together(w, idleWorkers/2)
		if got := waiting(); got != idleWorkers {
			t.Errorf("%d goroutines are kept after more calls, want %d", got, idleWorkers)
		}
		for round := range idleRounds {
			if got := waiting(); got != idleWorkers {
				t.Errorf("%d goroutines are left in quiet round %d, want %d", got, round, idleWorkers)
			}
			w.rest()
		}
		w.rest() // the first round only noticed the calls before it
		if got := waiting(); got != 0 {
			t.Errorf("%d goroutines are left after a second without a call", got)
		}
		together(w, 1)
		close(done)
		wg.Wait()
	})
}

// together runs n calls at the same time and returns when all are over.
func together(w *workers, n int) {
	hold, over := make(chan struct{}), make(chan struct{})
	for range n {
		w.run(jobFunc(func() { <-hold; over <- struct{}{} }))
	}
	close(hold)
	for range n {
		<-over
	}
}

type jobFunc func()

func (f jobFunc) serve() { f() }
