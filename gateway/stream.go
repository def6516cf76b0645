package gateway

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// acceptDelay is how long the event accept waits for an owner that refuses: until
// then a refusal is a plain HTTP error with its status.
const acceptDelay = 100 * time.Millisecond

// stream serves POST /v1/modules/{id}/stream: the events accept, progress, data
// (id = number of the chunk), trace, end (id = number of chunks) and error.
func (g *Gateway) stream(x *exchange) error {
	req, h, err := g.request(x)
	if err != nil {
		return err
	}
	if h.async {
		return invalid("a stream cannot be detached: nobody would read it")
	}
	req.Stream = g.streams(req.ModuleID)
	ctx, tok, end, err := g.begin(req)
	if err != nil {
		return err
	}
	defer end()
	defer g.attached(x, tok)()
	events := g.openEvents(x)
	defer events.close()
	defer events.whileOpen(ctx)()
	s := &streaming{x: x, events: events, by: x.principal.by(g.name)}
	defer s.close()
	req.Accepted, req.Progress = s.accepted, s.progress
	reply, err := g.carry(ctx, req, s)
	if err == nil {
		var output []byte
		if output, err = encodeOutput(reply); err == nil {
			return s.end(reply, req.Trace, output)
		}
	}
	return s.fail(coded(endOf(ctx, err)).At(req.Context, req.ModuleID), reply)
}

// streams reports whether the module gives its output in parts. One that nobody
// knows may.
func (g *Gateway) streams(id string) bool {
	m, known := g.catalog.Module(id)
	return !known || m.Descriptor.Annotations.Streaming
}

// carry makes the call. What does not stream is called plainly, so that its output
// goes over the bus once.
func (g *Gateway) carry(ctx context.Context, req *contextwire.Request, s *streaming) (*contextwire.Reply, error) {
	if !req.Stream {
		return g.invoker.Invoke(ctx, req)
	}
	return g.streamer.InvokeStream(ctx, req, s.data)
}

// streaming is one stream on its way to its reader.
type streaming struct {
	x      *exchange
	events *eventStream
	by     string

	mu      sync.Mutex
	node    string // who has accepted the call, as the reader will know or knows
	boot    string
	told    bool
	pending *time.Timer
	chunks  uint64
}

// accepted notes who has the call and tells the reader, unless the call is refused
// within a moment.
func (s *streaming) accepted(node, boot string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node == node && s.boot == boot {
		return
	}
	s.node, s.boot, s.told = node, boot, false
	if s.pending == nil {
		s.pending = time.AfterFunc(acceptDelay, func() { _ = s.tell() }) // what comes next meets the same error
	}
}

// tell writes the event accept when it is due.
func (s *streaming) tell() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tellLocked()
}

// tellLocked holds the lock while the reader takes the event, so that no other
// event gets before it.
func (s *streaming) tellLocked() error {
	if s.told {
		return nil
	}
	s.told = true
	if s.node != "" {
		s.events.header(headerNode, s.node+"."+s.boot)
	}
	return s.events.event("accept", "", map[string]any{
		"call": s.x.callID, "trace_id": s.x.traceID, "node": orNull(s.node), "boot": orNull(s.boot),
	})
}

// close makes sure that nothing is written after the handler.
func (s *streaming) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = true
	if s.pending != nil {
		s.pending.Stop()
	}
}

func (s *streaming) progress(r module.ProgressReport) {
	report := map[string]any{"done": r.Done}
	if r.Total != 0 {
		report["total"] = r.Total
	}
	if r.Note != "" {
		report["note"] = r.Note
	}
	if s.tell() == nil {
		_ = s.events.event("progress", "", report) // the end meets the same error
	}
}

// data takes one chunk. It blocks while the reader does not read, and with it the
// module, as far as its window goes.
func (s *streaming) data(chunk module.Chunk) error {
	err := s.tell()
	if err == nil {
		err = s.events.event("data", sequence(s.chunks), chunk)
	}
	if err == nil {
		s.chunks++
		return nil
	}
	if e := module.AsError(err); e != nil {
		return e
	}
	return s.gone(err)
}

// gone is why a call ends whose reader takes nothing more.
func (s *streaming) gone(err error) error {
	return errors.Join(cancel.Because(cancel.Caller, s.by, "the reader of the stream takes nothing more"), err)
}

// end writes the last events of a stream that succeeded.
func (s *streaming) end(reply *contextwire.Reply, withTrace bool, output []byte) error {
	s.mu.Lock()
	if s.node == "" && reply.Node != "" {
		s.node, s.boot = reply.Node, reply.Boot
	}
	err := s.tellLocked()
	s.mu.Unlock()
	if err == nil && withTrace {
		err = s.trace(reply)
	}
	if err == nil {
		err = s.events.event("end", sequence(s.chunks), output)
	}
	_ = err // the reader has gone; there is nobody left to tell
	return nil
}

func (s *streaming) trace(reply *contextwire.Reply) error {
	trace := outwardTrace(reply, s.x.traceID)
	if trace == nil {
		return nil
	}
	return s.events.event("trace", "", trace)
}

// fail ends a stream with an error: the answer, when it was not begun, else the
// last event. What is returned is logged either way.
func (s *streaming) fail(e *module.Error, reply *contextwire.Reply) error {
	s.close()
	s.x.trace = outwardTrace(reply, s.x.traceID)
	if s.events.plain() {
		return e
	}
	if s.x.trace != nil {
		_ = s.events.event("trace", "", s.x.trace) // as below
	}
	body := encodeError(outward(e, s.x.traceID), func(m map[string]any) any { return map[string]any{"error": m} })
	_ = s.events.event("error", "", body) // the reader may have gone
	return e
}
