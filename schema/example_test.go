package schema_test

import (
	"fmt"

	"github.com/apbus/apbus/schema"
)

func ExampleFor() {
	type item struct {
		SKU string `json:"sku" description:"stock keeping unit"`
		Qty int    `json:"qty" exclusiveMinimum:"0"`
	}
	type order struct {
		Customer string  `json:"customer" minLength:"1"`
		Items    []item  `json:"items" minItems:"1"`
		Card     string  `json:"card" sensitive:"true"`
		Note     *string `json:"note"`
	}
	doc, err := schema.For[order]()
	if err != nil {
		panic(err)
	}
	text, err := schema.CanonicalJSON(doc["properties"].(map[string]any)["note"])
	if err != nil {
		panic(err)
	}
	fmt.Println(doc["required"], string(text))

	c, err := schema.Compile(doc)
	if err != nil {
		panic(err)
	}
	fmt.Println(c.HasSensitive(), c.Properties())
	fmt.Println(c.Validate(map[string]any{"customer": "ada", "items": []any{}, "card": "4111"}))
	// Output:
	// [customer items card] {"type":["string","null"]}
	// true [card customer items note]
	// value does not fit its schema: /items: must have at least 1 items
}

func ExampleCache() {
	cache := schema.NewCache()
	a, err := cache.Compile(map[string]any{"type": "object", "required": []any{"id"}})
	if err != nil {
		panic(err)
	}
	b, err := cache.Compile(map[string]any{"required": []string{"id"}, "type": "object"})
	if err != nil {
		panic(err)
	}
	fmt.Println(a == b)
	// Output: true
}

func ExampleStrict() {
	doc := map[string]any{
		"type":       "object",
		"properties": map[string]any{"q": map[string]any{"type": "string", "default": ""}},
	}
	text, err := schema.CanonicalJSON(schema.Strict(doc))
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
	// Output: {"additionalProperties":false,"properties":{"q":{"type":["string","null"]}},"required":["q"],"type":"object"}
}

func ExampleMatchGlob() {
	fmt.Println(schema.MatchGlob("apcore.registry.*", "apcore.registry.module_registered"))
	fmt.Println(schema.MatchGlob("v?", "v12"))
	fmt.Println(schema.MatchPattern("executor.*", "executor"))
	// Output:
	// true
	// false
	// false
}
