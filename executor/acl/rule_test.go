package acl_test

import (
	"encoding/json"
	"testing"

	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/module"
	"github.com/google/go-cmp/cmp"
)

// document renders rules as a rule file; JSON is YAML.
func document(t testing.TB, rules ...acl.Rule) []byte {
	t.Helper()
	list := []any{}
	for _, r := range rules {
		m := obj{"callers": r.Callers, "targets": r.Targets, "effect": r.Effect}
		if r.Approval != "" {
			m["approval"] = r.Approval
		}
		if r.Conditions != nil {
			m["conditions"] = r.Conditions
		}
		list = append(list, m)
	}
	raw, err := json.Marshal(obj{"rules": list})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// A rule is legal at every door or at none.
func TestDoorsAgree(t *testing.T) {
	rule := func(change func(*acl.Rule)) acl.Rule {
		r := allow("agent.*", "orders.*")
		change(&r)
		return r
	}
	tests := []struct {
		name  string
		rule  acl.Rule
		field string // "" when accepted
	}{
		{"plain", allow("agent.*", "orders.*"), ""},
		{"deny", deny("agent.*", "orders.*"), ""},
		{"or", allow("$or a b", "$or c"), ""},
		{"not", allow("$not a", "$not c.*"), ""},
		{"token lookalike", allow("api.* $orders.*", "*"), ""},
		{"approval", approved(allow("*", "*")), ""},
		{"approval not required on deny", rule(func(r *acl.Rule) { r.Effect, r.Approval = acl.Deny, acl.NotRequired }), ""},
		{"capitalised effect", rule(func(r *acl.Rule) { r.Effect = "Allow" }), "effect"},
		{"upper-case effect", rule(func(r *acl.Rule) { r.Effect = "DENY" }), "effect"},
		{"misspelt effect", rule(func(r *acl.Rule) { r.Effect = "alow" }), "effect"},
		{"no effect", rule(func(r *acl.Rule) { r.Effect = "" }), "effect"},
		{"unknown approval", rule(func(r *acl.Rule) { r.Approval = "yes" }), "approval"},
		{"approval on deny", approved(deny("*", "*")), "approval"},
		{"no callers", allow("", "*"), "callers"},
		{"no targets", allow("*", ""), "targets"},
		{"empty caller", rule(func(r *acl.Rule) { r.Callers = []string{""} }), "callers"},
		{"empty target after or", rule(func(r *acl.Rule) { r.Targets = []string{"$or", ""} }), "targets"},
		{"or alone", allow("$or", "*"), "callers"},
		{"not alone", allow("*", "$not"), "targets"},
		{"not of two", allow("*", "$not a b"), "targets"},
		{"not after or", allow("$or $not a", "*"), "callers"},
		{"or in the list", allow("*", "api.* $or"), "targets"},
		{"effect before approval", rule(func(r *acl.Rule) { r.Effect, r.Approval = "x", "y" }), "effect"},
		{"approval before callers", approved(deny("", "")), "approval"},
		{"callers before targets", deny("", ""), "callers"},
		{"conditions at the bound", when(allow("*", "*"), nested(62)), ""},
		{"conditions too deep", when(allow("*", "*"), nested(63)), "conditions"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, load := acl.Parse("rules.yaml", document(t, allow("a", "b"), tt.rule), acl.Options{})
			_, construct := acl.New([]acl.Rule{allow("a", "b"), tt.rule}, acl.Options{})
			add := mustNew(t, acl.Options{}).AddRule(tt.rule)
			for door, err := range map[string]error{"load": load, "construct": construct, "add_rule": add} {
				if tt.field == "" {
					if err != nil {
						t.Errorf("%s: %v", door, err)
					}
					continue
				}
				e := module.AsError(err)
				if e == nil || e.Code != module.CodeACLRuleError || e.Details["field"] != tt.field {
					t.Errorf("%s: got %v, want %s for %s", door, err, module.CodeACLRuleError, tt.field)
					continue
				}
				want := any(int64(1))
				if door == "add_rule" {
					want = nil
				}
				if e.Details["rule_index"] != want {
					t.Errorf("%s: rule index %v, want %v", door, e.Details["rule_index"], want)
				}
			}
		})
	}
}

func TestCyclicConditions(t *testing.T) {
	cycle := obj{}
	cycle["$not"], cycle["$or"] = cycle, []any{cycle}
	if err := mustNew(t, acl.Options{}).AddRule(when(allow("*", "*"), cycle)); module.CodeOf(err) != module.CodeACLRuleError {
		t.Errorf("got %v", err)
	}
}

// nested wraps a condition, itself two levels deep, in so many $not.
func nested(depth int) any {
	v := obj{"roles": []any{"r"}}
	for range depth {
		v = obj{"$not": v}
	}
	return v
}

func TestLowestFaultyRuleIsNamed(t *testing.T) {
	bad := allow("*", "*")
	bad.Effect = "Allow"
	_, err := acl.New([]acl.Rule{allow("a", "b"), allow("", "*"), bad}, acl.Options{})
	if e := module.AsError(err); e == nil || e.Details["rule_index"] != int64(1) || e.Details["field"] != "callers" {
		t.Errorf("got %v, want rule 1, callers", err)
	}
	for _, bad := range []acl.Effect{"Deny", ""} {
		_, err = acl.New([]acl.Rule{allow("", "*")}, acl.Options{DefaultEffect: &bad})
		if e := module.AsError(err); e == nil || e.Details["field"] != "default_effect" {
			t.Errorf("default effect %q: got %v, want default_effect first", bad, err)
		}
	}
}

func TestRulesAreCopies(t *testing.T) {
	in := when(deny("*", "cli.*"), obj{"$or": []any{obj{"roles": []string{"guest"}}}})
	p := mustNew(t, acl.Options{DefaultEffect: new(acl.Allow)}, in)
	want := []acl.Rule{when(deny("*", "cli.*"), obj{"$or": []any{obj{"roles": []any{"guest"}}}})}

	in.Targets[0] = "x"
	in.Conditions.(obj)["$or"].([]any)[0].(obj)["roles"] = "broken"
	got := p.Rules()
	got[0].Callers[0] = ""
	got[0].Conditions.(obj)["$or"] = nil

	if diff := cmp.Diff(want, p.Rules()); diff != "" {
		t.Errorf("rules changed from outside (-want +got):\n%s", diff)
	}
	if p.Check(t.Context(), acl.Query{CallerID: "a", TargetID: "cli.rm", Context: call(0, "user", "guest")}) {
		t.Error("the deny rule was weakened from outside")
	}
}

func TestAddAndRemove(t *testing.T) {
	p := mustNew(t, acl.Options{}, allow("a", "b"), allow("a", "b"), deny("x", "y"))
	if err := p.AddRule(deny("a", "b")); err != nil {
		t.Fatal(err)
	}
	q := acl.Query{CallerID: "a", TargetID: "b"}
	if d := p.Authorize(t.Context(), q); d.Allowed || d.RuleIndex != 0 {
		t.Errorf("added rule is not first: %+v", d)
	}
	if !p.RemoveRule([]string{"a"}, []string{"b"}) {
		t.Error("the added rule was not found")
	}
	if d := p.Authorize(t.Context(), q); !d.Allowed {
		t.Errorf("more than the first hit was removed, or another: %+v", d)
	}
	if p.RemoveRule([]string{"a", "c"}, []string{"b"}) || p.RemoveRule([]string{"*"}, []string{"*"}) {
		t.Error("removed by something else than equal lists")
	}
	if n := len(p.Rules()); n != 3 {
		t.Errorf("%d rules left, want 3", n)
	}
	for range 2 {
		p.RemoveRule([]string{"a"}, []string{"b"})
	}
	p.RemoveRule([]string{"x"}, []string{"y"})
	if d := p.Authorize(t.Context(), q); d.Reason != acl.ReasonNoRules {
		t.Errorf("got %+v, want no_rules", d)
	}
}
