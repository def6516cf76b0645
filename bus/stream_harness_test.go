package bus_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

type streamRun = func(ctx context.Context, req *contextwire.Request, send func(module.Chunk) error) error

// streamHost is a stub host that streams: modules with a stream give parts, all
// others one chunk, as with the executor.
type streamHost struct {
	*stubHost
	streams map[string]streamRun
}

func newStreamHost() *streamHost { return &streamHost{newStubHost(), map[string]streamRun{}} }

// add adds a module that does not stream.
func (h *streamHost) add(id string, ann module.Annotations, run stubRun) *streamHost {
	h.stubHost.add(id, ann, run)
	return h
}

// stream adds a module; a plain call of it gives its merged chunks.
func (h *streamHost) stream(id string, ann module.Annotations, run streamRun) *streamHost {
	h.streams[id] = run
	h.add(id, ann, func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
		merged := module.NewMerge(module.DefaultMergeDepth)
		err := run(ctx, req, func(c module.Chunk) error { merged.Add(c); return nil })
		return merged.Value(), err
	})
	return h
}

func (h *streamHost) InvokeStream(ctx context.Context, req *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error) {
	run := h.streams[req.ModuleID]
	if run == nil {
		reply, err := h.Invoke(ctx, req)
		if err == nil {
			err = send(reply.Output)
		}
		return reply, err
	}
	if req.Budget > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, req.Budget, cancel.Because(cancel.Timeout, "", "budget"))
		defer stop()
	}
	merged := module.NewMerge(module.DefaultMergeDepth)
	err := run(ctx, req, func(c module.Chunk) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		merged.Add(c)
		return send(c)
	})
	switch {
	case err == nil:
		out := merged.Value()
		if out == nil {
			out = map[string]any{}
		}
		return &contextwire.Reply{Output: out}, nil
	case module.AsError(err) != nil:
		return nil, err
	case cancel.ReasonOf(err) == cancel.Timeout:
		return nil, module.Wrap(module.CodeModuleTimeout, err, "time is over")
	}
	return nil, module.Wrap(module.CodeExecutionCancelled, err, "cancelled")
}

// counting sends {"i": 0}, {"i": 1} and so on, n times or without end, and counts
// what was taken from it.
type counting struct {
	n     int // without end when negative
	pad   int // further bytes of each chunk
	every time.Duration
	sent  atomic.Int64
	ended chan error // capacity for every run
}

func newCounting(n int) *counting { return &counting{n: n, ended: make(chan error, 10)} }

func (p *counting) run(ctx context.Context, _ *contextwire.Request, send func(module.Chunk) error) (err error) {
	defer func() { p.ended <- err }()
	pad := string(make([]byte, p.pad))
	for i := 0; i != p.n; i++ {
		if p.every > 0 {
			select {
			case <-time.After(p.every):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		chunk := module.Chunk{"i": int64(i)}
		if p.pad > 0 {
			chunk["pad"] = pad
		}
		if err := send(chunk); err != nil {
			return err
		}
		p.sent.Add(1)
	}
	return nil
}

// taken is how a stream went: the numbers of its chunks and its end.
type taken struct {
	is    []int64
	reply *contextwire.Reply
	err   error
	at    time.Time
}

// read takes a whole stream, calling each for every chunk; an error of each ends it.
func read(ctx context.Context, c *bus.Client, req *contextwire.Request, each func(i int) error) *taken {
	got := &taken{}
	got.reply, got.err = c.InvokeStream(ctx, req, func(chunk module.Chunk) error {
		i, _ := chunk["i"].(int64)
		got.is = append(got.is, i)
		if each != nil {
			return each(len(got.is) - 1)
		}
		return nil
	})
	got.at = time.Now()
	return got
}

func readAside(ctx context.Context, c *bus.Client, req *contextwire.Request, each func(i int) error) <-chan *taken {
	done := make(chan *taken, 1)
	go func() { done <- read(ctx, c, req, each) }()
	return done
}

// wantInOrder checks that chunks 0 to n-1 came, each once and in order.
func (g *taken) wantInOrder(t *testing.T, n int) {
	t.Helper()
	for i, got := range g.is {
		if got != int64(i) {
			t.Fatalf("chunk %d came where chunk %d was due", got, i)
		}
	}
	if n >= 0 && len(g.is) != n {
		t.Fatalf("%d chunks came, want %d (%v)", len(g.is), n, g.err)
	}
}

func creditOf(frames, bytes int64) contextwire.Credit {
	return contextwire.Credit{Frames: frames, Bytes: bytes}
}
