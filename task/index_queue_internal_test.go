package task

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Whatever nodes ask for, and under whatever names, is forgotten once they ask no more.
func TestClaimsLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &Writer{queues: map[string]*queue{}}
		const rounds = 50
		for round := range rounds {
			req := ClaimRequest{Node: fmt.Sprint("n", round), Modules: []string{"always.here"}}
			for i := range 1000 {
				req.Modules = append(req.Modules, fmt.Sprintf("made.up_%d_%d", round, i))
			}
			for _, q := range w.asks(req, nil) {
				q.waits(&poller{gone: true})
			}
			for node := range 100 {
				w.queues["always.here"].ask(fmt.Sprint("n", round, "-", node), At(time.Now()), false)
			}
			time.Sleep(hostMemory / 2)
		}
		if n := len(w.queues); n > rounds*1000/2 {
			t.Errorf("%d queues are left", n)
		}
		if n := len(w.queues["always.here"].asked); n > rounds*100/4 {
			t.Errorf("%d nodes are left", n)
		}
	})
}
