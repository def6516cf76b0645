package schema_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/apbus/apbus/schema"
)

// FuzzCompileValidate: no document and no value makes Compile, Validate, Redact
// or Strict panic, hang or fail with an uncoded error.
func FuzzCompileValidate(f *testing.F) {
	for _, seed := range [][2]string{
		{`{"type":"object","properties":{"a":{"type":"integer","minimum":1}},"required":["a"]}`, `{"a":0}`},
		{`{"$ref":"#/$defs/n","$defs":{"n":{"properties":{"c":{"$ref":"#/$defs/n"}},"additionalProperties":false}}}`, `{"c":{"c":{"d":1}}}`},
		{`{"$dynamicAnchor":"n","properties":{"c":{"$dynamicRef":"#n"}}}`, `{"c":{"c":1}}`},
		{`{"allOf":[{"$dynamicRef":"#n"}],"$defs":{"a":{"$dynamicAnchor":"n"}}}`, `{}`},
		{`{"$id":"http://x/","$defs":{"a":{"$id":"b","$ref":"#/$defs/c","$defs":{"c":{"$ref":"/"}}}}}`, `1`},
		{`{"anyOf":[{"type":"string"},{"not":{"const":1}}],"unevaluatedProperties":false}`, `{"a":1}`},
		{`{"$schema":"http://json-schema.org/draft-07/schema#","items":[{"$ref":"#"}],"dependencies":{"a":["b"]}}`, `[[[]]]`},
		{`{"patternProperties":{"^a\\s":{"x-sensitive":true}},"propertyNames":{"pattern":"\\u0061"}}`, `{"a b":"c"}`},
		{`{"enum":[1e400,1.0,18446744073709551616]}`, `1e308`},
		{`{"multipleOf":1e-300,"maxLength":1e300}`, `1e300`},
		{`{"contains":{"type":"null"},"minContains":0,"uniqueItems":true,"prefixItems":[true,false]}`, `[1,1.0,null]`},
	} {
		f.Add(seed[0], seed[1])
	}
	r, err := schema.NewRedactor(schema.RedactOptions{Patterns: []string{"b+"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, document, instance string) {
		d, ok := decode(document).(map[string]any)
		if !ok {
			return
		}
		v := decode(instance)
		schema.Strict(d)
		c, err := schema.Compile(d)
		if err != nil {
			var pe *schema.ParseError
			if !errors.As(err, &pe) || pe.Code == "" {
				t.Fatalf("uncoded error %v", err)
			}
			return
		}
		if err := c.Validate(v); err != nil {
			var ve *schema.ValidationError
			if !errors.As(err, &ve) || ve.Code == "" || len(ve.Violations) == 0 {
				t.Fatalf("error without violations: %#v", err)
			}
			for _, x := range ve.Violations {
				if x.Keyword == "" || x.Message == "" || (x.Path != "" && x.Path[0] != '/') {
					t.Fatalf("incomplete violation %+v", x)
				}
			}
		}
		if m, ok := v.(map[string]any); ok {
			r.Scrub(instance, r.Values(c, m))
			r.Redact(c, m)
		}
	})
}

// FuzzCanonicalJSON: what is accepted is valid JSON that canonicalises to itself.
func FuzzCanonicalJSON(f *testing.F) {
	for _, seed := range []string{`{"b":1.0,"a":[1e400]}`, `"\u0000\ud800"`, `[1e16,1e-5,-0.0,18446744073709551615]`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v := decode(text)
		first, err := schema.CanonicalJSON(v)
		if err != nil {
			return
		}
		second, err := schema.CanonicalJSON(decode(string(first)))
		if err != nil || string(first) != string(second) {
			t.Fatalf("%s then %s (%v)", first, second, err)
		}
	})
}

// decode reads text the way a gateway would, numbers unread; nil when it is no JSON.
func decode(text string) any {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return nil
	}
	return v
}
