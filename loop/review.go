package loop

import (
	"context"
	"errors"
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
	c, err := e.Case(ctx, hash)
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
// the way, LOOP_STORE, the apply is finished by [Engine.Recover].
func (e *Engine) Apply(ctx context.Context, now time.Time, who Actor, hash, reason string, o ApplyOptions) (*Case, error) {
	reason, err := e.mayApply(who, reason)
	if err != nil {
		return nil, err
	}
	c, err := e.Case(ctx, hash)
	if err != nil {
		return nil, err
	}
	gating, err := e.preflight(ctx, c, who, o)
	if err != nil {
		return nil, err
	}
	intent := AuditEntry{Event: EventApplyIntent, Because: reason, AtMS: now.UnixMilli(), Attempt: c.Status.Attempt + 1, Gating: gating}
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

func (e *Engine) preflight(ctx context.Context, c *Case, who Actor, o ApplyOptions) (*Gating, error) {
	if !c.Status.may(EventApplyIntent) {
		return nil, illegal(c.Status.State, EventApplied)
	}
	if !c.Rec.Executable() {
		return nil, module.Errorf(module.CodeLoopIllegal, "it is advisory, there is nothing to apply")
	}
	if c.Rec.Destructive {
		if err := who.can(ScopeAdmin); err != nil {
			return nil, err
		}
		if !o.AllowDestructive {
			return nil, module.Errorf(module.CodeLoopGated, "it cannot be undone, and that was not allowed")
		}
	}
	if c.Rec.Proposal.Kind == ChangeRevert {
		_, err := e.reverted(ctx, c.Rec.Proposal.RevertOf)
		return nil, err
	}
	for _, op := range c.Rec.Proposal.Ops {
		if err := e.knowledge.premise(ctx, op); err != nil {
			return nil, err
		}
	}
	return e.gating(ctx, c.Hash, c.Rec)
}

// creates lists the items that an attempt makes, one an operation.
func (e *Engine) creates(c *Case, attempt int) []string {
	hashes := make([]string, len(c.Rec.Proposal.Ops))
	for i, op := range c.Rec.Proposal.Ops {
		hashes[i] = itemHash(c.Hash, attempt, i, op)
	}
	return hashes
}

// finishApply does what the intent of c announced, as often as it is called. When
// an operation cannot be done any more, what was done is taken back and the
// recommendation is approved again.
func (e *Engine) finishApply(ctx context.Context, now time.Time, who Actor, c *Case, reason string) error {
	err := e.perform(ctx, now, who, c, reason)
	if code := module.CodeOf(err); err != nil && (code == module.CodeLoopStale || code == module.CodeLoopIllegal || errors.Is(err, errGone)) {
		if undo := e.takeBack(ctx, c); undo != nil {
			return undo
		}
		failed := AuditEntry{Event: EventApplyFailed, Because: "what it would change has changed since", AtMS: now.UnixMilli(), Attempt: c.Status.Attempt}
		if recErr := e.record(ctx, c, engineActor("apply"), failed); recErr != nil {
			return e.settle(ctx, c, recErr)
		}
		return err
	}
	if err != nil {
		return err
	}
	applied := AuditEntry{Event: EventApplied, Because: reason, AtMS: now.UnixMilli(), Attempt: c.Status.Attempt, Created: c.Status.Created}
	if err := e.record(ctx, c, who, applied); err != nil {
		return e.settle(ctx, c, err)
	}
	return nil
}

// settle looks, after a lost race to end an intent, at how it ended: the work is
// done when whoever was faster did the same.
func (e *Engine) settle(ctx context.Context, c *Case, err error) error {
	if module.CodeOf(err) != module.CodeLoopConflict {
		return err
	}
	fresh, readErr := e.Case(ctx, c.Hash)
	if readErr != nil {
		return readErr
	}
	intent := c.Status.Intent
	c.Status = fresh.Status
	if intent == EventApplyIntent && fresh.Status.State == StateApplied || intent == EventRollbackIntent && fresh.Status.State == StateRolledBack {
		return nil
	}
	return err
}

func (e *Engine) perform(ctx context.Context, now time.Time, who Actor, c *Case, reason string) error {
	if c.Rec.Proposal.Kind == ChangeRevert {
		return e.performRevert(ctx, now, who, c, reason)
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
	for i := len(c.Status.Created) - 1; i >= 0; i-- {
		if err := e.knowledge.retract(ctx, c.Rec.Proposal.Ops[i], c.Status.Created[i]); err != nil {
			return err
		}
	}
	return nil
}

// Rollback takes an applied recommendation back: what it made is retracted and what
// it replaced is live again. The actor needs the scope apply and a reason.
func (e *Engine) Rollback(ctx context.Context, now time.Time, who Actor, hash, reason string) (*Case, error) {
	reason, err := e.mayApply(who, reason)
	if err != nil {
		return nil, err
	}
	c, err := e.Case(ctx, hash)
	if err != nil {
		return nil, err
	}
	return c, e.rollback(ctx, now, who, c, reason)
}

func (e *Engine) rollback(ctx context.Context, now time.Time, who Actor, c *Case, reason string) error {
	if !c.Rec.Rollbackable {
		return module.Errorf(module.CodeLoopIllegal, "it cannot be rolled back")
	}
	if err := e.record(ctx, c, who, AuditEntry{Event: EventRollbackIntent, Because: reason, AtMS: now.UnixMilli()}); err != nil {
		return err
	}
	return e.finishRollback(ctx, now, who, c, reason)
}

func (e *Engine) finishRollback(ctx context.Context, now time.Time, who Actor, c *Case, reason string) error {
	if err := e.takeBack(ctx, c); err != nil {
		return err
	}
	if err := e.record(ctx, c, who, AuditEntry{Event: EventRolledBack, Because: reason, AtMS: now.UnixMilli()}); err != nil {
		return e.settle(ctx, c, err)
	}
	return nil
}

// reverted is the recommendation that a revert is about, which must be applied and
// be one that can be rolled back.
func (e *Engine) reverted(ctx context.Context, hash string) (*Case, error) {
	c, err := e.Case(ctx, hash)
	if err != nil {
		return nil, err
	}
	if c.Status.State != StateApplied || !c.Rec.Rollbackable {
		return nil, module.Errorf(module.CodeLoopStale, "what it would revert is %s", c.Status.State)
	}
	return c, nil
}

func (e *Engine) performRevert(ctx context.Context, now time.Time, who Actor, c *Case, reason string) error {
	target, err := e.Case(ctx, c.Rec.Proposal.RevertOf)
	if err != nil {
		return err
	}
	switch {
	case target.Status.State == StateRolledBack && target.Status.ChangedAtMS >= c.Status.IntentAtMS:
		return nil // done before a crash
	case target.Status.Intent == EventRollbackIntent:
		return e.finishRollback(ctx, now, who, target, reason)
	case target.Status.State != StateApplied:
		return module.Errorf(module.CodeLoopStale, "what it would revert is %s", target.Status.State)
	}
	return e.rollback(ctx, now, who, target, reason)
}

// recoverAfter is how old an intent must be before another process takes it up.
const recoverAfter = 5 * time.Minute

// Recover ends what a crash left half done: intents older than five minutes are
// finished, or taken back when that is no longer possible, and recommendations
// without a first entry get it. It is safe at any time, from several processes
// too. A pass begins with it.
func (e *Engine) Recover(ctx context.Context, now time.Time) (recovered int, err error) {
	cases, _, err := e.Cases(ctx)
	if err != nil {
		return 0, err
	}
	return e.recoverCases(ctx, now, cases)
}

func (e *Engine) recoverCases(ctx context.Context, now time.Time, cases []*Case) (recovered int, err error) {
	for _, c := range cases {
		done, err := e.recoverCase(ctx, now, c)
		if err != nil {
			return recovered, err
		}
		if done {
			recovered++
		}
	}
	return recovered, nil
}

func (e *Engine) recoverCase(ctx context.Context, now time.Time, c *Case) (bool, error) {
	if c.Status.Last == 0 {
		err := e.record(ctx, c, Actor{ID: c.Rec.Creator, Observer: ObserverSystem}, pendingEntry(c.Rec))
		if module.CodeOf(err) == module.CodeLoopConflict {
			return false, nil // somebody else did it
		}
		return err == nil, err
	}
	if c.Status.Intent == "" || now.UnixMilli()-c.Status.IntentAtMS < recoverAfter.Milliseconds() {
		return false, nil
	}
	last := c.Status.History[len(c.Status.History)-1]
	for i := len(c.Status.History) - 1; i >= 0 && last.Event != c.Status.Intent; i-- {
		last = c.Status.History[i]
	}
	who := Actor{ID: last.Actor, Observer: last.Observer}
	var err error
	if c.Status.Intent == EventApplyIntent {
		err = e.finishApply(ctx, now, who, c, last.Because)
	} else {
		err = e.finishRollback(ctx, now, who, c, last.Because)
	}
	switch module.CodeOf(err) {
	case module.CodeLoopStale, module.CodeLoopIllegal, module.CodeLoopConflict:
		return true, nil // taken back, or somebody else ended it
	}
	return err == nil, err
}

func pendingEntry(r *Recommendation) AuditEntry {
	return AuditEntry{Event: EventPending, Because: "proposed by " + r.Analyzer, AtMS: r.CreatedAtMS}
}
