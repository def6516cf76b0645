package executor_test

import (
	"context"
	"sync"
	"testing"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

func registryOf(t testing.TB, modules ...module.Module) *registry.Registry {
	t.Helper()
	_, reg := setup{modules: modules}.build(t)
	return reg
}

func TestStrategyRegistry(t *testing.T) {
	// The registry outlives the test, so that every run needs names of its own.
	run := module.NewTraceID()
	name, empty := "audit "+run, "nil "+run
	shared := executor.Internal()
	audit := func() *executor.Strategy { return shared }
	if err := executor.RegisterStrategy(name, audit); err != nil {
		t.Fatal(err)
	}
	if err := executor.RegisterStrategy(empty, func() *executor.Strategy { return nil }); err != nil {
		t.Fatal(err)
	}
	refused := []struct {
		name  string
		build func() *executor.Strategy
	}{{name, audit}, {"", audit}, {"x", nil}, {"standard", audit}}
	for _, bad := range refused {
		wantCode(t, executor.RegisterStrategy(bad.name, bad.build), module.CodeInvalidInput)
	}
	_, err := executor.LookupStrategy(empty)
	wantCode(t, err, module.CodePipelineConfiguration)
	_, err = executor.LookupStrategy("registry_test_gone")
	wantCode(t, err, module.CodeStrategyNotFound)
	if s, err := executor.LookupStrategy("minimal"); err != nil || s.Name() != "minimal" {
		t.Errorf("a preset by name: %v, %v", s, err)
	}

	x := setup{modules: []module.Module{fn("m", echo)}, opts: []executor.Option{executor.WithStrategyName(name)}}.executor(t)
	if _, err := x.Call(t.Context(), "m", nil); err != nil {
		t.Fatal(err)
	}
	listed := func(x *executor.Executor) (first string, count int) {
		list := x.ListStrategies()
		for _, info := range list {
			switch info.Name {
			case name:
				count++
				if info.StepCount != 9 || len(info.StepNames) != 9 || info.Description == "" {
					t.Errorf("info = %+v", info)
				}
			case empty:
				t.Error("a strategy that cannot be built is listed")
			}
		}
		return list[0].Name, count
	}
	if first, n := listed(x); first != name || n != 1 {
		t.Errorf("the running strategy: first %q, listed %d times", first, n)
	}
	if first, n := listed(setup{}.executor(t)); first != "standard" || n != 1 {
		t.Errorf("a registered strategy: first %q, listed %d times", first, n)
	}
	_, err = executor.New(registryOf(t), executor.Config{}, executor.WithStrategyName("registry_test_gone"))
	wantCode(t, err, module.CodeStrategyNotFound)
}

// An explicit strategy outranks a configured one, which outranks the standard one.
func TestStrategyPrecedence(t *testing.T) {
	configured := executor.WithPipeline(map[string]any{"remove": []any{"acl_check"}}, nil)
	tests := []struct {
		name string
		opts []executor.Option
		want string
		n    int
	}{
		{"none", nil, "standard", 11},
		{"configured", []executor.Option{configured}, "standard", 10},
		{"by name", []executor.Option{executor.WithStrategyName("minimal"), configured}, "minimal", 4},
		{"instance", []executor.Option{configured, executor.WithStrategy(executor.Testing())}, "testing", 8},
		{"the later of two", []executor.Option{executor.WithStrategy(executor.Testing()), executor.WithStrategyName("minimal")}, "minimal", 4},
		{"the later of two, turned round", []executor.Option{executor.WithStrategyName("minimal"), executor.WithStrategy(executor.Testing())}, "testing", 8},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			info := setup{opts: tt.opts}.executor(t).Strategy().Info()
			if info.Name != tt.want || info.StepCount != tt.n {
				t.Errorf("running %+v", info)
			}
		})
	}
}

// A strategy may be swapped while calls run; each call keeps the one it began with.
func TestSetStrategy(t *testing.T) {
	x := setup{modules: []module.Module{fn("m", echo)}}.executor(t)
	wantCode(t, x.SetStrategy(nil), module.CodeInvalidInput)
	minimal, standard := executor.Minimal(), executor.Standard()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				_, trace, err := x.CallWithTrace(t.Context(), "m", nil)
				if err != nil || (trace.Strategy == "minimal") != (len(trace.Steps) == 4) {
					t.Errorf("strategy %s, %d steps, %v", trace.Strategy, len(trace.Steps), err)
				}
			}
		})
	}
	for i := range 400 {
		s := minimal
		if i%2 == 0 {
			s = standard
		}
		if err := x.SetStrategy(s); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
}

func TestRunUntilOfTheEngine(t *testing.T) {
	ran := 0
	x := setup{modules: []module.Module{fn("m", func(context.Context, map[string]any) (map[string]any, error) {
		ran++
		return map[string]any{"n": int64(1)}, nil
	})}, opts: []executor.Option{executor.WithRunUntil(func(s module.PipelineState) bool {
		return s.StepName == executor.StepExecute
	})}}.executor(t)
	_, trace, err := x.CallWithTrace(t.Context(), "m", nil)
	if err != nil || ran != 1 || len(trace.Steps) != 8 {
		t.Errorf("ran %d, %d steps, %v", ran, len(trace.Steps), err)
	}
	// Either predicate stops the call.
	out, trace, err := x.CallWithTrace(t.Context(), "m", nil, module.CallUntil(func(s module.PipelineState) bool {
		return s.StepName == executor.StepModuleLookup
	}))
	if err != nil || ran != 1 || len(trace.Steps) != 3 || len(out) != 0 {
		t.Errorf("ran %d, %d steps, %v, %v", ran, len(trace.Steps), out, err)
	}
}
