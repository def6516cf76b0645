package executor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// hooks renders the hooks of a trace.
func hooks(tr *executor.Trace) []string {
	var out []string
	for _, h := range tr.Hooks {
		s := h.Middleware + " " + h.Hook
		if h.Step != "" {
			s = h.Hook + " " + h.Step
		}
		if h.Replaced {
			s += " replaced"
		}
		if h.Recovery != "" {
			s += " " + h.Recovery
		}
		if h.Err != nil {
			s += " " + string(module.CodeOf(h.Err))
		}
		out = append(out, s)
	}
	return out
}

// A traced call does what the call does, and its trace holds every hook, recovery
// and failure (decision D-19).
func TestTraceHooks(t *testing.T) {
	boom := errors.New("hunter22 is wrong")
	failing := fn("m", func(context.Context, map[string]any) (map[string]any, error) { return nil, boom })
	quiet := func(name string) *middleware.Funcs {
		return &middleware.Funcs{Label: name,
			OnBefore: func(context.Context, *middleware.Call) (map[string]any, error) { return nil, nil },
			OnAfter:  func(context.Context, *middleware.Call, map[string]any) (map[string]any, error) { return nil, nil },
			OnFailure: func(context.Context, *middleware.Call, *module.Error) (middleware.Recovery, error) {
				return middleware.Recovery{}, nil
			}}
	}
	offers := func(r func() middleware.Recovery) *middleware.Funcs {
		return &middleware.Funcs{Label: "offers", OnFailure: func(context.Context, *middleware.Call, *module.Error) (middleware.Recovery, error) {
			return r(), nil
		}}
	}
	retried := 0
	tests := []struct {
		name    string
		m       module.Module
		mws     []middleware.Middleware
		success bool
		code    module.Code
		want    []string
	}{
		{"success", fn("m", echo), []middleware.Middleware{quiet("a"), quiet("b")}, true, "",
			[]string{"a before", "b before", "b after", "a after"}},
		{"failure", failing, []middleware.Middleware{quiet("a"), quiet("b")}, false, module.CodeModuleExecuteError,
			[]string{"a before", "b before", "b on_error", "a on_error"}},
		{"recovered", failing, []middleware.Middleware{quiet("a"), offers(func() middleware.Recovery { return middleware.Recovery{Output: map[string]any{"n": 1}} })}, true, "",
			[]string{"a before", "offers before", "offers on_error output"}},
		{"retried", failing, []middleware.Middleware{offers(func() middleware.Recovery {
			if retried++; retried > 1 {
				return middleware.Recovery{}
			}
			return middleware.Recovery{Retry: map[string]any{}}
		})}, false, module.CodeModuleExecuteError, []string{"offers before", "offers on_error retry", "offers before", "offers on_error"}},
		{"before fails", fn("m", echo), []middleware.Middleware{quiet("a"), &middleware.Funcs{Label: "b",
			OnBefore: func(context.Context, *middleware.Call) (map[string]any, error) { return nil, module.Errorf("NO", "no") }}}, false, "NO",
			[]string{"a before", "b before NO", "b on_error", "a on_error"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x := setup{modules: []module.Module{tt.m}, opts: []executor.Option{executor.WithMiddleware(tt.mws...)}}.executor(t)
			_, tr, err := x.CallWithTrace(t.Context(), "m", nil)
			if got := module.CodeOf(err); got != tt.code || tr.Success != tt.success || module.CodeOf(errOf(tr)) != tt.code {
				t.Errorf("code %q, trace success %v, error %v", got, tr.Success, tr.Error)
			}
			if diff := cmp.Diff(tt.want, hooks(tr)); diff != "" {
				t.Errorf("hooks (-want +got):\n%s", diff)
			}
			if _, err := module.NormalizeMap(tr.Map()); err != nil {
				t.Errorf("the wire form is no json: %v", err)
			}
		})
	}
}

func errOf(tr *executor.Trace) error {
	if tr.Error == nil {
		return nil
	}
	return tr.Error
}

func TestTraceStepHooks(t *testing.T) {
	s := executor.Minimal()
	s.AddStepMiddleware(&stepNotes{failed: func(step string, _ error) (any, bool) { return map[string]any{}, step == executor.StepExecute }})
	x := setup{modules: []module.Module{fn("m", func(context.Context, map[string]any) (map[string]any, error) { return nil, errors.New("x") })},
		opts: []executor.Option{executor.WithStrategy(s)}}.executor(t)
	_, tr, err := x.CallWithTrace(t.Context(), "m", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"before_step context_creation", "after_step context_creation", "before_step module_lookup", "after_step module_lookup",
		"before_step execute", "on_step_error execute output", "after_step execute", "before_step return_result", "after_step return_result",
	}
	if diff := cmp.Diff(want, hooks(tr)); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
}

// The trace travels with the reply, also of a call that failed, and shows nothing
// that may not be seen.
func TestTraceOverTheBus(t *testing.T) {
	leaky := fn("m", func(_ context.Context, in map[string]any) (map[string]any, error) {
		return nil, errors.New("no user with " + in["password"].(string))
	})
	x := setup{modules: []module.Module{leaky, fn("ok", echo)}, opts: []executor.Option{executor.WithMiddleware(
		&middleware.Funcs{Label: "w", OnFailure: func(_ context.Context, c *middleware.Call, _ *module.Error) (middleware.Recovery, error) {
			return middleware.Recovery{}, errors.New("with " + c.Inputs["password"].(string))
		}})}}.executor(t)
	in := map[string]any{"password": "hunter22"}
	reply, err := x.Invoke(t.Context(), &contextwire.Request{ModuleID: "ok", Inputs: in, Trace: true})
	if err != nil || reply.Trace["success"] != true || reply.Trace["error"] != nil || reply.Trace["strategy_name"] != "standard" {
		t.Fatalf("reply %+v, %v", reply, err)
	}
	steps := reply.Trace["steps"].([]any)
	if first := steps[0].(map[string]any); len(steps) != 11 || first["name"] != "context_creation" || first["skipped"] != false ||
		first["duration_ms"].(float64) < 0 || first["decision_point"] != false {
		t.Errorf("steps = %v", steps)
	}
	reply, err = x.Invoke(t.Context(), &contextwire.Request{ModuleID: "m", Inputs: in, Trace: true, Attempt: 3})
	wantCode(t, err, module.CodeModuleExecuteError)
	if reply == nil || reply.Output != nil || reply.Attempt != 3 || reply.Trace["success"] != false {
		t.Fatalf("reply %+v", reply)
	}
	if failed, _ := reply.Trace["error"].(map[string]any); failed["code"] != "MODULE_EXECUTE_ERROR" {
		t.Errorf("error = %v", reply.Trace["error"])
	}
	if hook := reply.Trace["hooks"].([]any)[1].(map[string]any); hook["hook"] != "on_error" || hook["error_code"] == nil {
		t.Errorf("hook = %v", hook)
	}
	if strings.Contains(fmt.Sprint(reply.Trace), "hunter22") {
		t.Errorf("a secret is in the trace: %v", reply.Trace)
	}
	_, tr, _ := x.CallWithTrace(t.Context(), "m", in)
	if err := tr.Hooks[1].Err; err == nil || strings.Contains(err.Error(), "hunter22") {
		t.Errorf("a hook's error in the trace: %v", err)
	}
	if reply, err := x.Invoke(t.Context(), &contextwire.Request{ModuleID: "m", Inputs: in}); reply != nil || err == nil {
		t.Errorf("untraced: %+v, %v", reply, err)
	}
	reply, err = x.Invoke(t.Context(), &contextwire.Request{ModuleID: "No", Trace: true})
	if wantCode(t, err, module.CodeInvalidModuleID); reply == nil || reply.Trace["success"] != false {
		t.Errorf("refused at the door: %+v", reply)
	}
}

// The caller's trace of a remote call asks for the owner's and carries it.
func TestTraceOfARemoteCall(t *testing.T) {
	far := map[string]any{"module_id": "far.m", "success": true}
	var asked bool
	r := &remote{invoke: func(_ context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
		asked = req.Trace
		if req.Inputs["fail"] == true {
			return &contextwire.Reply{Trace: far}, module.Errorf("FAR_FAILED", "no")
		}
		return &contextwire.Reply{Output: map[string]any{}, Trace: far}, nil
	}}
	x := setup{opts: []executor.Option{executor.WithRemote(r), executor.WithACL(decides(acl.Decision{}))}}.executor(t)
	for _, fail := range []bool{false, true} {
		_, tr, err := x.CallWithTrace(t.Context(), "far.m", map[string]any{"fail": fail})
		if (err != nil) != fail || !asked || !cmp.Equal(far, tr.Remote) || !cmp.Equal(far, tr.Map()["remote"]) {
			t.Errorf("asked %v, remote trace %v, %v", asked, tr.Remote, err)
		}
	}
	if _, err := x.Call(t.Context(), "far.m", nil); err != nil || asked {
		t.Errorf("a call without trace asked for one: %v", err)
	}
}

func TestTraceDecision(t *testing.T) {
	sure := 0.75
	x := with(t, &executor.Step{Name: "decide", Run: func(context.Context, *executor.Pipeline) (*executor.StepResult, error) {
		return &executor.StepResult{Action: executor.SkipTo, Target: "execute", Explanation: "known good", Confidence: &sure, Alternatives: []string{"ask"}}, nil
	}}, fn("m", echo))
	_, tr, err := x.CallWithTrace(t.Context(), "m", nil)
	if err != nil {
		t.Fatal(err)
	}
	steps := tr.Map()["steps"].([]any)
	got := steps[3].(map[string]any)
	want := map[string]any{
		"action": "skip_to", "skip_to": "execute", "explanation": "known good", "confidence": 0.75, "alternatives": []any{"ask"},
	}
	if diff := cmp.Diff(want, got["result"]); diff != "" || got["decision_point"] != true {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if over := steps[4].(map[string]any); over["skipped"] != true || over["skip_reason"] != nil {
		t.Errorf("a step that was jumped over: %v", over)
	}
}
