package schema_test

import (
	"fmt"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/apbus/apbus/schema"
)

// BenchmarkValidate compares Validate with the library called directly, on values
// that fit: the path every call takes twice.
func BenchmarkValidate(b *testing.B) {
	wide := map[string]any{}
	value := map[string]any{}
	for i := range 1000 {
		name := fmt.Sprintf("field_%d", i)
		wide[name] = map[string]any{"type": []any{"string", "integer"}[i%2]}
		value[name] = []any{"some text", int64(i)}[i%2]
	}
	for _, bc := range []struct {
		name  string
		doc   map[string]any
		value map[string]any
	}{
		{"two numbers", map[string]any{
			"type":       "object",
			"properties": map[string]any{"a": map[string]any{"type": "number"}, "b": map[string]any{"type": "number"}},
			"required":   []any{"a", "b"},
		}, map[string]any{"a": 1.5, "b": int64(2)}},
		{"1000 fields", map[string]any{"type": "object", "properties": wide}, value},
	} {
		compiled, err := schema.Compile(bc.doc)
		if err != nil {
			b.Fatal(err)
		}
		c := jsonschema.NewCompiler()
		if err := c.AddResource("mem:///doc", bc.doc); err != nil {
			b.Fatal(err)
		}
		direct := c.MustCompile("mem:///doc")
		b.Run(bc.name+"/schema", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := compiled.Validate(bc.value); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(bc.name+"/library", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := direct.Validate(bc.value); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRedact is what logging one call costs.
func BenchmarkRedact(b *testing.B) {
	r, err := schema.NewRedactor(schema.RedactOptions{})
	if err != nil {
		b.Fatal(err)
	}
	compiled, err := schema.Compile(map[string]any{"type": "object", "properties": map[string]any{
		"card": map[string]any{"type": "string", "x-sensitive": true},
	}})
	if err != nil {
		b.Fatal(err)
	}
	value := map[string]any{"customer": "ada", "card": "4111", "items": []any{map[string]any{"sku": "a", "qty": int64(1)}}}
	b.ReportAllocs()
	for b.Loop() {
		r.Redact(compiled, value)
	}
}
