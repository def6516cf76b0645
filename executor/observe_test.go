package executor_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/module"
)

func TestObserver(t *testing.T) {
	tests := []struct {
		name     string
		m        *mod
		deny     bool
		cancel   bool
		code     module.Code
		executed bool
		left     bool
	}{
		{"success", fn("m", echo), false, false, "", true, false},
		{"denial", fn("m", echo), true, false, module.CodeACLDenied, false, false},
		{"cancelled before", fn("m", echo), false, true, module.CodeExecutionCancelled, false, false},
		{"timeout", sleeper("m", time.Hour, true, new(sec)), false, false, module.CodeModuleTimeout, true, false},
		{"abandoned", sleeper("m", time.Hour, false, new(sec)), false, false, module.CodeModuleTimeout, true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got []executor.Completion
				x := setup{modules: []module.Module{tt.m}, opts: []executor.Option{
					executor.WithACL(decides(acl.Decision{Allowed: !tt.deny})),
					executor.WithObserver(executor.ObserverFunc(func(c executor.Completion) { got = append(got, c) })),
				}}.executor(t)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				if tt.cancel {
					stop()
				}
				_, err := x.Invoke(ctx, &contextwire.Request{ModuleID: "m", CallID: "c", Attempt: 2, Inputs: map[string]any{"password": "hunter22"}})
				if module.CodeOf(err) != tt.code || len(got) != 1 {
					t.Fatalf("code %q, %d completions", module.CodeOf(err), len(got))
				}
				c := got[0]
				if (c.Err == nil) != (tt.code == "") || (c.Err != nil && c.Err.Code != tt.code) || c.Executed != tt.executed || c.Abandoned != tt.left ||
					c.ModuleID != "m" || c.Context.Call().ID != "c" || c.Context.Call().Attempt != 2 || c.Started.IsZero() {
					t.Errorf("completion %+v", c)
				}
				if tt.code == "" && (c.Descriptor == nil || c.Inputs()["password"] != "***REDACTED***" || c.Output()["password"] != "***REDACTED***") {
					t.Errorf("views: %v, %v", c.Inputs(), c.Output())
				}
				if tt.name == "timeout" && c.Duration != sec {
					t.Errorf("duration %v", c.Duration)
				}
				_ = x.Settle(t.Context())
			})
		})
	}
}

func TestObserverPanicIsContained(t *testing.T) {
	x := setup{modules: []module.Module{fn("m", echo)}, opts: []executor.Option{
		executor.WithObserver(executor.ObserverFunc(func(executor.Completion) { panic("x") })),
	}}.executor(t)
	if _, err := x.Call(t.Context(), "m", nil); err != nil {
		t.Errorf("the call failed with its observer: %v", err)
	}
}

func TestObserverOfUnknownModules(t *testing.T) {
	n := 0
	x := setup{opts: []executor.Option{executor.WithObserver(executor.ObserverFunc(func(executor.Completion) { n++ }))}}.executor(t)
	_, _ = x.Call(t.Context(), "gone", nil)
	if n != 0 {
		t.Error("a module that nobody owns was reported")
	}
}
