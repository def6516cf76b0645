package schema

import (
	"slices"
	"strings"
)

// Strict returns doc converted by algorithm A23 for consumers that want every
// object closed and every property present: x-* keywords and defaults go (an
// x-llm-description replaces the description first), each object with properties
// gets additionalProperties false and a complete sorted required list, and a
// property that was optional becomes nullable. doc itself is left alone; nil
// becomes an empty document.
func Strict(doc map[string]any) map[string]any {
	copied, err := NormalizeMap(doc)
	if err != nil || copied == nil {
		return map[string]any{}
	}
	stripExtensions(copied)
	return harden(copied).(map[string]any)
}

// Export is the envelope in which a module's schemas are published: exactly
// module_id, description, input_schema and output_schema, both schemas strict
// when asked. A nil schema is exported as an empty one.
func Export(moduleID, description string, in, out map[string]any, strict bool) map[string]any {
	convert := func(doc map[string]any) map[string]any {
		if strict {
			return Strict(doc)
		}
		copied, err := NormalizeMap(doc)
		if err != nil {
			return map[string]any{}
		}
		return copied
	}
	return map[string]any{
		"module_id":     moduleID,
		"description":   description,
		"input_schema":  convert(in),
		"output_schema": convert(out),
	}
}

func stripExtensions(doc map[string]any) {
	if d, ok := doc["x-llm-description"].(string); ok {
		doc["description"] = d
	}
	for k := range doc {
		if k == "default" || strings.HasPrefix(k, "x-") {
			delete(doc, k)
		}
	}
	for sub := range subschemas(doc) {
		stripExtensions(sub)
	}
}

func harden(node any) any {
	doc, ok := node.(map[string]any)
	if !ok {
		return node
	}
	for _, k := range []string{"properties", "definitions", "$defs"} {
		if m, ok := doc[k].(map[string]any); ok {
			for name, sub := range m {
				m[name] = harden(sub)
			}
		}
	}
	for _, k := range []string{"prefixItems", "oneOf", "anyOf", "allOf", "items"} {
		if list, ok := doc[k].([]any); ok {
			for i, sub := range list {
				list[i] = harden(sub)
			}
		}
	}
	if items, ok := doc["items"].(map[string]any); ok {
		doc["items"] = harden(items)
	}
	if props, ok := doc["properties"].(map[string]any); ok && describesObject(doc["type"]) {
		closeObject(doc, props)
	}
	return doc
}

func describesObject(typ any) bool {
	switch typ := typ.(type) {
	case nil:
		return true
	case string:
		return typ == "object"
	case []any:
		return slices.Contains(typ, any("object"))
	}
	return false
}

func closeObject(doc, props map[string]any) {
	list, _ := doc["required"].([]any)
	required := make(map[any]bool, len(list))
	for _, name := range list {
		if s, ok := name.(string); ok {
			required[s] = true
		}
	}
	names := make([]string, 0, len(props))
	for name, sub := range props {
		names = append(names, name)
		if required[name] {
			continue
		}
		props[name] = orNull(sub)
	}
	slices.Sort(names)
	all := make([]any, len(names))
	for i, name := range names {
		all[i] = name
	}
	doc["additionalProperties"] = false
	doc["required"] = all
}

func orNull(sub any) any {
	if m, ok := sub.(map[string]any); ok {
		if typ, ok := withNull(m["type"]); ok {
			m["type"] = typ
			return m
		}
	}
	return map[string]any{"anyOf": []any{sub, map[string]any{"type": "null"}}}
}
