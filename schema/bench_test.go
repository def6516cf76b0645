package schema_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

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

// BenchmarkValidateNested validates 1,000 fields in objects and lists of objects: a
// hundred orders, each with a customer and lines. MB/s is of the JSON text that the
// value came from; "library-ratio" is how many times as long the library takes that is
// called directly.
func BenchmarkValidateNested(b *testing.B) {
	object := func(props map[string]any) map[string]any {
		required := make([]any, 0, len(props))
		for name := range props {
			required = append(required, name)
		}
		return map[string]any{"type": "object", "properties": props, "required": required, "additionalProperties": false}
	}
	text, number := map[string]any{"type": "string", "minLength": 1}, map[string]any{"type": "integer", "minimum": 0}
	doc := object(map[string]any{"orders": map[string]any{"type": "array", "items": object(map[string]any{
		"id": text, "paid": map[string]any{"type": "boolean"},
		"customer": object(map[string]any{"name": text, "city": text}),
		"lines":    map[string]any{"type": "array", "items": object(map[string]any{"sku": text, "quantity": number, "cents": number})},
	})}})
	orders := make([]any, 100)
	for i := range orders {
		line := map[string]any{"sku": fmt.Sprintf("sku-%06d-of-the-catalogue", i), "quantity": int64(i), "cents": int64(1000 + i)}
		orders[i] = map[string]any{
			"id": fmt.Sprintf("order-%d", i), "paid": i%2 == 0, "lines": []any{line, line},
			"customer": map[string]any{"name": fmt.Sprintf("Customer %d of the shop", i), "city": "Aberystwyth"},
		}
	} // 4 + 2×3 leaves each
	value := map[string]any{"orders": orders}
	raw, err := json.Marshal(value)
	if err != nil {
		b.Fatal(err)
	}
	compiled, err := schema.Compile(doc)
	if err != nil {
		b.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("mem:///doc", doc); err != nil {
		b.Fatal(err)
	}
	direct := c.MustCompile("mem:///doc")
	const rounds = 20
	began := time.Now()
	for range rounds {
		if err := direct.Validate(value); err != nil {
			b.Fatal(err)
		}
	}
	library := float64(time.Since(began)) / rounds
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		if err := compiled.Validate(value); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(library*float64(b.N)/float64(b.Elapsed()), "library-ratio")
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
