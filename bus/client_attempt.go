package bus

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// fate is what is known about an attempt that ended without a result.
type fate int

const (
	fateAnswered fate = iota // the owner said so
	fateRefused              // nothing was delivered
	fateLost                 // the owner is gone and may have run it
	fateGivenUp              // this side stopped waiting
)

// silenceLimit is how long a call sent to a queue group may stay without any
// frame: its taker accepts within 20 ms, so it is frozen, gone, or cut off.
const silenceLimit = 2500 * time.Millisecond

// attempt is one sending of one call.
type attempt struct {
	client   *Client
	out      *outgoing
	kind     string
	target   target
	req      *contextwire.Request
	deadline time.Time

	key     cancel.Key
	reply   string // the subject of its frames
	token   string // the last token of it
	started time.Time
	mail    mailbox
	in      *inflow // nil unless the call is a stream
	host    *host   // the process that has it; only run writes it
	grace   time.Duration
	heard   bool // a frame came, so somebody has the call
	// accepted says that the caller knows who has it.
	accepted bool
	fate     fate

	// Place in the list of the host's open calls, and whether its process has once
	// said not to know the call, guarded by the host's lock.
	prevOpen, nextOpen *attempt
	denied             bool
}

// replyToken is the last token of an attempt's reply subject.
func replyToken(call string, attempt int) string { return call + "-" + strconv.Itoa(attempt) }

// mustArrive reports whether m is the last message of a call, or the trace that
// comes before it.
func mustArrive(m *nats.Msg) bool {
	kind := contextwire.FrameKind(contextwire.Header(m.Header).Get(contextwire.HeaderFrame))
	return kind.Terminal() || kind == contextwire.FrameTrace || isNoResponders(m)
}

// run sends the request and waits for the end.
func (a *attempt) run(ctx context.Context) (map[string]any, proc, error) {
	c := a.client
	a.key = cancel.Key{Call: a.req.CallID, Attempt: a.req.Attempt}
	if a.reply == "" {
		a.reply = c.inbox + "." + replyToken(a.req.CallID, a.req.Attempt)
	}
	a.token = a.reply[len(c.inbox)+1:]
	defer a.in.close()
	a.grace = a.target.grace

	room := c.rooms.take()
	size, err := a.message(ctx, room)
	if err != nil {
		return nil, proc{}, err
	}
	a.started = time.Now() // now, since storing a large body may have taken its time
	c.mu.Lock()
	a.out.current = a
	c.mu.Unlock()
	if a.target.directed() {
		a.adopt(a.target.proc)
	}
	defer a.leave()

	if err := c.conns.Calls.Publish(&room.msg); err != nil {
		a.fate = fateRefused
		return nil, a.target.proc, err
	}
	if a.out.body == nil { // else what stores it may still read it
		c.rooms.give(room)
	}
	c.counts.out.observe(int64(size))
	return a.wait(ctx)
}

// adopt notes which process has the call.
func (a *attempt) adopt(p proc) {
	if a.host != nil && a.host.proc == p {
		return
	}
	if a.host != nil {
		a.host.remove(a)
	}
	a.host = a.client.hostOf(p)
	a.host.add(a)
	a.out.setOwner(p)
}

func (a *attempt) leave() {
	c := a.client
	c.mu.Lock()
	a.out.current = nil
	c.mu.Unlock()
	if a.host != nil {
		a.host.remove(a)
	}
}

func (a *attempt) owner() proc {
	if a.host != nil {
		return a.host.proc
	}
	return proc{}
}

// wait follows the frames until the terminal one, the loss of the owner, or the
// end of this side's patience.
//
//nolint:contextcheck // a notice must leave though the call is over
func (a *attempt) wait(ctx context.Context) (map[string]any, proc, error) {
	done := ctx.Done()
	at := limits{waiter: a.out.wait}
	armBackstop := func() {
		if left, limited := budget(a.deadline); limited {
			at.backstop = time.Now().Add(left + a.patience())
		}
	}
	if a.host == nil {
		at.silence = time.Now().Add(silenceLimit)
	}
	armBackstop()
	for {
		m, lost := a.next()
		if m != nil {
			// It is read even when its owner is lost since; a reader that was told to
			// stop reads no more.
			if a.in != nil {
				if cause := a.ended(ctx); cause != nil {
					return nil, a.owner(), a.stop(cause)
				}
			}
			at.silence = time.Time{}
			grace := a.grace
			body, over, err := a.frame(ctx, m)
			if over || err != nil {
				return body, a.owner(), err
			}
			if a.grace != grace {
				armBackstop()
			}
			continue
		}
		if cause := a.out.stopCause(); cause != nil {
			return nil, a.owner(), a.stop(cause)
		}
		if lost != nil && !a.in.hasEnd() {
			a.fate = fateLost
			a.client.giveUp(a, cancel.Because(cancel.NodeLost, a.client.name, "owner lost"))
			return nil, a.owner(), lost
		}
		select {
		case <-a.out.wait.wake:
		case <-a.in.due():
			a.grant()
		case <-done:
			cause := context.Cause(ctx)
			if !isTimeout(cause) {
				return nil, a.owner(), a.stop(cause)
			}
			// The owner ends it by its own clock; its answer is worth waiting for.
			done = nil
			if a.deadline.IsZero() {
				at.backstop = time.Now().Add(a.patience())
			}
		case <-at.due():
			at.armed = time.Time{}
			if e := a.late(&at); e != nil {
				return nil, a.owner(), e
			}
		}
	}
}

// late ends the attempt when one of its limits has come.
func (a *attempt) late(at *limits) *module.Error {
	now := time.Now()
	switch {
	case !at.silence.IsZero() && !now.Before(at.silence):
		if now.Sub(at.silence) > tick/2 {
			// It was this process that stood still; the frame may be here.
			at.silence = now.Add(silenceLimit)
			return nil
		}
		a.fate = fateLost
		a.client.giveUp(a, cancel.Because(cancel.NodeLost, a.client.name, "no host accepted the call"))
		return a.client.lostError(a, proc{}, "no host accepted the call")
	case !at.backstop.IsZero() && !now.Before(at.backstop):
		if a.in.hasEnd() {
			at.backstop = time.Time{} // it is about to be read
			return nil
		}
		a.fate = fateGivenUp
		a.client.giveUp(a, cancel.Because(cancel.Timeout, a.client.name, "no answer in time"))
		return module.Errorf(module.CodeModuleTimeout, "the owner did not answer in time").
			WithDetails(map[string]any{"module_id": a.req.ModuleID})
	}
	return nil
}

// ended is why this side no longer waits, when it does not.
func (a *attempt) ended(ctx context.Context) error {
	if cause := a.out.stopCause(); cause != nil {
		return cause
	}
	if ctx.Err() == nil {
		return nil
	}
	if cause := context.Cause(ctx); !isTimeout(cause) {
		return cause
	}
	return nil
}

// stop ends the attempt because this side no longer waits.
func (a *attempt) stop(cause error) *module.Error {
	a.fate = fateGivenUp
	a.client.giveUp(a, cause)
	return a.client.cancelled(cause, a.req)
}

func isTimeout(cause error) bool {
	return errors.Is(cause, context.DeadlineExceeded) || cancel.ReasonOf(cause) == cancel.Timeout
}

// patience is how long after the budget the owner's own answer may take.
func (a *attempt) patience() time.Duration {
	grace := a.grace
	if grace <= 0 {
		grace = defaultGrace
	}
	return grace + backstopSlack
}

// frame handles one reply. ended is true for the terminal one.
//
//nolint:contextcheck // a notice must leave though the call is over
func (a *attempt) frame(ctx context.Context, m *nats.Msg) (body map[string]any, ended bool, err error) {
	if isNoResponders(m) {
		if a.heard {
			return nil, false, nil // not the server's word about this call
		}
		a.fate = fateRefused
		return nil, true, a.client.nobody(a)
	}
	f := &contextwire.Frame{}
	if err := f.Decode(contextwire.Header(m.Header), m.Data, a.client.limits); err != nil {
		a.dropReply(m)
		// Whatever it was, the call ends here, so it must end there.
		a.client.giveUp(a, cancel.Because(cancel.Caller, a.client.name, "the answer cannot be read"))
		return nil, true, module.Propagate(err, a.req.ModuleID, a.req.Context)
	}
	a.heard = true
	if f.Node != "" {
		a.adopt(proc{f.Node, f.Boot})
	}
	switch f.Kind {
	case contextwire.FrameAccept:
		if f.Grace > 0 {
			a.grace = f.Grace
		}
		a.in.grantTo(f.CreditTo)
		if a.req.Accepted != nil && !a.accepted {
			a.accepted = true
			a.req.Accepted(f.Node, f.Boot)
		}
	case contextwire.FrameProgress:
		if a.req.Progress != nil && f.Progress != nil {
			a.req.Progress(*f.Progress)
		}
	case contextwire.FrameTrace:
		a.out.trace = f.Body
	case contextwire.FrameData, contextwire.FrameEnd:
		if a.in == nil {
			return nil, true, module.Errorf(module.CodeBusBadMessage, "a stream came in answer to a call that is none")
		}
		return a.part(ctx, f, m)
	case contextwire.FrameResult:
		if a.in != nil {
			return nil, true, a.truncated("it ended as if it were none")
		}
		if err := a.readBody(ctx, f); err != nil {
			return nil, true, err
		}
		if a.host != nil {
			a.host.answered(time.Since(a.started))
		}
		return f.Body, true, nil
	case contextwire.FrameError:
		if f.Err.Code == module.CodeBusOverloaded {
			if a.host != nil {
				a.host.suspect(max(f.RetryAfter, 100*time.Millisecond))
			}
			if f.RetryAfter > 0 {
				f.Err = f.Err.WithDetail("retry_after_ms", f.RetryAfter.Milliseconds())
			}
		}
		if a.begun() {
			f.Err = started(f.Err)
		}
		return nil, true, f.Err
	}
	return nil, false, nil
}

// fits refuses what the server would drop, before anything is sent (and before
// nats.go would leak an entry for it). What is far from the limit is not measured: no
// header block is as large as half a message.
func fits(m *nats.Msg, limit int64) error {
	if limit <= 0 || (limit >= 4*maxHeaderBlock && 2*int64(len(m.Data)) < limit) {
		return nil
	}
	if size := int64(m.Size()); size > limit {
		return contextwire.TooLarge(size, limit).NotExecuted()
	}
	return nil
}

// maxHeaderBlock is what a reader takes of headers (wire protocol, section 3).
const maxHeaderBlock = 16 << 10
