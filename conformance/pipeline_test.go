//go:build conformance

package conformance_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/module"
)

// stepTypes knows the types that cases register, each a step that does nothing.
func stepTypes(c *kase, names ...string) *executor.StepTypes {
	types := &executor.StepTypes{}
	for _, name := range names {
		err := types.Register(name, func(map[string]any) (*executor.Step, error) { return &executor.Step{Name: name, Run: nop}, nil })
		if err != nil {
			c.Fatalf("step type: %v", err)
		}
	}
	return types
}

func driveGateConfigure(c *kase) {
	_, err := executor.StrategyFromConfig(c.at("input").at("yaml").at("pipeline").fields(), stepTypes(c))
	want := c.at("expected")
	if !want.at("raises").flag() {
		c.wantCode(err, "")
		return
	}
	c.wantCode(err, want.at("error_code").str())
	if err != nil {
		want.at("error_message_contains").contains(err.Error())
	}
}

func driveFailFast(c *kase) {
	in, want := c.at("input"), c.at("expected")
	var s *executor.Strategy
	var err error
	if in.has("yaml") {
		s, err = executor.StrategyFromConfig(in.at("yaml").at("pipeline").fields(), stepTypes(c, "noop"))
	} else {
		n := in.at("strategy")
		var steps []*executor.Step
		for _, e := range n.at("steps").list() {
			steps = append(steps, &executor.Step{Name: e.at("name").str(), Run: nop,
				Requires: e.opt("requires").strs(), Provides: e.opt("provides").strs()})
		}
		s, err = executor.NewStrategy(n.at("name").str(), "", steps...)
	}
	for _, key := range want.keys() {
		n := want.at(key)
		switch key {
		case "raises":
			if (err != nil) != n.flag() {
				c.Errorf("error %v", err)
			}
		case "error_code":
			c.wantCode(err, n.str())
		case "error_message_contains":
			n.contains(err.Error())
		case "raised_at":
			// No call was made: it was raised while the strategy was built.
			if at := n.str(); at != "parse_time" && at != "strategy_construction" {
				c.Fatalf("driver: unknown time %s", at)
			}
		case "deferred_to_first_call":
			n.must(false)
		case "strategy_callable":
			x := c.executor([]executor.Option{executor.WithStrategy(s)}, trivial("demo.target"))
			_, err := x.Call(c.t.Context(), "demo.target", nil)
			if callable := err == nil || module.CodeOf(err) == module.CodeInternal && !in.has("yaml"); callable != n.flag() {
				c.Errorf("call: %v", err)
			}
		case "configured_step_fields":
			step, ok := s.Step(n.at("step_name").str())
			if !ok {
				c.Fatalf("the step is gone")
			}
			equal(c, "match_modules", n.at("match_modules").strs(), step.MatchModules)
			equal(c, "ignore_errors", n.at("ignore_errors").flag(), step.IgnoreErrors)
			equal(c, "pure", n.at("pure").flag(), step.Pure)
			equal(c, "timeout_ms", n.at("timeout_ms").number(), step.TimeoutMS)
		default:
			c.Fatalf("driver: unknown expectation %s", key)
		}
	}
}

// driveSectionWiring gives the configuration to an executor, not to a builder.
func driveSectionWiring(c *kase) {
	in, want := c.at("input"), c.at("expected")
	var types []string
	if in.has("register_step_type") {
		types = in.at("register_step_type").strs()
	}
	section, _ := in.at("config").fields()["pipeline"].(map[string]any)
	log := &journal{}
	opts := []executor.Option{executor.WithPipeline(section, stepTypes(c, types...)), executor.WithLogger(log.logger())}
	x := c.executor(opts, trivial("demo.target"))
	equal(c, "steps", want.at("steps").strs(), x.Strategy().StepNames())
	// What the strategy holds is what a call runs.
	_, trace, err := x.CallWithTrace(c.t.Context(), "demo.target", nil)
	c.wantCode(err, "")
	var ran []string
	for _, s := range trace.Steps {
		ran = append(ran, s.Name)
	}
	equal(c, "steps of a call", want.at("steps").strs(), ran)
	var warned []record
	for _, r := range log.atLeast(slog.LevelWarn) {
		for _, gate := range []string{executor.StepACLCheck, executor.StepApprovalGate} {
			if strings.Contains(r.message+r.attrs["step"].String(), gate) {
				warned = append(warned, r)
			}
		}
	}
	if (len(warned) == 1) != want.at("security_step_warning").flag() {
		c.Errorf("warned %d times: %s", len(warned), log.text())
	}
	if name := want.opt("warning_names_step").text(); name != "" && len(warned) == 1 && warned[0].attrs["step"].String() != name {
		c.Errorf("the warning names %v", warned[0].attrs)
	}
	if n := want.opt("configured_step"); !n.null() {
		step, ok := x.Strategy().Step(n.at("name").str())
		if !ok {
			c.Fatalf("the step is gone")
		}
		if field := n.at("field").str(); field != "ignore_errors" {
			c.Fatalf("driver: unknown field %s", field)
		}
		equal(c, "field", n.at("value").flag(), step.IgnoreErrors)
	}
}

// stepLog notes which steps ran.
type stepLog struct{ ran *[]string }

func (l stepLog) BeforeStep(step string, _ module.PipelineState) error {
	*l.ran = append(*l.ran, step)
	return nil
}

func (stepLog) AfterStep(string, module.PipelineState, any) error { return nil }

func (stepLog) OnStepError(string, module.PipelineState, error) (any, bool) { return nil, false }

// picked are built-in steps of the standard strategy.
func picked(c *kase, names ...string) []*executor.Step {
	std := executor.Standard()
	var out []*executor.Step
	for _, name := range names {
		s, ok := std.Step(name)
		if !ok {
			c.Fatalf("driver: no step %s", name)
		}
		out = append(out, s)
	}
	return out
}

func drivePipelineHardening(c *kase) {
	switch c.id {
	case "fail_fast_on_step_error", "continue_on_ignored_error":
		drivePipelineFailure(c)
	case "replace_semantic_no_duplicate":
		name := c.at("input").at("configure_step").str()
		s := executor.Standard()
		before := s.StepNames()
		for range c.at("input").at("times").number() {
			if err := s.ConfigureStep(name, &executor.Step{Name: name, Run: nop}); err != nil {
				c.Fatalf("configure: %v", err)
			}
		}
		equal(c, "steps", before, s.StepNames())
		count := len(slices.DeleteFunc(s.StepNames(), func(n string) bool { return n != name }))
		equal(c, "count", c.at("expected").at("step_count_for_name").number(), count)
	case "run_until_stops_early":
		after := c.at("input").at("run_until_after").str()
		ran := false
		m := function("demo.target", func(context.Context, map[string]any) (map[string]any, error) {
			ran = true
			return map[string]any{}, nil
		})
		_, trace, err := c.executor(nil, m).CallWithTrace(c.t.Context(), "demo.target", nil,
			module.CallUntil(func(s module.PipelineState) bool { return s.StepName == after }))
		c.wantCode(err, "")
		last := ""
		for _, s := range trace.Steps {
			if !s.Skipped {
				last = s.Name
			}
		}
		equal(c, "last step", c.at("expected").at("last_step_executed").str(), last)
		if ran == c.at("expected").at("steps_after_skipped").flag() {
			c.Errorf("the module ran = %t", ran)
		}
	case "step_lookup_is_not_linear":
		c.at("input").at("step_count").number()
		if want := c.at("expected").at("lookup_complexity").str(); want != "O(1)" {
			c.Fatalf("driver: unknown complexity %s", want)
		}
		lookupIsConstant(c)
	case "step_timeout_raises_module_timeout", "step_within_its_timeout_runs":
		drivePipelineTimeout(c)
	default:
		c.Fatalf("driver: unknown case")
	}
}

// lookupIsConstant compares finding a step among ten with finding one among ten
// thousand; the last of a list would take a thousand times as long.
func lookupIsConstant(c *kase) {
	cost := func(n int) time.Duration {
		var steps []*executor.Step
		for i := range n {
			steps = append(steps, &executor.Step{Name: "step_" + strconv.Itoa(i), Run: nop})
		}
		s, err := executor.NewStrategy("many", "", steps...)
		if err != nil {
			c.Fatalf("strategy: %v", err)
		}
		last := steps[n-1].Name
		best := time.Hour
		for range 20 {
			began := time.Now()
			for range 1000 {
				if _, ok := s.Step(last); !ok {
					c.Fatalf("the last step is not found")
				}
			}
			best = min(best, time.Since(began))
		}
		return best
	}
	if few, many := cost(10), cost(10_000); many > 50*few {
		c.Errorf("a thousand lookups among 10 take %v, among 10,000 %v", few, many)
	}
}

func drivePipelineFailure(c *kase) {
	in, want := c.at("input"), c.at("expected")
	in.at("raises").must(true)
	name := in.at("step").str()
	// The steps that the case names, and what a call needs after them.
	names := []string{executor.StepContextCreation, executor.StepModuleLookup, name, executor.StepExecute, executor.StepReturnResult}
	s, err := executor.NewStrategy("case", "", picked(c, names...)...)
	if err != nil {
		c.Fatalf("strategy: %v", err)
	}
	failing := &executor.Step{Name: name, IgnoreErrors: in.at("ignore_errors").flag(),
		Run: func(context.Context, *executor.Pipeline) (*executor.StepResult, error) {
			return nil, errors.New("the step fails")
		}}
	if err := s.ConfigureStep(name, failing); err != nil {
		c.Fatalf("configure: %v", err)
	}
	var ran []string
	s.AddStepMiddleware(stepLog{&ran})
	log := &journal{}
	x := c.executor([]executor.Option{executor.WithStrategy(s), executor.WithLogger(log.logger())}, trivial("demo.target"))
	_, callErr := x.Call(c.t.Context(), "demo.target", nil)
	for _, key := range want.keys() {
		n := want.at(key)
		switch key {
		case "stopped":
			equal(c, key, n.flag(), callErr != nil)
		case "steps_executed":
			equal(c, key, n.strs(), ran)
		case "continued":
			if got := slices.Equal(ran, names) && len(log.atLeast(slog.LevelWarn)) > 0; got != n.flag() {
				c.Errorf("ran %v, logged %s", ran, log.text())
			}
		case "error_code":
			// Call surfaces the code of the cause; the step error is around it.
			var step *executor.StepError
			if !errors.As(callErr, &step) || step.Step != name || !errors.Is(callErr, &module.Error{Code: module.Code(n.str())}) {
				c.Errorf("error %v, want %s around the cause", callErr, n.str())
			}
		default:
			c.Fatalf("driver: unknown expectation %s", key)
		}
	}
}

func drivePipelineTimeout(c *kase) {
	c.bubble(func(ctx context.Context) {
		in, want := c.at("input"), c.at("expected")
		step := in.at("custom_step")
		sleep := milliseconds(step.at("sleep_ms"))
		s := executor.Standard()
		err := s.InsertAfter(step.at("after").str(), &executor.Step{Name: step.at("name").str(), TimeoutMS: in.at("timeout_ms").number(),
			Run: func(context.Context, *executor.Pipeline) (*executor.StepResult, error) {
				pause(sleep)
				return nil, nil
			}})
		if err != nil {
			c.Fatalf("insert: %v", err)
		}
		x := c.executor([]executor.Option{executor.WithStrategy(s)}, trivial("demo.target"))
		_, err = x.Call(ctx, "demo.target", nil)
		if want.has("call_error_code") {
			c.wantCode(err, want.at("call_error_code").str())
		} else {
			want.at("call_succeeds").must(true)
			c.wantCode(err, "")
		}
		if err := x.Settle(ctx); err != nil {
			c.Errorf("settle: %v", err)
		}
	})
}

func driveTraceCancellation(c *kase) {
	if action := c.at("action").str(); action != "call_with_trace_cancelling_module_with_swallowing_on_error" {
		c.Fatalf("driver: unknown action %s", action)
	}
	invoked := 0
	swallow := swallowing(&invoked)
	raises := function("demo.raises", func(context.Context, map[string]any) (map[string]any, error) {
		return nil, module.Errorf(module.CodeExecutionCancelled, "cancelled")
	})
	cancels := function("demo.cancels", func(ctx context.Context, _ map[string]any) (map[string]any, error) {
		tok := module.FromContext(ctx).Token()
		tok.Cancel(nil)
		return nil, tok.Check()
	})
	x := c.executor([]executor.Option{executor.WithMiddleware(swallow)}, raises, cancels)
	for _, id := range []string{"demo.raises", "demo.cancels"} {
		_, err := x.Call(c.t.Context(), id, nil)
		c.wantCode(err, c.at("expected_error").str())
		_, trace, err := x.CallWithTrace(c.t.Context(), id, nil)
		c.wantCode(err, c.at("expected_error").str())
		if trace == nil || trace.Success || trace.Error == nil {
			c.Errorf("trace %+v", trace)
		}
	}
	if got := invoked > 0; got != c.at("expected_on_error_invoked").flag() {
		c.Errorf("on_error was invoked %d times", invoked)
	}
	// The control: the same middleware does recover another failure.
	y := c.executor([]executor.Option{executor.WithMiddleware(swallow)}, function("demo.fails",
		func(context.Context, map[string]any) (map[string]any, error) { return nil, errors.New("fails") }))
	if out, err := y.Call(c.t.Context(), "demo.fails", nil); err != nil || !cmp.Equal(out, map[string]any{"recovered": true}) {
		c.Errorf("the middleware recovers nothing: %v, %v", out, err)
	}
}
