package middleware

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/apbus/apbus/module"
)

// SpanName is the name of every span (protocol §10.2); the module is an attribute.
const SpanName = "apcore.module.execute"

// Data keys of [Tracing] (protocol §5.7).
const (
	// DataTracingSampled holds the root's decision, a bool, for the whole tree.
	DataTracingSampled = "_apcore.mw.tracing.sampled"
	// DataTracingSpanID holds the ID of the span that was begun last.
	DataTracingSpanID = "_apcore.mw.tracing.span_id"
	// DataTraceParentID may hold the caller's span ID, 16 hex digits, for a call
	// that came from another process; it outranks what came with the call.
	DataTraceParentID = "_apcore.trace.parent_id"
)

// TraceStrategy says which call trees are traced.
type TraceStrategy string

// The strategies (protocol §10.2). The root of a call tree decides, the calls
// below it inherit.
const (
	// TraceFull traces every tree.
	TraceFull TraceStrategy = "full"
	// TraceProportional traces SamplingRate of the trees, chosen by trace ID, so
	// that every node chooses the same.
	TraceProportional TraceStrategy = "proportional"
	// TraceErrorFirst is proportional, and a call that fails is traced in any
	// tree.
	TraceErrorFirst TraceStrategy = "error_first"
	// TraceOff traces nothing.
	TraceOff TraceStrategy = "off"
)

// TracingOptions configures [Tracing].
type TracingOptions struct {
	// Provider makes the tracer; nil traces nothing, at no cost.
	Provider trace.TracerProvider
	// Strategy is full when empty.
	Strategy TraceStrategy
	// SamplingRate is between 0 and 1, for the two strategies that use it; nil is 1.
	SamplingRate *float64
}

// Tracing makes one span for each run of a call: kind internal, attributes
// module_id, method, duration_ms, success, and caller_id and error_code where
// there are any. No attribute holds inputs, outputs or error texts. The span is in
// the module's context, so spans of the module and of the calls it makes are below
// it. Its parent is the span in the caller's context; without one it takes the
// Context's trace ID.
//
// A list holds one Tracing at most; [Tracing.Configure] changes the one it has.
type Tracing struct {
	set atomic.Pointer[tracingSet]
}

// tracingSet is one configuration; a nil tracer traces nothing.
type tracingSet struct {
	tracer   trace.Tracer
	strategy TraceStrategy
	rate     float64
}

var (
	_ BeforeHook = (*Tracing)(nil)
	_ EndHook    = (*Tracing)(nil)
	_ Single     = (*Tracing)(nil)
)

// NewTracing makes the middleware. Options out of range are CONFIG_INVALID.
func NewTracing(o TracingOptions) (*Tracing, error) {
	t := &Tracing{}
	return t, t.Configure(o)
}

// Configure replaces the options for calls that begin from now on; when they are
// refused, with CONFIG_INVALID, the old ones stay.
func (t *Tracing) Configure(o TracingOptions) error {
	s := &tracingSet{strategy: o.Strategy, rate: 1}
	switch o.Strategy {
	case "":
		s.strategy = TraceFull
	case TraceFull, TraceProportional, TraceErrorFirst, TraceOff:
	default:
		return module.Errorf(module.CodeConfigInvalid, "observability.tracing.strategy: unknown strategy %q", string(o.Strategy))
	}
	if o.SamplingRate != nil {
		if s.rate = *o.SamplingRate; !(s.rate >= 0 && s.rate <= 1) {
			return module.Errorf(module.CodeConfigInvalid, "observability.tracing.sampling_rate is not between 0 and 1")
		}
	}
	if o.Provider != nil && s.strategy != TraceOff {
		s.tracer = o.Provider.Tracer("github.com/apbus/apbus/executor/middleware")
	}
	t.set.Store(s)
	return nil
}

// Name returns "tracing".
func (*Tracing) Name() string { return "tracing" }

// Priority returns 1000: the span holds all other middlewares.
func (*Tracing) Priority() int { return MaxPriority }

// Single marks that one is enough.
func (*Tracing) Single() {}

// traced is the state of one run. span is nil where only a failure is traced.
type traced struct {
	span    trace.Span
	tracer  trace.Tracer
	ctx     context.Context // the parent of a span that begins at the end
	started time.Time
}

// Before decides at the root, and starts the span.
func (t *Tracing) Before(ctx context.Context, call *Call) (map[string]any, error) {
	s := t.set.Load()
	if s.tracer == nil || call.Context == nil {
		return nil, nil
	}
	sampled := s.sampled(call.Context)
	if !sampled && s.strategy != TraceErrorFirst {
		return nil, nil
	}
	ctx = parented(ctx, call.Context)
	run := &traced{tracer: s.tracer, ctx: ctx, started: time.Now()}
	call.SetState(t, run)
	if !sampled {
		return nil, nil
	}
	ctx, span := s.tracer.Start(ctx, SpanName, trace.WithTimestamp(run.started), trace.WithAttributes(startAttributes(call)...))
	run.span = span
	if sc := span.SpanContext(); sc.IsValid() {
		call.Context.Data().Set(DataTracingSpanID, sc.SpanID().String())
	}
	call.Derive(ctx)
	return nil, nil
}

// End ends the span.
func (t *Tracing) End(_ context.Context, call *Call, err *module.Error) {
	run, _ := call.State(t).(*traced)
	if run == nil {
		return
	}
	ended := time.Now()
	if run.span == nil {
		if err == nil {
			return
		}
		_, run.span = run.tracer.Start(run.ctx, SpanName, trace.WithTimestamp(run.started), trace.WithAttributes(startAttributes(call)...))
	}
	attrs := append(make([]attribute.KeyValue, 0, 3),
		attribute.Float64("duration_ms", float64(ended.Sub(run.started))/float64(time.Millisecond)),
		attribute.Bool("success", err == nil))
	if err != nil {
		attrs = append(attrs, attribute.String("error_code", string(err.Code)))
		run.span.SetStatus(codes.Error, string(err.Code)) // the message may quote values
	} else {
		run.span.SetStatus(codes.Ok, "")
	}
	run.span.SetAttributes(attrs...)
	run.span.End(trace.WithTimestamp(ended))
}

func startAttributes(call *Call) []attribute.KeyValue {
	attrs := append(make([]attribute.KeyValue, 0, 4),
		attribute.String("module_id", call.ModuleID), attribute.String("method", "execute"))
	if caller := call.Context.CallerID(); caller != "" {
		attrs = append(attrs, attribute.String("caller_id", caller))
	}
	if id := call.Context.Call().ID; id != "" {
		attrs = append(attrs, attribute.String("call_id", id))
	}
	return attrs
}

// sampled inherits the tree's decision or makes it.
func (s *tracingSet) sampled(c *module.Context) bool {
	data := c.Data()
	if v, ok := data.Get(DataTracingSampled); ok {
		if decided, ok := v.(bool); ok {
			return decided
		}
	}
	decided := s.strategy == TraceFull || traceShare(c.TraceID()) < s.rate
	if flags, _ := data.Get(module.DataTraceFlags); decided && s.strategy == TraceProportional && flags == "00" {
		decided = false // who called from outside does not sample this trace
	}
	data.Set(DataTracingSampled, decided)
	return decided
}

// traceShare maps a trace ID to [0,1): its lower half is random in every version of
// the W3C standard.
func traceShare(traceID string) float64 {
	var raw [8]byte
	if len(traceID) != 32 {
		return 0
	}
	if _, err := hex.Decode(raw[:], []byte(traceID[16:])); err != nil {
		return 0
	}
	return float64(binary.BigEndian.Uint64(raw[:])>>11) / (1 << 53)
}

// parented gives a context without a span a remote parent, so that the span gets
// the Context's trace ID: the caller's span where it is known, from the data key
// or from what came with the call. Else the parent's ID is made of the trace ID,
// the same on every node.
func parented(ctx context.Context, c *module.Context) context.Context {
	if trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	traceID, err := trace.TraceIDFromHex(c.TraceID())
	if err != nil {
		return ctx
	}
	var spanID trace.SpanID
	flags := trace.FlagsSampled
	if v, _ := c.Data().Get(DataTraceParentID); v != nil {
		if text, _ := v.(string); text != "" {
			spanID, _ = trace.SpanIDFromHex(text) // zero when malformed
		}
	}
	if tp := c.Call().TraceParent; tp != nil && tp.TraceID == c.TraceID() && !spanID.IsValid() {
		spanID, _ = trace.SpanIDFromHex(tp.ParentID)
		if raw, err := hex.DecodeString(tp.Flags); err == nil && len(raw) == 1 && spanID.IsValid() {
			flags = trace.TraceFlags(raw[0])
		}
	}
	if !spanID.IsValid() {
		copy(spanID[:], traceID[8:])
		if !spanID.IsValid() {
			spanID[7] = 1
		}
	}
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID, SpanID: spanID, TraceFlags: flags, Remote: true,
	}))
}
