package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// server is a process that this program started.
type server struct {
	cmd    *exec.Cmd
	output bytes.Buffer
	ended  chan struct{}
}

// startServer starts a program and waits until ready says so.
func startServer(ctx context.Context, ready func() error, cred *syscall.Credential, name string, args ...string) (*server, error) {
	s := &server{ended: make(chan struct{})}
	s.cmd = exec.Command(name, args...) //nolint:gosec // the programs of this benchmark
	s.cmd.Stdout, s.cmd.Stderr = &s.output, &s.output
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: cred}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(name), err)
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.ended)
	}()
	deadline := time.After(30 * time.Second)
	for {
		err := ready()
		if err == nil {
			return s, nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-s.ended:
			return nil, fmt.Errorf("%s ended: %s", filepath.Base(name), s.output.String())
		case <-deadline:
			s.stop()
			return nil, fmt.Errorf("%s is not ready: %w", filepath.Base(name), err)
		case <-ctx.Done():
			s.stop()
			return nil, context.Cause(ctx)
		}
	}
}

func (s *server) stop() {
	if s == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGINT)
	select {
	case <-s.ended:
	case <-time.After(10 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
}

// kill ends it as a crash does.
func (s *server) kill() error {
	err := s.cmd.Process.Kill()
	<-s.ended
	return err
}

// freePort finds a port that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func dial(address string) func() error {
	return func() error {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// answers reports whether a GET is answered with 200.
func answers(ctx context.Context, url string) func() error {
	return func() error {
		ctx, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", url, res.Status)
		}
		return nil
	}
}

// find looks for a program on the path and in the folders where Debian puts it.
func find(name string, patterns ...string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	for _, pattern := range patterns {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[len(found)-1], nil
		}
	}
	return "", fmt.Errorf("%s is not installed", name)
}

// unprivileged is whom PostgreSQL runs as, which refuses root. It is nil when this
// program is not root itself.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("postgres does not run as root, and there is no user postgres or nobody")
}
