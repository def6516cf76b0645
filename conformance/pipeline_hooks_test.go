//go:build conformance

package conformance_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/module"
)

// hookLog is what the step middlewares of one call saw. Keys are copied inside
// the hooks, since the map may go on changing.
type hookLog struct {
	before, after, onError []string
	beforeKeys             [][]string
	afterKeys, errorKeys   [][]string
	output                 any
}

// hook is a step middleware that looks at one step, or with errorsOf at another
// step's failure.
type hook struct {
	name, step, errorsOf string
	log                  *hookLog
	fails                bool
	recovers             any
	pause                time.Duration
	note                 func(string)
}

func keysOf(m map[string]any) []string {
	return append([]string{}, slices.Sorted(maps.Keys(m))...)
}

func (h *hook) BeforeStep(step string, s module.PipelineState) error {
	if step != h.step {
		return nil
	}
	pause(h.pause)
	h.tell("before")
	h.log.before = append(h.log.before, h.name)
	h.log.beforeKeys = append(h.log.beforeKeys, keysOf(s.Outputs))
	if h.fails {
		return errors.New("before_step fails")
	}
	return nil
}

func (h *hook) AfterStep(step string, s module.PipelineState, output any) error {
	if step != h.step {
		return nil
	}
	pause(h.pause)
	h.tell("after")
	h.log.after = append(h.log.after, h.name)
	h.log.afterKeys = append(h.log.afterKeys, keysOf(s.Outputs))
	h.log.output = output
	return nil
}

func (h *hook) OnStepError(step string, s module.PipelineState, _ error) (any, bool) {
	if step != h.step && step != h.errorsOf {
		return nil, false
	}
	h.log.onError = append(h.log.onError, h.name)
	h.log.errorKeys = append(h.log.errorKeys, keysOf(s.Outputs))
	return h.recovers, h.recovers != nil
}

func (h *hook) tell(what string) {
	if h.note != nil {
		h.note(h.name + ":" + what)
	}
}

// hooked is the call of one such case.
type hooked struct {
	log       *hookLog
	out       map[string]any
	err       error
	ranModule bool
	inputs    map[string]any
}

func driveStepMiddleware(c *kase) {
	in := c.at("input")
	switch {
	case in.has("steps"):
		driveStepOutputs(c, in)
		return
	case in.has("async_before_step_records"):
		driveAwaited(c, in)
		return
	}
	name := in.at("step").str()
	following := in.opt("following_step").text()
	strategies := []*executor.Strategy{executor.Standard()}
	if in.opt("ignore_errors").flag() {
		// The built-in gate cannot be told to ignore errors, so a step of its name is
		// tried that can, beside the real one.
		s := executor.Internal()
		if err := s.InsertAfter(executor.StepModuleLookup, &executor.Step{Name: name, IgnoreErrors: true, Run: nop}); err != nil {
			c.Fatalf("insert: %v", err)
		}
		strategies = append(strategies, s)
	}
	if in.has("preceding_step") {
		s, err := executor.NewStrategy("case", "", &executor.Step{Name: in.at("preceding_step").str(), Run: nop},
			&executor.Step{Name: name, Run: func(context.Context, *executor.Pipeline) (*executor.StepResult, error) {
				raises := in.at("step_raises")
				return nil, module.Errorf(module.Code(raises.at("code").str()), "%s", raises.at("message").str())
			}})
		if err != nil {
			c.Fatalf("strategy: %v", err)
		}
		strategies = []*executor.Strategy{s}
	}
	for _, s := range strategies {
		h := callHooked(c, in, s, name)
		judgeHooks(c, name, following, h)
	}
}

func callHooked(c *kase, in *node, s *executor.Strategy, name string) *hooked {
	h := &hooked{log: &hookLog{}}
	for _, mw := range in.at("register_order").strs() {
		k := &hook{name: mw, step: name, log: h.log}
		if in.has("before_step_raises_in") {
			k.fails = in.at("before_step_raises_in").str() == mw
		}
		if in.has("on_step_error_returns") {
			if v := in.at("on_step_error_returns").at(mw); !v.null() {
				k.recovers = v.raw()
			}
		}
		s.AddStepMiddleware(k)
	}
	in.opt("before_step_returns").raw() // BeforeStep has no value to return
	inputs := in.opt("original_call_inputs").fields()
	m := function("demo.target", func(_ context.Context, got map[string]any) (map[string]any, error) {
		h.ranModule, h.inputs = true, got
		if n := in.opt("step_raises"); !n.null() && name == executor.StepExecute {
			return nil, module.Errorf(module.Code(n.at("code").str()), "%s", n.at("message").str())
		}
		return map[string]any{"ok": true}, nil
	})
	x := c.executor([]executor.Option{executor.WithStrategy(s)}, m)
	h.out, h.err = x.Call(c.t.Context(), "demo.target", inputs)
	return h
}

func judgeHooks(c *kase, name, following string, h *hooked) {
	want := c.at("expected")
	empty := func(l []string) []string { return append([]string{}, l...) }
	for _, key := range want.keys() {
		n := want.at(key)
		switch key {
		case "before_step_order", "before_step_invoked":
			equal(c, key, n.strs(), empty(h.log.before))
		case "after_step_order", "after_step_invoked":
			equal(c, key, n.strs(), empty(h.log.after))
		case "on_step_error_invoked":
			equal(c, key, n.strs(), empty(h.log.onError))
		case "step_output":
			equal(c, key, n.raw(), h.log.output)
			if !n.null() && name == executor.StepExecute && h.ranModule {
				equal(c, "output of the call", n.raw(), any(h.out))
			}
		case "error_propagated", "error_raised":
			equal(c, key, n.flag(), h.err != nil)
		case "original_error_code":
			c.wantCode(h.err, n.str())
		case "wrapper_error_code":
			if !errors.Is(h.err, &module.Error{Code: module.Code(n.str())}) {
				c.Errorf("error %v, want %s around it", h.err, n.str())
			}
		case "recovery_honored":
			equal(c, key, n.flag(), h.err == nil)
		case "following_step_executed":
			if following != executor.StepExecute {
				c.Fatalf("driver: unknown following step %s", following)
			}
			equal(c, key, n.flag(), h.ranModule)
		case "ignore_errors_applies":
			equal(c, key, n.flag(), h.err == nil)
		case "module_received_inputs":
			equal(c, key, n.fields(), h.inputs)
		case "outputs_keys_in_after_step":
			for _, keys := range h.log.afterKeys {
				equal(c, key, n.strs(), keys)
			}
			if len(h.log.afterKeys) == 0 {
				c.Errorf("after_step did not run")
			}
		default:
			c.Fatalf("driver: unknown expectation %s", key)
		}
	}
}

func driveStepOutputs(c *kase, in *node) {
	observed := in.at("observe_hooks_on").str()
	outputs := in.at("step_outputs").fields()
	raises := in.at("third_step_raises")
	var steps []*executor.Step
	names := in.at("steps").strs()
	for _, name := range names {
		steps = append(steps, &executor.Step{Name: name, Run: func(_ context.Context, p *executor.Pipeline) (*executor.StepResult, error) {
			if name == names[2] {
				return nil, module.Errorf(module.Code(raises.at("code").str()), "%s", raises.at("message").str())
			}
			out, _ := outputs[name].(map[string]any)
			p.SetOutput(out)
			return nil, nil
		}})
	}
	s, err := executor.NewStrategy("case", "", steps...)
	if err != nil {
		c.Fatalf("strategy: %v", err)
	}
	log := &hookLog{}
	s.AddStepMiddleware(&hook{name: "mw", step: observed, errorsOf: names[2], log: log})
	_, err = c.executor([]executor.Option{executor.WithStrategy(s)}, trivial("demo.target")).Call(c.t.Context(), "demo.target", nil)
	c.wantCode(err, raises.at("code").str())
	want := c.at("expected")
	for key, got := range map[string][][]string{
		"outputs_keys_in_before_step": log.beforeKeys, "outputs_keys_in_after_step": log.afterKeys, "outputs_keys_in_on_step_error": log.errorKeys,
	} {
		equal(c, key, [][]string{want.at(key).strs()}, got)
	}
	want.at("current_step_never_present").must(true)
}

// driveAwaited: hooks are ordinary calls in Go; what they did is done before the
// pipeline goes on.
func driveAwaited(c *kase, in *node) {
	c.bubble(func(ctx context.Context) {
		var order []string
		note := func(what string) { order = append(order, what) }
		name := in.at("step").str()
		s := executor.Standard()
		if err := s.ConfigureStep(name, &executor.Step{Name: name, Run: func(context.Context, *executor.Pipeline) (*executor.StepResult, error) {
			note("body")
			return nil, nil
		}}); err != nil {
			c.Fatalf("configure: %v", err)
		}
		s.AddStepMiddleware(&hook{name: in.at("register_order").strs()[0], step: name, log: &hookLog{}, pause: 50 * time.Millisecond, note: note})
		log := &journal{}
		x := c.executor([]executor.Option{executor.WithStrategy(s), executor.WithLogger(log.logger())}, trivial("demo.target"))
		_, err := x.Call(ctx, "demo.target", nil)
		c.wantCode(err, "")
		before, after := in.at("async_before_step_records").str(), in.at("async_after_step_records").str()
		want := c.at("expected")
		equal(c, "recorded", want.at("recorded_in_order").strs(), []string{before, after})
		if got := slices.Equal(order, []string{before, "body", after}); got != want.at("callback_was_awaited").flag() {
			c.Errorf("order %v", order)
		}
		if got := len(log.all()) == 0; got != want.at("no_unawaited_warning").flag() {
			c.Errorf("logged %s", log.text())
		}
	})
}
