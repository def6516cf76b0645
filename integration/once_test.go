package integration_test

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

// tally counts what one node does, as "what module".
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *tally) add(what, moduleID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what+" "+moduleID]++
}

// take returns the counts and begins anew.
func (c *tally) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.counts
	c.counts = map[string]int{}
	return out
}

// Authorize lets everybody call everything but inner.denied.
func (c *tally) Authorize(_ context.Context, q acl.Query) acl.Decision {
	c.add("acl", q.TargetID)
	return acl.Decision{Allowed: q.TargetID != "inner.denied", RuleIndex: -1, Reason: "default_effect"}
}

func (c *tally) RequestApproval(_ context.Context, r *approval.Request) (*approval.Result, error) {
	c.add("approval", r.ModuleID)
	return &approval.Result{Status: approval.Approved, ApprovedBy: "test"}, nil
}

func (c *tally) CheckApproval(_ context.Context, token string, r *approval.Request) (*approval.Result, error) {
	c.add("approval token "+token, r.ModuleID)
	return &approval.Result{Status: approval.Approved, ApprovedBy: "test"}, nil
}

// BeforeStep counts the steps; those of a forwarded call are not among the ones
// that govern.
func (c *tally) BeforeStep(step string, state module.PipelineState) error {
	switch step {
	case executor.StepInputValidation, executor.StepOutputValidation, executor.StepACLCheck, executor.StepApprovalGate:
		chain := state.Context.CallChain()
		c.add("step "+step, chain[len(chain)-1])
	}
	return nil
}

func (c *tally) AfterStep(string, module.PipelineState, any) error { return nil }

func (c *tally) OnStepError(string, module.PipelineState, error) (any, bool) { return nil, false }

type innerIn struct {
	Value int    `json:"value" minimum:"0"`
	Card  string `json:"card,omitempty" sensitive:"true"`
}

type innerOut struct {
	Value int `json:"value" maximum:"100"`
}

// innerModule is owned by the second node.
func innerModule(id string, c *tally, opts ...module.Option) module.Module {
	return module.New(id, "Work for another node", func(_ context.Context, in innerIn) (innerOut, error) {
		c.add("run", id)
		if id == "inner.failing" {
			return innerOut{}, module.Errorf("INNER_FAILED", "failed as asked")
		}
		return innerOut{Value: in.Value}, nil
	}, opts...)
}

// outerModule is owned by the first node and calls whatever it is told to.
func outerModule(c *tally) module.Module {
	return module.New("outer.work", "Call another module", func(ctx context.Context, in struct {
		ID     string         `json:"id"`
		Inputs map[string]any `json:"inputs"`
	}) (map[string]any, error) {
		c.add("run", "outer.work")
		return module.Call(ctx, in.ID, in.Inputs)
	}, module.WithOutputSchema(map[string]any{"type": "object"}))
}

// countingNode is a node whose whole pipeline counts.
func countingNode(t *testing.T, server *bus.Embedded, id string, modules func(*tally) []module.Module) *tally {
	t.Helper()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	conns, err := bus.Connect(t.Context(), bus.Options{InProcess: server.Server(), Logger: quiet})
	must(err)
	t.Cleanup(conns.Close)
	client, err := bus.NewClient(conns, bus.ClientOptions{Name: id, Logger: quiet})
	must(err)
	t.Cleanup(client.Close)

	c := &tally{counts: map[string]int{}}
	reg := registry.New(registry.Options{Logger: quiet})
	for _, m := range modules(c) {
		must(reg.Register(m))
	}
	strategy := executor.Standard()
	strategy.AddStepMiddleware(c)
	x, err := executor.New(reg, executor.Config{},
		executor.WithLogger(quiet), executor.WithRemote(client), executor.WithStrategy(strategy),
		executor.WithACL(c), executor.WithApproval(c),
		executor.WithMiddleware(&middleware.Funcs{
			Label: "count",
			OnBefore: func(_ context.Context, call *middleware.Call) (map[string]any, error) {
				c.add("before", call.ModuleID)
				return nil, nil
			},
			OnAfter: func(_ context.Context, call *middleware.Call, _ map[string]any) (map[string]any, error) {
				c.add("after", call.ModuleID)
				return nil, nil
			},
			OnFailure: func(_ context.Context, call *middleware.Call, _ *module.Error) (middleware.Recovery, error) {
				c.add("on_error", call.ModuleID)
				return middleware.Recovery{}, nil
			},
		}),
		executor.WithObserver(executor.ObserverFunc(func(done executor.Completion) {
			what := "observed"
			if done.Err != nil {
				what += " " + string(done.Err.Code)
			}
			c.add(what, done.ModuleID)
			if in := done.Inputs(); in["card"] != nil && in["card"] == "4111" {
				c.add("observed a card", done.ModuleID)
			}
		})))
	must(err)
	node, err := bus.NewNode(conns, x, bus.NodeOptions{ID: id, Logger: quiet})
	must(err)
	t.Cleanup(func() { _ = node.Close() })
	return c
}

// TestGovernanceRunsOnceOnTheOwner calls a module through a module of another
// node and counts on both what governs a call: each happens once, on the node
// that owns the module called, however the call ends.
func TestGovernanceRunsOnceOnTheOwner(t *testing.T) {
	t.Parallel()
	server, err := bus.StartEmbedded(bus.EmbedOptions{NoListen: true, DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	n1 := countingNode(t, server, "n1", func(c *tally) []module.Module { return []module.Module{outerModule(c)} })
	n2 := countingNode(t, server, "n2", func(c *tally) []module.Module {
		return []module.Module{
			innerModule("inner.plain", c), innerModule("inner.denied", c), innerModule("inner.failing", c),
			innerModule("inner.approved", c, module.WithAnnotations(module.Annotations{RequiresApproval: true})),
		}
	})
	conns, err := bus.Connect(t.Context(), bus.Options{InProcess: server.Server(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conns.Close)
	client, err := bus.NewClient(conns, bus.ClientOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	for _, id := range []string{"outer.work", "inner.plain", "inner.denied", "inner.failing", "inner.approved"} {
		ctx, stop := context.WithTimeout(t.Context(), startLimit)
		if err := client.WaitModule(ctx, id); err != nil {
			t.Fatal(err)
		}
		stop()
	}

	for _, tt := range []struct {
		name   string
		module string
		inputs map[string]any
		code   module.Code
		want   map[string]int // on n2, beside "of inner"
	}{
		{
			"success", "inner.plain", map[string]any{"value": int64(1), "card": "4111"}, "",
			map[string]int{
				"acl": 1, "step acl_check": 1, "step approval_gate": 1, "before": 1, "step input_validation": 1, "run": 1,
				"step output_validation": 1, "after": 1, "observed": 1,
			},
		},
		{
			"denied", "inner.denied", map[string]any{"value": int64(1)}, module.CodeACLDenied,
			map[string]int{"acl": 1, "step acl_check": 1, "observed ACL_DENIED": 1},
		},
		{
			"needs an approval", "inner.approved", map[string]any{"value": int64(1)}, "",
			map[string]int{
				"acl": 1, "step acl_check": 1, "step approval_gate": 1, "approval": 1, "before": 1, "step input_validation": 1, "run": 1,
				"step output_validation": 1, "after": 1, "observed": 1,
			},
		},
		{
			"brings an approval", "inner.approved", map[string]any{"value": int64(1), "_approval_token": "tok"}, "",
			map[string]int{
				"acl": 1, "step acl_check": 1, "step approval_gate": 1, "approval token tok": 1, "before": 1, "step input_validation": 1, "run": 1,
				"step output_validation": 1, "after": 1, "observed": 1,
			},
		},
		{
			"inputs that do not fit", "inner.plain", map[string]any{"value": int64(-1)}, module.CodeSchemaValidation,
			map[string]int{
				"acl": 1, "step acl_check": 1, "step approval_gate": 1, "before": 1, "step input_validation": 1, "on_error": 1,
				"observed SCHEMA_VALIDATION_ERROR": 1,
			},
		},
		{
			"output that does not fit", "inner.plain", map[string]any{"value": int64(101)}, module.CodeSchemaValidation,
			map[string]int{
				"acl": 1, "step acl_check": 1, "step approval_gate": 1, "before": 1, "step input_validation": 1, "run": 1,
				"step output_validation": 1, "on_error": 1, "observed SCHEMA_VALIDATION_ERROR": 1,
			},
		},
		{
			"failure", "inner.failing", map[string]any{"value": int64(1)}, "INNER_FAILED",
			map[string]int{
				"acl": 1, "step acl_check": 1, "step approval_gate": 1, "before": 1, "step input_validation": 1, "run": 1,
				"on_error": 1, "observed INNER_FAILED": 1,
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n1.take()
			n2.take()
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
			defer stop()
			_, err := client.Call(ctx, "outer.work", map[string]any{"id": tt.module, "inputs": tt.inputs})
			if module.CodeOf(err) != tt.code {
				t.Fatalf("err = %v, want %q", err, tt.code)
			}
			outer := map[string]int{
				"acl outer.work": 1, "step acl_check outer.work": 1, "step approval_gate outer.work": 1, "before outer.work": 1,
				"step input_validation outer.work": 1, "run outer.work": 1,
			}
			if tt.code == "" {
				outer["step output_validation outer.work"], outer["after outer.work"], outer["observed outer.work"] = 1, 1, 1
			} else {
				outer["on_error outer.work"], outer["observed "+string(tt.code)+" outer.work"] = 1, 1
			}
			if d := cmp.Diff(outer, n1.take()); d != "" {
				t.Errorf("on the caller's node: %s", d)
			}
			inner := map[string]int{}
			for what, n := range tt.want {
				inner[what+" "+tt.module] = n
			}
			if d := cmp.Diff(inner, n2.take()); d != "" {
				t.Errorf("on the owner: %s", d)
			}
		})
	}

	// A check goes to the owner as well, and asks nobody for an approval.
	t.Run("check", func(t *testing.T) {
		n1.take()
		n2.take()
		res, err := client.Check(t.Context(), requestFor("inner.approved", map[string]any{"value": int64(1)}))
		if err != nil || !res.Valid || !res.RequiresApproval {
			t.Fatalf("check = %+v, %v", res, err)
		}
		if got := n1.take(); len(got) != 0 {
			t.Errorf("the other node did %v", got)
		}
		got := n2.take()
		if got["acl inner.approved"] != 1 || got["approval inner.approved"] != 0 || got["run inner.approved"] != 0 {
			t.Errorf("the owner did %v, want one ACL check, no approval and no run", got)
		}
	})
}
