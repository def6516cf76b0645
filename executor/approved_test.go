package executor_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

// enricher is a middleware that is declared to change inputs.
type enricher struct{ *middleware.Funcs }

func (enricher) EnrichesInputs() bool { return true }

// What runs is what was approved, except for what a declared enricher added.
func TestApprovedInputsAreKept(t *testing.T) {
	adds := func(label, key string) *middleware.Funcs {
		return middleware.UseBefore(label, func(_ context.Context, c *middleware.Call) (map[string]any, error) {
			in := map[string]any{key: "added"}
			for k, v := range c.Inputs {
				in[k] = v
			}
			return in, nil
		})
	}
	same := middleware.UseBefore("same", func(_ context.Context, c *middleware.Call) (map[string]any, error) {
		return maps.Clone(c.Inputs), nil
	})
	inPlace := func(label string) *middleware.Funcs {
		return middleware.UseBefore(label, func(_ context.Context, c *middleware.Call) (map[string]any, error) {
			c.Inputs["n"] = int64(99)
			return nil, nil
		})
	}
	deep := middleware.UseBefore("deep", func(_ context.Context, c *middleware.Call) (map[string]any, error) {
		c.Inputs["list"].([]any)[0].(map[string]any)["n"] = int64(99)
		return nil, nil
	})
	field := middleware.UseBefore("field", func(_ context.Context, c *middleware.Call) (map[string]any, error) {
		c.Inputs = map[string]any{"n": int64(99)}
		return nil, nil
	})
	meddling := &executor.Step{Name: "meddling", Run: func(_ context.Context, p *executor.Pipeline) (*executor.StepResult, error) {
		p.SetInputs(map[string]any{"n": int64(99)})
		return nil, nil
	}}
	after := func(anchor string) *executor.Strategy {
		s := executor.Standard()
		if err := s.InsertAfter(anchor, meddling); err != nil {
			t.Fatal(err)
		}
		return s
	}
	withoutStep7 := executor.Standard()
	if err := withoutStep7.Remove(executor.StepInputValidation); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		needs  bool
		opts   []executor.Option
		told   []string // enrichers in the request
		denied string   // in the reason; "" runs
	}{
		{"nothing changes them", true, nil, nil, ""},
		{"replaced by equal ones", true, []executor.Option{executor.WithMiddleware(same)}, nil, ""},
		{"undeclared", true, []executor.Option{executor.WithMiddleware(adds("sly", "x"))}, nil, "sly"},
		{"declared", true, []executor.Option{executor.WithMiddleware(enricher{adds("tenant", "x")})}, []string{"tenant"}, ""},
		{"one of each", true, []executor.Option{executor.WithMiddleware(enricher{adds("tenant", "x")}, adds("sly", "y"))}, []string{"tenant"}, "sly"},
		{"in place", true, []executor.Option{executor.WithMiddleware(inPlace("sly"))}, nil, "sly"},
		{"deep in place", true, []executor.Option{executor.WithMiddleware(deep)}, nil, "deep"},
		{"the call's own field", true, []executor.Option{executor.WithMiddleware(field)}, nil, "field"},
		{"in place before an enricher", true, []executor.Option{executor.WithMiddleware(inPlace("sly"), enricher{adds("tenant", "x")})}, []string{"tenant"}, "sly"},
		{"in place after an enricher", true, []executor.Option{executor.WithMiddleware(enricher{adds("tenant", "x")}, inPlace("sly"))}, []string{"tenant"}, "sly"},
		{"an enricher in place", true, []executor.Option{executor.WithMiddleware(enricher{inPlace("tenant")})}, []string{"tenant"}, ""},
		{"a step and an enricher", true, []executor.Option{executor.WithMiddleware(enricher{adds("tenant", "x")}), executor.WithStrategy(after(executor.StepApprovalGate))}, []string{"tenant"}, "changed"},
		{"an enricher and a step", true, []executor.Option{executor.WithMiddleware(enricher{adds("tenant", "x")}), executor.WithStrategy(after(executor.StepInputValidation))}, []string{"tenant"}, "changed"},
		{"no approval, no bond", false, []executor.Option{executor.WithMiddleware(adds("sly", "x"))}, nil, ""},
		{"by a step after the gate", true, []executor.Option{executor.WithStrategy(after(executor.StepApprovalGate))}, nil, "changed"},
		{"by a step after the validation", true, []executor.Option{executor.WithStrategy(after(executor.StepInputValidation))}, nil, "changed"},
		{"without step 7", true, []executor.Option{executor.WithStrategy(withoutStep7), executor.WithMiddleware(adds("sly", "x"))}, nil, "sly"},
	}
	for _, tt := range tests {
		for _, how := range []string{"call", "stream"} {
			t.Run(how+": "+tt.name, func(t *testing.T) {
				ran := false
				work := func(map[string]any) map[string]any { ran = true; return map[string]any{} }
				plain := fn("m", func(_ context.Context, in map[string]any) (map[string]any, error) { return work(in), nil })
				plain.desc.Annotations.RequiresApproval = tt.needs
				var m module.Module = plain
				if how == "stream" {
					streaming := streams("m", func(_ context.Context, in map[string]any, yield func(module.Chunk, error) bool) { yield(work(in), nil) })
					streaming.desc.Annotations.RequiresApproval = tt.needs
					m = streaming
				}
				var last module.Event
				x := setup{modules: []module.Module{m}, opts: append([]executor.Option{
					executor.WithEvents(func(e module.Event) { last = e }),
					executor.WithApproval(approval.Callback(func(_ context.Context, r *approval.Request) (*approval.Result, error) {
						if !slices.Equal(r.Enrichers, tt.told) {
							t.Errorf("the reviewer was told of %v, want %v", r.Enrichers, tt.told)
						}
						return &approval.Result{Status: approval.Approved}, nil
					}))}, tt.opts...)}.executor(t)
				inputs := map[string]any{"n": int64(1), "list": []any{map[string]any{"n": int64(1)}}}
				var err error
				if how == "stream" {
					_, err = read(x.Stream(t.Context(), "m", inputs))
				} else {
					_, err = x.Call(t.Context(), "m", inputs)
				}
				if tt.denied == "" {
					if err != nil || !ran {
						t.Errorf("= %v, ran %v", err, ran)
					}
					return
				}
				wantCode(t, err, module.CodeApprovalDenied)
				if reason, _ := last.Data["reason"].(string); ran || last.Data["status"] != "rejected" || !strings.Contains(reason, tt.denied) {
					t.Errorf("ran %v, last event %+v", ran, last)
				}
			})
		}
	}
}

// A preview that changes what it is shown changes nothing that may run.
func TestPreviewCannotChangeWhatIsApproved(t *testing.T) {
	ran := false
	m := &hooked{mod: mod{desc: module.Descriptor{ID: "m", Annotations: module.Annotations{RequiresApproval: true}}, execute: func(context.Context, map[string]any) (map[string]any, error) {
		ran = true
		return map[string]any{}, nil
	}}}
	m.preview = func(_ context.Context, in map[string]any) (*module.PreviewResult, error) {
		in["n"] = int64(99)
		return nil, nil
	}
	x := setup{modules: []module.Module{m}, opts: []executor.Option{
		executor.WithApproval(approval.Callback(func(_ context.Context, r *approval.Request) (*approval.Result, error) {
			r.Preview()
			return &approval.Result{Status: approval.Approved}, nil
		}))}}.executor(t)
	_, err := x.Call(t.Context(), "m", map[string]any{"n": int64(1)})
	if wantCode(t, err, module.CodeApprovalDenied); ran {
		t.Error("the module ran")
	}
}

// A retry runs what was approved, not what somebody makes of it on the way.
func TestRetryKeepsToWhatWasApproved(t *testing.T) {
	for _, tt := range []struct {
		name  string
		retry func(c *middleware.Call) map[string]any
		asked int
	}{
		{"the original inputs", func(c *middleware.Call) map[string]any { return c.Original() }, 1},
		{"other inputs", func(*middleware.Call) map[string]any { return map[string]any{"n": int64(2)} }, 2},
		{"changed in place", func(c *middleware.Call) map[string]any { c.Inputs["n"] = int64(3); return c.Inputs }, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked, runs := 0, 0
			m := fn("m", func(context.Context, map[string]any) (map[string]any, error) {
				if runs++; runs == 1 {
					return nil, module.Errorf(module.CodeModuleExecuteError, "once")
				}
				return map[string]any{}, nil
			})
			m.desc.Annotations.RequiresApproval = true
			again := &middleware.Funcs{Label: "again", OnFailure: func(_ context.Context, c *middleware.Call, _ *module.Error) (middleware.Recovery, error) {
				return middleware.Recovery{Retry: tt.retry(c)}, nil
			}}
			x := setup{modules: []module.Module{m}, opts: []executor.Option{
				executor.WithMiddleware(again),
				executor.WithApproval(approval.Callback(func(context.Context, *approval.Request) (*approval.Result, error) {
					asked++
					return &approval.Result{Status: approval.Approved}, nil
				}))}}.executor(t)
			if _, err := x.Call(t.Context(), "m", map[string]any{"n": int64(1)}); err != nil || runs != 2 || asked != tt.asked {
				t.Errorf("%v, %d runs, approval asked for %d times, want %d", err, runs, asked, tt.asked)
			}
		})
	}
}
