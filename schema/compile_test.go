package schema_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/schema"
)

func TestCompileErrors(t *testing.T) {
	chain := func(n int) string {
		var b strings.Builder
		b.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
		for i := range n {
			fmt.Fprintf(&b, `"d%d":{"$ref":"#/$defs/d%d"},`, i, i+1)
		}
		fmt.Fprintf(&b, `"d%d":{"type":"string"}}}`, n)
		return b.String()
	}
	doubling := func(n int) string {
		var b strings.Builder
		b.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
		for i := range n {
			fmt.Fprintf(&b, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
		}
		fmt.Fprintf(&b, `"d%d":{}}}`, n)
		return b.String()
	}
	for _, tc := range []struct{ name, doc, code string }{
		{"reference to nothing", `{"$ref":"#/$defs/none"}`, schema.CodeNotFound},
		{"anchor to nothing", `{"$ref":"#none"}`, schema.CodeNotFound},
		{"remote reference", `{"$ref":"https://example.com/s.json"}`, schema.CodeNotFound},
		{"file reference", `{"$ref":"file:///etc/passwd"}`, schema.CodeNotFound},
		{"relative reference", `{"properties":{"a":{"$ref":"other.json"}}}`, schema.CodeNotFound},
		{"reference to itself", `{"$ref":"#"}`, schema.CodeCircularRef},
		{"loop of two", `{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`, schema.CodeCircularRef},
		{"loop through a branch", `{"anyOf":[{"type":"string"},{"$ref":"#"}]}`, schema.CodeCircularRef},
		{"32 references in a row", chain(31), ""},
		{"33 references in a row", chain(32), schema.CodeMaxDepthExceeded},
		{"doubling branches", doubling(25), schema.CodeMaxDepthExceeded},
		{"recursion through data is fine", `{"properties":{"n":{"$ref":"#"}}}`, ""},
		{"recursion by $id is fine", `{"$id":"Tree","properties":{"n":{"$ref":"Tree"}}}`, ""},
		{"reference outside $defs", `{"$ref":"#/components/a","components":{"a":{"type":"string"}}}`, ""},
		{"unknown dialect", `{"$schema":"https://example.com/dialect"}`, schema.CodeParseError},
		{"draft-07 dialect", `{"$schema":"http://json-schema.org/draft-07/schema#"}`, ""},
		{"unknown type", `{"type":"strin"}`, schema.CodeParseError},
		{"keyword of the wrong type", `{"minLength":"3"}`, schema.CodeParseError},
		{"negative count", `{"maxItems":-1}`, schema.CodeParseError},
		{"look-ahead", `{"pattern":"(?=a)"}`, schema.CodeParseError},
		{"broken pattern in patternProperties", `{"patternProperties":{"(":{}}}`, schema.CodeParseError},
		{"unknown keywords are ignored", `{"x-anything":{"type":"nonsense"},"hello":1}`, ""},
		{"properties that are called like keywords", `{"properties":{"$ref":{"type":"string"},"type":{},"default":{}}}`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := schema.Compile(doc(t, tc.doc))
			var pe *schema.ParseError
			if tc.code == "" {
				if err != nil {
					t.Errorf("Compile = %v", err)
				}
				return
			}
			if !errors.As(err, &pe) {
				t.Fatalf("Compile = %v, want a *ParseError", err)
			}
			if pe.Code != tc.code {
				t.Errorf("code = %s (%s), want %s", pe.Code, pe.Message, tc.code)
			}
			if tc.code == schema.CodeCircularRef && len(pe.RefPath) < 2 {
				t.Errorf("RefPath = %v, want the loop", pe.RefPath)
			}
		})
	}
}

func TestCompileTooDeep(t *testing.T) {
	d := map[string]any{}
	for range 2 * schema.MaxDepth {
		d = map[string]any{"not": d}
	}
	_, err := schema.Compile(d)
	var pe *schema.ParseError
	if !errors.As(err, &pe) || pe.Code != schema.CodeMaxDepthExceeded {
		t.Errorf("Compile = %v", err)
	}
}

func TestCompileTooManySubschemas(t *testing.T) {
	props := map[string]any{}
	for i := range schema.MaxSubschemas + 1 {
		props[fmt.Sprint(i)] = map[string]any{"type": "string"}
	}
	_, err := schema.Compile(map[string]any{"properties": props})
	var pe *schema.ParseError
	if !errors.As(err, &pe) || pe.Code != schema.CodeMaxDepthExceeded {
		t.Errorf("Compile = %v", err)
	}
}

func TestCompileTooManyOddReferences(t *testing.T) {
	parts, refs := map[string]any{}, []any{}
	for i := range 300 {
		parts[fmt.Sprint(i)] = map[string]any{}
		refs = append(refs, map[string]any{"$ref": fmt.Sprintf("#/parts/%d", i)})
	}
	_, err := schema.Compile(map[string]any{"parts": parts, "allOf": refs})
	var pe *schema.ParseError
	if !errors.As(err, &pe) || pe.Code != schema.CodeMaxDepthExceeded {
		t.Errorf("Compile = %v", err)
	}
	for _, ref := range refs {
		r := ref.(map[string]any)
		r["$ref"] = strings.Replace(r["$ref"].(string), "parts", "$defs", 1)
	}
	if _, err := schema.Compile(map[string]any{"$defs": parts, "allOf": refs}); err != nil {
		t.Errorf("references into $defs are not limited: %v", err)
	}
}

func TestCompilePatterns(t *testing.T) {
	for _, tc := range []struct {
		name, pattern, value string
		want                 bool
	}{
		{"unanchored", `b`, "abc", true},
		{"dollar is the end of the text", `^a$`, "a\n", false},
		{"\\d is ASCII", `^\d$`, "٣", false},
		{"\\s knows Unicode", `^\s$`, "\u00a0", true},
		{"\\S does not match it", `^\S$`, "\u00a0", false},
		{"\\s in a class", `^[a\s]+$`, "a\u2003", true},
		{"\\u escape", `^\u00e9$`, "é", true},
		{"\\u{} escape", `^\u{1f980}$`, "🦀", true},
		{"\\c escape", `^\cJ$`, "\n", true},
		{"escaped slash", `^a\/b$`, "a/b", true},
		{"any character", `^[^]$`, "\n", true},
		{"no character", `[]`, "a", false},
		{"bracket inside a class", `^[[]$`, "[", true},
		{"named group", `^(?<y>\d{4})$`, "2026", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := schema.Compile(map[string]any{"pattern": tc.pattern})
			if err != nil {
				t.Fatal(err)
			}
			if got := c.Validate(tc.value) == nil; got != tc.want {
				t.Errorf("match = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestCompiledKeepsItsOwnDocument(t *testing.T) {
	d := map[string]any{"type": "object", "required": []string{"a"}, "properties": map[string]any{"a": map[string]any{"type": "string"}}}
	c, err := schema.Compile(d)
	if err != nil {
		t.Fatal(err)
	}
	d["type"] = "array"
	c.Doc()["properties"].(map[string]any)["a"] = false
	want := map[string]any{"type": "object", "required": []any{"a"}, "properties": map[string]any{"a": map[string]any{"type": "string"}}}
	if diff := cmp.Diff(want, c.Doc()); diff != "" {
		t.Errorf("Doc (-want +got):\n%s", diff)
	}
	if err := c.Validate(map[string]any{"a": "x"}); err != nil {
		t.Errorf("Validate = %v", err)
	}
}

func TestCompiledProperties(t *testing.T) {
	c := compile(t, `{"properties":{"b":{"properties":{"inner":{}}},"a":{}},"allOf":[{"properties":{"c":{}}}],"$ref":"#/$defs/d","$defs":{"d":{"properties":{"d":{}}}}}`)
	if diff := cmp.Diff([]string{"a", "b", "c", "d"}, c.Properties()); diff != "" {
		t.Errorf("Properties (-want +got):\n%s", diff)
	}
}

func TestCacheSharesEqualDocuments(t *testing.T) {
	cache := schema.NewCache()
	var wg sync.WaitGroup
	got := make([]*schema.Compiled, 16)
	for i := range got {
		wg.Go(func() {
			c, err := cache.Compile(map[string]any{"type": "object", "required": []string{"a"}})
			if err != nil {
				t.Error(err)
			}
			got[i] = c
		})
	}
	wg.Wait()
	for _, c := range got {
		if c != got[0] {
			t.Fatal("equal documents gave different compiled schemas")
		}
	}
	other, err := cache.Compile(map[string]any{"type": "object"})
	if err != nil || other == got[0] {
		t.Errorf("different documents must not share: %v", err)
	}
	// 1 and 1.0 are different documents.
	one, _ := cache.Compile(map[string]any{"default": int64(1)})
	float, _ := cache.Compile(map[string]any{"default": 1.0})
	if one == float {
		t.Error("1 and 1.0 share a compiled schema")
	}
}

// A document is compiled once by its content: not again for a copy, for keys in
// another order, or for one of many who ask for it at once.
func TestCacheCompilesOnce(t *testing.T) {
	cache := schema.NewCache()
	doc := func(n int) map[string]any {
		props := map[string]any{}
		for i := range 50 {
			props[fmt.Sprintf("field_%d_%d", n, (i*7)%50)] = map[string]any{"type": "string", "pattern": "^[a-z]+$"}
		}
		return map[string]any{"type": "object", "properties": props}
	}
	const distinct, askers = 5, 8
	got := [askers][distinct]*schema.Compiled{}
	var wg sync.WaitGroup
	for a := range askers {
		wg.Go(func() {
			for n := range distinct {
				c, err := cache.Compile(doc(n))
				if err != nil {
					t.Error(err)
				}
				got[a][n] = c
			}
		})
	}
	wg.Wait()
	for a := range askers {
		if got[a] != got[0] {
			t.Errorf("asker %d got others", a)
		}
	}
	if n := cache.Compiled(); n != distinct {
		t.Errorf("%d documents were compiled, want %d", n, distinct)
	}
}

func TestCacheIsBounded(t *testing.T) {
	cache := schema.NewCache()
	first, err := cache.Compile(map[string]any{"title": "first"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1100 {
		if _, err := cache.Compile(map[string]any{"title": fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	again, err := cache.Compile(map[string]any{"title": "first"})
	if err != nil {
		t.Fatal(err)
	}
	if again == first {
		t.Error("the oldest document must have left the cache")
	}
}

func TestCacheDoesNotKeepErrors(t *testing.T) {
	cache := schema.NewCache()
	for range 2 {
		if _, err := cache.Compile(map[string]any{"type": "nonsense"}); err == nil {
			t.Fatal("want an error each time")
		}
	}
}
