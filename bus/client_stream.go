package bus

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// Stream runs a module and yields its output in chunks as they come; a module
// that does not stream gives one. The call begins when the result is ranged
// over, and each range is a call of its own. A failure is the last element, with
// a nil chunk; its errors are those of [Client.Call]. in, ctx and opts are those
// of Call too.
//
// A reader that leaves the loop stops the module. One that takes its time holds
// the module back, at most a window of chunks ahead of it
// ([ClientOptions].StreamWindow), and nothing else. What a stream has given is
// whole only when the loop ends without an error: a chunk that was lost is
// BUS_STREAM_TRUNCATED. [Client.Close] must not be called from the loop body.
func (c *Client) Stream(ctx context.Context, id string, in any, opts ...module.CallOption) iter.Seq2[module.Chunk, error] {
	return func(yield func(module.Chunk, error) bool) {
		inputs, err := module.ToMap(in)
		if err != nil {
			yield(nil, err)
			return
		}
		req, ctx, stop, err := requestFor(ctx, id, inputs, opts)
		if err != nil {
			yield(nil, err)
			return
		}
		defer stop()
		left := false
		_, err = c.InvokeStream(ctx, &req, func(chunk module.Chunk) error {
			if left = !yield(chunk, nil); left {
				return readerLeft()
			}
			return nil
		})
		if err != nil && !left {
			yield(nil, err)
		}
	}
}

func readerLeft() *cancel.Cause {
	return cancel.Because(cancel.Caller, "", "the reader of the stream has left")
}

// InvokeStream is [Client.Invoke] for a stream: every chunk goes to send, in
// order and in the caller's goroutine, and the reply's output is the merged
// value. An error of send ends the call here and on its owner; a coded one is
// what InvokeStream returns, any other the cause of EXECUTION_CANCELLED.
func (c *Client) InvokeStream(ctx context.Context, req *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error) {
	return c.reply(ctx, req, send)
}

// inflow receives one stream. Nothing in it is ever dropped: how much there can
// be is what the window allows. The wait for a call that is no stream has a nil
// one, of which nothing ever comes.
type inflow struct {
	send   func(module.Chunk) error
	window contextwire.Credit
	tick   *time.Timer // when the totals are to be told again

	// Only the reader's goroutine uses these.
	to       string // where grants go, once it is known
	taken    contextwire.Credit
	told     contextwire.Credit // what taken was in the last grant
	expected uint64             // number of the next data frame
	fresh    bool               // a chunk was taken since tick was set

	mu     sync.Mutex
	queue  []*nats.Msg
	unread contextwire.Credit // data in queue
	ended  bool               // the terminal frame is in queue, or was
	flood  bool               // the owner sent more than it may
}

const (
	// grantEvery is how often the totals are told, in case a grant was lost.
	grantEvery = 500 * time.Millisecond
	// grantIdle is how soon they are told to an owner that sends nothing although
	// it may, since its next frame may be larger than what it may send.
	grantIdle = 5 * time.Millisecond
	// maxInterim is how many frames without data may wait to be read.
	maxInterim = 8
)

func newInflow(send func(module.Chunk) error, window contextwire.Credit) *inflow {
	return &inflow{send: send, window: window, tick: time.NewTimer(grantEvery)}
}

// deliver takes a message in.
func (s *inflow) deliver(m *nats.Msg) {
	h := contextwire.Header(m.Header)
	kind := contextwire.FrameKind(h.Get(contextwire.HeaderFrame))
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended || s.flood:
		return
	case kind == contextwire.FrameData:
		// A window's worth may wait, and one frame however large.
		s.unread.Frames++
		s.unread.Bytes += int64(len(m.Data))
		if s.unread.Frames > s.window.Frames || (s.unread.Bytes > s.window.Bytes && s.unread.Frames > 1) {
			s.flood = true
		}
	case kind == contextwire.FrameAccept, mustArrive(m):
		s.ended = kind.Terminal()
		if int64(len(s.queue))-s.unread.Frames > maxInterim && !s.ended {
			return // the same frame over and over
		}
	case int64(len(s.queue))-s.unread.Frames >= maxInterim:
		return // progress nobody has read yet
	}
	s.queue = append(s.queue, m)
}

// next takes the oldest frame, nil when there is none.
func (s *inflow) next() *nats.Msg {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return nil
	}
	m := s.queue[0]
	s.queue[0] = nil
	if s.queue = s.queue[1:]; len(s.queue) == 0 {
		s.queue = nil
	}
	if contextwire.Header(m.Header).Get(contextwire.HeaderFrame) == string(contextwire.FrameData) {
		s.unread.Frames--
		s.unread.Bytes -= int64(len(m.Data))
	}
	return m
}

func (s *inflow) flooded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flood
}

// hasEnd reports whether the last frame has come, read or not.
func (s *inflow) hasEnd() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// due tells that it is time for a grant. It is asked when nothing is there to read.
func (s *inflow) due() <-chan time.Time {
	if s == nil {
		return nil
	}
	if s.fresh {
		s.fresh = false
		s.tick.Reset(grantIdle)
	}
	return s.tick.C
}

func (s *inflow) close() {
	if s != nil {
		s.tick.Stop()
	}
}

func (s *inflow) grantTo(subject string) {
	if s != nil && subject != "" {
		s.to = subject
	}
}

// part handles a data or end frame.
//
//nolint:contextcheck // a notice must leave though the call is over
func (a *attempt) part(ctx context.Context, f *contextwire.Frame, m *nats.Msg) (body map[string]any, ended bool, err error) {
	if f.Kind == contextwire.FrameData {
		if f.BodyRef != nil {
			a.client.giveUp(a, cancel.Because(cancel.Caller, a.client.name, "the answer cannot be read"))
			return nil, true, module.Errorf(module.CodeBusBadMessage, "a chunk of the stream lies in the object store, where only its end may be")
		}
		if e := a.data(f, m); e != nil {
			return nil, true, e
		}
		return nil, false, nil
	}
	if e := a.finish(f); e != nil {
		a.dropReply(m)
		return nil, true, e
	}
	if err := a.readBody(ctx, f); err != nil {
		return nil, true, err
	}
	return f.Body, true, nil
}

// data hands one chunk to the reader and counts it as taken.
func (a *attempt) data(f *contextwire.Frame, m *nats.Msg) *module.Error {
	s, c := a.in, a.client
	s.grantTo(m.Reply) // the accept frame may be lost
	switch {
	case f.Seq != s.expected:
		return a.truncated(fmt.Sprintf("chunk %d came where chunk %d was due", f.Seq, s.expected))
	case s.flooded():
		return a.truncated("more chunks came than there was room for")
	}
	s.expected++
	if err := a.hand(f.Body); err != nil {
		if coded := module.AsError(err); coded != nil {
			a.fate = fateGivenUp
			c.giveUp(a, readerLeft())
			return coded
		}
		return a.stop(err)
	}
	s.taken.Frames++
	s.taken.Bytes += int64(len(m.Data))
	frames, bytes := s.taken.Frames-s.told.Frames, s.taken.Bytes-s.told.Bytes
	if 2*frames >= s.window.Frames || 2*bytes >= s.window.Bytes {
		a.grant()
	} else {
		s.fresh = true
	}
	return nil
}

// hand gives a chunk to the reader. One that panics has left.
func (a *attempt) hand(chunk module.Chunk) error {
	returned := false
	defer func() {
		if !returned {
			a.client.giveUp(a, readerLeft())
		}
	}()
	err := a.in.send(chunk)
	returned = true
	return err
}

// grant tells the owner the totals that it may send: what was taken, and a
// window more.
func (a *attempt) grant() {
	s := a.in
	s.fresh = false
	s.tick.Reset(grantEvery)
	if s.to == "" {
		return
	}
	total := contextwire.Credit{Frames: addCapped(s.taken.Frames, s.window.Frames), Bytes: addCapped(s.taken.Bytes, s.window.Bytes)}
	m := &nats.Msg{Subject: s.to, Header: nats.Header(contextwire.EncodeCredit(total))}
	if err := a.client.conns.Calls.Publish(m); err != nil {
		a.client.dir.calm.warn("cannot send a grant", "cause", err) // the next one makes up for it
		return
	}
	s.told = s.taken
}

func addCapped(a, b int64) int64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return 1<<63 - 1
}

// finish judges the end of a stream by its count.
func (a *attempt) finish(f *contextwire.Frame) *module.Error {
	switch {
	case f.Seq != a.in.expected:
		return a.truncated(fmt.Sprintf("%d chunks of %d came", a.in.expected, f.Seq))
	case a.in.flooded():
		return a.truncated("more chunks came than there was room for")
	}
	return nil
}

// truncated ends a stream of which something is missing.
func (a *attempt) truncated(why string) *module.Error {
	c := a.client
	if !a.in.hasEnd() {
		c.giveUp(a, cancel.Because(cancel.Caller, c.name, "the stream is broken"))
	}
	e := module.Errorf(module.CodeBusStreamTruncated, "the stream is broken: %s", why).WithDetails(map[string]any{
		"module_id": a.req.ModuleID, "chunks": int64(a.in.expected), //nolint:gosec // far below
	})
	e.Retryable = c.repeatable(a.req.ModuleID)
	return e.At(a.req.Context, a.req.ModuleID)
}

// repeatable reports whether a call that may have run may run again.
func (c *Client) repeatable(id string) module.Tri {
	ann, known := c.dir.annotations(id)
	return module.TriOf(known && (ann.Idempotent || ann.Readonly))
}

// begun reports whether the reader has seen a part of the output, so that the
// call cannot be sent again.
func (a *attempt) begun() bool { return a.in != nil && a.in.expected > 0 }
