package plan

import (
	"reflect"
	"strconv"
	"strings"
	"unicode"
)

// MaxEdits is how many edits one revision may hold.
const MaxEdits = 8

// Edit changes one field. Paths are edges.<i>.cond, edges.<i>.max_cycles and
// retries.<node>; nodes, ends of edges and bindings cannot be edited. From must
// equal what the plan holds (nil for nothing), so that an edit made for another
// revision is refused.
type Edit struct {
	Path     string `json:"path"`
	From, To any
}

// Revise applies the edits in order, each to the result of those before, and
// validates the result. All of them are applied or none. A condition is a text in
// the grammar, max_cycles 1 to [MaxCycles], retries 0 to [MaxRetries]. The error is
// GENERAL_INVALID_INPUT.
func (p *Plan) Revise(edits []Edit) (*Plan, error) {
	if len(edits) == 0 || len(edits) > MaxEdits {
		return nil, invalid("a revision has 1 to %d edits", MaxEdits)
	}
	next := p.Clone()
	for i, e := range edits {
		if err := next.edit(e); err != nil {
			return nil, invalid("edit %d: %w", i, err)
		}
	}
	if err := next.Validate(); err != nil {
		return nil, err
	}
	return next, nil
}

func (p *Plan) edit(e Edit) error {
	segments := strings.Split(e.Path, ".")
	switch {
	case len(segments) == 3 && segments[0] == "edges":
		i, err := strconv.Atoi(segments[1])
		if err != nil || i < 0 || i >= len(p.Edges) || strconv.Itoa(i) != segments[1] {
			return invalid("%.64q names no edge", e.Path)
		}
		switch segments[2] {
		case "cond":
			return p.editCond(i, e)
		case "max_cycles":
			return p.editCycles(i, e)
		}
	case len(segments) == 2 && segments[0] == "retries":
		return p.editRetries(segments[1], e)
	}
	return invalid("%.64q cannot be edited", e.Path)
}

func (e Edit) check(current any) error {
	switch {
	case !reflect.DeepEqual(whole(e.From), whole(current)):
		return invalid("%.64q has another value now", e.Path)
	case reflect.DeepEqual(whole(e.From), whole(e.To)):
		return invalid("%.64q would stay as it is", e.Path)
	}
	return nil
}

func (p *Plan) editCond(i int, e Edit) error {
	var current any
	if p.Edges[i].Cond != "" {
		current = p.Edges[i].Cond
	}
	if err := e.check(current); err != nil {
		return err
	}
	cond, ok := e.To.(string)
	if !ok || strings.TrimSpace(cond) == "" || strings.ContainsFunc(cond, unicode.IsControl) {
		return invalid("a condition is a text")
	}
	if _, err := ParseCond(cond); err != nil {
		return err
	}
	p.Edges[i].Cond = cond
	return nil
}

func (p *Plan) editCycles(i int, e Edit) error {
	var current any
	if p.Edges[i].MaxCycles != nil {
		current = *p.Edges[i].MaxCycles
	}
	if err := e.check(current); err != nil {
		return err
	}
	n, ok := whole(e.To).(int64)
	if !ok || n < 1 || n > MaxCycles {
		return invalid("max_cycles is an integer from 1 to %d", MaxCycles)
	}
	p.Edges[i].MaxCycles = new(int(n))
	return nil
}

func (p *Plan) editRetries(node string, e Edit) error {
	known := false
	for _, n := range p.Nodes {
		known = known || n.ID == node
	}
	if !known {
		return invalid("%.64q is no node", node)
	}
	var current any
	if n, ok := p.Retries[node]; ok {
		current = n
	}
	if err := e.check(current); err != nil {
		return err
	}
	n, ok := whole(e.To).(int64)
	if !ok || n < 0 || n > MaxRetries {
		return invalid("retries is an integer from 0 to %d", MaxRetries)
	}
	if p.Retries == nil {
		p.Retries = make(map[string]int)
	}
	p.Retries[node] = int(n)
	return nil
}
