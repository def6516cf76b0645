package executor_test

import (
	"context"
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
		return map[string]any{"n": c.Inputs["n"]}, nil
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
		{"no approval, no bond", false, []executor.Option{executor.WithMiddleware(adds("sly", "x"))}, nil, ""},
		{"by a step after the gate", true, []executor.Option{executor.WithStrategy(after(executor.StepApprovalGate))}, nil, "changed"},
		{"by a step after the validation", true, []executor.Option{executor.WithStrategy(after(executor.StepInputValidation))}, nil, "changed"},
		{"without step 7", true, []executor.Option{executor.WithStrategy(withoutStep7), executor.WithMiddleware(adds("sly", "x"))}, nil, "sly"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ran := false
			m := fn("m", func(context.Context, map[string]any) (map[string]any, error) {
				ran = true
				return map[string]any{}, nil
			})
			m.desc.Annotations.RequiresApproval = tt.needs
			var last module.Event
			x := setup{modules: []module.Module{m}, opts: append([]executor.Option{
				executor.WithEvents(func(e module.Event) { last = e }),
				executor.WithApproval(approval.Callback(func(_ context.Context, r *approval.Request) (*approval.Result, error) {
					if !slices.Equal(r.Enrichers, tt.told) {
						t.Errorf("the reviewer was told of %v, want %v", r.Enrichers, tt.told)
					}
					return &approval.Result{Status: approval.Approved}, nil
				}))}, tt.opts...)}.executor(t)
			_, err := x.Call(t.Context(), "m", map[string]any{"n": int64(1)})
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
