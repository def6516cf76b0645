package loop

import (
	"slices"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// The kinds of origins.
const (
	OriginBuiltin = "builtin"
	OriginLLM     = "llm"
)

// AnalyzerLLM is the analyzer of recommendations that a model drafted.
const AnalyzerLLM = "loop.llm/1"

// Origin says what a recommendation comes from. Only the engine writes it.
type Origin struct {
	Kind  string `json:"kind"`
	Model string `json:"model,omitempty"`
}

// The kinds of [Change].
const (
	// ChangeOps is applied by operations on knowledge.
	ChangeOps = "ops"
	// ChangeRevert is applied by rolling back another recommendation.
	ChangeRevert = "revert"
	// ChangeNone is advisory: nothing can be applied.
	ChangeNone = "data"
)

// Change is what applying a recommendation does.
type Change struct {
	Kind string `json:"kind"`
	Ops  []Op   `json:"ops,omitempty"`
	// RevertOf is the recommendation to be rolled back.
	RevertOf string `json:"revert_of,omitempty"`
	// Data are facts for whoever reads an advisory finding.
	Data map[string]any `json:"data,omitempty"`
}

// Text is a summary: a template and its arguments. [Templates] render it.
type Text struct {
	TemplateID string         `json:"template_id"`
	Args       map[string]any `json:"args,omitempty"`
}

// MetricSnapshot tells how the outcome of an apply is measured, and what was true
// before it.
type MetricSnapshot struct {
	Metric         string  `json:"metric"`
	ModuleID       string  `json:"module_id,omitempty"`
	Code           string  `json:"code,omitempty"`
	Signature      string  `json:"signature,omitempty"`
	Baseline       float64 `json:"baseline"`
	N              int     `json:"n"`
	WindowMS       int64   `json:"window_ms"`
	MinN           int     `json:"min_n"`
	MinEffect      float64 `json:"min_effect"`
	HigherIsBetter bool    `json:"higher_is_better"`
	// HorizonsMS are the times after the apply at which it is measured, once each.
	HorizonsMS []int64 `json:"horizons_ms"`
	// Of a metric by an evalset, see [OutcomeEvalset].
	Checkpoints []Checkpoint `json:"checkpoints,omitempty"`
	Points      bool         `json:"points,omitempty"`
	HighWater   bool         `json:"high_water,omitempty"`
	CostField   string       `json:"cost_field,omitempty"`
	CostRatio   float64      `json:"cost_ratio,omitempty"`
}

// NearDuplicate names a lesson that says nearly the same.
type NearDuplicate struct {
	Hash   string  `json:"hash"`
	Score  float64 `json:"score"` // three decimals
	Method string  `json:"method"`
	// State is that of the recommendation when it is one that was rejected.
	State State `json:"state,omitempty"`
}

// Recommendation is the immutable body of a recommendation. Its hash and its
// state are not part of it.
type Recommendation struct {
	V             int             `json:"v"`
	Analyzer      string          `json:"analyzer"`
	Params        map[string]any  `json:"params_snapshot"`
	Origin        Origin          `json:"origin"`
	Target        string          `json:"target_ref"`
	Action        Action          `json:"action_kind"`
	Kind          Kind            `json:"proposal_kind,omitempty"`
	DedupKey      string          `json:"dedup_key"`
	Summary       Text            `json:"summary"`
	Severity      Severity        `json:"severity"`
	Proposal      Change          `json:"proposal"`
	Destructive   bool            `json:"destructive"`
	Rollbackable  bool            `json:"rollbackable"`
	Evidence      []string        `json:"evidence"`
	EvidenceQuery string          `json:"evidence_query,omitempty"`
	Metric        *MetricSnapshot `json:"metric,omitempty"`
	Confidence    float64         `json:"confidence"`
	// LLMConfidence is what the proposer said of itself.
	LLMConfidence   float64         `json:"llm_confidence,omitempty"`
	Importance      float64         `json:"importance"`
	CreatedAtMS     int64           `json:"created_at_ms"`
	Guidance        string          `json:"guidance,omitempty"`
	EvalsetHash     string          `json:"evalset_hash,omitempty"`
	NearDuplicateOf []NearDuplicate `json:"near_duplicate_of,omitempty"`
	// Replay is how journaled runs of a plan fared under its revision when it was drafted.
	Replay *Rehearsal `json:"replay,omitempty"`
	// Scope are the namespaces the producer looked at, sorted.
	Scope []string `json:"scope"`
	// Creator is engine:<analyzer>. CoCreator is the actor who had a run drafted by a
	// model; neither may approve.
	Creator   string `json:"creator"`
	CoCreator string `json:"co_creator,omitempty"`
}

// Executable reports whether there is something to apply.
func (r *Recommendation) Executable() bool {
	return r.Proposal.Kind == ChangeOps && len(r.Proposal.Ops) > 0 || r.Proposal.Kind == ChangeRevert
}

// ByLLM reports whether a model drafted it.
func (r *Recommendation) ByLLM() bool { return r.Origin.Kind == OriginLLM }

// Encode returns the canonical bytes and the hash, which is the hex SHA-256 of
// them. It fails with LOOP_INVALID when the body breaks a rule.
func (r *Recommendation) Encode() (body []byte, hash string, err error) {
	if err := r.check(); err != nil {
		return nil, "", err
	}
	if body, err = encodeStored(r); err != nil {
		return nil, "", err
	}
	if len(body) > MaxStoreValue {
		return nil, "", module.Errorf(module.CodeLoopInvalid, "recommendation: it is too large to be stored")
	}
	return body, contextwire.EvidenceHash(body), nil
}

// DecodeRecommendation reads a stored body and checks it as if it were new: that
// the hash is that of the bytes, and every rule again.
func DecodeRecommendation(hash string, body []byte) (*Recommendation, error) {
	if contextwire.EvidenceHash(body) != hash {
		return nil, module.Errorf(module.CodeLoopInvalid, "recommendation is not the one its hash names")
	}
	r := new(Recommendation)
	if err := decodeStored(recLayout, body, r); err != nil {
		return nil, module.Errorf(module.CodeLoopInvalid, "recommendation cannot be read: %w", err)
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	return r, nil
}

// check holds the rules of a body, Rule E1 among them: code changes if and only if
// there is an evalset pinned, and nothing else touches tools and models.
func (r *Recommendation) check() error {
	bad := func(why string) error {
		return module.Errorf(module.CodeLoopInvalid, "recommendation: %s", why)
	}
	t, err := ParseTarget(r.Target)
	if err != nil {
		return err
	}
	switch {
	case r.V != 1:
		return bad("it is of another version")
	case r.Severity.Rank() < 0:
		return bad("its severity is unknown")
	case r.DedupKey == "" || r.Creator == "":
		return bad("it lacks key or creator")
	case len(r.Evidence) > MaxEvidencePerRec:
		return bad("it cites too much evidence")
	}
	for _, h := range r.Evidence {
		if len(h) != 64 || !isHex(h) {
			return bad("its evidence is not named by hashes")
		}
	}
	if err := r.checkChange(); err != nil {
		return err
	}
	return r.checkE1(t)
}

func (r *Recommendation) checkChange() error {
	bad := func(why string) error {
		return module.Errorf(module.CodeLoopInvalid, "recommendation: %s", why)
	}
	switch r.Proposal.Kind {
	case ChangeOps:
		if len(r.Proposal.Ops) == 0 || len(r.Proposal.Ops) > MaxConsolidated+2 || r.Proposal.RevertOf != "" {
			return bad("it has no usable operations")
		}
		for _, o := range r.Proposal.Ops {
			if err := o.check(); err != nil {
				return err
			}
		}
	case ChangeRevert:
		if len(r.Proposal.RevertOf) != 64 || !isHex(r.Proposal.RevertOf) || len(r.Proposal.Ops) > 0 {
			return bad("it does not say what to revert")
		}
	case ChangeNone:
		if len(r.Proposal.Ops) > 0 || r.Proposal.RevertOf != "" {
			return bad("it is advisory and yet would change something")
		}
	default:
		return bad("its change is of an unknown kind")
	}
	destructive := slices.ContainsFunc(r.Proposal.Ops, Op.destructive)
	if r.Destructive != destructive || r.Rollbackable != (r.Proposal.Kind == ChangeOps && !destructive) {
		return bad("what it says of undoing it does not fit its operations")
	}
	return nil
}

// checkE1 is Rule E1 (loop spec, section 4.6).
func (r *Recommendation) checkE1(t Target) error {
	bad := func(why string) error {
		return module.Errorf(module.CodeLoopInvalid, "recommendation (rule E1): %s", why)
	}
	code := slices.ContainsFunc(r.Proposal.Ops, func(o Op) bool { return o.Type == ItemCode })
	evalset := slices.ContainsFunc(r.Proposal.Ops, func(o Op) bool { return o.Type == ItemEvalset })
	pinned := r.EvalsetHash != ""
	switch {
	case evalset:
		return bad("the gate cannot change the gate")
	case r.Action == ActionCodeRevision != (code && pinned && t.Scheme == SchemeTool && isHex(r.EvalsetHash)):
		return bad("code changes come with the evalset of their tool, and nothing else does")
	case code != (r.Action == ActionCodeRevision), pinned != code:
		return bad("an evalset is pinned for code and for nothing else")
	case (t.Scheme == SchemeTool || t.Scheme == SchemeModel || t.Scheme == SchemeEvalset) && !code && r.Executable() && r.Action != ActionRevert:
		return bad("tools, models and evalsets are changed in no other way")
	case (t.Class() == ClassHost || t.Class() == ClassPrompt) && r.Proposal.Kind == ChangeOps:
		return bad("hosts and prompts are changed by people outside the loop")
	case r.ByLLM() && t.Class() != ClassMemory && t.Class() != ClassQuery && r.Action != ActionCodeRevision:
		return bad("a model may not target this")
	}
	return nil
}
