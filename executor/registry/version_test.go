package registry_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

func TestMatchVersion(t *testing.T) {
	tests := []struct {
		constraint, version string
		want                bool
	}{
		{"1.2.3", "1.2.3", true}, {"1.2.3", "1.2.4", false}, {"1.2.3", "1.2.3+build", true}, {"1.2.3", "1.2.3-rc.1", false},
		{"1", "1.5.2", true}, {"1", "2.0.0", false}, {"1", "0.9.0", false}, {"1.2", "1.2.9", true}, {"1.2", "1.3.0", false},
		{">=1.0.0", "1.5.0", true}, {">=2.0.0", "1.5.0", false}, {">1.5.0", "1.5.0", false}, {">1.5.0", "1.5.1", true},
		{"<2", "1.9.9", true}, {"<2", "2.0.0", false}, {"<=2.0.0", "2.0.0", true},
		{">=1.0.0,<2.0.0", "1.9.9", true}, {">=1.0.0, <2.0.0", "2.0.0", false},
		{"^1.2.3", "1.9.0", true}, {"^1.2.3", "2.0.0", false}, {"^1.2.3", "1.2.2", false}, {"^1.2.3", "2.0.0-rc.1", false},
		{"^0.2.3", "0.2.9", true}, {"^0.2.3", "0.3.0", false}, {"^0.0.3", "0.0.3", true}, {"^0.0.3", "0.0.4", false},
		{"^1", "1.9.9", true}, {"^0", "0.9.0", true}, {"^0", "1.0.0", false}, {"^0.0", "0.0.9", true}, {"^0.0", "0.1.0", false},
		{"~1.2.3", "1.2.9", true}, {"~1.2.3", "1.3.0", false}, {"~1.2", "1.2.0", true}, {"~1", "1.9.0", true}, {"~1", "2.0.0", false},
		{">=1.0.0-alpha", "1.0.0-alpha.1", true}, {">=1.0.0-beta", "1.0.0-alpha", false}, {"<1.0.0", "1.0.0-rc.1", true},
		{">1.0.0-alpha.2", "1.0.0-alpha.10", true}, {">1.0.0-1", "1.0.0-a", true},
	}
	for _, tt := range tests {
		t.Run(tt.constraint+" "+tt.version, func(t *testing.T) {
			got, err := registry.MatchVersion(tt.constraint, tt.version)
			if err != nil || got != tt.want {
				t.Errorf("= %v, %v; want %v", got, err, tt.want)
			}
		})
	}
}

func TestMatchVersionRefuses(t *testing.T) {
	for _, c := range []string{"", "latest", "v1.0.0", "*", "=1.0.0", "1.", "1.2.3.4", ">=", "1.2-rc", "1.0.0-", "1.0.0-a..b", ">=1,", "99999999999999999999.0.0", "1.0.0 2.0.0"} {
		if _, err := registry.MatchVersion(c, "1.0.0"); module.CodeOf(err) != module.CodeVersionConstraintInvalid {
			t.Errorf("constraint %q: %v", c, err)
		}
	}
	if _, err := registry.MatchVersion("1", "newest"); module.CodeOf(err) != module.CodeVersionConstraintInvalid {
		t.Errorf("version: %v", err)
	}
}

// The orders agree with each other, and the shorthand forms with what they stand for.
func TestMatchVersionProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.Uint64Range(0, 3)
		a := [3]uint64{part.Draw(t, "a0"), part.Draw(t, "a1"), part.Draw(t, "a2")}
		b := [3]uint64{part.Draw(t, "b0"), part.Draw(t, "b1"), part.Draw(t, "b2")}
		text := func(v [3]uint64) string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }
		is := func(constraint string) bool {
			ok, err := registry.MatchVersion(constraint, text(a))
			if err != nil {
				t.Fatal(err)
			}
			return ok
		}
		v := text(b)
		if is("<"+v) == is(">="+v) || is(">"+v) == is("<="+v) || is(v) != (is("<="+v) && is(">="+v)) {
			t.Fatalf("orders disagree for %v against %v", a, b)
		}
		if is("~"+v) != is(fmt.Sprintf(">=%s,<%d.%d.0", v, b[0], b[1]+1)) {
			t.Fatalf("~%s against %v", v, a)
		}
		if b[0] > 0 && is("^"+v) != is(fmt.Sprintf(">=%s,<%d.0.0", v, b[0]+1)) {
			t.Fatalf("^%s against %v", v, a)
		}
	})
}

func FuzzMatchVersion(f *testing.F) {
	for _, s := range []string{"^1.2.3", ">=1,<2", "~0.0.1-rc.1+x", "", "latest", "1..2"} {
		f.Add(s, "1.2.3")
	}
	f.Fuzz(func(t *testing.T, constraint, version string) {
		if _, err := registry.MatchVersion(constraint, version); err != nil && module.CodeOf(err) != module.CodeVersionConstraintInvalid {
			t.Errorf("%q %q: %v", constraint, version, err)
		}
	})
}
