package backend

import (
	"maps"
	"slices"

	"github.com/apbus/apbus/loop"
)

// ResponseSchema is the JSON Schema of the answer to an operation, in the form that
// strict structured output wants: every property required, no others, what may be
// absent nullable. That of discover has proposal, without which a strict provider
// could only ever give advice. nil for an operation without one.
func ResponseSchema(op string) map[string]any {
	text, number, flag := map[string]any{"type": "string"}, map[string]any{"type": "number"}, map[string]any{"type": "boolean"}
	whole := map[string]any{"type": "integer"}
	switch op {
	case loop.OpDiscover:
		return strict(map[string]any{"recommendations": listOf(strict(map[string]any{
			"summary": text, "target": text, "guidance": text, "evidence": listOf(text), "confidence": number,
			"lesson": text, "proposal": map[string]any{"anyOf": proposals()},
		}))})
	case loop.OpGround:
		return strict(map[string]any{"results": listOf(strict(map[string]any{"id": whole, "supported": flag, "reason": text}))})
	case loop.OpVerify:
		return strict(map[string]any{"results": listOf(strict(map[string]any{"id": whole, "keep": flag, "confidence": number, "reason": text}))})
	case loop.OpEnrich:
		return strict(map[string]any{"notes": listOf(strict(map[string]any{"target": text, "guidance": text}))})
	}
	return nil
}

func proposals() []any {
	text := map[string]any{"type": "string"}
	nullable := func(typ string) map[string]any { return map[string]any{"type": []any{typ, "null"}} }
	scalar := map[string]any{"type": []any{"string", "integer", "number", "boolean", "null"}}
	kind := func(k loop.Kind, fields map[string]any) any {
		fields["kind"] = map[string]any{"type": "string", "enum": []any{string(k)}}
		return strict(fields)
	}
	return []any{
		map[string]any{"type": "null"},
		kind(loop.KindLesson, map[string]any{"lesson": text}),
		kind(loop.KindFact, map[string]any{"relation": text, "object": text}),
		kind(loop.KindQueryRevision, map[string]any{"body": text}),
		kind(loop.KindPlanRevision, map[string]any{"edits": listOf(strict(map[string]any{"path": text, "from": scalar, "to": scalar}))}),
		kind(loop.KindCodeRevision, map[string]any{"source": text}),
		kind(loop.KindSkill, map[string]any{"description": text, "when_to_use": text, "steps": listOf(text)}),
		kind(loop.KindConsolidation, map[string]any{"lesson": text, "supersedes": listOf(text)}),
		kind(loop.KindPlan, map[string]any{
			"description": text, "when_to_use": text,
			"nodes": listOf(strict(map[string]any{"id": text, "tool": text, "step": text})),
			"edges": listOf(strict(map[string]any{"src": text, "dst": text, "cond": nullable("string"), "max_cycles": nullable("integer")})),
		}),
	}
}

func listOf(item map[string]any) map[string]any {
	return map[string]any{"type": "array", "items": item}
}

func strict(properties map[string]any) map[string]any {
	required := []any{}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		required = append(required, name)
	}
	return map[string]any{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
}
