package integration_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/examples"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

// What carries a stream from one executor to the other.
var (
	_ executor.RemoteStreamer = (*bus.Client)(nil)
	_ bus.StreamHandler       = (*executor.Executor)(nil)
)

// streamingNode is a node with its executor and the client it reaches others by.
func streamingNode(t *testing.T, server *bus.Embedded, id string, modules ...module.Module) (*executor.Executor, *bus.Client) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	conns, err := bus.Connect(t.Context(), bus.Options{InProcess: server.Server(), Logger: quiet})
	must(err)
	t.Cleanup(conns.Close)
	client, err := bus.NewClient(conns, bus.ClientOptions{Name: id, Logger: quiet})
	must(err)
	t.Cleanup(client.Close)
	reg := registry.New(registry.Options{Logger: quiet})
	for _, m := range modules {
		must(reg.Register(m))
	}
	x, err := executor.New(reg, executor.Config{}, executor.WithLogger(quiet), executor.WithRemote(client))
	must(err)
	node, err := bus.NewNode(conns, x, bus.NodeOptions{ID: id, Logger: quiet})
	must(err)
	t.Cleanup(func() { _ = node.Close() })
	return x, client
}

type line struct {
	Line string `json:"line,omitempty"`
	Last string `json:"last,omitempty"`
	N    int64  `json:"n,omitempty"`
}

// linesModule streams what another node's text.words says about each line.
func linesModule() module.Module {
	return module.NewStream[struct {
		Text string `json:"text"`
	}, line]("text.lines", "Stream the lines of a text with their words counted",
		func(ctx context.Context, in struct {
			Text string `json:"text"`
		}, send func(any) error) error {
			for text := range strings.Lines(in.Text) {
				out, err := module.Call(ctx, "text.words", map[string]any{"text": text})
				if err != nil {
					return err
				}
				n, _ := out["count"].(int64)
				if err := send(line{Line: strings.TrimSpace(text), Last: fmt.Sprint(out["word"]), N: n}); err != nil {
					return err
				}
			}
			return nil
		})
}

// endless streams until it is stopped and says why it was.
func endless(ended chan<- error) module.Module {
	return module.NewStream[struct{}, line]("text.endless", "Stream without end",
		func(ctx context.Context, _ struct{}, send func(any) error) error {
			for i := int64(1); ; i++ {
				if err := send(line{N: i}); err != nil {
					ended <- context.Cause(ctx)
					return err
				}
			}
		})
}

func chunksOf(t *testing.T, stream func(yield func(module.Chunk, error) bool)) (chunks []module.Chunk) {
	t.Helper()
	for chunk, err := range stream {
		if err != nil {
			t.Fatal(err)
		}
		chunks = append(chunks, chunk)
	}
	return chunks
}

// TestStreamThroughTwoExecutors streams from one node's executor, from a client,
// and through a module of the first node that calls the second for every chunk.
func TestStreamThroughTwoExecutors(t *testing.T) {
	t.Parallel()
	server, err := bus.StartEmbedded(bus.EmbedOptions{NoListen: true, DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	text, err := examples.Modules(examples.Options{Node: "n2", Groups: []string{"text"}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 10)
	x1, c1 := streamingNode(t, server, "n1", linesModule())
	x2, c2 := streamingNode(t, server, "n2", append(text, endless(ended))...)
	for _, c := range []*bus.Client{c1, c2} {
		for _, id := range []string{"text.words", "text.lines", "text.endless"} {
			ctx, stop := context.WithTimeout(t.Context(), startLimit)
			if err := c.WaitModule(ctx, id); err != nil {
				t.Fatal(err)
			}
			stop()
		}
	}

	words := map[string]any{"text": "to be or"}
	wantWords := []module.Chunk{
		{"index": int64(0), "word": "to"}, {"index": int64(1), "word": "be"}, {"index": int64(2), "word": "or"}, {"count": int64(3)},
	}
	lines := map[string]any{"text": "to be or\nnot\nto be"}
	wantLines := []module.Chunk{
		{"line": "to be or", "last": "or", "n": int64(3)}, {"line": "not", "last": "not", "n": int64(1)}, {"line": "to be", "last": "be", "n": int64(2)},
	}
	for name, tt := range map[string]struct {
		stream func(yield func(module.Chunk, error) bool)
		want   []module.Chunk
	}{
		"words from the first executor":  {x1.Stream(t.Context(), "text.words", words), wantWords},
		"words from the second executor": {x2.Stream(t.Context(), "text.words", words), wantWords},
		"words from a client":            {c1.Stream(t.Context(), "text.words", words), wantWords},
		"lines from the first executor":  {x1.Stream(t.Context(), "text.lines", lines), wantLines},
		"lines from the second executor": {x2.Stream(t.Context(), "text.lines", lines), wantLines},
		"lines from a client":            {c2.Stream(t.Context(), "text.lines", lines), wantLines},
	} {
		if diff := cmp.Diff(tt.want, chunksOf(t, tt.stream)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}

	var many []string
	for i := range 2000 {
		many = append(many, fmt.Sprint("w", i))
	}
	got := chunksOf(t, x1.Stream(t.Context(), "text.words", map[string]any{"text": strings.Join(many, " ")}))
	if len(got) != 2001 {
		t.Fatalf("%d chunks of 2000 words", len(got))
	}
	for i, word := range many {
		if got[i]["word"] != word {
			t.Fatalf("chunk %d is %v", i, got[i])
		}
	}

	t.Run("invalid inputs", func(t *testing.T) {
		for chunk, err := range x1.Stream(t.Context(), "text.words", map[string]any{"text": 5}) {
			if e := module.AsError(err); chunk != nil || e == nil || e.Code != module.CodeSchemaValidation {
				t.Errorf("%v, %v", chunk, err)
			}
		}
	})
	t.Run("a reader that leaves", func(t *testing.T) {
		for _, stream := range []func(yield func(module.Chunk, error) bool){
			x1.Stream(t.Context(), "text.endless", nil), c1.Stream(t.Context(), "text.endless", nil),
		} {
			n := 0
			for _, err := range stream {
				if err != nil {
					t.Fatal(err)
				}
				if n++; n == 100 {
					break
				}
			}
			wantEnded(t, ended, cancel.Caller)
		}
	})
	t.Run("a caller that cancels", func(t *testing.T) {
		ctx, stop := context.WithCancelCause(t.Context())
		defer stop(nil)
		n, last := 0, error(nil)
		for _, err := range x1.Stream(ctx, "text.endless", nil) {
			if n++; n == 100 {
				stop(errors.New("enough"))
			}
			last = err
		}
		if module.CodeOf(last) != module.CodeExecutionCancelled {
			t.Errorf("ended with %v", last)
		}
		wantEnded(t, ended, cancel.Caller)
	})
	t.Run("a slow reader and a time limit", func(t *testing.T) {
		last := error(nil)
		for _, err := range x1.Stream(t.Context(), "text.endless", nil, module.CallTimeout(300*time.Millisecond)) {
			if err == nil {
				<-time.After(5 * time.Millisecond)
			}
			last = err
		}
		if module.CodeOf(last) != module.CodeModuleTimeout {
			t.Errorf("ended with %v", last)
		}
		wantEnded(t, ended, cancel.Timeout)
	})
}

func wantEnded(t *testing.T, ended <-chan error, want cancel.Reason) {
	t.Helper()
	select {
	case cause := <-ended:
		if got := cancel.ReasonOf(cause); got != want {
			t.Errorf("the module was stopped for %q, want %q", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Error("the module was not stopped")
	}
}
