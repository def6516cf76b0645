package module

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

// PreflightFromMap reads the wire form. Anything of the wrong shape is refused
// with BUS_BAD_MESSAGE, an invalid predicted change too; only predicted_changes,
// warnings and a check's error may be missing. The list of errors is not read: it
// follows from the checks.
func PreflightFromMap(m map[string]any) (*PreflightResult, error) {
	r := &PreflightResult{PredictedChanges: []Change{}}
	var ok bool
	if r.Valid, ok = m["valid"].(bool); !ok {
		return nil, badPreflight("valid is not a boolean")
	}
	if r.RequiresApproval, ok = m["requires_approval"].(bool); !ok {
		return nil, badPreflight("requires_approval is not a boolean")
	}
	checks, ok := m["checks"].([]any)
	if !ok {
		return nil, badPreflight("checks is not a list")
	}
	for _, item := range checks {
		c, err := checkFromAny(item)
		if err != nil {
			return nil, err
		}
		r.Checks = append(r.Checks, c)
	}
	changes, ok := m["predicted_changes"].([]any)
	if !ok && m["predicted_changes"] != nil {
		return nil, badPreflight("predicted_changes is not a list")
	}
	for _, item := range changes {
		cm, ok := item.(map[string]any)
		if !ok {
			return nil, badPreflight("a predicted change is not a map")
		}
		c, err := ChangeFromMap(cm)
		if err != nil {
			return nil, badPreflight("a predicted change is invalid")
		}
		r.PredictedChanges = append(r.PredictedChanges, c)
	}
	return r, nil
}

func checkFromAny(item any) (c PreflightCheck, err error) {
	m, ok := item.(map[string]any)
	if !ok {
		return c, badPreflight("a check is not a map")
	}
	if c.Check, ok = m["check"].(string); !ok {
		return c, badPreflight("a check has no name")
	}
	if c.Passed, ok = m["passed"].(bool); !ok {
		return c, badPreflight("a check does not say whether it passed")
	}
	switch em := m["error"].(type) {
	case nil:
	case map[string]any:
		if c.Error, ok = ErrorFromMap(em); !ok {
			return c, badPreflight("the error of a check has no code")
		}
	default:
		return c, badPreflight("the error of a check is not a map")
	}
	if list, isList := m["warnings"].([]any); !isList && m["warnings"] != nil {
		return c, badPreflight("the warnings of a check are not a list")
	} else if len(list) > 0 {
		if c.Warnings = stringList(list); c.Warnings == nil {
			return c, badPreflight("a warning of a check is not a string")
		}
	}
	return c, nil
}

func badPreflight(what string) error {
	return Errorf(CodeBusBadMessage, "preflight result: %s", what)
}
