package schema

import "iter"

// shape says how a keyword holds schemas.
type shape int

const (
	holdsData   shape = iota // no schema inside
	holdsSchema              // one schema
	holdsList                // an array of schemas
	holdsMap                 // schemas by name
	holdsEither              // one schema or an array of them
)

// keywordShape is the one table of where schemas sit inside a schema. What it
// does not name is data: a property called "default" is reached through
// properties, a const never.
func keywordShape(keyword string) shape {
	switch keyword {
	case "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "additionalItems",
		"contains", "propertyNames", "not", "if", "then", "else", "contentSchema":
		return holdsSchema
	case "allOf", "anyOf", "oneOf", "prefixItems":
		return holdsList
	case "properties", "patternProperties", "dependentSchemas", "$defs", "definitions", "dependencies":
		return holdsMap
	case "items":
		return holdsEither
	}
	return holdsData
}

// subschemas yields the object schemas directly inside doc, in no order.
func subschemas(doc map[string]any) iter.Seq[map[string]any] {
	return func(yield func(map[string]any) bool) {
		for k, v := range doc {
			sh := keywordShape(k)
			switch v := v.(type) {
			case map[string]any:
				if sh == holdsSchema || sh == holdsEither {
					if !yield(v) {
						return
					}
					continue
				}
				if sh != holdsMap {
					continue
				}
				for _, e := range v {
					if m, ok := e.(map[string]any); ok && !yield(m) {
						return
					}
				}
			case []any:
				if sh != holdsList && sh != holdsEither {
					continue
				}
				for _, e := range v {
					if m, ok := e.(map[string]any); ok && !yield(m) {
						return
					}
				}
			}
		}
	}
}
