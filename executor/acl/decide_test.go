package acl_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/executor/acl"
	"github.com/google/go-cmp/cmp"
)

func TestDecisions(t *testing.T) {
	force := obj{"arguments": obj{"has_key": []any{"force"}}}
	broken := obj{"nope": true}
	gate := approved(when(allow("*", "git.push"), force))
	plain := allow("*", "git.push")
	match, byDefault := acl.ReasonRuleMatch, acl.ReasonDefaultEffect
	const noArgs = "arguments: the call has no argument projection"
	const noHandler = "nope: no handler is registered"
	tests := []struct {
		name  string
		def   acl.Effect
		rules []acl.Rule
		keys  []string
		want  acl.Decision
	}{
		{"no rules, deny", acl.Deny, nil, nil, acl.Decision{RuleIndex: -1, Reason: acl.ReasonNoRules}},
		{"no rules, allow", acl.Allow, nil, nil, acl.Decision{Allowed: true, RuleIndex: -1, Reason: acl.ReasonNoRules}},
		{"default is deny", "", []acl.Rule{allow("x", "y")}, nil, acl.Decision{RuleIndex: -1, Reason: byDefault}},
		{"first match wins", acl.Deny, []acl.Rule{plain, deny("*", "*")}, nil, acl.Decision{Allowed: true, Reason: match}},
		{"order, not specificity", acl.Deny, []acl.Rule{deny("*", "*"), plain}, nil, acl.Decision{Reason: match}},
		{"approval applies", acl.Deny, []acl.Rule{gate, plain}, []string{"force"},
			acl.Decision{Allowed: true, ApprovalRequired: true, Reason: match}},
		{"approval does not apply", acl.Deny, []acl.Rule{gate, plain}, []string{"remote"},
			acl.Decision{Allowed: true, RuleIndex: 1, Reason: match}},
		{"pending approval rides on a later grant", acl.Deny, []acl.Rule{gate, plain}, nil,
			acl.Decision{Allowed: true, ApprovalRequired: true, RuleIndex: 1, Reason: match, HandlerError: noArgs}},
		{"pending approval rides on the default", acl.Allow, []acl.Rule{gate}, nil,
			acl.Decision{Allowed: true, ApprovalRequired: true, RuleIndex: -1, Reason: byDefault, HandlerError: noArgs}},
		{"a later not_required does not cancel it", acl.Deny, []acl.Rule{gate, {Callers: []string{"*"}, Targets: []string{"*"}, Effect: acl.Allow, Approval: acl.NotRequired}}, nil,
			acl.Decision{Allowed: true, ApprovalRequired: true, RuleIndex: 1, Reason: match, HandlerError: noArgs}},
		{"a denial clears it", acl.Allow, []acl.Rule{gate, deny("*", "*")}, nil,
			acl.Decision{RuleIndex: 1, Reason: match, HandlerError: noArgs}},
		{"the default denial clears it", acl.Deny, []acl.Rule{gate}, nil,
			acl.Decision{RuleIndex: -1, Reason: byDefault, HandlerError: noArgs}},
		{"out of scope raises nothing", acl.Deny, []acl.Rule{approved(when(allow("*", "git.tag"), broken)), plain}, nil,
			acl.Decision{Allowed: true, RuleIndex: 1, Reason: match}},
		{"broken allow without approval raises nothing", acl.Allow, []acl.Rule{when(allow("*", "*"), broken)}, nil,
			acl.Decision{Allowed: true, RuleIndex: -1, Reason: byDefault, HandlerError: noHandler}},
		{"broken deny takes effect", acl.Allow, []acl.Rule{when(deny("*", "*"), broken)}, nil,
			acl.Decision{Reason: match, HandlerError: noHandler}},
		{"broken deny out of scope", acl.Allow, []acl.Rule{when(deny("*", "git.tag"), broken)}, nil,
			acl.Decision{Allowed: true, RuleIndex: -1, Reason: byDefault}},
		{"faults of several rules", acl.Deny, []acl.Rule{when(allow("*", "*"), obj{"zz": 1}), when(allow("*", "*"), broken), when(allow("*", "*"), broken), plain}, nil,
			acl.Decision{Allowed: true, RuleIndex: 3, Reason: match, HandlerError: noHandler + "; zz: no handler is registered"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := acl.Options{Logger: (&logBuffer{}).logger()}
			if tt.def != "" {
				o.DefaultEffect = &tt.def
			}
			p := mustNew(t, o, tt.rules...)
			q := acl.Query{CallerID: "agent.x", TargetID: "git.push", Context: call(0, ""), ArgumentKeys: tt.keys}
			got := p.Authorize(t.Context(), q)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
			if granted := p.Check(t.Context(), q); granted != (tt.want.Allowed && !tt.want.ApprovalRequired) {
				t.Errorf("Check says %v", granted)
			}
		})
	}
}

// Without a context a rule with good conditions is skipped, one with bad
// conditions is not; the first is said once per rule until the rules change.
func TestNoContext(t *testing.T) {
	var log logBuffer
	p := mustNew(t, acl.Options{DefaultEffect: new(acl.Allow), Logger: log.logger()}, when(deny("*", "*"), obj{"roles": []any{"x"}}))
	q := acl.Query{CallerID: "a", TargetID: "b"}
	skipped := func() int { return strings.Count(log.String(), "no context, rule skipped") }
	for range 3 {
		if d := p.Authorize(t.Context(), q); !d.Allowed || d.HandlerError != "" {
			t.Fatalf("got %+v, want the rule skipped without a fault", d)
		}
	}
	if skipped() != 1 {
		t.Errorf("%d warnings, want 1:\n%s", skipped(), log.String())
	}
	if err := p.AddRule(allow("x", "y")); err != nil {
		t.Fatal(err)
	}
	p.Check(t.Context(), q)
	if skipped() != 2 {
		t.Errorf("%d warnings after a change, want 2", skipped())
	}
	broken := mustNew(t, acl.Options{DefaultEffect: new(acl.Allow), Logger: log.logger()}, when(deny("*", "*"), obj{"nope": 1}))
	if d := broken.Authorize(t.Context(), q); d.Allowed || d.HandlerError == "" {
		t.Errorf("got %+v, want a broken deny rule to deny without a context", d)
	}
}

// A broken rule on a busy path warns once a second, not per call, and never
// shows what the handler said.
func TestFaultWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		p := mustNew(t, acl.Options{Logger: log.logger(), Conditions: map[string]acl.ConditionFunc{"panics": failing}},
			approved(when(allow("*", "*"), obj{"panics": 1})))
		q := acl.Query{CallerID: "a", TargetID: "b", Context: call(0, "")}
		for range 100 {
			p.Check(t.Context(), q)
		}
		time.Sleep(2 * time.Second)
		p.Check(t.Context(), q)
		if n := strings.Count(log.String(), "cannot be evaluated"); n != 2 {
			t.Errorf("%d warnings, want 2", n)
		}
		for _, want := range []string{"rule_index=0", "effect=allow", "pending_approval=true", "panics: handler panicked"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("warning lacks %s:\n%s", want, log.String())
			}
		}
		if strings.Contains(log.String(), "secret") {
			t.Errorf("warning shows the panic value:\n%s", log.String())
		}
	})
}

func TestEndedCheckFailsClosed(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	stop(context.DeadlineExceeded)
	ran := false
	o := acl.Options{Logger: (&logBuffer{}).logger(), DefaultEffect: new(acl.Allow), Conditions: map[string]acl.ConditionFunc{
		"slow": func(context.Context, any, acl.Query) (bool, error) { ran = true; return false, nil },
	}}
	d := mustNew(t, o, when(deny("*", "*"), obj{"slow": 1})).Authorize(ctx, acl.Query{TargetID: "b", Context: call(0, "")})
	if d.Allowed || ran {
		t.Errorf("got %+v, handler ran: %v; want a denial without running it", d, ran)
	}
}

// Handlers, sinks and loggers may use the policy that calls them.
func TestReentrancy(t *testing.T) {
	var p *acl.Policy
	o := acl.Options{
		Conditions: map[string]acl.ConditionFunc{"reenters": func(ctx context.Context, _ any, q acl.Query) (bool, error) {
			p.Rules()
			p.Validate()
			return true, p.AddRule(deny("x", "y"))
		}},
		Audit: func(context.Context, acl.AuditEntry) error { p.RemoveRule([]string{"x"}, []string{"y"}); return nil },
	}
	p = mustNew(t, o, when(allow("*", "*"), obj{"reenters": 1}))
	if !p.Check(t.Context(), acl.Query{TargetID: "b", Context: call(0, "")}) {
		t.Error("not granted")
	}
	if n := len(p.Rules()); n != 1 {
		t.Errorf("%d rules, want 1", n)
	}
}

func TestRegisterLater(t *testing.T) {
	var log logBuffer
	p := mustNew(t, acl.Options{Logger: log.logger()}, when(allow("*", "*"), obj{"tenant": "acme"}))
	if !strings.Contains(log.String(), "has no handler yet") || !strings.Contains(log.String(), "key=tenant") {
		t.Errorf("no warning about the key at construction:\n%s", log.String())
	}
	q := acl.Query{TargetID: "b", Context: call(0, "")}
	if p.Check(t.Context(), q) {
		t.Error("granted before registration")
	}
	var seen any
	for _, want := range []bool{true, false} {
		err := p.RegisterCondition("tenant", func(_ context.Context, v any, _ acl.Query) (bool, error) { seen = v; return want, nil })
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Check(t.Context(), q); got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if seen != "acme" {
		t.Errorf("the handler saw %v", seen)
	}
	for _, key := range []string{"", "roles", "$or", "arguments"} {
		if p.RegisterCondition(key, holding) == nil {
			t.Errorf("registered %q", key)
		}
	}
	if p.RegisterCondition("x", nil) == nil {
		t.Error("registered a nil handler")
	}
	if _, err := acl.New(nil, acl.Options{Conditions: map[string]acl.ConditionFunc{"roles": holding}}); err == nil {
		t.Error("New replaced a built-in condition")
	}
}

func TestHints(t *testing.T) {
	tests := []struct {
		name            string
		conditions      any
		needs, mayBlock bool
	}{
		{"plain", nil, false, false},
		{"roles", obj{"roles": []any{"x"}}, false, false},
		{"arguments", obj{"$not": obj{"arguments": obj{"has_key": []any{"x"}}}}, true, false},
		{"custom", obj{"holds": 1}, true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := mustNew(t, acl.Options{Conditions: map[string]acl.ConditionFunc{"holds": holding}}, when(allow("*", "*"), tt.conditions))
			if p.NeedsArguments() != tt.needs || p.MayBlock() != tt.mayBlock {
				t.Errorf("needs arguments %v, may block %v; want %v, %v", p.NeedsArguments(), p.MayBlock(), tt.needs, tt.mayBlock)
			}
		})
	}
}
