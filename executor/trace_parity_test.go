package executor_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// A traced call differs from a call in what it returns and in nothing else: result
// or error, events, audit entries, questions to people, hooks and completions are
// the same (core-executor seed, Trace Variants, decision D-19).
func TestTraceHasTheEffectsOfCall(t *testing.T) {
	boom := func(context.Context, map[string]any) (map[string]any, error) { return nil, errors.New("boom") }
	recovers := &middleware.Funcs{Label: "recovers", OnFailure: func(context.Context, *middleware.Call, *module.Error) (middleware.Recovery, error) {
		return middleware.Recovery{Output: map[string]any{"made": "up"}}, nil
	}}
	refuses := middleware.UseBefore("refuses", func(context.Context, *middleware.Call) (map[string]any, error) {
		return nil, module.Errorf(module.CodeApprovalDenied, "not by me")
	})
	retries := func() *middleware.Funcs {
		left := 2
		return &middleware.Funcs{Label: "retries", OnFailure: func(context.Context, *middleware.Call, *module.Error) (middleware.Recovery, error) {
			if left--; left < 0 {
				return middleware.Recovery{}, nil
			}
			return middleware.Recovery{Retry: map[string]any{}}, nil
		}}
	}
	tests := []struct {
		name string
		m    *mod
		mws  func() []middleware.Middleware
		deny bool
		want module.Code
	}{
		{"success", fn("m", echo), nil, false, ""},
		{"needs approval", &mod{desc: module.Descriptor{ID: "m", Annotations: module.Annotations{RequiresApproval: true}}}, nil, false, ""},
		{"denied", fn("m", echo), nil, true, module.CodeACLDenied},
		{"fails", fn("m", boom), nil, false, module.CodeModuleExecuteError},
		{"recovered", fn("m", boom), func() []middleware.Middleware { return []middleware.Middleware{recovers} }, false, ""},
		{"retried", fn("m", boom), func() []middleware.Middleware { return []middleware.Middleware{retries()} }, false, module.CodeModuleExecuteError},
		{"typed error of a hook", fn("m", echo), func() []middleware.Middleware { return []middleware.Middleware{refuses} }, false, module.CodeApprovalDenied},
		{"cancelled", fn("m", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			tok := module.FromContext(ctx).Token()
			tok.Cancel(nil)
			return nil, tok.Check()
		}), func() []middleware.Middleware { return []middleware.Middleware{recovers} }, false, module.CodeExecutionCancelled},
		{"invalid", &mod{desc: module.Descriptor{ID: "m", InputSchema: object(nil, "n")}}, nil, false, module.CodeSchemaValidation},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			effects := func(traced bool) []string {
				var seen []string
				note := func(format string, args ...any) { seen = append(seen, fmt.Sprintf(format, args...)) }
				effect := acl.Allow
				if tt.deny {
					effect = acl.Deny
				}
				rules, err := acl.New([]acl.Rule{{Callers: []string{"*"}, Targets: []string{"*"}, Effect: effect}}, acl.Options{
					Audit: func(_ context.Context, e acl.AuditEntry) error {
						note("audit %s %s", e.TargetID, e.Decision)
						return nil
					}})
				if err != nil {
					t.Fatal(err)
				}
				opts := []executor.Option{
					executor.WithACL(rules),
					executor.WithApproval(approval.Callback(func(_ context.Context, r *approval.Request) (*approval.Result, error) {
						note("asked about %s", r.ModuleID)
						return &approval.Result{Status: approval.Approved}, nil
					})),
					executor.WithEvents(func(e module.Event) { note("event %s", e.Type) }),
					executor.WithObserver(executor.ObserverFunc(func(c executor.Completion) {
						note("observed, error %q, retries %d, executed %t", module.CodeOf(errorOf(c.Err)), c.Retries, c.Executed)
					})),
					executor.WithMiddleware(recorder("r", 500, &seen)),
				}
				if tt.mws != nil {
					opts = append(opts, executor.WithMiddleware(tt.mws()...))
				}
				x := setup{modules: []module.Module{tt.m}, opts: opts}.executor(t)
				var out map[string]any
				if traced {
					var tr *executor.Trace
					out, tr, err = x.CallWithTrace(t.Context(), "m", nil)
					if tr == nil || tr.Success != (err == nil) {
						t.Errorf("trace %+v for error %v", tr, err)
					}
				} else {
					out, err = x.Call(t.Context(), "m", nil)
				}
				if got := module.CodeOf(err); got != tt.want {
					t.Errorf("code %q, want %q (%v)", got, tt.want, err)
				}
				note("output %v, error %q", out, module.CodeOf(err))
				return seen
			}
			if diff := cmp.Diff(effects(false), effects(true)); diff != "" {
				t.Errorf("effects (-call +traced):\n%s", diff)
			}
		})
	}
}

// errorOf keeps a nil pointer from becoming a non-nil error.
func errorOf(e *module.Error) error {
	if e == nil {
		return nil
	}
	return e
}
