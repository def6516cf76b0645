package backend_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/loop/backend"
	"github.com/apbus/apbus/module"
)

func fake(t *testing.T, mode string, o backend.CommandOptions) (*backend.Command, error) {
	t.Helper()
	o.Env = append(o.Env, fakeMode+"="+mode)
	return backend.NewCommand(t.Context(), os.Args[0]+"  a  *  'b", o)
}

func mustFake(t *testing.T, mode string, o backend.CommandOptions) *backend.Command {
	t.Helper()
	c, err := fake(t, mode, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func wantBackend(t *testing.T, err error) {
	t.Helper()
	if module.CodeOf(err) != module.CodeLoopBackend || err == nil {
		t.Errorf("got %v, want LOOP_BACKEND", err)
	}
}

func TestProbe(t *testing.T) {
	for _, tt := range []struct {
		mode, model, want string // "" for an error
	}{
		{mode: "echo", want: "fake-1"},
		{mode: "echo", model: "mine", want: "mine"},
		{mode: "probe-anonymous", want: "unspecified"},
		{mode: "probe-text"},
		{mode: "probe-exit", model: "mine"}, // the probe runs with a name too
	} {
		c, err := fake(t, tt.mode, backend.CommandOptions{Model: tt.model})
		if tt.want == "" {
			wantBackend(t, err)
			continue
		}
		if err != nil || c.Model() != tt.want {
			t.Errorf("%s: %v, want the model %s", tt.mode, err, tt.want)
		}
	}
	for _, cmd := range []string{"", "  \t", "/does/not/exist"} {
		_, err := backend.NewCommand(t.Context(), cmd, backend.CommandOptions{})
		wantBackend(t, err)
	}
}

func TestCommand(t *testing.T) {
	large := strings.Repeat("x", 4<<20)
	for _, tt := range []struct {
		mode, request, want string
		o                   backend.CommandOptions
	}{
		{mode: "echo", request: "abc", want: `{"bytes":3}`},
		{mode: "echo", request: large, want: `{"bytes":4194304}`, o: backend.CommandOptions{MaxRequest: 8 << 20}},
		{mode: "ignore-input", request: large, want: `{}`, o: backend.CommandOptions{MaxRequest: 8 << 20}},
		{mode: "write-first", request: large, want: strings.Repeat("x", 512<<10), o: backend.CommandOptions{MaxRequest: 8 << 20}},
		{mode: "args", request: "x", want: `["a" "*" "'b"]`},
	} {
		got, err := mustFake(t, tt.mode, tt.o).Complete(t.Context(), tt.request)
		if err != nil || got != tt.want {
			t.Errorf("%s: %.60q, %v", tt.mode, got, err)
		}
	}
}

// Row 32 of the threat table: children that are oversize, hang or fork.
func TestThreat32BadChildren(t *testing.T) {
	for _, tt := range []struct{ mode, want string }{
		{"forever", "response_too_large"},
		{"not-utf8", ""},
		{"exit", ""},
		{"sleep", "timed out"},
		{"fork", ""},
	} {
		t.Run(tt.mode, func(t *testing.T) {
			t.Parallel()
			c := mustFake(t, tt.mode, backend.CommandOptions{Timeout: 60 * time.Second})
			if tt.mode == "sleep" {
				c = mustFake(t, tt.mode, backend.CommandOptions{Timeout: 3 * time.Second})
			}
			begin := time.Now()
			_, err := c.Complete(t.Context(), "x")
			wantBackend(t, err)
			var coded *module.Error
			if tt.want != "" && (!errors.As(err, &coded) || coded.CauseText() != tt.want) {
				t.Errorf("got %v, want the cause %s", err, tt.want)
			}
			if spent := time.Since(begin); spent > 50*time.Second {
				t.Errorf("it took %v", spent)
			}
		})
	}
	c := mustFake(t, "write-first", backend.CommandOptions{MaxResponse: 1000})
	_, err := c.Complete(t.Context(), "x")
	wantBackend(t, err)
	c = mustFake(t, "echo", backend.CommandOptions{MaxRequest: 100})
	_, err = c.Complete(t.Context(), strings.Repeat("x", 101))
	wantBackend(t, err)
}

// Row 32: what a child has started ends with it, whether it ended by itself or was
// stopped.
func TestThreat32NothingIsLeftBehind(t *testing.T) {
	for _, mode := range []string{"fork-hold", "fork-hold-sleep"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			gone := make(chan error, 1)
			go func() {
				conn, err := l.Accept()
				if err == nil {
					if mode == "fork-hold-sleep" {
						stop() // it lives, and will not end by itself
					}
					defer func() { _ = conn.Close() }()
					_ = conn.SetReadDeadline(time.Now().Add(60 * time.Second))
					_, err = conn.Read(make([]byte, 1))
				}
				gone <- err
			}()
			c := mustFake(t, mode, backend.CommandOptions{Env: []string{fakeAddr + "=" + l.Addr().String()}})
			if _, err := c.Complete(ctx, "x"); (err == nil) != (mode == "fork-hold") {
				t.Errorf("got %v", err)
			}
			if err := <-gone; errors.Is(err, os.ErrDeadlineExceeded) || err == nil {
				t.Errorf("the grandchild lives: %v", err)
			}
		})
	}
}

func TestCancelKillsTheCommand(t *testing.T) {
	c := mustFake(t, "sleep", backend.CommandOptions{})
	why := errors.New("shutdown")
	ctx, stop := context.WithCancelCause(t.Context())
	go stop(why)
	if _, err := c.Complete(ctx, "x"); !errors.Is(err, why) {
		t.Errorf("got %v, want the cause", err)
	}
}

func TestEnvironmentIsGivenAndScrubbed(t *testing.T) {
	c := mustFake(t, "env", backend.CommandOptions{Env: []string{"KEY=k", "SECRET=s"}, Scrub: []string{"SECRET"}})
	got, err := c.Complete(t.Context(), "x")
	if err != nil || !strings.Contains(got, "KEY=k") || strings.Contains(got, "SECRET") || strings.Contains(got, "PATH=") {
		t.Errorf("environment %s, %v", got, err)
	}
}
