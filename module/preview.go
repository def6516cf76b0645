package module

import (
	"context"
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
	m := map[string]any{"action": c.Action, "target": c.Target, "summary": c.Summary}
	if c.Before.Set {
		m["before"] = c.Before.Value
	}
	if c.After.Set {
		m["after"] = c.After.Value
	}
	for k, v := range c.Extra {
		m[k] = v
	}
	return m
}

// ChangeFromMap reads the wire form and validates it.
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
	return c, c.Validate()
}

// PreviewResult is a module's prediction, in order.
type PreviewResult struct {
	Changes []Change
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

// PreflightCheck is one recorded check of a validation (protocol §12.8).
type PreflightCheck struct {
	Check    string
	Passed   bool
	Error    *Error
	Warnings []string
}

// PreflightResult is what validating a call without running it found.
type PreflightResult struct {
	Valid            bool
	Checks           []PreflightCheck
	RequiresApproval bool
	PredictedChanges []Change
}

// Errors lists the errors of the failed checks.
func (r *PreflightResult) Errors() []*Error {
	var out []*Error
	for _, c := range r.Checks {
		if !c.Passed && c.Error != nil {
			out = append(out, c.Error)
		}
	}
	return out
}

// Warnings lists the warnings of all checks.
func (r *PreflightResult) Warnings() []string {
	var out []string
	for _, c := range r.Checks {
		out = append(out, c.Warnings...)
	}
	return out
}

// Map returns the wire form; lists are never null.
func (r *PreflightResult) Map() map[string]any {
	checks, errs, changes := []any{}, []any{}, []any{}
	for _, c := range r.Checks {
		warnings := []any{}
		for _, w := range c.Warnings {
			warnings = append(warnings, w)
		}
		m := map[string]any{"check": c.Check, "passed": c.Passed, "error": nil, "warnings": warnings}
		if c.Error != nil {
			em := c.Error.Map()
			m["error"] = em
			if !c.Passed {
				errs = append(errs, em)
			}
		}
		checks = append(checks, m)
	}
	for _, c := range r.PredictedChanges {
		changes = append(changes, c.Map())
	}
	return map[string]any{
		"valid": r.Valid, "checks": checks, "requires_approval": r.RequiresApproval,
		"predicted_changes": changes, "errors": errs,
	}
}

// PreflightFromMap reads the wire form. A predicted change that is invalid is
// refused with BUS_BAD_MESSAGE, as is anything of the wrong shape.
func PreflightFromMap(m map[string]any) (*PreflightResult, error) {
	bad := func(what string) error { return Errorf(CodeBusBadMessage, "preflight result: %s", what) }
	valid, ok := m["valid"].(bool)
	if !ok {
		return nil, bad("valid is not a boolean")
	}
	r := &PreflightResult{Valid: valid, PredictedChanges: []Change{}}
	r.RequiresApproval, _ = m["requires_approval"].(bool)
	checks, ok := m["checks"].([]any)
	if !ok {
		return nil, bad("checks is not a list")
	}
	for _, item := range checks {
		cm, ok := item.(map[string]any)
		if !ok {
			return nil, bad("a check is not a map")
		}
		var c PreflightCheck
		c.Check, _ = cm["check"].(string)
		c.Passed, _ = cm["passed"].(bool)
		c.Warnings = stringList(cm["warnings"])
		if em, ok := cm["error"].(map[string]any); ok {
			if c.Error, ok = ErrorFromMap(em); !ok {
				return nil, bad("a check's error has no code")
			}
		}
		r.Checks = append(r.Checks, c)
	}
	changes, _ := m["predicted_changes"].([]any)
	for _, item := range changes {
		cm, ok := item.(map[string]any)
		if !ok {
			return nil, bad("a predicted change is not a map")
		}
		c, err := ChangeFromMap(cm)
		if err != nil {
			return nil, bad("a predicted change is invalid")
		}
		r.PredictedChanges = append(r.PredictedChanges, c)
	}
	return r, nil
}
