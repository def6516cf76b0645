package schema_test

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/apbus/apbus/schema"
)

func TestMatchGlob(t *testing.T) {
	for _, tc := range []struct {
		name, pattern, value string
		want                 bool
	}{
		{"star crosses separators", "a*z", "a.b/c.z", true},
		{"question is one character", "a?", "aé", true},
		{"question is not zero", "a?", "a", false},
		{"question is not two", "a?", "abc", false},
		{"anchored at both ends", "b", "abc", false},
		{"overlap is not allowed", "aba*aba", "aba", false},
		{"double star is a star", "a**b", "ab", true},
		{"brackets are literal", "[ab]", "a", false},
		{"brackets match themselves", "[!a]*", "[!a]x", true},
		{"backslash is literal", `\*`, `\x`, true},
		{"case counts", "A", "a", false},
		{"empty", "", "", true},
		{"backtracking", "*ab*ab", "abxabab", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := schema.MatchGlob(tc.pattern, tc.value); got != tc.want {
				t.Errorf("MatchGlob(%q, %q) = %v", tc.pattern, tc.value, got)
			}
		})
	}
}

func TestMatchPattern(t *testing.T) {
	for _, tc := range []struct {
		pattern, id string
		want        bool
	}{
		{"executor.*", "executor.a.b", true},
		{"executor.*", "executor", false},
		{"*", "", true},
		{"*.read", "orders.read", true},
		{"a.*.c", "a.b.x.c", true},
		{"a?c", "abc", false},
		{"a?c", "a?c", true},
		{"math.add", "math.add", true},
		{"math.add", "math.add2", false},
	} {
		if got := schema.MatchPattern(tc.pattern, tc.id); got != tc.want {
			t.Errorf("MatchPattern(%q, %q) = %v", tc.pattern, tc.id, got)
		}
	}
}

// TestMatchersAgreeWithRegexp compares both with the regular expression they mean.
func TestMatchersAgreeWithRegexp(t *testing.T) {
	text := rapid.StringOfN(rapid.SampledFrom([]rune("ab.é*?[")), 0, 10, -1)
	rapid.Check(t, func(t *rapid.T) {
		pattern, value := text.Draw(t, "pattern"), text.Draw(t, "value")
		for _, m := range []struct {
			name     string
			match    func(p, s string) bool
			question string
		}{{"MatchGlob", schema.MatchGlob, `(?s:.)`}, {"MatchPattern", schema.MatchPattern, `\?`}} {
			expr := strings.NewReplacer(`\*`, `(?s:.*)`, `\?`, m.question).Replace(regexp.QuoteMeta(pattern))
			want := regexp.MustCompile(`\A` + expr + `\z`).MatchString(value)
			if got := m.match(pattern, value); got != want {
				t.Fatalf("%s(%q, %q) = %v, want %v", m.name, pattern, value, got, want)
			}
		}
	})
}

func TestMatchIsNotExponential(t *testing.T) {
	if schema.MatchGlob(strings.Repeat("a*", 200)+"b", strings.Repeat("a", 5000)) {
		t.Error("must not match")
	}
}
