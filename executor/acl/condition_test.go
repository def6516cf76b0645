package acl_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/module"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// outcomes reads a condition's truth value off the decisions it leads to: an
// allow rule grants only when it holds, a deny rule blocks unless it is false.
func outcomes(t testing.TB, o acl.Options, conditions any, q acl.Query) string {
	t.Helper()
	q.CallerID, q.TargetID = "a", "b"
	o.DefaultEffect = new(acl.Deny)
	grants := mustNew(t, o, when(allow("*", "*"), conditions)).Check(t.Context(), q)
	o.DefaultEffect = new(acl.Allow)
	blocks := !mustNew(t, o, when(deny("*", "*"), conditions)).Check(t.Context(), q)
	switch {
	case grants && blocks:
		return "satisfied"
	case !grants && !blocks:
		return "unsatisfied"
	case !grants && blocks:
		return "unevaluable"
	}
	return "grants although a deny rule would not block"
}

func TestConditions(t *testing.T) {
	keys := []string{"force", "remote", "_approval_token"}
	quiet := (&logBuffer{}).logger()
	o := acl.Options{Logger: quiet, Conditions: map[string]acl.ConditionFunc{
		"panics": failing, "holds": holding, "rejects": rejecting,
		"fails": func(context.Context, any, acl.Query) (bool, error) { return true, errors.New("secret value") },
		"coded": func(context.Context, any, acl.Query) (bool, error) {
			return true, module.Errorf(module.CodeModuleTimeout, "secret value")
		},
	}}
	const sat, unsat, uneval = "satisfied", "unsatisfied", "unevaluable"
	tests := []struct {
		name       string
		conditions any
		want       string
		fault      string // handler_error
	}{
		{"none", nil, sat, ""},
		{"empty object", obj{}, sat, ""},
		{"role", obj{"roles": []any{"x", "dev"}}, sat, ""},
		{"string list from Go", obj{"roles": []string{"dev"}}, sat, ""},
		{"other role", obj{"roles": []any{"ops"}}, unsat, ""},
		{"no roles", obj{"roles": []any{}}, unsat, ""},
		{"type", obj{"identity_types": []any{"user"}}, sat, ""},
		{"other type", obj{"identity_types": []any{"service"}}, unsat, ""},
		{"depth at the limit", obj{"max_call_depth": 2}, sat, ""},
		{"depth above", obj{"max_call_depth": int64(1)}, unsat, ""},
		{"integral float", obj{"max_call_depth": 2.0}, sat, ""},
		{"all keys must hold", obj{"roles": []any{"dev"}, "max_call_depth": 1}, unsat, ""},
		{"has key", obj{"arguments": obj{"has_key": []any{"x", "force"}}}, sat, ""},
		{"has no such key", obj{"arguments": obj{"has_key": []any{"x"}}}, unsat, ""},
		{"has key of nothing", obj{"arguments": obj{"has_key": []any{}}}, unsat, ""},
		{"has all", obj{"arguments": obj{"has_all_keys": []any{"force", "remote"}}}, sat, ""},
		{"has all but one", obj{"arguments": obj{"has_all_keys": []any{"force", "x"}}}, unsat, ""},
		{"has all of nothing", obj{"arguments": obj{"has_all_keys": []any{}}}, sat, ""},
		{"has none", obj{"arguments": obj{"has_none_of": []any{"x"}}}, sat, ""},
		{"has one of", obj{"arguments": obj{"has_none_of": []any{"x", "force"}}}, unsat, ""},
		{"has none of nothing", obj{"arguments": obj{"has_none_of": []any{}}}, sat, ""},
		{"token is not an argument", obj{"arguments": obj{"has_key": []any{"_approval_token"}}}, unsat, ""},
		{"predicates are anded", obj{"arguments": obj{"has_key": []any{"force"}, "has_none_of": []any{"remote"}}}, unsat, ""},
		{"or", obj{"$or": []any{obj{"roles": []any{"x"}}, obj{"roles": []any{"dev"}}}}, sat, ""},
		{"or of nothing", obj{"$or": []any{}}, unsat, ""},
		{"not", obj{"$not": obj{"roles": []any{"x"}}}, sat, ""},
		{"not of true", obj{"$not": obj{"roles": []any{"dev"}}}, unsat, ""},
		{"custom", obj{"holds": 1}, sat, ""},
		{"custom false", obj{"rejects": 1}, unsat, ""},

		{"not an object", "oops", uneval, "$: conditions is not an object"},
		{"unregistered", obj{"nope": 1}, uneval, "nope: no handler is registered"},
		{"roles of another type", obj{"roles": "dev"}, uneval, "roles: value is not a list of strings"},
		{"roles with a number", obj{"roles": []any{"dev", 1}}, uneval, "roles: value is not a list of strings"},
		{"types of another type", obj{"identity_types": obj{}}, uneval, "identity_types: value is not a list of strings"},
		{"depth of another type", obj{"max_call_depth": "3"}, uneval, "max_call_depth: value is not an integer"},
		{"depth with a fraction", obj{"max_call_depth": 2.5}, uneval, "max_call_depth: value is not an integer"},
		{"depth as a boolean", obj{"max_call_depth": true}, uneval, "max_call_depth: value is not an integer"},
		{"or is no list", obj{"$or": "x"}, uneval, "$or: value is not a list"},
		{"or element is no object", obj{"$or": []any{"x", obj{"roles": []any{"dev"}}}}, uneval, "$or[0]: element is not an object"},
		{"or element is empty", obj{"$or": []any{obj{"roles": []any{"dev"}}, obj{}}}, uneval, "$or[1]: element is empty"},
		{"not is no object", obj{"$not": 3}, uneval, "$not: value is not an object"},
		{"not of nothing", obj{"$not": obj{}}, uneval, "$not: value is empty"},
		{"arguments is no object", obj{"arguments": []any{}}, uneval, "arguments: value is not an object"},
		{"arguments is empty", obj{"arguments": obj{}}, uneval, "arguments: value is empty"},
		{"unknown predicate", obj{"arguments": obj{"has_keys": []any{"x"}}}, uneval, "arguments.has_keys: no such predicate"},
		{"every faulty predicate", obj{"arguments": obj{"has_key": "force", "zzz": []any{}}}, uneval,
			"arguments.has_key: value is not a list of strings; arguments.zzz: no such predicate"},
		{"a fault gates a satisfied sibling", obj{"$or": []any{obj{"nope": 1}, obj{"roles": []any{"dev"}}}}, uneval,
			"$or[0].nope: no handler is registered"},
		{"a fault gates an unsatisfied sibling", obj{"nope": 1, "roles": []any{"x"}}, uneval, "nope: no handler is registered"},
		{"faults are all found and sorted", obj{"zz": 1, "$or": []any{obj{"b": 1}, obj{"$not": obj{"a": 1}}}}, uneval,
			"$or[0].b: no handler is registered; $or[1].$not.a: no handler is registered; zz: no handler is registered"},

		{"panic", obj{"panics": 1}, uneval, "panics: handler panicked"},
		{"error", obj{"fails": 1}, uneval, "fails: handler failed"},
		{"coded error", obj{"coded": 1}, uneval, "coded: handler failed with MODULE_TIMEOUT"},
		{"a satisfied branch wins over a failure", obj{"$or": []any{obj{"panics": 1}, obj{"holds": 1}}}, sat, "$or[0].panics: handler panicked"},
		{"an unsatisfied operand wins over a failure", obj{"panics": 1, "rejects": 1}, unsat, "panics: handler panicked"},
		{"not of a failure", obj{"$not": obj{"panics": 1}}, uneval, "$not.panics: handler panicked"},
		{"failure beside true", obj{"panics": 1, "holds": 1}, uneval, "panics: handler panicked"},
		{"failure beside a false branch", obj{"$or": []any{obj{"rejects": 1}, obj{"panics": 1}}}, uneval, "$or[1].panics: handler panicked"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			q := acl.Query{Context: call(2, "user", "dev"), ArgumentKeys: keys}
			if got := outcomes(t, o, tt.conditions, q); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			q.CallerID, q.TargetID = "a", "b"
			d := mustNew(t, o, when(allow("*", "*"), tt.conditions)).Authorize(t.Context(), q)
			if diff := cmp.Diff(tt.fault, d.HandlerError); diff != "" {
				t.Errorf("handler error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNoProjectionIsNotAnEmptyOne(t *testing.T) {
	conditions := obj{"arguments": obj{"has_none_of": []any{"force"}}}
	o := acl.Options{Logger: (&logBuffer{}).logger()}
	if got := outcomes(t, o, conditions, acl.Query{Context: call(0, "")}); got != "unevaluable" {
		t.Errorf("without a projection: %s", got)
	}
	if got := outcomes(t, o, conditions, acl.Query{Context: call(0, ""), ArgumentKeys: acl.ArgumentKeys(nil)}); got != "satisfied" {
		t.Errorf("without arguments: %s", got)
	}
	if diff := cmp.Diff([]string{"a"}, acl.ArgumentKeys(obj{"a": 1, "_approval_token": "t"})); diff != "" {
		t.Errorf("projection (-want +got):\n%s", diff)
	}
}

func TestNilIdentityHasNoRole(t *testing.T) {
	q := acl.Query{Context: call(1, "")}
	for _, c := range []obj{{"roles": []any{"dev"}}, {"identity_types": []any{"user"}}} {
		if got := outcomes(t, acl.Options{}, c, q); got != "unsatisfied" {
			t.Errorf("%v: %s", c, got)
		}
	}
}

// truth is the oracle of three-valued logic: 0 false, 1 unknown, 2 true.
type truth int

// tree draws a random condition together with its truth value.
func tree(t *rapid.T, depth int, label string) (obj, truth) {
	kind := rapid.IntRange(0, 5).Draw(t, label)
	if depth == 0 {
		kind %= 3
	}
	switch kind {
	case 0:
		return obj{"rejects": true}, 0
	case 1:
		return obj{"panics": true}, 1
	case 2:
		return obj{"holds": true}, 2
	case 3:
		inner, v := tree(t, depth-1, label+"n")
		return obj{"$not": inner}, 2 - v
	case 4:
		list, best := []any{}, truth(0)
		for i := range rapid.IntRange(0, 3).Draw(t, label+"o") {
			inner, v := tree(t, depth-1, fmt.Sprintf("%so%d", label, i))
			list, best = append(list, inner), max(best, v)
		}
		return obj{"$or": list}, best
	default: // an AND of an $or and a $not
		a, va := tree(t, depth-1, label+"a")
		b, vb := tree(t, depth-1, label+"b")
		return obj{"$or": []any{a}, "$not": b}, min(va, 2-vb)
	}
}

func TestKleeneComposition(t *testing.T) {
	o := acl.Options{Logger: (&logBuffer{}).logger(), Conditions: map[string]acl.ConditionFunc{
		"rejects": rejecting, "panics": failing, "holds": holding,
	}}
	rapid.Check(t, func(rt *rapid.T) {
		conditions, v := tree(rt, 4, "t")
		want := []string{"unsatisfied", "unevaluable", "satisfied"}[v]
		if got := outcomes(t, o, conditions, acl.Query{Context: call(0, "")}); got != want {
			rt.Fatalf("%v: got %s, want %s", conditions, got, want)
		}
	})
}
