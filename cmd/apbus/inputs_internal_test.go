package main

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/internal/settings"
)

func schemaOf(t *testing.T, text string) map[string]any {
	t.Helper()
	m, err := contextwire.DecodeMap(contextwire.JSON, []byte(text), contextwire.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestTypedInputs(t *testing.T) {
	const refused = "refused"
	for _, tt := range []struct {
		name, property, value string
		want                  any
	}{
		{"integer", `{"type":"integer"}`, "-3", int64(-3)},
		{"largest integer", `{"type":"integer"}`, "18446744073709551615", uint64(math.MaxUint64)},
		{"integral float as integer", `{"type":"integer"}`, "4.0", 4.0},
		{"fraction as integer", `{"type":"integer"}`, "4.5", refused},
		{"text as integer", `{"type":"integer"}`, "four", refused},
		{"leading zeros", `{"type":"integer"}`, "007", refused},
		{"nothing as integer", `{"type":"integer"}`, "", refused},
		{"number", `{"type":"number"}`, "1e3", 1000.0},
		{"integer as number", `{"type":"number"}`, "9007199254740993", int64(9007199254740993)},
		{"boolean", `{"type":"boolean"}`, "true", true},
		{"yes is no boolean", `{"type":"boolean"}`, "yes", refused},
		{"text", `{"type":"string"}`, "hello", "hello"},
		{"text that looks like a number", `{"type":"string"}`, "4111", "4111"},
		{"text that looks like JSON", `{"type":"string"}`, `{"a":1}`, `{"a":1}`},
		{"text with equals signs", `{"type":"string"}`, "a=b=c", "a=b=c"},
		{"empty text", `{"type":"string"}`, "", ""},
		{"text that says null", `{"type":["string","null"]}`, "null", "null"},
		{"null", `{"type":["integer","null"]}`, "null", nil},
		{"list", `{"type":"array"}`, `["a",1]`, []any{"a", int64(1)}},
		{"list needs JSON", `{"type":"array"}`, "a,b", refused},
		{"object", `{"type":"object"}`, `{"a":{"b":1}}`, map[string]any{"a": map[string]any{"b": int64(1)}}},
		{"object of duplicate keys", `{"type":"object"}`, `{"a":1,"a":2}`, refused},
		{"list for an object", `{"type":"object"}`, `[]`, refused},
		{"several types, JSON", `{"type":["string","integer"]}`, "5", int64(5)},
		{"several types, text", `{"type":["string","integer"]}`, "five", "five"},
		{"any, JSON", `{}`, "5", int64(5)},
		{"any, text", `{}`, "five", "five"},
		{"any by true", `true`, "[1]", []any{int64(1)}},
		{"enumeration of text", `{"enum":["1","2"]}`, "1", "1"},
		{"enumeration of integers", `{"enum":[1,2]}`, "1", int64(1)},
		{"constant", `{"const":true}`, "true", true},
		{"one of", `{"oneOf":[{"type":"integer"},{"type":"boolean"}]}`, "true", true},
		{"one of, neither", `{"oneOf":[{"type":"integer"},{"type":"boolean"}]}`, "x", refused},
		{"any of with anything", `{"anyOf":[{"type":"integer"},{}]}`, "x", "x"},
		{"all of", `{"allOf":[{"minimum":1},{"type":"integer"}]}`, "7", int64(7)},
		{"reference", `{"$ref":"#/$defs/qty"}`, "7", int64(7)},
		{"reference to text", `{"$ref":"#/$defs/a~1b"}`, "7", "7"},
		{"circular reference", `{"$ref":"#/$defs/loop"}`, "x", "x"},
		{"dangling reference", `{"$ref":"#/$defs/none"}`, "x", "x"},
		{"foreign reference", `{"$ref":"https://example.com/x"}`, "x", "x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			doc := schemaOf(t, `{"type":"object","properties":{"k":`+tt.property+`},"$defs":{"qty":{"type":"integer"},"a/b":{"type":"string"},"loop":{"$ref":"#/$defs/loop"}}}`)
			got, err := inputsFrom("test.module", doc, []string{"k=" + tt.value})
			if tt.want == refused {
				var usage *settings.UsageError
				if !errors.As(err, &usage) {
					t.Fatalf("got %v, %v, want a usage error", got, err)
				}
				if tt.value != "" && strings.Contains(err.Error(), tt.value) {
					t.Errorf("error %q quotes the value", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(map[string]any{"k": tt.want}, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestUnknownInputs(t *testing.T) {
	for _, tt := range []struct {
		name, schema, key string
		want              any
		message           string
	}{
		{name: "near", schema: `{"properties":{"customer":{},"items":{}}}`, key: "itms", message: `did you mean "items"?`},
		{name: "far", schema: `{"properties":{"a":{},"b":{}}}`, key: "something", message: "it has a, b"},
		{name: "closed", schema: `{"properties":{"a":{}},"additionalProperties":false}`, key: "b", message: "no input"},
		{name: "no inputs", schema: `{"properties":{}}`, key: "b", message: "takes no inputs"},
		{name: "closed and empty", schema: `{"additionalProperties":false}`, key: "b", message: "takes no inputs"},
		{name: "open", schema: `{"properties":{"a":{}},"additionalProperties":true}`, key: "b", want: int64(1)},
		{name: "open for text", schema: `{"properties":{"a":{}},"additionalProperties":{"type":"string"}}`, key: "b", want: "1"},
		{name: "patterns", schema: `{"properties":{"a":{}},"patternProperties":{"^x":{}}}`, key: "xb", want: int64(1)},
		{name: "no schema", schema: `{}`, key: "b", want: int64(1)},
		{name: "approval token", schema: `{"properties":{"a":{}}}`, key: "_approval_token", want: "1"},
		{name: "schema by reference", schema: `{"$ref":"#/$defs/in","$defs":{"in":{"properties":{"b":{"type":"string"}}}}}`, key: "b", want: "1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := inputsFrom("test.module", schemaOf(t, tt.schema), []string{tt.key + "=1"})
			if tt.message != "" {
				if err == nil || !strings.Contains(err.Error(), tt.message) {
					t.Errorf("err = %v, want %q in it", err, tt.message)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(map[string]any{tt.key: tt.want}, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestHostileSchema has a schema that would multiply itself without end.
func TestHostileSchema(t *testing.T) {
	refs := strings.Repeat(`{"$ref":"#/$defs/x"},`, 50)
	doc := schemaOf(t, `{"properties":{"k":{"$ref":"#/$defs/x"}},"$defs":{"x":{"allOf":[`+refs+`{"type":"integer"}]}}}`)
	got, err := inputsFrom("test.module", doc, []string{"k=5"})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]any{"k": int64(5)}, got); d != "" {
		t.Error(d)
	}
}

func FuzzInputs(f *testing.F) {
	f.Add(`{"properties":{"k":{"type":"integer"}}}`, "k=1")
	f.Add(`{"properties":{"k":{"$ref":"#/$defs/x"}},"$defs":{"x":{"anyOf":[{"$ref":"#/$defs/x"},{"enum":[1,"a",null]}]}}}`, "k=a")
	f.Add(`{"$ref":"#"}`, "k=")
	f.Add(`{"additionalProperties":{"type":["string",1,null]}}`, `k={"a":1}`)
	f.Fuzz(func(t *testing.T, schema, pair string) {
		doc, err := contextwire.DecodeMap(contextwire.JSON, []byte(schema), contextwire.Limits{})
		if err != nil {
			t.Skip()
		}
		inputs, err := inputsFrom("test.module", doc, []string{pair})
		if err != nil {
			var usage *settings.UsageError
			if !errors.As(err, &usage) {
				t.Errorf("err = %T, want a usage error", err)
			}
			return
		}
		if len(inputs) != 1 {
			t.Errorf("%d inputs, want one", len(inputs))
		}
	})
}
