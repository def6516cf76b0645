package plan

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/apbus/apbus/module"
)

// IDPrefix is the namespace of plans among the modules.
const IDPrefix = "plan."

// ModuleID is the module ID of the plan with this name: plan.<name>, in lower case,
// what a module ID does not allow as an underscore. It fails with
// INVALID_MODULE_ID when nothing usable remains.
func ModuleID(name string) (string, error) {
	id := IDPrefix + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_', r == '.':
			return r
		case r >= 'A' && r <= 'Z':
			return r + ('a' - 'A')
		}
		return '_'
	}, name)
	return id, module.ValidateID(id)
}

// About describes a plan to callers.
type About struct {
	Name, Description, WhenToUse, Version string
	// Rec is the recommendation it came from, Hash names this version of it.
	Rec, Hash string
	// Journal is told of every run, nil for nobody.
	Journal Journal
	// Hide marks in the module's own schemas what its nodes' modules mark as sensitive in
	// theirs, as these are known now; nil for nothing.
	Hide *Redaction
}

// Journal keeps what runs of plans did.
type Journal interface {
	// Ran is told of a run of p before its caller goes on: what is kept of the values in
	// res must be copied by then, and nothing may be waited for. err is what the run
	// returned. It is called from any goroutine.
	Ran(p *Plan, about RunAbout, res *Result, err error)
}

// Module makes the module plan.<name>. Its nodes are calls made from inside it, so
// that each is governed by the module's owner as any nested call. The inputs are an
// object: a node's inputs are its bindings, the object under its ID or, without
// either, all of them. The output is {outputs: {node: output}, timeline: [event]}.
// It declares nothing about side effects, since it does what its nodes do. Its schemas
// mark as sensitive what the nodes' modules mark, and ask for nothing.
type Module struct {
	desc  module.Descriptor
	plan  *Plan
	about About
}

var _ module.Module = (*Module)(nil)

// NewModule validates the plan and makes its module. Every node needs a tool.
func NewModule(about About, p *Plan) (*Module, error) {
	id, err := ModuleID(about.Name)
	if err != nil {
		return nil, fmt.Errorf("module of plan: %w", err)
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	for _, n := range p.Nodes {
		if n.Tool == "" {
			return nil, invalid("node %.64q has no module to call", n.ID)
		}
	}
	tools := make([]any, 0, len(p.Nodes))
	for _, t := range p.Tools() {
		tools = append(tools, t)
	}
	metadata := map[string]any{"x-plan-calls": tools}
	if about.WhenToUse != "" {
		metadata["x-when-to-use"] = about.WhenToUse
	}
	if about.Rec != "" {
		metadata["x-recommendation"] = about.Rec
	}
	input, outputs := map[string]any{"type": "object"}, map[string]any{"type": "object", "description": "the newest output of each node that ran"}
	marksIn, marksOut := p.marks(about.Hide)
	maps.Copy(input, marksIn)
	maps.Copy(outputs, marksOut)
	return &Module{plan: p.Clone(), about: about, desc: module.Descriptor{
		ID: id, Name: about.Name, Description: about.Description, Version: about.Version,
		Tags:        []string{"plan"},
		Annotations: module.AnnotationsFromMap(nil),
		InputSchema: input,
		OutputSchema: map[string]any{
			"type": "object", "required": []any{"outputs", "timeline"},
			"properties": map[string]any{
				"outputs":  outputs,
				"timeline": map[string]any{"type": "array", "items": map[string]any{"type": "object"}, "description": "what ran when, and how it ended"},
			},
		},
		Metadata: metadata,
	}}, nil
}

// Descriptor describes the module.
func (m *Module) Descriptor() module.Descriptor { return m.desc }

// Execute runs the plan. Progress is reported after each node. A failure keeps the
// code of the node's error and carries the timeline in details.timeline.
func (m *Module) Execute(ctx context.Context, inputs map[string]any) (map[string]any, error) {
	done, started := 0, time.Now()
	res, err := Run(ctx, m.plan, inputs,
		func(ctx context.Context, id string, in map[string]any) (map[string]any, error) {
			return module.Call(ctx, id, in)
		},
		Options{Trace: m.about.Journal != nil, OnEvent: func(e Event) {
			done++
			module.Progress(ctx, float64(done), 0, e.Node+" "+e.Outcome)
		}})
	m.journal(ctx, started, res, err)
	if err != nil {
		return nil, failed(err, res)
	}
	timeline, err := module.Normalize(res.Timeline)
	if err != nil {
		return nil, fmt.Errorf("timeline of plan: %w", err)
	}
	outputs := make(map[string]any, len(res.Outputs))
	for node, out := range res.Outputs {
		outputs[node] = out
	}
	return map[string]any{"outputs": outputs, "timeline": timeline}, nil
}

// journal tells of a run.
func (m *Module) journal(ctx context.Context, started time.Time, res *Result, err error) {
	if m.about.Journal == nil {
		return
	}
	about := RunAbout{
		Plan: m.desc.ID, PlanHash: m.about.Hash, Rec: m.about.Rec,
		StartedMS: started.UnixMilli(), EndedMS: time.Now().UnixMilli(), Cut: err != nil && ctx.Err() != nil,
	}
	if c := module.FromContext(ctx); c != nil {
		about.Call, about.TraceID, about.CallerID = c.Call(), c.TraceID(), c.CallerID()
		if id := c.Identity(); id != nil {
			about.IdentityID = id.ID()
		}
	}
	m.about.Journal.Ran(m.plan, about, res, err)
}

func failed(err error, res *Result) error {
	var coded *module.Error
	if res == nil || !errors.As(err, &coded) {
		return err
	}
	timeline, normErr := module.Normalize(res.Timeline)
	if normErr != nil {
		return err
	}
	return coded.WithDetail("timeline", timeline)
}
