package loop

import (
	"context"
	"time"

	"github.com/apbus/apbus/module"
)

// Health is how the loop is doing, for people and monitors.
type Health struct {
	// LastRunMS is 0 for a loop that never ran.
	LastRunMS    int64 `json:"last_run_ms"`
	Watermark    int64 `json:"watermark"`
	LLMWatermark int64 `json:"llm_watermark"`
	NewGrains    int   `json:"new_grains"`
	NewErrors    int   `json:"new_error_events"`
	// Stale is true for a loop that never ran, ran seven days ago or longer, or has a
	// hundred new records.
	Stale bool `json:"stale"`
	// Model is the name of the model, "" without one.
	Model string `json:"model,omitempty"`
	// Recommendations counts them by state; Unread those that cannot be read.
	Recommendations map[State]int    `json:"recommendations"`
	Unread          int              `json:"unread"`
	Analyzers       []AnalyzerHealth `json:"analyzers"`
}

// AnalyzerHealth is one analyzer and whether a pass would run it.
type AnalyzerHealth struct {
	ID          string `json:"id"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Runs        bool   `json:"runs"`
}

const (
	staleAfter = 7 * 24 * time.Hour
	staleNew   = 100
)

// Health reads how the loop is doing. It writes nothing.
func (e *Engine) Health(ctx context.Context, now time.Time) (*Health, error) {
	p := &pass{Engine: e, now: now}
	if err := p.readState(ctx); err != nil {
		return nil, err
	}
	counts, err := e.reader.Count(ctx, Query{AfterSeq: uint64(p.state.Watermark)}) //nolint:gosec // never negative
	if err != nil {
		return nil, storeError("counting evidence", err)
	}
	cases, unread, err := e.Cases(ctx)
	if err != nil {
		return nil, err
	}
	h := &Health{
		LastRunMS: p.state.LastRunMS, Watermark: p.state.Watermark, LLMWatermark: p.state.LLMWatermark,
		NewGrains: counts.Records, NewErrors: counts.Errors, Recommendations: make(map[State]int), Unread: unread,
		Stale: p.state.LastRunMS == 0 || now.Sub(time.UnixMilli(p.state.LastRunMS)) >= staleAfter || counts.Records >= staleNew,
	}
	if e.backend != nil {
		h.Model = e.backend.Model()
	}
	for _, c := range cases {
		h.Recommendations[c.Status.State]++
	}
	for _, m := range e.manifests {
		c, err := e.Config(ctx, familyOf(m.ID))
		if err != nil {
			return nil, err
		}
		on := m.DefaultOn
		if c.Enabled != nil {
			on = *c.Enabled
		}
		h.Analyzers = append(h.Analyzers, AnalyzerHealth{ID: m.ID, Title: m.Title, Description: m.Description, Runs: on && !e.policy.denies(familyOf(m.ID))})
	}
	return h, nil
}

// Probe asks the model who it is. LOOP_BACKEND when there is none or it fails.
func (e *Engine) Probe(ctx context.Context) (model string, err error) {
	if e.backend == nil {
		return "", module.Errorf(module.CodeLoopBackend, "no model is configured")
	}
	answer, err := e.backend.Complete(ctx, ProbeRequest)
	if err == nil {
		model, err = ParseProbe(answer)
	}
	if err != nil {
		return "", module.Errorf(module.CodeLoopBackend, "the probe of the model failed: %w", err)
	}
	return model, nil
}

// Cited returns the records that a recommendation cites, in its order; those that
// are no longer kept are left out.
func (e *Engine) Cited(ctx context.Context, c *Case) ([]*Record, error) {
	found, err := e.reader.ByHash(ctx, c.Rec.Evidence)
	if err != nil {
		return nil, storeError("reading cited evidence", err)
	}
	var records []*Record
	for _, h := range c.Rec.Evidence {
		if r := found[h]; r != nil {
			records = append(records, r)
		}
	}
	return records, nil
}
