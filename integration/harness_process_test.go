package integration_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// startLimit is how long a program may take to become ready on a loaded machine.
	startLimit = 30 * time.Second
	// slack is what the tests of time limits add to the protocol's own limit. What
	// they wait for would take a minute or for ever without the mechanism.
	slack = 3 * time.Second
	// longSleep, in milliseconds, is the work that nobody waits for to end by itself.
	longSleep = "60000"
)

// process is one program under test, in a process group of its own.
type process struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and all that it wrote was read

	mu      sync.Mutex
	lines   []string // of standard output
	written bytes.Buffer
	changed chan struct{} // closed and replaced with every line
}

// startProcess starts a program and ends it with the test. env is added to an
// environment without settings of ours.
func startProcess(t testing.TB, name, path string, env []string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.Env = append(cleanEnvironment(), env...)
	return startCommand(t, name, cmd)
}

// startCommand starts what cmd says and ends it with the test.
func startCommand(t testing.TB, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: cmd, done: make(chan struct{}), changed: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	var readers sync.WaitGroup
	readers.Go(func() { p.read(stdout, true) })
	readers.Go(func() { p.read(stderr, false) })
	go func() {
		readers.Wait()
		_ = p.cmd.Wait() // how it ended is in ProcessState
		close(p.done)
	}()
	t.Cleanup(p.cleanUp)
	return p
}

// cleanEnvironment is the environment without APBUS_ settings, which would
// change what the programs do.
func cleanEnvironment() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "APBUS_") && !strings.HasPrefix(kv, "NATS_") {
			env = append(env, kv)
		}
	}
	return env
}

func (p *process) read(r io.Reader, isOut bool) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			p.mu.Lock()
			p.written.WriteString(line)
			if isOut {
				p.lines = append(p.lines, strings.TrimRight(line, "\r\n"))
			}
			close(p.changed)
			p.changed = make(chan struct{})
			p.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

// cleanUp ends the process with its children and, when the test failed, shows
// what it wrote.
func (p *process) cleanUp() {
	p.kill()
	if !p.ended(10 * time.Second) {
		p.t.Errorf("%s survives SIGKILL", p.name)
	}
	log := p.log()
	if strings.Contains(log, "DATA RACE") {
		p.t.Errorf("%s has a data race", p.name)
	}
	if strings.Contains(log, "\npanic: ") || strings.Contains(log, "fatal error: ") {
		p.t.Errorf("%s panicked", p.name)
	}
	if p.t.Failed() {
		const most = 16_000
		if len(log) > most {
			log = "…" + log[len(log)-most:]
		}
		p.t.Logf("==== what %s wrote\n%s", p.name, log)
	}
}

// log is everything that the process wrote so far.
func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.written.String()
}

// stdout is what the process wrote to standard output so far.
func (p *process) stdout() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// line waits for a line on standard output that begins with prefix.
func (p *process) line(prefix string) string {
	p.t.Helper()
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	seen := 0
	for {
		p.mu.Lock()
		fresh, changed := p.lines[seen:], p.changed
		seen = len(p.lines)
		p.mu.Unlock()
		for _, l := range fresh {
			if strings.HasPrefix(l, prefix) {
				return l
			}
		}
		select {
		case <-changed:
		case <-p.done:
			if strings.Contains(p.stdout(), prefix) {
				continue // it came with the end
			}
			p.t.Fatalf("%s ended without a line %q:\n%s", p.name, prefix, p.log())
		case <-limit.C:
			p.t.Fatalf("%s wrote no line %q within %v:\n%s", p.name, prefix, startLimit, p.log())
		}
	}
}

// facts waits for the ready line and returns its key=value words.
func (p *process) facts(prefix string) map[string]string {
	p.t.Helper()
	facts := map[string]string{}
	for word := range strings.FieldsSeq(p.line(prefix)) {
		if key, value, ok := strings.Cut(word, "="); ok {
			facts[key] = value
		}
	}
	return facts
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := syscall.Kill(p.cmd.Process.Pid, sig); err != nil {
		p.t.Fatalf("send %v to %s: %v", sig, p.name, err)
	}
}

// freeze stops the process, and returns when none of its threads runs any more: the
// signal is sent before they do.
func (p *process) freeze() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	eventually(p.t, startLimit, p.name+" stands still", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		if err != nil {
			p.t.Fatal(err)
		}
		return !slices.ContainsFunc(threads, func(file string) bool {
			stat, err := os.ReadFile(file)
			if err != nil {
				return false // it has ended
			}
			// pid (name) state …, and the name may hold anything
			_, state, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')'):]), " ")
			return !strings.HasPrefix(state, "T")
		})
	})
}

func (p *process) thaw() { p.t.Helper(); p.signal(syscall.SIGCONT) }

// kill ends the whole process group without asking.
func (p *process) kill() {
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		p.t.Errorf("kill %s: %v", p.name, err)
	}
}

// ended reports whether the process ends within limit.
func (p *process) ended(limit time.Duration) bool {
	select {
	case <-p.done:
		return true
	case <-time.After(limit):
	}
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// exit waits for the end and returns the exit code, -1 for a signal.
func (p *process) exit(limit time.Duration) int {
	p.t.Helper()
	if !p.ended(limit) {
		p.t.Fatalf("%s still runs after %v:\n%s", p.name, limit, p.log())
	}
	return p.cmd.ProcessState.ExitCode()
}

// eventually asks again and again, at first quickly, until ok holds. It returns
// how long that took, and fails the test when limit passes first.
func eventually(t testing.TB, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	pause := 5 * time.Millisecond
	for !ok() {
		if time.Since(start) > limit {
			t.Fatalf("not within %v: %s", limit, what)
		}
		<-time.After(pause)
		pause = min(pause*3/2, 100*time.Millisecond)
	}
	return time.Since(start)
}
