package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/internal/settings"
)

// approvalToken is the input that the approval gate takes out before the module
// sees the inputs; it is in no module's schema.
const approvalToken = "_approval_token"

// inputsFrom turns k=v pairs into inputs by the module's input schema. Errors
// name the key and never quote the value, which may be sensitive.
func inputsFrom(id string, schema map[string]any, pairs []string) (map[string]any, error) {
	out := map[string]any{}
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, settings.Usagef("want key=value, or --input with a JSON object")
		}
		if _, twice := out[key]; twice {
			return nil, settings.Usagef("%s is given twice", key)
		}
		if key == approvalToken {
			out[key] = value
			continue
		}
		property, err := propertyOf(id, schema, key)
		if err != nil {
			return nil, err
		}
		kinds := kindsOf(schema, property)
		typed, ok := typedValue(value, kinds)
		if !ok {
			return nil, settings.Usagef("%s: want %s", key, strings.Join(slices.Sorted(maps.Keys(kinds)), " or "))
		}
		out[key] = typed
	}
	return out, nil
}

// propertyOf finds the schema of an input. A key that the schema does not name
// is refused, since it is nearly always a slip, unless the schema says
// explicitly that others are welcome.
func propertyOf(id string, schema map[string]any, key string) (any, error) {
	root, _ := resolved(schema, schema).(map[string]any)
	properties, _ := root["properties"].(map[string]any)
	if p, known := properties[key]; known {
		return p, nil
	}
	if more, said := root["additionalProperties"]; said && more != false {
		return more, nil
	}
	if _, patterns := root["patternProperties"]; patterns || (properties == nil && root["additionalProperties"] != false) {
		return true, nil
	}
	names := slices.Sorted(maps.Keys(properties))
	if len(names) == 0 {
		return nil, settings.Usagef("%s takes no inputs, so no %q either", id, key)
	}
	if near := settings.Nearest(key, names); near != "" {
		return nil, settings.Usagef("%s has no input %q; did you mean %q?", id, key, near)
	}
	return nil, settings.Usagef("%s has no input %q; it has %s", id, key, strings.Join(names, ", "))
}

// maxHops bounds references and combinations, which may be circular.
const maxHops = 16

// resolved follows references inside the document. What cannot be followed
// admits anything here; the module's owner has the last word.
func resolved(document map[string]any, node any) any {
	for range maxHops {
		m, ok := node.(map[string]any)
		if !ok {
			return node
		}
		ref, ok := m["$ref"].(string)
		if !ok {
			return node
		}
		pointer, ok := strings.CutPrefix(ref, "#")
		if !ok {
			return true
		}
		node = document
		for part := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
			if part == "" {
				continue
			}
			part = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
			inner, ok := node.(map[string]any)
			if !ok {
				return true
			}
			node = inner[part]
		}
	}
	return true
}

// maxSchemaNodes bounds the work that one input's schema may cause, since it
// comes from another process and may multiply itself.
const maxSchemaNodes = 1000

// kindsOf collects the JSON types that a schema admits; none means any.
func kindsOf(document map[string]any, node any) map[string]bool {
	left := maxSchemaNodes
	return collectKinds(document, node, &left, 0)
}

func collectKinds(document map[string]any, node any, left *int, depth int) map[string]bool {
	kinds := map[string]bool{}
	*left--
	m, ok := resolved(document, node).(map[string]any)
	if !ok || *left < 0 || depth > maxHops {
		return kinds
	}
	switch t := m["type"].(type) {
	case string:
		kinds[t] = true
		return kinds
	case []any:
		for _, e := range t {
			if s, ok := e.(string); ok {
				kinds[s] = true
			}
		}
		return kinds
	}
	if c, ok := m["const"]; ok {
		kinds[kindOf(c)] = true
		return kinds
	}
	if values, ok := m["enum"].([]any); ok {
		for _, v := range values {
			kinds[kindOf(v)] = true
		}
		return kinds
	}
	for _, keyword := range []string{"anyOf", "oneOf", "allOf"} {
		list, _ := m[keyword].([]any)
		for _, alternative := range list {
			inner := collectKinds(document, alternative, left, depth+1)
			if len(inner) == 0 && keyword != "allOf" {
				return map[string]bool{} // one alternative admits anything
			}
			maps.Copy(kinds, inner)
		}
	}
	return kinds
}

// kindOf names the JSON type of a value.
func kindOf(v any) string {
	switch n := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	case float64:
		if n == math.Trunc(n) {
			return "integer"
		}
		return "number"
	}
	return "integer"
}

// typedValue reads text as one of kinds; none means anything. Where text is
// allowed and nothing else but null, the value is the text as it stands. Where
// several types are, JSON of one of them wins over text.
func typedValue(value string, kinds map[string]bool) (any, bool) {
	onlyText := kinds["string"] && (len(kinds) == 1 || len(kinds) == 2 && kinds["null"])
	if onlyText {
		return value, true
	}
	v, err := contextwire.Decode(contextwire.JSON, []byte(value), contextwire.Limits{})
	if err == nil {
		kind := kindOf(v)
		if len(kinds) == 0 || kinds[kind] || kind == "integer" && kinds["number"] {
			return v, true
		}
	}
	if len(kinds) == 0 || kinds["string"] {
		return value, true
	}
	return nil, false
}

// describeKinds shows the types of an input to people.
func describeKinds(document map[string]any, node any) string {
	kinds := slices.Sorted(maps.Keys(kindsOf(document, node)))
	if len(kinds) == 0 {
		return "any"
	}
	return strings.Join(kinds, "|")
}

// literalInput reads the JSON object of --input.
func literalInput(text string) (map[string]any, error) {
	m, err := contextwire.DecodeMap(contextwire.JSON, []byte(text), contextwire.Limits{})
	if err != nil {
		return nil, settings.Usagef("--input: %w", fmt.Errorf("want a JSON object, @file or - for standard input: %w", err))
	}
	return m, nil
}
