package integration_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestRollingRestartUnderLoad takes the nodes of a system down and up again, one
// at a time, while calls of modules that may run twice and of one that may not go
// on through the router: by signal, by HTTP and by the command line. No call
// fails, and nothing that may run only once runs twice.
func TestRollingRestartUnderLoad(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	nodes := s.startNodes([]string{"n1", "demo,math"}, []string{"n2", "demo,math"})

	load, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	var made, effects atomic.Int64
	failed := make(chan string, 1000)
	for w := range 8 {
		wg.Go(func() {
			for i := 0; load.Err() == nil; i++ {
				made.Add(1)
				path, body := "/v1/modules/math.add/call", `{"a":1,"b":2}`
				once := (w+i)%2 == 0
				if once {
					path, body = "/v1/modules/demo.effect/call", fmt.Sprintf(`{"key":"w%d-%d","ms":20}`, w, i)
				}
				a, err := s.try(t.Context(), http.MethodPost, path, body)
				switch {
				case err != nil:
					failed <- err.Error()
					return
				case a.status != http.StatusOK:
					failed <- a.String()
				case once:
					effects.Add(1)
				}
			}
		})
	}
	drains := []struct {
		name string
		do   func(n *node)
	}{
		{"signal", func(n *node) { n.signal(syscall.SIGTERM) }},
		{"HTTP", func(n *node) {
			if a := s.do(http.MethodPost, "/v1/nodes/"+n.id+"/drain", `{"grace_ms":20000}`); a.status != http.StatusAccepted {
				t.Errorf("drain: %v", a)
			}
		}},
		{"command line", func(n *node) {
			if _, p := s.cli("nodes", "drain", n.id, "--grace", "20s"); p.cmd.ProcessState.ExitCode() != 0 {
				t.Errorf("apbus nodes drain: %s", p.log())
			}
		}},
		{"signal", func(n *node) { n.signal(syscall.SIGTERM) }},
	}
	for i, d := range drains {
		before := made.Load()
		eventually(t, startLimit, "the load goes on", func() bool { return made.Load() > before+10 })
		old := nodes[i%2]
		d.do(old)
		if code := old.exit(20*time.Second + slack); code != 0 {
			t.Errorf("%s: exit code %d", d.name, code)
		}
		nodes[i%2] = s.startNode(old.id, "demo,math")
	}
	before := made.Load()
	eventually(t, startLimit, "the load goes on", func() bool { return made.Load() > before+10 })
	stop()
	wg.Wait()
	close(failed)
	n := 0
	for what := range failed {
		if n++; n <= 5 {
			t.Errorf("a call failed: %s", what)
		}
	}
	if n > 0 {
		t.Errorf("%d of %d calls failed", n, made.Load())
	}
	seen := map[string]int{}
	for _, line := range s.effectLines() {
		key, _, _ := strings.Cut(line, " ")
		seen[key]++
	}
	for key, times := range seen {
		if times != 1 {
			t.Errorf("the effect of %s happened %d times", key, times)
		}
	}
	if int64(len(seen)) != effects.Load() {
		t.Errorf("%d effects of %d calls that succeeded", len(seen), effects.Load())
	}
	t.Logf("%d calls, %d of them with an effect", made.Load(), effects.Load())
}
