package bus

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// silentCaller is how long a caller may leave probes unanswered.
const silentCaller = 3 * time.Second

// caller is a client this node works for.
type caller struct {
	inbox string

	mu      sync.Mutex
	probing bool
	heard   time.Time // of its last answer or request
	gone    time.Time // of the first 503 in a row
}

// watchCallers probes every client with calls here that are older than a tick,
// and cancels the calls of one that is gone (wire protocol section 5, Lost
// caller). Bare callers have no probe to answer and are left alone.
func (n *Node) watchCallers() {
	t := time.NewTicker(tick)
	defer t.Stop()
	callers := map[string]*caller{}
	last := time.Now()
	for {
		select {
		case <-n.life.Done():
			return
		case <-t.C:
		}
		now := time.Now()
		late := now.Sub(last) > lateTick
		last = now
		busy := n.issuers(now)
		for inbox := range callers {
			if _, still := busy[inbox]; !still {
				delete(callers, inbox)
			}
		}
		for inbox, called := range busy {
			c := callers[inbox]
			if c == nil {
				c = &caller{inbox: inbox}
				callers[inbox] = c
			}
			c.hear(called)
			n.probe(c, late)
		}
	}
}

// issuers lists the clients that have had a call here for a tick or longer, and
// when the youngest of those calls came.
func (n *Node) issuers(now time.Time) map[string]time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	busy := map[string]time.Time{}
	for _, r := range n.running {
		if !r.head.Bare && now.Sub(r.arrived) >= tick-50*time.Millisecond && r.arrived.After(busy[r.issuer]) {
			busy[r.issuer] = r.arrived
		}
	}
	return busy
}

// hear takes a sign of life.
func (c *caller) hear(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at.After(c.heard) {
		c.heard = at
	}
}

func (n *Node) probe(c *caller, late bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.probing {
		return
	}
	c.probing = true
	n.wg.Go(func() {
		ctx, stop := context.WithTimeoutCause(n.life, pingPatience, errNoProbeAnswer)
		defer stop()
		up := n.conns.Control.Connected()
		_, err := n.askCaller(ctx, c.inbox, nil)
		away := late || !up || !n.conns.Control.Connected() || n.reconnectedAt.within(settleTime)
		if n.life.Err() == nil && c.judge(err, away, time.Now()) {
			n.callerGone(c.inbox)
		}
	})
}

var errNoProbeAnswer = errors.New("the caller did not answer a probe")

// judge takes in the outcome of a probe and reports whether the caller is gone.
// away is true when our own side may be the reason for a silence.
func (c *caller) judge(err error, away bool, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probing = false
	switch {
	case err == nil || away:
		c.heard, c.gone = now, time.Time{}
		return false
	case errors.Is(err, ErrNoResponders):
		if c.gone.IsZero() {
			c.gone = now
			return false
		}
		return now.Sub(c.gone) >= goneApart
	}
	c.gone = time.Time{}
	return now.Sub(c.heard) >= silentCaller
}

func (n *Node) askCaller(ctx context.Context, inbox string, calls []string) (*contextwire.ProbeAnswer, error) {
	return probe(ctx, n.conns.Control, inbox, &contextwire.Probe{Node: n.opts.ID, Boot: n.boot, Calls: calls})
}

// probe asks a client whether it lives.
func probe(ctx context.Context, conn Conn, inbox string, p *contextwire.Probe) (*contextwire.ProbeAnswer, error) {
	body, err := ask(ctx, conn, inbox+"."+probeToken, p)
	if err != nil {
		return nil, err
	}
	return contextwire.ProbeAnswerFromMap(body)
}

func (n *Node) callerGone(inbox string) {
	matched, _ := n.table.Cancel(cancel.Selector{Issuer: inbox}, cancel.CancelRequest{
		Privileged: true, Cause: cancel.Because(cancel.CallerGone, n.opts.ID, "the caller is gone"),
	})
	if len(matched) > 0 {
		n.log.Info("cancelled the calls of a caller that is gone", "calls", len(matched), "cause", cancel.CallerGone)
	}
}

// stillWanted asks the caller of a call that may have waited too long. It
// returns why the call must not be started: the caller has given it up or is
// gone, or it does not answer, and then it may well want another attempt.
func (r *running) stillWanted() *module.Error {
	if r.head.Bare {
		return nil // refused on arrival when in doubt
	}
	ctx, stop := context.WithTimeoutCause(r.ctx, 2*pingPatience, errNoProbeAnswer)
	defer stop()
	key := contextwire.FormatKey(r.key.Call, r.key.Attempt)
	answer, err := r.node.askCaller(ctx, r.issuer, []string{key})
	switch {
	case err == nil && len(answer.Unknown) == 0:
		return nil
	case err == nil, errors.Is(err, ErrNoResponders):
		return module.Errorf(module.CodeExecutionCancelled, "the caller no longer waits")
	case r.ctx.Err() != nil:
		return r.cancelledBefore()
	}
	return module.Errorf(module.CodeBusOverloaded, "the node was away and cannot reach the caller to ask whether it still waits")
}
