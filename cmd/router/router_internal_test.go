package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/module"
)

// patience bounds what must happen soon; it only matters when something is broken.
const patience = 20 * time.Second

// router is one run of the program in this process.
type router struct {
	http, nats string
	log        *safeBuffer
	stop       context.CancelCauseFunc
	ended      chan error
}

// safeBuffer is a log that several goroutines write.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// free are the arguments of a router that disturbs nobody.
func free(t *testing.T, args ...string) []string {
	t.Helper()
	return append([]string{"--listen=127.0.0.1:0", "--embed-listen=127.0.0.1:0", "--data=" + filepath.Join(t.TempDir(), "data"), "--durability=process-safe"}, args...)
}

func spec(stdout, stderr io.Writer, args []string) settings.Spec {
	return settings.Spec{Name: "apbus-router", Version: "1.2.3", Args: args, Stdout: stdout, Stderr: stderr}
}

var readyLine = regexp.MustCompile(`^apbus-router: http=(http://\S+) nats=(nats://\S+)\n$`)

// startRouter runs a router and waits for its ready line.
func startRouter(t *testing.T, args ...string) *router {
	t.Helper()
	ctx, stop := context.WithCancelCause(context.Background())
	r, w := io.Pipe()
	s := &router{log: &safeBuffer{}, stop: stop, ended: make(chan error, 1)}
	go func() {
		err := run(ctx, spec(w, s.log, args))
		_ = w.CloseWithError(fmt.Errorf("the router ended: %w", errors.Join(err, io.EOF)))
		s.ended <- err
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	m := readyLine.FindStringSubmatch(line)
	if m == nil {
		stop(errors.New("test failed"))
		t.Fatalf("ready line %q, %v\n%s", line, err, s.log)
	}
	s.http, s.nats = m[1], m[2]
	t.Cleanup(func() {
		stop(errors.New("test is over"))
		if err := s.wait(t); err != nil {
			t.Errorf("the router ended with %v", err)
		}
	})
	return s
}

// wait returns what run returned, and leaves it for the cleanup.
func (s *router) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-s.ended:
		s.ended <- err
		return err
	case <-time.After(patience):
		t.Fatalf("the router did not stop\n%s", s.log)
		return nil
	}
}

// runToEnd runs a router that is expected to end by itself.
func runToEnd(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	ctx, stop := context.WithTimeoutCause(t.Context(), patience, errors.New("the router did not end by itself"))
	defer stop()
	var out safeBuffer
	err = run(ctx, spec(&out, io.Discard, args))
	if ctx.Err() != nil {
		t.Fatalf("%v: %v", args, context.Cause(ctx))
	}
	return out.String(), err
}

type response struct {
	status int
	header http.Header
	body   string
}

func (s *router) send(ctx context.Context, method, path, body string, headers ...string) (response, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.http+path, strings.NewReader(body))
	if err != nil {
		return response{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return response{}, err
	}
	defer res.Body.Close()
	content, err := io.ReadAll(res.Body)
	return response{res.StatusCode, res.Header, string(content)}, err
}

func (s *router) request(t *testing.T, method, path, body string, headers ...string) response {
	t.Helper()
	res, err := s.send(t.Context(), method, path, body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// host runs a node with the modules against a router, and waits until the
// router's catalogue shows the last of them.
func (s *router) host(t *testing.T, id string, mods ...module.Module) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	reg := registry.New(registry.Options{Logger: log})
	for _, m := range mods {
		if err := reg.Register(m); err != nil {
			t.Fatal(err)
		}
	}
	x, err := executor.New(reg, executor.Config{}, executor.WithLogger(log))
	if err != nil {
		t.Fatal(err)
	}
	conns, err := bus.Connect(t.Context(), bus.Options{Servers: []string{s.nats}, Name: id, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conns.Close)
	node, err := bus.NewNode(conns, x, bus.NodeOptions{ID: id, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Errorf("close node %s: %v", id, err)
		}
	})
	s.eventually(t, "the module shows", func() bool {
		return s.request(t, "GET", "/v1/modules/"+mods[len(mods)-1].Descriptor().ID, "").status == 200
	})
}

// eventually asks again until it is so.
func (s *router) eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	deadline := time.After(patience)
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for !so() {
		select {
		case <-deadline:
			t.Fatalf("not in time: %s\n%s", what, s.log)
		case <-again.C:
		}
	}
}

type addIn struct {
	A int64 `json:"a"`
	B int64 `json:"b"`
}

type addOut struct {
	Sum int64 `json:"sum"`
}

func adder() module.Module {
	return module.New("math.add", "Add two numbers", func(_ context.Context, in addIn) (addOut, error) {
		return addOut{in.A + in.B}, nil
	}, module.WithAnnotations(module.Annotations{Readonly: true, Idempotent: true}))
}

// waiter is a module that waits for release or for its end, which it tells.
type waiter struct {
	started, release chan struct{}
	ended            chan error
}

func newWaiter() *waiter {
	return &waiter{started: make(chan struct{}, 10), release: make(chan struct{}), ended: make(chan error, 10)}
}

func (w *waiter) module() module.Module {
	return module.New("test.wait", "Wait", func(ctx context.Context, _ struct{}) (struct{}, error) {
		w.started <- struct{}{}
		select {
		case <-ctx.Done():
			w.ended <- context.Cause(ctx)
			return struct{}{}, context.Cause(ctx)
		case <-w.release:
			w.ended <- nil
			return struct{}{}, nil
		}
	})
}

func soon[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("not in time: %s", what)
		panic("not reached")
	}
}
