package bus_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

const (
	someTrace  = "0af7651916cd43dd8448eb211c80319c"
	someParent = "b7ad6b7169203331"
)

// spans records what ends, at once.
func spans() (*sdktrace.TracerProvider, *tracetest.SpanRecorder) {
	r := tracetest.NewSpanRecorder()
	return sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r)), r
}

// family shows spans in the order of their ends, each with its parent's name, or
// with the ID of a parent that is none of them.
func family(r *tracetest.SpanRecorder) []string {
	names := map[trace.SpanID]string{}
	for _, s := range r.Ended() {
		names[s.SpanContext().SpanID()] = s.Name()
	}
	var out []string
	for _, s := range r.Ended() {
		line := s.Name()
		switch parent := s.Parent(); {
		case !parent.IsValid():
		case names[parent.SpanID()] != "":
			line += " < " + names[parent.SpanID()]
		default:
			line += " < " + parent.SpanID().String()
		}
		for _, a := range s.Attributes() {
			if a.Key == "module_id" || a.Key == "error_code" || a.Key == "attempts" {
				line += " " + a.Value.String()
			}
		}
		out = append(out, line)
	}
	return out
}

// traced is a mesh with a node n1 of host and a client, both with spans.
func traced(m *mesh, host bus.Host) (*bus.Client, *tracetest.SpanRecorder) {
	m.t.Helper()
	provider, r := spans()
	m.node("n1", host, func(o *bus.NodeOptions) { o.TracerProvider = provider })
	conns := m.conns()
	c, err := bus.NewClient(conns, bus.ClientOptions{Name: "test", Logger: quiet(), TracerProvider: provider})
	if err != nil {
		m.t.Fatal(err)
	}
	m.undo = append(m.undo, c.Close)
	return c, r
}

// onTrace is a Context of someTrace.
func onTrace() *module.Context {
	return module.NewContext(module.ContextOptions{TraceParent: &module.TraceParent{TraceID: someTrace}})
}

func TestSpansOfAHop(t *testing.T) {
	// mod.x answers with the trace it is in and the span it is below.
	where := func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
		out := map[string]any{"trace": req.Context.TraceID(), "span": trace.SpanContextFromContext(ctx).SpanID().String(), "header": ""}
		if tp := req.TraceParent; tp != nil {
			out["header"] = tp.TraceID + "-" + tp.ParentID
		}
		return out, nil
	}
	for _, tt := range []struct {
		name string
		call func(m *mesh, c *bus.Client, p trace.TracerProvider) (map[string]any, error)
		want []string
		in   string // the trace, when it is known
	}{
		{
			name: "a call of nobody begins a trace",
			call: func(m *mesh, c *bus.Client, _ trace.TracerProvider) (map[string]any, error) {
				return c.Call(m.t.Context(), "mod.x", nil)
			},
			want: []string{"apbus.serve < apbus.call mod.x", "apbus.call mod.x 1"},
		},
		{
			name: "a call in a span",
			call: func(m *mesh, c *bus.Client, p trace.TracerProvider) (map[string]any, error) {
				ctx, span := p.Tracer("test").Start(m.t.Context(), "outer")
				defer span.End()
				return c.Call(ctx, "mod.x", nil)
			},
			want: []string{"apbus.serve < apbus.call mod.x", "apbus.call < outer mod.x 1", "outer"},
		},
		{
			name: "a Context whose parent span is in the headers",
			call: func(m *mesh, c *bus.Client, _ trace.TracerProvider) (map[string]any, error) {
				r, err := c.Invoke(m.t.Context(), &contextwire.Request{
					ModuleID: "mod.x", Context: onTrace(), TraceParent: &module.TraceParent{TraceID: someTrace, ParentID: someParent},
				})
				return r.Output, err
			},
			want: []string{"apbus.serve < apbus.call mod.x", "apbus.call < " + someParent + " mod.x 1"},
			in:   someTrace,
		},
		{
			name: "a Context of another trace than the span around it",
			call: func(m *mesh, c *bus.Client, p trace.TracerProvider) (map[string]any, error) {
				ctx, span := p.Tracer("test").Start(m.t.Context(), "outer")
				defer span.End()
				r, err := c.Invoke(ctx, &contextwire.Request{ModuleID: "mod.x", Context: onTrace()})
				return r.Output, err
			},
			want: []string{"apbus.serve < apbus.call mod.x", "apbus.call < " + someTrace[16:] + " mod.x 1", "outer"},
			in:   someTrace,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onMesh(t, func(m *mesh) {
				provider, _ := spans()
				c, r := traced(m, newStubHost().add("mod.x", module.Annotations{}, where))
				m.wait(c, "mod.x")
				if strings.Contains(strings.Join(tt.want, " "), "outer") {
					provider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r))
				}
				out, err := tt.call(m, c, provider)
				if err != nil {
					m.t.Fatal(err)
				}
				if d := cmp.Diff(tt.want, family(r)); d != "" {
					m.t.Error(d)
				}
				serve := r.Ended()[0].SpanContext()
				if out["trace"] != serve.TraceID().String() || (tt.in != "" && out["trace"] != tt.in) {
					m.t.Errorf("the Context is of trace %v, its spans of %v", out["trace"], serve.TraceID())
				}
				if out["span"] != serve.SpanID().String() || out["header"] != serve.TraceID().String()+"-"+serve.SpanID().String() {
					m.t.Errorf("the module is below %v, header %v, want %v", out["span"], out["header"], serve.SpanID())
				}
				if links := len(r.Ended()[1].Links()); (links == 1) != strings.Contains(tt.name, "another trace") {
					m.t.Errorf("%d links", links)
				}
			})
		})
	}
}

func TestSpansOfForeignCallers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		header nats.Header
		want   []string
		trace  string
	}{
		{"bare, without a trace", nil, []string{"apbus.serve mod.echo"}, ""},
		{"bare, in a trace", nats.Header{"traceparent": {"00-" + someTrace + "-" + someParent + "-01"}}, []string{"apbus.serve < " + someParent + " mod.echo"}, someTrace},
		{"bare, in a trace that is not sampled", nats.Header{"traceparent": {"00-" + someTrace + "-" + someParent + "-00"}}, nil, someTrace},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onMesh(t, func(m *mesh) {
				c, r := traced(m, newStubHost().add("mod.echo", module.Annotations{}, echo))
				m.wait(c, "mod.echo")
				reply, err := m.conns().Calls.Request(m.t.Context(), &nats.Msg{Subject: anyHost("mod.echo"), Header: tt.header, Data: []byte(`{}`)})
				if err != nil {
					m.t.Fatal(err)
				}
				got, err := contextwire.DecodeMap(contextwire.JSON, reply.Data, contextwire.DefaultLimits())
				if err != nil {
					m.t.Fatal(err)
				}
				if d := cmp.Diff(tt.want, family(r)); d != "" {
					m.t.Error(d)
				}
				want := tt.trace
				if want == "" {
					want = r.Ended()[0].SpanContext().TraceID().String()
				}
				if got["trace_id"] != want {
					m.t.Errorf("the Context is of trace %v, want %v", got["trace_id"], want)
				}
			})
		})
	}
}

func TestSpansOfRetriesAndFailures(t *testing.T) {
	onMesh(t, func(m *mesh) {
		n := 0
		c, r := traced(m, newStubHost().add("mod.x", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
			if n++; n == 1 {
				return nil, refusal(module.CodeBusOverloaded)
			}
			return nil, module.Errorf(module.CodeModuleExecuteError, "secret")
		}))
		m.wait(c, "mod.x")
		_, err := c.Call(m.t.Context(), "mod.x", nil)
		wantCode(m.t, err, module.CodeModuleExecuteError)
		want := []string{
			"apbus.serve < apbus.call mod.x BUS_OVERLOADED",
			"apbus.serve < apbus.call mod.x MODULE_EXECUTE_ERROR",
			"apbus.call mod.x 2 MODULE_EXECUTE_ERROR",
		}
		if d := cmp.Diff(want, family(r)); d != "" {
			m.t.Error(d)
		}
		call := r.Ended()[2]
		if events := call.Events(); len(events) != 1 || events[0].Name != "retry" {
			m.t.Errorf("events %v", events)
		}
		if call.Status().Description != "MODULE_EXECUTE_ERROR" {
			m.t.Errorf("status %v", call.Status())
		}
		// A check runs nothing and has no span (decision D-143).
		if _, err := c.Check(m.t.Context(), &contextwire.Request{ModuleID: "mod.x"}); err != nil {
			m.t.Error(err)
		}
		if got := len(r.Ended()); got != 3 {
			m.t.Errorf("%d spans after a check", got)
		}
	})
}

// Processes that make no spans pass the caller's on, as the W3C asks.
func TestTraceParentPassesThrough(t *testing.T) {
	onMesh(t, func(m *mesh) {
		var inner *bus.Client
		var seen *module.TraceParent
		host := newStubHost()
		host.add("mod.inner", module.Annotations{}, func(_ context.Context, req *contextwire.Request) (map[string]any, error) {
			seen = req.TraceParent
			return map[string]any{}, nil
		}).add("mod.outer", module.Annotations{}, func(ctx context.Context, req *contextwire.Request) (map[string]any, error) {
			// As an executor does: the call's own Context knows what came with it.
			c := req.Context.Enter("mod.outer", module.CallScope{Call: module.CallInfo{ID: req.CallID, TraceParent: req.TraceParent}})
			return inner.Call(module.WithContext(ctx, c), "mod.inner", nil)
		})
		m.node("n1", host)
		c := m.client()
		inner = c
		m.wait(c, "mod.inner", "mod.outer")
		_, err := c.Invoke(m.t.Context(), &contextwire.Request{ModuleID: "mod.outer", Context: onTrace(), TraceParent: &module.TraceParent{
			TraceID: someTrace, ParentID: someParent, Flags: "00", State: []module.TraceState{{Key: "vendor", Value: "1"}},
		}})
		if err != nil {
			m.t.Fatal(err)
		}
		want := &module.TraceParent{Version: "00", TraceID: someTrace, ParentID: someParent, Flags: "00", State: []module.TraceState{{Key: "vendor", Value: "1"}}}
		if d := cmp.Diff(want, seen); d != "" {
			m.t.Error(d)
		}
	})
}
