package executor_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

const card = "4111-1111-2222-3333"

var errCause = errors.New("declined")

func payer(f func(in map[string]any) error) *mod {
	return &mod{
		desc: module.Descriptor{ID: "pay", InputSchema: object(map[string]any{"card": map[string]any{"type": "string", "x-sensitive": true}})},
		execute: func(_ context.Context, in map[string]any) (map[string]any, error) {
			return nil, f(in)
		},
	}
}

// Whatever an error of a module says, the sensitive inputs of its call do not
// leave with it.
func TestErrorsAreScrubbed(t *testing.T) {
	tests := []struct {
		name string
		fail func(in map[string]any) error
	}{
		{"message", func(in map[string]any) error { return fmt.Errorf("card %s declined", in["card"]) }},
		{"coded message", func(in map[string]any) error { return module.Errorf("PAY_NO", "card %s declined", in["card"]) }},
		{"cause", func(in map[string]any) error {
			return module.Wrap("PAY_NO", fmt.Errorf("gateway said %q", in["card"]), "declined")
		}},
		{"details", func(in map[string]any) error {
			return module.Errorf("PAY_NO", "declined").WithDetails(map[string]any{"deep": []any{map[string]any{"was": in["card"]}}, "odd": struct{ C any }{in["card"]}})
		}},
		{"guidance", func(in map[string]any) error {
			e := module.Errorf("PAY_NO", "declined")
			e.AIGuidance, e.Suggestion = fmt.Sprint("use another than ", in["card"]), fmt.Sprint("not ", in["card"])
			return e
		}},
		{"number in details", func(map[string]any) error {
			return module.Errorf("PAY_NO", "declined").WithDetails(map[string]any{"pin": int64(987654)})
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var seen *module.Error
			spy := &middleware.Funcs{Label: "spy", OnFailure: func(_ context.Context, _ *middleware.Call, err *module.Error) (middleware.Recovery, error) {
				seen = err
				return middleware.Recovery{}, nil
			}}
			x := setup{modules: []module.Module{payer(tt.fail)}, opts: []executor.Option{executor.WithMiddleware(spy)}}.executor(t)
			_, err := x.Call(t.Context(), "pay", map[string]any{"card": card, "password": 987654})
			e := module.AsError(err)
			if e == nil {
				t.Fatalf("no coded error in %v", err)
			}
			for _, text := range []string{err.Error(), fmt.Sprint(e.Map()), e.CauseText(), fmt.Sprint(seen.Map())} {
				if strings.Contains(text, card) || strings.Contains(text, "987654") {
					t.Errorf("leaks: %s", text)
				}
			}
		})
	}
}

func TestCleanErrorsKeepTheirCause(t *testing.T) {
	x := setup{modules: []module.Module{payer(func(map[string]any) error { return fmt.Errorf("bank: %w", errCause) })}}.executor(t)
	_, err := x.Call(t.Context(), "pay", map[string]any{"card": card})
	if !errors.Is(err, errCause) {
		t.Errorf("%v lost its cause though nothing had to be scrubbed", err)
	}
}

func TestPanics(t *testing.T) {
	tests := []struct {
		name string
		f    func(in map[string]any) error
	}{
		{"panic", func(in map[string]any) error { panic(fmt.Sprint("card ", in["card"])) }},
		{"nil map", func(map[string]any) error { var m map[string]any; m["a"] = 1; return nil }}, //nolint:govet,staticcheck // the panic is the point
		{"goroutine exits", func(map[string]any) error { runtime.Goexit(); return nil }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := &journal{}
			x, reg := setup{log: j, modules: []module.Module{payer(tt.f)}}.build(t)
			_, err := x.Call(t.Context(), "pay", map[string]any{"card": card})
			e := wantCode(t, err, module.CodeModuleExecuteError)
			if text := fmt.Sprint(err, e.Map(), j.String()); strings.Contains(text, card) {
				t.Errorf("leaks: %s", text)
			}
			if strings.Contains(fmt.Sprint(e.Map()), ".go:") || (tt.name != "goroutine exits" && j.count("stack=") != 1) {
				t.Errorf("the stack belongs in the log only: %v", e.Map())
			}
			if entry, _ := reg.Get("pay"); entry.InFlight() != 0 || x.Debt() != 0 {
				t.Error("the call is still counted")
			}
		})
	}
}

func TestRedactedViews(t *testing.T) {
	var in, out map[string]any
	m := &mod{desc: module.Descriptor{ID: "m"}, execute: func(ctx context.Context, _ map[string]any) (map[string]any, error) {
		in = module.FromContext(ctx).RedactedInputs()
		return map[string]any{"token": "abcdef", "n": 1}, nil
	}}
	x := setup{modules: []module.Module{m}, opts: []executor.Option{executor.WithObserver(executor.ObserverFunc(func(c executor.Completion) {
		out = c.Output()
	}))}}.executor(t)
	got, err := x.Call(t.Context(), "m", map[string]any{"password": "hunter22", "a": 1})
	if err != nil {
		t.Fatal(err)
	}
	if in["password"] != "***REDACTED***" || in["a"] != int64(1) {
		t.Errorf("redacted inputs %v", in)
	}
	if out["token"] != "***REDACTED***" || got["token"] != "abcdef" {
		t.Errorf("redacted output %v, output %v", out, got)
	}
}
