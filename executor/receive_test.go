package executor_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// What is local to the caller's process stays there: the receiving executor makes
// its own token and recomputes the deadline from its own configuration
// (core-executor seed, Distributed cancellation and global_deadline).
func TestReceivedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		theirs := cancel.NewToken()
		sent := module.NewContext(module.ContextOptions{CancelToken: theirs, GlobalDeadline: time.Now().Add(time.Second), Services: "theirs"})
		for _, ct := range []contextwire.ContentType{contextwire.JSON, contextwire.MsgPack} {
			body, err := contextwire.EncodeContext(sent, ct)
			if err != nil {
				t.Fatal(err)
			}
			received, err := contextwire.DecodeContext(body, ct, contextwire.DefaultLimits())
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			x := setup{cfg: executor.Config{GlobalTimeout: new(20 * time.Second)}, modules: []module.Module{
				fn("m", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
					c := module.FromContext(ctx)
					if c.Token() == nil || c.Token() == theirs || c.Token().IsCancelled() {
						t.Errorf("token %p, want a live one of its own", c.Token())
					}
					if want := began.Add(20 * time.Second); !c.GlobalDeadline().Equal(want) {
						t.Errorf("deadline %v, want %v by this executor's limit", c.GlobalDeadline(), want)
					}
					if c.Services() != nil {
						t.Errorf("services %v", c.Services())
					}
					time.Sleep(2 * time.Second) // longer than the sender's deadline
					return map[string]any{}, ctx.Err()
				})}}.executor(t)
			if _, err := x.Invoke(t.Context(), &contextwire.Request{ModuleID: "m", Context: received}); err != nil {
				t.Errorf("%s: %v", ct, err)
			}
			if received.Token() != nil || !received.GlobalDeadline().IsZero() {
				t.Error("the received Context was written")
			}
		}
	})
}

// redactedViews are what a Context shows after one step.
type redactedViews struct {
	Step           string
	Inputs, Output map[string]any
}

// Inputs can be seen redacted from lookup on, anew once hooks replaced them, and
// the output from its validation on.
func TestWhenRedactedViewsAppear(t *testing.T) {
	var views []redactedViews
	s := executor.Standard()
	s.AddStepMiddleware(&stepNotes{after: func(step string, st module.PipelineState) error {
		views = append(views, redactedViews{step, st.Context.RedactedInputs(), st.Context.RedactedOutput()})
		return nil
	}})
	x := setup{opts: []executor.Option{executor.WithStrategy(s), executor.WithMiddleware(middleware.UseBefore("adds",
		func(context.Context, *middleware.Call) (map[string]any, error) {
			return map[string]any{"password": "hunter22", "added": true}, nil
		}))}, modules: []module.Module{
		fn("m", func(context.Context, map[string]any) (map[string]any, error) {
			return map[string]any{"token": "abcdef", "n": int64(1)}, nil
		})}}.executor(t)
	if _, err := x.Call(t.Context(), "m", map[string]any{"password": "hunter22"}); err != nil {
		t.Fatal(err)
	}
	const masked = "***REDACTED***"
	given, replaced := map[string]any{"password": masked}, map[string]any{"password": masked, "added": true}
	output := map[string]any{"token": masked, "n": int64(1)}
	want := []redactedViews{
		{executor.StepContextCreation, nil, nil},
		{executor.StepCallChainGuard, nil, nil},
		{executor.StepModuleLookup, given, nil},
		{executor.StepACLCheck, given, nil},
		{executor.StepApprovalGate, given, nil},
		{executor.StepMiddlewareBefore, given, nil},
		{executor.StepInputValidation, replaced, nil},
		{executor.StepExecute, replaced, nil},
		{executor.StepOutputValidation, replaced, output},
		{executor.StepMiddlewareAfter, replaced, output},
		{executor.StepReturnResult, replaced, output},
	}
	if diff := cmp.Diff(want, views); diff != "" {
		t.Errorf("views (-want +got):\n%s", diff)
	}
}
