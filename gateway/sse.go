package gateway

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// eventStream writes Server-Sent Events. Its methods may be called from several
// goroutines; each blocks while the reader takes nothing, at most as long as the
// limit of a stall.
type eventStream struct {
	x    *exchange
	out  *http.ResponseController
	beat time.Duration

	mu     sync.Mutex
	buf    []byte
	begun  bool      // something was written
	last   time.Time // when, or the start
	failed error     // nothing can be written any more

	// patience is how long a write may take. It has a lock of its own, since it
	// shrinks while a write is blocked.
	patienceMu sync.Mutex
	patience   time.Duration
	closed     bool

	wg   sync.WaitGroup
	quit chan struct{}
}

// openEvents prepares an event stream; the answer begins with its first event. It
// must be closed before the handler returns.
func (g *Gateway) openEvents(x *exchange) *eventStream {
	s := &eventStream{
		x: x, out: http.NewResponseController(x.w), beat: g.limits.Heartbeat, patience: g.limits.StreamStall,
		last: time.Now(), quit: make(chan struct{}),
	}
	s.wg.Go(s.keepAlive)
	return s
}

// close ends the heartbeats. What was written is on its way.
func (s *eventStream) close() {
	close(s.quit)
	s.wg.Wait()
	s.mu.Lock()
	usable := s.failed == nil || errors.Is(s.failed, errPlainAnswer)
	s.mu.Unlock()
	s.patienceMu.Lock()
	defer s.patienceMu.Unlock()
	s.closed = true
	if usable {
		_ = s.out.SetWriteDeadline(time.Time{}) // the connection may be used again
	}
}

// lastWords is how long one write may take once the call is over: a reader that
// takes nothing must not hold what has ended.
const lastWords = time.Second

// whileOpen ties the stream to ctx: once it is done, a blocked write soon is too.
func (s *eventStream) whileOpen(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		s.patienceMu.Lock()
		defer s.patienceMu.Unlock()
		if s.patience = min(s.patience, lastWords); !s.closed {
			_ = s.out.SetWriteDeadline(time.Now().Add(s.patience)) // not every connection of a test knows deadlines
		}
	})
}

// allowTime gives the next write its time.
func (s *eventStream) allowTime() {
	s.patienceMu.Lock()
	defer s.patienceMu.Unlock()
	_ = s.out.SetWriteDeadline(time.Now().Add(s.patience)) // as above
}

// event writes one event; id "" is none. v is encoded as JSON, raw JSON goes out as
// it is.
func (s *eventStream) event(name, id string, v any) error {
	body, isRaw := v.([]byte)
	if !isRaw {
		var err error
		if body, err = contextwire.EncodeCanonical(contextwire.JSON, v); err != nil {
			return module.Errorf(module.CodeInternal, "encode event %s: %w", name, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf = append(s.buf[:0], "event: "...)
	s.buf = append(s.buf, name...)
	if id != "" {
		s.buf = append(append(s.buf, "\nid: "...), id...)
	}
	s.buf = append(append(s.buf, "\ndata: "...), body...) // JSON of ours holds no line breaks
	s.buf = append(s.buf, "\n\n"...)
	return s.writeLocked()
}

// writeLocked sends the buffer.
func (s *eventStream) writeLocked() error {
	if s.failed != nil {
		return s.failed
	}
	if !s.begun {
		s.begun = true
		h := s.x.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("X-Accel-Buffering", "no") // a proxy in between must not collect events
		s.x.w.WriteHeader(http.StatusOK)
	}
	s.allowTime()
	if _, s.failed = s.x.w.Write(s.buf); s.failed == nil {
		s.failed = s.out.Flush()
	}
	s.last = time.Now()
	const keep = 64 << 10
	if cap(s.buf) > keep {
		s.buf = nil
	}
	return s.failed
}

// header sets a header of the answer, as long as it is not begun.
func (s *eventStream) header(name, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun {
		s.x.w.Header().Set(name, value)
	}
}

// plain gives the answer back to whoever wants to write another one, and reports
// whether that is possible: no event and no comment has been written, nor will be.
func (s *eventStream) plain() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun {
		return false
	}
	s.failed = errPlainAnswer
	return true
}

var errPlainAnswer = errors.New("the answer is not an event stream")

// keepAlive writes a comment whenever nothing was written for a while, so that
// neither a proxy nor the reader takes silence for the end.
func (s *eventStream) keepAlive() {
	timer := time.NewTimer(s.beat)
	defer timer.Stop()
	for {
		select {
		case <-s.quit:
			return
		case <-timer.C:
			timer.Reset(s.beatIfSilent())
		}
	}
}

// beatIfSilent returns when to look again.
func (s *eventStream) beatIfSilent() time.Duration {
	if !s.mu.TryLock() {
		return s.beat // a write is under way
	}
	defer s.mu.Unlock()
	if silent := time.Since(s.last); silent < s.beat {
		return s.beat - silent
	}
	s.buf = append(s.buf[:0], ": alive\n\n"...)
	_ = s.writeLocked() // the next event meets the same error
	return s.beat
}

// sequence is the id of a data event, and at the end of how many there were.
func sequence(n uint64) string { return strconv.FormatUint(n, 10) }
