package middleware_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// ending notes its ends.
type ending struct {
	j     *journal
	name  string
	rank  int
	panic bool
}

func (e *ending) Name() string  { return e.name }
func (e *ending) Priority() int { return e.rank }

func (e *ending) End(_ context.Context, _ *middleware.Call, err *module.Error) {
	e.j.add("end %s %s", e.name, module.CodeOf(asErr(err)))
	if e.panic {
		panic("secret")
	}
}

func TestEndOrder(t *testing.T) {
	var j journal
	var log bytes.Buffer
	c, err := middleware.NewChain(slog.New(slog.NewTextHandler(&log, nil)),
		&ending{&j, "low", 5, false}, &ending{&j, "bad", 500, true}, &ending{&j, "high", 900, false})
	if err != nil {
		t.Fatal(err)
	}
	call := newCall(nil)
	_, entered, err := c.Before(t.Context(), call)
	if err != nil || entered != 3 {
		t.Fatalf("entered %d, %v", entered, err)
	}
	c.End(t.Context(), call, entered, module.Errorf(module.CodeModuleTimeout, "no"))
	c.End(t.Context(), call, 1, nil)
	c.End(t.Context(), call, 0, nil)
	if diff := cmp.Diff([]string{"end low MODULE_TIMEOUT", "end bad MODULE_TIMEOUT", "end high MODULE_TIMEOUT", "end high "}, j.lines); diff != "" {
		t.Errorf("ends (-want +got):\n%s", diff)
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 || strings.Contains(log.String(), "secret") {
		t.Errorf("log:\n%s", log.String())
	}
	var none *middleware.Chain
	none.End(t.Context(), call, 3, nil)
}

type ctxKey struct{}

// A context that a before hook derives reaches the hooks after it and the executor.
func TestDerive(t *testing.T) {
	step := func(name string, rank int) *middleware.Funcs {
		m := middleware.UseBefore(name, func(ctx context.Context, call *middleware.Call) (map[string]any, error) {
			before, _ := ctx.Value(ctxKey{}).(string)
			call.Derive(context.WithValue(ctx, ctxKey{}, before+name))
			return nil, nil
		})
		m.Rank = &rank
		return m
	}
	call, ctx := newCall(nil), t.Context()
	if call.Derived(ctx) != ctx {
		t.Error("a context out of nothing")
	}
	if _, _, err := chain(t, step("b", 1), step("a", 2)).Before(ctx, call); err != nil {
		t.Fatal(err)
	}
	if got := call.Derived(ctx).Value(ctxKey{}); got != "ab" {
		t.Errorf("the executor gets %v", got)
	}
}

func TestOriginalAndFailure(t *testing.T) {
	c := chain(t, middleware.UseBefore("change", func(context.Context, *middleware.Call) (map[string]any, error) {
		return obj{"n": int64(2)}, nil
	}))
	call := newCall(obj{"n": int64(1)})
	if diff := cmp.Diff(obj{"n": int64(1)}, call.Original()); diff != "" {
		t.Errorf("before the chain: %s", diff)
	}
	if _, _, err := c.Before(t.Context(), call); err != nil {
		t.Fatal(err)
	}
	if call.Original()["n"] != int64(1) || call.Inputs["n"] != int64(2) {
		t.Errorf("original %v, inputs %v", call.Original(), call.Inputs)
	}
	e := module.Errorf(module.CodeModuleTimeout, "no")
	if call.Failure() != nil {
		t.Error("a failure before there is one")
	}
	c.OnError(t.Context(), call, 1, e)
	if call.Failure() != e {
		t.Errorf("failure %v", call.Failure())
	}
	if _, _, _ = c.Before(t.Context(), call); call.Failure() != nil {
		t.Error("another run begins with the failure of the one before")
	}
}

// Of some types one is enough, but others may stand beside it.
func TestSingle(t *testing.T) {
	l := middleware.NewList(slog.New(slog.DiscardHandler))
	h := middleware.NewErrorHistory(middleware.HistoryConfig{})
	first := middleware.NewRecordErrors(h)
	for _, m := range []middleware.Middleware{first, middleware.NewUsage(middleware.NewUsageCollector(middleware.UsageConfig{}))} {
		if err := l.Use(m); err != nil {
			t.Fatal(err)
		}
	}
	wantInvalid(t, "the same again", l.Use(first), module.CodeInvalidInput)
	wantInvalid(t, "another of its type", l.Use(middleware.NewRecordErrors(h), middleware.AllowDuplicate()), module.CodeInvalidInput)
	if !l.Remove(first) {
		t.Fatal("not there")
	}
	if err := l.Use(middleware.NewRecordErrors(h)); err != nil {
		t.Errorf("after the first one went: %v", err)
	}
}

// The built-in middlewares stand in the recommended bands and in this order.
func TestBuiltInOrder(t *testing.T) {
	c := chain(t,
		made(middleware.NewRetry(middleware.RetryConfig{})), newBreaker(middleware.BreakerConfig{}), middleware.NewDeadline(nil),
		middleware.NewLogging(middleware.LoggingOptions{}), middleware.NewUsage(nil), middleware.NewRecordErrors(nil),
		made(middleware.NewPlatformNotify(middleware.NotifyConfig{})), newTracing(middleware.TracingOptions{}))
	want := "[tracing usage error_history platform_notify deadline circuit_breaker logging retry]"
	if got := fmt.Sprint(c.Names()); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
