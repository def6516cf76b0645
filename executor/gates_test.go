package executor_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

func decides(d acl.Decision) executor.Authorizer {
	return executor.AuthorizerFunc(func(context.Context, acl.Query) acl.Decision { return d })
}

func TestACLGate(t *testing.T) {
	j := &journal{}
	var asked []acl.Query
	gate := executor.AuthorizerFunc(func(_ context.Context, q acl.Query) acl.Decision {
		asked = append(asked, q)
		return acl.Decision{Allowed: q.CallerID == "" && q.TargetID == "open" || q.CallerID == "open", Reason: acl.ReasonRuleMatch}
	})
	x := setup{log: j, opts: []executor.Option{executor.WithACL(gate)}, modules: []module.Module{
		fn("open", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			return module.Call(ctx, "shut", nil)
		}),
		fn("shut", echo),
	}}.executor(t)

	if _, err := x.Call(t.Context(), "open", map[string]any{"b": 1, "_approval_token": "t"}); err != nil {
		t.Fatal(err)
	}
	if len(asked) != 2 || asked[1].CallerID != "open" || !slices.Equal(asked[0].ArgumentKeys, []string{"b"}) || asked[0].Context == nil {
		t.Errorf("queries = %+v", asked)
	}
	_, err := x.Call(t.Context(), "shut", nil)
	e := wantCode(t, err, module.CodeACLDenied)
	wantStep(t, err, executor.StepACLCheck)
	if diff := cmp.Diff(map[string]any{"caller_id": nil, "target_id": "shut"}, e.Details); diff != "" {
		t.Errorf("details (-want +got):\n%s", diff)
	}
	if e.Unexecuted {
		t.Error("a denial invites another attempt")
	}
	if j.count("apcore.acl.denied") != 1 {
		t.Errorf("denials announced %d times, want 1", j.count("apcore.acl.denied"))
	}
	x.Validate(t.Context(), "shut", nil)
	if j.count("apcore.acl.denied") != 1 {
		t.Error("a validation announced a denial")
	}
}

func TestACLTimeoutFailsClosed(t *testing.T) {
	for _, obeys := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ran := false
			slow := executor.AuthorizerFunc(func(ctx context.Context, _ acl.Query) acl.Decision {
				if obeys {
					<-ctx.Done()
				} else {
					time.Sleep(time.Minute)
				}
				return acl.Decision{Allowed: true}
			})
			x := setup{opts: []executor.Option{executor.WithACL(slow)}, modules: []module.Module{
				fn("m", func(context.Context, map[string]any) (map[string]any, error) {
					ran = true
					return map[string]any{}, nil
				}),
			}}.executor(t)
			began := time.Now()
			_, err := x.Call(t.Context(), "m", nil)
			e := wantCode(t, err, module.CodeModuleTimeout)
			if took := time.Since(began); took > sec+10*time.Millisecond || ran || e.Details["timeout_ms"] != int64(1000) {
				t.Errorf("after %v, ran %v, details %v", took, ran, e.Details)
			}
			if err := x.Settle(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestACLPanicIsContained(t *testing.T) {
	j := &journal{}
	x := setup{log: j, modules: []module.Module{fn("m", echo)}, opts: []executor.Option{
		executor.WithACL(executor.AuthorizerFunc(func(context.Context, acl.Query) acl.Decision { panic("boom") })),
	}}.executor(t)
	_, err := x.Call(t.Context(), "m", nil)
	wantCode(t, err, module.CodeInternal)
	if strings.Contains(err.Error(), "boom") || j.count("stack=") != 1 {
		t.Errorf("error %v, stacks logged %d", err, j.count("stack="))
	}
}

// approver answers what it is told and remembers what it was asked.
type approver struct {
	result   *approval.Result
	err      error
	requests []*approval.Request
	tokens   []string
}

func (a *approver) RequestApproval(_ context.Context, r *approval.Request) (*approval.Result, error) {
	a.requests = append(a.requests, r)
	return a.result, a.err
}

func (a *approver) CheckApproval(_ context.Context, token string, r *approval.Request) (*approval.Result, error) {
	a.tokens = append(a.tokens, token)
	return a.result, a.err
}

func TestApprovalSources(t *testing.T) {
	rule := func(requires, destructive module.Tri) *approval.Policy {
		return &approval.Policy{Rules: []approval.PolicyRule{{Pattern: "m", RequiresApproval: requires, Destructive: destructive}}}
	}
	gateDestructive := &approval.Policy{GateDestructive: true}
	tests := []struct {
		name        string
		annotations module.Annotations
		aclWants    bool
		policy      *approval.Policy
		asked       bool
	}{
		{"nothing asks", module.Annotations{}, false, nil, false},
		{"annotation", module.Annotations{RequiresApproval: true}, false, nil, true},
		{"acl", module.Annotations{}, true, nil, true},
		{"policy adds", module.Annotations{}, false, rule(module.True, module.Unset), true},
		{"policy silences the annotation", module.Annotations{RequiresApproval: true}, false, rule(module.False, module.Unset), false},
		{"policy does not silence the acl", module.Annotations{}, true, rule(module.False, module.Unset), true},
		{"destructive alone", module.Annotations{Destructive: true}, false, nil, false},
		{"destructive gated", module.Annotations{Destructive: true}, false, gateDestructive, true},
		{"destructive by policy, gated", module.Annotations{}, false, &approval.Policy{
			GateDestructive: true, Rules: []approval.PolicyRule{{Pattern: "*", Destructive: module.True}}}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := fn("m", echo)
			m.desc.Annotations = tt.annotations
			a := &approver{result: &approval.Result{Status: approval.Approved}}
			x := setup{modules: []module.Module{m}, opts: []executor.Option{
				executor.WithACL(decides(acl.Decision{Allowed: true, ApprovalRequired: tt.aclWants})),
				executor.WithApproval(a), executor.WithPolicy(tt.policy),
			}}.executor(t)
			out, err := x.Call(t.Context(), "m", map[string]any{"n": 1, "_approval_token": "t1"})
			if err != nil {
				t.Fatal(err)
			}
			if _, leaked := out["_approval_token"]; leaked {
				t.Error("the token reached the module")
			}
			if asked := len(a.tokens) == 1; asked != tt.asked {
				t.Errorf("handler asked %v, want %v", asked, tt.asked)
			}
			if r := x.Validate(t.Context(), "m", map[string]any{"n": 1}); r.RequiresApproval != tt.asked || !r.Valid {
				t.Errorf("validation says requires_approval %v, valid %v; want %v, true", r.RequiresApproval, r.Valid, tt.asked)
			}
			if len(a.tokens)+len(a.requests) > 1 {
				t.Error("validation asked the handler")
			}
		})
	}
}

func TestApprovalResults(t *testing.T) {
	failure := errors.New("inbox down")
	tests := []struct {
		name   string
		result *approval.Result
		err    error
		want   module.Code
	}{
		{"approved", &approval.Result{Status: approval.Approved}, nil, ""},
		{"rejected", &approval.Result{Status: approval.Rejected, Reason: "no"}, nil, module.CodeApprovalDenied},
		{"timeout", &approval.Result{Status: approval.Timeout}, nil, module.CodeApprovalTimeout},
		{"pending", &approval.Result{Status: approval.Pending, ApprovalID: "req-1"}, nil, module.CodeApprovalPending},
		{"unknown", &approval.Result{Status: "maybe"}, nil, module.CodeApprovalDenied},
		{"none", nil, nil, module.CodeApprovalDenied},
		{"handler fails", nil, failure, module.CodeModuleExecuteError},
		{"handler fails with a code", nil, module.Errorf(module.CodeTaskLimitExceeded, "full"), module.CodeTaskLimitExceeded},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ran := false
			m := fn("m", func(context.Context, map[string]any) (map[string]any, error) {
				ran = true
				return map[string]any{}, nil
			})
			m.desc.Annotations.RequiresApproval = true
			j := &journal{}
			x := setup{log: j, modules: []module.Module{m}, opts: []executor.Option{executor.WithApproval(&approver{result: tt.result, err: tt.err})}}.executor(t)
			_, err := x.Call(t.Context(), "m", nil)
			if got := module.CodeOf(err); got != tt.want || ran != (tt.want == "") {
				t.Fatalf("code %q, ran %v; want %q", got, ran, tt.want)
			}
			if tt.err == nil && j.count("apcore.approval.decision") != 1 {
				t.Errorf("decision logged %d times", j.count("apcore.approval.decision"))
			}
			if err == nil {
				return
			}
			wantStep(t, err, executor.StepApprovalGate)
			e := module.AsError(err)
			if e.Unexecuted {
				t.Error("the error invites another attempt, which would ask again")
			}
			if tt.want == module.CodeApprovalPending && e.Details["approval_id"] != "req-1" {
				t.Errorf("details = %v", e.Details)
			}
			if module.AsError(tt.err) == nil && tt.err != nil && !errors.Is(err, tt.err) {
				t.Error("the handler's failure was replaced")
			}
		})
	}
}

func TestApprovalWithoutHandler(t *testing.T) {
	for _, strict := range []bool{false, true} {
		m := fn("m", echo)
		m.desc.Annotations.RequiresApproval = true
		j := &journal{}
		x := setup{log: j, modules: []module.Module{m}, opts: []executor.Option{executor.WithPolicy(&approval.Policy{Strict: strict})}}.executor(t)
		for range 2 {
			_, err := x.Call(t.Context(), "m", nil)
			if strict {
				wantCode(t, err, module.CodeApprovalDenied)
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if got := j.count("there is no approval handler, module runs"); !strict && got != 1 {
			t.Errorf("%d warnings, want 1", got)
		}
	}
}

func TestApprovalRequestAndToken(t *testing.T) {
	m := &hooked{
		mod: mod{desc: module.Descriptor{ID: "m", Description: "pays", Version: "1.2.0", Tags: []string{"money"},
			Annotations: module.Annotations{RequiresApproval: true, Destructive: true}}, execute: echo},
		preview: func(context.Context, map[string]any) (*module.PreviewResult, error) {
			return &module.PreviewResult{Changes: []module.Change{{Action: "charge", Target: "card", Summary: "Charge the card"}, {Action: "bad"}}}, nil
		},
		preflight: func(context.Context, map[string]any) ([]string, error) { return []string{"is slow"}, nil },
	}
	a := &approver{result: &approval.Result{Status: approval.Approved}}
	x := setup{modules: []module.Module{m}, opts: []executor.Option{executor.WithApproval(a)}}.executor(t)
	given := map[string]any{"n": int64(1), "_approval_token": "t1"}
	if _, err := x.Call(t.Context(), "m", given); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(a.tokens, []string{"t1"}) || len(a.requests) != 0 {
		t.Errorf("with a token: checked %v, requested %d", a.tokens, len(a.requests))
	}
	if given["_approval_token"] != "t1" {
		t.Error("the caller's map was changed")
	}
	if _, err := x.Call(t.Context(), "m", map[string]any{"n": int64(1)}); err != nil {
		t.Fatal(err)
	}
	r := a.requests[0]
	if r.ModuleID != "m" || r.Action != "m" || r.Version != "1.2.0" || r.CallerID != "" || r.Description != "pays" ||
		!r.Annotations.RequiresApproval || !r.Annotations.Destructive || r.Context == nil || r.Arguments["n"] != int64(1) {
		t.Errorf("request = %+v", r)
	}
	if changes := r.Preview(); len(changes) != 1 || changes[0].Action != "charge" {
		t.Errorf("preview = %+v", changes)
	}
	if w := r.Preflight(); !slices.Equal(w, []string{"is slow"}) {
		t.Errorf("preflight = %v", w)
	}
	_, err := x.Call(t.Context(), "m", map[string]any{"_approval_token": 5})
	wantCode(t, err, module.CodeInvalidInput)
}

func TestApprovalWaitEndsWithTheCall(t *testing.T) {
	waits := approval.Callback(func(ctx context.Context, _ *approval.Request) (*approval.Result, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	stubborn := approval.Callback(func(context.Context, *approval.Request) (*approval.Result, error) {
		time.Sleep(time.Hour) //archtest:real-time not real: every use is inside a bubble
		return &approval.Result{Status: approval.Approved}, nil
	})
	tests := []struct {
		name   string
		h      executor.Approver
		cancel time.Duration
		want   module.Code
		after  time.Duration
	}{
		{"caller leaves", waits, sec, module.CodeExecutionCancelled, sec},
		{"global deadline", waits, 0, module.CodeModuleTimeout, 60 * sec},
		{"stubborn handler", stubborn, sec, module.CodeExecutionCancelled, sec + 10*time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := fn("m", echo)
				m.desc.Annotations.RequiresApproval = true
				x := setup{modules: []module.Module{m}, opts: []executor.Option{executor.WithApproval(tt.h)}}.executor(t)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				if tt.cancel > 0 {
					time.AfterFunc(tt.cancel, stop)
				}
				began := time.Now()
				_, err := x.Call(ctx, "m", nil)
				wantCode(t, err, tt.want)
				if got := time.Since(began); got != tt.after {
					t.Errorf("after %v, want %v", got, tt.after)
				}
				if err := x.Settle(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A retry that a middleware asks for does not ask people a second time for the
// same arguments, and does for others.
func TestRetryAndApproval(t *testing.T) {
	for _, changed := range []bool{false, true} {
		var runs atomic.Int64
		m := fn("m", func(context.Context, map[string]any) (map[string]any, error) {
			if runs.Add(1) == 1 {
				return nil, errors.New("flaky")
			}
			return map[string]any{}, nil
		})
		m.desc.Annotations.RequiresApproval = true
		a := &approver{result: &approval.Result{Status: approval.Approved}}
		retry := &middleware.Funcs{Label: "retry", OnFailure: func(_ context.Context, c *middleware.Call, _ *module.Error) (middleware.Recovery, error) {
			if changed {
				return middleware.Recovery{Retry: map[string]any{"other": true}}, nil
			}
			return middleware.Recovery{Retry: c.Inputs}, nil
		}}
		x := setup{modules: []module.Module{m}, opts: []executor.Option{executor.WithApproval(a), executor.WithMiddleware(retry)}}.executor(t)
		if _, err := x.Call(t.Context(), "m", map[string]any{"n": 1}); err != nil {
			t.Fatal(err)
		}
		want := 1
		if changed {
			want = 2
		}
		if len(a.requests) != want || runs.Load() != 2 {
			t.Errorf("changed %v: %d requests, %d runs; want %d and 2", changed, len(a.requests), runs.Load(), want)
		}
	}
}

func TestProvidersOfTheExecutorWin(t *testing.T) {
	deny, allow := decides(acl.Decision{}), decides(acl.Decision{Allowed: true})
	tests := []struct {
		name          string
		step, own, to executor.Authorizer
		want          module.Code
	}{
		{"strategy's own", deny, nil, nil, module.CodeACLDenied},
		{"executor's wins", allow, deny, nil, module.CodeACLDenied},
		{"set later", allow, allow, deny, module.CodeACLDenied},
		{"none", nil, nil, nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := executor.Standard()
			if err := s.Replace(executor.StepACLCheck, executor.ACLStep(tt.step)); err != nil {
				t.Fatal(err)
			}
			opts := []executor.Option{executor.WithStrategy(s)}
			if tt.own != nil {
				opts = append(opts, executor.WithACL(tt.own))
			}
			x := setup{modules: []module.Module{fn("m", echo)}, opts: opts}.executor(t)
			if tt.to != nil {
				x.SetACL(tt.to)
			}
			_, err := x.Call(t.Context(), "m", nil)
			if got := module.CodeOf(err); got != tt.want {
				t.Errorf("code %q, want %q", got, tt.want)
			}
		})
	}
}

func TestUnwiredGateIsTold(t *testing.T) {
	j := &journal{}
	x := setup{log: j, modules: []module.Module{fn("m", echo)}, opts: []executor.Option{
		executor.WithStrategy(executor.Minimal()), executor.WithACL(decides(acl.Decision{})),
	}}.executor(t)
	if _, err := x.Call(t.Context(), "m", nil); err != nil {
		t.Errorf("minimal has no gate, yet %v", err)
	}
	if j.count("the strategy has no acl step") != 1 {
		t.Error("an attached ACL that nobody asks was not mentioned")
	}
}
