package integration_test

import (
	"bytes"
	"context"
	"errors"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
	"time"
)

// second is a second client of the system, on a connection of its own.
func (s *system) second() *secondClient {
	s.t.Helper()
	c, err := newSecondClient(s.peer())
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// TestSecondClientIsSmallAndKnowsNothing holds the client of the documentation to
// its promise: under 200 lines, and nothing of ours inside.
func TestSecondClientIsSmallAndKnowsNothing(t *testing.T) {
	t.Parallel()
	const file = "second_client_test.go"
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if lines := bytes.Count(src, []byte("\n")); lines >= 200 {
		t.Errorf("%s has %d lines, want fewer than 200", file, lines)
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), file, src, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, imp := range parsed.Imports {
		path := strings.Trim(imp.Path.Value, `"`)
		if strings.Contains(path, ".") && path != "github.com/nats-io/nats.go" {
			t.Errorf("%s imports %s", file, path)
		}
	}
}

// TestSecondClient uses the system with a client written from docs/wire.md.
func TestSecondClient(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	n := s.startNode("n1", "math,text,demo")
	c := s.second()
	within := func(d time.Duration) context.Context {
		ctx, stop := context.WithTimeoutCause(t.Context(), d, errors.New("the time of the call is over"))
		t.Cleanup(stop)
		return ctx
	}
	wantCode := func(what string, err error, want string) {
		t.Helper()
		var e *codedError
		if !errors.As(err, &e) || e.Code != want {
			t.Errorf("%s: %v, want %s", what, err, want)
		}
	}

	out, err := c.call(within(requestLimit), "math.add", map[string]any{"a": 1, "b": 2}, 0, nil)
	if err != nil || out["sum"] != 3.0 {
		t.Errorf("call: %v, %v", out, err)
	}
	_, err = c.call(within(requestLimit), "math.add", map[string]any{"a": "one"}, 0, nil)
	wantCode("bad inputs", err, "SCHEMA_VALIDATION_ERROR")
	_, err = c.call(within(requestLimit), "math.no_such", map[string]any{}, 0, nil)
	wantCode("nobody", err, "503")
	_, err = c.call(within(500*time.Millisecond), "demo.sleep", map[string]any{"ms": 60_000}, 0, nil)
	if err == nil {
		t.Error("a call outlived its budget")
	}

	// A stream through a window of four, of 500 words.
	words := strings.TrimSpace(strings.Repeat("to be or not ", 125))
	var seen []string
	out, err = c.call(within(requestLimit), "text.words", map[string]any{"text": words}, 4, func(chunk map[string]any) {
		if word, ok := chunk["word"].(string); ok {
			seen = append(seen, word)
		}
	})
	if err != nil || out["count"] != 500.0 || strings.Join(seen, " ") != words {
		t.Errorf("stream: %d words, %v, %v", len(seen), out, err)
	}

	// A large body, and a cancel by leaving.
	text, _, _, _ := bigText(3_000_000)
	out, err = c.call(within(requestLimit), "text.wordcount", map[string]any{"text": text}, 0, nil)
	if err != nil {
		t.Errorf("large body: %v", err)
	}
	wantCounts(t, "large body", out, 3_000_000)
	out, err = c.call(within(requestLimit), "demo.chain", map[string]any{"path": []string{}, "note": text}, 0, nil)
	if err != nil || len(list(out, "hops")) != 1 {
		t.Errorf("large inputs: %v", err)
	}

	// A call that lasts is probed for; one that is left is cancelled.
	ctx, leave := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.call(ctx, "demo.sleep", map[string]any{"ms": 60_000}, 0, nil)
		ended <- err
	}()
	before := c.probes.Load()
	eventually(t, startLimit, "the client is probed", func() bool { return c.probes.Load() >= before+3 })
	s.running("demo.sleep")
	gone := errors.New("enough")
	leave(gone)
	if err := <-ended; !errors.Is(err, gone) {
		t.Errorf("left: %v", err)
	}
	s.waitIdle(cancelLimit, n)
}
