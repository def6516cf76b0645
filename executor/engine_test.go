package executor_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

var update = flag.Bool("update", false, "rewrite the golden files")

// The order of everything that happens to one nested, approved, wrapped call.
func TestGoldenTrace(t *testing.T) {
	var lines []string
	note := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	outer := &mod{desc: module.Descriptor{ID: "outer", Annotations: module.Annotations{RequiresApproval: true}},
		execute: func(ctx context.Context, in map[string]any) (map[string]any, error) {
			note("module outer")
			return module.Call(ctx, "inner", in)
		}}
	inner := fn("inner", func(_ context.Context, in map[string]any) (map[string]any, error) {
		note("module inner")
		return in, nil
	})
	wrap := &middleware.Funcs{Label: "wrap",
		OnBefore: func(_ context.Context, c *middleware.Call) (map[string]any, error) {
			note("before %s", c.ModuleID)
			return nil, nil
		},
		OnAfter: func(_ context.Context, c *middleware.Call, _ map[string]any) (map[string]any, error) {
			note("after %s", c.ModuleID)
			return nil, nil
		}}
	s := executor.Standard()
	s.AddStepMiddleware(&stepNotes{
		before: func(step string, st module.PipelineState) error {
			id := "-"
			if st.Context != nil {
				chain := st.Context.ChainView()
				id = chain[len(chain)-1]
			}
			note("> %s %s", step, id)
			return nil
		},
		after: func(step string, st module.PipelineState) error {
			note("< %s, %d outputs", step, len(st.Outputs))
			return nil
		},
	})
	x := setup{modules: []module.Module{outer, inner}, opts: []executor.Option{
		executor.WithStrategy(s), executor.WithMiddleware(wrap),
		executor.WithACL(executor.AuthorizerFunc(func(_ context.Context, q acl.Query) acl.Decision {
			note("acl %q -> %s", q.CallerID, q.TargetID)
			return acl.Decision{Allowed: true}
		})),
		executor.WithApproval(approval.Callback(func(_ context.Context, r *approval.Request) (*approval.Result, error) {
			note("approval of %s", r.ModuleID)
			return &approval.Result{Status: approval.Approved}, nil
		})),
		executor.WithObserver(executor.ObserverFunc(func(c executor.Completion) { note("observed %s, executed %v", c.ModuleID, c.Executed) })),
	}}.executor(t)
	if _, err := x.Call(t.Context(), "outer", map[string]any{"n": 1}); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(lines, "\n") + "\n"
	path := filepath.Join("testdata", "trace.golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("trace (-want +got):\n%s", diff)
	}
}

type stepNotes struct {
	before func(step string, st module.PipelineState) error
	after  func(step string, st module.PipelineState) error
	failed func(step string, err error) (any, bool)
}

func (s *stepNotes) BeforeStep(step string, st module.PipelineState) error {
	if s.before == nil {
		return nil
	}
	return s.before(step, st)
}

func (s *stepNotes) AfterStep(step string, st module.PipelineState, _ any) error {
	if s.after == nil {
		return nil
	}
	return s.after(step, st)
}

func (s *stepNotes) OnStepError(step string, _ module.PipelineState, err error) (any, bool) {
	if s.failed == nil {
		return nil, false
	}
	return s.failed(step, err)
}

// with builds an executor whose strategy has one more step after module_lookup.
func with(t *testing.T, step *executor.Step, modules ...module.Module) *executor.Executor {
	t.Helper()
	s := executor.Standard()
	if err := s.InsertAfter(executor.StepModuleLookup, step); err != nil {
		t.Fatal(err)
	}
	return setup{modules: modules, opts: []executor.Option{executor.WithStrategy(s)}}.executor(t)
}

func TestCustomSteps(t *testing.T) {
	boom := errors.New("boom")
	tests := []struct {
		name  string
		step  executor.Step
		want  module.Code
		skips []string // jumped over or not matching
	}{
		{"fails", executor.Step{Run: func(context.Context, *executor.Pipeline) (*executor.StepResult, error) { return nil, boom }}, module.CodeModuleExecuteError, nil},
		{"fails, ignored", executor.Step{IgnoreErrors: true, Run: func(context.Context, *executor.Pipeline) (*executor.StepResult, error) { return nil, boom }}, "", nil},
		{"cancels, not ignored", executor.Step{IgnoreErrors: true, Run: func(context.Context, *executor.Pipeline) (*executor.StepResult, error) {
			return nil, module.Errorf(module.CodeExecutionCancelled, "stop")
		}}, module.CodeExecutionCancelled, nil},
		{"panics", executor.Step{Run: func(context.Context, *executor.Pipeline) (*executor.StepResult, error) { panic("x") }}, module.CodeInternal, nil},
		{"aborts", executor.Step{Run: func(context.Context, *executor.Pipeline) (*executor.StepResult, error) {
			return &executor.StepResult{Action: executor.Abort, Explanation: "enough"}, nil
		}}, module.CodePipelineAbort, nil},
		{"skips ahead", executor.Step{Run: func(context.Context, *executor.Pipeline) (*executor.StepResult, error) {
			return &executor.StepResult{Action: executor.SkipTo, Target: executor.StepExecute, Confidence: new(0.5)}, nil
		}}, "", []string{"acl_check", "approval_gate", "middleware_before", "input_validation"}},
		{"skips back", executor.Step{Run: func(context.Context, *executor.Pipeline) (*executor.StepResult, error) {
			return &executor.StepResult{Action: executor.SkipTo, Target: executor.StepContextCreation}, nil
		}}, module.CodeStepNotFound, nil},
		{"matches", executor.Step{MatchModules: []string{"a.*", "m"}, Run: func(context.Context, *executor.Pipeline) (*executor.StepResult, error) { return nil, boom }}, module.CodeModuleExecuteError, nil},
		{"does not match", executor.Step{MatchModules: []string{"a.*"}, Run: func(context.Context, *executor.Pipeline) (*executor.StepResult, error) { return nil, boom }}, "", []string{"custom"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.step.Name = "custom"
			x := with(t, &tt.step, fn("m", echo))
			_, errCall := x.Call(t.Context(), "m", nil)
			_, trace, err := x.CallWithTrace(t.Context(), "m", nil)
			if got := module.CodeOf(err); got != tt.want || module.CodeOf(errCall) != got {
				t.Fatalf("Call %q, with trace %q, want %q", module.CodeOf(errCall), got, tt.want)
			}
			var skipped []string
			for _, s := range trace.Steps {
				if s.Skipped {
					skipped = append(skipped, s.Name)
				}
				if s.DecisionPoint != (tt.name == "skips ahead" && s.Name == "custom") {
					t.Errorf("step %s: decision point %v", s.Name, s.DecisionPoint)
				}
				if (s.SkipReason == "error_ignored") != (tt.name == "fails, ignored" && s.Name == "custom") {
					t.Errorf("step %s: reason %q", s.Name, s.SkipReason)
				}
			}
			if !slices.Equal(skipped, tt.skips) || trace.Success != (err == nil) || trace.Strategy != "standard" {
				t.Errorf("skipped %v, want %v; trace %+v", skipped, tt.skips, trace)
			}
			if err != nil {
				wantStep(t, err, "custom")
				last := trace.Steps[len(trace.Steps)-1]
				if last.Name != "custom" {
					t.Errorf("steps ran after the failure: %s", last.Name)
				}
			}
		})
	}
}

func TestStepTimeout(t *testing.T) {
	tests := []struct {
		name  string
		run   func(ctx context.Context) error
		want  module.Code
		after time.Duration
	}{
		{"in time", func(context.Context) error {
			time.Sleep(10 * time.Millisecond) //archtest:real-time not real: every use is inside a bubble
			return nil
		}, "", 10 * time.Millisecond},
		{"obeys", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, module.CodeModuleTimeout, 100 * time.Millisecond},
		{"stubborn", func(context.Context) error {
			time.Sleep(time.Hour) //archtest:real-time not real: every use is inside a bubble
			return nil
		}, module.CodeModuleTimeout, 110 * time.Millisecond},
		{"panics", func(context.Context) error { panic("x") }, module.CodeInternal, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := with(t, &executor.Step{Name: "slow", TimeoutMS: 100, Run: func(ctx context.Context, p *executor.Pipeline) (*executor.StepResult, error) {
					err := tt.run(ctx)
					p.SetInputs(map[string]any{"set": true})
					return nil, err
				}}, fn("m", echo))
				began := time.Now()
				out, err := x.Call(t.Context(), "m", nil)
				if got := module.CodeOf(err); got != tt.want || time.Since(began) != tt.after {
					t.Fatalf("code %q after %v, want %q after %v", got, time.Since(began), tt.want, tt.after)
				}
				if err == nil && out["set"] != true {
					t.Error("what the step did is lost")
				}
				if err := x.Settle(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// The built-in steps obey a limit of their own, too.
func TestBuiltinStepTimeout(t *testing.T) {
	s := executor.Standard()
	step, _ := s.Step(executor.StepExecute)
	timed := *step
	timed.TimeoutMS = 100
	if err := s.ConfigureStep(executor.StepExecute, &timed); err != nil {
		t.Fatal(err)
	}
	for _, obeys := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			x := setup{modules: []module.Module{sleeper("m", time.Hour, obeys, nil)}, opts: []executor.Option{executor.WithStrategy(s)}}.executor(t)
			began := time.Now()
			_, err := x.Call(t.Context(), "m", nil)
			e := wantCode(t, err, module.CodeModuleTimeout)
			if took := time.Since(began); took > 110*time.Millisecond || e.Details["step"] != executor.StepExecute {
				t.Errorf("after %v, details %v", took, e.Details)
			}
			_ = x.Settle(t.Context())
		})
	}
}

func TestRunUntil(t *testing.T) {
	ran := false
	x := setup{modules: []module.Module{fn("m", func(context.Context, map[string]any) (map[string]any, error) {
		ran = true
		return map[string]any{"hit": true}, nil
	})}, opts: []executor.Option{executor.WithMiddleware(middleware.UseAfter("late", func(context.Context, *middleware.Call, map[string]any) (map[string]any, error) {
		t.Error("a step after the end ran")
		return nil, nil
	}))}}.executor(t)
	out, err := x.Call(t.Context(), "m", nil, module.CallUntil(func(s module.PipelineState) bool {
		o, _ := s.Outputs[executor.StepExecute].(map[string]any)
		return o["hit"] == true
	}))
	if err != nil || out["hit"] != true {
		t.Errorf("stopped after execute: %v, %v", out, err)
	}
	ran = false
	var names []string
	out, err = x.Call(t.Context(), "m", nil, module.CallUntil(func(s module.PipelineState) bool {
		names = append(names, s.StepName)
		return s.StepName == executor.StepModuleLookup
	}))
	if err != nil || out == nil || len(out) != 0 || ran {
		t.Errorf("stopped after lookup: %v, %v, module ran %v", out, err, ran)
	}
	if diff := cmp.Diff(eleven()[:3], names); diff != "" {
		t.Errorf("asked after (-want +got):\n%s", diff)
	}
	_, err = x.Call(t.Context(), "m", nil, module.CallUntil(func(module.PipelineState) bool { panic("x") }))
	wantCode(t, err, module.CodeInternal)
}

func TestStepMiddleware(t *testing.T) {
	refuse := module.Errorf("NO_STEP", "no")
	tests := []struct {
		name   string
		mw     *stepNotes
		fails  bool // module
		want   module.Code
		output map[string]any
	}{
		{"before fails", &stepNotes{before: func(step string, _ module.PipelineState) error {
			if step == executor.StepExecute {
				return refuse
			}
			return nil
		}}, false, module.CodeMiddlewareChain, nil},
		{"after fails", &stepNotes{after: func(step string, _ module.PipelineState) error {
			if step == executor.StepExecute {
				return refuse
			}
			return nil
		}}, false, "NO_STEP", nil},
		{"recovers execute", &stepNotes{failed: func(step string, _ error) (any, bool) {
			return map[string]any{"made": "up"}, step == executor.StepExecute
		}}, true, "", map[string]any{"made": "up"}},
		{"recovers nothing", &stepNotes{failed: func(string, error) (any, bool) { return nil, false }}, true, module.CodeModuleExecuteError, nil},
		{"panics in recovery", &stepNotes{failed: func(string, error) (any, bool) { panic("x") }}, true, module.CodeModuleExecuteError, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := executor.Standard()
			s.AddStepMiddleware(tt.mw)
			x := setup{modules: []module.Module{fn("m", func(context.Context, map[string]any) (map[string]any, error) {
				if tt.fails {
					return nil, errors.New("boom")
				}
				return map[string]any{}, nil
			})}, opts: []executor.Option{executor.WithStrategy(s)}}.executor(t)
			out, err := x.Call(t.Context(), "m", nil)
			if got := module.CodeOf(err); got != tt.want {
				t.Fatalf("code %q, want %q (%v)", got, tt.want, err)
			}
			if diff := cmp.Diff(tt.output, out); diff != "" && tt.output != nil {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

// An observer of steps cannot make up what a gate decides.
func TestStepMiddlewareCannotOpenAGate(t *testing.T) {
	s := executor.Standard()
	s.AddStepMiddleware(&stepNotes{failed: func(string, error) (any, bool) { return map[string]any{}, true }})
	x := setup{modules: []module.Module{fn("m", echo)}, opts: []executor.Option{
		executor.WithStrategy(s), executor.WithACL(decides(acl.Decision{})),
	}}.executor(t)
	_, err := x.Call(t.Context(), "m", nil)
	wantCode(t, err, module.CodeACLDenied)
}
