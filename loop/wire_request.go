package loop

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// FindingBrief is one deterministic finding, shown to DISCOVER and ENRICH as
// context.
type FindingBrief struct {
	Analyzer string `json:"analyzer"`
	Summary  string `json:"summary"`
	Target   string `json:"target"`
	Severity string `json:"severity"`
}

// EvidenceItem is one record of evidence. ID is its label in this bundle ("e1",
// "e2", …), which a draft may cite instead of the hash.
type EvidenceItem struct {
	ID        string `json:"id"`
	Hash      string `json:"hash"`
	GrainType string `json:"grain_type"`
	Text      string `json:"text"`
}

// LLMRequest asks DISCOVER or ENRICH. Instructions is a constant of the engine,
// alone in its field; nothing that was stored is ever part of it. Empty lists are
// left out.
type LLMRequest struct {
	Loop         int            `json:"loop"`
	Op           string         `json:"op"`
	Instructions string         `json:"instructions"`
	Findings     []FindingBrief `json:"findings,omitempty"`
	Evidence     []EvidenceItem `json:"evidence,omitempty"`
	// Rejected and Approved are recent decisions of the reviewers, newest first,
	// so that the model learns their taste.
	Rejected []string `json:"rejected,omitempty"`
	Approved []string `json:"approved,omitempty"`
}

// GroundRequest asks for each claim whether its cited evidence entails it.
type GroundRequest struct {
	Loop         int          `json:"loop"`
	Op           string       `json:"op"`
	Instructions string       `json:"instructions"`
	Claims       []GroundItem `json:"claims"`
}

// GroundItem is one claim; ID is its index among the drafts that were resolved.
type GroundItem struct {
	ID       int            `json:"id"`
	Claim    string         `json:"claim"`
	Evidence []EvidenceItem `json:"evidence"`
}

// VerifyRequest asks for an independent judgement. It shows the drafts and their
// evidence only, not the deterministic findings: a weak judge that knows them
// invents "already known" (architecture, "Which text wins").
type VerifyRequest struct {
	Loop         int          `json:"loop"`
	Op           string       `json:"op"`
	Instructions string       `json:"instructions"`
	Findings     []VerifyItem `json:"findings"`
}

// VerifyItem is one draft to judge.
type VerifyItem struct {
	ID       int            `json:"id"`
	Summary  string         `json:"summary"`
	Target   string         `json:"target"`
	Evidence []EvidenceItem `json:"evidence"`
}

// ProbeRequest is the whole request of the probe.
const ProbeRequest = `{"loop":1,"op":"probe"}`

// encodeRequest renders a request; over [MaxRequestBytes] is an error, so that a
// pass never sends what no backend takes.
func encodeRequest(v any) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "", fmt.Errorf("encode request: %w", err)
	}
	raw := bytes.TrimRight(b.Bytes(), "\n")
	if len(raw) > MaxRequestBytes {
		return "", fmt.Errorf("request of %d bytes is over the limit of %d", len(raw), MaxRequestBytes)
	}
	return string(raw), nil
}
