package bus

import (
	"context"
	"encoding/hex"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// Names of the spans of a hop. A call has one of each kind: the client's, over
// all its attempts, and the node's, from the arrival of one attempt to its end.
// Checks have none (decision D-143).
const (
	SpanCall  = "apbus.call"
	SpanServe = "apbus.serve"
)

// tracerOf returns nil for no provider: then nothing of this file costs a call
// more than a comparison.
func tracerOf(p trace.TracerProvider) trace.Tracer {
	if p == nil {
		return nil
	}
	return p.Tracer("github.com/apbus/apbus/bus")
}

// spanContextOf is what the W3C headers say; invalid where they do not say it.
func spanContextOf(tp *module.TraceParent) trace.SpanContext {
	if tp == nil {
		return trace.SpanContext{}
	}
	traceID, err := trace.TraceIDFromHex(tp.TraceID)
	if err != nil {
		return trace.SpanContext{}
	}
	spanID, err := trace.SpanIDFromHex(tp.ParentID)
	if err != nil {
		return trace.SpanContext{}
	}
	flags := trace.FlagsSampled // what no flags mean
	if raw, err := hex.DecodeString(tp.Flags); err == nil && len(raw) == 1 {
		flags = trace.TraceFlags(raw[0])
	}
	state, err := trace.ParseTraceState(tp.StateHeader())
	if err != nil {
		state = trace.TraceState{} // nothing that tracing could use
	}
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID, SpanID: spanID, TraceFlags: flags, TraceState: state, Remote: true,
	})
}

// traceParentOf is the way back.
func traceParentOf(sc trace.SpanContext) *module.TraceParent {
	tp := &module.TraceParent{
		TraceID: sc.TraceID().String(), ParentID: sc.SpanID().String(), Flags: sc.TraceFlags().String(),
	}
	if sc.TraceState().Len() > 0 {
		if full := module.ParseTraceParent(tp.Header(), sc.TraceState().String()); full != nil {
			tp.State = full.State
		}
	}
	return tp
}

// madeUpParent stands for a parent that nobody knows, so that a span gets the
// Context's trace ID; it is made of that ID, the same in every process.
func madeUpParent(id trace.TraceID) trace.SpanContext {
	var span trace.SpanID
	copy(span[:], id[8:])
	if !span.IsValid() {
		span[7] = 1
	}
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span, TraceFlags: trace.FlagsSampled, Remote: true})
}

// propagate makes req's trace headers those of the span around the call: that of
// ctx, or what the caller's own call came with. They always belong to the
// Context's trace.
func propagate(ctx context.Context, req *contextwire.Request) {
	id := req.Context.TraceID()
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		if tp := traceParentOf(sc); tp.TraceID == id {
			req.TraceParent = tp
			return
		}
	}
	if req.TraceParent == nil {
		if tp := req.Context.Call().TraceParent; tp != nil && tp.TraceID == id {
			req.TraceParent = tp
		}
	}
}

// startCall begins the client's span and gives req the Context and the headers
// that belong to it. Without a tracer it only does the latter. It never begins a
// span for a Context whose trace ID is none of the W3C's.
func (c *Client) startCall(ctx context.Context, kind string, req *contextwire.Request) (context.Context, trace.Span) {
	fresh := req.Context == nil
	if c.tracer == nil || kind != kindCall {
		if fresh {
			req.Context = module.NewContext(module.ContextOptions{TraceParent: req.TraceParent})
		}
		propagate(ctx, req)
		return ctx, nil
	}
	outer := trace.SpanContextFromContext(ctx)
	parent, opts := ctx, []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("module_id", req.ModuleID), attribute.String("call_id", req.CallID), attribute.String("mode", modeOf(req.Stream)),
	)}
	switch {
	case !fresh:
		id, err := trace.TraceIDFromHex(req.Context.TraceID())
		if err != nil {
			return ctx, nil
		}
		if outer.IsValid() && outer.TraceID() == id {
			break
		}
		if outer.IsValid() {
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: outer}))
		}
		known := spanContextOf(req.TraceParent)
		if known.TraceID() != id {
			known = spanContextOf(req.Context.Call().TraceParent)
		}
		if known.TraceID() != id {
			known = madeUpParent(id)
		}
		parent = trace.ContextWithRemoteSpanContext(ctx, known)
	case spanContextOf(req.TraceParent).IsValid():
		parent = trace.ContextWithRemoteSpanContext(ctx, spanContextOf(req.TraceParent))
	}
	spanned, span := c.tracer.Start(parent, SpanCall, opts...)
	if sc := span.SpanContext(); sc.IsValid() {
		req.TraceParent = traceParentOf(sc)
	}
	if fresh {
		req.Context = module.NewContext(module.ContextOptions{TraceParent: req.TraceParent})
	}
	return spanned, span
}

// endCall ends the client's span; nil is none.
func endCall(span trace.Span, by final, err error) {
	if span == nil {
		return
	}
	if by.node != "" {
		span.SetAttributes(attribute.String("node", by.node), attribute.String("boot", by.boot))
	}
	span.SetAttributes(attribute.Int("attempts", by.attempt))
	endSpan(span, module.AsError(err))
}

// noteRetry tells of an attempt that failed and is followed by another.
func noteRetry(span trace.Span, attempt int, by proc, e *module.Error) {
	if span == nil {
		return
	}
	span.AddEvent("retry", trace.WithAttributes(
		attribute.Int("attempt", attempt), attribute.String("node", by.node), attribute.String("error_code", string(e.Code)),
	))
}

// endSpan says how it went: by code only, since a message may quote values.
func endSpan(span trace.Span, e *module.Error) {
	if e != nil {
		span.SetAttributes(attribute.String("error_code", string(e.Code)))
		span.SetStatus(codes.Error, string(e.Code))
	} else {
		span.SetStatus(codes.Ok, "")
	}
	span.End()
}

func modeOf(stream bool) string {
	if stream {
		return contextwire.ModeStream
	}
	return contextwire.ModeUnary
}

// startServe begins the node's span as of the call's arrival, below the span that
// the caller named. A bare request without one begins a trace, which its Context
// then belongs to.
func (r *running) startServe() {
	n := r.node
	if n.tracer == nil || r.kind != kindCall {
		return
	}
	parent := spanContextOf(r.head.TraceParent)
	if !parent.IsValid() && !r.head.Bare {
		return // the body says which trace it is, see adoptTrace
	}
	r.beginServe(parent)
	if r.head.TraceParent == nil && r.span.SpanContext().IsValid() {
		r.head.TraceParent = traceParentOf(r.span.SpanContext())
	}
}

// adoptTrace begins the span of a call that came without trace headers, in the
// trace of its Context.
func (r *running) adoptTrace(c *module.Context) {
	if r.node.tracer == nil || r.kind != kindCall || r.span != nil {
		return
	}
	if id, err := trace.TraceIDFromHex(c.TraceID()); err == nil {
		r.beginServe(madeUpParent(id))
	}
}

func (r *running) beginServe(parent trace.SpanContext) {
	ctx := r.ctx
	if parent.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
	}
	r.spanned, r.span = r.node.tracer.Start(ctx, SpanServe,
		trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(r.arrived), trace.WithAttributes(
			attribute.String("module_id", r.head.ModuleID), attribute.String("call_id", r.key.Call), attribute.Int("attempt", r.key.Attempt),
			attribute.String("mode", r.mode()), attribute.String("node", r.node.opts.ID), attribute.String("boot", r.node.boot),
			attribute.Float64("queued_ms", float64(time.Since(r.arrived))/float64(time.Millisecond)),
		))
}

// context is what the call runs in.
func (r *running) context() context.Context {
	if r.spanned != nil {
		return r.spanned
	}
	return r.ctx
}

func (r *running) endServe(e *module.Error) {
	if r.span == nil {
		return
	}
	if r.flow != nil {
		r.span.SetAttributes(attribute.Int64("chunks", int64(r.flow.count()))) //nolint:gosec // a count
	}
	endSpan(r.span, e)
}
