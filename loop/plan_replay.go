package loop

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/apbus/apbus/loop/plan"
	"github.com/apbus/apbus/module"
)

// PlanRuns is the journal of what plans did.
type PlanRuns interface {
	// PlanRuns ranges over the newest runs of one version of a plan, oldest first, and
	// no more than the store keeps of it. What cannot be read is passed over. An error
	// ends it.
	PlanRuns(ctx context.Context, planHash string) iter.Seq2[*JournaledRun, error]
}

// JournaledRun is a run with its ID, which is the hash of its record.
type JournaledRun struct {
	ID string `json:"id"`
	*plan.RunRecord
}

// PlanReplay has revisions of plans that a model drafts rehearsed against the runs in
// the journal, and refused where these speak against them (loop specification, section
// 4.8): when it is drafted, and once more when it is applied.
type PlanReplay struct {
	// MinRuns is below how many runs nothing is refused, 3 by default.
	MinRuns int
	// RequireNoWorse refuses a revision under which a run would end worse; on by default.
	RequireNoWorse bool
	// MaxOutOfSupport is the share of runs that the journal may not be able to tell
	// about, 0 to 1, 0.5 by default.
	MaxOutOfSupport float64
}

// DefaultPlanReplay returns the limits of an empty block.
func DefaultPlanReplay() PlanReplay {
	return PlanReplay{MinRuns: 3, RequireNoWorse: true, MaxOutOfSupport: 0.5}
}

func (o *PlanReplay) check() bool {
	return o.MinRuns >= 1 && o.MinRuns <= 10_000 && o.MaxOutOfSupport >= 0 && o.MaxOutOfSupport <= 1 && !math.IsNaN(o.MaxOutOfSupport)
}

// planReplay reads the block of a policy.
func (r *policyReader) planReplay(p *Policy) {
	r.sub("plan_replay", func(s *policyReader) {
		o := DefaultPlanReplay()
		s.number("min_runs", &o.MinRuns)
		take(s, "require_no_worse", &o.RequireNoWorse)
		s.float("max_out_of_support", &o.MaxOutOfSupport)
		p.PlanReplay = &o
	})
}

// Verdicts of a [Rehearsal].
const (
	RehearsalPassed    = "passed"
	RehearsalRefused   = "refused"
	RehearsalAbstained = "abstained"
)

// Rehearsal is what a revision would have done in the place of the journaled runs of
// the plan that it revises.
type Rehearsal struct {
	// Runs is how many there are: those that ended by themselves. Each is in one of the
	// four counts after it. Same end as they did; Better are done where they were not,
	// Worse the other way; of those out of support the journal cannot tell.
	Runs         int `json:"runs"`
	Same         int `json:"same"`
	Better       int `json:"better"`
	Worse        int `json:"worse"`
	OutOfSupport int `json:"out_of_support"`
	// LeftOut are runs that their callers or limits ended.
	LeftOut int `json:"left_out,omitempty"`
	// CallsBefore and CallsAfter are the calls of nodes in the runs that it can tell of.
	CallsBefore int `json:"calls_before"`
	CallsAfter  int `json:"calls_after"`
	// NoWorse is true when no run would end worse.
	NoWorse bool `json:"no_worse"`
	// Verdict is passed, refused or abstained, "" when the policy has no say. Because is
	// why it was refused or abstained.
	Verdict string `json:"verdict,omitempty"`
	Because string `json:"because,omitempty"`
	// WorseRuns are the newest of those that would end worse, at most 8.
	WorseRuns []string `json:"worse_runs,omitempty"`
}

// maxWorseRuns bounds [Rehearsal.WorseRuns].
const maxWorseRuns = 8

// rehearse replays the journaled runs of the plan under hash, live, as if it were
// candidate. Without a journal, and without runs where the policy does not ask for any,
// there is nothing to tell: nil. What cannot be read is LOOP_STORE.
func (e *Engine) rehearse(ctx context.Context, hash string, live, candidate *plan.Plan) (*Rehearsal, error) {
	if e.planRuns == nil {
		return nil, nil
	}
	r := &Rehearsal{}
	for run, err := range e.planRuns.PlanRuns(ctx, hash) {
		if err != nil {
			return nil, storeError("reading the journal of plan runs", err)
		}
		if run.PlanHash != hash {
			continue
		}
		if err := r.add(ctx, live, candidate, run); err != nil {
			return nil, err
		}
	}
	r.NoWorse = r.Worse == 0
	if e.policy.PlanReplay != nil {
		r.judge(e.policy.PlanReplay)
	} else if r.Runs == 0 {
		return nil, nil
	}
	return r, nil
}

// add counts one run.
func (r *Rehearsal) add(ctx context.Context, live, candidate *plan.Plan, run *JournaledRun) error {
	if run.Outcome != plan.OutcomeOK && run.Outcome != plan.OutcomeError {
		r.LeftOut++
		return nil
	}
	before, err := plan.Replay(ctx, live, live, run.RunRecord)
	if err != nil {
		return err
	}
	after, err := plan.Replay(ctx, live, candidate, run.RunRecord)
	if err != nil {
		return err
	}
	r.Runs++
	// A record by which even the plan itself does not end as it did says nothing.
	if !before.Known || !after.Known || (before.Failed == "") != (run.Outcome == plan.OutcomeOK) {
		r.OutOfSupport++
		return nil
	}
	r.CallsBefore, r.CallsAfter = r.CallsBefore+before.Calls, r.CallsAfter+after.Calls
	switch {
	case before.Done && !after.Done:
		r.Worse++
		if r.WorseRuns = append(r.WorseRuns, run.ID); len(r.WorseRuns) > maxWorseRuns {
			r.WorseRuns = slices.Delete(r.WorseRuns, 0, 1)
		}
	case after.Done && !before.Done:
		r.Better++
	default:
		r.Same++
	}
	return nil
}

func (r *Rehearsal) judge(o *PlanReplay) {
	r.Verdict = RehearsalPassed
	switch unknown := float64(r.OutOfSupport) / float64(max(r.Runs, 1)); {
	case r.Runs < o.MinRuns:
		r.Verdict, r.Because = RehearsalAbstained, fmt.Sprintf("%d runs are journaled, it takes %d to judge", r.Runs, o.MinRuns)
	case o.RequireNoWorse && !r.NoWorse:
		r.Verdict, r.Because = RehearsalRefused, fmt.Sprintf("%d of %d journaled runs would end worse", r.Worse, r.Runs)
	case unknown > o.MaxOutOfSupport:
		r.Verdict, r.Because = RehearsalRefused, fmt.Sprintf("of %d of %d journaled runs the journal cannot tell how they would end", r.OutOfSupport, r.Runs)
	}
}

// rehearsed rehearses a stored revision before it is applied, by the runs that are in
// the journal by now. LOOP_GATED where they speak against it; what cannot be measured,
// LOOP_STORE, is not applied.
func (e *Engine) rehearsed(ctx context.Context, rec *Recommendation) (*Rehearsal, error) {
	if rec.Kind != KindPlanRevision || e.policy.PlanReplay == nil || e.planRuns == nil {
		return nil, nil
	}
	op := rec.Proposal.Ops[0]
	item, err := e.knowledge.Named(ctx, ItemPlan, op.Namespace, op.Name)
	if err != nil {
		return nil, err
	}
	if item == nil || item.Hash != op.Replaces {
		return nil, stale(op, "what it replaces is not live any more")
	}
	live, err := PlanOf(item)
	if err != nil {
		return nil, err
	}
	candidate, err := PlanOf(&Item{Fields: op.Fields})
	if err != nil {
		return nil, err
	}
	r, err := e.rehearse(ctx, item.Hash, live, candidate)
	if err != nil {
		return nil, err
	}
	if r.Verdict == RehearsalRefused {
		return nil, module.Errorf(module.CodeLoopGated, "the plan is not revised: %s", r.Because)
	}
	return r, nil
}
