package loop

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// RunOptions are the conditions and bounds of one pass. MinNew, MinNewErrors and
// IfStale are joined by or; with none of them the pass runs, unless the cadence of
// the policy says that it is not due.
type RunOptions struct {
	MinNew       int
	MinNewErrors int
	// IfStale runs the pass when the last one is so long ago; a loop that never ran is
	// stale.
	IfStale time.Duration
	// Namespaces narrow what is looked at, all when empty.
	Namespaces []string
	// FullSweep shows a model evidence regardless of what it has seen, and overrides
	// the cadence.
	FullSweep bool
	// Trigger is who had the pass run. With a backend it is required, and cannot
	// approve what comes of it.
	Trigger Actor
}

// Why a pass was skipped.
const (
	SkipMinNew  = "min_new_not_met"
	SkipStale   = "not_stale"
	SkipLocked  = "lock_held"
	SkipCadence = "cadence_not_due"
)

// Result is what a pass did.
type Result struct {
	Outcome          string    `json:"outcome"` // ran or skipped
	SkipReason       string    `json:"skip_reason,omitempty"`
	NewGrains        int       `json:"new_grains"`
	NewErrorEvents   int       `json:"new_error_events"`
	Proposed         int       `json:"proposed"`
	Deduped          int       `json:"deduped"`
	Stored           int       `json:"stored"`
	AutoApplied      int       `json:"auto_applied"` // always 0
	AnalyzersRun     []string  `json:"analyzers_run"`
	AnalyzersSkipped []Skipped `json:"analyzers_skipped"`
	// Funnel tells what became of a model's drafts; nil without a backend.
	Funnel    *Funnel  `json:"llm_funnel,omitempty"`
	Usage     *Usage   `json:"llm_usage,omitempty"`
	Withdrawn int      `json:"withdrawn,omitempty"`
	Expired   int      `json:"expired,omitempty"`
	Measured  int      `json:"measured,omitempty"`
	Drifted   int      `json:"drifted,omitempty"`
	Recovered int      `json:"recovered,omitempty"`
	Unread    int      `json:"unread,omitempty"` // recommendations that could not be read
	Recs      []string `json:"recs,omitempty"`   // hashes of what was stored
}

// Skipped is an analyzer, or one of its drafts, that was left out.
type Skipped struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// Funnel counts what became of a model's drafts.
type Funnel struct {
	Evidence              int  `json:"evidence"`
	Proposed              int  `json:"proposed"`
	Cited                 int  `json:"cited"`
	DroppedUncited        int  `json:"dropped_uncited"`
	DroppedTarget         int  `json:"dropped_target"`
	Grounded              int  `json:"grounded"`
	GroundVerdicts        int  `json:"ground_verdicts"`
	GroundCallFailed      bool `json:"ground_call_failed"`
	VerifyVerdicts        int  `json:"verify_verdicts"`
	VerifyCallFailed      bool `json:"verify_call_failed"`
	Kept                  int  `json:"kept"`
	BelowFloor            int  `json:"below_floor"`
	Stored                int  `json:"stored"` // before validation and dedup
	DiscoverCallFailed    bool `json:"discover_call_failed"`
	EnrichCallFailed      bool `json:"enrich_call_failed,omitempty"`
	DiscoverUnparseable   bool `json:"discover_unparseable,omitempty"`
	MalformedDrafts       int  `json:"malformed_drafts,omitempty"`
	MalformedVerdicts     int  `json:"malformed_verdicts,omitempty"`
	DroppedUnconfident    int  `json:"dropped_unconfident,omitempty"`
	UnresolvedCitations   int  `json:"unresolved_citations,omitempty"`
	AdvisoryThinEvidence  int  `json:"advisory_thin_evidence,omitempty"`
	AdvisoryProposal      int  `json:"advisory_proposal,omitempty"`
	AdvisoryReplay        int  `json:"advisory_replay,omitempty"`
	DroppedNearDuplicate  int  `json:"dropped_near_duplicate,omitempty"`
	DroppedPendingCeiling int  `json:"dropped_pending_ceiling,omitempty"`
}

// loopState is the document under [BucketState] that a pass commits.
type loopState struct {
	V         int   `json:"v"`
	LastRunMS int64 `json:"last_run_ms"`
	// Watermark and LLMWatermark are sequences of evidence: what was counted, and
	// what a model was shown. The second moves only when DISCOVER answered with
	// something that can be read.
	Watermark    int64 `json:"watermark"`
	LLMWatermark int64 `json:"llm_watermark"`
}

const (
	// lockTTL is longer than a pass may take with every call of the model at its limit.
	lockTTL = 15 * time.Minute
)

// pass is one run of the stages; each stage is a method in a file of its own.
type pass struct {
	*Engine
	now    time.Time
	opts   RunOptions
	result *Result
	state  loopState
	rev    uint64
	counts Counts
	cases  []*Case
	// items are all items of knowledge at the begin of the pass.
	items    []*Item
	outcomes []Outcome
	// evals are the runs of the policy's evalset over what is live.
	evals []EvalRun
	// journals are the runs of each evalset that was asked for, grains how many records
	// came since each apply that waits for a number of them.
	journals map[string][]EvalRun
	grains   map[string]int
	// candidates are the stamped findings, those of analyzers before those of a model.
	candidates []*candidate
	// shown is true once DISCOVER has shown the model what there was.
	shown bool
}

// candidate is a recommendation on its way to the store.
type candidate struct {
	rec    *Recommendation
	family string
}

// Run makes one pass. It never blocks on another pass: then it is skipped with
// lock_held. An error means that the pass did not commit; what it stored by then
// stays and is not stored again by the next one.
func (e *Engine) Run(ctx context.Context, now time.Time, o RunOptions) (*Result, error) {
	if e.backend != nil && o.Trigger.ID == "" {
		return nil, module.Errorf(module.CodeLoopScope, "a run with a model needs whoever triggers it")
	}
	p := &pass{Engine: e, now: now, opts: o, result: &Result{
		Outcome: "ran", AnalyzersRun: []string{}, AnalyzersSkipped: []Skipped{},
	}}
	p.opts.Namespaces = slices.Compact(slices.Sorted(slices.Values(o.Namespaces)))
	unlock, err := e.store.Lock(ctx, "run."+p.scopeName(), lockTTL)
	if errors.Is(err, ErrLocked) {
		p.skip(SkipLocked)
		return p.result, nil
	}
	if err != nil {
		return nil, storeError("taking the lock of the loop", err)
	}
	defer func() {
		if err := unlock(context.WithoutCancel(ctx)); err != nil {
			e.log.WarnContext(ctx, "loop: lock was not given back", "cause", err)
		}
	}()
	meter, metered := e.backend.(Metered)
	if metered {
		meter.BeginPass()
	}
	if err := p.run(ctx); err != nil {
		return nil, err
	}
	if metered {
		p.result.Usage = new(meter.Usage())
	}
	return p.result, nil
}

func (p *pass) skip(reason string) {
	p.result.Outcome, p.result.SkipReason = "skipped", reason
}

// scopeName tells passes over different namespaces apart. Each has a lock and
// watermarks of its own: what one has seen the other has not.
func (p *pass) scopeName() string {
	if len(p.opts.Namespaces) == 0 {
		return "all"
	}
	return schema.ContentHash(strings.Join(p.opts.Namespaces, "\x1f"))
}

func (p *pass) stateKey() string { return "loop." + p.scopeName() }

// run calls the stages in their order.
func (p *pass) run(ctx context.Context) error {
	due, err := p.gate(ctx)
	if err != nil || !due {
		return err
	}
	for _, stage := range []func(context.Context) error{
		p.expire, p.measure, p.drift, p.analyze, p.consult, p.validate, p.enrich, p.keep, p.commit,
	} {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := stage(ctx); err != nil {
			return err
		}
	}
	return nil
}

// gate decides whether the pass is due, and recovers what a crash left in any case.
func (p *pass) gate(ctx context.Context) (bool, error) {
	if err := p.load(ctx); err != nil {
		return false, err
	}
	if err := p.readState(ctx); err != nil {
		return false, err
	}
	var err error
	p.counts, err = p.reader.Count(ctx, Query{AfterSeq: uint64(p.state.Watermark), Namespaces: p.opts.Namespaces}) //nolint:gosec // never negative
	if err != nil {
		return false, storeError("counting evidence", err)
	}
	p.result.NewGrains, p.result.NewErrorEvents = p.counts.Records, p.counts.Errors
	if reason := p.notDue(); reason != "" {
		p.skip(reason)
		return false, nil
	}
	return true, nil
}

func (p *pass) notDue() string {
	o, since := p.opts, p.now.Sub(time.UnixMilli(p.state.LastRunMS))
	never := p.state.LastRunMS == 0
	if o.MinNew > 0 || o.MinNewErrors > 0 || o.IfStale > 0 {
		switch {
		case o.MinNew > 0 && p.counts.Records >= o.MinNew,
			o.MinNewErrors > 0 && p.counts.Errors >= o.MinNewErrors,
			o.IfStale > 0 && (never || since >= o.IfStale):
			return ""
		case o.MinNew > 0 || o.MinNewErrors > 0:
			return SkipMinNew
		}
		return SkipStale
	}
	if o.FullSweep || p.policy.CadenceEvery == 0 && p.policy.CadenceGrains == 0 || never {
		return ""
	}
	if p.policy.CadenceEvery > 0 && since >= p.policy.CadenceEvery || p.policy.CadenceGrains > 0 && p.counts.Records >= p.policy.CadenceGrains {
		return ""
	}
	return SkipCadence
}

func (p *pass) readState(ctx context.Context) error {
	entry, err := p.store.Get(ctx, BucketState, p.stateKey())
	if err != nil {
		return storeError("reading the state of the loop", err)
	}
	p.rev = entry.Rev
	if entry.Rev == 0 {
		return nil
	}
	m, err := contextwire.DecodeMap(contextwire.JSON, entry.Value, contextwire.Limits{})
	if err == nil {
		err = module.FromMap(m, &p.state)
	}
	if err != nil || p.state.V != 1 || p.state.Watermark < 0 || p.state.LLMWatermark < 0 {
		return module.Errorf(module.CodeLoopStore, "the state of the loop cannot be read")
	}
	return nil
}

// load reads recommendations and knowledge once for the whole pass, and recovers
// what a crash left.
func (p *pass) load(ctx context.Context) error {
	var err error
	if p.cases, p.result.Unread, err = p.Cases(ctx); err != nil {
		return err
	}
	if p.result.Recovered, err = p.recoverCases(ctx, p.now, p.cases); err != nil {
		if ctx.Err() != nil {
			return err
		}
		p.log.WarnContext(ctx, "loop: what was cut off cannot be finished now", "code", module.CodeOf(err), "cause", err)
	}
	p.items, _, err = p.knowledge.Items(ctx, false)
	return err
}

// expire ends recommendations nobody decided on or applied in time.
func (p *pass) expire(ctx context.Context) error {
	for _, c := range p.cases {
		ttl := p.policy.PendingTTL
		since := c.Rec.CreatedAtMS
		if c.Status.State == StateApproved {
			ttl, since = p.policy.ApprovedTTL, c.Status.ChangedAtMS
		}
		if ttl == 0 || !c.Status.may(EventExpired) || p.now.UnixMilli() < since+ttl.Milliseconds() {
			continue
		}
		done, err := p.note(ctx, c, "ttl", AuditEntry{Event: EventExpired, Because: "nobody acted on it in time"})
		if err != nil {
			return err
		}
		if done {
			p.result.Expired++
		}
	}
	return nil
}

// note records an event of the engine; a lost race is none of its business.
func (p *pass) note(ctx context.Context, c *Case, rule string, a AuditEntry) (bool, error) {
	a.AtMS = p.now.UnixMilli()
	err := p.record(ctx, c, engineActor(rule), a)
	if module.CodeOf(err) == module.CodeLoopConflict {
		fresh, err := p.Case(ctx, c.Hash)
		if err == nil {
			c.Status = fresh.Status
		}
		return false, err
	}
	return err == nil, err
}

// keep stores the survivors. What is stored already, by a pass that crashed, is
// completed and not counted.
func (p *pass) keep(ctx context.Context) error {
	for _, cand := range p.candidates {
		body, hash, err := cand.rec.Encode()
		if err != nil {
			p.result.AnalyzersSkipped = append(p.result.AnalyzersSkipped, Skipped{cand.rec.Analyzer, module.AsError(err).Message})
			continue
		}
		switch _, err := p.store.Put(ctx, BucketRecs, hash, body, 0); {
		case errors.Is(err, ErrConflict):
			continue
		case err != nil:
			return storeError("storing a recommendation", err)
		}
		c := &Case{Hash: hash, Rec: cand.rec, Status: Status{State: StatePending}}
		err = p.record(ctx, c, Actor{ID: cand.rec.Creator, Observer: ObserverSystem}, pendingEntry(cand.rec))
		if err != nil && module.CodeOf(err) != module.CodeLoopConflict {
			return err
		}
		p.result.Stored++
		p.result.Recs = append(p.result.Recs, hash)
	}
	return nil
}

func (p *pass) commit(ctx context.Context) error {
	p.state.V, p.state.LastRunMS = 1, p.now.UnixMilli()
	seq := int64(p.counts.LastSeq) //nolint:gosec // a stream does not reach 2^63
	p.state.Watermark = max(p.state.Watermark, seq)
	if p.shown {
		p.state.LLMWatermark = max(p.state.LLMWatermark, seq)
	}
	raw, err := encodeStored(p.state)
	if err != nil {
		return err
	}
	switch _, err := p.store.Put(ctx, BucketState, p.stateKey(), raw, p.rev); {
	case errors.Is(err, ErrConflict):
		return module.Errorf(module.CodeLoopConflict, "another pass has committed meanwhile")
	case err != nil:
		return storeError("writing the state of the loop", err)
	}
	return nil
}
