package gateway

import "maps"

// componentSchemas are the bodies that routes name.
func componentSchemas() map[string]any {
	var (
		text    = typed("string")
		texts   = listOf(text)
		integer = typed("integer")
		number  = typed("number")
		boolean = typed("boolean")
		object  = typed("object")
		moment  = map[string]any{"type": "string", "format": "date-time"}
		state   = map[string]any{"type": "string", "enum": []any{StateRunning, StateCancelling, StateFinished}}
	)
	counts := map[string]any{"type": "object", "additionalProperties": integer, "description": "Counts by error code."}
	call := map[string]any{
		"call": text, "attempt": integer, "root": nullable("string"), "parent": nullable("string"), "module_id": text,
		"node": nullable("string"), "boot": nullable("string"), "caller_id": nullable("string"),
		"identity_id": nullable("string"), "trace_id": nullable("string"),
		"mode": map[string]any{"type": "string", "enum": []any{"unary", "stream"}}, "started_at": nullable("string"),
		"budget_ms": nullable("integer"), "state": state,
		"finished_at": moment, "output": object, "error": ref("Error"),
	}
	all := map[string]any{
		"Inputs": object,
		"Output": object,
		"Error": record([]string{"code", "message", "timestamp"}, map[string]any{
			"code": text, "message": text, "timestamp": moment, "details": object, "cause": text, "trace_id": text,
			"module_id": text, "retryable": boolean, "user_fixable": boolean, "ai_guidance": text, "suggestion": text,
		}),
		"ErrorBody":    record([]string{"error"}, map[string]any{"error": ref("Error"), "trace": ref("Trace")}),
		"CallAnswer":   map[string]any{"anyOf": []any{ref("TracedOutput"), ref("Output")}},
		"TracedOutput": record([]string{"output", "trace"}, map[string]any{"output": object, "trace": map[string]any{"anyOf": []any{ref("Trace"), typed("null")}}}),
		"Trace": record([]string{"module_id", "strategy_name", "steps", "total_duration_ms", "success"}, map[string]any{
			"module_id": text, "strategy_name": text, "total_duration_ms": number, "success": boolean,
			"error": map[string]any{"anyOf": []any{ref("Error"), typed("null")}}, "remote": object,
			"steps": listOf(record([]string{"name", "duration_ms"}, map[string]any{
				"name": text, "duration_ms": number, "skipped": boolean, "decision_point": boolean,
				"skip_reason": nullable("string"), "error_code": nullable("string"),
			})),
			"hooks": listOf(record([]string{"middleware", "hook", "duration_ms"}, map[string]any{
				"middleware": text, "hook": text, "step": nullable("string"), "duration_ms": number, "replaced": boolean,
				"recovery": nullable("string"), "error_code": nullable("string"),
			})),
		}),
		eventsSchema: map[string]any{"type": "string", "description": "Server-Sent Events; the data of each is one JSON object."},
		"Status":     record([]string{"status"}, map[string]any{"status": text}),
		"Accepted": record([]string{"call", "state"}, map[string]any{
			"call": text, "module_id": text, "trace_id": text, "state": state,
		}),
		"PreflightResult": record([]string{"valid", "checks", "requires_approval", "predicted_changes", "errors"}, map[string]any{
			"valid": boolean, "requires_approval": boolean, "errors": listOf(ref("Error")),
			"checks": listOf(record([]string{"check", "passed", "error", "warnings"}, map[string]any{
				"check": text, "passed": boolean, "warnings": texts,
				"error": map[string]any{"anyOf": []any{ref("Error"), typed("null")}},
			})),
			"predicted_changes": listOf(record([]string{"action", "target", "summary"}, map[string]any{
				"action": text, "target": text, "summary": text, "before": map[string]any{}, "after": map[string]any{},
			})),
		}),
		"Module": record([]string{"module_id", "description", "version", "input_schema", "output_schema", "annotations", "hosts", "guidance"}, map[string]any{
			"module_id": text, "name": nullable("string"), "description": text, "documentation": nullable("string"),
			"version": text, "tags": texts, "input_schema": object, "output_schema": object, "annotations": object,
			"examples": listOf(object), "metadata": object, "resources": object, "hash": text,
			"hosts": listOf(record([]string{"node", "boot", "version", "draining"}, map[string]any{
				"node": text, "boot": text, "version": text, "draining": boolean,
			})),
			"guidance": listOf(record([]string{"kind", "text"}, map[string]any{
				"kind": text, "text": text, "rec": text, "applied_at": moment,
			})),
		}),
		"ModuleList": record([]string{"modules"}, map[string]any{"modules": listOf(ref("Module"))}),
		"Node": record([]string{"node", "boot", "draining", "in_flight", "modules"}, map[string]any{
			"node": text, "boot": text, "ns": text, "version": text, "protocol": integer, "max_payload": integer,
			"capacity": integer, "in_flight": integer, "draining": boolean, "grace_ms": integer, "at": moment,
			"seen_at": nullable("string"), "stale": boolean,
			"modules": listOf(record([]string{"id"}, map[string]any{"id": text, "version": text, "hash": text})),
		}),
		"StatsList": record([]string{"at", "nodes"}, map[string]any{"at": moment, "nodes": listOf(ref("NodeStats"))}),
		"NodeStats": record([]string{"node", "boot", "modules"}, map[string]any{
			"node": text, "boot": text, "ns": text, "version": text, "protocol": integer, "draining": boolean,
			"capacity": integer, "in_flight": integer, "waiting": integer, "debt": integer, "calls": integer,
			"tombstones": integer, "tombstones_evicted": integer, "refused": counts, "cancels_obeyed": integer,
			"credit_stalls": integer, "credit_stalled_ms": integer,
			"modules": listOf(record([]string{"module_id", "calls", "errors", "latency_us"}, map[string]any{
				"module_id": text, "in_flight": integer, "waiting": integer, "calls": integer, "errors": counts,
				"latency_us": map[string]any{
					"type": "array", "description": "Pairs: up to how many microseconds, and how many calls took that long, less than the pair before left out.",
					"items": map[string]any{"type": "array", "items": integer, "minItems": 2, "maxItems": 2},
				},
			})),
		}),
		metricsSchema: map[string]any{"type": "string", "description": "The text format of Prometheus."},
		"NodeList":    record([]string{"nodes"}, map[string]any{"nodes": listOf(ref("Node"))}),
		"GovernanceList": record([]string{"nodes"}, map[string]any{
			"nodes": listOf(record([]string{"node", "boot", "governance"}, map[string]any{
				"node": text, "boot": text,
				"governance": map[string]any{"anyOf": []any{record(governanceKeys(), flags(governanceKeys())), typed("null")}},
			})),
		}),
		"Diagnosis": record([]string{"checks"}, map[string]any{"checks": listOf(record([]string{"check", "state", "note", "findings"}, map[string]any{
			"check": text, "state": map[string]any{"type": "string", "enum": []any{"ok", "found", "skipped"}}, "note": nullable("string"),
			"findings": listOf(record([]string{"severity", "what", "problem", "mend"}, map[string]any{
				"severity": map[string]any{"type": "string", "enum": []any{"error", "warning"}}, "what": text, "problem": text, "mend": text,
			})),
		}))}),
		"DrainRequest": record(nil, map[string]any{"grace_ms": integer}),
		"DrainResult":  record([]string{"node", "in_flight"}, map[string]any{"node": text, "in_flight": integer}),
		"Call":         record([]string{"call", "attempt", "module_id", "state"}, call),
		"CallList":     record([]string{"calls"}, map[string]any{"calls": listOf(ref("Call"))}),
		"CancelResult": record([]string{"nodes", "calls", "state"}, map[string]any{
			"nodes": texts, "calls": texts,
			"state": map[string]any{"type": "string", "enum": []any{StateCancelling, StateFinished, StateTombstoned}},
		}),
	}
	maps.Copy(all, approvalSchemas())
	maps.Copy(all, evidenceSchemas())
	maps.Copy(all, taskSchemas())
	maps.Copy(all, recSchemas())
	maps.Copy(all, loopSchemas())
	return all
}

func typed(name string) map[string]any { return map[string]any{"type": name} }

func nullable(name string) map[string]any {
	return map[string]any{"type": []any{name, "null"}}
}

func listOf(item map[string]any) map[string]any {
	return map[string]any{"type": "array", "items": item}
}

func record(required []string, properties map[string]any) map[string]any {
	m := map[string]any{"type": "object", "properties": properties}
	if len(required) > 0 {
		m["required"] = texts(required)
	}
	return m
}
