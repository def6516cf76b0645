package integration_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestKilledHostIsNoticed kills the owner of calls that must not run twice.
func TestKilledHostIsNoticed(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	nodes := s.startNodes([]string{"n1", "demo,near"}, []string{"n2", "far"})
	c := s.begin("demo.effect", `{"key":"k","ms":`+longSleep+`}`)
	s.running("demo.effect")
	start := time.Now()
	nodes[0].kill()
	a := c.wait(hostGone + slack)
	t.Logf("BUS_NODE_LOST came %v after the kill, want %v on an idle machine", time.Since(start), hostGone)
	if a.code() != "BUS_NODE_LOST" || a.status != http.StatusServiceUnavailable || a.details()["node"] != "n1" {
		t.Errorf("answer %v, want BUS_NODE_LOST of n1", a)
	}
	if e, _ := a.doc["error"].(map[string]any); e["retryable"] != false {
		t.Errorf("retryable = %v for what may have had its effect", e["retryable"])
	}
	if d := cmp.Diff([]string{"k 1 n1"}, s.effectLines()); d != "" {
		t.Error(d)
	}
	// Nobody hosts the module any more, and that is said at once.
	start = time.Now()
	a = s.call("demo.effect", `{"key":"k2"}`)
	if a.code() != "BUS_NO_RESPONDERS" || time.Since(start) > time.Second+slack {
		t.Errorf("after %v: %v, want BUS_NO_RESPONDERS", time.Since(start), a)
	}
}

// TestFrozenHostIsNoticed stops the owner, which cannot close its connection,
// and lets it run on when everybody has given it up.
func TestFrozenHostIsNoticed(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	n := s.startNode("n1", "demo")
	c := s.begin("demo.effect", `{"key":"k","ms":`+longSleep+`}`)
	s.running("demo.effect")
	eventually(t, startLimit, "the module has begun", func() bool { return len(s.effectLines()) == 1 })
	start := time.Now()
	n.freeze()
	a := c.wait(hostFrozen + slack)
	took := time.Since(start)
	t.Logf("BUS_NODE_LOST came %v after the stop, want %v on an idle machine", took, hostFrozen)
	if a.code() != "BUS_NODE_LOST" || a.status != http.StatusServiceUnavailable {
		t.Errorf("answer %v, want BUS_NODE_LOST", a)
	}
	if took < time.Second {
		t.Errorf("given up after %v: one missed ping proves nothing", took)
	}
	n.thaw()
	s.waitIdle(cancelLimit, n) // the notice waited for it
	if d := cmp.Diff([]string{"k 1 n1"}, s.effectLines()); d != "" {
		t.Error(d)
	}
	eventually(t, 10*time.Second+slack, "the thawed node serves again", func() bool {
		return s.call("demo.whoami", "", "Apbus-Timeout: 1s").doc["node"] == "n1"
	})
}

// TestBriefStallOfAHostLosesNothing stops the owner for two pings.
func TestBriefStallOfAHostLosesNothing(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	nodes := s.startNodes([]string{"n1", "demo"}, []string{"n2", "demo"})
	byID := map[any]*node{"n1": nodes[0], "n2": nodes[1]}
	c := s.begin("demo.effect", `{"key":"k","ms":3000}`)
	owner := byID[s.running("demo.effect")["demo.effect"]["node"]]
	time.Sleep(600 * time.Millisecond) //archtest:real-time the owner is pinged once a call is half a second old
	owner.freeze()
	time.Sleep(1100 * time.Millisecond) //archtest:real-time the stall of another process is what is tested
	owner.thaw()
	if a := c.wait(3*time.Second + slack); a.status != http.StatusOK || a.doc["count"] != 1.0 {
		t.Errorf("answer %v", a)
	}
	if d := cmp.Diff([]string{"k 1 " + owner.id}, s.effectLines()); d != "" {
		t.Error(d)
	}
}

// TestIdempotentCallIsAnsweredByTheOtherNode kills and freezes the owner of a
// call that may run again.
func TestIdempotentCallIsAnsweredByTheOtherNode(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		hurt  func(*node)
		limit time.Duration
	}{
		{"killed", func(n *node) { n.kill() }, hostGone},
		{"frozen", func(n *node) { n.freeze() }, hostFrozen},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := startSystem(t)
			nodes := s.startNodes([]string{"n1", "demo"}, []string{"n2", "demo"})
			byID := map[any]*node{"n1": nodes[0], "n2": nodes[1]}
			other := map[any]*node{"n1": nodes[1], "n2": nodes[0]}
			const sleep = 2 * time.Second
			c := s.begin("demo.sleep", fmt.Sprintf(`{"ms":%d}`, sleep.Milliseconds()))
			owner := s.running("demo.sleep")["demo.sleep"]["node"]
			start := time.Now()
			tt.hurt(byID[owner])
			a := c.wait(tt.limit + sleep + slack)
			t.Logf("answered %v after the owner was %s", time.Since(start), tt.name)
			if a.status != http.StatusOK || a.doc["slept_ms"] != 2000.0 {
				t.Errorf("answer %v", a)
			}
			if got, want := a.header.Get("Apbus-Node"), other[owner].id+"."+other[owner].boot; got != want {
				t.Errorf("answered by %s, want %s", got, want)
			}
		})
	}
}

// TestCrowdOfCallsSurvivesAKill kills one of two nodes in the middle of many
// calls: those that may run again are all answered, those that must not run
// twice have each had at most one effect.
func TestCrowdOfCallsSurvivesAKill(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	nodes := s.startNodes([]string{"n1", "demo"}, []string{"n2", "demo"})
	const calls = 40
	var sleeps, effects []*calling
	for i := range calls {
		sleeps = append(sleeps, s.begin("demo.sleep", `{"ms":1500}`))
		effects = append(effects, s.begin("demo.effect", fmt.Sprintf(`{"key":"k%d","ms":1500}`, i)))
	}
	eventually(t, startLimit, "all calls run, some on each node", func() bool {
		on := map[any]int{}
		for _, c := range s.calls() {
			on[c["node"]]++
		}
		return on["n1"]+on["n2"] == 2*calls && on["n1"] > 0 && on["n2"] > 0
	})
	nodes[1].kill()
	for i, c := range sleeps {
		if a := c.wait(hostGone + 1500*time.Millisecond + 2*slack); a.status != http.StatusOK {
			t.Errorf("sleep %d: %v", i, a)
		}
	}
	answered, lost := 0, 0
	for i, c := range effects {
		switch a := c.wait(hostGone + slack); {
		case a.status == http.StatusOK:
			answered++
		case a.code() == "BUS_NODE_LOST":
			lost++
		default:
			t.Errorf("effect %d: %v", i, a)
		}
	}
	if answered == 0 || lost == 0 {
		t.Errorf("%d effects answered and %d lost; both must occur", answered, lost)
	}
	seen := map[string]int{}
	for _, l := range s.effectLines() {
		key, _, _ := strings.Cut(l, " ")
		if seen[key]++; seen[key] > 1 {
			t.Errorf("%s had its effect twice", key)
		}
	}
	s.waitIdle(cancelLimit, nodes[0])
}

// TestRestartedNodeIsNotItsFormerLife kills a node in the middle of a call and
// starts one of the same ID at once.
func TestRestartedNodeIsNotItsFormerLife(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	first := s.startNode("n1", "demo")
	c := s.begin("demo.effect", `{"key":"k","ms":`+longSleep+`}`)
	s.running("demo.effect")
	start := time.Now()
	first.kill()
	second := s.startNode("n1", "demo")
	if second.boot == first.boot {
		t.Fatalf("both lives are called %s", first.boot)
	}
	if a := c.wait(hostGone + slack); a.code() != "BUS_NODE_LOST" || a.details()["boot"] != first.boot {
		t.Errorf("answer %v, want BUS_NODE_LOST of %s", a, first.boot)
	}
	t.Logf("BUS_NODE_LOST came within %v although n1 was back", time.Since(start))
	if d := cmp.Diff([]string{"k 1 n1"}, s.effectLines()); d != "" {
		t.Error(d)
	}
	a := s.call("demo.whoami", "")
	if a.status != http.StatusOK || a.header.Get("Apbus-Node") != "n1."+second.boot {
		t.Errorf("a new call: %v, %s", a, a.header.Get("Apbus-Node"))
	}
	// What is addressed to the former life reaches nobody.
	if m, err := s.request(first.direct("call", "demo.whoami"), nil, []byte("{}")); err == nil {
		t.Errorf("the former life answers %s", m.Data)
	}
	s.waitIdle(cancelLimit, second)
}
