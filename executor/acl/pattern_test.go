package acl_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/apbus/apbus/executor/acl"
	"pgregory.net/rapid"
)

// oracle is algorithm A08 as a regular expression.
func oracle(pattern, id string) bool {
	parts := strings.Split(pattern, "*")
	for i, p := range parts {
		parts[i] = regexp.QuoteMeta(p)
	}
	return regexp.MustCompile(`(?s)\A` + strings.Join(parts, ".*") + `\z`).MatchString(id)
}

// Compiled pattern lists agree with the oracle, with each operator, on either field.
func TestPatternsAgreeWithRegexp(t *testing.T) {
	text := rapid.StringOfN(rapid.SampledFrom([]rune("aab.***?é")), 1, 8, -1)
	id := rapid.StringOfN(rapid.SampledFrom([]rune("ab.?é")), 1, 10, -1)
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(text, 1, 3).Draw(t, "patterns")
		subject := id.Draw(t, "id")
		want := false
		for _, p := range list {
			want = want || oracle(p, subject)
		}
		switch rapid.SampledFrom([]string{"", "$or", "$not"}).Draw(t, "operator") {
		case "$or":
			list = append([]string{"$or"}, list...)
		case "$not":
			want = !oracle(list[0], subject)
			list = []string{"$not", list[0]}
		}
		for _, r := range []acl.Rule{
			{Callers: list, Targets: []string{"t"}, Effect: acl.Allow},
			{Callers: []string{"c"}, Targets: list, Effect: acl.Allow},
		} {
			p, err := acl.New([]acl.Rule{r}, acl.Options{})
			if err != nil {
				t.Fatalf("New(%q): %v", list, err)
			}
			q := acl.Query{CallerID: subject, TargetID: "t"}
			if r.Callers[0] == "c" {
				q = acl.Query{CallerID: "c", TargetID: subject}
			}
			if got := p.Check(t.Context(), q); got != want {
				t.Fatalf("%q on %q: got %v, want %v", list, subject, got, want)
			}
		}
	})
}

func TestPatternForms(t *testing.T) {
	for pattern, ids := range map[string]struct{ yes, no string }{
		"*":            {"a a.b x.y.z", ""},
		"**":           {"a a.b", ""},
		"executor.*":   {"executor.a executor.a.b executor.", "executor executors.a"},
		"*.read":       {"a.read a.b.read", "read a.reads"},
		"*crm*":        {"crm a.crm.b crmx", "cr.m"},
		"a*b":          {"ab a.b axxb", "a b abc"},
		"a**b":         {"ab a.b", "a"},
		"a*b*c":        {"abc axbyc a.b.c", "ac abcb"},
		"a*a":          {"aa aba", "a"},
		"$orders.*":    {"$orders.x", "orders.x"},
		"api.handler":  {"api.handler", "api.handlers api"},
		"*.*.delete.*": {"a.b.delete.c", "a.delete.c"},
	} {
		p := mustNew(t, acl.Options{}, allow("c", pattern))
		for _, want := range []bool{true, false} {
			list := ids.no
			if want {
				list = ids.yes
			}
			for _, id := range strings.Fields(list) {
				if got := p.Check(t.Context(), acl.Query{CallerID: "c", TargetID: id}); got != want {
					t.Errorf("%q on %q: got %v", pattern, id, got)
				}
			}
		}
	}
}

func TestSpecialTokens(t *testing.T) {
	tests := []struct {
		name   string
		rule   acl.Rule
		caller string
		typ    string // identity type, "" for none
		want   bool
	}{
		{"external is the null caller", allow("@external", "*"), "", "", true},
		{"external whatever the identity", allow("@external", "*"), "", "service", true},
		{"external is no other caller", allow("@external", "*"), "a", "", false},
		{"external cannot be claimed", allow("@external", "*"), "@external", "", false},
		{"null caller matches a star", allow("*", "*"), "", "", true},
		{"null caller matches no name", allow("a.*", "*"), "", "", false},
		{"not external", allow("$not @external", "*"), "a", "", true},
		{"not external for the null caller", allow("$not @external", "*"), "", "", false},
		{"system by identity type", allow("@system", "*"), "any.module", "system", true},
		{"system for the null caller", allow("@system", "*"), "", "system", true},
		{"system is not a prefix", allow("@system", "*"), "system.health", "user", false},
		{"system without identity", allow("@system", "*"), "system.health", "", false},
		{"external target never matches", allow("*", "@external"), "", "", false},
		{"external beside a matching target", allow("*", "@external t"), "", "", true},
		{"self call is an ordinary pair", allow("a", "t"), "t", "", false},
		{"case counts", allow("A", "t"), "a", "", false},
		{"question mark is literal", allow("?", "t"), "a", "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := mustNew(t, acl.Options{}, tt.rule)
			q := acl.Query{CallerID: tt.caller, TargetID: "t", Context: call(0, tt.typ)}
			if got := p.Check(t.Context(), q); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
	t.Run("system without a context", func(t *testing.T) {
		p := mustNew(t, acl.Options{}, allow("@system", "*"))
		if p.Check(t.Context(), acl.Query{CallerID: "system.x", TargetID: "t"}) {
			t.Error("granted without a context")
		}
	})
}
