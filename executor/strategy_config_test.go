package executor_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/module"
)

type section = map[string]any

func entry(kv ...any) section {
	m := section{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i].(string)] = kv[i+1]
	}
	return m
}

// stepTypes knows noop, which counts its configurations, and types that fail.
func stepTypes(t *testing.T, seen *[]map[string]any) *executor.StepTypes {
	t.Helper()
	types := &executor.StepTypes{}
	for name, f := range map[string]executor.StepFactory{
		"noop": func(config map[string]any) (*executor.Step, error) {
			if seen != nil {
				*seen = append(*seen, config)
			}
			return &executor.Step{Run: nop, Removable: true}, nil
		},
		"needy": func(map[string]any) (*executor.Step, error) {
			return &executor.Step{Run: nop, Requires: []string{"gold"}}, nil
		},
		"acl":    func(map[string]any) (*executor.Step, error) { return executor.ACLStep(nil), nil },
		"broken": func(map[string]any) (*executor.Step, error) { return nil, errors.New("no key") },
		"panics": func(map[string]any) (*executor.Step, error) { panic("x") },
		"empty":  func(map[string]any) (*executor.Step, error) { return nil, nil },
	} {
		if err := types.Register(name, f); err != nil {
			t.Fatal(err)
		}
	}
	return types
}

func TestStrategyFromConfig(t *testing.T) {
	put := func(after string, names ...string) []string {
		list := eleven()
		return slices.Insert(list, slices.Index(list, after)+1, names...)
	}
	tests := []struct {
		name string
		cfg  section
		code module.Code
		says []string // in the message
		want []string // steps; nil: all eleven
	}{
		{name: "nothing"},
		{name: "empty", cfg: section{}},
		{name: "nulls", cfg: section{"remove": nil, "configure": nil, "steps": nil}},
		{name: "unknown sections", cfg: section{"removes": nil, "step": nil, "remove": []any{"execute"}},
			code: module.CodePipelineConfiguration, says: []string{`"removes"`, `"step"`}},

		{name: "remove", cfg: section{"remove": []any{"output_validation", "acl_check"}}, want: without("output_validation", "acl_check")},
		{name: "remove unknown ones", cfg: section{"remove": []any{"x", "acl_check", "y"}},
			code: module.CodePipelineConfiguration, says: []string{`"x"`, `"y"`}},
		{name: "remove twice", cfg: section{"remove": []any{"acl_check", "acl_check"}}, code: module.CodePipelineConfiguration, says: []string{"acl_check"}},
		{name: "remove a fixed one", cfg: section{"remove": []any{"execute"}}, code: module.CodeStepNotRemovable, says: []string{"execute"}},
		{name: "remove is no list", cfg: section{"remove": "execute"}, code: module.CodePipelineConfiguration, says: []string{"remove"}},
		{name: "remove holds a number", cfg: section{"remove": []any{int64(1)}}, code: module.CodePipelineConfiguration, says: []string{"remove"}},

		{name: "configure", cfg: section{"configure": section{"input_validation": entry("ignore_errors", true)}}},
		{name: "configure a fixed one", cfg: section{"configure": section{"execute": entry("timeout_ms", int64(50))}}},
		{name: "configure after remove", cfg: section{"remove": []any{"acl_check"}, "configure": section{"acl_check": entry("timeout_ms", 5)}},
			code: module.CodePipelineConfiguration, says: []string{"acl_check"}},
		{name: "every wrong key is named", cfg: section{"configure": section{
			"input_validation": entry("ignore_error", true, "requires", []any{"context"}),
			"nonexistent_step": entry("timeout_ms", 500), "execute": entry("handler", "a:b"), "acl_check": entry("ignore_errors", true),
		}}, code: module.CodePipelineConfiguration, says: []string{"ignore_error", "requires", "nonexistent_step", "handler", "execute", "acl_check", "ignore_errors"}},
		{name: "configure is no map", cfg: section{"configure": []any{}}, code: module.CodePipelineConfiguration, says: []string{"configure"}},
		{name: "wrong types", cfg: section{"configure": section{
			"execute":          entry("timeout_ms", "5"),
			"input_validation": entry("pure", "yes", "ignore_errors", 1, "match_modules", "a.*", "timeout_ms", 1.5),
			"module_lookup":    entry("timeout_ms", -1), "call_chain_guard": 7,
		}}, code: module.CodePipelineConfiguration,
			says: []string{"execute: timeout_ms", "pure", "ignore_errors", "match_modules", "input_validation: timeout_ms", "module_lookup: timeout_ms", "call_chain_guard"}},

		{name: "gate: acl ignore_errors", cfg: section{"configure": section{"acl_check": entry("ignore_errors", true)}},
			code: module.CodePipelineConfiguration, says: []string{"acl_check", "ignore_errors"}},
		{name: "gate: acl match_modules", cfg: section{"configure": section{"acl_check": entry("match_modules", []any{})}},
			code: module.CodePipelineConfiguration, says: []string{"acl_check", "match_modules"}},
		{name: "gate: approval ignore_errors", cfg: section{"configure": section{"approval_gate": entry("ignore_errors", true)}},
			code: module.CodePipelineConfiguration, says: []string{"approval_gate", "ignore_errors"}},
		{name: "gate: approval match_modules", cfg: section{"configure": section{"approval_gate": entry("match_modules", []string{"a.*"})}},
			code: module.CodePipelineConfiguration, says: []string{"approval_gate", "match_modules"}},
		{name: "gate: approval pure", cfg: section{"configure": section{"approval_gate": entry("pure", true)}},
			code: module.CodePipelineConfiguration, says: []string{"approval_gate", "pure"}},
		{name: "gate: defaults and time", cfg: section{"configure": section{
			"acl_check":     entry("ignore_errors", false, "match_modules", nil, "pure", true, "timeout_ms", 500),
			"approval_gate": entry("ignore_errors", false, "pure", false, "timeout_ms", 30000.0),
		}}},
		{name: "gate: inserted one", cfg: section{"steps": []any{entry("name", "second_acl", "type", "acl", "after", "acl_check", "ignore_errors", true)}},
			code: module.CodePipelineConfiguration, says: []string{"second_acl", "ignore_errors"}},

		{name: "steps", cfg: section{"steps": []any{
			entry("name", "a", "type", "noop", "after", "execute"),
			entry("name", "b", "type", "noop", "before", "a", "config", entry("k", 1)),
			entry("name", "c", "type", "noop", "after", "a", "before", "context_creation"),
		}}, want: put("execute", "b", "a", "c")},
		{name: "steps: taken name", cfg: section{"steps": []any{entry("name", "execute", "type", "noop", "after", "execute")}}, code: module.CodeStepNameDuplicate},
		{name: "steps: name of an earlier one", cfg: section{"steps": []any{
			entry("name", "a", "type", "noop", "after", "execute"), entry("name", "a", "type", "noop", "after", "execute")}}, code: module.CodeStepNameDuplicate},
		{name: "steps: name of a removed one", cfg: section{"remove": []any{"acl_check"},
			"steps": []any{entry("name", "acl_check", "type", "noop", "after", "module_lookup")}}, want: eleven()},
		{name: "steps: unknown keys, before anything is built", cfg: section{"steps": []any{
			entry("name", "a", "type", "panics", "after", "execute", "tiemout_ms", 5000),
			entry("name", "b", "type", "noop", "after", "execute", "requires", []any{}),
		}}, code: module.CodePipelineConfiguration, says: []string{"tiemout_ms", "requires"}},
		{name: "steps: handler", cfg: section{"steps": []any{entry("name", "a", "handler", "m:f", "after", "execute")}}, code: module.CodePipelineHandler, says: []string{`"a"`}},
		{name: "steps: handler and type", cfg: section{"steps": []any{entry("name", "a", "type", "noop", "handler", "m:f", "after", "execute")}}, code: module.CodePipelineHandler},
		{name: "steps: incomplete", cfg: section{"steps": []any{entry("type", "noop", "after", "execute"), entry("name", "b", "after", "execute"),
			entry("name", "c", "type", "noop"), entry("name", "d", "type", "gone", "after", "execute"), "e"}},
			code: module.CodePipelineConfiguration, says: []string{"steps[0]: name", `"b": type`, `"c": neither`, `"gone"`, "steps[4] is not a map"}},
		{name: "steps: unknown anchor", cfg: section{"steps": []any{entry("name", "a", "type", "noop", "after", "nowhere")}},
			code: module.CodePipelineConfiguration, says: []string{"nowhere"}},
		{name: "steps: wrong types", cfg: section{"steps": []any{entry("name", 1, "type", 2, "after", 3, "config", 4)}},
			code: module.CodePipelineConfiguration, says: []string{"name", "type", "after", "config"}},
		{name: "steps: needs what nobody gives", cfg: section{"steps": []any{entry("name", "a", "type", "needy", "after", "execute")}},
			code: module.CodePipelineDependency, says: []string{"gold"}},
		{name: "steps: factory fails", cfg: section{"steps": []any{entry("name", "a", "type", "broken", "after", "execute")}},
			code: module.CodePipelineConfiguration, says: []string{`"a"`, "no key"}},
		{name: "steps: factory panics", cfg: section{"steps": []any{entry("name", "a", "type", "panics", "after", "execute")}}, code: module.CodePipelineConfiguration},
		{name: "steps: factory makes nothing", cfg: section{"steps": []any{entry("name", "a", "type", "empty", "after", "execute")}}, code: module.CodePipelineConfiguration},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := executor.StrategyFromConfig(tt.cfg, stepTypes(t, nil))
			if got := module.CodeOf(err); got != tt.code {
				t.Fatalf("code %q, want %q (%v)", got, tt.code, err)
			}
			for _, text := range tt.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q does not name %s", err, text)
				}
			}
			_, viaNew := executor.New(registryOf(t), executor.Config{}, executor.WithPipeline(tt.cfg, stepTypes(t, nil)), executor.WithLogger((&journal{}).logger()))
			if got := module.CodeOf(viaNew); got != tt.code {
				t.Errorf("New says %q", got)
			}
			if err != nil {
				return
			}
			want := tt.want
			if want == nil {
				want = eleven()
			}
			if diff := cmp.Diff(want, s.StepNames()); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConfiguredFieldsReachTheStep(t *testing.T) {
	var seen []map[string]any
	s, err := executor.StrategyFromConfig(section{
		"configure": section{"input_validation": entry("match_modules", []any{"executor.*"}, "ignore_errors", true, "pure", false, "timeout_ms", uint64(5000))},
		"steps":     []any{entry("name", "probe", "type", "noop", "after", "execute", "config", entry("k", "v"), "match_modules", []any{"a.*"}, "pure", true, "timeout_ms", 7)},
	}, stepTypes(t, &seen))
	if err != nil {
		t.Fatal(err)
	}
	step, _ := s.Step("input_validation")
	if !slices.Equal(step.MatchModules, []string{"executor.*"}) || !step.IgnoreErrors || step.Pure || step.TimeoutMS != 5000 ||
		step.Replaceable != true || len(step.Requires) != 1 {
		t.Errorf("configured step = %+v", step)
	}
	step, _ = s.Step("probe")
	if !slices.Equal(step.MatchModules, []string{"a.*"}) || !step.Pure || step.TimeoutMS != 7 || !step.Removable {
		t.Errorf("inserted step = %+v", step)
	}
	if diff := cmp.Diff([]map[string]any{{"k": "v"}}, seen); diff != "" {
		t.Errorf("factory got (-want +got):\n%s", diff)
	}
	untouched, _ := executor.Standard().Step("input_validation")
	if untouched.IgnoreErrors || !untouched.Pure {
		t.Error("configuring changed the built-in step itself")
	}
}

func TestStepTypes(t *testing.T) {
	types := stepTypes(t, nil)
	noop := func(map[string]any) (*executor.Step, error) { return nil, nil }
	for name, f := range map[string]executor.StepFactory{"noop": noop, "": noop, "x": nil} {
		wantCode(t, types.Register(name, f), module.CodeInvalidInput)
	}
	if diff := cmp.Diff([]string{"acl", "broken", "empty", "needy", "noop", "panics"}, types.Names()); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	types.MaxNameLength, types.MaxTimeoutMS = 4, 100
	_, err := executor.StrategyFromConfig(section{
		"configure": section{"execute": entry("timeout_ms", 101)},
	}, types)
	wantCode(t, err, module.CodePipelineConfiguration)
	_, err = executor.StrategyFromConfig(section{
		"configure": section{"execute": entry("timeout_ms", 100)},
		"steps":     []any{entry("name", "fives", "type", "noop", "after", "execute")},
	}, types)
	wantCode(t, err, module.CodePipelineConfiguration)
	if _, err := executor.StrategyFromConfig(section{"steps": []any{entry("name", "four", "type", "noop", "after", "execute")}}, types); err != nil {
		t.Error(err)
	}
	_, err = executor.StrategyFromConfig(section{"steps": []any{entry("name", "a", "type", "noop", "after", "execute")}}, nil)
	wantCode(t, err, module.CodePipelineConfiguration)
}

// A configuration that takes a gate away is obeyed and noticed, once.
func TestRemovedGateIsNoticed(t *testing.T) {
	j := &journal{}
	section := section{"remove": []any{"acl_check", "output_validation"}}
	x := setup{log: j, modules: []module.Module{fn("m", echo)}, opts: []executor.Option{
		executor.WithPipeline(section, nil), executor.WithACL(decides(acl.Decision{}))}}.executor(t)
	for range 2 {
		if _, err := x.Call(t.Context(), "m", nil); err != nil {
			t.Fatal(err)
		}
	}
	if j.count("removes a step that protects") != 1 || j.count("step=acl_check") != 1 {
		t.Errorf("log:\n%s", j)
	}
	if err := x.SetStrategy(x.Strategy()); err != nil || j.count("removes a step that protects") != 1 {
		t.Errorf("noticed again: %v", err)
	}
}

// Configured metadata is honoured: ignored failures, modules that do not match,
// steps that are not pure.
func TestConfiguredSteps(t *testing.T) {
	strict := fn("m", echo)
	strict.desc.InputSchema = object(map[string]any{"n": map[string]any{"type": "integer"}}, "n")
	over := func(fields section) *executor.Executor {
		return setup{modules: []module.Module{strict}, opts: []executor.Option{executor.WithPipeline(
			section{"configure": section{"input_validation": fields}}, nil)}}.executor(t)
	}
	_, err := over(entry()).Call(t.Context(), "m", nil)
	wantCode(t, err, module.CodeSchemaValidation)
	x := over(entry("ignore_errors", true))
	out, trace, err := x.CallWithTrace(t.Context(), "m", map[string]any{"n": "x"})
	if err != nil || out["n"] != "x" {
		t.Fatalf("ignored failure: %v, %v", out, err)
	}
	if s := trace.Steps[6]; s.SkipReason != "error_ignored" || s.Skipped || s.Error != module.CodeSchemaValidation {
		t.Errorf("trace of the ignored step = %+v", s)
	}
	// Its output is absent for whoever looks.
	_, err = x.Call(t.Context(), "m", nil, module.CallUntil(func(s module.PipelineState) bool {
		if s.StepName != executor.StepExecute {
			return false
		}
		if v, there := s.Outputs[executor.StepInputValidation]; !there || v != nil {
			t.Errorf("output of the ignored step = %v, %v", v, there)
		}
		return true
	}))
	if err != nil {
		t.Error(err)
	}
	if _, err := over(entry("match_modules", []any{"other.*"})).Call(t.Context(), "m", nil); err != nil {
		t.Errorf("a step of other modules ran: %v", err)
	}
	if r := over(entry("pure", false)).Validate(t.Context(), "m", nil); !r.Valid || slices.Contains(verdicts(r), "schema") {
		t.Errorf("a step that is not pure was run to validate: %v", verdicts(r))
	}
}

// However a lookup is configured away, no module runs without its gates.
func TestLookupConfiguredAway(t *testing.T) {
	for _, fields := range []section{entry("match_modules", []any{"other.*"}), entry("ignore_errors", true)} {
		ran := false
		x := setup{modules: []module.Module{fn("m", func(context.Context, map[string]any) (map[string]any, error) {
			ran = true
			return map[string]any{}, nil
		})}, opts: []executor.Option{executor.WithPipeline(section{"configure": section{"module_lookup": fields}}, nil)}}.executor(t)
		_, err := x.Call(t.Context(), "gone", nil)
		wantCode(t, err, module.CodeModuleNotFound)
		if _, err := x.Call(t.Context(), "m", nil); (err == nil) != ran {
			t.Errorf("= %v, ran %v", err, ran)
		}
	}
}

func FuzzStrategyFromConfig(f *testing.F) {
	f.Add("execute", "timeout_ms", "acl_check", "noop")
	f.Add("", "pure", "execute", "needy")
	f.Fuzz(func(t *testing.T, name, key, anchor, kind string) {
		for _, value := range []any{nil, true, "x", int64(3), -1.5, []any{"*"}, []any{1}, map[string]any{key: name}} {
			cfg := section{
				"remove": []any{name}, "configure": section{name: section{key: value}},
				"steps": []any{section{"name": name, "type": kind, "after": anchor, key: value}},
			}
			for _, part := range []string{"remove", "configure", "steps"} {
				s, err := executor.StrategyFromConfig(section{part: cfg[part]}, stepTypes(t, nil))
				if err != nil {
					continue
				}
				for _, step := range s.StepNames() {
					if got, ok := s.Step(step); !ok || got.Name != step {
						t.Fatalf("list and index disagree about %q", step)
					}
				}
				for _, gate := range []string{"acl_check", "approval_gate"} {
					if g, ok := s.Step(gate); ok && (g.IgnoreErrors || g.MatchModules != nil) {
						t.Fatalf("gate %s was weakened: %+v", gate, g)
					}
				}
			}
		}
	})
}
