package acl_test

import (
	"strings"
	"testing"

	"github.com/apbus/apbus/executor/acl"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestFindings(t *testing.T) {
	var log logBuffer
	p := mustNew(t, acl.Options{Logger: log.logger()},
		allow("*", "*"),
		deny("$not *", "$not **"),
		deny("*", "@external"),
		deny("@external", "api.* @external"),
		when(deny("a?", "*"), obj{
			"zz": 1, "roles": "x",
			"$or":       []any{3, obj{"$not": 4}, obj{"aa": 1}},
			"arguments": obj{"has_keys": []any{}},
		}),
		when(allow("*", "$not cli.*"), "oops"),
	)
	deny, allow := acl.Deny, acl.Allow
	want := []acl.Finding{
		{RuleIndex: 1, ConditionPath: "callers", Effect: deny},
		{RuleIndex: 1, ConditionPath: "targets", Effect: deny},
		{RuleIndex: 2, ConditionPath: "targets", Effect: deny},
		{RuleIndex: 4, ConditionPath: "$or[0]", Effect: deny},
		{RuleIndex: 4, ConditionPath: "$or[1].$not", ConditionKey: "$not", Effect: deny},
		{RuleIndex: 4, ConditionPath: "$or[2].aa", ConditionKey: "aa", Effect: deny},
		{RuleIndex: 4, ConditionPath: "arguments.has_keys", ConditionKey: "arguments", Effect: deny},
		{RuleIndex: 4, ConditionPath: "callers", Effect: deny},
		{RuleIndex: 4, ConditionPath: "roles", ConditionKey: "roles", Effect: deny},
		{RuleIndex: 4, ConditionPath: "zz", ConditionKey: "zz", Effect: deny},
		{RuleIndex: 5, ConditionPath: "$", Effect: allow},
	}
	got := p.Validate()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(acl.Finding{}, "Reason")); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	for _, f := range got {
		if f.Reason == "" {
			t.Errorf("no reason for %s", f.ConditionPath)
		}
	}
	for _, w := range []string{"rule_index=4 field=callers pattern=a?", "rule_index=4 key=aa effect=deny", "rule_index=4 key=zz effect=deny"} {
		if !strings.Contains(log.String(), w) {
			t.Errorf("no load warning %q:\n%s", w, log.String())
		}
	}
}

// What can never match is reported and otherwise left alone.
func TestNeverMatchingChangesNothing(t *testing.T) {
	p := mustNew(t, acl.Options{DefaultEffect: new(acl.Allow)}, deny("*", "$not *"))
	want := acl.Decision{Allowed: true, RuleIndex: -1, Reason: acl.ReasonDefaultEffect}
	if diff := cmp.Diff(want, p.Authorize(t.Context(), acl.Query{CallerID: "a", TargetID: "cli.rm"})); diff != "" {
		t.Errorf("decision (-want +got):\n%s", diff)
	}
}
