package main

import (
	"context"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/apbus/apbus/internal/settings"
)

// benchCmd makes load and measures what comes of it.
type benchCmd struct {
	Call   benchCallCmd   `cmd:"" help:"Call a module over and over, math.add unless another is named."`
	Task   benchTaskCmd   `cmd:"" help:"Submit tasks and wait for their results, of math.add unless another is named."`
	Stream benchStreamCmd `cmd:"" help:"Read streams to their ends, of text.words unless another is named."`
}

// Help says what the figures are.
func (*benchCmd) Help() string {
	return `Times are seen from here, the way to the router or the bus included; with
--nats the router is not part of them. Without --count a benchmark runs for
5 seconds. It exits with 1 when something failed.

Examples:
  apbus bench call
  apbus bench call demo.sleep ms=10 --in-flight 64 --count 1000
  apbus bench task demo.effect key=a --count 500
  apbus bench stream --in-flight 4
  apbus --nats nats://127.0.0.1:4222 bench call math.add a=1 b=2`
}

// benchInputs are the module and its inputs, or a default for both.
type benchInputs struct {
	ID    string   `arg:"" optional:"" help:"Module, with its inputs."`
	Pairs []string `arg:"" optional:"" sep:"none" name:"k=v" help:"Inputs; the module's schema gives their types."`
	Input string   `short:"i" local:"" placeholder:"JSON|@FILE|-" help:"All inputs as a JSON object, from a file or from standard input."`
}

// request reads the inputs once, since every call needs them.
func (f *benchInputs) request(s *session, b backend, id string, inputs map[string]any) (*callRequest, error) {
	if f.ID == "" {
		if f.Input != "" {
			return nil, settings.Usagef("--input needs a module")
		}
		return &callRequest{id: id, inputs: inputs}, nil
	}
	flags := inputFlags{inputArgs: inputArgs{ID: f.ID, Pairs: f.Pairs, Input: f.Input}}
	r, closeInput, err := flags.request(s, b)
	defer closeInput()
	if err != nil || r.raw == nil {
		return r, err
	}
	text, err := io.ReadAll(r.raw)
	if err != nil {
		return nil, settings.Usagef("--input: %w", err)
	}
	r.raw = nil
	r.inputs, err = literalInput(string(text))
	return r, err
}

type benchCallCmd struct {
	benchInputs
	benchFlags
}

// Run makes the calls.
func (c *benchCallCmd) Run(s *session) error {
	if err := c.check(); err != nil {
		return err
	}
	return s.with(func(b backend) error {
		r, err := c.request(s, b, "math.add", map[string]any{"a": int64(1), "b": int64(2)})
		if err != nil {
			return err
		}
		m := c.run(s.ctx, func(ctx context.Context) (int, error) {
			one := *r
			_, err := b.Call(ctx, &one)
			return 0, err
		})
		return m.print(s, "call", r.id, &c.benchFlags)
	})
}

type benchTaskCmd struct {
	benchInputs
	benchFlags
}

// Run submits tasks, each followed to its result. The time of one is that from its
// submission until its result is here.
func (c *benchTaskCmd) Run(s *session) error {
	if err := c.check(); err != nil {
		return err
	}
	return s.withTasks(func(b *httpBackend) error {
		r, err := c.request(s, b, "math.add", map[string]any{"a": int64(1), "b": int64(2)})
		if err != nil {
			return err
		}
		body := map[string]any{"module_id": r.id, "inputs": r.inputs}
		m := c.run(s.ctx, func(ctx context.Context) (int, error) {
			receipt, err := b.tell(ctx, http.MethodPost, []string{"tasks"}, nil, body)
			if err != nil {
				return 0, err
			}
			_, _, err = b.TaskResult(ctx, text(receipt["task_id"]), 0)
			return 0, err
		})
		return m.print(s, "task", r.id, &c.benchFlags)
	})
}

// benchWords is how many chunks the streams have unless inputs are given.
const benchWords = 1000

type benchStreamCmd struct {
	benchInputs
	benchFlags
}

// Run reads streams. The time of one is that from its call to its end.
func (c *benchStreamCmd) Run(s *session) error {
	if err := c.check(); err != nil {
		return err
	}
	return s.with(func(b backend) error {
		r, err := c.request(s, b, "text.words", map[string]any{"text": strings.Repeat("word ", benchWords)})
		if err != nil {
			return err
		}
		m := c.run(s.ctx, func(ctx context.Context) (int, error) {
			one, chunks := *r, 0
			one.chunk = func(uint64, map[string]any) error {
				chunks++
				return nil
			}
			_, err := b.Call(ctx, &one)
			return chunks, err
		})
		return m.print(s, "stream", r.id, &c.benchFlags)
	})
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
