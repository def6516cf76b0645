package schema_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/schema"
)

// doc reads a document or value as it would come off the wire.
func doc(t testing.TB, text string) map[string]any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var v map[string]any
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("bad test document: %v", err)
	}
	m, err := schema.NormalizeMap(v)
	if err != nil {
		t.Fatalf("bad test document: %v", err)
	}
	return m
}

func compile(t testing.TB, text string) *schema.Compiled {
	t.Helper()
	c, err := schema.Compile(doc(t, text))
	if err != nil {
		t.Fatalf("Compile: %v", err)
	}
	return c
}

func violations(err error) (string, []schema.Violation) {
	var ve *schema.ValidationError
	if !errors.As(err, &ve) {
		return "", nil
	}
	return ve.Code, ve.Violations
}

func TestValidateViolations(t *testing.T) {
	type v = schema.Violation
	for _, tc := range []struct {
		name, schema, value string
		code                string
		want                []v
	}{
		{"fits", `{"type":"object","properties":{"a":{"type":"integer"}}}`, `{"a":1}`, "", nil},
		{
			"missing property is located at its object",
			`{"properties":{"in":{"required":["a","b"]}}}`, `{"in":{}}`, schema.CodeValidationError,
			[]v{{"/in", "required", `property "a" is required`}, {"/in", "required", `property "b" is required`}},
		},
		{
			"extra property is located at its object",
			`{"properties":{"in":{"properties":{"a":{}},"additionalProperties":false}}}`, `{"in":{"x":1,"y":2}}`, schema.CodeValidationError,
			[]v{{"/in", "additionalProperties", `additional properties are not allowed: "x", "y"`}},
		},
		{
			"unevaluated property is located at its object",
			`{"properties":{"a":{}},"unevaluatedProperties":false}`, `{"x":1}`, schema.CodeValidationError,
			[]v{{"", "unevaluatedProperties", `additional properties are not allowed: "x"`}},
		},
		{
			"a name that is data is counted, not quoted",
			`{"additionalProperties":false}`, `{"4111 1111 1111 1111":1}`, schema.CodeValidationError,
			[]v{{"", "additionalProperties", "additional properties are not allowed: 1 found"}},
		},
		{
			"pointer escapes",
			`{"properties":{"a/b":{"items":{"properties":{"c~d":{"type":"string"}}}}}}`, `{"a/b":[{},{"c~d":1}]}`, schema.CodeValidationError,
			[]v{{"/a~1b/1/c~0d", "type", "must be string, is number"}},
		},
		{
			"several violations are sorted by path",
			`{"properties":{"b":{"minimum":3},"a":{"maxLength":2},"c":{"enum":["x","y"]}}}`, `{"a":"long","b":1,"c":"z"}`, schema.CodeValidationError,
			[]v{{"/a", "maxLength", "must have at most 2 characters"}, {"/b", "minimum", "must be at least 3"}, {"/c", "enum", `must be one of "x", "y"`}},
		},
		{
			"format never fails",
			`{"properties":{"a":{"type":"string","format":"email"}}}`, `{"a":"no"}`, "", nil,
		},
		{
			"format never fails in an old draft either",
			`{"$schema":"http://json-schema.org/draft-07/schema#","properties":{"a":{"format":"email"}}}`, `{"a":"no"}`, "", nil,
		},
		{
			"property names keep the place of their object",
			`{"properties":{"l":{"items":{"propertyNames":{"maxLength":1}}}}}`, `{"l":[{"ab":1},{"a":1},{"a":2}]}`, schema.CodeValidationError,
			[]v{{"/l/0", "propertyNames", `property names are not allowed: "ab"`}},
		},
		{
			"anyOf without a match",
			`{"properties":{"u":{"anyOf":[{"type":"string"},{"type":"integer"}]}}}`, `{"u":true}`, schema.CodeUnionNoMatch,
			[]v{{"/u", "anyOf", "matches none of the 2 alternatives"}},
		},
		{
			"the only branch of the right type is explained",
			`{"properties":{"u":{"anyOf":[{"type":"object","required":["k"]},{"type":"null"}]}}}`, `{"u":{}}`, schema.CodeUnionNoMatch,
			[]v{{"/u", "anyOf", "matches none of the 2 alternatives"}, {"/u", "required", `property "k" is required`}},
		},
		{
			"oneOf with two matches",
			`{"properties":{"u":{"oneOf":[{"type":"integer"},{"type":"number"}]}}}`, `{"u":1}`, schema.CodeUnionAmbiguous,
			[]v{{"/u", "oneOf", "must match exactly one of the alternatives, matches several"}},
		},
		{
			"a union failure next to another is a plain validation error",
			`{"required":["x"],"anyOf":[{"type":"string"},{"type":"array"}]}`, `{}`, schema.CodeValidationError,
			[]v{{"", "anyOf", "matches none of the 2 alternatives"}, {"", "required", `property "x" is required`}},
		},
		{
			"violations of a referenced schema have the place of the value",
			`{"properties":{"a":{"$ref":"#/$defs/d"}},"$defs":{"d":{"type":"object","required":["z"]}}}`, `{"a":{}}`, schema.CodeValidationError,
			[]v{{"/a", "required", `property "z" is required`}},
		},
		{
			"dependentRequired",
			`{"dependentRequired":{"a":["b"]}}`, `{"a":1}`, schema.CodeValidationError,
			[]v{{"", "dependentRequired", `needs "b" because "a" is present`}},
		},
		{
			"root reference written with a slash",
			`{"type":"object","properties":{"n":{"$ref":"#/"},"v":{"type":"string"}}}`, `{"n":{"n":{"v":1}}}`, schema.CodeValidationError,
			[]v{{"/n/n/v", "type", "must be string, is number"}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, got := violations(compile(t, tc.schema).Validate(doc(t, tc.value)))
			if code != tc.code {
				t.Errorf("code = %q, want %q", code, tc.code)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestValidateNumbers(t *testing.T) {
	for _, tc := range []struct {
		name, schema string
		value        any
		fits         bool
	}{
		{"an integral float is an integer", `{"type":"integer"}`, 4.0, true},
		{"a fraction is not", `{"type":"integer"}`, 4.5, false},
		{"an integer is a number", `{"type":"number"}`, int64(42), true},
		{"a bool is no number", `{"type":"number"}`, true, false},
		{"Go int", `{"type":"integer","minimum":3}`, 3, true},
		{"Go int below", `{"type":"integer","minimum":3}`, 2, false},
		{"int32", `{"type":"integer","minimum":3}`, int32(2), false},
		{"json.Number", `{"type":"integer"}`, json.Number("12"), true},
		{"json.Number out of range", `{"type":"number"}`, json.Number("1e999999999"), false},
		{"NaN", `{"type":"number"}`, math.NaN(), false},
		{"largest int64 at its limit", `{"maximum":9223372036854775807}`, int64(math.MaxInt64), true},
		{"one above a limit no float can tell apart", `{"maximum":9007199254740992}`, int64(1<<53 + 1), false},
		{"uint64 is an integer", `{"type":"integer"}`, uint64(math.MaxUint64), true},
		{"uint64 at its limit", `{"maximum":18446744073709551615}`, uint64(math.MaxUint64), true},
		{"uint64 above its limit", `{"maximum":18446744073709551614}`, uint64(math.MaxUint64), false},
		{"const beyond float precision", `{"const":9007199254740993}`, int64(9007199254740992), false},
		{"multipleOf", `{"multipleOf":3}`, int64(9), true},
		{"not a multipleOf", `{"multipleOf":3}`, int64(10), false},
		{"multipleOf decimals", `{"multipleOf":0.1}`, 0.3, true},
		{"a limit beyond int keeps its meaning", `{"maxLength":99999999999999999999}`, "x", true},
		{"a minimum count beyond int too", `{"minLength":99999999999999999999}`, "x", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := compile(t, tc.schema).Validate(tc.value)
			if (err == nil) != tc.fits {
				t.Errorf("Validate = %v, want fits = %v", err, tc.fits)
			}
		})
	}
}

func TestValidateEmptySchemaAcceptsEverything(t *testing.T) {
	for _, d := range []map[string]any{nil, {}} {
		c, err := schema.Compile(d)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range []any{nil, "text", map[string]any{"a": 1}} {
			if err := c.Validate(v); err != nil {
				t.Errorf("Validate(%v) = %v", v, err)
			}
		}
	}
	var none *schema.Compiled
	if err := none.Validate(1); err != nil || none.HasSensitive() || len(none.Properties()) != 0 || len(none.Doc()) != 0 {
		t.Error("a nil *Compiled must accept everything and know nothing")
	}
}

// TestValidateGoValues: values outside the model are judged by their normal form.
func TestValidateGoValues(t *testing.T) {
	c := compile(t, `{"type":"object","properties":{"tags":{"type":"array","items":{"type":"string"}},"at":{"type":"object"}},"required":["tags"]}`)
	if err := c.Validate(map[string]any{"tags": []string{"a"}, "at": struct{ X int }{1}}); err != nil {
		t.Errorf("typed Go values must validate: %v", err)
	}
	_, got := violations(c.Validate(map[string]any{"tags": []int{1}}))
	if len(got) != 1 || got[0].Path != "/tags/0" || got[0].Keyword != "type" {
		t.Errorf("violations = %v", got)
	}
	_, got = violations(c.Validate(map[string]any{"tags": func() {}}))
	if len(got) != 1 || got[0].Keyword != "type" {
		t.Errorf("a value without a JSON form: violations = %v", got)
	}
}

// TestMessagesNeverQuoteValues puts one unmistakable string everywhere a value can
// carry it and looks for it in everything the error says.
func TestMessagesNeverQuoteValues(t *testing.T) {
	const secret = "s3cr3t Zq9"
	keywords := []string{
		`"type":"integer"`, `"type":["integer","null"]`, `"const":"x"`, `"enum":["x",1,null]`, `"pattern":"^y$"`, `"maxLength":1`,
		`"minLength":50`, `"not":{"type":"string"}`, `"anyOf":[{"type":"integer"},{"maxLength":1}]`, `"oneOf":[{"type":"string"},{"minLength":1}]`,
		`"allOf":[{"maxLength":2}]`, `"if":{"type":"string"},"then":{"type":"null"}`, `"$ref":"#/$defs/n"`,
	}
	for _, k := range keywords {
		c := compile(t, `{"properties":{"v":{`+k+`},"l":{"uniqueItems":true,"items":{`+k+`},"contains":{"type":"null"}}},`+
			`"additionalProperties":false,"propertyNames":{"maxLength":4},"$defs":{"n":{"type":"number"}}}`)
		err := c.Validate(map[string]any{"v": secret, "l": []any{secret, secret}, secret: map[string]any{secret: secret}})
		_, got := violations(err)
		if len(got) == 0 {
			t.Fatalf("%s: want violations", k)
		}
		for _, v := range got {
			if strings.Contains(v.Message, secret) {
				t.Errorf("%s: message quotes the value: %s", k, v.Message)
			}
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: error text quotes the value: %s", k, err)
		}
	}
}

func TestValidateIsDeterministic(t *testing.T) {
	c := compile(t, `{"additionalProperties":{"type":"string"},"propertyNames":{"maxLength":1},"minProperties":9}`)
	v := doc(t, `{"a":1,"bb":2,"c":3,"dd":4}`)
	_, want := violations(c.Validate(v))
	for range 50 {
		_, got := violations(c.Validate(v))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("violations differ between runs:\n%s", diff)
		}
	}
}

func TestViolationsAreCapped(t *testing.T) {
	items := make([]any, 5*schema.MaxViolations)
	_, got := violations(compile(t, `{"items":{"type":"string"}}`).Validate(items))
	if len(got) != schema.MaxViolations {
		t.Errorf("got %d violations, want the cap %d", len(got), schema.MaxViolations)
	}
}

// TestHostileRecursion: a schema whose branches both recurse would cost 2^depth.
func TestHostileRecursion(t *testing.T) {
	c := compile(t, `{"allOf":[{"$ref":"#/$defs/n"},{"$ref":"#/$defs/m"}],"$defs":{
		"n":{"properties":{"c":{"$ref":"#"}}},
		"m":{"properties":{"c":{"$ref":"#"}},"not":{"required":["bad"]}}}}`)
	v := map[string]any{"bad": true}
	for range 100 {
		v = map[string]any{"c": v}
	}
	_, got := violations(c.Validate(v))
	if len(got) != 1 || got[0].Keyword != "$ref" {
		t.Errorf("violations = %v, want one at $ref", got)
	}
	deep := any("x")
	for range 10 * schema.MaxDepth {
		deep = []any{deep}
	}
	_, got = violations(compile(t, `{"items":{"$ref":"#"}}`).Validate(deep))
	if len(got) != 1 || !strings.Contains(got[0].Message, "nested deeper") {
		t.Errorf("violations = %v, want one about nesting", got)
	}
	loop := map[string]any{}
	loop["c"] = loop
	if err := compile(t, `{"properties":{"c":{"$ref":"#"}}}`).Validate(loop); err == nil {
		t.Error("a value that contains itself must not fit")
	}
}

// TestDeepTreesStillValidate: the bound on recursion must not refuse honest trees.
func TestDeepTreesStillValidate(t *testing.T) {
	c := compile(t, `{"anyOf":[{"properties":{"op":{"const":"leaf"}},"required":["op"]},
		{"properties":{"op":{"const":"add"},"l":{"$ref":"#"},"r":{"$ref":"#"}},"required":["op","l","r"]},
		{"properties":{"op":{"const":"mul"},"l":{"$ref":"#"},"r":{"$ref":"#"}},"required":["op","l","r"]}]}`)
	tree := map[string]any{"op": "leaf"}
	for i := range 16 {
		tree = map[string]any{"op": []any{"add", "mul"}[i%2], "l": tree, "r": map[string]any{"op": "leaf"}}
	}
	if err := c.Validate(tree); err != nil {
		t.Errorf("Validate = %v", err)
	}
}

func TestValidateConcurrently(t *testing.T) {
	c := compile(t, `{"properties":{"a":{"type":"integer"},"l":{"items":{"propertyNames":{"maxLength":1}}}}}`)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 100 {
				bad := map[string]any{"a": "x", "l": []any{map[string]any{"ab": i}}}
				if _, got := violations(c.Validate(bad)); len(got) != 2 {
					t.Errorf("violations = %v", got)
				}
				if err := c.Validate(map[string]any{"a": int64(i)}); err != nil {
					t.Errorf("Validate = %v", err)
				}
			}
		})
	}
	wg.Wait()
}

func TestAcceptingAllocatesNothing(t *testing.T) {
	c := compile(t, `{"type":"object","properties":{"a":{"type":"number","minimum":0},"b":{"enum":["x","y"]},"c":{"type":"array","items":{"type":"integer"}}},"required":["a"]}`)
	v := any(doc(t, `{"a":1.5,"b":"y","c":[1,2,3]}`))
	if n := testing.AllocsPerRun(100, func() {
		if err := c.Validate(v); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("Validate allocates %v times", n)
	}
}

// TestInferredSchemasAcceptTheirValues: what Normalize makes of a Go value fits
// the schema inferred from its type, zero values and nil slices included.
func TestInferredSchemasAcceptTheirValues(t *testing.T) {
	type leaf struct {
		N    int8              `json:"n"`
		U    uint16            `json:"u,omitempty"`
		F    float32           `json:"f"`
		Tags []string          `json:"tags"`
		Raw  []byte            `json:"raw"`
		M    map[string]uint32 `json:"m"`
		Q    int64             `json:"q,string"`
	}
	type branch struct {
		leaf
		Name string  `json:"name"`
		Kids []leaf  `json:"kids"`
		Next *leaf   `json:"next"`
		Opt  *int    `json:"opt,omitempty"`
		Pair [2]bool `json:"pair"`
	}
	d, err := schema.For[branch]()
	if err != nil {
		t.Fatal(err)
	}
	c, err := schema.Compile(d)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Make[branch]().Draw(t, "value")
		n, err := schema.Normalize(v)
		if err != nil {
			t.Skip("the generator made a non-finite float")
		}
		if err := c.Validate(n); err != nil {
			t.Fatalf("Validate: %v", err)
		}
	})
}

func ExampleCompiled_Validate() {
	c, err := schema.Compile(map[string]any{
		"type": "object",
		"properties": map[string]any{
			"sku": map[string]any{"type": "string"},
			"qty": map[string]any{"type": "integer", "exclusiveMinimum": 0},
		},
		"required": []any{"sku", "qty"},
	})
	if err != nil {
		panic(err)
	}
	err = c.Validate(map[string]any{"qty": 0})
	var ve *schema.ValidationError
	if errors.As(err, &ve) {
		for _, v := range ve.Violations {
			fmt.Printf("%q %s: %s\n", v.Path, v.Keyword, v.Message)
		}
	}
	// Output:
	// "" required: property "sku" is required
	// "/qty" exclusiveMinimum: must be greater than 0
}
