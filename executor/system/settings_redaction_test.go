package system_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor/system"
	"github.com/apbus/apbus/schema"
)

func TestRedactOptions(t *testing.T) {
	s, err := system.NewSettings(nil)
	if err != nil {
		t.Fatal(err)
	}
	want := schema.RedactOptions{SensitiveKeys: schema.DefaultSensitiveKeys(), Patterns: []string{}, Replacement: schema.DefaultReplacement}
	if diff := cmp.Diff(want, s.RedactOptions()); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	// An empty list turns matching by name off; it does not bring the defaults back.
	for key, value := range map[string]any{
		"obs.redaction.sensitive_keys": []any{}, "obs.redaction.regex_patterns": []any{"^x"}, "obs.redaction.replacement": "#",
	} {
		if _, err := s.Set(key, value); err != nil {
			t.Fatalf("set %s: %v", key, err)
		}
	}
	want = schema.RedactOptions{SensitiveKeys: []string{}, Patterns: []string{"^x"}, Replacement: "#"}
	if diff := cmp.Diff(want, s.RedactOptions()); diff != "" {
		t.Errorf("set (-want +got):\n%s", diff)
	}
	if _, err := s.Set("obs.redaction.sensitive_keys", "password"); err == nil {
		t.Error("a text in place of a list is accepted")
	}
}
