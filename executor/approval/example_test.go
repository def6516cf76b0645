package approval_test

import (
	"context"
	"fmt"

	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/module"
)

// A request is answered pending, a person decides, and the same call, repeated
// with the token, may run once.
func ExampleNewMemory() {
	ctx := context.Background()
	m := approval.NewMemory(approval.Options{})
	call := &approval.Request{
		ModuleID: "payments.refund", Version: "1.0.0", Action: "payments.refund",
		Arguments: map[string]any{"order_id": "o-1"},
		Context:   module.NewContext(module.ContextOptions{Identity: module.NewIdentity("ann", "user", nil, nil)}),
	}
	first, _ := m.RequestApproval(ctx, call)
	fmt.Println(first.Status)

	_, err := m.Decide(ctx, first.ApprovalID, approval.Decision{
		Approve: true, By: module.NewIdentity("bob", "user", nil, nil), Reason: "the parcel came back",
	})
	fmt.Println(err)

	for range 2 {
		r, _ := m.CheckApproval(ctx, first.ApprovalID, call)
		fmt.Println(r.Status)
	}
	// Output:
	// pending
	// <nil>
	// approved
	// rejected
}

// The most specific rule applies; the ACL's demand is never taken back.
func ExamplePolicy_Require() {
	p := &approval.Policy{
		GateDestructive: true,
		Rules: []approval.PolicyRule{
			{Pattern: "payments.*", RequiresApproval: module.True, Reason: "money"},
			{Pattern: "payments.quote", RequiresApproval: module.False},
		},
	}
	fmt.Println(p.Require("payments.charge", module.Annotations{}, false).Needed)
	fmt.Println(p.Require("payments.quote", module.Annotations{RequiresApproval: true}, false).Needed)
	fmt.Println(p.Require("payments.quote", module.Annotations{}, true).Needed)
	fmt.Println(p.Require("files.delete", module.Annotations{Destructive: true}, false).Needed)
	// Output:
	// true
	// false
	// true
	// true
}
