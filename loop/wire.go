package loop

import "context"

// LoopProtocol is the version of the wire protocol between engine and model.
const LoopProtocol = 1

// The operations of the protocol.
const (
	OpProbe    = "probe"
	OpDiscover = "discover"
	OpGround   = "ground"
	OpVerify   = "verify"
	OpEnrich   = "enrich"
)

// Caps of the trust floor (LLM seed; loop spec, section 6). They bound what one
// contribution of a model, or one approved apply, can put anywhere. They are no
// settings. Lengths are counted in characters.
const (
	MaxLLMDrafts    = 8
	MaxGuidanceLen  = 600
	MaxSummaryLen   = 200
	MaxLessonLen    = 240
	MaxRelationLen  = 64
	MaxObjectLen    = 480
	MaxSkillStepLen = 240
	MaxSkillSteps   = 20
	MaxSkillNameLen = 64
	MaxPlanNodes    = 20
	MaxCondLen      = 200
	MaxQueryBodyLen = 2_000
	MaxPlanEdits    = 8
	MaxCodeLen      = 20_000

	MaxFindings         = 32  // shown to DISCOVER
	MaxEvidenceItems    = 64  // in one bundle
	MaxEvidenceText     = 400 // of one item
	MaxTaste            = 20  // approved and as many rejected ones
	MaxTasteLen         = 300
	MaxCitations        = 64 // read of one draft
	MaxCitationLen      = 128
	MinCitationPrefix   = 12 // hexadecimal digits
	MaxEvidencePerRec   = 64
	MaxBecauseLen       = 500
	MaxTargetLen        = 256
	MaxNearDuplicates   = 8
	MaxConsolidated     = 64
	MaxResponseBytes    = 1 << 20
	MaxRequestBytes     = 512 << 10
	ConfidenceFloor     = 0.75 // inclusive, of VERIFY's number
	NearDuplicateScore  = 0.60 // token-set Jaccard, inclusive
	NearDuplicateCosine = 0.90 // cosine of embeddings, inclusive
)

// Shares of the evidence bundle, as the number of items in it at which each
// source stops (loop spec, section 2.7), so that no noisy source starves another.
const (
	bundleCited        = 24
	bundleErrors       = 40
	bundleErrorsAdded  = 16
	bundleObservations = 48
)

// Backend answers one request of the protocol with one response; both are JSON
// objects. Whatever comes back is validated by the engine, never by the backend.
// Complete must return when ctx ends and may be called by one goroutine at a time
// per pass.
type Backend interface {
	// Model names the model, for provenance.
	Model() string
	Complete(ctx context.Context, request string) (string, error)
}

// BackendFunc is a [Backend] made from a function.
type BackendFunc struct {
	Name string
	Func func(ctx context.Context, request string) (string, error)
}

var _ Backend = BackendFunc{}

// Model returns the name.
func (b BackendFunc) Model() string { return b.Name }

// Complete calls the function.
func (b BackendFunc) Complete(ctx context.Context, request string) (string, error) {
	return b.Func(ctx, request)
}

// Usage is what one pass asked of a model.
type Usage struct {
	Calls         int   `json:"calls"`
	RequestBytes  int64 `json:"request_bytes"`
	ResponseBytes int64 `json:"response_bytes"`
	// Refused counts what was over the budget.
	Refused int `json:"refused"`
}

// Metered is a [Backend] that counts; the engine tells it where a pass begins and
// puts the usage into the result.
type Metered interface {
	BeginPass()
	Usage() Usage
}
