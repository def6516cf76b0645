package acl_test

import (
	"context"
	"fmt"

	"github.com/apbus/apbus/executor/acl"
)

func ExampleParse() {
	p, err := acl.Parse("acl.yaml", []byte(`
default_effect: deny
rules:
  - callers: [agent.*]
    targets: [git.push]
    effect: allow
    approval: required
    conditions: {arguments: {has_key: [force]}}
  - callers: [agent.*]
    targets: [git.*]
    effect: allow
`), acl.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = p.Validate() // findings for the operator
	caller := acl.Query{CallerID: "agent.planner", TargetID: "git.push", Context: call(1, "agent")}
	for _, inputs := range []map[string]any{{"remote": "origin"}, {"remote": "origin", "force": true}} {
		caller.ArgumentKeys = acl.ArgumentKeys(inputs)
		d := p.Authorize(context.Background(), caller)
		fmt.Println(d.Allowed, d.ApprovalRequired, d.RuleIndex, d.Reason)
	}
	// Output:
	// true false 1 rule_match
	// true true 0 rule_match
}
