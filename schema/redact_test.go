package schema_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/schema"
)

const masked = schema.DefaultReplacement

func redactor(t testing.TB, opts schema.RedactOptions) *schema.Redactor {
	t.Helper()
	r, err := schema.NewRedactor(opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRedactByName(t *testing.T) {
	for _, tc := range []struct {
		name   string
		keys   []string // nil: the defaults
		masks  []string
		leaves []string
	}{
		{
			"defaults", nil,
			[]string{"password", "Passwd", "X-API-KEY", "apiKey", "APIKey", "accessKey", "private key", "session_id", "PassWord", "_secret_x", "oAuth", "Set-Cookie"},
			[]string{"user", "card", "pass", "key", "trace_id"},
		},
		{"off", []string{}, nil, []string{"password", "_secret_x", "token"}},
		{"substring ignores case and joints", []string{"apiKey"}, []string{"API_KEY", "x-api-key", "myApiKeyTwo", "apikey"}, []string{"key", "api"}},
		{"pattern is anchored and case-blind", []string{"Key*"}, []string{"KEYRING", "key"}, []string{"api_key", "my_keyring"}},
		{"question mark", []string{"pin?"}, []string{"pin1", "PINé"}, []string{"pin", "pin12"}},
		{"brackets are literal", []string{"[!p]assword"}, []string{"x[!p]assword"}, []string{"password", "bassword"}},
		{"empty entries are ignored", []string{""}, nil, []string{"anything"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := redactor(t, schema.RedactOptions{SensitiveKeys: tc.keys})
			for range 2 { // the second round answers from memory
				for _, name := range tc.masks {
					if got := r.Redact(nil, map[string]any{name: "v"})[name]; got != masked {
						t.Errorf("%s = %v, want it masked", name, got)
					}
				}
				for _, name := range tc.leaves {
					if got := r.Redact(nil, map[string]any{name: "v"})[name]; got != "v" {
						t.Errorf("%s = %v, want it left alone", name, got)
					}
				}
			}
		})
	}
	if n := len(schema.DefaultSensitiveKeys()); n != 16 {
		t.Errorf("%d default keys, want 16", n)
	}
}

func TestRedactBySchema(t *testing.T) {
	for _, tc := range []struct{ name, schema, in, want string }{
		{"property", `{"properties":{"card":{"x-sensitive":true}}}`, `{"card":"4111","note":"n"}`, `{"card":"X","note":"n"}`},
		{"only true marks", `{"properties":{"card":{"x-sensitive":"true"}}}`, `{"card":"4111"}`, `{"card":"4111"}`},
		{"number and container", `{"properties":{"a":{"x-sensitive":true},"b":{"x-sensitive":true}}}`, `{"a":5,"b":{"c":1}}`, `{"a":"X","b":"X"}`},
		{"null stays null", `{"properties":{"a":{"x-sensitive":true},"l":{"items":{"x-sensitive":true}}}}`, `{"a":null,"l":[null,1]}`, `{"a":null,"l":[null,"X"]}`},
		{"nested", `{"properties":{"o":{"properties":{"a":{"x-sensitive":true}}}}}`, `{"o":{"a":1,"b":2}}`, `{"o":{"a":"X","b":2}}`},
		{"items one by one", `{"properties":{"l":{"items":{"x-sensitive":true}}}}`, `{"l":["a","b"]}`, `{"l":["X","X"]}`},
		{"prefixItems", `{"properties":{"l":{"prefixItems":[{},{"x-sensitive":true}]}}}`, `{"l":["a","b","c"]}`, `{"l":["a","X","c"]}`},
		{"items beyond the prefix", `{"properties":{"l":{"prefixItems":[{}],"items":{"x-sensitive":true}}}}`, `{"l":["a","b"]}`, `{"l":["a","X"]}`},
		{"contains", `{"properties":{"l":{"contains":{"x-sensitive":true}}}}`, `{"l":["a"]}`, `{"l":["X"]}`},
		{"reference", `{"properties":{"a":{"$ref":"#/$defs/s"}},"$defs":{"s":{"type":"string","x-sensitive":true}}}`, `{"a":"v"}`, `{"a":"X"}`},
		{"marker beside a reference", `{"properties":{"a":{"$ref":"#/$defs/s","x-sensitive":true},"b":{"$ref":"#/$defs/s"}},"$defs":{"s":{"type":"string"}}}`, `{"a":"v","b":"v"}`, `{"a":"X","b":"v"}`},
		{"reference by anchor", `{"properties":{"a":{"$ref":"#s"}},"$defs":{"x":{"$anchor":"s","x-sensitive":true}}}`, `{"a":"v"}`, `{"a":"X"}`},
		{"recursive", `{"properties":{"pin":{"x-sensitive":true},"next":{"$ref":"#"}}}`, `{"next":{"next":{"pin":"1","id":"2"}}}`, `{"next":{"next":{"pin":"X","id":"2"}}}`},
		{"anyOf branch, whichever fits", `{"properties":{"a":{"anyOf":[{"type":"string","x-sensitive":true},{"type":"integer"}]}}}`, `{"a":5}`, `{"a":"X"}`},
		{"oneOf and allOf", `{"properties":{"a":{"oneOf":[{"x-sensitive":true}]},"b":{"allOf":[{},{"x-sensitive":true}]}}}`, `{"a":1,"b":2}`, `{"a":"X","b":"X"}`},
		{"if, then and else", `{"properties":{"a":{"if":{},"then":{"x-sensitive":true}},"b":{"if":{},"else":{"x-sensitive":true}}}}`, `{"a":1,"b":2}`, `{"a":"X","b":"X"}`},
		{"property declared in a branch", `{"anyOf":[{"properties":{"otp":{"x-sensitive":true}}},{"properties":{"code":{}}}]}`, `{"otp":"1","code":"2"}`, `{"otp":"X","code":"2"}`},
		{"dependentSchemas", `{"dependentSchemas":{"b":{"properties":{"a":{"x-sensitive":true}}}}}`, `{"a":1,"b":2}`, `{"a":"X","b":2}`},
		{"additionalProperties", `{"properties":{"a":{}},"additionalProperties":{"x-sensitive":true}}`, `{"a":1,"b":2}`, `{"a":1,"b":"X"}`},
		{"patternProperties", `{"patternProperties":{"^s_":{"x-sensitive":true}},"additionalProperties":{}}`, `{"s_a":1,"b":2}`, `{"s_a":"X","b":2}`},
		{"a pattern is not additional", `{"patternProperties":{"^p_":{}},"additionalProperties":{"x-sensitive":true}}`, `{"p_a":1,"b":2}`, `{"p_a":1,"b":"X"}`},
		{"unevaluatedProperties", `{"properties":{"o":{"unevaluatedProperties":{"x-sensitive":true}}}}`, `{"o":{"z":1}}`, `{"o":{"z":"X"}}`},
		{"draft-07 items", `{"$schema":"http://json-schema.org/draft-07/schema#","properties":{"l":{"items":[{},{"x-sensitive":true}]}}}`, `{"l":[1,2]}`, `{"l":[1,"X"]}`},
		{"the document itself", `{"x-sensitive":true}`, `{"a":1,"trace_id":"t","n":null}`, `{"a":"X","trace_id":"t","n":null}`},
		{"protected name wins", `{"properties":{"trace_id":{"x-sensitive":true},"module_id":{"properties":{"a":{"x-sensitive":true}}}}}`, `{"trace_id":"t","module_id":{"a":1}}`, `{"trace_id":"t","module_id":{"a":"X"}}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := compile(t, tc.schema)
			if marked := strings.Contains(tc.want, `"X"`); c.HasSensitive() != marked {
				t.Errorf("HasSensitive = %v, want %v", c.HasSensitive(), marked)
			}
			r := redactor(t, schema.RedactOptions{SensitiveKeys: []string{}, Replacement: "X"})
			in := doc(t, tc.in)
			if diff := cmp.Diff(doc(t, tc.want), r.Redact(c, in)); diff != "" {
				t.Errorf("Redact (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(doc(t, tc.in), in); diff != "" {
				t.Errorf("Redact changed its argument:\n%s", diff)
			}
		})
	}
}

func TestRedactByPattern(t *testing.T) {
	r := redactor(t, schema.RedactOptions{SensitiveKeys: []string{}, Patterns: []string{`sk-[a-z0-9]{4,}`, `^42$`}})
	in := map[string]any{
		"note": "key SK-ABCD1 here", "n": int64(42), "f": 42.5, "b": true, "nil": nil, "s": "42",
		"list": []any{"sk-aaaa", "fine", map[string]any{"x": "sk-bbbb"}}, "trace_id": "sk-cccc", "caller_id": []any{"sk-dddd"},
		"typed": map[string]string{"y": "sk-eeee"}, "strings": []string{"sk-ffff", "ok"},
	}
	want := map[string]any{
		"note": masked, "n": int64(42), "f": 42.5, "b": true, "nil": nil, "s": masked,
		"list": []any{masked, "fine", map[string]any{"x": masked}}, "trace_id": "sk-cccc", "caller_id": []any{masked},
		"typed": map[string]any{"y": masked}, "strings": []any{masked, "ok"},
	}
	if diff := cmp.Diff(want, r.Redact(nil, in)); diff != "" {
		t.Errorf("Redact (-want +got):\n%s", diff)
	}
}

func TestProtectedNamesSurviveEverything(t *testing.T) {
	names := []string{"trace_id", "span_id", "caller_id", "module_id", "target_id"}
	r := redactor(t, schema.RedactOptions{SensitiveKeys: append([]string{"*"}, names...), Patterns: []string{".*"}})
	for _, name := range names {
		if got := r.Redact(nil, map[string]any{name: "v"})[name]; got != "v" {
			t.Errorf("%s = %v", name, got)
		}
	}
}

func TestNewRedactorReportsEveryBadPattern(t *testing.T) {
	_, err := schema.NewRedactor(schema.RedactOptions{Patterns: []string{"(", "ok", "[z-a]"}})
	if err == nil || !strings.Contains(err.Error(), "pattern 0") || !strings.Contains(err.Error(), "pattern 2") {
		t.Errorf("error = %v, want both bad patterns named", err)
	}
}

func TestRedactFailsClosed(t *testing.T) {
	r := redactor(t, schema.RedactOptions{})
	deep := any(map[string]any{"user": "x"})
	for range 4 * schema.MaxDepth {
		deep = map[string]any{"in": deep}
	}
	got := r.Redact(nil, deep.(map[string]any))
	if s := fmt.Sprint(got); strings.Contains(s, "user") || !strings.Contains(s, masked) {
		t.Error("what lies beyond the depth limit must be masked")
	}
	loop := map[string]any{}
	loop["a"], loop["b"] = loop, loop
	r.Redact(nil, loop) // must return
	if got := r.Redact(nil, map[string]any{"c": make(chan int)})["c"]; got != masked {
		t.Errorf("a value without a JSON form = %v, want it masked", got)
	}
	if r.Redact(nil, nil) != nil {
		t.Error("nil must stay nil")
	}
}

func TestValuesAndScrub(t *testing.T) {
	c := compile(t, `{"properties":{"card":{"x-sensitive":true},"ref":{"x-sensitive":true},"box":{"x-sensitive":true}}}`)
	r := redactor(t, schema.RedactOptions{})
	secrets := r.Values(c, map[string]any{
		"card": "4111-1111", "ref": int64(5500123), "box": map[string]any{"a": []any{"inner secret", true, nil, "no"}},
		"password": "say \"hi\"\n", "user": "alice", "trace_id": "0123456789",
	})
	text := `charge of 4111-1111 for alice failed: ref 5500123, box inner secret, password "say \"hi\"\n", trace 0123456789, no`
	got := r.Scrub(text, secrets)
	want := `charge of *** for alice failed: ref ***, box ***, password "***", trace 0123456789, no`
	if got != strings.ReplaceAll(want, "***", masked) {
		t.Errorf("Scrub:\n got %s\nwant %s", got, want)
	}
	for _, s := range secrets {
		if len(s) < 4 {
			t.Errorf("secret %q is too short to scrub", s)
		}
	}
	if got := r.Scrub("abcd abcdef", []string{"abcdef", "abcd", ""}); got != masked+" "+masked {
		t.Errorf("the longest secret must win: %s", got)
	}
	if got := r.Values(nil, map[string]any{"a": "b"}); len(got) != 0 {
		t.Errorf("Values = %v, want none", got)
	}
}

// TestNoSecretSurvives: whatever the shape, a marked string is in neither the
// redacted copy nor a scrubbed text.
func TestNoSecretSurvives(t *testing.T) {
	const secret = "SECRET-VALUE"
	c := compile(t, `{"$ref":"#/$defs/n","$defs":{"n":{"properties":{"pin":{"x-sensitive":true},"kids":{"items":{"$ref":"#/$defs/n"}},"by":{"additionalProperties":{"$ref":"#/$defs/n"}}}}}}`)
	r := redactor(t, schema.RedactOptions{})
	var gen func(depth int) *rapid.Generator[map[string]any]
	gen = func(depth int) *rapid.Generator[map[string]any] {
		return rapid.Custom(func(t *rapid.T) map[string]any {
			out := map[string]any{"id": rapid.StringMatching(`[a-z]{0,3}`).Draw(t, "id")}
			if rapid.Bool().Draw(t, "pin") {
				out["pin"] = rapid.SampledFrom([]any{secret, []any{secret}, map[string]any{"x": secret}}).Draw(t, "value")
			}
			if rapid.Bool().Draw(t, "token") {
				out[rapid.SampledFrom([]string{"token", "x_Password", "apiKey"}).Draw(t, "name")] = secret
			}
			if depth > 0 {
				out["kids"] = []any{gen(depth-1).Draw(t, "kid")}
				out["by"] = map[string]any{"k": gen(depth-1).Draw(t, "by")}
			}
			return out
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		v := gen(3).Draw(t, "value")
		if s := fmt.Sprint(r.Redact(c, v)); strings.Contains(s, secret) {
			t.Fatalf("secret survives: %s", s)
		}
		if s := r.Scrub(fmt.Sprintf("failed with %v", v), r.Values(c, v)); strings.Contains(s, secret) {
			t.Fatalf("secret survives in text: %s", s)
		}
	})
}

func TestRedactConcurrently(t *testing.T) {
	r := redactor(t, schema.RedactOptions{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 2000 { // more names than are remembered
				name := fmt.Sprintf("password_%d_%d", i, j)
				if got := r.Redact(nil, map[string]any{name: "v"})[name]; got != masked {
					t.Errorf("%s = %v", name, got)
				}
			}
		})
	}
	wg.Wait()
}

func ExampleRedactor() {
	c, err := schema.Compile(map[string]any{"properties": map[string]any{
		"card": map[string]any{"type": "string", "x-sensitive": true},
	}})
	if err != nil {
		panic(err)
	}
	r, err := schema.NewRedactor(schema.RedactOptions{Patterns: []string{`sk-[a-z0-9]+`}})
	if err != nil {
		panic(err)
	}
	in := map[string]any{"customer": "ada", "card": "4111 1111", "apiKey": "k", "note": "use sk-12ab"}
	out := r.Redact(c, in)
	fmt.Println(out["customer"], out["card"], out["apiKey"], out["note"])
	fmt.Println(r.Scrub("card 4111 1111 was refused", r.Values(c, in)))
	// Output:
	// ada ***REDACTED*** ***REDACTED*** ***REDACTED***
	// card ***REDACTED*** was refused
}
