package module_test

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/apbus/apbus/module"
)

var grammar = regexp.MustCompile(`\A[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*\z`)

func TestValidateIDAgainstGrammar(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Mostly near misses: few random strings come close to an ID.
		id := rapid.OneOf(
			rapid.StringMatching(`[a-z0-9_.]{0,12}`),
			rapid.StringMatching(`([a-z][a-z0-9_]{0,3}\.){0,3}[a-zA-Z0-9_.\-]{0,3}`),
			rapid.StringMatching(`[a-z]{185,200}`),
			rapid.String(),
		).Draw(t, "id")
		want := grammar.MatchString(id) && len(id) <= module.MaxIDLength
		err := module.ValidateID(id)
		if (err == nil) != want {
			t.Fatalf("ValidateID(%q) = %v, want valid %v", id, err, want)
		}
		if err != nil && module.CodeOf(err) != module.CodeInvalidModuleID {
			t.Fatalf("code %s", module.CodeOf(err))
		}
	})
}

func TestValidateID(t *testing.T) {
	for _, tt := range []struct {
		name, id string
		valid    bool
	}{
		{"one segment", "a", true},
		{"several", "executor.email.send_email", true},
		{"double underscore", "a__b.c", true},
		{"trailing underscore", "a_", true},
		{"digits", "a1.b2", true},
		{"reserved is callable", "system.health.summary", true},
		{"192 bytes", strings.Repeat("a", 192), true},
		{"193 bytes", strings.Repeat("a", 193), false},
		{"empty", "", false},
		{"dot", ".", false},
		{"leading dot", ".a", false},
		{"trailing dot", "a.", false},
		{"two dots", "a..b", false},
		{"digit first", "1a", false},
		{"underscore first", "a._b", false},
		{"upper case", "a.B", false},
		{"hyphen", "a-b", false},
		{"wildcard", "a.*", false},
		{"newline at the end", "a.b\n", false},
		{"not ASCII", "ä", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := module.ValidateID(tt.id)
			if (err == nil) != tt.valid {
				t.Fatalf("error = %v, want valid %v", err, tt.valid)
			}
			if !tt.valid {
				hasCode(t, err, module.CodeInvalidModuleID)
			}
		})
	}
}

func TestValidateIDQuotesSafely(t *testing.T) {
	for name, id := range map[string]string{
		"control":  "a\x1b[31m\r\n",
		"bidi":     "a\u202eb",
		"C1":       "a\u0085b",
		"bad UTF8": "a\xffb",
	} {
		msg := module.ValidateID(id).Error()
		if strings.ContainsAny(msg, "\x1b\r\n\u202e\u0085") {
			t.Errorf("%s: message carries control characters: %q", name, msg)
		}
	}
	if msg := module.ValidateID("A" + strings.Repeat("é", 90)).Error(); len(msg) > 400 || !strings.Contains(msg, "…") {
		t.Errorf("message is not shortened: %d bytes", len(msg))
	}
}

func TestReservedIDs(t *testing.T) {
	for id, want := range map[string]bool{
		"system": true, "system.x": true, "ephemeral.a": true, "apcore.b": true, "class.a": true, "none": true,
		"systems.x": false, "a.system": false, "math.add": false, "": false,
	} {
		if got := module.IsReservedID(id); got != want {
			t.Errorf("IsReservedID(%q) = %v", id, got)
		}
	}
	for id, want := range map[string]string{"a.b.c": "a", "a": "a", "": ""} {
		if got := module.FirstSegment(id); got != want {
			t.Errorf("FirstSegment(%q) = %q", id, got)
		}
	}
}
