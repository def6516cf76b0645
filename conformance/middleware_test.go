//go:build conformance

package conformance_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// swallowing recovers every failure and counts.
func swallowing(invoked *int) *middleware.Funcs {
	return &middleware.Funcs{Label: "swallowing", OnFailure: func(context.Context, *middleware.Call, *module.Error) (middleware.Recovery, error) {
		*invoked++
		return middleware.Recovery{Output: map[string]any{"recovered": true}}, nil
	}}
}

// driveErrorRecoveryHooks gives what the cases call after-middleware to the hook
// that runs when a call failed.
func driveErrorRecoveryHooks(c *kase) {
	invoked := []string{}
	var list []middleware.Middleware
	for _, n := range c.at("after_middleware").list() {
		id, returns := n.at("id").str(), n.at("returns").fields()
		list = append(list, &middleware.Funcs{Label: id,
			OnFailure: func(context.Context, *middleware.Call, *module.Error) (middleware.Recovery, error) {
				invoked = append(invoked, id)
				return middleware.Recovery{Output: returns}, nil
			}})
	}
	// The hooks run in reverse of their registration.
	for i, j := 0, len(list)-1; i < j; i, j = i+1, j-1 {
		list[i], list[j] = list[j], list[i]
	}
	m := trivial("demo.target")
	output := c.opt("module_output").fields()
	fails := c.at("module_raises_error").flag()
	m.execute = func(context.Context, map[string]any) (map[string]any, error) {
		if fails {
			return nil, errors.New("the module fails")
		}
		return output, nil
	}
	out, err := c.executor([]executor.Option{executor.WithMiddleware(list...)}, m).Call(c.t.Context(), "demo.target", nil)
	want := c.at("expected")
	switch outcome := want.at("outcome").str(); outcome {
	case "error":
		if err == nil {
			c.Errorf("no error, output %v", out)
		}
	case "success":
		c.wantCode(err, "")
		equal(c, "result", want.at("result").fields(), out)
	default:
		c.Fatalf("driver: unknown outcome %s", outcome)
	}
	equal(c, "invoked", want.at("after_middleware_invoked").strs(), invoked)
}

func driveMiddlewareHardening(c *kase) {
	in := c.at("input")
	switch {
	case in.has("writer"):
		driveDataKey(c, in)
	case in.has("otel_available"):
		driveTracing(c, in)
	case in.has("language"):
		in.raw()
		c.at("expected").raw()
		c.Errorf("asserts the API of another language")
	default:
		driveBreaker(c, in)
	}
}

func driveDataKey(c *kase, in *node) {
	in.at("value").raw()
	writer := in.at("writer").str()
	if writer != "framework" && writer != "user" {
		c.Fatalf("driver: unknown writer %s", writer)
	}
	valid, warning := middleware.CheckDataKey(writer == "framework", in.at("key").str())
	want := c.at("expected")
	equal(c, "valid", want.at("valid").flag(), valid)
	equal(c, "warning", want.at("warning").flag(), warning != "")
	want.opt("error").must(false)
}

// driveBreaker runs calls from the case's caller through an executor with a
// circuit breaker.
func driveBreaker(c *kase, in *node) {
	c.bubble(func(ctx context.Context) {
		id, caller := in.at("module_id").str(), in.at("caller_id").str()
		var mu sync.Mutex
		var events []string
		cfg := middleware.BreakerConfig{Emit: func(e module.Event) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e.Type)
		}}
		if in.has("open_threshold") {
			cfg.OpenThreshold, _ = in.at("open_threshold").raw().(float64)
			cfg.WindowSize = in.at("window_size").number()
		}
		recovery := 30 * time.Second
		if in.has("recovery_window_ms") {
			recovery = milliseconds(in.at("recovery_window_ms"))
		}
		cfg.RecoveryWindow = recovery
		b, err := middleware.NewCircuitBreaker(cfg)
		if err != nil {
			c.Fatalf("breaker: %v", err)
		}
		var fail atomic.Bool
		var reached atomic.Int32
		var hold atomic.Pointer[chan struct{}]
		m := function(id, func(context.Context, map[string]any) (map[string]any, error) {
			reached.Add(1)
			if h := hold.Load(); h != nil {
				<-*h
			}
			if fail.Load() {
				return nil, errors.New("the module fails")
			}
			return map[string]any{}, nil
		})
		x := c.executor([]executor.Option{executor.WithMiddleware(b)}, m)
		call := func(fails bool) error {
			fail.Store(fails)
			_, err := x.Call(inContext(ctx, caller, nil), id, nil)
			return err
		}
		open := func() {
			for range 20 {
				_ = call(true)
			}
			if got := b.State(id, caller); got != middleware.CircuitOpen {
				c.Fatalf("state %s after 20 failures", got)
			}
		}
		want := c.at("expected")
		probe := func() (release func(), refused error) {
			ch := make(chan struct{})
			hold.Store(&ch)
			fail.Store(false)
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = x.Call(inContext(ctx, caller, nil), id, nil) })
			synctest.Wait()
			_, refused = x.Call(inContext(ctx, caller, nil), id, nil)
			return func() { close(ch); wg.Wait() }, refused
		}
		state := in.opt("circuit_state").text()
		switch {
		case in.has("errors_in_window"):
			for range in.at("successes_in_window").number() {
				c.wantCode(call(false), "")
			}
			for range in.at("errors_in_window").number() {
				_ = call(true)
			}
			equal(c, "state", want.at("circuit_state").str(), string(b.State(id, caller)))
		case state == "OPEN" && want.has("error_code"):
			open()
			pause(milliseconds(in.at("ms_since_opened")))
			before := reached.Load()
			c.wantCode(call(false), want.at("error_code").str())
			equal(c, "module reached", want.at("module_reached").flag(), reached.Load() != before)
		case state == "OPEN":
			open()
			pause(milliseconds(in.at("ms_since_opened")))
			before := reached.Load()
			release, refused := probe()
			equal(c, "state", want.at("circuit_state").str(), string(b.State(id, caller)))
			equal(c, "probes", want.at("max_concurrent_probes").number(), int(reached.Load()-before))
			equal(c, "probe allowed", want.at("probe_call_allowed").flag(), reached.Load() > before)
			c.wantCode(refused, string(module.CodeCircuitBreakerOpen))
			release()
		case state == "HALF_OPEN":
			if in.at("probe_result").str() != "success" {
				c.Fatalf("driver: unknown result")
			}
			open()
			pause(recovery + time.Millisecond)
			release, _ := probe()
			equal(c, "state while probing", state, string(b.State(id, caller)))
			release()
			equal(c, "state", want.at("circuit_state").str(), string(b.State(id, caller)))
		default:
			c.Fatalf("driver: unknown case")
		}
		if name := want.opt("event_emitted").text(); name != "" {
			mu.Lock()
			defer mu.Unlock()
			if len(events) == 0 || events[len(events)-1] != name {
				c.Errorf("events %v, want %s last", events, name)
			}
		}
	})
}

// spans collects the spans that a provider made.
type spans struct {
	embedded.TracerProvider
	made []*span
}

type tracer struct {
	embedded.Tracer
	*spans
}

type span struct {
	noop.Span
	name  string
	attrs map[string]string
	id    trace.SpanContext
}

func (s *spans) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracer{spans: s} }

func (s tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	sp := &span{name: name, attrs: map[string]string{}}
	cfg := trace.NewSpanStartConfig(opts...)
	sp.SetAttributes(cfg.Attributes()...)
	sp.id = trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.SpanContextFromContext(ctx).TraceID(), SpanID: trace.SpanID{1, 2, 3, 4, 5, 6, 7, 8}, TraceFlags: trace.FlagsSampled,
	})
	s.made = append(s.made, sp)
	return trace.ContextWithSpan(ctx, sp), sp
}

func (s *span) SetAttributes(kv ...attribute.KeyValue) {
	for _, a := range kv {
		s.attrs[string(a.Key)] = a.Value.String()
	}
}

func (s *span) SpanContext() trace.SpanContext { return s.id }

func (s *span) IsRecording() bool { return true }

func driveTracing(c *kase, in *node) {
	provider := &spans{}
	var o middleware.TracingOptions
	if in.at("otel_available").flag() {
		o.Provider = provider
	}
	t, err := middleware.NewTracing(o)
	if err != nil {
		c.Fatalf("tracing: %v", err)
	}
	id := in.at("module_id").str()
	stored, ran := "", false
	m := function(id, func(ctx context.Context, _ map[string]any) (map[string]any, error) {
		ran = true
		v, _ := module.FromContext(ctx).Data().Get(middleware.DataTracingSpanID)
		stored, _ = v.(string)
		return map[string]any{}, nil
	})
	w := module.ContextWire{TraceID: in.at("trace_id").str(), CallChain: []string{in.at("caller_id").str()}}
	_, err = c.executor([]executor.Option{executor.WithMiddleware(t)}, m).Call(
		module.WithContext(c.t.Context(), module.RestoreContext(w)), id, nil)
	want := c.at("expected")
	for _, key := range want.keys() {
		n := want.at(key)
		switch key {
		case "span_created":
			equal(c, key, n.flag(), len(provider.made) == 1)
		case "span_name":
			if got := provider.made[0].name; got != n.str() {
				c.Errorf("span: name %s, want %s", got, n.str())
			}
		case "span_attributes":
			for _, name := range n.keys() {
				if got := provider.made[0].attrs[name]; got != n.at(name).str() {
					c.Errorf("span: attribute %s is %q, want %s", name, got, n.at(name).str())
				}
			}
		case "span_id_stored_in_context":
			equal(c, key, n.flag(), stored == provider.made[0].id.SpanID().String())
		case "context_key":
			equal(c, key, n.str(), middleware.DataTracingSpanID)
		case "error_raised":
			equal(c, key, n.flag(), err != nil)
		case "execution_continues":
			equal(c, key, n.flag(), ran)
		default:
			c.Fatalf("driver: unknown expectation %s", key)
		}
	}
}

func driveStorage(c *kase) {
	ctx := c.t.Context()
	s := middleware.NewMemoryStorage()
	// What collectors store are objects.
	object := func(n *node) map[string]any { return map[string]any{"value": n.raw()} }
	value := func(m map[string]any) any { return m["value"] }
	values := make(map[string]any)
	var last any
	keys := []string{}
	var raised error
	for _, op := range c.at("input").at("operations").list() {
		ns := op.at("namespace").str()
		var err error
		switch kind := op.at("op").str(); kind {
		case "save":
			err = s.Save(ctx, ns, op.at("key").str(), object(op.at("value")))
		case "get":
			var m map[string]any
			m, err = s.Get(ctx, ns, op.at("key").str())
			last = value(m)
			values[ns] = last
		case "list":
			var list []middleware.StorageEntry
			list, err = s.List(ctx, ns, op.opt("prefix").text())
			for _, e := range list {
				keys = append(keys, e.Key)
			}
		case "delete":
			err = s.Delete(ctx, ns, op.at("key").str())
		default:
			c.Fatalf("driver: unknown operation %s", kind)
		}
		if err != nil {
			raised = err
		}
	}
	want := c.at("expected")
	for _, key := range want.keys() {
		n := want.at(key)
		switch key {
		case "final_get_value":
			equal(c, key, n.raw(), last)
		case "matched_keys_sorted":
			equal(c, key, n.strs(), keys)
		case "raised_error":
			equal(c, key, n.flag(), raised != nil)
		case "errors_namespace_value":
			equal(c, key, n.raw(), values["errors"])
		case "metrics_namespace_value":
			equal(c, key, n.raw(), values["metrics"])
		default:
			c.Fatalf("driver: unknown expectation %s", key)
		}
	}
	// What one namespace holds the others neither give nor list.
	if err := s.Save(ctx, "alone", "only.here", map[string]any{"x": true}); err != nil {
		c.Errorf("save: %v", err)
	}
	got, err := s.Get(ctx, "other", "only.here")
	list, _ := s.List(ctx, "other", "")
	if got != nil || err != nil || len(list) != 0 {
		c.Errorf("another namespace shows %v, %v, %v", got, list, err)
	}
}
