package loop

import (
	"cmp"
	"context"
	"slices"

	"github.com/apbus/apbus/module"
)

// consult asks the model for drafts and takes those that survive into the
// candidates: discover, resolve, ground, verify, route. Whatever the model does,
// it costs the pass at most these drafts.
func (p *pass) consult(ctx context.Context) error {
	if p.backend == nil {
		return nil
	}
	f := &Funnel{}
	p.result.Funnel = f
	if p.policy.denies(familyLLM) {
		p.skipped(AnalyzerLLM, "denied by policy")
		return nil
	}
	b, err := p.bundle(ctx)
	if err != nil {
		return err
	}
	f.Evidence = len(b.items)
	if len(b.items) == 0 {
		p.shown = true
		return nil
	}
	drafts, ok := p.discover(ctx, b)
	if !ok {
		return nil
	}
	p.shown = true
	if o := p.policy.OutcomeEvalset; o != nil {
		if p.evals, err = p.runsOf(ctx, o.Hash); err != nil {
			return err
		}
	}
	f.Proposed = len(drafts)
	var list []*resolved
	for _, d := range drafts {
		r := p.resolve(ctx, b, d)
		if r == nil {
			continue
		}
		if r.err != nil {
			return r.err
		}
		list = append(list, r)
	}
	grounded := p.groundDrafts(ctx, b, list)
	verdicts := p.verify(ctx, b, list, grounded)
	p.route(ctx, b, list, verdicts)
	return nil
}

// ask makes one call of the model. What it says is not logged, nor is what it was
// asked.
func (p *pass) ask(ctx context.Context, backend Backend, op string, request any) (string, error) {
	text, err := encodeRequest(request)
	if err == nil {
		text, err = backend.Complete(ctx, text)
	}
	if err == nil && len(text) > MaxResponseBytes {
		err = errTooLarge
	}
	if err != nil {
		err = module.Errorf(module.CodeLoopBackend, "the model failed: %w", err)
		p.log.WarnContext(ctx, "loop: call of the model failed", "op", op, "code", module.CodeLoopBackend, "cause", err)
		return "", err
	}
	return text, nil
}

func (p *pass) discover(ctx context.Context, b *bundle) ([]LLMDraft, bool) {
	approved, rejected := p.taste()
	raw, err := p.ask(ctx, p.backend, OpDiscover, LLMRequest{
		Loop: LoopProtocol, Op: OpDiscover, Instructions: p.discoverInstructions(),
		Findings: p.briefs(MaxFindings), Evidence: b.items, Rejected: rejected, Approved: approved,
	})
	if err != nil {
		p.result.Funnel.DiscoverCallFailed = true
		return nil, false
	}
	response, err := ParseDiscover(raw)
	p.result.Funnel.MalformedDrafts = response.Malformed
	if err != nil {
		p.result.Funnel.DiscoverUnparseable = true
		return nil, false
	}
	return response.Recommendations, true
}

// briefs are the candidates as the model sees them.
func (p *pass) briefs(most int) []FindingBrief {
	var list []FindingBrief
	for _, c := range p.candidates[:min(len(p.candidates), most)] {
		list = append(list, FindingBrief{
			Analyzer: c.rec.Analyzer, Summary: Cap(clean(p.Render(c.rec)), MaxEvidenceText), Target: c.rec.Target, Severity: string(c.rec.Severity),
		})
	}
	return list
}

// taste is what reviewers decided about drafts of models, newest first. Reasons are
// not sent.
func (p *pass) taste() (approved, rejected []string) {
	decided := slices.Clone(p.cases)
	slices.SortFunc(decided, func(a, b *Case) int {
		return cmp.Or(cmp.Compare(b.Status.ChangedAtMS, a.Status.ChangedAtMS), cmp.Compare(a.Hash, b.Hash))
	})
	for _, c := range decided {
		if !c.Rec.ByLLM() {
			continue
		}
		text := Cap(clean(p.Render(c.Rec)), MaxTasteLen)
		switch c.Status.State {
		case StateApproved, StateApplied, StateRolledBack:
			if len(approved) < MaxTaste {
				approved = append(approved, text)
			}
		case StateRejected:
			if len(rejected) < MaxTaste {
				rejected = append(rejected, text)
			}
		}
	}
	return approved, rejected
}

// citedItems are the evidence of one draft.
func (b *bundle) citedItems(r *resolved) []EvidenceItem {
	items := make([]EvidenceItem, len(r.cited))
	for i, n := range r.cited {
		items[i] = b.items[n]
	}
	return items
}

// groundDrafts asks for all drafts at once whether their evidence supports them and
// returns the IDs of those that do. No verdict, two verdicts, or none at all:
// unsupported.
func (p *pass) groundDrafts(ctx context.Context, b *bundle, list []*resolved) map[int]bool {
	if len(list) == 0 {
		return nil
	}
	req := GroundRequest{Loop: LoopProtocol, Op: OpGround, Instructions: instructGround}
	for id, r := range list {
		req.Claims = append(req.Claims, GroundItem{ID: id, Claim: r.claim(), Evidence: b.citedItems(r)})
	}
	raw, err := p.ask(ctx, p.ground, OpGround, req)
	if err != nil {
		p.result.Funnel.GroundCallFailed = true
		return nil
	}
	response, err := ParseGround(raw)
	if err != nil {
		p.result.Funnel.GroundCallFailed = true
		return nil
	}
	p.result.Funnel.GroundVerdicts = len(response.Results)
	p.result.Funnel.MalformedVerdicts += response.Malformed
	times := make(map[int]int)
	grounded := make(map[int]bool)
	for _, v := range response.Results {
		times[v.ID]++
		grounded[v.ID] = v.Supported && v.ID < len(list)
	}
	for id := range grounded {
		if times[id] != 1 || !grounded[id] {
			delete(grounded, id)
		}
	}
	p.result.Funnel.Grounded = len(grounded)
	return grounded
}

// verify has the grounded drafts judged in a call of its own, so that the proposer
// never grades itself, and returns the verdicts on what it sent.
func (p *pass) verify(ctx context.Context, b *bundle, list []*resolved, grounded map[int]bool) map[int]VerifyResult {
	if len(grounded) == 0 {
		return nil
	}
	req := VerifyRequest{Loop: LoopProtocol, Op: OpVerify, Instructions: instructVerify}
	for id, r := range list {
		if grounded[id] {
			req.Findings = append(req.Findings, VerifyItem{ID: id, Summary: r.claim(), Target: r.target.String(), Evidence: b.citedItems(r)})
		}
	}
	raw, err := p.ask(ctx, p.backend, OpVerify, req)
	if err != nil {
		p.result.Funnel.VerifyCallFailed = true
		return nil
	}
	response, err := ParseVerify(raw)
	if err != nil {
		p.result.Funnel.VerifyCallFailed = true
		return nil
	}
	p.result.Funnel.VerifyVerdicts = len(response.Results)
	p.result.Funnel.MalformedVerdicts += response.Malformed
	times := make(map[int]int)
	verdicts := make(map[int]VerifyResult)
	for _, v := range response.Results {
		times[v.ID]++
		verdicts[v.ID] = v
	}
	for id := range verdicts {
		// A verdict counts for what GROUND supported and VERIFY was sent, once.
		if times[id] != 1 || !grounded[id] {
			delete(verdicts, id)
		}
	}
	return verdicts
}

// route decides what becomes a candidate: kept by VERIFY, at or above the floor,
// not nearly the same as a lesson there is.
func (p *pass) route(ctx context.Context, b *bundle, list []*resolved, verdicts map[int]VerifyResult) {
	f := p.result.Funnel
	pending := 0
	for _, c := range p.cases {
		if c.Rec.ByLLM() && c.Status.State == StatePending {
			pending++
		}
	}
	var sure []*resolved
	for id, r := range list {
		if v, judged := verdicts[id]; judged && v.Keep && v.Confidence >= ConfidenceFloor {
			sure = append(sure, r)
		}
	}
	vectors := p.embed(ctx, sure)
	for id, r := range list {
		v, judged := verdicts[id]
		if !judged || !v.Keep {
			continue
		}
		f.Kept++
		if v.Confidence < ConfidenceFloor {
			f.BelowFloor++
			continue
		}
		near := p.nearDuplicates(r, vectors)
		if len(near) > 0 && p.policy.NearDuplicate == NearDuplicateSuppress {
			f.DroppedNearDuplicate++
			continue
		}
		if pending >= p.policy.MaxPendingLLM {
			f.DroppedPendingCeiling++
			continue
		}
		rec := p.stampDraft(b, r, v.Confidence)
		rec.NearDuplicateOf = near
		if err := rec.check(); err != nil {
			p.skipped(AnalyzerLLM, module.AsError(err).Message)
			continue
		}
		pending++
		f.Stored++
		p.candidates = append(p.candidates, &candidate{rec: rec, family: familyLLM})
	}
}

// stampDraft makes the recommendation of a draft. Its severity is always low.
func (p *pass) stampDraft(b *bundle, r *resolved, confidence float64) *Recommendation {
	rec := &Recommendation{
		V: 1, Analyzer: AnalyzerLLM, Params: map[string]any{}, Origin: Origin{Kind: OriginLLM, Model: Cap(clean(p.backend.Model()), MaxTargetLen)},
		Target: r.target.String(), Action: ActionFlag, Severity: SeverityLow, Summary: Text{templateAdvisory, map[string]any{"text": r.summary}},
		Proposal: Change{Kind: ChangeNone, Data: map[string]any{"source": "llm"}}, Confidence: confidence, LLMConfidence: r.draft.Confidence,
		Importance: 0.3, CreatedAtMS: p.now.UnixMilli(), Guidance: r.guidance, Scope: p.scope(),
		Creator: "engine:" + AnalyzerLLM, CoCreator: p.opts.Trigger.ID, Evidence: []string{},
	}
	for _, n := range r.cited {
		rec.Evidence = append(rec.Evidence, b.items[n].Hash)
	}
	rec.Replay = r.replay
	if r.ops == nil {
		if r.replay != nil {
			rec.Importance = r.importance
		}
		if r.why != "" {
			rec.Proposal.Data["advisory_because"] = r.why
		}
		rec.DedupKey = dedupKey("llm", rec.Target, rec.Action, "")
		return rec
	}
	rec.Metric = p.outcomeMetric()
	rec.Kind, rec.Action, rec.Importance, rec.EvalsetHash = r.kind, r.action, r.importance, r.evalset
	rec.Summary = Text{templateChange, map[string]any{"text": r.summary, "change": r.change}}
	rec.Proposal, rec.Rollbackable = Change{Kind: ChangeOps, Ops: r.ops(confidence)}, true
	rec.DedupKey = dedupKey("llm", rec.Target, rec.Action, fingerprint(r.content))
	return rec
}

// enrich asks, once, for notes on the survivors and adds them. The model never
// changes a finding.
func (p *pass) enrich(ctx context.Context) error {
	if p.backend == nil || len(p.candidates) == 0 || p.policy.denies(familyLLM) {
		return nil
	}
	raw, err := p.ask(ctx, p.backend, OpEnrich, LLMRequest{
		Loop: LoopProtocol, Op: OpEnrich, Instructions: instructEnrich, Findings: p.briefs(MaxFindings),
	})
	if err == nil {
		var response EnrichResponse
		if response, err = ParseEnrich(raw); err == nil {
			p.merge(response.Notes)
		}
	}
	p.result.Funnel.EnrichCallFailed = err != nil
	return nil
}

// merge gives each note to the first survivor with its target that has none and was
// found by an analyzer.
func (p *pass) merge(notes []EnrichNote) {
	for _, n := range notes {
		text := clean(Cap(n.Guidance, MaxGuidanceLen))
		if text == "" {
			continue
		}
		for _, c := range p.candidates {
			if c.rec.Target == n.Target && c.rec.Guidance == "" && !c.rec.ByLLM() {
				c.rec.Guidance = text
				break
			}
		}
	}
}
