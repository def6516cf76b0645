package system

// object is a closed schema in which every property is required but those named
// after it.
func object(props map[string]any, optional ...string) map[string]any {
	skip := make(map[string]bool, len(optional))
	for _, name := range optional {
		skip[name] = true
	}
	required := []any{}
	for name := range props {
		if !skip[name] {
			required = append(required, name)
		}
	}
	sortStrings(required)
	return map[string]any{"type": "object", "properties": props, "required": required, "additionalProperties": false}
}

func list(item map[string]any) map[string]any { return map[string]any{"type": "array", "items": item} }

func typed(t any) map[string]any { return map[string]any{"type": t} }

func described(s map[string]any, text string) map[string]any {
	out := map[string]any{"description": text}
	for k, v := range s {
		out[k] = v
	}
	return out
}

func withDefault(s map[string]any, value any, text string) map[string]any {
	out := described(s, text)
	out["default"] = value
	return out
}

func enum(values ...any) map[string]any { return map[string]any{"type": "string", "enum": values} }

func text() map[string]any      { return typed("string") }
func integer() map[string]any   { return map[string]any{"type": "integer", "minimum": 0} }
func number() map[string]any    { return map[string]any{"type": "number", "minimum": 0} }
func boolean() map[string]any   { return typed("boolean") }
func anyObject() map[string]any { return typed("object") }
func nullText() map[string]any  { return typed([]any{"string", "null"}) }

// moduleIDInput is the property that names the module asked about.
func moduleIDInput() map[string]any { return described(text(), "The module to report on.") }

// reasonInput is mandatory for every control module. That it is not empty is
// judged by the module, whose error says so in words.
func reasonInput() map[string]any { return described(text(), "Why, for the audit trail.") }
