package bus

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// largeBody is the body of a request in the object store. Every attempt of the
// call refers to it, and it is deleted when the call is over.
type largeBody struct {
	ref  *contextwire.BodyRef
	left *leftover
}

// requestBody and the number of the attempt that stored it end the name of a
// request's body, <inbox>.<call>-in<attempt>. The body of an answer is named by
// the reply subject, <inbox>.<call>-<attempt>.
const requestBody = "-in"

// message makes the request of an attempt and returns the size of its body in bytes.
// A body that is too large for a message is put into the object store before, by the
// first attempt (wire protocol, section 6).
func (a *attempt) message(ctx context.Context, to *room) (size int, err error) {
	c, out := a.client, a.out
	to.msg = nats.Msg{Subject: a.target.subject, Reply: a.reply}
	m := &to.msg
	if out.body == nil {
		h, body, err := to.encoder.Request(a.req, contextwire.MsgPack)
		if err != nil {
			return 0, err
		}
		if err := c.limits.CheckSize(len(body)); err != nil {
			return 0, module.AsError(err).NotExecuted()
		}
		store := c.conns.storeFor(len(body))
		if store == nil {
			m.Header, m.Data = nats.Header(h), body
			return len(body), fits(m, c.conns.Calls.MaxPayload())
		}
		if err := a.upload(ctx, store, body); err != nil {
			return 0, err
		}
	}
	a.req.BodyRef = out.body.ref
	if left, limited := budget(a.deadline); limited {
		// The upload took some of it.
		if a.req.Budget = left; left <= 0 {
			return 0, module.Errorf(module.CodeModuleTimeout, "no time left to send the call").NotExecuted()
		}
	}
	h, err := contextwire.EncodeRequestHeader(a.req, contextwire.MsgPack)
	if err != nil {
		return 0, err
	}
	m.Header = nats.Header(h)
	return 0, fits(m, c.conns.Calls.MaxPayload())
}

// upload puts the body of the request into the object store. It ends with the
// call's context, its time, and its cancel.
func (a *attempt) upload(ctx context.Context, store *bodyStore, body []byte) error {
	out := a.out
	large := &largeBody{}
	name := a.client.inbox + "." + a.req.CallID + requestBody + strconv.Itoa(a.req.Attempt)
	if !a.deadline.IsZero() {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadlineCause(ctx, a.deadline, cancel.Because(cancel.Timeout, a.client.name, "the time of the call is over"))
		defer stop()
	}
	err := out.during(ctx, func(ctx context.Context) (err error) {
		large.ref, large.left, err = store.put(ctx, name, body)
		return err
	})
	if err == nil {
		out.body = large
		return nil
	}
	a.client.discard(store, large.left) //nolint:contextcheck // a body is deleted though its call is over
	if coded := module.AsError(err); coded != nil {
		return coded.NotExecuted()
	}
	return a.client.cancelled(err, a.req).NotExecuted()
}

// during runs f with a context that also ends when the call is stopped.
func (o *outgoing) during(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	stopped := o.done()
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-stopped:
			stop(o.stopCause())
		case <-ctx.Done():
		}
	})
	err := f(ctx)
	stop(nil)
	wg.Wait()
	return err
}

// readBody reads the body of a last frame that is in the object store, and
// deletes it there: the caller owns it. A caller that leaves does not wait for
// it; one whose time is over does, as for any answer, up to its backstop.
func (a *attempt) readBody(ctx context.Context, f *contextwire.Frame) error {
	if f.BodyRef == nil {
		return nil
	}
	stored := *f // so that the usual frame need not be on the heap
	err := a.readStored(ctx, &stored)
	*f = stored
	return err
}

func (a *attempt) readStored(ctx context.Context, f *contextwire.Frame) error {
	c := a.client
	store := c.conns.bodies()
	switch {
	case store == nil:
		return module.Errorf(module.CodeBusBadMessage, "the answer is in an object store, and there is no JetStream here")
	case f.BodyRef.Name != c.inbox+"."+a.token:
		return module.Errorf(module.CodeBusBadMessage, "the answer is in an object that does not belong to it")
	}
	defer c.discard(store, &leftover{name: f.BodyRef.Name}) //nolint:contextcheck // a body is deleted though its call is over
	reading, stop := a.patient(ctx)
	defer stop(nil)
	err := a.out.during(reading, func(ctx context.Context) error {
		body, err := store.get(ctx, f.BodyRef)
		if err == nil {
			f.BodyRef = nil // it is checked
			err = f.DecodeBody(body, c.limits)
		}
		return err
	})
	if err == nil {
		return nil
	}
	if coded := module.AsError(err); coded != nil {
		return started(coded)
	}
	a.fate = fateGivenUp
	return c.cancelled(err, a.req)
}

// patient is ctx without its deadline, which the wait for an answer outlives by
// what the owner may take.
func (a *attempt) patient(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	longer, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	undo := context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); !isTimeout(cause) {
			stop(cause)
		}
	})
	left, limited := budget(a.deadline)
	var late *time.Timer
	if limited {
		late = time.AfterFunc(left+a.patience(), func() {
			stop(cancel.Because(cancel.Timeout, a.client.name, "the answer could not be read in time"))
		})
	}
	return longer, func(cause error) {
		undo()
		if late != nil {
			late.Stop()
		}
		stop(cause)
	}
}

// dropReply deletes the body of an answer that is not going to be read.
func (a *attempt) dropReply(m *nats.Msg) {
	ref, ok := contextwire.ParseBodyRef(contextwire.Header(m.Header).Get(contextwire.HeaderBodyRef))
	if store := a.client.conns.bodies(); ok && store != nil && ref.Name == a.client.inbox+"."+a.token {
		a.client.discard(store, &leftover{name: ref.Name})
	}
}

// dropRequest deletes the body of a call that is over.
func (c *Client) dropRequest(out *outgoing) {
	if out.body != nil {
		c.discard(c.conns.bodies(), out.body.left)
	}
}

const (
	// discardLimit is how long deleting a body is tried.
	discardLimit = 5 * time.Second
	// discardAgain is how long after a failure it is tried again.
	discardAgain = 500 * time.Millisecond
)

var errDiscardLate = errors.New("the object store did not answer")

// discard deletes a body in a goroutine of its own. What it cannot delete is left
// to the sweep and in the end to the bucket's TTL. It must be called before the
// call that the body belongs to is forgotten.
func (c *Client) discard(store *bodyStore, left *leftover) {
	if store == nil || left == nil {
		return
	}
	c.wg.Go(func() {
		ctx, stop := context.WithTimeoutCause(context.Background(), discardLimit, errDiscardLate)
		defer stop()
		undo := context.AfterFunc(c.life, func() {
			if !store.js.Conn().IsConnected() {
				stop() // closing does not wait for a server that is away
			}
		})
		defer undo()
		for {
			err := store.discard(ctx, left)
			if err == nil {
				return
			}
			select {
			case <-time.After(discardAgain):
			case <-c.life.Done():
				return
			case <-ctx.Done():
				c.dir.calm.warn("cannot delete a large body, the sweep will", "cause", err)
				return
			}
		}
	})
}

// sweepBodies tidies the object store while the client lives.
func (c *Client) sweepBodies() {
	store := c.conns.bodies()
	if store == nil {
		return
	}
	s := &sweeper{store: store, every: clientSweep, log: c.log,
		ask: func(ctx context.Context, inbox string, calls []string) (*contextwire.ProbeAnswer, error) {
			return probe(ctx, c.conns.Control, inbox, &contextwire.Probe{Node: c.name, Boot: "sweep", Calls: calls})
		},
		away: func() bool { return !c.conns.Control.Connected() || c.reconnectedAt.within(settleTime) },
	}
	c.wg.Go(func() { s.run(c.life) })
}
