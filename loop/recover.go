package loop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apbus/apbus/module"
)

// What a process that died left half done is finished by whoever meets it next: a
// reader, a reviewer, a pass, a router that starts. Nobody has to know whether the
// process is dead or only slow. Every operation can be done by several at once and
// again, of those that write the end of an intent one succeeds, and what is taken
// back cannot be made any more by somebody who is late.

// Settled is [Engine.Case], once what a crash left half done is finished. When that
// cannot be done now, the case shows its intent.
func (e *Engine) Settled(ctx context.Context, now time.Time, hash string) (*Case, error) {
	c, err := e.Case(ctx, hash)
	if err != nil {
		return nil, err
	}
	e.trySettle(ctx, now, c)
	return c, nil
}

// Queue is [Engine.Cases], once what a crash left half done is finished, as far as
// that can be done now.
func (e *Engine) Queue(ctx context.Context, now time.Time) (cases []*Case, bad int, err error) {
	if cases, bad, err = e.Cases(ctx); err != nil {
		return nil, 0, err
	}
	for _, c := range cases {
		e.trySettle(ctx, now, c)
	}
	return cases, bad, nil
}

func (e *Engine) trySettle(ctx context.Context, now time.Time, c *Case) {
	if _, err := e.finish(ctx, now, c); err != nil {
		e.log.WarnContext(ctx, "loop: what was cut off cannot be finished now", "rec", c.Hash, "code", module.CodeOf(err), "cause", err)
	}
}

// Recover ends what a crash left half done: intents are finished, or taken back when
// that is no longer possible, and recommendations without a first entry get it. It is
// safe at any time, from several processes and while others work. A pass begins with
// it, and so does a router. One that cannot be finished keeps no other from it; the
// error names each.
func (e *Engine) Recover(ctx context.Context, now time.Time) (recovered int, err error) {
	cases, _, err := e.Cases(ctx)
	if err != nil {
		return 0, err
	}
	return e.recoverCases(ctx, now, cases)
}

func (e *Engine) recoverCases(ctx context.Context, now time.Time, cases []*Case) (recovered int, err error) {
	var failed []error
	for _, c := range cases {
		done, err := e.recoverCase(ctx, now, c)
		switch {
		case err != nil && ctx.Err() != nil:
			return recovered, err
		case err != nil:
			failed = append(failed, fmt.Errorf("%s: %w", c.Hash, err))
		case done:
			recovered++
		}
	}
	return recovered, errors.Join(failed...)
}

// recoverCase ends what is half done; done tells that there was something, which
// this process or another one ended.
func (e *Engine) recoverCase(ctx context.Context, now time.Time, c *Case) (done bool, err error) {
	if c.Status.Last == 0 {
		err := e.record(ctx, c, Actor{ID: c.Rec.Creator, Observer: ObserverSystem}, pendingEntry(c.Rec))
		if module.CodeOf(err) == module.CodeLoopConflict {
			return false, e.refresh(ctx, c)
		}
		return err == nil, err
	}
	finished, err := e.finish(ctx, now, c)
	return finished != "", err
}

// ended is a case that nobody is in the middle of.
func (e *Engine) ended(ctx context.Context, now time.Time, hash string) (*Case, error) {
	c, _, err := e.meet(ctx, now, hash)
	return c, err
}

// meet reads a case and finishes what is half done; finished is the intent that was
// met, "" when there was none.
func (e *Engine) meet(ctx context.Context, now time.Time, hash string) (c *Case, finished AuditEvent, err error) {
	if c, err = e.Case(ctx, hash); err != nil {
		return nil, "", err
	}
	if finished, err = e.finish(ctx, now, c); err != nil {
		return nil, "", err
	}
	return c, finished, nil
}

// finish ends the intent of c, if there is one, in the name and for the reason of
// whoever had it. That it could not be done, or was ended by another process, is an
// end too.
func (e *Engine) finish(ctx context.Context, now time.Time, c *Case) (finished AuditEvent, err error) {
	if finished = c.Status.Intent; finished == "" {
		return "", nil
	}
	begun := c.Status.begun()
	who := Actor{ID: begun.Actor, Observer: begun.Observer}
	switch finished {
	case EventApplyIntent:
		err = e.finishApply(ctx, now, who, c, begun.Because)
	case EventApplyAbort:
		err = e.finishAbort(ctx, now, c)
	default:
		err = e.finishRollback(ctx, now, who, c, begun.Because)
	}
	if err != nil && !endsApply(err) && module.CodeOf(err) != module.CodeLoopConflict {
		return "", err
	}
	return finished, nil
}

// begun is the entry of the intent that is under way.
func (s *Status) begun() AuditEntry {
	for i := len(s.History) - 1; i >= 0; i-- {
		if e := s.History[i]; e.Event == EventApplyIntent || e.Event == EventRollbackIntent {
			return e
		}
	}
	return AuditEntry{}
}

// refresh reads the state of c again.
func (e *Engine) refresh(ctx context.Context, c *Case) error {
	fresh, err := e.Case(ctx, c.Hash)
	if err != nil {
		return err
	}
	c.Status = fresh.Status
	return nil
}

// endsApply reports whether an apply that failed so can never be done: trying again
// would fail in the same way.
func endsApply(err error) bool {
	switch module.CodeOf(err) {
	case module.CodeLoopStale, module.CodeLoopIllegal, module.CodeLoopInvalid, module.CodeLoopNotFound:
		return true
	}
	return errors.Is(err, errGone)
}

// finishApply does what the intent of c announced, as often as it is called. When
// an operation cannot be done any more, what was done is taken back and the
// recommendation is approved again.
func (e *Engine) finishApply(ctx context.Context, now time.Time, who Actor, c *Case, reason string) error {
	attempt := c.Status.Attempt
	err := e.perform(ctx, now, who, c, reason)
	if err != nil && endsApply(err) {
		abort := AuditEntry{Event: EventApplyAbort, Because: "what it would change has changed since", AtMS: now.UnixMilli(), Attempt: attempt}
		if lost := e.record(ctx, c, engineActor("apply"), abort); lost != nil {
			return e.outrun(ctx, now, c, lost, attempt)
		}
		if undo := e.finishAbort(ctx, now, c); undo != nil {
			return undo
		}
		return err
	}
	if err != nil {
		return err
	}
	applied := AuditEntry{Event: EventApplied, Because: reason, AtMS: now.UnixMilli(), Attempt: attempt, Created: c.Status.Created}
	if lost := e.record(ctx, c, who, applied); lost != nil {
		return e.outrun(ctx, now, c, lost, attempt)
	}
	return nil
}

// outrun looks, after a lost race to end an apply, at how it ended: it is done when
// whoever was faster applied the same attempt.
func (e *Engine) outrun(ctx context.Context, now time.Time, c *Case, lost error, attempt int) error {
	if module.CodeOf(lost) != module.CodeLoopConflict {
		return lost
	}
	if err := e.refresh(ctx, c); err != nil {
		return err
	}
	if c.Status.Attempt != attempt {
		return lost
	}
	if c.Status.Intent == EventApplyAbort {
		if err := e.finishAbort(ctx, now, c); err != nil {
			return err
		}
	}
	switch c.Status.State {
	case StateApplied:
		return nil
	case StateApproved:
		return module.Errorf(module.CodeLoopStale, "what it would change has changed since")
	}
	return lost
}

// finishAbort takes back what an apply did that was given up.
func (e *Engine) finishAbort(ctx context.Context, now time.Time, c *Case) error {
	if err := e.takeBack(ctx, c); err != nil {
		return err
	}
	failed := AuditEntry{Event: EventApplyFailed, Because: "what it did is taken back", AtMS: now.UnixMilli(), Attempt: c.Status.Attempt}
	err := e.record(ctx, c, engineActor("apply"), failed)
	if module.CodeOf(err) == module.CodeLoopConflict {
		return e.refresh(ctx, c) // somebody else did the same
	}
	return err
}

// finishRollback takes back what c did, as often as it is called.
func (e *Engine) finishRollback(ctx context.Context, now time.Time, who Actor, c *Case, reason string) error {
	if err := e.takeBack(ctx, c); err != nil {
		return err
	}
	lost := e.record(ctx, c, who, AuditEntry{Event: EventRolledBack, Because: reason, AtMS: now.UnixMilli()})
	if module.CodeOf(lost) != module.CodeLoopConflict {
		return lost
	}
	if err := e.refresh(ctx, c); err != nil {
		return err
	}
	if c.Status.State != StateRolledBack {
		return lost
	}
	return nil
}

func (e *Engine) perform(ctx context.Context, now time.Time, who Actor, c *Case, reason string) error {
	if c.Rec.Proposal.Kind == ChangeRevert {
		return e.performRevert(ctx, now, who, c, reason)
	}
	if len(c.Status.Created) != len(c.Rec.Proposal.Ops) {
		return module.Errorf(module.CodeLoopInvalid, "the intent is of other operations")
	}
	for i, op := range c.Rec.Proposal.Ops {
		if err := e.knowledge.do(ctx, op, c.Status.Created[i], c.Hash, c.Status.IntentAtMS); err != nil {
			return err
		}
	}
	return nil
}

// takeBack undoes what an attempt did, last first.
func (e *Engine) takeBack(ctx context.Context, c *Case) error {
	for i := min(len(c.Status.Created), len(c.Rec.Proposal.Ops)) - 1; i >= 0; i-- {
		if err := e.knowledge.retract(ctx, c.Rec.Proposal.Ops[i], c.Status.Created[i], c.Hash, c.Status.IntentAtMS); err != nil {
			return err
		}
	}
	return nil
}

func pendingEntry(r *Recommendation) AuditEntry {
	return AuditEntry{Event: EventPending, Because: "proposed by " + r.Analyzer, AtMS: r.CreatedAtMS}
}
