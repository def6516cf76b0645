package bus

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// progressEvery is the least time between two progress frames.
const progressEvery = 100 * time.Millisecond

// replier writes the frames of one call. It makes sure that nothing follows the
// terminal one.
type replier struct {
	node *Node
	to   string
	call string
	bare bool
	ct   contextwire.ContentType
	// stream says that the call ends with an end frame, sent how many data frames
	// came before it.
	stream bool
	sent   uint64

	mu       sync.Mutex
	over     bool
	reported time.Time
}

// isOver reports whether the terminal frame has been made.
func (p *replier) isOver() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over
}

// progress passes on what a module reports, at most ten times a second.
func (p *replier) progress(r module.ProgressReport) {
	if p.bare {
		return
	}
	p.mu.Lock()
	now := time.Now()
	tooSoon := now.Sub(p.reported) < progressEvery
	if !tooSoon {
		p.reported = now
	}
	p.mu.Unlock()
	if !tooSoon {
		p.interim(&contextwire.Frame{Kind: contextwire.FrameProgress, Progress: &r})
	}
}

// interim sends a frame unless the call is over.
func (p *replier) interim(f *contextwire.Frame) {
	room := p.node.rooms.take()
	defer p.node.rooms.give(room)
	err := p.encode(room, f)
	if err == nil {
		err = fits(&room.msg, p.node.conns.Calls.MaxPayload())
	}
	if err != nil {
		p.node.calm.warn("cannot send a frame", "call_id", p.call, "cause", err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		p.publish(&room.msg)
	}
}

// trace sends the trace of the call, which this node signs. Nested calls are left out
// where the message has no room for them.
func (p *replier) trace(trace map[string]any) {
	trace = maps.Clone(trace)
	trace["node"] = p.node.opts.ID
	f := &contextwire.Frame{Kind: contextwire.FrameTrace, Body: trace}
	room := p.node.rooms.take()
	defer p.node.rooms.give(room)
	if p.encode(room, f) == nil && fits(&room.msg, p.node.conns.Calls.MaxPayload()) != nil {
		f.Body = contextwire.WithoutTraceCalls(trace)
	}
	p.interim(f)
}

// data sends a chunk unless the call is over.
func (p *replier) data(m *nats.Msg) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return errCallOver
	}
	p.node.counts.out.observe(int64(len(m.Data)))
	return p.node.conns.Calls.Publish(m)
}

var errCallOver = errors.New("the call is over")

func (p *replier) encode(to *room, f *contextwire.Frame) error {
	f.CallID, f.Node, f.Boot = p.call, p.node.opts.ID, p.node.boot
	h, body, err := to.encoder.Frame(f, p.ct)
	if err != nil {
		return err
	}
	to.msg = nats.Msg{Subject: p.to, Header: nats.Header(h), Data: body}
	return nil
}

// close ends the phase of interim frames. It returns false when the call was
// over already.
func (p *replier) close() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false
	}
	p.over = true
	return true
}

// terminal makes the one terminal message, nil when there was one before; it is to be
// given back when it is sent. An output that is too large for it goes to the object
// store, which ends with ctx.
func (p *replier) terminal(ctx context.Context, output map[string]any, failure *module.Error) *room {
	if !p.close() {
		return nil
	}
	room := p.node.rooms.take()
	err := p.encodeTerminal(room, output, failure)
	if err == nil && failure == nil && !p.bare {
		err = p.node.outsource(ctx, &room.msg)
	}
	if err == nil {
		err = fits(&room.msg, p.node.conns.Calls.MaxPayload())
	}
	if err == nil {
		return room
	}
	// What cannot be sent is said instead; an error always fits.
	if err = p.encodeTerminal(room, nil, started(err)); err != nil {
		p.node.log.Error("cannot encode an error", "call_id", p.call, "cause", err)
		return nil
	}
	return room
}

func (p *replier) encodeTerminal(to *room, output map[string]any, failure *module.Error) error {
	if p.bare {
		h, body, err := contextwire.EncodeBareReply(output, failure)
		if err == nil {
			to.msg = nats.Msg{Subject: p.to, Header: nats.Header(h), Data: body}
		}
		return err
	}
	f := contextwire.Frame{Kind: contextwire.FrameResult, Body: output}
	if p.stream {
		f.Kind, f.Seq = contextwire.FrameEnd, p.sent
	}
	if failure != nil {
		f = contextwire.Frame{Kind: contextwire.FrameError, Err: failure, RetryAfter: retryAfter(failure)}
	}
	return p.encode(to, &f)
}

// fail ends a call that was never registered.
func (p *replier) fail(e *module.Error) {
	p.node.counts.refused.add(e.Code)
	p.send(p.terminal(context.Background(), nil, e))
}

func (p *replier) overloaded(after time.Duration) {
	p.fail(overloadedError(after))
}

// send publishes a terminal message; nil is nothing to send.
func (p *replier) send(room *room) {
	if room != nil {
		p.publish(&room.msg)
		p.node.rooms.give(room)
	}
}

func (p *replier) publish(m *nats.Msg) {
	p.node.counts.out.observe(int64(len(m.Data)))
	if err := p.node.conns.Calls.Publish(m); err != nil {
		// A terminal frame is kept and sent again when the caller asks.
		p.node.calm.warn("cannot send a reply", "call_id", p.call, "cause", err)
	}
}
