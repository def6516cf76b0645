package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

const (
	// noticeLimit bounds everything done to tell others that a call ended here.
	noticeLimit = 2 * time.Second
	// noticePatience is how long a directed notice waits for its answer before
	// the call's children are cancelled without it.
	noticePatience = 500 * time.Millisecond
	// gatherLimit is how long answers to a broadcast are collected, gatherQuiet
	// how long after one answer the next may take.
	gatherLimit = 500 * time.Millisecond
	gatherQuiet = 100 * time.Millisecond
)

// giveUp tells the owner that this side no longer waits. It returns at once;
// the notice leaves in a goroutine of its own (wire protocol section 5, Cancel).
func (c *Client) giveUp(a *attempt, cause error) {
	if a.kind != kindCall {
		return // a check holds nothing
	}
	notice := contextwire.CancelNotice{
		Call: a.key.Call, Attempt: a.key.Attempt, Reason: reasonFor(cause), By: c.name, At: time.Now().UTC(),
	}
	owner, moduleID := a.owner(), a.req.ModuleID
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		return
	}
	c.counts.cancelsSent.Add(1)
	c.wg.Go(func() { c.sendNotice(owner, moduleID, notice) })
}

func reasonFor(cause error) string {
	if r := cancel.ReasonOf(cause); r != "" {
		return string(r)
	}
	return string(cancel.Caller)
}

func (c *Client) sendNotice(owner proc, moduleID string, notice contextwire.CancelNotice) {
	ctx, stop := context.WithTimeoutCause(context.Background(), noticeLimit, errors.New("cancel notice took too long"))
	defer stop()
	if owner == (proc{}) {
		c.publishControl(c.subjects.cancelModule(moduleID), &notice)
	} else {
		one, stopOne := context.WithTimeoutCause(ctx, noticePatience, errors.New("no answer to a cancel notice"))
		_, err := ask(one, c.conns.Control, c.subjects.node(owner.node, owner.boot, verbCancel), &notice)
		stopOne()
		if err == nil {
			return
		}
	}
	// The owner cannot pass it on, or nobody knows who the owner is: what runs
	// on its behalf elsewhere is reached by its parent.
	children := notice
	children.Call, children.Attempt, children.Parent = "", 0, notice.Call
	c.publishControl(c.subjects.cancelAll(), &children)
}

func (c *Client) publishControl(subject string, body contextwire.ControlMessage) {
	m, err := controlMsg(subject, "", body)
	if err == nil {
		err = c.conns.Control.Publish(m)
	}
	if err != nil {
		c.dir.calm.warn("cannot send a control message", "subject", subject, "cause", err)
	}
}

// CancelResult says who answered a cancel.
type CancelResult struct {
	// Nodes and Calls are sorted and hold each name once.
	Nodes, Calls []string
	// State is cancelling, finished or tombstoned, and "unknown" when nobody
	// knew the call.
	State string
}

// The states of a [CancelResult].
const (
	StateCancelling = "cancelling"
	StateFinished   = "finished"
	StateTombstoned = "tombstoned"
	StateUnknown    = "unknown"
)

// Cancel stops calls anywhere in the namespace: one call, everything of a root
// or trace, or the children of a parent. It returns as soon as a call's owner
// answered; for a tree it collects answers for up to half a second. Nobody
// knowing the call is State "unknown" and not an error; hosts then keep a
// tombstone, so that a call that arrives later is stopped all the same.
func (c *Client) Cancel(ctx context.Context, sel cancel.Selector, reason, by string) (CancelResult, error) {
	if err := sel.Valid(); err != nil || sel.Issuer != "" {
		return CancelResult{}, module.Errorf(module.CodeInvalidInput, "cancel needs one of call, root, parent and trace")
	}
	if by == "" {
		by = c.name
	}
	notice := &contextwire.CancelNotice{
		Call: sel.Call, Attempt: sel.Attempt, Root: sel.Root, Parent: sel.Parent, Trace: sel.Trace,
		Reason: reason, By: by, At: time.Now().UTC(),
	}
	c.counts.cancelsSent.Add(1)
	if sel.Call != "" {
		if res, done := c.cancelOwn(ctx, sel.Call, notice); done {
			return res, nil
		}
	}
	return c.broadcast(ctx, notice, sel.Call != "")
}

// cancelOwn cancels a call that this client made, through the owner it knows.
func (c *Client) cancelOwn(ctx context.Context, call string, notice *contextwire.CancelNotice) (CancelResult, bool) {
	c.mu.Lock()
	o := c.calls[call]
	c.mu.Unlock()
	if o == nil {
		return CancelResult{}, false
	}
	res := CancelResult{Calls: []string{call}, State: StateCancelling}
	owner := o.currentOwner()
	answered := false
	if owner != (proc{}) {
		one, stop := context.WithTimeoutCause(ctx, noticePatience, errors.New("no answer to a cancel"))
		body, err := ask(one, c.conns.Control, c.subjects.node(owner.node, owner.boot, verbCancel), notice)
		stop()
		if err == nil {
			if a, err := contextwire.CancelAnswerFromMap(body); err == nil {
				answered = true
				res.Nodes, res.State = []string{a.Node}, a.State
			}
		}
	}
	o.stop(cancel.Because(cancel.Remote, notice.By, notice.Reason))
	return res, answered || owner == (proc{})
}

// broadcast asks every process. first ends the wait with the first answer.
func (c *Client) broadcast(ctx context.Context, notice *contextwire.CancelNotice, first bool) (CancelResult, error) {
	ctx, stop := context.WithTimeoutCause(ctx, gatherLimit, errGathered)
	defer stop()
	g, err := gatherReplies(c.conns.Control)
	if err != nil {
		return CancelResult{}, err
	}
	defer g.close()
	m, err := controlMsg(c.subjects.cancelAll(), g.inbox, notice)
	if err != nil {
		return CancelResult{}, err
	}
	if err := c.conns.Control.Publish(m); err != nil {
		return CancelResult{}, fmt.Errorf("cancel: %w", err)
	}
	res := CancelResult{State: StateUnknown}
	err = g.collect(ctx, func(body map[string]any) bool {
		a, err := contextwire.CancelAnswerFromMap(body)
		if err != nil {
			return false
		}
		res.Nodes = append(res.Nodes, a.Node)
		res.Calls = append(res.Calls, a.Calls...)
		if res.State != StateCancelling {
			res.State = a.State
		}
		return first && a.State == StateCancelling
	})
	for _, list := range []*[]string{&res.Nodes, &res.Calls} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return res, err
}

var errGathered = errors.New("the time for answers is over")

// gather collects the answers to one broadcast.
type gather struct {
	inbox string
	sub   Subscription
	in    chan *nats.Msg
	once  sync.Once
}

func gatherReplies(conn Conn) (*gather, error) {
	g := &gather{inbox: conn.NewInbox(), in: make(chan *nats.Msg, 1024)}
	sub, err := conn.Subscribe(g.inbox, "", func(m *nats.Msg) {
		select {
		case g.in <- m:
		default: // more processes than fit answer in the same instant
		}
	})
	if err != nil {
		return nil, err
	}
	g.sub = sub
	return g, nil
}

func (g *gather) close() { g.once.Do(func() { _ = g.sub.Unsubscribe() }) }

// collect calls each with every answer until it returns true, no further one
// came for gatherQuiet, nobody listens, or the time is over, which is no error.
func (g *gather) collect(ctx context.Context, each func(body map[string]any) bool) error {
	var quiet <-chan time.Time
	for {
		select {
		case m := <-g.in:
			if isNoResponders(m) {
				return nil
			}
			if body, err := answerBody(m); err == nil && each(body) {
				return nil
			}
			quiet = time.After(gatherQuiet)
		case <-quiet:
			return nil
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, errGathered) {
				return module.Wrap(module.CodeExecutionCancelled, cause, "stopped waiting for answers")
			}
			return nil
		}
	}
}
