package module

import (
	"context"
	"maps"
	"strings"
)

// Optional is a value that may be absent, which is not the same as null.
type Optional struct {
	Set   bool
	Value any
}

// Known makes a present Optional.
func Known(v any) Optional { return Optional{Set: true, Value: v} }

// Change is one predicted effect of a call (rfc-preview-method seed).
type Change struct {
	// Action is a free verb such as "delete"; Target names what is changed;
	// Summary is one line for a person. All three are required.
	Action, Target, Summary string
	// Before and After are absent when they cannot be known.
	Before, After Optional
	// Extra holds x-* keys only.
	Extra map[string]any
}

// Validate says what makes c unusable: a missing field, a summary of several
// lines, a key in Extra that does not start with "x-".
func (c Change) Validate() error {
	switch {
	case c.Action == "":
		return Errorf(CodeInvalidInput, "change has no action")
	case c.Target == "":
		return Errorf(CodeInvalidInput, "change has no target")
	case strings.TrimSpace(c.Summary) == "":
		return Errorf(CodeInvalidInput, "change has no summary")
	case strings.ContainsAny(c.Summary, "\n\r"):
		return Errorf(CodeInvalidInput, "change summary has more than one line")
	}
	for k := range c.Extra {
		if !strings.HasPrefix(k, "x-") {
			return Errorf(CodeInvalidInput, "change has a key that does not start with x-")
		}
	}
	return nil
}

// Map returns the wire form.
func (c Change) Map() map[string]any {
	m := make(map[string]any, len(c.Extra)+5)
	maps.Copy(m, c.Extra)
	m["action"], m["target"], m["summary"] = c.Action, c.Target, c.Summary
	if c.Before.Set {
		m["before"] = c.Before.Value
	}
	if c.After.Set {
		m["after"] = c.After.Value
	}
	return m
}

// ChangeFromMap reads the wire form and validates it; what is wrong is
// GENERAL_INVALID_INPUT.
func ChangeFromMap(m map[string]any) (Change, error) {
	var c Change
	for k, v := range m {
		switch k {
		case "action", "target", "summary":
			s, ok := v.(string)
			if !ok {
				return Change{}, Errorf(CodeInvalidInput, "change %s is not a string", k)
			}
			switch k {
			case "action":
				c.Action = s
			case "target":
				c.Target = s
			default:
				c.Summary = s
			}
		case "before":
			c.Before = Known(v)
		case "after":
			c.After = Known(v)
		default:
			if c.Extra == nil {
				c.Extra = map[string]any{}
			}
			c.Extra[k] = v
		}
	}
	if err := c.Validate(); err != nil {
		return Change{}, err
	}
	return c, nil
}

// PreviewResult is a module's prediction, in order.
type PreviewResult struct {
	Changes []Change
}

// Map returns the wire form, nil for a nil result.
func (r *PreviewResult) Map() map[string]any {
	if r == nil {
		return nil
	}
	changes := make([]any, len(r.Changes))
	for i, c := range r.Changes {
		changes[i] = c.Map()
	}
	return map[string]any{"changes": changes}
}

// PreviewFromMap reads the wire form and validates every change; nil gives nil.
func PreviewFromMap(m map[string]any) (*PreviewResult, error) {
	if m == nil {
		return nil, nil
	}
	list, ok := m["changes"].([]any)
	if !ok {
		return nil, Errorf(CodeInvalidInput, "preview changes is not a list")
	}
	r := &PreviewResult{Changes: make([]Change, len(list))}
	for i, item := range list {
		cm, ok := item.(map[string]any)
		if !ok {
			return nil, Errorf(CodeInvalidInput, "preview change %d is not a map", i)
		}
		var err error
		if r.Changes[i], err = ChangeFromMap(cm); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Previewer is a module that can say what a call would change, without side
// effects. A nil result predicts nothing.
type Previewer interface {
	Preview(ctx context.Context, inputs map[string]any) (*PreviewResult, error)
}

// Preflighter is a module that can warn before it is called.
type Preflighter interface {
	Preflight(ctx context.Context, inputs map[string]any) ([]string, error)
}
