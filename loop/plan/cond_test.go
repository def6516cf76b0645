package plan_test

import (
	"strings"
	"testing"

	"github.com/apbus/apbus/loop/plan"
)

func TestConditions(t *testing.T) {
	state := map[string]any{
		"a": int64(1), "f": 1.0, "s": "1", "z": int64(0), "zf": 0.0, "n": nil, "t": true, "no": false, "e": "",
		"list": []any{int64(1)}, "empty": []any{}, "o": map[string]any{"b": map[string]any{"c": "x == y"}}, "eo": map[string]any{},
	}
	tests := []struct {
		cond string
		want bool
	}{
		{"a == 1", true},
		{"a==1", true},
		{"  a  ==  1  ", true},
		{"a == 1.0", false},
		{`a == "1"`, false},
		{"f == 1.0", true},
		{"f == 1e0", true},
		{"f == 1", false},
		{`s == "1"`, true},
		{"a != 2", true},
		{"a != 1", false},
		{"n == null", true},
		{"missing == null", false},
		{"missing != null", true},
		{"missing != 1", true},
		{`o.b.c == "x == y"`, true},
		{`o.b.c != "x == y"`, false},
		{"o == true", false},
		{"t == true", true},
		{"n exists", true},
		{"o.b exists", true},
		{"missing exists", false},
		{"list.0 exists", false},
		{"a.b exists", false},
		{"a", true},
		{"!a", false},
		{"! a", false},
		{"missing", false},
		{"!missing", true},
		{"z", false},
		{"zf", false},
		{"n", false},
		{"no", false},
		{"e", false},
		{"empty", false},
		{"eo", false},
		{"list", true},
		{"o", true},
	}
	for _, tt := range tests {
		t.Run(tt.cond, func(t *testing.T) {
			c, err := plan.ParseCond(tt.cond)
			if err != nil {
				t.Fatal(err)
			}
			if got := c.Eval(state); got != tt.want {
				t.Errorf("%q is %v, want %v", tt.cond, got, tt.want)
			}
		})
	}
}

func TestConditionsOutsideTheGrammar(t *testing.T) {
	for _, cond := range []string{
		"", " ", "a == ", "a === 1", "a == 1 x", "a b == 1", "a..b", ".a", "a.", "!", "a exists now", "!a exists", "!!a",
		"a < 1", "a > 1", "a && b", "ä == 1", "a == {}", "a == [1]", "a == 'x'", "a == 01", "a == nope", "== 1",
		strings.Repeat("a", 201),
	} {
		if _, err := plan.ParseCond(cond); err == nil {
			t.Errorf("%q was accepted", cond)
		}
	}
	// A path may be called exists.
	if c, err := plan.ParseCond("exists"); err != nil || !c.Eval(map[string]any{"exists": true}) {
		t.Errorf("a path named exists: %v", err)
	}
}

func FuzzConditions(f *testing.F) {
	for _, s := range []string{"a == 1", "!a", "a.b exists", `x != "y"`, "a == 1e400"} {
		f.Add(s)
	}
	state := map[string]any{"a": map[string]any{"b": []any{1.5}}, "x": "y"}
	f.Fuzz(func(_ *testing.T, s string) {
		if c, err := plan.ParseCond(s); err == nil {
			c.Eval(state)
			c.Eval(nil)
		}
	})
}
