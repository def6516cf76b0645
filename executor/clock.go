package executor

import (
	"context"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/module"
)

// clock is the time of one run: the global deadline from its first step, the
// module's limit from the first before hook (core-executor seed, Timeout
// Specification).
type clock struct {
	// deadline is the earlier of the global deadline and the budget that came with
	// the call; zero is none. It is set by the first run and kept by the others.
	deadline time.Time
	whole    time.Duration // what deadline allowed in all
	set      bool
	limit    time.Duration // the module's own

	free    bool // nothing outside can end the run
	running bool
	began   time.Time // when it started running
	alarm   *alarm    // nil when nothing is armed
}

// begin fixes the deadlines of the whole call, at its first step.
func (c *clock) begin(now, global time.Time, globalTimeout, budget time.Duration) {
	if c.set {
		return
	}
	c.set = true
	if !global.IsZero() {
		c.deadline, c.whole = global, ceilMillis(global.Sub(now))
		if globalTimeout > 0 && c.whole > globalTimeout {
			c.whole = globalTimeout
		}
	}
	if budget > 0 {
		if at := now.Add(budget); c.deadline.IsZero() || at.Before(c.deadline) {
			c.deadline, c.whole = at, budget
		}
	}
}

// start starts the module's limit and sets one alarm for whatever ends first. It
// returns the context that ends then, in room. Where ctx itself ends no later, nothing is
// armed: then this is not the call whose time is over, and it gets no grace.
func (c *clock) start(ctx context.Context, now time.Time, token *cancel.Token, limit time.Duration, extra time.Time, room *alarm) context.Context {
	c.running, c.began, c.limit = true, now, limit
	deadline, allowed := c.deadline, c.whole
	if limit > 0 {
		if at := now.Add(limit); deadline.IsZero() || at.Before(deadline) {
			deadline, allowed = at, limit
		}
	}
	if !extra.IsZero() && (deadline.IsZero() || extra.Before(deadline)) {
		deadline, allowed = extra, ceilMillis(extra.Sub(now))
	}
	if deadline.IsZero() {
		return ctx
	}
	if outer, ok := ctx.Deadline(); ok && !deadline.Before(outer) {
		return ctx
	}
	c.alarm = room
	c.alarm.set(ctx, token, deadline, allowed)
	return c.alarm
}

// own reports whether cause is the call's own limit, after which the module gets
// its grace.
func (c *clock) own(cause error) bool { return c.alarm != nil && c.alarm.expiry.Rang(cause) }

// allowed is the time that a timeout reports.
func (c *clock) allowed(ctx context.Context, started time.Time) time.Duration {
	if c.own(context.Cause(ctx)) {
		return c.alarm.limit
	}
	if at, ok := ctx.Deadline(); ok {
		return ceilMillis(at.Sub(started))
	}
	return 0
}

// release stops the timer and makes the clock ready for another run.
func (c *clock) release() {
	if c.alarm != nil {
		c.alarm.expiry.Stop()
	}
	c.running, c.alarm = false, nil
}

// moduleLimit is the module's own limit: the call's option, the descriptor, or the
// default. A disabled one is logged once for each module.
func (p *Pipeline) moduleLimit() time.Duration {
	var limit time.Duration
	switch {
	case p.opts.Timeout != nil:
		limit = *p.opts.Timeout
	case p.entry == nil || p.entry.Descriptor.Timeout == nil:
		return p.set.timeout // New has warned
	default:
		limit = *p.entry.Descriptor.Timeout
	}
	if limit == 0 && p.x.first("timeout", p.moduleID) {
		p.x.log.LogAttrs(p.ctx, levelWarn, "module timeout is disabled", p.attrs()...)
	}
	return limit
}

// now is time.Now at half the price: only the monotonic clock is read.
func (p *Pipeline) now() time.Time {
	if p.started.IsZero() {
		return time.Now() // context creation was configured away
	}
	return p.started.Add(time.Since(p.started))
}

// startClock starts the clock unless an earlier step has, and returns the time.
func (p *Pipeline) startClock() time.Time {
	now := p.now()
	if p.clock.running {
		return now
	}
	var extra time.Time
	if p.chain != nil {
		extra, _ = p.chain.Limit(p.call)
	}
	p.ctx = p.clock.start(p.ctx, now, p.token, p.moduleLimit(), extra, p.room.takeAlarm())
	return now
}

// checkLimit refuses a module that declares a negative limit.
func checkLimit(d *module.Descriptor) error {
	if d.Timeout != nil && *d.Timeout < 0 {
		return module.Errorf(module.CodeInvalidInput, "module %s declares a negative timeout", d.ID)
	}
	return nil
}
