//go:build conformance

package conformance_test

import (
	"context"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// boundary validates inputs where every call does: a module with this schema is
// registered and called. What is no object cannot be an input, so the compiled
// schema is asked as well, always, and must agree.
func boundary(c *kase, doc map[string]any, input any) *module.Error {
	compiled, err := schema.Compile(doc)
	if err != nil {
		c.Fatalf("the schema is refused: %v", err)
	}
	direct := compiled.Validate(input)
	inputs, ok := input.(map[string]any)
	if !ok {
		if direct == nil {
			return nil
		}
		return module.Errorf(module.CodeSchemaValidation, "%w", direct)
	}
	m := trivial("demo.boundary")
	m.desc.InputSchema = doc
	_, err = c.executor(nil, m).Call(c.t.Context(), "demo.boundary", inputs)
	if (err == nil) != (direct == nil) {
		c.Errorf("the call says %v, the schema %v", err, direct)
	}
	return module.AsError(err)
}

func driveSchemaKeywords(c *kase) {
	e := boundary(c, c.at("schema").fields(), c.at("input").raw())
	if want := c.at("expected_valid").flag(); (e == nil) != want {
		c.Errorf("valid = %t (%v), want %t", e == nil, e, want)
	}
}

// driveSchemaValidation asserts the strict half. The coercing half pins an API that
// implementations may offer and this one does not.
func driveSchemaValidation(c *kase) {
	e := boundary(c, c.at("schema").fields(), c.at("input").raw())
	want := c.opt("expected_valid").flag()
	if c.has("expected_valid_strict") {
		want = c.at("expected_valid_strict").flag()
		c.at("expected_valid_coerce").raw()
		c.opt("expected_coerced_value").raw()
	}
	if (e == nil) != want {
		c.Fatalf("valid = %t (%v), want %t", e == nil, e, want)
	}
	if c.has("expected_error_path") {
		path := c.at("expected_error_path").str()
		if !slices.ContainsFunc(violations(e), func(v map[string]any) bool { return v["path"] == path }) {
			c.Errorf("violations %v, want one at %q", violations(e), path)
		}
	}
}

func violations(e *module.Error) []map[string]any {
	var out []map[string]any
	list, _ := e.Details["errors"].([]any)
	for _, v := range list {
		m, _ := v.(map[string]any)
		out = append(out, m)
	}
	return out
}

func driveSchemaHardening(c *kase) {
	doc := c.file.opt("schema")
	if c.has("schema") {
		doc = c.at("schema")
	}
	e := boundary(c, doc.fields(), c.at("input").raw())
	want := c.at("expected")
	if valid := want.at("valid").flag(); (e == nil) != valid {
		c.Fatalf("valid = %t (%v), want %t", e == nil, e, valid)
	}
	// Not normative, and where the warning is given differs between implementations.
	want.opt("warn_logged").raw()
	got := ""
	if e != nil {
		got = string(e.Code)
	}
	if code := want.at("error_code").text(); got != code {
		c.Errorf("code %s, want %s", got, code)
	}
}

// driveSchemaHash: the file holds no digests; the implementations are to agree with
// each other. These are what Python's json and hashlib make of the documents.
func driveSchemaHash(c *kase) {
	digests := map[string]string{
		"float_one_point_zero":            "3213ddad2217bdd811e24bd32fa5cb7e055d8183468fdccfe38924165742f203",
		"non_ascii_unicode_key_and_value": "66b349fa1eb36df49f813f7e230c1c2c66265d1c0db27ec63eba1bc9244e5078",
		"large_integer":                   "82ef34e554fd0838c22ca2e871d4eec23623ad58b9db621d510056b32043a82a",
		"nested_unsorted_keys":            "6a94e1c77af06f49b5507c607ae73ec8429eac1d070beba0a2ff7f5a0ae8208c",
		"baseline_simple_object":          "7d2a526161b8fd53a2661ffad166def49e7167ddbbac3497737c155021dfd09f",
	}
	doc := c.at("schema").fields()
	want, ok := digests[c.id]
	if !ok {
		c.Fatalf("driver: no digest for this document")
	}
	if got := schema.ContentHash(doc); got != want {
		text, err := schema.CanonicalJSON(doc)
		c.Errorf("hash %s, want %s; canonical form %s (%v)", got, want, text, err)
	}
	compiled, err := schema.Compile(doc)
	if err != nil {
		c.Fatalf("compile: %v", err)
	}
	if got := schema.ContentHash(compiled.Doc()); got != want {
		c.Errorf("hash of the compiled document %s, want %s", got, want)
	}
}

func driveSchemaStrict(c *kase) {
	doc := c.at("schema").fields()
	before, err := json.Marshal(doc)
	if err != nil {
		c.Fatalf("driver: %v", err)
	}
	if diff := cmp.Diff(c.at("expected").raw(), any(schema.Strict(doc))); diff != "" {
		c.Errorf("strict (-want +got):\n%s", diff)
	}
	after, err := json.Marshal(doc)
	if err != nil || string(before) != string(after) {
		c.Errorf("the document was changed: %s", after)
	}
}

func driveSchemaEnvelope(c *kase) {
	reg := registry.New(registry.Options{Logger: quiet()})
	id := c.opt("module_id").text()
	if c.has("module") {
		n := c.at("module")
		d, err := module.DescriptorFromMap(n.fields())
		if err != nil {
			c.Fatalf("descriptor: %v", err)
		}
		id = d.ID
		if err := reg.Register(&mod{desc: d}); err != nil {
			c.Fatalf("register: %v", err)
		}
	}
	got := reg.ExportSchema(id, c.at("strict").flag())
	want := c.at("expected").fields()
	if diff := cmp.Diff(want, got); diff != "" {
		c.Errorf("envelope (-want +got):\n%s", diff)
	}
	keys := c.file.at("envelope_keys").strs()
	if want != nil && !slices.Equal(slices.Sorted(slices.Values(keys)), slices.Sorted(maps.Keys(got))) {
		c.Errorf("keys %v, want %v", slices.Sorted(maps.Keys(got)), keys)
	}
}

// UUID is a native identifier that travels as text.
type UUID [16]byte

// UnmarshalText reads any 36 characters; what is a UUID is not this test's business.
func (u *UUID) UnmarshalText(b []byte) error {
	copy(u[:], strings.ReplaceAll(string(b), "-", ""))
	return nil
}

// MarshalText writes zeros.
func (u UUID) MarshalText() ([]byte, error) {
	return []byte("00000000-0000-0000-0000-000000000000"), nil
}

// driveNativeTypes declares the module from Go types.
func driveNativeTypes(c *kase) {
	type in struct {
		When      time.Time `json:"when"`
		RequestID UUID      `json:"request_id"`
		Level     string    `json:"level" enum:"low,high"`
	}
	type out struct {
		Accepted bool `json:"accepted"`
	}
	contract := c.file.at("module_contract")
	var names []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[in]()) {
		names = append(names, f.Tag.Get("json"))
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(contract.at("fields").fields())), slices.Sorted(slices.Values(names))); diff != "" {
		c.Fatalf("driver: fields (-want +got):\n%s", diff)
	}
	accepted := contract.at("returns").fields()["accepted"] == true
	id := contract.at("module_id").str()
	m := module.New(id, "schedules", func(_ context.Context, i in) (out, error) {
		if i.When.IsZero() || i.RequestID == (UUID{}) {
			return out{}, module.Errorf(module.CodeInternal, "the native values did not arrive")
		}
		return out{Accepted: accepted}, nil
	})
	got, err := c.executor(nil, m).Call(c.t.Context(), id, c.at("input").at("inputs").fields())
	want := c.at("expected")
	if want.has("error_code") {
		c.wantCode(err, want.at("error_code").str())
		return
	}
	if diff := cmp.Diff(want.at("output").fields(), got); diff != "" || err != nil {
		c.Errorf("output (-want +got):\n%s%v", diff, err)
	}
}
