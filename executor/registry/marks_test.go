package registry_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/schema"
)

type discreet struct {
	*mod
	secrets func(inputs map[string]any) []string
}

func (d discreet) SensitiveInputs(inputs map[string]any) []string { return d.secrets(inputs) }

func TestMarks(t *testing.T) {
	in := map[string]any{"a": "1", "b": "2", "c": map[string]any{"d": "3"}, "extra": "4"}
	declared := map[string]any{"properties": map[string]any{
		"a": map[string]any{"type": "string", "x-sensitive": true}, "b": map[string]any{"type": "string"}, "c": map[string]any{"$ref": "#/$defs/c"},
	}, "$defs": map[string]any{"c": map[string]any{"type": "object"}}}
	const x = "***REDACTED***"
	tests := []struct {
		name    string
		schema  map[string]any
		secrets func(map[string]any) []string
		want    map[string]any
	}{
		{"not discreet", declared, nil, map[string]any{"a": x, "b": "2", "c": map[string]any{"d": "3"}, "extra": "4"}},
		{"nothing more", declared, func(map[string]any) []string { return nil }, map[string]any{"a": x, "b": "2", "c": map[string]any{"d": "3"}, "extra": "4"}},
		{"some more", declared, func(map[string]any) []string { return []string{"b", "c", "absent"} }, map[string]any{"a": x, "b": x, "c": x, "extra": "4"}},
		{"not declared", declared, func(map[string]any) []string { return []string{"extra"} }, map[string]any{"a": x, "b": "2", "c": map[string]any{"d": "3"}, "extra": x}},
		{"no schema", nil, func(map[string]any) []string { return []string{"b"} }, map[string]any{"a": "1", "b": x, "c": map[string]any{"d": "3"}, "extra": "4"}},
		{"panic", declared, func(map[string]any) []string { panic("no") }, map[string]any{"a": x, "b": x, "c": x, "extra": x}},
		{"by the inputs", declared, func(in map[string]any) []string {
			if in["b"] == "2" {
				return []string{"b"}
			}
			return nil
		}, map[string]any{"a": x, "b": x, "c": map[string]any{"d": "3"}, "extra": "4"}},
	}
	redactor, err := schema.NewRedactor(schema.RedactOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := registry.New(quiet())
			m := named("m")
			m.desc.InputSchema = tt.schema
			if tt.secrets == nil {
				err = r.Register(m)
			} else {
				err = r.Register(discreet{m, tt.secrets})
			}
			if err != nil {
				t.Fatal(err)
			}
			e, _ := r.Get("m")
			if d := cmp.Diff(tt.want, redactor.Redact(e.Marks(in), in)); d != "" {
				t.Error(d)
			}
			if got := e.Input.HasSensitive(); got != (tt.schema != nil) {
				t.Errorf("the input schema itself has changed: sensitive %v", got)
			}
		})
	}
}
