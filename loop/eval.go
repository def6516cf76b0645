package loop

import (
	"context"
	"errors"
	"fmt"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// EvalRun is one journaled run of an evalset: who ran it does not matter, what is
// in the journal does.
type EvalRun struct {
	V int `json:"v"`
	// Evalset is the hash of the evalset item, Candidate the recommendation whose
	// code was run, "" for a run over what is live.
	Evalset   string `json:"evalset_hash"`
	Candidate string `json:"candidate"`
	RunID     string `json:"run_id"`
	AtMS      int64  `json:"at_ms"`
	// Passed and Failed count cases; they are -1 when a stored run lacks them, and
	// such a run proves nothing.
	Passed int `json:"passed"`
	Failed int `json:"failed"`
	// DurationMS is how long all cases took, 0 when it was not measured.
	DurationMS int64 `json:"duration_ms,omitempty"`
}

// Gating is what an apply was allowed by.
type Gating struct {
	Evalset string `json:"evalset_hash"`
	RunID   string `json:"run_id"`
	Passed  int    `json:"passed"`
	Failed  int    `json:"failed"`
}

func evalLog(evalset string) string { return "evals." + evalset }

// JournalEval appends a run to the journal of its evalset.
func (e *Engine) JournalEval(ctx context.Context, run EvalRun) error {
	if len(run.Evalset) != 64 || !isHex(run.Evalset) || run.Candidate != "" && (len(run.Candidate) != 64 || !isHex(run.Candidate)) ||
		run.RunID == "" || chars(run.RunID) > MaxTargetLen || run.Passed < 0 || run.Failed < 0 || run.DurationMS < 0 {
		return module.Errorf(module.CodeLoopInvalid, "not a run of an evalset")
	}
	run.V = 1
	raw, err := encodeStored(run)
	if err != nil {
		return err
	}
	for {
		last := uint64(0)
		for entry, err := range e.store.Log(ctx, evalLog(run.Evalset)) {
			if err != nil {
				return storeError("reading the eval journal", err)
			}
			last = entry.Rev
		}
		_, err := e.store.Append(ctx, evalLog(run.Evalset), raw, last)
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrConflict) {
			return storeError("writing the eval journal", err)
		}
	}
}

// gating reads from the journal what allows a code change to be applied: the
// newest run of the pinned evalset over this candidate, all of its cases, none
// failed, and the evalset still live. LOOP_GATED otherwise.
func (e *Engine) gating(ctx context.Context, hash string, r *Recommendation) (*Gating, error) {
	if r.EvalsetHash == "" {
		return nil, nil
	}
	gated := func(why string) error { return module.Errorf(module.CodeLoopGated, "code is not applied: %s", why) }
	evalset, err := e.evalsetOf(ctx, r.Proposal.Ops[0].Name)
	if err != nil {
		return nil, err
	}
	if evalset == nil || evalset.Hash != r.EvalsetHash {
		return nil, gated("its evalset has been replaced since, so that it must be proposed again")
	}
	cases, _ := evalset.Fields["cases"].([]any)
	var newest *EvalRun
	for entry, err := range e.store.Log(ctx, evalLog(r.EvalsetHash)) {
		if err != nil {
			return nil, storeError("reading the eval journal", err)
		}
		run, ok := readEvalRun(entry.Value)
		if ok && run.Candidate == hash && run.Evalset == r.EvalsetHash {
			newest = &run
		}
	}
	switch {
	case newest == nil:
		return nil, gated("its evalset has not been run on it")
	case newest.Failed != 0 || newest.Passed < 1 || newest.Passed != len(cases):
		return nil, gated(fmt.Sprintf("%d of %d cases passed", newest.Passed, len(cases)))
	}
	return &Gating{Evalset: newest.Evalset, RunID: newest.RunID, Passed: newest.Passed, Failed: newest.Failed}, nil
}

// readEvalRun skips, rather than completes, what lacks its numbers.
func readEvalRun(raw []byte) (EvalRun, bool) {
	m, err := contextwire.DecodeMap(contextwire.JSON, raw, contextwire.Limits{MaxBody: MaxStoreValue})
	if err != nil {
		return EvalRun{}, false
	}
	_, passed := m["passed"].(int64)
	_, failed := m["failed"].(int64)
	var run EvalRun
	if !passed || !failed || module.FromMap(m, &run) != nil {
		return EvalRun{}, false
	}
	return run, run.V == 1
}

// evalsetOf is the live evalset of a tool: the one with its name.
func (e *Engine) evalsetOf(ctx context.Context, tool string) (*Item, error) {
	return e.knowledge.Named(ctx, ItemEvalset, "", tool)
}

// Evaluated reports whether the pinned evalset of a recommendation has been run on
// it.
func (e *Engine) Evaluated(ctx context.Context, c *Case) (bool, error) {
	for entry, err := range e.store.Log(ctx, evalLog(c.Rec.EvalsetHash)) {
		if err != nil {
			return false, storeError("reading the eval journal", err)
		}
		if run, ok := readEvalRun(entry.Value); ok && run.Candidate == c.Hash && run.Evalset == c.Rec.EvalsetHash {
			return true, nil
		}
	}
	return false, nil
}
