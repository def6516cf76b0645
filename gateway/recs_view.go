package gateway

import (
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/module"
)

// recView is a recommendation in a list.
func recView(l LoopQueue, c *loop.Case) map[string]any {
	r := c.Rec
	view := map[string]any{
		"hash": c.Hash, "state": string(c.Status.State), "intent": orNull(string(c.Status.Intent)),
		"analyzer": r.Analyzer, "origin": r.Origin.Kind, "model": orNull(r.Origin.Model),
		"target": r.Target, "action": string(r.Action), "kind": orNull(string(r.Kind)), "severity": string(r.Severity),
		"summary": l.Render(r), "guidance": orNull(r.Guidance), "confidence": r.Confidence, "importance": r.Importance,
		"executable": r.Executable(), "destructive": r.Destructive, "rollbackable": r.Rollbackable,
		"near_duplicates": int64(len(r.NearDuplicateOf)), "created_at": millis(r.CreatedAtMS), "changed_at": millis(c.Status.ChangedAtMS),
		"verdict": nil,
	}
	if m := c.Status.Latest(); m != nil {
		view["verdict"] = m.Verdict
	}
	return view
}

// recInFull is a recommendation with all that a reviewer needs: the body as it was
// stored, what it cites as far as it is kept, and what became of it.
func recInFull(l LoopQueue, c *loop.Case, cited []*loop.Record) (map[string]any, error) {
	view := recView(l, c)
	body, err := module.ToMap(c.Rec)
	if err != nil {
		return nil, module.Errorf(module.CodeInternal, "show a recommendation: %w", err)
	}
	history := make([]any, len(c.Status.History))
	for i, a := range c.Status.History {
		entry, err := module.ToMap(a)
		if err != nil {
			return nil, module.Errorf(module.CodeInternal, "show a recommendation: %w", err)
		}
		entry["at"] = millis(a.AtMS)
		history[i] = entry
	}
	evidence := make([]any, 0, len(cited))
	for _, r := range cited {
		m, err := recordView(r)
		if err != nil {
			return nil, err
		}
		evidence = append(evidence, m)
	}
	view["recommendation"], view["history"], view["evidence"] = body, history, evidence
	view["evidence_gone"] = int64(len(c.Rec.Evidence) - len(cited))
	return view, nil
}

// recordView is evidence as GET /v1/evidence shows it, or an item of knowledge.
func recordView(r *loop.Record) (map[string]any, error) {
	if r.Evidence != nil {
		return contextwire.EvidenceItem{Seq: r.Seq, Hash: r.Hash, Evidence: r.Evidence}.Map() //nolint:wrapcheck // coded
	}
	return map[string]any{
		"hash": r.Hash, "type": string(r.Type), "ns": r.Namespace, "time": millis(r.CreatedAtMS), "fields": r.Fields, "live": r.Live(),
	}, nil
}

// millis renders Unix milliseconds, null for 0.
func millis(ms int64) any {
	if ms == 0 {
		return nil
	}
	return timestamp(time.UnixMilli(ms))
}

func recSchemas() map[string]any {
	var (
		text, flag, integer, number = typed("string"), typed("boolean"), typed("integer"), typed("number")
		states                      []any
	)
	for _, s := range recStates() {
		states = append(states, string(s))
	}
	required := []string{
		"hash", "state", "analyzer", "origin", "target", "action", "severity", "summary", "executable", "destructive", "rollbackable", "created_at",
	}
	fields := func() map[string]any {
		return map[string]any{
			"hash": text, "state": map[string]any{"type": "string", "enum": states}, "intent": nullable("string"), "analyzer": text,
			"origin": text, "model": nullable("string"), "target": text, "action": text, "kind": nullable("string"),
			"severity": map[string]any{"type": "string", "enum": []any{"info", "low", "medium", "high"}},
			"summary":  text, "guidance": nullable("string"), "confidence": number, "importance": number,
			"executable": flag, "destructive": flag, "rollbackable": flag, "near_duplicates": integer,
			"created_at": text, "changed_at": nullable("string"), "verdict": nullable("string"),
		}
	}
	full := fields()
	full["recommendation"] = map[string]any{"type": "object", "description": "The stored body, whose canonical bytes have the hash."}
	full["history"], full["evidence"], full["evidence_gone"] = listOf(typed("object")), listOf(typed("object")), integer
	return map[string]any{
		"Recommendation": record(append(required, "recommendation", "history", "evidence"), full),
		"RecommendationList": record([]string{"recommendations", "next_cursor"}, map[string]any{
			"recommendations": listOf(record(required, fields())), "next_cursor": nullable("string"), "unreadable": integer,
		}),
		"RecommendationDecision": record([]string{"because"}, map[string]any{
			"because":           map[string]any{"type": "string", "minLength": 1, "maxLength": int64(loop.MaxBecauseLen)},
			"allow_destructive": map[string]any{"type": "boolean", "description": "Apply what cannot be undone."},
		}),
	}
}
