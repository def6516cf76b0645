package bus

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// StreamHandler is a [Host] that can give a call's output in parts. A host that
// is none answers streams with GENERAL_NOT_IMPLEMENTED.
//
// InvokeStream passes every chunk to send, one at a time; send blocks while the
// caller has given no credit, and returns why the stream has ended once it has:
// then InvokeStream must end soon. The reply's output is the merged value.
type StreamHandler interface {
	InvokeStream(ctx context.Context, req *contextwire.Request, send func(module.Chunk) error) (*contextwire.Reply, error)
}

// outflow sends the data frames of one stream, as far as the caller's credit
// goes (wire protocol section 4, Credit).
type outflow struct {
	r      *running
	credit string // the subject for grants
	over   time.Time
	room   room // of send, which is called by one at a time

	mu    sync.Mutex
	sent  contextwire.Credit
	limit contextwire.Credit // totals that the caller allows
	lost  bool               // a data frame reached nobody
	wake  chan struct{}      // capacity 1: limit has grown
}

// outflows are the streams of a node, by the last token of their credit subject.
type outflows struct {
	inbox string

	mu   sync.Mutex
	open map[string]*outflow
}

// listenForCredit subscribes to the grants of all streams at once.
func (n *Node) listenForCredit() error {
	n.flows.inbox = n.conns.Calls.NewInbox()
	n.flows.open = map[string]*outflow{}
	return n.subscribe(n.conns.Calls, n.flows.inbox+".*", "", n.onCredit)
}

// onCredit takes grants, and the server's word that a data frame reached nobody.
func (n *Node) onCredit(m *nats.Msg) {
	token := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	n.flows.mu.Lock()
	s := n.flows.open[token]
	n.flows.mu.Unlock()
	switch {
	case s == nil: // the stream is over
	case isNoResponders(m):
		s.lose()
		if s.r.token.Cancel(cancel.Because(cancel.CallerGone, n.opts.ID, "the reader of the stream is gone")) {
			n.log.Info("cancelled a stream whose reader is gone", "module_id", s.r.head.ModuleID, "call_id", s.r.key.Call, "cause", cancel.CallerGone)
		}
	default:
		grant, err := contextwire.DecodeCredit(contextwire.Header(m.Header))
		if err != nil {
			n.calm.warn("ignoring a malformed grant", "cause", err)
			return
		}
		s.grant(grant)
	}
}

// openFlow prepares r to stream and tells the caller at once who has the call
// and where grants go.
func (r *running) openFlow() {
	n, token := r.node, replyToken(r.key.Call, r.key.Attempt)
	s := &outflow{r: r, credit: n.flows.inbox + "." + token, limit: r.head.Credit, wake: make(chan struct{}, 1)}
	if r.head.Budget > 0 {
		s.over = r.arrived.Add(r.head.Budget)
	}
	r.flow = s
	n.flows.mu.Lock()
	n.flows.open[token] = s
	n.flows.mu.Unlock()
	r.reply.interim(&contextwire.Frame{Kind: contextwire.FrameAccept, Grace: n.opts.CallGrace(), CreditTo: s.credit})
}

func (r *running) closeFlow() {
	if r.flow == nil {
		return
	}
	flows := &r.node.flows
	flows.mu.Lock()
	defer flows.mu.Unlock()
	delete(flows.open, replyToken(r.key.Call, r.key.Attempt))
}

// grant raises the totals; one that came late changes nothing.
func (s *outflow) grant(c contextwire.Credit) {
	s.mu.Lock()
	s.limit.Frames = max(s.limit.Frames, c.Frames)
	s.limit.Bytes = max(s.limit.Bytes, c.Bytes)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take uses credit for one frame, when there is enough. A frame that is larger
// than the window goes when the caller has everything before it.
func (s *outflow) take(size int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	window := s.r.head.Credit
	empty := s.sent.Frames <= s.limit.Frames-window.Frames && s.sent.Bytes <= s.limit.Bytes-window.Bytes
	if s.sent.Frames >= s.limit.Frames || (s.sent.Bytes+size > s.limit.Bytes && !empty) {
		return false
	}
	s.sent.Frames++
	s.sent.Bytes += size
	return true
}

// count is the number of data frames sent.
func (s *outflow) count() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return uint64(s.sent.Frames)
}

// send is what the host gives the chunks to.
func (s *outflow) send(chunk module.Chunk) error {
	r := s.r
	seq := s.count()
	m := &s.room.msg
	header, body, err := s.room.encoder.Frame(&contextwire.Frame{Kind: contextwire.FrameData, Seq: seq, Body: chunk}, r.reply.ct)
	if err != nil {
		return started(err)
	}
	// With a reply, so that the server says when nobody is there any more.
	*m = nats.Msg{Subject: r.reply.to, Reply: s.credit, Header: nats.Header(header), Data: body}
	if limit := r.node.conns.Calls.MaxPayload(); limit > 0 && int64(m.Size()) > limit {
		return contextwire.TooLarge(int64(m.Size()), limit).WithDetail("chunk_index", int64(seq))
	}
	if err := s.await(int64(len(m.Data))); err != nil {
		return err
	}
	if err := r.reply.data(m); err != nil {
		// It is lost, and with it the stream.
		s.lose()
		return s.truncated(err)
	}
	return nil
}

func (s *outflow) lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = true
}

// broken is how the stream ends whose chunk is known to be lost, whatever the
// module made of it; the caller may be there after all, or again. It is nil when
// nothing is lost.
func (s *outflow) broken(err error) *module.Error {
	s.mu.Lock()
	lost := s.lost
	s.mu.Unlock()
	if !lost {
		return nil
	}
	return s.truncated(err)
}

func (s *outflow) truncated(err error) *module.Error {
	const text = "a chunk of the stream did not reach its reader"
	e := module.Errorf(module.CodeBusStreamTruncated, text)
	if err != nil {
		e = module.Wrap(module.CodeBusStreamTruncated, err, text)
	}
	id := s.r.head.ModuleID
	return e.WithDetails(map[string]any{"module_id": id, "chunks": int64(s.count())}).
		WithRetryable(module.TriOf(s.r.node.repeatable(id)))
}

// await waits for credit, or for the end of the call.
func (s *outflow) await(size int64) error {
	ctx := s.r.ctx
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.take(size) {
		return nil
	}
	began, counts := time.Now(), &s.r.node.counts
	counts.stalls.Add(1)
	defer func() { counts.stalled.Add(int64(time.Since(began))) }()
	var over <-chan time.Time
	if !s.over.IsZero() {
		t := time.NewTimer(time.Until(s.over))
		defer t.Stop()
		over = t.C
	}
	for {
		select {
		case <-s.wake:
			if s.take(size) {
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-over:
			return cancel.Because(cancel.Timeout, s.r.node.opts.ID, "the time of the call is over")
		}
	}
}

// started is err without the claim that nothing was run.
func started(err error) *module.Error {
	e := module.Propagate(err, "", nil)
	if e.Unexecuted {
		c := *e
		c.Unexecuted = false
		e = &c
	}
	return e
}

// repeatable reports whether a module may run again. It is asked only after a
// failure.
func (n *Node) repeatable(moduleID string) bool {
	for _, d := range n.host.Descriptors() {
		if d.ID == moduleID {
			return d.Annotations.Idempotent || d.Annotations.Readonly
		}
	}
	return false
}
