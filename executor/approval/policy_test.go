package approval_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestSpecificity(t *testing.T) {
	for pattern, want := range map[string]int{
		"*": 0, "*.*": 0, "api.*": 2, "api.handler.*": 4, "api.handler.task_submit": 6,
		"api": 2, "api.task_*": 3, "**": 1, "*.read": 2,
	} {
		if got := approval.Specificity(pattern); got != want {
			t.Errorf("%q: got %d, want %d", pattern, got, want)
		}
	}
}

func TestResolve(t *testing.T) {
	p := &approval.Policy{Rules: []approval.PolicyRule{
		{Pattern: "*", RequiresApproval: module.True, Reason: "all"},
		{Pattern: "orders.*", RequiresApproval: module.False, Reason: "orders"},
		{Pattern: "orders.cancel", RequiresApproval: module.False, Reason: "lax"},
		{Pattern: "orders.cancel", RequiresApproval: module.True, Reason: "strict"},
		{Pattern: "pay.charge", Reason: "silent"},
		{Pattern: "pay.charge", Destructive: module.True, Reason: "destructive"},
		{Pattern: "pay.refund", Reason: "first"},
		{Pattern: "pay.refund", Reason: "second"},
		{Pattern: "pay.void", RequiresApproval: module.False, Reason: "no"},
		{Pattern: "pay.void", Reason: "unsaid"},
	}}
	for id, want := range map[string]string{
		"math.add": "all", "orders.place": "orders", "orders.cancel": "strict", "orders": "all",
		"pay.charge": "destructive", "pay.refund": "first", "pay.void": "unsaid",
	} {
		if r, ok := p.Resolve(id); !ok || r.Reason != want {
			t.Errorf("%s: got %q, %v; want %q", id, r.Reason, ok, want)
		}
	}
	if _, ok := (&approval.Policy{}).Resolve("a"); ok {
		t.Error("an empty policy has a rule")
	}
	if _, ok := (*approval.Policy)(nil).Resolve("a"); ok {
		t.Error("no policy has a rule")
	}
}

// The winner matches, and nothing that matches beats it.
func TestResolvePicksTheMostSpecific(t *testing.T) {
	pattern := rapid.StringMatching(`(a|b|\*|a\*)(\.(a|b|\*)){0,2}`)
	rapid.Check(t, func(rt *rapid.T) {
		var p approval.Policy
		for _, text := range rapid.SliceOfN(pattern, 0, 6).Draw(rt, "patterns") {
			p.Rules = append(p.Rules, approval.PolicyRule{Pattern: text, RequiresApproval: rapid.SampledFrom([]module.Tri{module.Unset, module.False, module.True}).Draw(rt, "requires")})
		}
		id := rapid.StringMatching(`[ab](\.[ab]){0,2}`).Draw(rt, "id")
		got, found := p.Resolve(id)
		if found && !schema.MatchPattern(got.Pattern, id) {
			rt.Fatalf("%q does not match %s", got.Pattern, id)
		}
		for _, r := range p.Rules {
			if !schema.MatchPattern(r.Pattern, id) {
				continue
			}
			a, b := approval.Specificity(r.Pattern), approval.Specificity(got.Pattern)
			if !found || a > b || (a == b && r.RequiresApproval == module.True && got.RequiresApproval != module.True) {
				rt.Fatalf("%+v applies to %s, but %+v was taken", r, id, got)
			}
		}
	})
}

func TestRequire(t *testing.T) {
	rule := func(requires, destructive module.Tri) []approval.PolicyRule {
		return []approval.PolicyRule{{Pattern: "pay.*", RequiresApproval: requires, Destructive: destructive, Reason: "money"}}
	}
	tests := []struct {
		name   string
		policy *approval.Policy
		a      module.Annotations
		acl    bool
		want   bool
	}{
		{"nothing", nil, module.Annotations{}, false, false},
		{"annotation", nil, module.Annotations{RequiresApproval: true}, false, true},
		{"acl", nil, module.Annotations{}, true, true},
		{"destructive alone", nil, module.Annotations{Destructive: true}, false, false},
		{"gated destructive", &approval.Policy{GateDestructive: true}, module.Annotations{Destructive: true}, false, true},
		{"gate, not destructive", &approval.Policy{GateDestructive: true}, module.Annotations{}, false, false},
		{"override asks", &approval.Policy{Rules: rule(module.True, module.Unset)}, module.Annotations{}, false, true},
		{"override silences the annotation", &approval.Policy{Rules: rule(module.False, module.Unset)}, module.Annotations{RequiresApproval: true}, false, false},
		{"override does not silence the ACL", &approval.Policy{Rules: rule(module.False, module.Unset)}, module.Annotations{RequiresApproval: true}, true, true},
		{"override does not silence the gate", &approval.Policy{GateDestructive: true, Rules: rule(module.False, module.Unset)}, module.Annotations{Destructive: true}, false, true},
		{"override makes it destructive", &approval.Policy{GateDestructive: true, Rules: rule(module.Unset, module.True)}, module.Annotations{}, false, true},
		{"override makes it harmless", &approval.Policy{GateDestructive: true, Rules: rule(module.Unset, module.False)}, module.Annotations{Destructive: true}, false, false},
		{"silent override keeps the annotation", &approval.Policy{Rules: rule(module.Unset, module.Unset)}, module.Annotations{RequiresApproval: true}, false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.policy.Require("pay.charge", tt.a, tt.acl)
			if got.Needed != tt.want {
				t.Errorf("got %+v, want needed %v", got, tt.want)
			}
			if tt.policy != nil && tt.policy.Rules != nil && (got.Override == nil || got.Reason != "money") {
				t.Errorf("the rule is not reported: %+v", got)
			}
		})
	}
}

func TestPolicyFromMap(t *testing.T) {
	got, err := approval.PolicyFromMap(obj{"strict": true, "gate_destructive": true, "rules": []any{
		obj{"pattern": "a.*", "requires_approval": true, "destructive": false, "reason": "r"}, obj{"pattern": "b"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := &approval.Policy{Strict: true, GateDestructive: true, Rules: []approval.PolicyRule{
		{Pattern: "a.*", RequiresApproval: module.True, Destructive: module.False, Reason: "r"}, {Pattern: "b"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("policy (-want +got):\n%s", diff)
	}
	for name, tt := range map[string]struct {
		in   obj
		want string
	}{
		"unknown keys":      {obj{"zz": 1, "aa": 1}, "aa, zz"},
		"unknown rule key":  {obj{"rules": []any{obj{"pattern": "a", "require": true}}}, "require"},
		"no pattern":        {obj{"rules": []any{obj{"reason": "r"}}}, "pattern"},
		"empty pattern":     {obj{"rules": []any{obj{"pattern": ""}}}, "pattern"},
		"pattern type":      {obj{"rules": []any{obj{"pattern": 1}}}, "pattern"},
		"approval type":     {obj{"rules": []any{obj{"pattern": "a", "requires_approval": "yes"}}}, "requires_approval"},
		"destructive type":  {obj{"rules": []any{obj{"pattern": "a", "destructive": 1}}}, "destructive"},
		"reason type":       {obj{"rules": []any{obj{"pattern": "a", "reason": 1}}}, "reason"},
		"rule type":         {obj{"rules": []any{"a"}}, "rule 0"},
		"rules type":        {obj{"rules": obj{}}, "rules"},
		"strict type":       {obj{"strict": "yes"}, "strict"},
		"second rule named": {obj{"rules": []any{obj{"pattern": "a"}, obj{}}}, "rule 1"},
	} {
		_, err := approval.PolicyFromMap(tt.in)
		if module.CodeOf(err) != module.CodeInvalidInput || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s naming %s", name, err, module.CodeInvalidInput, tt.want)
		}
	}
	if err := (&approval.Policy{Rules: []approval.PolicyRule{{}}}).Validate(); err == nil {
		t.Error("a rule without a pattern is valid")
	}
}

func FuzzPolicyFromMap(f *testing.F) {
	f.Add([]byte(`{"strict":true,"rules":[{"pattern":"a.*","requires_approval":true}]}`))
	f.Add([]byte(`{"rules":[null],"x":1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var m map[string]any
		if json.Unmarshal(raw, &m) != nil {
			return
		}
		p, err := approval.PolicyFromMap(m)
		if err != nil {
			if module.CodeOf(err) != module.CodeInvalidInput {
				t.Fatalf("error without its code: %v", err)
			}
			return
		}
		p.Require("a.b", module.Annotations{}, false)
	})
}
