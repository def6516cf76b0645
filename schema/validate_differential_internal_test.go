package schema

import (
	"testing"

	"pgregory.net/rapid"
)

// genValue draws values from a small world, so that schemas and values meet.
func genValue(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		most := 8
		if depth <= 0 {
			most = 6
		}
		switch rapid.IntRange(0, most).Draw(t, "kind") {
		case 0:
			return nil
		case 1:
			return rapid.Bool().Draw(t, "bool")
		case 2, 3:
			return rapid.SampledFrom([]any{int64(-1), int64(0), int64(1), int64(2), int64(3), int64(1<<53 + 1), uint64(1 << 63)}).Draw(t, "int")
		case 4:
			return rapid.SampledFrom([]float64{-0.5, 0, 0.1, 0.5, 1, 2, 2.5, 1 << 53, 1e18}).Draw(t, "float")
		case 5, 6:
			return rapid.SampledFrom([]string{"", "a", "b", "ab", "äö", "abc"}).Draw(t, "string")
		case 7:
			return rapid.SliceOfN(genValue(depth-1), 0, 3).Draw(t, "array")
		default:
			return rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c", "ab"}), genValue(depth-1), 0, 4).Draw(t, "object")
		}
	})
}

// genSchema draws schemas over every keyword the quick check knows.
func genSchema(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		if rapid.IntRange(0, 9).Draw(t, "bool?") == 0 {
			return rapid.Bool().Draw(t, "schema")
		}
		doc := map[string]any{}
		for range rapid.IntRange(0, 3).Draw(t, "keywords") {
			drawKeyword(t, doc, depth)
		}
		return doc
	})
}

func drawKeyword(t *rapid.T, doc map[string]any, depth int) {
	sub := func() any {
		if depth <= 0 {
			return map[string]any{"type": rapid.SampledFrom([]any{"string", "integer", "object"}).Draw(t, "leaf")}
		}
		return genSchema(depth-1).Draw(t, "sub")
	}
	subs := func() []any {
		return rapid.SliceOfN(rapid.Custom(func(*rapid.T) any { return sub() }), 1, 3).Draw(t, "subs")
	}
	name := func() string { return rapid.SampledFrom([]string{"a", "b", "c", "ab"}).Draw(t, "name") }
	count := func() int64 { return int64(rapid.IntRange(0, 3).Draw(t, "count")) }
	num := func() any {
		return rapid.SampledFrom([]any{int64(0), int64(1), int64(2), 0.1, 0.5, 2.5, int64(1<<53 + 1), 1e18}).Draw(t, "num")
	}
	keyword := rapid.SampledFrom([]string{
		"type", "type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
		"minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems", "prefixItems", "items", "contains",
		"minContains", "maxContains", "minProperties", "maxProperties", "required", "properties", "properties",
		"patternProperties", "additionalProperties", "propertyNames", "dependentRequired", "dependentSchemas",
		"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "unevaluatedProperties", "unevaluatedItems", "$ref",
	}).Draw(t, "keyword")
	switch keyword {
	case "type":
		all := []any{"null", "boolean", "number", "integer", "string", "array", "object"}
		doc[keyword] = rapid.SliceOfNDistinct(rapid.SampledFrom(all), 1, 3, func(v any) any { return v }).Draw(t, "types")
	case "enum":
		doc[keyword] = rapid.SliceOfN(genValue(1), 1, 4).Draw(t, "enum")
	case "const":
		doc[keyword] = genValue(1).Draw(t, "const")
	case "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum":
		doc[keyword] = num()
	case "multipleOf":
		doc[keyword] = rapid.SampledFrom([]any{int64(1), int64(2), 0.5, 0.1}).Draw(t, "multiple")
	case "pattern":
		doc[keyword] = rapid.SampledFrom([]any{"^a", "b$", "^.{2}$"}).Draw(t, "pattern")
	case "uniqueItems":
		doc[keyword] = true
	case "minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains", "minProperties", "maxProperties":
		doc[keyword] = count()
	case "required":
		doc[keyword] = []any{name()}
	case "dependentRequired":
		doc[keyword] = map[string]any{name(): []any{name()}}
	case "properties", "dependentSchemas":
		doc[keyword] = map[string]any{name(): sub(), name(): sub()}
	case "patternProperties":
		doc[keyword] = map[string]any{"^a": sub()}
	case "prefixItems", "allOf", "anyOf", "oneOf":
		doc[keyword] = subs()
	case "$ref":
		doc[keyword] = "#/$defs/shared"
	default:
		doc[keyword] = sub()
	}
}

// TestQuickCheckAgreesWithLibrary: whatever the quick check decides, the library
// decides too; it may only be unsure.
func TestQuickCheckAgreesWithLibrary(t *testing.T) {
	decided := 0
	rapid.Check(t, func(t *rapid.T) {
		doc, ok := genSchema(3).Draw(t, "doc").(map[string]any)
		if !ok {
			return
		}
		doc["$defs"] = map[string]any{"shared": map[string]any{"type": "object", "properties": map[string]any{
			"a": map[string]any{"$ref": "#/$defs/shared"},
			"b": map[string]any{"type": "integer"},
		}}}
		c, err := Compile(doc)
		if err != nil {
			t.Fatalf("Compile: %v", err)
		}
		for range 4 {
			v := genValue(3).Draw(t, "value")
			j := judge{left: fastSteps}
			quick := j.value(c.fast, v, 0)
			direct := c.root.Validate(v)
			if quick == fits && direct != nil {
				t.Fatalf("quick check accepts what the library refuses: %v", direct)
			}
			if quick == misfit && direct == nil {
				t.Fatal("quick check refuses what the library accepts")
			}
			if got := c.Validate(v); (got == nil) != (direct == nil) {
				t.Fatalf("Validate = %v, library = %v", got, direct)
			}
			if quick != unsure {
				decided++
			}
		}
	})
	if decided == 0 {
		t.Error("the quick check never decided anything; the test compares nothing")
	}
}
