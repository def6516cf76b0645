package bus

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

const (
	// maxAttempts is how often a call is sent at most.
	maxAttempts = 3
	// defaultGrace is assumed of an owner that has not said how long it lets a
	// module clean up.
	defaultGrace = 5 * time.Second
	// backstopSlack is what the caller waits beyond the owner's time and grace.
	backstopSlack = 500 * time.Millisecond
	// retryBase doubles with each attempt; the wait is a random part of it.
	retryBase = 50 * time.Millisecond
)

// final says who answered.
type final struct {
	proc
	attempt int
	trace   map[string]any // when it was asked for
}

// exchange runs a call or check over as many attempts as are allowed and
// needed; a stream's chunks go to send, which is nil for all else. The rules of wire protocol section 5, Retries by the client.
func (c *Client) exchange(ctx context.Context, kind string, r *contextwire.Request, send func(module.Chunk) error) (output map[string]any, by final, err error) {
	if err := module.ValidateID(r.ModuleID); err != nil {
		return nil, final{}, err
	}
	out := &outgoing{req: *r, wait: c.waiters.take()}
	defer c.waiters.give(out.wait)
	req := &out.req
	req.BodyRef = nil // that of a request which came in is not ours
	if req.Stream = send != nil; req.Stream && req.Credit == (contextwire.Credit{}) {
		req.Credit = c.window
	}
	if req.CallID == "" {
		out.first.reply, req.CallID = c.mint()
	}
	ctx, span := c.startCall(ctx, kind, req)
	began := time.Now()
	defer func() {
		if kind == kindCall {
			took := time.Since(began)
			c.counts.ended(req.ModuleID, took, module.AsError(err))
			c.recordEnd(req, took, module.AsError(err))
		}
		endCall(span, by, err)
	}()
	if err := c.begin(out); err != nil {
		return nil, final{}, err
	}
	defer c.end(out)
	defer c.dropRequest(out) //nolint:contextcheck // a body is deleted though its call is over

	if ctx.Err() != nil {
		return nil, final{}, c.cancelled(context.Cause(ctx), req).NotExecuted()
	}
	deadline := callDeadline(ctx, r.Budget)
	var tried [maxAttempts]proc
	var lost *module.Error
	for n := 1; ; n++ {
		req.Attempt = n
		if left, ok := budget(deadline); !ok {
			req.Budget = 0
		} else if req.Budget = left; left <= 0 {
			return nil, final{}, module.Errorf(module.CodeModuleTimeout, "no time left to send the call").At(req.Context, req.ModuleID).NotExecuted()
		}
		t, refused := c.choose(kind, req, tried[:n-1])
		if refused != nil {
			return nil, final{}, cmp.Or(lost, refused.At(req.Context, req.ModuleID).NotExecuted())
		}
		a := &out.first
		if n > 1 {
			a = &attempt{}
		}
		a.client, a.out, a.kind, a.target, a.req, a.deadline = c, out, kind, t, req, deadline
		if send != nil {
			a.in = newInflow(send, req.Credit)
		}
		body, by, err := a.run(ctx)
		if err == nil {
			return body, final{by, n, out.trace}, nil
		}
		e := module.Propagate(err, req.ModuleID, req.Context)
		tried[n-1] = by
		if a.fate == fateLost {
			c.counts.lost.Add(1)
			lost = e
		}
		wait, again := c.retry(e, a, n, deadline, tried[:n])
		if !again && lost != nil && e.Unexecuted {
			e = lost // an attempt before this one may have run
		}
		if !again {
			return nil, final{by, n, out.trace}, e
		}
		c.counts.retries.add(e.Code)
		noteRetry(span, n, by, e)
		if cause := out.pause(ctx, wait); cause != nil {
			return nil, final{proc: by, attempt: n}, c.cancelled(cause, req)
		}
	}
}

// mint makes a call ID and the reply subject of its first attempt, in one piece.
func (c *Client) mint() (reply, call string) {
	var room [128]byte
	text := append(room[:0], c.inbox...)
	text = append(text, '.')
	from := len(text)
	text = contextwire.AppendCallID(text)
	to := len(text)
	reply = string(append(text, "-1"...))
	return reply, reply[from:to]
}

// callDeadline is the earlier of the context's deadline and the budget.
func callDeadline(ctx context.Context, budget time.Duration) time.Time {
	deadline, has := ctx.Deadline()
	if budget > 0 {
		if byBudget := time.Now().Add(budget); !has || byBudget.Before(deadline) {
			return byBudget
		}
	}
	if !has {
		return time.Time{}
	}
	return deadline
}

// budget is the time left; ok is false when there is no limit.
func budget(deadline time.Time) (left time.Duration, ok bool) {
	if deadline.IsZero() {
		return 0, false
	}
	return time.Until(deadline), true
}

// begin enters a call into the table of the client's own calls.
func (c *Client) begin(o *outgoing) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return module.Errorf(module.CodeBusDisconnected, "the client is closed").NotExecuted()
	}
	if _, taken := c.calls[o.req.CallID]; taken {
		return module.Errorf(module.CodeInvalidInput, "call id is already in flight").NotExecuted()
	}
	c.calls[o.req.CallID] = o
	c.active.Add(1)
	return nil
}

func (c *Client) end(o *outgoing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, o.req.CallID)
	c.active.Done()
}

// retry decides whether another attempt is allowed and how long to wait first.
func (c *Client) retry(e *module.Error, a *attempt, n int, deadline time.Time, tried []proc) (time.Duration, bool) {
	if n >= maxAttempts || a.begun() {
		return 0, false
	}
	switch {
	case a.fate == fateLost:
		// It may have run. Only a module that says so may run again, and only where
		// somebody is known to be: the queue group of a frozen host still takes
		// calls, so trying there would only make the caller wait twice.
		if e.Retryable != module.True || !c.elsewhere(a.req, tried) {
			return 0, false
		}
	case !e.Unexecuted:
		return 0, false
	case e.Code == module.CodeExecutionCancelled, e.Code == module.CodeBusBudgetExhausted:
		return 0, false
	case e.Code == module.CodeModuleNotFound:
		// A directed host that has it no longer; somebody else may.
		if !a.target.directed() {
			return 0, false
		}
	case e.Code == module.CodeBusOverloaded && e.Retryable == module.False && c.elsewhere(a.req, tried):
		// It would wait for itself there, not on another host.
	case e.Retryable == module.False:
		return 0, false
	}
	wait := rand.N(retryBase << (n - 1)) //nolint:gosec // jitter needs no secrecy
	if after := retryAfter(e); after > 0 {
		wait += after
	}
	if left, limited := budget(deadline); limited && left <= wait {
		return 0, false
	}
	return wait, true
}

// retryAfter is how long an overloaded owner asked to wait.
func retryAfter(e *module.Error) time.Duration {
	ms, _ := e.Details["retry_after_ms"].(int64)
	return time.Duration(min(max(ms, 0), 60_000)) * time.Millisecond
}

// pause waits between two attempts. It returns why the call ended meanwhile.
func (o *outgoing) pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-o.done():
		return o.stopCause()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// cancelled is how a call ends that its own side gave up.
func (c *Client) cancelled(cause error, req *contextwire.Request) *module.Error {
	if isTimeout(cause) {
		return module.Wrap(module.CodeModuleTimeout, cause, "the call's time is over").
			WithDetail("module_id", req.ModuleID).At(req.Context, req.ModuleID)
	}
	return module.Wrap(module.CodeExecutionCancelled, cause, "the call was cancelled").At(req.Context, req.ModuleID)
}
