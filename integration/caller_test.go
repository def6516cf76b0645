package integration_test

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// callerGone is how soon the work of a killed caller has ended: two probes,
	// half a second apart, that nobody could answer.
	callerGone = 1500 * time.Millisecond
	// callerSilent is the same for a caller that stands still.
	callerSilent = 4 * time.Second
	// hostGone and hostFrozen are how soon a caller hears of a killed and of a
	// frozen host.
	hostGone   = 1500 * time.Millisecond
	hostFrozen = 3 * time.Second
)

// TestKilledCallersWorkEnds kills the process that waits, without a chance to say
// goodbye. Its work on two nodes would take a minute.
func TestKilledCallersWorkEnds(t *testing.T) {
	t.Parallel()
	s, n1, n2 := startPair(t)
	p := s.startCLI("--nats", s.nats, "call", "near.chain", "--input", sleepTree)
	s.running("near.chain", "far.chain", "near.sleep")
	start := time.Now()
	p.kill()
	s.waitIdle(callerGone+slack, n1)
	s.waitIdle(callerGone+slack, n2)
	t.Logf("the work of a killed caller had ended after %v, want %v on an idle machine", time.Since(start), callerGone)
	if !strings.Contains(n1.log(), "caller_gone") {
		t.Errorf("n1 does not say why it stopped:\n%s", n1.log())
	}
}

// TestKilledRoutersWorkEnds does the same to a second router, which waits on
// behalf of callers over HTTP.
func TestKilledRoutersWorkEnds(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	n := s.startNode("n1", "demo")
	second := newSystem(t)
	second.startRouter("--nats", s.nats)
	second.waitKnown(n)
	second.detach("demo.sleep", `{"ms":`+longSleep+`}`)
	s.running("demo.sleep") // one router sees the calls of the other
	start := time.Now()
	second.router.kill()
	s.waitIdle(callerGone+slack, n)
	t.Logf("the work of a killed router had ended after %v, want %v on an idle machine", time.Since(start), callerGone)
}

// TestFrozenCallersWorkEnds stops the caller for good without closing its
// connection.
func TestFrozenCallersWorkEnds(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	n := s.startNode("n1", "demo")
	p := s.startCLI("--nats", s.nats, "call", "demo.sleep", "ms="+longSleep)
	s.running("demo.sleep")
	start := time.Now()
	p.freeze()
	s.waitIdle(callerSilent+slack, n)
	took := time.Since(start)
	t.Logf("the work of a frozen caller had ended after %v, want %v on an idle machine", took, callerSilent)
	if took < 2*time.Second {
		t.Errorf("given up after %v: a caller may stall for two seconds", took)
	}
}

// TestLivingCallersAreLeftAlone makes calls that take longer than every limit
// after which a silent caller or host counts as gone, by every kind of caller.
func TestLivingCallersAreLeftAlone(t *testing.T) {
	t.Parallel()
	s, n1, n2 := startPair(t)
	const inputs = `{"path":["far.chain","near.sleep"],"input":{"ms":6000}}`
	overHTTP := s.begin("near.chain", inputs)
	detached := s.detach("near.chain", inputs)
	onBus := s.startCLI("--nats", s.nats, "call", "near.chain", "--input", inputs)
	bare := make(chan string, 1)
	go func() {
		m, err := s.peer().Request("apbus.v1.call.default._.near.chain", []byte(inputs), 10*time.Second+slack)
		if err != nil {
			bare <- err.Error()
			return
		}
		bare <- string(m.Data)
	}()
	const want = `"slept_ms":6000`
	if a := overHTTP.wait(6*time.Second + slack); a.status != http.StatusOK || !strings.Contains(a.raw, want) {
		t.Errorf("over HTTP: %v", a)
	}
	if code := onBus.exit(time.Second + slack); code != 0 || !strings.Contains(onBus.stdout(), want) {
		t.Errorf("on the bus: exit code %d: %s", code, onBus.log())
	}
	if e := s.outcome(detached, time.Second+slack); e != nil {
		t.Errorf("detached: %v", e)
	}
	if got := <-bare; !strings.Contains(got, want) {
		t.Errorf("bare request: %s", got)
	}
	s.waitIdle(cancelLimit, n1)
	s.waitIdle(cancelLimit, n2)
}

// TestStalledCallerLosesNothing stops the caller, and then the router with the
// server in it, for less than the limit while their call runs. The effect shows
// that the call was neither cancelled nor sent again.
func TestStalledCallerLosesNothing(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	s.startNode("n1", "demo")
	stall := func(p *process) {
		t.Helper()
		p.freeze()
		time.Sleep(2 * time.Second) //archtest:real-time the stall of another process is what is tested
		p.thaw()
	}
	count := func(key string) string {
		t.Helper()
		var lines []string
		for _, l := range s.effectLines() {
			if strings.HasPrefix(l, key+" ") {
				lines = append(lines, l)
			}
		}
		return strings.Join(lines, "|")
	}
	t.Run("caller", func(t *testing.T) {
		s := s.in(t)
		p := s.startCLI("--nats", s.nats, "call", "demo.effect", "key=caller", "ms=4000")
		s.running("demo.effect")
		stall(p)
		if code := p.exit(4*time.Second + slack); code != 0 || !strings.Contains(p.stdout(), `{"count":1}`) {
			t.Errorf("exit code %d: %s", code, p.log())
		}
		if got := count("caller"); got != "caller 1 n1" {
			t.Errorf("effects %q, want one of attempt 1", got)
		}
	})
	t.Run("router", func(t *testing.T) {
		s := s.in(t)
		c := s.begin("demo.effect", `{"key":"router","ms":4000}`)
		s.running("demo.effect")
		stall(s.router)
		if a := c.wait(4*time.Second + slack); a.status != 200 || a.doc["count"] != 1.0 {
			t.Errorf("answer %v", a)
		}
		if got := count("router"); got != "router 1 n1" {
			t.Errorf("effects %q, want one of attempt 1", got)
		}
	})
}

// TestStoppedProcessesEndWell stops everything with SIGTERM while a call runs:
// the call is finished, and every exit code is 0.
func TestStoppedProcessesEndWell(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	n := s.startNode("n1", "demo")
	c := s.begin("demo.sleep", `{"ms":1500}`)
	s.running("demo.sleep")
	n.signal(syscall.SIGTERM)
	if a := c.wait(1500*time.Millisecond + slack); a.status != 200 || a.doc["slept_ms"] != 1500.0 {
		t.Errorf("the accepted call: %v", a)
	}
	if code := n.exit(5*time.Second + slack); code != 0 {
		t.Errorf("the node's exit code is %d", code)
	}
	s.router.signal(syscall.SIGTERM)
	if code := s.router.exit(10*time.Second + slack); code != 0 {
		t.Errorf("the router's exit code is %d", code)
	}
	// The data directory is free again.
	again := newSystem(t)
	again.startRouter("--embed-listen", "127.0.0.1:0", "--data", filepath.Join(s.dir, "nats"))
}

// TestDataDirectoryIsLocked starts a second router on the first one's data.
func TestDataDirectoryIsLocked(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	p := startProcess(t, "second router", program(t, "apbus-router"), nil,
		"--listen", "127.0.0.1:0", "--embed-listen", "127.0.0.1:0", "--data", filepath.Join(s.dir, "nats"))
	if code := p.exit(startLimit); code != 1 || !strings.Contains(p.log(), "in use") {
		t.Errorf("exit code %d: %s", code, p.log())
	}
	busy := strings.TrimPrefix(s.api, "http://")
	p = startProcess(t, "third router", program(t, "apbus-router"), nil,
		"--listen", busy, "--embed-listen", "127.0.0.1:0", "--data", t.TempDir())
	if code := p.exit(startLimit); code != 1 || !strings.Contains(p.log(), busy) || !strings.Contains(p.log(), "in use") {
		t.Errorf("exit code %d: %s", code, p.log())
	}
	if raw, err := json.Marshal(s.get("/readyz").doc); err != nil || !strings.Contains(string(raw), "ready") {
		t.Errorf("the first router: %s, %v", raw, err)
	}
}
