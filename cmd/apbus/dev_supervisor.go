package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// supervisor owns child processes: it forwards what they write, notices when
// one ends by itself, and stops them, last started first.
type supervisor struct {
	// ended is told of the first child that ends before stopAll and is missed.
	ended context.CancelCauseFunc

	out      io.Writer
	mu       sync.Mutex // guards out and what is below
	stopping bool
	settled  bool // everything runs; from now on the loss of an optional child is borne
	children []*child
}

type child struct {
	name string
	// optional means that the rest goes on without it: when it ends without a
	// failure, and once everything ran, however it ends.
	optional bool
	cmd      *exec.Cmd
	done     chan struct{} // closed when the process has ended and its output was read
}

func newSupervisor(out io.Writer, ended context.CancelCauseFunc) *supervisor {
	return &supervisor{out: out, ended: ended}
}

// start starts a program and waits until it prints a line that begins with
// ready, which it returns.
func (s *supervisor) start(ctx context.Context, c *child, path string, args []string, ready string) (string, error) {
	name := c.name
	// The child outlives ctx: stopAll ends it, in order.
	cmd := exec.Command(path, args...) //nolint:noctx // see above
	cmd.SysProcAttr = childAttributes()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", fmt.Errorf("start %s: %w", name, err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return "", fmt.Errorf("start %s: %w", name, err)
	}
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("start %s: %w", name, err)
	}
	c.cmd, c.done = cmd, make(chan struct{})
	s.mu.Lock()
	s.children = append(s.children, c)
	s.mu.Unlock()

	readyLine := make(chan string, 1)
	var readers sync.WaitGroup
	readers.Go(func() {
		s.forward(name, stdout, func(line string) {
			if strings.HasPrefix(line, ready) {
				select {
				case readyLine <- line:
				default:
				}
			}
		})
	})
	readers.Go(func() { s.forward(name, stderr, func(string) {}) })
	go func() { // ends with the process; stopAll waits for it
		defer close(c.done)
		readers.Wait()
		s.reap(c, cmd.Wait())
	}()

	limit := time.NewTimer(readyLimit)
	defer limit.Stop()
	select {
	case line := <-readyLine:
		return line, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case <-c.done:
		return "", fmt.Errorf("%s ended before it was ready; its last lines are above", name)
	case <-limit.C:
		return "", fmt.Errorf("%s is not ready after %v", name, readyLimit)
	}
}

// forward copies lines, each behind the name of its process.
func (s *supervisor) forward(name string, r io.Reader, see func(string)) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			see(line)
			s.say(name, line)
		}
		if err != nil {
			return
		}
	}
}

func (s *supervisor) say(name, line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%-6s | %s\n", name, line) // nobody is left to tell when this fails
}

func (s *supervisor) reap(c *child, err error) {
	s.mu.Lock()
	expected, settled := s.stopping, s.settled
	s.mu.Unlock()
	if expected {
		return
	}
	if err == nil && c.optional {
		s.say(c.name, "has stopped, as it was told; the rest goes on")
		return
	}
	how := "exit status 0"
	if err != nil {
		how = err.Error()
	}
	if c.optional && settled {
		s.say(c.name, fmt.Sprintf("ended by itself (%s); the rest goes on. Start it again with: %s", how, strings.Join(c.cmd.Args, " ")))
		return
	}
	s.ended(fmt.Errorf("%s ended by itself (%s); its last lines are above", c.name, how))
}

// settle says that everything runs. A node that is killed afterwards is something
// to look at, with the others still there, and no reason to stop them.
func (s *supervisor) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settled = true
}

// stopAll stops the children, the last started first, since the nodes need the
// router's server to say goodbye. Nodes stop together. One that takes longer
// than limit is killed, which is an error.
func (s *supervisor) stopAll(limit time.Duration) error {
	s.mu.Lock()
	s.stopping = true
	children := s.children
	s.mu.Unlock()
	if len(children) == 0 {
		return nil
	}
	var failed []error
	for _, batch := range [][]*child{children[1:], children[:1]} {
		for _, c := range batch {
			_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
		}
		deadline := time.NewTimer(limit)
		for _, c := range batch {
			select {
			case <-c.done:
				continue
			case <-deadline.C:
				deadline.Reset(0)
			}
			_ = c.cmd.Process.Kill() // as above
			<-c.done
			failed = append(failed, fmt.Errorf("%s did not stop within %v and was killed", c.name, limit))
		}
		deadline.Stop()
	}
	return errors.Join(failed...)
}
