package loop

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// AnalyzerConfig is what an administrator set for one family of analyzers. It can
// switch off, narrow and raise; it grants nothing.
type AnalyzerConfig struct {
	V       int            `json:"v"`
	Enabled *bool          `json:"enabled,omitempty"`
	Params  map[string]any `json:"params,omitempty"`
	// SeverityFloor drops findings below; "" for none.
	SeverityFloor Severity `json:"severity_floor,omitempty"`
}

// Configure sets the configuration of a family, such as exec.module_failure. It
// needs the scope admin; the parameters are checked first.
func (e *Engine) Configure(ctx context.Context, who Actor, family string, c AnalyzerConfig) error {
	if err := who.can(ScopeAdmin); err != nil {
		return err
	}
	i := slices.IndexFunc(e.manifests, func(m Manifest) bool { return familyOf(m.ID) == family })
	if i < 0 {
		return module.Errorf(module.CodeLoopNotFound, "there is no analyzer %.64q", family)
	}
	if _, err := e.manifests[i].ResolveParams(c.Params); err != nil {
		return err
	}
	if c.SeverityFloor != "" && c.SeverityFloor.Rank() < 0 {
		return module.Errorf(module.CodeLoopInvalid, "severity %.16q is unknown", c.SeverityFloor)
	}
	c.V = 1
	raw, err := encodeStored(c)
	if err != nil {
		return err
	}
	entry, err := e.store.Get(ctx, BucketState, configKey(family))
	if err != nil {
		return storeError("reading the configuration", err)
	}
	if _, err := e.store.Put(ctx, BucketState, configKey(family), raw, entry.Rev); err != nil {
		return storeError("writing the configuration", err)
	}
	return nil
}

func configKey(family string) string { return "config." + family }

// Config reads the configuration of a family; the zero value when there is none.
func (e *Engine) Config(ctx context.Context, family string) (AnalyzerConfig, error) {
	var c AnalyzerConfig
	entry, err := e.store.Get(ctx, BucketState, configKey(family))
	if err != nil {
		return c, storeError("reading the configuration", err)
	}
	if entry.Rev == 0 {
		return c, nil
	}
	m, err := contextwire.DecodeMap(contextwire.JSON, entry.Value, contextwire.Limits{})
	if err == nil {
		err = module.FromMap(m, &c)
	}
	if err != nil {
		return c, module.Errorf(module.CodeLoopStore, "the configuration of %s cannot be read: %w", family, err)
	}
	return c, nil
}

// analyze runs the analyzers that may run and stamps what they find.
func (p *pass) analyze(ctx context.Context) error {
	var runs []Run
	var manifests []Manifest
	for i, a := range p.analyzers {
		m := p.manifests[i]
		family := familyOf(m.ID)
		c, err := p.Config(ctx, family)
		if err != nil {
			return err
		}
		on := m.DefaultOn
		if c.Enabled != nil {
			on = *c.Enabled
		}
		params, paramErr := m.ResolveParams(c.Params)
		switch {
		case !on:
			p.skipped(m.ID, "disabled")
		case p.policy.denies(family):
			p.skipped(m.ID, "denied by policy")
		case paramErr != nil:
			p.skipped(m.ID, "bad parameters")
		default:
			runs, manifests = append(runs, Run{a, params}), append(manifests, m)
		}
	}
	found, err := p.kept.Analyze(ctx, p.reader, p.now, Query{Namespaces: p.opts.Namespaces}, p.outcomes, runs)
	if err != nil {
		return err
	}
	for i, f := range found {
		if f.Err != nil {
			p.skipped(f.ID, module.AsError(f.Err).Message)
			continue
		}
		p.result.AnalyzersRun = append(p.result.AnalyzersRun, f.ID)
		for _, d := range f.Drafts {
			rec, err := p.stamp(manifests[i], runs[i].Params, d)
			if err == nil && rec == nil {
				continue
			}
			if err != nil {
				p.skipped(f.ID, module.AsError(err).Message)
				continue
			}
			p.candidates = append(p.candidates, &candidate{rec: rec, family: familyOf(f.ID)})
		}
	}
	return nil
}

func (p *pass) skipped(id, reason string) {
	p.result.AnalyzersSkipped = append(p.result.AnalyzersSkipped, Skipped{id, reason})
}

// horizons are when an outcome is measured after an apply.
func horizons() []int64 {
	const day = 24 * time.Hour
	return []int64{day.Milliseconds(), 7 * day.Milliseconds(), 30 * day.Milliseconds()}
}

// stamp makes a recommendation of a finding; nil when it is pointless, because what
// it would add is there.
func (p *pass) stamp(m Manifest, params Params, d Draft) (*Recommendation, error) {
	if _, ok := m.Templates[d.Summary.TemplateID]; !ok {
		return nil, module.Errorf(module.CodeLoopInvalid, "the template of a finding is not in the manifest")
	}
	r := &Recommendation{
		V: 1, Analyzer: m.ID, Params: params, Origin: Origin{Kind: OriginBuiltin}, Target: d.Target, Action: d.Action,
		Summary: Text(d.Summary), Severity: d.Severity, Proposal: Change{Kind: ChangeNone, Data: d.Data},
		Evidence: d.Evidence, EvidenceQuery: d.EvidenceQuery,
		Confidence: cmp.Or(d.Confidence, 0.8), Importance: cmp.Or(d.Importance, 0.5),
		CreatedAtMS: p.now.UnixMilli(), Scope: p.scope(), Creator: "engine:" + m.ID,
	}
	if r.Evidence == nil {
		r.Evidence = []string{}
	}
	r.Evidence = r.Evidence[:min(len(r.Evidence), MaxEvidencePerRec)]
	switch {
	case d.RevertOf != "":
		r.Proposal = Change{Kind: ChangeRevert, RevertOf: d.RevertOf, Data: d.Data}
	case d.Fact != nil:
		op := factOp(d.Fact.Namespace, d.Fact.Subject, d.Fact.Relation, d.Fact.Object, d.Fact.Confidence)
		if p.liveFact(op) {
			return nil, nil
		}
		r.Proposal, r.Rollbackable = Change{Kind: ChangeOps, Ops: []Op{op}, Data: d.Data}, true
	}
	if d.Metric != nil {
		r.Metric = &MetricSnapshot{
			Metric: d.Metric.Kind, ModuleID: d.Metric.ModuleID, Code: d.Metric.Code, Signature: d.Metric.Signature,
			Baseline: d.Metric.Baseline, N: d.Metric.N, WindowMS: d.Metric.Window.Milliseconds(), MinN: d.Metric.MinN,
			MinEffect: d.Metric.MinEffect, HigherIsBetter: d.Metric.HigherIsBetter, HorizonsMS: horizons(),
		}
	}
	r.DedupKey = dedupKey(familyOf(m.ID), r.Target, r.Action, d.RevertOf)
	return r, r.check()
}

func (p *pass) scope() []string {
	if p.opts.Namespaces == nil {
		return []string{}
	}
	return p.opts.Namespaces
}

func (p *pass) liveFact(op Op) bool {
	return slices.ContainsFunc(p.items, func(i *Item) bool {
		return i.Live && i.Type == ItemFact && i.Namespace == op.Namespace && i.Name == op.Name &&
			i.Fields["relation"] == op.Fields["relation"] && i.Fields["object"] == op.Fields["object"]
	})
}

// dedupKey says what counts as the same recommendation. For analyzers the content
// is not part of it, so that a cluster that grows is not proposed again; for what a
// model drafted extra is a fingerprint of the content, for a revert what it reverts.
func dedupKey(family, target string, action Action, extra string) string {
	key := strings.ToLower(strings.TrimSpace(family)) + "\x1f" + strings.ToLower(strings.TrimSpace(target)) + "\x1f" + string(action)
	if extra != "" {
		key += "\x1f" + strings.ToLower(extra)
	}
	return key
}

// fingerprint is the identity of a content: 16 hex digits of SHA-256 over its words.
func fingerprint(content string) string {
	return contextwire.EvidenceHash([]byte(folded(content)))[:16]
}

// validate drops candidates below their floors, doubles, what is open already, and
// what was rejected too short a time ago, in this order.
func (p *pass) validate(ctx context.Context) error {
	held, cooling := p.held()
	seen := make(map[string]bool)
	p.result.Proposed = len(p.candidates)
	var survivors []*candidate
	for _, c := range p.candidates {
		floor, err := p.floor(ctx, c.family)
		if err != nil {
			return err
		}
		key := c.rec.DedupKey
		if c.rec.Severity.Rank() < floor || seen[key] || held[key] || p.now.UnixMilli() < cooling[key] {
			continue
		}
		seen[key] = true
		survivors = append(survivors, c)
	}
	p.result.Deduped = p.result.Proposed - len(survivors)
	p.candidates = survivors
	return nil
}

func (p *pass) floor(ctx context.Context, family string) (int, error) {
	rank := 0
	if floor, ok := p.policy.SeverityFloors[family]; ok {
		rank = floor.Rank()
	}
	if family == familyLLM {
		return rank, nil
	}
	c, err := p.Config(ctx, family)
	if err != nil {
		return 0, err
	}
	return max(rank, c.SeverityFloor.Rank()), nil
}

// Cooldown doubles from a week to ninety days.
const (
	cooldownFirst = 7 * 24 * time.Hour
	cooldownMost  = 90 * 24 * time.Hour
)

// held tells which keys are open, and until when others rest. A rest follows from
// the audit log alone: each rejection of a key, and each applied revert of what had
// it, is a strike; what an operator rolls back by hand is none.
func (p *pass) held() (open map[string]bool, cooling map[string]int64) {
	open, cooling = make(map[string]bool), make(map[string]int64)
	byHash := make(map[string]*Case, len(p.cases))
	for _, c := range p.cases {
		byHash[c.Hash] = c
	}
	strikes := make(map[string][]int64)
	for _, c := range p.cases {
		if c.Status.State.Open() {
			open[c.Rec.DedupKey] = true
		}
		if c.Status.State == StateRejected {
			strikes[c.Rec.DedupKey] = append(strikes[c.Rec.DedupKey], c.Status.ChangedAtMS)
		}
		if c.Status.State == StateApplied && c.Rec.Proposal.Kind == ChangeRevert {
			if reverted := byHash[c.Rec.Proposal.RevertOf]; reverted != nil {
				strikes[reverted.Rec.DedupKey] = append(strikes[reverted.Rec.DedupKey], c.Status.ChangedAtMS)
			}
		}
	}
	for key, at := range strikes {
		rest := cooldownFirst
		for range len(at) - 1 {
			rest = min(2*rest, cooldownMost)
		}
		cooling[key] = slices.Max(at) + rest.Milliseconds()
	}
	return open, cooling
}
