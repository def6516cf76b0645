package bindings_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/apbus/apbus/bindings"
	"github.com/apbus/apbus/module"
)

// journal is a log that several goroutines write.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

// environment is what bindings may look up.
func environment(name string) (string, bool) {
	v, ok := map[string]string{"PATH": os.Getenv("PATH"), "API_KEY": "geheim", "HIDDEN": "not for commands"}[name]
	return v, ok
}

func write(t testing.TB, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// load makes the modules of one file, by ID, and the log that they write.
func load(t testing.TB, text string) (map[string]*bindings.Module, *journal) {
	t.Helper()
	j := &journal{}
	mods, err := bindings.Load([]string{write(t, t.TempDir(), "b.yaml", text)}, bindings.Options{
		Env: environment, Logger: slog.New(slog.NewJSONHandler(j, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	byID := map[string]*bindings.Module{}
	for _, m := range mods {
		byID[m.ID()] = m
	}
	return byID, j
}

// shell is the binding x.y of a shell script.
func shell(script, more string) string {
	return "bindings:\n- module_id: x.y\n  description: a script\n" + more +
		"  command:\n    argv: [sh, -c, " + quote(script) + "]\n    grace: 300ms\n    max_output: 4096\n"
}

func quote(s string) string {
	var b bytes.Buffer
	b.WriteByte('\'')
	for _, r := range s {
		if r == '\'' {
			b.WriteByte('\'')
		}
		b.WriteRune(r)
	}
	b.WriteByte('\'')
	return b.String()
}

// execute runs x.y in a call with an ID.
func execute(t testing.TB, ctx context.Context, m *bindings.Module, inputs map[string]any) (map[string]any, error) {
	t.Helper()
	c := module.NewContext(module.ContextOptions{TraceParent: &module.TraceParent{TraceID: traceID}})
	c = c.Enter("x.y", module.CallScope{Call: module.CallInfo{ID: "0123456789abcdef"}})
	return m.Execute(module.WithContext(ctx, c), inputs)
}

const traceID = "4bf92f3577b34da6a3ce929d0e0e4736"

// chunks ranges over a stream.
func chunks(t testing.TB, ctx context.Context, m *bindings.Module, inputs map[string]any, most int) (out []module.Chunk, err error) {
	t.Helper()
	s, ok := m.Registrable().(module.Streamer)
	if !ok {
		t.Fatal("the module does not stream")
	}
	for c, e := range s.Stream(ctx, inputs) {
		if e != nil {
			return out, e
		}
		if out = append(out, c); len(out) == most {
			break
		}
	}
	return out, nil
}

func reason(err error) any {
	if e := module.AsError(err); e != nil {
		return e.Details["reason"]
	}
	return nil
}
