package loop

import (
	"slices"
	"strings"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// Objectives of DISCOVER: what the model is told it is scored for.
const (
	ObjectiveReviewQueue = "review_queue"
	ObjectiveLearner     = "learner"
)

// What happens to a lesson that is nearly the same as another.
const (
	NearDuplicateFlag     = "flag"
	NearDuplicateSuppress = "suppress"
)

// Whether notes name who made them in what a model sees.
const (
	AttributionNamed     = "named"
	AttributionAnonymous = "anonymous"
)

// Policy is what the host allows. The store can restrict, never grant. No policy
// can register an executable, and none lets anything apply itself: the classes are
// in the code.
type Policy struct {
	// Deny are families of analyzers that do not run, loop.llm for the model.
	Deny []string
	// SeverityFloors are the least severities by family.
	SeverityFloors map[string]Severity
	// DiscoverObjective is review_queue (default) or learner.
	DiscoverObjective string
	// CadenceEvery and CadenceGrains say when a run without conditions of its own is
	// due, by time or by new records; zero for no say.
	CadenceEvery  time.Duration
	CadenceGrains int
	// Skills and Plans may be proposed; a skill has at least MinSteps steps (2), a
	// plan MinNodes nodes (2).
	Skills   bool
	MinSteps int
	Plans    bool
	MinNodes int
	// Code revisions may be proposed, for tools that have an evalset. Off by default.
	Code bool
	// MinEvidence is how many distinct citations a draft needs to be more than
	// advisory, default 2.
	MinEvidence int
	// PremiseDrift looks at whether what was cited still holds; PremiseDriftOpenAll
	// withdraws an open recommendation when all of it has moved, otherwise when any
	// has. Both are on by default.
	PremiseDrift, PremiseDriftOpenAll bool
	// NearDuplicate is flag (default) or suppress.
	NearDuplicate string
	// EvidenceAttribution is named (default) or anonymous.
	EvidenceAttribution string
	// PendingTTL and ApprovedTTL end recommendations nobody decided on (30 days) or
	// nobody applied (14 days); zero for never.
	PendingTTL, ApprovedTTL time.Duration
	// MaxPendingLLM bounds the pending drafts of a model, default 50.
	MaxPendingLLM int
	// OutcomeEvalset has drafts of a model measured by an evalset, nil for not.
	OutcomeEvalset *OutcomeEvalset
	// PlanReplay has revisions of plans judged by the journal of plan runs, nil for not.
	PlanReplay *PlanReplay
	// ReservedRelations are relations a model may not write, beside those of the loop.
	ReservedRelations []string
}

// DefaultPolicy returns the policy that is used when none is given.
func DefaultPolicy() Policy {
	return Policy{
		DiscoverObjective: ObjectiveReviewQueue, Skills: true, MinSteps: 2, Plans: true, MinNodes: 2, MinEvidence: 2,
		PremiseDrift: true, PremiseDriftOpenAll: true, NearDuplicate: NearDuplicateFlag,
		EvidenceAttribution: AttributionNamed, PendingTTL: 30 * 24 * time.Hour, ApprovedTTL: 14 * 24 * time.Hour, MaxPendingLLM: 50,
	}
}

// ParsePolicy reads a policy file of JSON over the defaults. Unknown keys, at every
// level, and values out of range are refused with CONFIG_INVALID. The keys of
// automatic application are read, so that one policy file serves several systems,
// and have no effect: no class of targets is open to it here.
func ParsePolicy(raw []byte) (Policy, error) {
	m, err := contextwire.DecodeMap(contextwire.JSON, raw, contextwire.Limits{MaxBody: 64 << 10, MaxDepth: 8})
	if err != nil {
		return Policy{}, module.Errorf(module.CodeConfigInvalid, "policy: %w", err)
	}
	p := DefaultPolicy()
	r := &policyReader{m: m, path: "policy"}
	r.read(&p)
	return p, r.err
}

// check holds for policies that were not parsed too.
func (p *Policy) check() error {
	bad := func(what string) error { return module.Errorf(module.CodeConfigInvalid, "policy: %s", what) }
	for _, s := range p.SeverityFloors {
		if s.Rank() < 0 {
			return bad("a severity floor is unknown")
		}
	}
	switch {
	case p.DiscoverObjective != ObjectiveReviewQueue && p.DiscoverObjective != ObjectiveLearner:
		return bad("discover_objective is unknown")
	case p.NearDuplicate != NearDuplicateFlag && p.NearDuplicate != NearDuplicateSuppress:
		return bad("near_duplicate is unknown")
	case p.EvidenceAttribution != AttributionNamed && p.EvidenceAttribution != AttributionAnonymous:
		return bad("evidence_attribution is unknown")
	case p.MinSteps < 1 || p.MinSteps > MaxSkillSteps, p.MinNodes < 1 || p.MinNodes > MaxPlanNodes,
		p.MinEvidence < 1 || p.MinEvidence > MaxEvidencePerRec, p.MaxPendingLLM < 1 || p.MaxPendingLLM > 10_000,
		p.PendingTTL < 0, p.ApprovedTTL < 0, p.CadenceEvery < 0, p.CadenceGrains < 0:
		return bad("a number is out of range")
	case p.OutcomeEvalset != nil && !p.OutcomeEvalset.check():
		return bad("outcome_evalset is not usable")
	case p.PlanReplay != nil && !p.PlanReplay.check():
		return bad("plan_replay is not usable")
	}
	return nil
}

func (p *Policy) denies(family string) bool { return slices.Contains(p.Deny, family) }

// familyLLM is the family of what a model drafts.
const familyLLM = "loop.llm"

// familyOf is the ID of an analyzer without its major version.
func familyOf(id string) string {
	family, _, _ := strings.Cut(id, "/")
	return family
}

// policyReader reads one object of a policy; the first error sticks.
type policyReader struct {
	m    map[string]any
	path string
	err  error
}

func (r *policyReader) fail(key, why string) {
	if r.err == nil {
		r.err = module.Errorf(module.CodeConfigInvalid, "%s: %s %s", r.path, key, why)
	}
}

// take removes a key, so that what remains is unknown.
func (r *policyReader) take(key string) (any, bool) {
	v, ok := r.m[key]
	delete(r.m, key)
	return v, ok
}

func take[T any](r *policyReader, key string, dst *T) {
	v, ok := r.take(key)
	if !ok {
		return
	}
	t, ok := v.(T)
	if !ok {
		r.fail(key, "is of the wrong type")
		return
	}
	*dst = t
}

func (r *policyReader) number(key string, dst *int) {
	n := int64(*dst)
	take(r, key, &n)
	if n < 0 || n > 1<<31 {
		r.fail(key, "is out of range")
		return
	}
	*dst = int(n)
}

func (r *policyReader) millis(key string, dst *time.Duration) {
	n := dst.Milliseconds()
	take(r, key, &n)
	if n < 0 || n > 10*365*24*time.Hour.Milliseconds() {
		r.fail(key, "is out of range")
		return
	}
	*dst = time.Duration(n) * time.Millisecond
}

func (r *policyReader) texts(key string, dst *[]string) {
	var list []any
	take(r, key, &list)
	for _, v := range list {
		s, ok := v.(string)
		if !ok {
			r.fail(key, "is no list of texts")
			return
		}
		*dst = append(*dst, s)
	}
}

func (r *policyReader) sub(key string, read func(*policyReader)) {
	var m map[string]any
	take(r, key, &m)
	if m == nil {
		return
	}
	s := &policyReader{m: m, path: r.path + "." + key}
	read(s)
	s.end()
	if r.err == nil {
		r.err = s.err
	}
}

// end refuses what was not taken.
func (r *policyReader) end() {
	unknown := make([]string, 0, len(r.m))
	for key := range r.m {
		unknown = append(unknown, key)
	}
	slices.Sort(unknown)
	if len(unknown) > 0 {
		r.fail(clean(Cap(unknown[0], 64)), "is no key of a policy")
	}
}

func (r *policyReader) read(p *Policy) {
	var ignored struct {
		enabled   bool
		grants    []any
		telemetry string
	}
	take(r, "auto_apply_enabled", &ignored.enabled)
	take(r, "auto_apply", &ignored.grants)
	for _, g := range ignored.grants {
		m, ok := g.(map[string]any)
		if !ok {
			r.fail("auto_apply", "is no list of grants")
			break
		}
		grant := &policyReader{m: m, path: r.path + ".auto_apply"}
		var text string
		var list []string
		take(grant, "analyzer", &text)
		take(grant, "max_severity", &text)
		grant.texts("targets", &list)
		grant.end()
		if r.err == nil {
			r.err = grant.err
		}
	}
	take(r, "telemetry", &ignored.telemetry)
	r.texts("deny", &p.Deny)
	r.sub("severity_floors", func(s *policyReader) {
		p.SeverityFloors = make(map[string]Severity)
		for family, v := range s.m {
			text, _ := v.(string)
			p.SeverityFloors[family] = Severity(text)
		}
		s.m = nil
	})
	take(r, "discover_objective", &p.DiscoverObjective)
	r.sub("cadence", func(s *policyReader) {
		s.millis("every_ms", &p.CadenceEvery)
		s.number("every_grains", &p.CadenceGrains)
	})
	r.sub("skills", func(s *policyReader) { take(s, "enabled", &p.Skills); s.number("min_steps", &p.MinSteps) })
	r.sub("plans", func(s *policyReader) { take(s, "enabled", &p.Plans); s.number("min_nodes", &p.MinNodes) })
	r.sub("code", func(s *policyReader) { take(s, "enabled", &p.Code) })
	r.number("min_evidence", &p.MinEvidence)
	take(r, "premise_drift", &p.PremiseDrift)
	take(r, "premise_drift_open_all", &p.PremiseDriftOpenAll)
	take(r, "near_duplicate", &p.NearDuplicate)
	take(r, "evidence_attribution", &p.EvidenceAttribution)
	r.sub("ttl", func(s *policyReader) { s.millis("pending_ms", &p.PendingTTL); s.millis("approved_ms", &p.ApprovedTTL) })
	r.number("max_pending_llm", &p.MaxPendingLLM)
	r.texts("reserved_relations", &p.ReservedRelations)
	r.outcomeEvalset(p)
	r.planReplay(p)
	r.end()
	if r.err == nil {
		r.err = p.check()
	}
}
