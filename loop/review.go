package loop

import (
	"context"
	"time"

	"github.com/apbus/apbus/module"
)

// Approve approves a pending recommendation. The actor needs the scope review and
// a reason, and is neither creator nor co-creator (LOOP_SELF_APPROVAL). Nothing is
// applied by it. Of two decisions at once one gets LOOP_CONFLICT.
func (e *Engine) Approve(ctx context.Context, now time.Time, who Actor, hash, reason string) (*Case, error) {
	return e.decide(ctx, now, who, hash, reason, EventApproved)
}

// Reject rejects a pending recommendation and keeps its like away for a while. The
// creator may reject too.
func (e *Engine) Reject(ctx context.Context, now time.Time, who Actor, hash, reason string) (*Case, error) {
	return e.decide(ctx, now, who, hash, reason, EventRejected)
}

func (e *Engine) decide(ctx context.Context, now time.Time, who Actor, hash, reason string, event AuditEvent) (*Case, error) {
	if err := who.can(ScopeReview); err != nil {
		return nil, err
	}
	reason, err := because(reason)
	if err != nil {
		return nil, err
	}
	c, err := e.ended(ctx, now, hash)
	if err != nil {
		return nil, err
	}
	if event == EventApproved && (who.ID == c.Rec.Creator || who.ID == c.Rec.CoCreator) {
		return nil, module.Errorf(module.CodeLoopSelfApproval, "whoever had it drafted cannot approve it")
	}
	if err := e.record(ctx, c, who, AuditEntry{Event: event, Because: reason, AtMS: now.UnixMilli()}); err != nil {
		return nil, err
	}
	return c, nil
}

// ApplyOptions are what an apply may need.
type ApplyOptions struct {
	// AllowDestructive, with the scope admin, applies what cannot be undone.
	AllowDestructive bool
}

// Apply applies an approved recommendation. The actor needs the scope apply and a
// reason. What it would change must still be as it was (LOOP_STALE), a code
// revision needs a passed run of its evalset (LOOP_GATED). When the store fails on
// the way, LOOP_STORE, whoever meets the recommendation next finishes the apply
// ([Engine.Recover]); to apply it again is one way to do so. Of several actors at once
// one applies it, and the others get LOOP_CONFLICT, LOOP_ILLEGAL or LOOP_STALE.
func (e *Engine) Apply(ctx context.Context, now time.Time, who Actor, hash, reason string, o ApplyOptions) (*Case, error) {
	reason, err := e.mayApply(who, reason)
	if err != nil {
		return nil, err
	}
	c, finished, err := e.meet(ctx, now, hash)
	if err != nil || finished == EventApplyIntent && c.Status.State == StateApplied && c.Status.begun().Actor == who.ID {
		return c, err // their own, cut off before
	}
	gates, err := e.preflight(ctx, c, who, o)
	if err != nil {
		return nil, err
	}
	intent := AuditEntry{Event: EventApplyIntent, Because: reason, AtMS: now.UnixMilli(), Attempt: c.Status.Attempt + 1, Gating: gates.gating, Replay: gates.replay}
	intent.Created = e.creates(c, intent.Attempt)
	if err := e.record(ctx, c, who, intent); err != nil {
		return nil, err
	}
	return c, e.finishApply(ctx, now, who, c, reason)
}

// Preflight tells whether an apply by this actor would be refused, without
// recording anything; to be asked before a decision that is meant to be followed by
// an apply at once. The recommendation may be pending.
func (e *Engine) Preflight(ctx context.Context, who Actor, hash string, o ApplyOptions) error {
	if err := who.can(ScopeApply); err != nil {
		return err
	}
	c, err := e.Case(ctx, hash)
	if err != nil {
		return err
	}
	if c.Status.State == StatePending {
		c.Status.State = StateApproved
	}
	_, err = e.preflight(ctx, c, who, o)
	return err
}

func (e *Engine) mayApply(who Actor, reason string) (string, error) {
	if err := who.can(ScopeApply); err != nil {
		return "", err
	}
	return because(reason)
}

// gates are what an apply was allowed by.
type gates struct {
	gating *Gating
	replay *Rehearsal
}

func (e *Engine) preflight(ctx context.Context, c *Case, who Actor, o ApplyOptions) (g gates, err error) {
	if !c.Status.may(EventApplyIntent) {
		return g, illegal(c.Status.State, EventApplied)
	}
	if !c.Rec.Executable() {
		return g, module.Errorf(module.CodeLoopIllegal, "it is advisory, there is nothing to apply")
	}
	if c.Rec.Destructive {
		if err := who.can(ScopeAdmin); err != nil {
			return g, err
		}
		if !o.AllowDestructive {
			return g, module.Errorf(module.CodeLoopGated, "it cannot be undone, and that was not allowed")
		}
	}
	if c.Rec.Proposal.Kind == ChangeRevert {
		return g, e.revertible(ctx, c.Rec.Proposal.RevertOf)
	}
	for _, op := range c.Rec.Proposal.Ops {
		if err := e.knowledge.premise(ctx, op); err != nil {
			return g, err
		}
	}
	if g.gating, err = e.gating(ctx, c.Hash, c.Rec); err != nil {
		return g, err
	}
	g.replay, err = e.rehearsed(ctx, c.Rec)
	return g, err
}

// creates lists the items that an attempt makes, one an operation.
func (e *Engine) creates(c *Case, attempt int) []string {
	hashes := make([]string, len(c.Rec.Proposal.Ops))
	for i, op := range c.Rec.Proposal.Ops {
		hashes[i] = itemHash(c.Hash, attempt, i, op)
	}
	return hashes
}

// Rollback takes an applied recommendation back: what it made is retracted and what
// it replaced is live again. The actor needs the scope apply and a reason.
func (e *Engine) Rollback(ctx context.Context, now time.Time, who Actor, hash, reason string) (*Case, error) {
	reason, err := e.mayApply(who, reason)
	if err != nil {
		return nil, err
	}
	c, finished, err := e.meet(ctx, now, hash)
	if err != nil || finished == EventRollbackIntent && c.Status.State == StateRolledBack && c.Status.begun().Actor == who.ID {
		return c, err // their own, cut off before
	}
	return c, e.rollback(ctx, now, who, c, reason, "")
}

// rollback takes c back, for a revert or for nobody but who.
func (e *Engine) rollback(ctx context.Context, now time.Time, who Actor, c *Case, reason, revert string) error {
	if !c.Rec.Rollbackable {
		return module.Errorf(module.CodeLoopIllegal, "it cannot be rolled back")
	}
	if err := e.record(ctx, c, who, AuditEntry{Event: EventRollbackIntent, Because: reason, AtMS: now.UnixMilli(), For: revert}); err != nil {
		return err
	}
	return e.finishRollback(ctx, now, who, c, reason)
}

// revertible checks what a revert is about: it must be applied, or about to be, and
// be one that can be rolled back.
func (e *Engine) revertible(ctx context.Context, hash string) error {
	c, err := e.Case(ctx, hash)
	if err != nil {
		return err
	}
	if c.Status.State != StateApplied && c.Status.Intent != EventApplyIntent || !c.Rec.Rollbackable {
		return module.Errorf(module.CodeLoopStale, "what it would revert is %s", c.Status.State)
	}
	return nil
}

// maxMeets bounds how often somebody may be faster to change what a revert is about.
const maxMeets = 8

// performRevert takes back what c reverts, unless that was done for c before. The
// rollback is known by the revert it names and not by its time: whoever helps has a
// clock of their own.
func (e *Engine) performRevert(ctx context.Context, now time.Time, who Actor, c *Case, reason string) error {
	for met := 1; ; met++ {
		target, _, err := e.meet(ctx, now, c.Rec.Proposal.RevertOf)
		if err != nil {
			return err
		}
		switch {
		case target.Status.State == StateRolledBack && target.Status.begun().For == c.Hash:
			return nil
		case target.Status.State != StateApplied:
			return module.Errorf(module.CodeLoopStale, "what it would revert is %s", target.Status.State)
		}
		err = e.rollback(ctx, now, who, target, reason, c.Hash)
		if module.CodeOf(err) != module.CodeLoopConflict || met == maxMeets {
			return err
		}
	}
}
