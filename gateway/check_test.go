package gateway_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

const checkURL = "/v1/modules/payments.charge/check"

func checking(f func(context.Context, *contextwire.Request) (*module.PreflightResult, error)) func(*gateway.Options) {
	return withInvoker(gateway.InvokerFuncs{CheckFunc: f})
}

func TestCheck(t *testing.T) {
	var got *contextwire.Request
	g := newGateway(t, checking(func(_ context.Context, req *contextwire.Request) (*module.PreflightResult, error) {
		got = req
		return &module.PreflightResult{
			Valid: true, RequiresApproval: true,
			Checks: []module.PreflightCheck{
				{Check: "module_id", Passed: true},
				{Check: "module_preflight", Passed: true, Warnings: []string{"the card expires soon"}},
			},
			PredictedChanges: []module.Change{{
				Action: "charge", Target: "card", Summary: "Charge 10.00", Before: module.Known(nil), After: module.Known(int64(1000)),
				Extra: map[string]any{"x-currency": "EUR"},
			}},
		}, nil
	}))
	res := record(g, "POST", checkURL, `{"amount_cents":1000}`, "Apbus-Timeout: 2s", "Apbus-Module-Version: ^1")
	if res.status != 200 {
		t.Fatalf("got %d %s", res.status, res.body)
	}
	golden(t, "check", res.body)
	if got.ModuleID != "payments.charge" || got.Budget != 2*time.Second || got.Version != "^1" || got.Inputs["amount_cents"] != int64(1000) {
		t.Errorf("request %+v", got)
	}
	if res.header.Get("Apbus-Call") != got.CallID {
		t.Errorf("Apbus-Call %q, want %q", res.header.Get("Apbus-Call"), got.CallID)
	}
}

// What would refuse the call is the answer; what keeps us from knowing is an error.
func TestCheckOfCallsThatWouldBeRefused(t *testing.T) {
	tests := []struct {
		code  module.Code
		check string // "" is an error
	}{
		{module.CodeModuleNotFound, "module_lookup"},
		{module.CodeModuleDisabled, "module_lookup"},
		{module.CodeVersionIncompatible, "module_lookup"},
		{module.CodeBusVersionMismatch, "module_lookup"},
		{module.CodeInvalidModuleID, "module_id"},
		{module.CodeACLDenied, "acl"},
		{module.CodeSchemaValidation, "schema"},
		{module.CodeCircularCall, "call_chain"},
		{module.CodeApprovalDenied, "approval"},
		{module.CodeBusNoResponders, ""},
		{module.CodeBusDisconnected, ""},
		{module.CodeBusOverloaded, ""},
		{module.CodeModuleTimeout, ""},
		{module.CodeInternal, ""},
	}
	for _, tt := range tests {
		t.Run(string(tt.code), func(t *testing.T) {
			res := record(newGateway(t, withInvoker(failing(module.Errorf(tt.code, "why")))), "POST", checkURL, "{}")
			if tt.check == "" {
				res.wantFault(t, gateway.StatusOf(tt.code), tt.code)
				return
			}
			m := res.fields(t)
			if res.status != 200 || m["valid"] != false {
				t.Fatalf("got %d %s", res.status, res.body)
			}
			check := m["checks"].([]any)[0].(map[string]any)
			e, _ := check["error"].(map[string]any)
			if check["check"] != tt.check || check["passed"] != false || e["code"] != string(tt.code) || e["trace_id"] == nil {
				t.Errorf("check %v", check)
			}
			if list, _ := m["errors"].([]any); len(list) != 1 {
				t.Errorf("errors %v", m["errors"])
			}
			if list, ok := m["predicted_changes"].([]any); !ok || len(list) != 0 {
				t.Errorf("predicted_changes %v", m["predicted_changes"])
			}
		})
	}
}

func TestCheckOfAMalformedID(t *testing.T) {
	m := record(newGateway(t), "POST", "/v1/modules/Bad-ID/check", "{}").fields(t)
	if m["valid"] != false || m["checks"].([]any)[0].(map[string]any)["check"] != "module_id" {
		t.Errorf("got %v", m)
	}
}

func TestCheckRefusesWhatIsNoCall(t *testing.T) {
	g := newGateway(t, checking(func(context.Context, *contextwire.Request) (*module.PreflightResult, error) {
		t.Error("checked")
		return nil, nil
	}))
	record(g, "POST", checkURL, "[1]").wantFault(t, 400, module.CodeBusBadMessage)
	record(g, "POST", checkURL, "{}", "Apbus-Timeout: -1s").wantFault(t, 400, module.CodeInvalidInput)
}

func TestCheckWithoutAResultIsInternal(t *testing.T) {
	g := newGateway(t, checking(func(context.Context, *contextwire.Request) (*module.PreflightResult, error) { return nil, nil }))
	record(g, "POST", checkURL, "{}").wantFault(t, 500, module.CodeInternal)
}

func TestCheckHidesInternalErrors(t *testing.T) {
	result := &module.PreflightResult{Checks: []module.PreflightCheck{{Check: "x", Error: module.Errorf(module.CodeInternal, "SECRET")}}}
	g := newGateway(t, checking(func(context.Context, *contextwire.Request) (*module.PreflightResult, error) { return result, nil }))
	res := record(g, "POST", checkURL, "{}")
	if res.status != 200 || strings.Contains(res.body, "SECRET") {
		t.Errorf("got %d %s", res.status, res.body)
	}
	if result.Checks[0].Error.Message != "SECRET" {
		t.Error("the invoker's result was changed")
	}
}
