package examples

import (
	"context"
	"time"

	"github.com/apbus/apbus/module"
)

type whoamiOut struct {
	Node      string         `json:"node" description:"The node that ran the call"`
	ModuleID  string         `json:"module_id" description:"The module as it was called"`
	TraceID   string         `json:"trace_id" description:"The trace that the call belongs to"`
	CallerID  *string        `json:"caller_id" required:"true" description:"The calling module, null at the top"`
	CallChain []string       `json:"call_chain" description:"The modules of the call, outermost first, this one last"`
	Identity  *identityView  `json:"identity" required:"true" description:"Who the call acts for, null when nobody said"`
	Data      map[string]any `json:"data" description:"The shared data of the call tree that may leave the process"`
	BudgetMS  *int64         `json:"budget_ms" required:"true" description:"Milliseconds left, null without a limit"`
	Attempt   int            `json:"attempt,omitempty" minimum:"1" description:"Which attempt of the calling client this is, absent for a local call"`
}

type identityView struct {
	ID    string         `json:"id"`
	Type  string         `json:"type"`
	Roles []string       `json:"roles"`
	Attrs map[string]any `json:"attrs"`
}

func whoami(id, node string) module.Module {
	return module.New(id, "Tell what a module sees of its call",
		func(ctx context.Context, _ struct{}) (whoamiOut, error) { return seen(ctx, node) },
		module.WithName("Who am I"),
		module.WithTags(module.FirstSegment(id)),
		module.WithAnnotations(module.Annotations{Readonly: true, ClosedWorld: true}),
		module.WithExamples(module.Example{Title: "Ask", Inputs: map[string]any{}}),
	)
}

func seen(ctx context.Context, node string) (whoamiOut, error) {
	h, err := thisHop(ctx, node)
	if err != nil {
		return whoamiOut{}, err
	}
	c := module.FromContext(ctx)
	out := whoamiOut{
		Node: h.Node, ModuleID: h.ModuleID, TraceID: h.TraceID, CallerID: h.CallerID, CallChain: h.CallChain,
		Data: c.Data().Public(), Attempt: c.Call().Attempt,
	}
	if id := c.Identity(); id != nil {
		out.Identity = &identityView{ID: id.ID(), Type: id.Type(), Roles: id.Roles(), Attrs: id.Attrs()}
	}
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline).Milliseconds()
		out.BudgetMS = &left
	}
	return out, nil
}

// hop is one module of a chain as it sees itself.
type hop struct {
	Node      string   `json:"node"`
	ModuleID  string   `json:"module_id"`
	CallerID  *string  `json:"caller_id" required:"true"`
	CallChain []string `json:"call_chain"`
	TraceID   string   `json:"trace_id"`
}

func thisHop(ctx context.Context, node string) (hop, error) {
	c := module.FromContext(ctx)
	if c == nil {
		return hop{}, module.Errorf(module.CodeContextBindingError, "the module was run outside a call")
	}
	h := hop{Node: node, CallChain: c.CallChain(), TraceID: c.TraceID()}
	if n := len(h.CallChain); n > 0 {
		h.ModuleID = h.CallChain[n-1]
	}
	if caller := c.CallerID(); caller != "" {
		h.CallerID = &caller
	}
	return h, nil
}
