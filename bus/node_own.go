package bus

import (
	"context"
	"errors"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// ownCall is a call that the process made of itself, not over the bus.
type ownCall struct {
	node  *Node
	req   *contextwire.Request
	entry *cancel.Entry
}

// Invoke runs a call of this process's own, such as an attempt of a task, among the
// calls in flight here: it is listed like one that came over the bus, and cancelled by
// its ID, root or trace, which a cancel that came before it does too. It takes no slot
// of MaxInFlight; whoever calls bounds what it calls. Draining does not wait for it,
// Close cancels it. ctx cancels it as well.
//
// An ID that is empty is made, and one that is in flight already is refused with
// GENERAL_INVALID_INPUT. After Close the answer is BUS_OVERLOADED.
func (n *Node) Invoke(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
	own := *req
	if own.CallID == "" {
		own.CallID = contextwire.NewCallID()
	}
	own.Attempt = max(own.Attempt, 1)
	if own.Context == nil {
		own.Context = module.NewContext(module.ContextOptions{})
	}
	ctx, token := cancel.Join(ctx, nil)
	defer token.Release()
	c := &ownCall{node: n, req: &own}
	if err := n.begin(c, token); err != nil {
		return nil, err
	}
	defer n.forget(c)
	defer context.AfterFunc(n.life, func() { token.Cancel(cancel.Because(cancel.Shutdown, n.opts.ID, "node closed")) })() //nolint:contextcheck // the call ends with the node too
	started := time.Now()
	reply, err := n.host.Invoke(ctx, &own)
	var failure *module.Error
	if err != nil {
		failure = module.Propagate(err, own.ModuleID, own.Context)
	}
	n.counts.ended(own.ModuleID, time.Since(started), failure)
	return reply, err //nolint:wrapcheck // the host's answer is the answer
}

// begin enters a call of our own into the table and the list.
func (n *Node) begin(c *ownCall, token *cancel.Token) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return drainingError()
	}
	root := c.req.Root
	if root == "" {
		root = c.req.CallID
	}
	var err error
	c.entry, err = n.table.Begin(cancel.Call{
		Key: cancel.Key{Call: c.req.CallID, Attempt: c.req.Attempt}, Root: root, Parent: c.req.Parent,
		Trace: c.req.Context.TraceID(), ModuleID: c.req.ModuleID, Mode: contextwire.ModeUnary, Budget: c.req.Budget, Token: token,
	})
	var buried *cancel.Tombstoned
	switch {
	case errors.As(err, &buried):
		return module.Wrap(module.CodeExecutionCancelled, buried.Cause, "the call was cancelled before it began").
			WithDetail("module_id", c.req.ModuleID).NotExecuted()
	case err != nil:
		return module.Errorf(module.CodeInvalidInput, "call of %s: %w", c.req.ModuleID, err).NotExecuted()
	}
	n.own[c.entry.Call().Key] = c
	n.mine.Add(1)
	return nil
}

func (n *Node) forget(c *ownCall) {
	c.entry.End()
	n.mu.Lock()
	delete(n.own, c.entry.Call().Key)
	n.mu.Unlock()
	n.mine.Done()
}

// record shows the call to operators.
func (c *ownCall) record() contextwire.CallRecord {
	call := c.entry.Call()
	rec := contextwire.CallRecord{
		Call: call.Call, Attempt: call.Attempt, Root: call.Root, Parent: call.Parent, ModuleID: call.ModuleID,
		Node: c.node.opts.ID, Boot: c.node.boot, TraceID: call.Trace, Mode: call.Mode,
		StartedAt: call.StartedAt.UTC(), BudgetMS: call.Budget.Milliseconds(), State: cancel.StateRunning,
	}
	if chain := c.req.Context.ChainView(); len(chain) > 0 {
		rec.CallerID = chain[len(chain)-1]
	}
	if id := c.req.Context.Identity(); id != nil {
		rec.IdentityID = id.ID()
	}
	if c.entry.Cancelling() {
		rec.State = cancel.StateCancelling
	}
	return rec
}
