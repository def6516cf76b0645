package middleware_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// recorder is a tracer provider that keeps finished spans.
type recorder struct {
	noop.TracerProvider
	mu    sync.Mutex
	begun int
	spans []*span
}

func (r *recorder) Tracer(string, ...trace.TracerOption) trace.Tracer { return &tracer{to: r} }

func (r *recorder) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, s := range r.spans {
		out = append(out, fmt.Sprint(s.attrs["module_id"].AsString(), " ", s.status))
	}
	return out
}

type tracer struct {
	noop.Tracer
	to *recorder
}

func (t *tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	cfg := trace.NewSpanStartConfig(opts...)
	parent := trace.SpanContextFromContext(ctx)
	t.to.mu.Lock()
	t.to.begun++
	n := t.to.begun
	t.to.mu.Unlock()
	s := &span{to: t.to, name: name, parent: parent, began: cfg.Timestamp(), attrs: map[attribute.Key]attribute.Value{}}
	s.context = trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: parent.TraceID(), SpanID: trace.SpanID{0xaa, 7: byte(n)}, TraceFlags: trace.FlagsSampled,
	})
	s.SetAttributes(cfg.Attributes()...)
	return trace.ContextWithSpan(ctx, s), s
}

type span struct {
	noop.Span
	to           *recorder
	name         string
	context      trace.SpanContext
	parent       trace.SpanContext
	began, ended time.Time
	attrs        map[attribute.Key]attribute.Value
	status       codes.Code
	description  string
}

func (s *span) SpanContext() trace.SpanContext { return s.context }
func (s *span) IsRecording() bool              { return true }

func (s *span) SetAttributes(kv ...attribute.KeyValue) {
	for _, a := range kv {
		s.attrs[a.Key] = a.Value
	}
}

func (s *span) SetStatus(c codes.Code, description string) { s.status, s.description = c, description }

func (s *span) End(opts ...trace.SpanEndOption) {
	cfg := trace.NewSpanEndConfig(opts...)
	s.ended = cfg.Timestamp()
	s.to.mu.Lock()
	defer s.to.mu.Unlock()
	s.to.spans = append(s.to.spans, s)
}

func newTracing(o middleware.TracingOptions) *middleware.Tracing {
	return made(middleware.NewTracing(o))
}

func TestTracingSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			name   string
			run    func(context.Context, int) *module.Error
			want   map[string]any
			status codes.Code
		}{
			{"success", working, obj{"success": true}, codes.Ok},
			{"failure", failing(module.CodeModuleExecuteError), obj{"success": false, "error_code": "MODULE_EXECUTE_ERROR"}, codes.Error},
			{"cancelled", failing(module.CodeExecutionCancelled), obj{"success": false, "error_code": "EXECUTION_CANCELLED"}, codes.Error},
		} {
			r := &recorder{}
			c := chain(t, newTracing(middleware.TracingOptions{Provider: r}))
			call := callOf("mail.send", "shop.notify")
			drive(t.Context(), c, call, func(ctx context.Context, n int) *module.Error {
				if got := trace.SpanContextFromContext(ctx); got.SpanID().String() != "aa00000000000001" {
					t.Errorf("%s: the module sees span %s", tt.name, got.SpanID())
				}
				time.Sleep(1500 * time.Microsecond)
				return tt.run(ctx, n)
			})
			if len(r.spans) != 1 || r.begun != 1 {
				t.Fatalf("%s: %d of %d spans ended", tt.name, len(r.spans), r.begun)
			}
			s := r.spans[0]
			got := obj{}
			for k, v := range s.attrs {
				got[string(k)] = v.AsInterface()
			}
			want := obj{"module_id": "mail.send", "method": "execute", "caller_id": "shop.notify", "duration_ms": 1.5}
			for k, v := range tt.want {
				want[k] = v
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: attributes (-want +got):\n%s", tt.name, diff)
			}
			if s.name != "apcore.module.execute" || s.status != tt.status || s.ended.Sub(s.began) != 1500*time.Microsecond {
				t.Errorf("%s: name %s, status %v, took %v", tt.name, s.name, s.status, s.ended.Sub(s.began))
			}
			if s.context.TraceID().String() != call.Context.TraceID() || !s.parent.IsRemote() {
				t.Errorf("%s: trace %s, want that of the call", tt.name, s.context.TraceID())
			}
			if strings.Contains(s.description, "no") {
				t.Errorf("%s: the status shows the error's text", tt.name)
			}
			if id, _ := call.Context.Data().Get(middleware.DataTracingSpanID); id != "aa00000000000001" {
				t.Errorf("%s: noted span %v", tt.name, id)
			}
		}
	})
}

func TestTracingParents(t *testing.T) {
	r := &recorder{}
	c := chain(t, newTracing(middleware.TracingOptions{Provider: r}))
	outer := callOf("a.outer", "")
	drive(t.Context(), c, outer, func(ctx context.Context, _ int) *module.Error {
		inner := &middleware.Call{ModuleID: "a.inner", Context: outer.Context.Child("a.inner")}
		return drive(ctx, c, inner, working).err
	})
	if len(r.spans) != 2 || r.spans[0].parent.SpanID() != r.spans[1].context.SpanID() {
		t.Errorf("the inner span is not below the outer one")
	}

	known := callOf("a.b", "")
	known.Context.Data().Set(middleware.DataTraceParentID, "00f067aa0ba902b7")
	drive(t.Context(), c, known, working)
	if got := r.spans[2].parent.SpanID().String(); got != "00f067aa0ba902b7" {
		t.Errorf("parent %s", got)
	}

	foreign := callOf("a.b", "")
	foreign.Context = module.RestoreContext(module.ContextWire{TraceID: "550e8400-e29b-41d4-a716-446655440000"})
	drive(t.Context(), c, foreign, working)
	if len(r.spans) != 4 || r.spans[3].parent.IsValid() {
		t.Error("a trace id that is none became a parent")
	}
}

func TestTracingStrategies(t *testing.T) {
	rate := func(f float64) *float64 { return &f }
	const low, high = "4bf92f3577b34da6000000000e0e4736", "4bf92f3577b34da6fffffffffffff736"
	bad := failing(module.CodeModuleExecuteError)
	for _, tt := range []struct {
		name    string
		o       middleware.TracingOptions
		traceID string
		flags   string
		run     func(context.Context, int) *module.Error
		want    int // spans of a call and the one below it
	}{
		{"full", middleware.TracingOptions{}, high, "", working, 2},
		{"full whatever the rate", middleware.TracingOptions{Strategy: middleware.TraceFull, SamplingRate: rate(0)}, high, "", working, 2},
		{"off", middleware.TracingOptions{Strategy: middleware.TraceOff}, low, "", bad, 0},
		{"in the share", middleware.TracingOptions{Strategy: middleware.TraceProportional, SamplingRate: rate(.5)}, low, "", working, 2},
		{"not in the share", middleware.TracingOptions{Strategy: middleware.TraceProportional, SamplingRate: rate(.5)}, high, "", bad, 0},
		{"rate 1", middleware.TracingOptions{Strategy: middleware.TraceProportional}, high, "", working, 2},
		{"rate 0", middleware.TracingOptions{Strategy: middleware.TraceProportional, SamplingRate: rate(0)}, low, "", working, 0},
		{"the caller does not sample", middleware.TracingOptions{Strategy: middleware.TraceProportional}, low, "00", working, 0},
		{"error first, in the share", middleware.TracingOptions{Strategy: middleware.TraceErrorFirst, SamplingRate: rate(.5)}, low, "", working, 2},
		{"error first, success", middleware.TracingOptions{Strategy: middleware.TraceErrorFirst, SamplingRate: rate(.5)}, high, "", working, 0},
		{"error first, failure", middleware.TracingOptions{Strategy: middleware.TraceErrorFirst, SamplingRate: rate(.5)}, high, "", bad, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{}
			tt.o.Provider = r
			c := chain(t, newTracing(tt.o))
			root := module.NewContext(module.ContextOptions{TraceParent: &module.TraceParent{TraceID: tt.traceID, Flags: tt.flags}})
			outer := &middleware.Call{ModuleID: "a.outer", Context: root.Child("a.outer")}
			drive(t.Context(), c, outer, func(ctx context.Context, _ int) *module.Error {
				return drive(ctx, c, &middleware.Call{ModuleID: "a.inner", Context: outer.Context.Child("a.inner")}, tt.run).err
			})
			if got := r.names(); len(got) != tt.want {
				t.Errorf("spans %v", got)
			}
		})
	}
}

// The tree keeps the decision of its root, even when the options change meanwhile.
func TestTracingInherits(t *testing.T) {
	r := &recorder{}
	tr := newTracing(middleware.TracingOptions{Provider: r})
	c := chain(t, tr)
	root := callOf("a.outer", "")
	drive(t.Context(), c, root, func(ctx context.Context, _ int) *module.Error {
		zero := 0.0
		if err := tr.Configure(middleware.TracingOptions{Provider: r, Strategy: middleware.TraceProportional, SamplingRate: &zero}); err != nil {
			t.Error(err)
		}
		return drive(ctx, c, &middleware.Call{ModuleID: "a.inner", Context: root.Context.Child("a.inner")}, working).err
	})
	drive(t.Context(), c, callOf("a.other", ""), working)
	if diff := cmp.Diff([]string{"a.inner Ok", "a.outer Ok"}, r.names()); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
}

// Each run of a retried call is a span.
func TestTracingRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		c := chain(t, newTracing(middleware.TracingOptions{Provider: r}), made(middleware.NewRetry(middleware.RetryConfig{MaxRetries: 1})))
		drive(t.Context(), c, callOf("a.b", ""), failing(module.CodeModuleTimeout))
		if len(r.spans) != 2 {
			t.Errorf("%d spans", len(r.spans))
		}
	})
}

func TestTracingConfigure(t *testing.T) {
	rate := 1.5
	for name, o := range map[string]middleware.TracingOptions{
		"strategy": {Strategy: "sometimes"}, "rate": {SamplingRate: &rate},
	} {
		_, err := middleware.NewTracing(o)
		wantInvalid(t, name, err, module.CodeConfigInvalid)
	}
	l := middleware.NewList(nil)
	if err := l.Use(newTracing(middleware.TracingOptions{})); err != nil {
		t.Fatal(err)
	}
	wantInvalid(t, "a second one", l.Use(newTracing(middleware.TracingOptions{})), module.CodeInvalidInput)
	_, err := middleware.NewChain(nil, newTracing(middleware.TracingOptions{}), newTracing(middleware.TracingOptions{}))
	wantInvalid(t, "two in a chain", err, module.CodeInvalidInput)
}

// Without a provider nothing is noted and nothing allocated.
func TestTracingWithoutProvider(t *testing.T) {
	c := chain(t, newTracing(middleware.TracingOptions{}))
	call, ctx := callOf("a.b", ""), t.Context()
	allocs := testing.AllocsPerRun(100, func() {
		_, n, _ := c.Before(ctx, call)
		c.End(ctx, call, n, nil)
	})
	if allocs != 0 || call.Context.Data().Len() != 0 {
		t.Errorf("%v allocations, %d keys", allocs, call.Context.Data().Len())
	}
}

func BenchmarkTracing(b *testing.B) {
	for name, p := range map[string]trace.TracerProvider{"none": nil, "noop": noop.NewTracerProvider()} {
		b.Run(name, func(b *testing.B) {
			c := made(middleware.NewChain(nil, newTracing(middleware.TracingOptions{Provider: p})))
			base, ctx := callOf("a.b", "c.d"), b.Context()
			b.ReportAllocs()
			for b.Loop() {
				call := *base
				_, n, _ := c.Before(ctx, &call)
				c.End(ctx, &call, n, nil)
			}
		})
	}
}
