package executor

import (
	"context"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/apbus/apbus/module"
)

// SpanStep begins the name of a step's span, which ends with the step's own.
const SpanStep = "apcore.step."

// WithStepSpans makes a span of each step of a call, below the span around it: the
// hop's, or that of the tracing middleware once it has begun one. A call whose span
// is not recorded, or that has none, gets none. They are leaves: what a module does
// is below the call's span and not below that of the step execute. nil makes none.
func WithStepSpans(p trace.TracerProvider) Option {
	return func(x *Executor) {
		x.spans = nil
		if p != nil {
			x.spans = p.Tracer("github.com/apbus/apbus/executor")
		}
	}
}

// beginStep returns nil where the step gets no span.
func (p *Pipeline) beginStep(s *Step) trace.Span {
	if p.x.spans == nil || !trace.SpanFromContext(p.ctx).IsRecording() {
		return nil
	}
	_, span := p.x.spans.Start(p.ctx, SpanStep+s.Name)
	return span
}

// endStep says how the step went, by code only; a message may quote values.
func endStep(span trace.Span, err error) {
	if span == nil {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, string(module.CodeOf(err)))
	}
	span.End()
}

// traceOf is the trace that a root call without one belongs to: that of the span
// it is made in, nil for none.
func traceOf(ctx context.Context) *module.TraceParent {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() {
		return nil
	}
	return &module.TraceParent{TraceID: sc.TraceID().String(), ParentID: sc.SpanID().String(), Flags: sc.TraceFlags().String()}
}
