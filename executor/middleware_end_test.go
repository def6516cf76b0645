package executor_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

type spanKey struct{}

// ender notes how runs end and marks the context of the call.
type ender struct{ ends []string }

func (*ender) Name() string  { return "ender" }
func (*ender) Priority() int { return 900 }

func (*ender) Before(ctx context.Context, call *middleware.Call) (map[string]any, error) {
	call.Derive(context.WithValue(ctx, spanKey{}, call.ModuleID))
	return nil, nil
}

func (e *ender) End(ctx context.Context, call *middleware.Call, err *module.Error) {
	code := module.Code("ok")
	if err != nil {
		code = err.Code
	}
	e.ends = append(e.ends, fmt.Sprintf("%v %s", ctx.Value(spanKey{}), code))
}

// A run ends once for every middleware it entered, whatever ended it.
func TestMiddlewareEnd(t *testing.T) {
	fail := func(c module.Code) func(context.Context, map[string]any) (map[string]any, error) {
		return func(context.Context, map[string]any) (map[string]any, error) { return nil, module.Errorf(c, "no") }
	}
	recoverWith := func(r func(n int) middleware.Recovery) *middleware.Funcs {
		n := 0
		return &middleware.Funcs{Label: "recover", OnFailure: func(context.Context, *middleware.Call, *module.Error) (middleware.Recovery, error) {
			n++
			return r(n), nil
		}}
	}
	for _, tt := range []struct {
		name    string
		run     func(context.Context, map[string]any) (map[string]any, error)
		recover *middleware.Funcs
		want    []string
	}{
		{"success", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			return map[string]any{"marked": ctx.Value(spanKey{})}, nil
		}, nil, []string{"t.m ok"}},
		{"failure", fail(module.CodeModuleExecuteError), nil, []string{"t.m MODULE_EXECUTE_ERROR"}},
		{"cancelled", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			module.FromContext(ctx).Token().Cancel(cancel.Because(cancel.Caller, "", "enough"))
			<-ctx.Done()
			return nil, ctx.Err()
		}, nil, []string{"t.m EXECUTION_CANCELLED"}},
		{"recovered", fail(module.CodeModuleExecuteError), recoverWith(func(int) middleware.Recovery {
			return middleware.Recovery{Output: map[string]any{}}
		}), []string{"t.m ok"}},
		{"run again", fail(module.CodeModuleExecuteError), recoverWith(func(n int) middleware.Recovery {
			if n > 2 {
				return middleware.Recovery{}
			}
			return middleware.Recovery{Retry: map[string]any{}}
		}), []string{"t.m MODULE_EXECUTE_ERROR", "t.m MODULE_EXECUTE_ERROR", "t.m MODULE_EXECUTE_ERROR"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := &ender{}
			mws := []middleware.Middleware{e}
			if tt.recover != nil {
				mws = append(mws, tt.recover)
			}
			x := endExecutor(t, tt.run, mws...)
			out, err := x.Call(t.Context(), "t.m", map[string]any{})
			if diff := cmp.Diff(tt.want, e.ends); diff != "" {
				t.Errorf("ends (-want +got):\n%s\nout %v, err %v", diff, out, err)
			}
			if tt.name == "success" && out["marked"] != "t.m" {
				t.Error("the module does not see the context that a before hook derived")
			}
		})
	}
}

// What was not entered does not end.
func TestMiddlewareEndOnlyWhenEntered(t *testing.T) {
	e := &ender{}
	refuse := middleware.UseBefore("refuse", func(context.Context, *middleware.Call) (map[string]any, error) {
		return nil, module.Errorf(module.CodeInvalidInput, "no")
	})
	rank := 950
	refuse.Rank = &rank
	x := endExecutor(t, func(context.Context, map[string]any) (map[string]any, error) { return map[string]any{}, nil }, e, refuse)
	_, err := x.Call(t.Context(), "t.m", map[string]any{})
	if module.CodeOf(err) != module.CodeInvalidInput || e.ends != nil {
		t.Errorf("err %v, ends %v", err, e.ends)
	}
}

func endExecutor(t *testing.T, run func(context.Context, map[string]any) (map[string]any, error), mws ...middleware.Middleware) *executor.Executor {
	t.Helper()
	return setup{modules: []module.Module{fn("t.m", run)}, opts: []executor.Option{executor.WithMiddleware(mws...)}}.executor(t)
}
