package schema_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/schema"
)

func TestStrict(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"empty", `{}`, `{}`},
		{"not an object", `{"type":"string","minLength":1}`, `{"type":"string","minLength":1}`},
		{
			"optional becomes nullable and required is complete",
			`{"type":"object","properties":{"b":{"type":"string"},"a":{"type":"integer"}},"required":["b"]}`,
			`{"type":"object","properties":{"b":{"type":"string"},"a":{"type":["integer","null"]}},"required":["a","b"],"additionalProperties":false}`,
		},
		{
			"a property without a type is wrapped",
			`{"properties":{"r":{"$ref":"#/$defs/d"},"e":{"enum":["x"]}},"$defs":{"d":{"type":"string"}}}`,
			`{"properties":{"r":{"anyOf":[{"$ref":"#/$defs/d"},{"type":"null"}]},"e":{"anyOf":[{"enum":["x"]},{"type":"null"}]}},"$defs":{"d":{"type":"string"}},"additionalProperties":false,"required":["e","r"]}`,
		},
		{
			"nullable is not doubled",
			`{"properties":{"a":{"type":["string","null"]},"n":{"type":"null"}}}`,
			`{"properties":{"a":{"type":["string","null"]},"n":{"type":"null"}},"additionalProperties":false,"required":["a","n"]}`,
		},
		{
			"extensions go, properties that look like them stay",
			`{"x-a":1,"default":{},"properties":{"x-keep":{"type":"string","x-drop":1,"default":"d"},"default":{"type":"string"}},"required":["x-keep","default"]}`,
			`{"properties":{"x-keep":{"type":"string"},"default":{"type":"string"}},"required":["default","x-keep"],"additionalProperties":false}`,
		},
		{
			"the description for models wins",
			`{"description":"human","x-llm-description":"model"}`, `{"description":"model"}`,
		},
		{
			"data is left alone",
			`{"const":{"x-a":1,"default":2},"enum":[{"default":1}]}`, `{"const":{"x-a":1,"default":2},"enum":[{"default":1}]}`,
		},
		{
			"recursion",
			`{"items":{"properties":{"k":{"type":"string"}}},"oneOf":[{"properties":{}}],"prefixItems":[{"type":["object","null"],"properties":{}}]}`,
			`{"items":{"properties":{"k":{"type":["string","null"]}},"additionalProperties":false,"required":["k"]},"oneOf":[{"properties":{},"additionalProperties":false,"required":[]}],"prefixItems":[{"type":["object","null"],"properties":{},"additionalProperties":false,"required":[]}]}`,
		},
		{
			"properties beside another type are inert",
			`{"type":"string","properties":{"a":{}}}`, `{"type":"string","properties":{"a":{}}}`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := doc(t, tc.in)
			if diff := cmp.Diff(doc(t, tc.want), schema.Strict(in)); diff != "" {
				t.Errorf("Strict (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(doc(t, tc.in), in); diff != "" {
				t.Errorf("Strict changed its argument:\n%s", diff)
			}
		})
	}
}

func TestExport(t *testing.T) {
	in := doc(t, `{"type":"object","properties":{"a":{"type":"string"}}}`)
	got := schema.Export("math.add", "Adds", in, nil, false)
	want := map[string]any{"module_id": "math.add", "description": "Adds", "input_schema": in, "output_schema": map[string]any{}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Export (-want +got):\n%s", diff)
	}
	got = schema.Export("math.add", "Adds", in, in, true)
	for _, key := range []string{"input_schema", "output_schema"} {
		if diff := cmp.Diff(schema.Strict(in), got[key]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
}
