package plan

import (
	"fmt"
	"reflect"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// Bounds of a [RunRecord].
const (
	// MaxRunRecord is the largest form of a record in bytes.
	MaxRunRecord = 256 << 10
	// MaxRunValue is about the largest inputs or output of one node that are kept, and
	// maxRunValues what all of them may come to; the rest is left out.
	MaxRunValue  = 16 << 10
	maxRunValues = 96 << 10
	// maxRunLooked is how much of what nodes were given and gave is looked at, to find
	// what is sensitive; of a run with more no values are kept.
	maxRunLooked = 256 << 10
	// MaxRunSteps and MaxRunDecisions bound the two lists; what comes after is left out
	// and counted.
	MaxRunSteps     = 256
	MaxRunDecisions = 256
)

// RunRecord is what a run of a plan leaves in the journal: enough to see what it did,
// and to find out what another revision of the plan would have done in its place. Its
// values are redacted. It is not modified once it was handed on.
type RunRecord struct {
	V int `json:"v"`
	// Plan is the ID of the module, PlanHash the version of the plan that ran, Rec the
	// recommendation it came from.
	Plan     string `json:"plan"`
	PlanHash string `json:"plan_hash"`
	Rec      string `json:"rec,omitempty"`
	// NS, Node and Boot are the process that ran it; N counts the records of that boot,
	// so that no two runs are one record.
	NS   string `json:"ns,omitempty"`
	Node string `json:"node,omitempty"`
	Boot string `json:"boot,omitempty"`
	N    uint64 `json:"n,omitempty"`
	// Call, Attempt and TraceID are those of the call that the run was. The calls of its
	// nodes have the same trace, in which evidence of them is found.
	Call     string `json:"call,omitempty"`
	Attempt  int    `json:"attempt,omitempty"`
	TraceID  string `json:"trace_id,omitempty"`
	CallerID string `json:"caller_id,omitempty"`
	// IdentityID is who it was for, "" for nobody.
	IdentityID string `json:"identity_id,omitempty"`
	// StartedMS and EndedMS are Unix milliseconds.
	StartedMS int64 `json:"started_ms"`
	EndedMS   int64 `json:"ended_ms"`
	// Outcome is ok, error, or cancelled for a run that its caller or a limit ended.
	// Code and Failed are the code and the node of what went wrong.
	Outcome string      `json:"outcome"`
	Code    module.Code `json:"code,omitempty"`
	Failed  string      `json:"failed_node,omitempty"`
	// Inputs are the plan's. InputsLeftOut is true where they are not kept.
	Inputs        map[string]any `json:"inputs,omitempty"`
	InputsLeftOut bool           `json:"inputs_left_out,omitempty"`
	// Mask is what stands for a redacted value.
	Mask      string         `json:"mask,omitempty"`
	Steps     []RecordedStep `json:"steps"`
	Decisions []Decision     `json:"decisions,omitempty"`
	// Dropped counts steps and decisions beyond what is kept.
	Dropped int `json:"dropped,omitempty"`
}

// RecordedStep is one attempt of one node, or a node that was found dead.
type RecordedStep struct {
	Event
	Reads map[string]int `json:"reads,omitempty"`
	Final bool           `json:"final,omitempty"`
	// Output is what it gave; LeftOut is true where that is not kept.
	Output  map[string]any `json:"output,omitempty"`
	LeftOut bool           `json:"output_left_out,omitempty"`
}

// RunAbout says whose run a record is of.
type RunAbout struct {
	Plan, PlanHash, Rec string
	Call                module.CallInfo
	TraceID, CallerID   string
	IdentityID          string
	StartedMS, EndedMS  int64
	// Cut is true for a run that its caller or a limit ended.
	Cut bool
}

// NewRunRecord makes the record of a run of p, with what hide lets of its values. err is
// what the run returned. It is to be called before the run's caller goes on, since the
// values are the caller's; the record shares nothing with them.
func NewRunRecord(p *Plan, about RunAbout, res *Result, err error, hide *Redaction) *RunRecord {
	r := &RunRecord{
		V: 1, Plan: about.Plan, PlanHash: about.PlanHash, Rec: about.Rec,
		Call: about.Call.ID, Attempt: about.Call.Attempt, TraceID: about.TraceID, CallerID: about.CallerID, IdentityID: about.IdentityID,
		StartedMS: about.StartedMS, EndedMS: about.EndedMS, Outcome: OutcomeOK, Steps: []RecordedStep{},
	}
	r.ended(err, about.Cut)
	if res == nil || res.Trace == nil {
		return r
	}
	for _, s := range res.Trace.Steps {
		if len(r.Steps) == MaxRunSteps {
			r.Dropped++
			continue
		}
		r.Steps = append(r.Steps, RecordedStep{Event: s.Event, Reads: s.Reads, Final: s.Final, LeftOut: s.Outcome == OutcomeOK})
	}
	for _, e := range res.Timeline {
		if e.Outcome == OutcomeDead && len(r.Steps) < MaxRunSteps {
			r.Steps = append(r.Steps, RecordedStep{Event: e})
		}
	}
	r.Decisions = res.Trace.Decisions[:min(len(res.Trace.Decisions), MaxRunDecisions)]
	r.Dropped += len(res.Trace.Decisions) - len(r.Decisions)
	r.InputsLeftOut = true
	hide.fill(r, p, res.Trace)
	return r
}

// ended tells how a run ended.
func (r *RunRecord) ended(err error, cut bool) {
	if err == nil {
		return
	}
	r.Code = module.CodeOf(err)
	if cut {
		r.Outcome = OutcomeCancelled
		return
	}
	r.Outcome = OutcomeError
	r.Failed, _ = failedNode(err)
}

// Encode writes a record as canonical JSON. One that is too large all the same is
// written without its values; it fails with BUS_PAYLOAD_TOO_LARGE where that is not
// enough.
func (r *RunRecord) Encode() ([]byte, error) {
	for {
		m, err := module.ToMap(r)
		if err != nil {
			return nil, fmt.Errorf("encode a run of a plan: %w", err)
		}
		raw, err := schema.CanonicalJSON(m)
		if err != nil {
			return nil, fmt.Errorf("encode a run of a plan: %w", err)
		}
		if len(raw) <= MaxRunRecord {
			return raw, nil
		}
		if !r.hasValues() {
			return nil, contextwire.TooLarge(int64(len(raw)), MaxRunRecord)
		}
		r = r.withoutValues()
	}
}

func (r *RunRecord) hasValues() bool {
	for i := range r.Steps {
		if r.Steps[i].Output != nil {
			return true
		}
	}
	return r.Inputs != nil
}

func (r *RunRecord) withoutValues() *RunRecord {
	c := *r
	c.Inputs, c.InputsLeftOut = nil, true
	c.Steps = make([]RecordedStep, len(r.Steps))
	for i, s := range r.Steps {
		s.Output, s.LeftOut = nil, s.LeftOut || s.Outcome == OutcomeOK
		c.Steps[i] = s
	}
	return &c
}

// recordLayout is studied once; a rehearsal reads a hundred records.
var recordLayout = schema.Bind(reflect.TypeFor[RunRecord]())

// DecodeRunRecord reads a record and its ID, the hex SHA-256 of its bytes. It refuses
// other versions and every wrong shape.
func DecodeRunRecord(raw []byte) (r *RunRecord, id string, err error) {
	m, err := contextwire.DecodeMap(contextwire.JSON, raw, contextwire.Limits{MaxBody: MaxRunRecord})
	if err != nil {
		return nil, "", fmt.Errorf("read a run of a plan: %w", err)
	}
	r = new(RunRecord)
	if err := recordLayout.Decode(m, reflect.ValueOf(r).Elem()); err != nil {
		return nil, "", fmt.Errorf("read a run of a plan: %w", err)
	}
	if r.V != 1 || r.Plan == "" || r.PlanHash == "" || r.Outcome == "" || len(r.Steps) > MaxRunSteps || len(r.Decisions) > MaxRunDecisions {
		return nil, "", module.Errorf(module.CodeInvalidInput, "not a run of a plan")
	}
	return r, contextwire.EvidenceHash(raw), nil
}
