package executor_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/module"
)

func TestStepSpans(t *testing.T) {
	r := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r))
	x, _ := setup{modules: []module.Module{fn("a.echo", nil)}, opts: []executor.Option{executor.WithStepSpans(provider)}}.build(t)

	// Without a span around it a call has none of its steps.
	if _, err := x.Call(t.Context(), "a.echo", nil); err != nil {
		t.Fatal(err)
	}
	if n := len(r.Ended()); n != 0 {
		t.Fatalf("%d spans of a call that nobody traces", n)
	}

	ctx, outer := provider.Tracer("test").Start(t.Context(), "outer")
	var seen string
	_, err := x.Call(ctx, "a.echo", map[string]any{"x": 1}, module.CallUntil(func(s module.PipelineState) bool {
		if s.Context != nil {
			seen = s.Context.TraceID()
		}
		return false
	}))
	if err != nil {
		t.Fatal(err)
	}
	outer.End()
	if seen != outer.SpanContext().TraceID().String() {
		t.Errorf("the call is in trace %s, its caller in %s", seen, outer.SpanContext().TraceID())
	}
	var got []string
	for _, s := range r.Ended() {
		if s.Name() != "outer" && s.Parent().SpanID() != outer.SpanContext().SpanID() {
			t.Errorf("%s is not below the call", s.Name())
		}
		got = append(got, s.Name())
	}
	want := []string{
		"apcore.step.context_creation", "apcore.step.call_chain_guard", "apcore.step.module_lookup", "apcore.step.acl_check",
		"apcore.step.approval_gate", "apcore.step.middleware_before", "apcore.step.input_validation", "apcore.step.execute",
		"apcore.step.output_validation", "apcore.step.middleware_after", "apcore.step.return_result", "outer",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}

	// A step that fails says so by its code.
	r.Reset()
	ctx, outer = provider.Tracer("test").Start(t.Context(), "outer")
	_, err = x.Call(ctx, "no.such", nil)
	outer.End()
	if module.CodeOf(err) != module.CodeModuleNotFound {
		t.Fatal(err)
	}
	for _, s := range r.Ended() {
		if s.Name() == "apcore.step.module_lookup" && s.Status().Description != string(module.CodeModuleNotFound) {
			t.Errorf("status %v", s.Status())
		}
	}

	// Nothing is begun below a span that is not recorded.
	r.Reset()
	ctx = trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1},
	}))
	if _, err := x.Call(ctx, "a.echo", nil); err != nil || len(r.Ended()) != 0 {
		t.Errorf("%v, %d spans", err, len(r.Ended()))
	}
}
