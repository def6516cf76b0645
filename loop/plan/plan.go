package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/apbus/apbus/module"
)

// Bounds of a plan.
const (
	MaxNodes     = 20
	MaxEdges     = 4 * MaxNodes
	MaxCycles    = 100
	MaxRetries   = 10
	maxNodeIDLen = 256
)

// Plan is a graph of calls. Nodes[0] is where a run begins.
type Plan struct {
	Nodes []Node `json:"nodes"`
	Edges []Edge `json:"edges,omitempty"`
	// Retries tells how often a node is run again after a failure, by node.
	Retries map[string]int `json:"retries,omitempty"`
	// Bindings tell where a node's inputs come from: by node, by input, a path into
	// the state ("input.order", "charge.id"). A node without bindings gets the object
	// under its own ID in the plan's inputs, else the plan's inputs.
	Bindings map[string]map[string]string `json:"bindings,omitempty"`
}

// Node is one step.
type Node struct {
	ID string `json:"id"`
	// Tool is the ID of the module that is called. A node without one does nothing
	// and gives an empty output; a plan that runs needs a tool on every node.
	Tool string `json:"tool,omitempty"`
	// Step says what it is for.
	Step string `json:"step,omitempty"`
}

// Edge leads from one node to another.
type Edge struct {
	Src string `json:"src"`
	Dst string `json:"dst"`
	// Cond is a condition on the state; "" always holds.
	Cond string `json:"cond,omitempty"`
	// MaxCycles is how often the edge may fire in one run, nil without bound.
	MaxCycles *int `json:"max_cycles,omitempty"`
}

// FromMap reads a plan and validates it.
func FromMap(m map[string]any) (*Plan, error) {
	p := new(Plan)
	if err := module.FromMap(m, p); err != nil {
		return nil, fmt.Errorf("read plan: %w", err)
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return p, nil
}

// Map returns the plan in the JSON data model.
func (p *Plan) Map() (map[string]any, error) { return module.ToMap(p) }

// Clone returns a copy that shares nothing with p.
func (p *Plan) Clone() *Plan {
	c := &Plan{Nodes: slices.Clone(p.Nodes), Edges: slices.Clone(p.Edges), Retries: maps.Clone(p.Retries)}
	for i, e := range c.Edges {
		if e.MaxCycles != nil {
			c.Edges[i].MaxCycles = new(*e.MaxCycles)
		}
	}
	if p.Bindings != nil {
		c.Bindings = make(map[string]map[string]string, len(p.Bindings))
		for node, b := range p.Bindings {
			c.Bindings[node] = maps.Clone(b)
		}
	}
	return c
}

// Tools are the distinct modules the plan calls, sorted.
func (p *Plan) Tools() []string {
	set := make(map[string]bool)
	for _, n := range p.Nodes {
		if n.Tool != "" {
			set[n.Tool] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

func invalid(format string, args ...any) error {
	return module.Errorf(module.CodeInvalidInput, "plan: "+format, args...)
}

// Validate checks the whole plan; every finding is an error, with
// GENERAL_INVALID_INPUT: node IDs unique, not blank and without control
// characters; edges, retries and bindings name nodes; conditions parse; bounds
// hold; every node is reachable from the first; and every cycle has an edge with
// max_cycles, so that each run ends.
func (p *Plan) Validate() error {
	if len(p.Nodes) == 0 || len(p.Nodes) > MaxNodes {
		return invalid("it needs 1 to %d nodes", MaxNodes)
	}
	if len(p.Edges) > MaxEdges {
		return invalid("it has more than %d edges", MaxEdges)
	}
	index := make(map[string]int, len(p.Nodes))
	for i, n := range p.Nodes {
		if strings.TrimSpace(n.ID) == "" || len(n.ID) > maxNodeIDLen || strings.ContainsFunc(n.ID, unicode.IsControl) {
			return invalid("node %d has no usable ID", i)
		}
		if n.ID == stateInput {
			return invalid("a node may not be called %s", stateInput)
		}
		if _, twice := index[n.ID]; twice {
			return invalid("node %.64q is there twice", n.ID)
		}
		if n.Tool != "" {
			if err := module.ValidateID(n.Tool); err != nil {
				return invalid("node %.64q: %w", n.ID, err)
			}
		}
		index[n.ID] = i
	}
	for i, e := range p.Edges {
		if err := e.check(index); err != nil {
			return invalid("edge %d: %w", i, err)
		}
	}
	if err := p.checkNames(index); err != nil {
		return err
	}
	return newGraph(p).check()
}

func (e Edge) check(index map[string]int) error {
	_, src := index[e.Src]
	_, dst := index[e.Dst]
	if !src || !dst {
		return fmt.Errorf("names a node that is not there")
	}
	if e.MaxCycles != nil && (*e.MaxCycles < 0 || *e.MaxCycles > MaxCycles) {
		return fmt.Errorf("max_cycles is not within 0 and %d", MaxCycles)
	}
	if e.Cond == "" {
		return nil
	}
	_, err := ParseCond(e.Cond)
	return err
}

func (p *Plan) checkNames(index map[string]int) error {
	for _, node := range slices.Sorted(maps.Keys(p.Retries)) {
		if _, ok := index[node]; !ok {
			return invalid("retries name %.64q, which is no node", node)
		}
		if n := p.Retries[node]; n < 0 || n > MaxRetries {
			return invalid("retries of %.64q are not within 0 and %d", node, MaxRetries)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(p.Bindings)) {
		if _, ok := index[node]; !ok {
			return invalid("bindings name %.64q, which is no node", node)
		}
		for _, input := range slices.Sorted(maps.Keys(p.Bindings[node])) {
			if _, ok := parsePath(p.Bindings[node][input]); !ok {
				return invalid("binding of %.64q is no path", input)
			}
		}
	}
	return nil
}

// stateInput is the key of the plan's inputs in the state that conditions and
// bindings see; the outputs of nodes are under their IDs.
const stateInput = "input"
