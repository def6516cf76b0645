package module_test

import (
	"context"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/apbus/apbus/module"
)

func TestPreflightResult(t *testing.T) {
	denied := module.Errorf(module.CodeACLDenied, "denied")
	denied.Timestamp = at
	advisory := module.Errorf(module.CodeInternal, "ignored")
	advisory.Timestamp = at
	r := &module.PreflightResult{
		RequiresApproval: true,
		Checks: []module.PreflightCheck{
			{Check: "module_id", Passed: true},
			{Check: "acl", Error: denied},
			{Check: "approval"},
			{Check: "module_preflight", Passed: true, Error: advisory, Warnings: []string{"slow", "costly"}},
			{Check: "module_preview", Passed: true, Warnings: []string{"preview failed"}},
		},
		PredictedChanges: []module.Change{
			{Action: "a", Target: "t", Summary: "s", Before: module.Known(nil), Extra: obj{"x-k": true}},
			{Action: "b", Target: "t", Summary: "s"},
		},
	}
	equal(t, "warnings", r.Warnings(), []string{"slow", "costly", "preview failed"})
	if errs := r.Errors(); len(errs) != 1 || errs[0] != denied {
		t.Errorf("errors %v", errs)
	}
	equal(t, "errors on the wire", r.Map()["errors"].([]any), []any{denied.Map()})
	got, err := module.PreflightFromMap(hop(t, r.Map()))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "map after a hop", got.Map(), r.Map())
	ignore := cmp.Options{cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(module.Error{}), cmpopts.IgnoreFields(module.Error{}, "Remote", "Timestamp")}
	if diff := cmp.Diff(r, got, ignore); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !got.Checks[1].Error.Remote {
		t.Error("an error of a peer must say so")
	}
}

func TestPreflightListsAreNeverNull(t *testing.T) {
	r := &module.PreflightResult{Valid: true, Checks: []module.PreflightCheck{{Check: "acl", Passed: true}}}
	equal(t, "map", r.Map(), obj{
		"valid": true, "requires_approval": false, "predicted_changes": []any{}, "errors": []any{},
		"checks": []any{obj{"check": "acl", "passed": true, "error": nil, "warnings": []any{}}},
	})
	equal(t, "empty", (&module.PreflightResult{}).Map(), obj{
		"valid": false, "requires_approval": false, "predicted_changes": []any{}, "errors": []any{}, "checks": []any{},
	})
}

func TestPreflightFromMap(t *testing.T) {
	check := func(changes obj) obj {
		m := obj{"check": "acl", "passed": true}
		maps.Copy(m, changes)
		return obj{"checks": []any{m}}
	}
	for _, tt := range []struct {
		name   string
		change obj
		valid  bool
	}{
		{"as it is", nil, true},
		{"newer peer", obj{"new": 1}, true},
		{"no predicted changes", obj{"predicted_changes": nil}, true},
		{"a check with all", check(obj{"error": obj{"code": "X"}, "warnings": []any{"w"}}), true},
		{"a check with nulls", check(obj{"error": nil, "warnings": nil}), true},
		{"valid missing", obj{"valid": nil}, false},
		{"valid no boolean", obj{"valid": "true"}, false},
		{"requires_approval missing is not harmless", obj{"requires_approval": nil}, false},
		{"requires_approval no boolean", obj{"requires_approval": int64(1)}, false},
		{"checks missing", obj{"checks": nil}, false},
		{"a check no map", obj{"checks": []any{"acl"}}, false},
		{"a check without name", check(obj{"check": nil}), false},
		{"a check that does not say", check(obj{"passed": nil}), false},
		{"an error without code", check(obj{"error": obj{}}), false},
		{"an error no map", check(obj{"error": "denied"}), false},
		{"warnings no list", check(obj{"warnings": "w"}), false},
		{"a warning no string", check(obj{"warnings": []any{int64(1)}}), false},
		{"changes no list", obj{"predicted_changes": obj{}}, false},
		{"a change no map", obj{"predicted_changes": []any{int64(1)}}, false},
		{"an invalid change", obj{"predicted_changes": []any{obj{"action": "a"}}}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := obj{"valid": true, "requires_approval": false, "checks": []any{}, "predicted_changes": []any{}, "errors": []any{}}
			maps.Copy(m, tt.change)
			r, err := module.PreflightFromMap(m)
			if (err == nil) != tt.valid || (r != nil) != tt.valid {
				t.Fatalf("result %v, error %v", r, err)
			}
			if !tt.valid {
				hasCode(t, err, module.CodeBusBadMessage)
			} else if r.PredictedChanges == nil {
				t.Error("predicted changes must be a list")
			}
		})
	}
}

func TestWithPreflight(t *testing.T) {
	type in struct {
		N int `json:"n"`
	}
	run := func(context.Context, in) (obj, error) { return obj{}, nil }
	m := module.New("a.b", "", run, module.WithPreflight(func(_ context.Context, v in) ([]string, error) {
		if v.N > 1 {
			return []string{"many"}, nil
		}
		return nil, nil
	}))
	got, err := m.Preflight(t.Context(), obj{"n": int64(2)})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "warnings", got, []string{"many"})
	_, err = m.Preflight(t.Context(), obj{"n": "two"})
	hasCode(t, err, module.CodeInvalidInput)
	if w, err := module.New("a.b", "", run).Preflight(t.Context(), nil); w != nil || err != nil {
		t.Errorf("without one: %v, %v", w, err)
	}
}
