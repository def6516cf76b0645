package executor_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// The caller's side of a remote call runs five steps and nothing that belongs to
// the owner.
func TestRemoteCallersSide(t *testing.T) {
	var req *contextwire.Request
	var notes []string
	observed := 0
	ran := map[string]bool{}
	r := &remote{invoke: func(_ context.Context, q *contextwire.Request) (*contextwire.Reply, error) {
		req = q
		return &contextwire.Reply{Output: map[string]any{"far": true}}, nil
	}}
	local := fn("near", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
		return module.Call(ctx, "far.away", map[string]any{"n": 1, "_approval_token": "t"}, module.CallVersion("^2"))
	})
	x := setup{modules: []module.Module{local}, opts: []executor.Option{
		executor.WithRemote(r),
		executor.WithACL(executor.AuthorizerFunc(func(_ context.Context, q acl.Query) acl.Decision {
			ran["acl "+q.TargetID] = true
			return acl.Decision{Allowed: q.TargetID == "near"}
		})),
		executor.WithMiddleware(middleware.UseBefore("count", func(_ context.Context, c *middleware.Call) (map[string]any, error) {
			notes = append(notes, c.ModuleID)
			return nil, nil
		})),
		executor.WithObserver(executor.ObserverFunc(func(executor.Completion) { observed++ })),
	}}.executor(t)

	// The outer call came over the bus.
	parent := module.RestoreContext(module.ContextWire{TraceID: module.NewTraceID(), CallChain: []string{"up"}, Identity: module.NewIdentity("ana", "", nil, nil)})
	reply, err := x.Invoke(t.Context(), &contextwire.Request{
		ModuleID: "near", CallID: "call-1", Attempt: 2, Root: "root-1", Parent: "p-0", Context: parent, IdempotencyKey: "k",
	})
	if err != nil || reply.Output["far"] != true || reply.Attempt != 2 {
		t.Fatalf("= %+v, %v", reply, err)
	}
	if req.ModuleID != "far.away" || req.Root != "root-1" || req.Parent != "call-1" || req.Version != "^2" || req.CallID != "" || req.IdempotencyKey != "" {
		t.Errorf("request = %+v", req)
	}
	if diff := cmp.Diff(map[string]any{"n": int64(1), "_approval_token": "t"}, req.Inputs); diff != "" {
		t.Errorf("inputs did not travel untouched (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"up", "near"}, req.Context.CallChain()); diff != "" {
		t.Errorf("the chain must be the parent's (-want +got):\n%s", diff)
	}
	if req.Context.Identity().ID() != "ana" || req.Context.TraceID() != parent.TraceID() {
		t.Error("identity or trace was lost")
	}
	if req.Budget <= 0 || req.Budget > 30*sec {
		t.Errorf("budget = %v, want what is left of 30s", req.Budget)
	}
	if ran["acl far.away"] || len(notes) != 1 || observed != 1 {
		t.Errorf("on the caller's side: acl %v, middleware %v, observed %d; want each for near only", ran, notes, observed)
	}
}

func TestRemoteSteps(t *testing.T) {
	x := setup{opts: []executor.Option{executor.WithRemote(&remote{invoke: func(context.Context, *contextwire.Request) (*contextwire.Reply, error) {
		return &contextwire.Reply{Output: map[string]any{}}, nil
	}})}}.executor(t)
	_, trace, err := x.CallWithTrace(t.Context(), "far", nil)
	if err != nil {
		t.Fatal(err)
	}
	var ran []string
	for _, s := range trace.Steps {
		if !s.Skipped {
			ran = append(ran, s.Name)
		}
	}
	want := []string{executor.StepContextCreation, executor.StepCallChainGuard, executor.StepModuleLookup, executor.StepExecute, executor.StepReturnResult}
	if diff := cmp.Diff(want, ran); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRemoteErrors(t *testing.T) {
	far := module.Errorf("FAR_ODD", "odd")
	far.Remote, far.Unexecuted = true, true
	tests := []struct {
		name string
		err  error
		want module.Code
	}{
		{"coded", far, "FAR_ODD"},
		{"foreign", errors.New("socket"), module.CodeModuleExecuteError},
		{"nothing", nil, module.CodeInternal},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &remote{invoke: func(context.Context, *contextwire.Request) (*contextwire.Reply, error) { return nil, tt.err }}
			x := setup{modules: []module.Module{fn("near", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
				return module.Call(ctx, "far", nil)
			})}, opts: []executor.Option{executor.WithRemote(r)}}.executor(t)
			_, err := x.Call(t.Context(), "far", nil)
			e := wantCode(t, err, tt.want)
			if tt.name == "coded" && (!e.Remote || !e.Unexecuted) {
				t.Errorf("a direct caller is not told what the owner said: %+v", e)
			}
			_, err = x.Call(t.Context(), "near", nil)
			if e := wantCode(t, err, tt.want); e.Unexecuted {
				t.Error("the outer call claims that it was not started")
			}
		})
	}
}

func TestRemoteCancelAndBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var budget time.Duration
		r := &remote{invoke: func(ctx context.Context, q *contextwire.Request) (*contextwire.Reply, error) {
			budget = q.Budget
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}}
		x := setup{cfg: executor.Config{GlobalTimeout: new(10 * sec)}, opts: []executor.Option{executor.WithRemote(r)}}.executor(t)
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(sec, stop)
		_, err := x.Call(ctx, "far", nil)
		wantCode(t, err, module.CodeExecutionCancelled)
		if budget != 10*sec {
			t.Errorf("budget = %v, want the global timeout", budget)
		}
		ctx, stop = context.WithCancel(t.Context())
		time.AfterFunc(sec, stop)
		_, _ = x.Call(ctx, "far", nil, module.CallTimeout(3*sec))
		if budget != 3*sec {
			t.Errorf("budget = %v, want the call's option", budget)
		}
		over := module.NewContext(module.ContextOptions{GlobalDeadline: time.Now().Add(-sec)})
		budget = -1
		_, err = x.Call(module.WithContext(t.Context(), over), "far", nil)
		if e := wantCode(t, err, module.CodeModuleTimeout); !e.Unexecuted || budget != -1 {
			t.Errorf("a call without time left was sent: %+v", e)
		}
	})
}

func TestRemoteIdentityOption(t *testing.T) {
	var c *module.Context
	r := &remote{invoke: func(_ context.Context, q *contextwire.Request) (*contextwire.Reply, error) {
		c = q.Context
		return &contextwire.Reply{Output: map[string]any{}}, nil
	}}
	x := setup{modules: []module.Module{fn("near", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
		return module.Call(ctx, "far", nil, module.CallIdentity(module.NewIdentity("bot", "agent", nil, nil)))
	})}, opts: []executor.Option{executor.WithRemote(r)}}.executor(t)
	if _, err := x.Call(t.Context(), "near", nil); err != nil {
		t.Fatal(err)
	}
	if c.Identity() == nil || c.Identity().ID() != "bot" || len(c.ChainView()) != 1 {
		t.Errorf("identity %v, chain %v", c.Identity(), c.ChainView())
	}
}

func TestInvokeOwnsOrRefuses(t *testing.T) {
	sent := 0
	r := &remote{invoke: func(context.Context, *contextwire.Request) (*contextwire.Reply, error) { sent++; return nil, nil }}
	x := setup{modules: []module.Module{&mod{desc: module.Descriptor{ID: "m", Version: "1.4.0"}}}, opts: []executor.Option{executor.WithRemote(r)}}.executor(t)
	tests := []struct {
		name       string
		req        contextwire.Request
		want       module.Code
		unexecuted bool
	}{
		{"here", contextwire.Request{ModuleID: "m"}, "", false},
		{"version fits", contextwire.Request{ModuleID: "m", Version: "^1.2"}, "", false},
		{"version does not", contextwire.Request{ModuleID: "m", Version: "^2"}, module.CodeBusVersionMismatch, true},
		{"not here", contextwire.Request{ModuleID: "gone"}, module.CodeModuleNotFound, true},
		{"no id", contextwire.Request{ModuleID: "No"}, module.CodeInvalidModuleID, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := x.Invoke(t.Context(), &tt.req)
			if got := module.CodeOf(err); got != tt.want {
				t.Fatalf("code %q, want %q", got, tt.want)
			}
			if err != nil && module.AsError(err).Unexecuted != tt.unexecuted {
				t.Errorf("unexecuted = %v, want %v", !tt.unexecuted, tt.unexecuted)
			}
		})
	}
	if sent != 0 {
		t.Error("a call that came over the bus was sent on")
	}
}

func TestInvokeCallFactsAndProgress(t *testing.T) {
	var outer, inner module.CallInfo
	x := setup{modules: []module.Module{
		fn("m", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			outer = module.FromContext(ctx).Call()
			module.Progress(ctx, 1, 2, "half")
			return module.Call(ctx, "n", nil)
		}),
		fn("n", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			inner = module.FromContext(ctx).Call()
			module.Progress(ctx, 9, 9, "not the caller's")
			return map[string]any{}, nil
		}),
	}}.executor(t)
	var reports []module.ProgressReport
	_, err := x.Invoke(t.Context(), &contextwire.Request{
		ModuleID: "m", CallID: "c1", Attempt: 3, IdempotencyKey: "k1",
		Progress: func(r module.ProgressReport) { reports = append(reports, r) },
	})
	if err != nil {
		t.Fatal(err)
	}
	want := module.CallInfo{ID: "c1", Attempt: 3, Root: "c1", IdempotencyKey: "k1"}
	if diff := cmp.Diff(want, outer); diff != "" {
		t.Errorf("call facts of a root (-want +got):\n%s", diff)
	}
	if inner != outer {
		t.Errorf("a nested call belongs to another bus call: %+v", inner)
	}
	if diff := cmp.Diff([]module.ProgressReport{{Done: 1, Total: 2, Note: "half"}}, reports); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
}
