package main

import (
	"bytes"
	"context"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/internal/settings"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s: %s", name, d)
	}
}

// fakeRouter answers requests from a table and remembers them.
type fakeRouter struct {
	*httptest.Server
	answers map[string]fakeAnswer // by "METHOD /path?query"

	mu   sync.Mutex
	seen []fakeRequest
}

type fakeAnswer struct {
	status int
	body   string
	header map[string]string
}

type fakeRequest struct {
	line, body    string
	header        http.Header
	contentLength int64
}

func newFakeRouter(t *testing.T, answers map[string]fakeAnswer) *fakeRouter {
	t.Helper()
	f := &fakeRouter{answers: answers}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.Close)
	return f
}

func (f *fakeRouter) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	line := r.Method + " " + r.URL.RequestURI()
	f.mu.Lock()
	f.seen = append(f.seen, fakeRequest{line, string(body), r.Header, r.ContentLength})
	f.mu.Unlock()
	a, ok := f.answers[line]
	if !ok {
		a = fakeAnswer{status: http.StatusNotFound, body: `{"error":{"code":"GATEWAY_NOT_FOUND","message":"no such path"}}`}
	}
	w.Header().Set("Content-Type", "application/json")
	for k, v := range a.header {
		w.Header().Set(k, v)
	}
	w.WriteHeader(max(a.status, http.StatusOK))
	_, _ = io.WriteString(w, a.body)
}

// requests returns what came, without the headers.
func (f *fakeRouter) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, r := range f.seen {
		out = append(out, strings.TrimSpace(r.line+" "+r.body))
	}
	return out
}

func (f *fakeRouter) last(t *testing.T) fakeRequest {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.seen) == 0 {
		t.Fatal("no request came")
	}
	return f.seen[len(f.seen)-1]
}

// ran is what one command line did.
type ran struct {
	stdout, stderr string
	exit           int
	err            error
}

func runCLI(ctx context.Context, stdin string, env map[string]string, args ...string) ran {
	var out, errs bytes.Buffer
	err := run(ctx, settings.Spec{
		Name: "apbus", Version: "1.2.3", Args: args, Stdout: &out, Stderr: &errs,
		Env: func(k string) (string, bool) { v, ok := env[k]; return v, ok },
	}, strings.NewReader(stdin))
	return ran{out.String(), errs.String(), settings.ExitCode(err), err}
}
