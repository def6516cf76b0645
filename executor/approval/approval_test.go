package approval_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/module"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

type obj = map[string]any

func TestStripToken(t *testing.T) {
	tests := []struct {
		name    string
		inputs  obj
		want    obj
		token   string
		present bool
		code    module.Code
	}{
		{"nil", nil, nil, "", false, ""},
		{"absent", obj{"a": 1}, obj{"a": 1}, "", false, ""},
		{"present", obj{"a": 1, "_approval_token": "t"}, obj{"a": 1}, "t", true, ""},
		{"empty", obj{"_approval_token": ""}, obj{}, "", true, ""},
		{"number", obj{"a": 1, "_approval_token": 5}, obj{"a": 1}, "", false, module.CodeInvalidInput},
		{"null", obj{"_approval_token": nil}, obj{}, "", false, module.CodeInvalidInput},
		{"nested is an ordinary value", obj{"a": obj{"_approval_token": "t"}}, obj{"a": obj{"_approval_token": "t"}}, "", false, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			size := len(tt.inputs)
			got, token, present, err := approval.StripToken(tt.inputs)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("inputs (-want +got):\n%s", diff)
			}
			if token != tt.token || present != tt.present || module.CodeOf(err) != tt.code {
				t.Errorf("got %q, %v, %v", token, present, err)
			}
			if len(tt.inputs) != size {
				t.Error("the caller's map was changed")
			}
		})
	}
}

func TestDigest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		in := rapid.MapOf(rapid.String(), rapid.OneOf(rapid.Just[any](nil), rapid.Int64().AsAny(), rapid.String().AsAny())).Draw(rt, "inputs")
		delete(in, approval.TokenKey)
		plain, err := approval.Digest(in)
		if err != nil {
			rt.Fatal(err)
		}
		in[approval.TokenKey] = "t"
		if with, _ := approval.Digest(in); with != plain {
			rt.Fatal("the token changes the digest")
		}
		delete(in, approval.TokenKey)
		in[string(make([]rune, len(in)+1))+"longer than any key"] = int64(1)
		if other, _ := approval.Digest(in); other == plain {
			rt.Fatal("other inputs have the same digest")
		}
	})
	empty, _ := approval.Digest(obj{})
	if null, err := approval.Digest(nil); null != empty || err != nil {
		t.Errorf("nil inputs: %q, %v; want the digest of none", null, err)
	}
	if _, err := approval.Digest(obj{"x": math.NaN()}); module.CodeOf(err) != module.CodeInvalidInput {
		t.Errorf("NaN: %v", err)
	}
}

func TestResultErr(t *testing.T) {
	tests := []struct {
		name    string
		result  *approval.Result
		code    module.Code
		details obj
	}{
		{"approved", &approval.Result{Status: approval.Approved}, "", nil},
		{"rejected", &approval.Result{Status: approval.Rejected, ApprovedBy: "ann", Reason: "no"}, module.CodeApprovalDenied,
			obj{"module_id": "m.x", "approved_by": "ann", "reason": "no"}},
		{"timeout", &approval.Result{Status: approval.Timeout}, module.CodeApprovalTimeout, obj{"module_id": "m.x"}},
		{"pending", &approval.Result{Status: approval.Pending, ApprovalID: "id"}, module.CodeApprovalPending,
			obj{"module_id": "m.x", "approval_id": "id"}},
		{"unknown status", &approval.Result{Status: "maybe"}, module.CodeApprovalDenied, obj{"module_id": "m.x"}},
		{"no status", &approval.Result{}, module.CodeApprovalDenied, obj{"module_id": "m.x"}},
		{"nil", nil, module.CodeApprovalDenied, obj{"module_id": "m.x", "reason": "the approval handler gave no result"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.result.Err("m.x")
			if tt.code == "" {
				if err != nil {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err.Code != tt.code || !err.Unexecuted {
				t.Errorf("got %v, unexecuted %v; want %s", err, err.Unexecuted, tt.code)
			}
			if diff := cmp.Diff(tt.details, err.Details); diff != "" {
				t.Errorf("details (-want +got):\n%s", diff)
			}
			got, ok := approval.ResultOf(errors.Join(errors.New("around"), err))
			if !ok || (tt.result != nil && got.Status != tt.result.Status) {
				t.Errorf("result behind the error: %+v, %v", got, ok)
			}
		})
	}
	if _, ok := approval.ResultOf(errors.New("other")); ok {
		t.Error("found a result behind another error")
	}
}

func TestHandlers(t *testing.T) {
	failure := errors.New("down")
	ask := func(r *approval.Result, err error) approval.Callback {
		return func(context.Context, *approval.Request) (*approval.Result, error) { return r, err }
	}
	tests := []struct {
		name           string
		handler        approval.Handler
		request, check approval.Status
		err            error
	}{
		{"always deny", approval.AlwaysDeny{}, approval.Rejected, approval.Rejected, nil},
		{"auto approve", approval.AutoApprove{}, approval.Approved, approval.Approved, nil},
		{"callback", ask(&approval.Result{Status: approval.Approved}, nil), approval.Approved, approval.Rejected, nil},
		{"callback error", ask(nil, failure), "", approval.Rejected, failure},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := tt.handler.RequestApproval(t.Context(), &approval.Request{})
			if !errors.Is(err, tt.err) || (r != nil && r.Status != tt.request) {
				t.Errorf("request: %+v, %v", r, err)
			}
			if r, err = tt.handler.CheckApproval(t.Context(), "id", &approval.Request{}); err != nil || r.Status != tt.check {
				t.Errorf("check: %+v, %v", r, err)
			}
		})
	}
}
