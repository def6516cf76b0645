package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/internal/settings"
)

func TestTokens(t *testing.T) {
	dir := t.TempDir()
	first, err := writeTokens(dir)
	if err != nil {
		t.Fatal(err)
	}
	second, err := writeTokens(dir)
	if err != nil {
		t.Fatal(err)
	}
	if first.caller != second.caller || first.reviewer != second.reviewer {
		t.Error("starting again changes the tokens")
	}
	if first.caller == first.reviewer {
		t.Error("both tokens are the same")
	}
	for _, path := range []string{first.file, first.callerFile, first.reviewerFile} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", path, info.Mode())
		}
	}
	raw, err := os.ReadFile(first.file)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(raw, []byte(first.caller)) {
		t.Error("the tokens file holds a token")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.*.*")); len(left) > 0 {
		t.Errorf("temporary files are left: %q", left)
	}

	tokens, err := gateway.OpenTokens(first.file, nil)
	if err != nil {
		t.Fatal(err)
	}
	for token, wantReview := range map[string]bool{first.caller: false, first.reviewer: true} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		p, err := tokens.Authenticate(r)
		if err != nil {
			t.Fatal(err)
		}
		if !p.May(gateway.ScopeCall) || !p.May(gateway.ScopeCancel) || !p.May(gateway.ScopeOperate) ||
			p.May(gateway.ScopeReview) != wantReview || p.May(gateway.ScopeApply) != wantReview {
			t.Errorf("%s: scopes %v", p.Identity.ID(), p)
		}
	}
}

func newTestSupervisor(t *testing.T) (*supervisor, *safeBuffer, context.Context) {
	t.Helper()
	ctx, stop := context.WithCancelCause(t.Context())
	out := &safeBuffer{}
	sup := newSupervisor(out, stop)
	t.Cleanup(func() {
		if err := sup.stopAll(5 * time.Second); err != nil {
			t.Error(err)
		}
	})
	return sup, out, ctx
}

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

func sh(script string) []string { return []string{"-c", script} }

func TestSupervisor(t *testing.T) {
	t.Run("forwards and stops in order", func(t *testing.T) {
		sup, out, ctx := newTestSupervisor(t)
		order := filepath.Join(t.TempDir(), "order")
		for _, name := range []string{"first", "second"} {
			line, err := sup.start(ctx, &child{name: name}, "/bin/sh", sh(fmt.Sprintf(
				`trap 'echo %s >> %s; exit 0' TERM; echo "noise" >&2; echo "ready: x=%s"; while :; do sleep 0.05; done`, name, order, name)), "ready:")
			if err != nil {
				t.Fatal(err)
			}
			if got := factsOf(line)["x"]; got != name {
				t.Errorf("facts = %q", got)
			}
		}
		if err := sup.stopAll(5 * time.Second); err != nil {
			t.Fatal(err)
		}
		if raw, _ := os.ReadFile(order); string(raw) != "second\nfirst\n" {
			t.Errorf("stopped in the order %q", raw)
		}
		if ctx.Err() != nil {
			t.Errorf("a stop counts as a failure: %v", context.Cause(ctx))
		}
		for _, want := range []string{"first  | ready: x=first\n", "second | noise\n"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("output lacks %q:\n%s", want, out)
			}
		}
	})
	t.Run("a death ends the rest", func(t *testing.T) {
		sup, _, ctx := newTestSupervisor(t)
		if _, err := sup.start(ctx, &child{name: "n1", optional: true}, "/bin/sh", sh("echo ready; exit 3"), "ready"); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		if got := context.Cause(ctx).Error(); !strings.Contains(got, "n1 ended by itself (exit status 3)") {
			t.Errorf("cause = %q", got)
		}
	})
	t.Run("a death when everything ran is borne", func(t *testing.T) {
		sup, out, ctx := newTestSupervisor(t)
		router, node := &child{name: "router"}, &child{name: "n1", optional: true}
		for _, c := range []*child{router, node} {
			if _, err := sup.start(ctx, c, "/bin/sh", sh("echo ready; exec sleep 60"), "ready"); err != nil {
				t.Fatal(err)
			}
		}
		sup.settle()
		_ = node.cmd.Process.Kill()
		<-node.done
		if ctx.Err() != nil || !strings.Contains(out.String(), "the rest goes on. Start it again with: /bin/sh -c") {
			t.Errorf("cause %v, output %q", context.Cause(ctx), out)
		}
		_ = router.cmd.Process.Kill()
		<-ctx.Done()
		if got := context.Cause(ctx).Error(); !strings.Contains(got, "router ended by itself") {
			t.Errorf("cause = %q", got)
		}
	})
	t.Run("a drained node does not", func(t *testing.T) {
		sup, out, ctx := newTestSupervisor(t)
		c := &child{name: "n1", optional: true}
		if _, err := sup.start(ctx, c, "/bin/sh", sh("echo ready"), "ready"); err != nil {
			t.Fatal(err)
		}
		<-c.done
		if ctx.Err() != nil || !strings.Contains(out.String(), "has stopped, as it was told") {
			t.Errorf("cause %v, output %q", context.Cause(ctx), out)
		}
	})
	t.Run("dead before it is ready", func(t *testing.T) {
		sup, _, ctx := newTestSupervisor(t)
		if _, err := sup.start(ctx, &child{name: "n1"}, "/bin/sh", sh("exit 3"), "ready"); err == nil {
			t.Error("no error")
		}
	})
	t.Run("no such program", func(t *testing.T) {
		sup, _, ctx := newTestSupervisor(t)
		if _, err := sup.start(ctx, &child{name: "n1"}, "/no/such/program", nil, "ready"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("err = %v", err)
		}
	})
	t.Run("one that does not stop is killed", func(t *testing.T) {
		ctx, stop := context.WithCancelCause(t.Context())
		defer stop(nil)
		sup := newSupervisor(&safeBuffer{}, stop)
		if _, err := sup.start(ctx, &child{name: "n1"}, "/bin/sh", sh("trap '' TERM; echo ready; while :; do sleep 0.05; done"), "ready"); err != nil {
			t.Fatal(err)
		}
		if err := sup.stopAll(200 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "was killed") {
			t.Errorf("err = %v", err)
		}
	})
}

// buildPrograms compiles the programs that dev starts.
func buildPrograms(t *testing.T) (bin string) {
	t.Helper()
	bin = t.TempDir()
	// At once, and without what debuggers want: linking is most of it.
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", bin+string(filepath.Separator), "../router", "../node")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the programs: %v\n%s", err, out)
	}
	for _, name := range []string{"router", "node"} {
		if err := os.Rename(filepath.Join(bin, name), filepath.Join(bin, "apbus-"+name)); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// TestDev runs the installation of "make run" from its start to Ctrl-C.
func TestDev(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs programs")
	}
	bin := buildPrograms(t)
	dev := func(t *testing.T, data string, args ...string) (out *safeBuffer, logs *safeBuffer, stop context.CancelCauseFunc, ended chan error) {
		t.Helper()
		ctx, stop := context.WithCancelCause(context.Background())
		out, logs, ended = &safeBuffer{}, &safeBuffer{}, make(chan error, 1)
		args = append([]string{"dev", "--bin", bin, "--data", data, "--nats-listen", "127.0.0.1:0"}, args...)
		go func() {
			ended <- run(ctx, settings.Spec{Name: "apbus", Version: "1.2.3", Args: args, Stdout: out, Stderr: logs}, strings.NewReader(""))
		}()
		return out, logs, stop, ended
	}
	wait := func(t *testing.T, out, logs *safeBuffer, ended chan error) string {
		t.Helper()
		deadline := time.Now().Add(60 * time.Second)
		for !strings.Contains(out.String(), "Ctrl-C stops everything") {
			select {
			case err := <-ended:
				t.Fatalf("ended: %v\n%s", err, logs)
			case <-time.After(10 * time.Millisecond):
			}
			if time.Now().After(deadline) {
				t.Fatalf("not ready\n%s", logs)
			}
		}
		return regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(out.String())
	}

	t.Run("open", func(t *testing.T) {
		data := t.TempDir()
		out, logs, stop, ended := dev(t, data, "--listen", "127.0.0.1:0")
		api := wait(t, out, logs, ended)
		for _, args := range [][]string{
			{"call", "math.add", "a=1", "b=2"},
			{"call", "orders.place", "customer=ana", "card=4111111111111111", `items=[{"sku":"tea","qty":2}]`},
		} {
			if got := runCLI(t.Context(), "", map[string]string{"APBUS_ROUTER": api}, args...); got.exit != 0 {
				t.Errorf("%q: exit code %d, %s", args, got.exit, got.stderr)
			}
		}
		stop(errors.New("Ctrl-C"))
		if err := <-ended; err != nil {
			t.Errorf("dev = %v\n%s", err, logs)
		}
		if got := runCLI(t.Context(), "", map[string]string{"APBUS_ROUTER": api}, "modules"); got.exit != 1 {
			t.Error("the router still answers")
		}
	})
	t.Run("with tokens", func(t *testing.T) {
		data := t.TempDir()
		out, logs, stop, ended := dev(t, data, "--listen", "127.0.0.1:0", "--tokens")
		api := wait(t, out, logs, ended)
		if got := runCLI(t.Context(), "", map[string]string{"APBUS_ROUTER": api}, "modules"); got.exit != 1 || !strings.Contains(got.stderr, "BUS_UNAUTHENTICATED") {
			t.Errorf("without a token: exit code %d, %s", got.exit, got.stderr)
		}
		token, err := os.ReadFile(filepath.Join(data, "caller.token"))
		if err != nil {
			t.Fatal(err)
		}
		got := runCLI(t.Context(), "", map[string]string{"APBUS_ROUTER": api, "APBUS_TOKEN": strings.TrimSpace(string(token))}, "call", "far.whoami")
		if got.exit != 0 || !strings.Contains(got.stdout, `"id":"caller"`) {
			t.Errorf("with the token: exit code %d, %s%s", got.exit, got.stdout, got.stderr)
		}
		stop(errors.New("Ctrl-C"))
		if err := <-ended; err != nil {
			t.Errorf("dev = %v\n%s", err, logs)
		}
	})
	t.Run("busy port", func(t *testing.T) {
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = taken.Close() }()
		_, logs, _, ended := dev(t, t.TempDir(), "--listen", taken.Addr().String())
		select {
		case err = <-ended:
		case <-time.After(30 * time.Second):
			t.Fatal("dev hangs")
		}
		if settings.ExitCode(err) != settings.ExitFailed || !strings.Contains(logs.String(), taken.Addr().String()) {
			t.Errorf("dev = %v\n%s", err, logs)
		}
	})
}
