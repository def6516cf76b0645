package acl

import (
	"fmt"
	"maps"
	"slices"

	"github.com/apbus/apbus/module"
)

// Effect is what a rule does with the calls it matches.
type Effect string

// The effects. Nothing else is accepted, not even in other case.
const (
	Allow Effect = "allow"
	Deny  Effect = "deny"
)

// Approval says whether a granted call needs approval.
type Approval string

// The approval values; "" is NotRequired. Required is for allow rules only.
const (
	Required    Approval = "required"
	NotRequired Approval = "not_required"
)

// Rule is one line of a policy. Callers and Targets are flat pattern lists
// (algorithm A08, '*' only): any of them; ["$or", p, …] likewise; ["$not", p]
// none of it. "@external" in Callers is the null caller, "@system" an identity
// of type system.
type Rule struct {
	Callers, Targets []string
	Effect           Effect
	Approval         Approval
	Description      string
	// Conditions is nil or a map[string]any of conditions that must all hold.
	// Anything else makes the rule unevaluable.
	Conditions any
}

// Bounds on the conditions of one rule: nesting, and values altogether.
const (
	maxConditionDepth = 64
	maxConditionSize  = 100_000
)

func (r Rule) clone() Rule {
	r.Callers, r.Targets = slices.Clone(r.Callers), slices.Clone(r.Targets)
	r.Conditions = cloneValue(r.Conditions)
	return r
}

// cloneValue copies maps and lists of the JSON data model; string lists become
// such lists.
func cloneValue(v any) any {
	switch x := v.(type) {
	case map[string]any:
		if x == nil {
			return nil
		}
		out := maps.Clone(x)
		for k, e := range out {
			out[k] = cloneValue(e)
		}
		return out
	case []any:
		out := slices.Clone(x)
		for i, e := range out {
			out[i] = cloneValue(e)
		}
		return out
	case []string:
		out := make([]any, len(x))
		for i, e := range x {
			out[i] = e
		}
		return out
	}
	return v
}

// conditionsFit reports whether v, which may even be cyclic when it was built in
// Go, stays within the bounds on depth and size.
func conditionsFit(v any, depth int, left *int) bool {
	if *left--; *left < 0 || depth > maxConditionDepth {
		return false
	}
	switch x := v.(type) {
	case map[string]any:
		for _, e := range x {
			if !conditionsFit(e, depth+1, left) {
				return false
			}
		}
	case []any:
		for _, e := range x {
			if !conditionsFit(e, depth+1, left) {
				return false
			}
		}
	}
	return true
}

// ruleFault is why a rule is refused; axis is the field at fault.
type ruleFault struct{ axis, text string }

// err names the rule index, when there is one, and the place in a file, when it
// is known.
func (f *ruleFault) err(index int, place string) error {
	subject := "ACL rule"
	switch {
	case index >= 0:
		subject = fmt.Sprintf("ACL rule %d", index)
	case f.axis == "default_effect" || f.axis == "rules":
		subject = "ACL"
	}
	if place != "" {
		subject += " (" + place + ")"
	}
	details := map[string]any{"field": f.axis}
	if index >= 0 {
		details["rule_index"] = int64(index)
	}
	return module.Errorf(module.CodeACLRuleError, "%s: %s", subject, f.text).WithDetails(details)
}

// check refuses what no door may let in, in the order effect, approval,
// callers, targets (protocol §6.1.5, §6.1.7).
func (r Rule) check() *ruleFault {
	switch {
	case r.Effect != Allow && r.Effect != Deny:
		return &ruleFault{"effect", fmt.Sprintf("effect %.40q is neither allow nor deny", string(r.Effect))}
	case r.Approval != "" && r.Approval != Required && r.Approval != NotRequired:
		return &ruleFault{"approval", fmt.Sprintf("approval %.40q is neither required nor not_required", string(r.Approval))}
	case r.Approval == Required && r.Effect == Deny:
		return &ruleFault{"approval", "approval: required makes no sense on a deny rule"}
	}
	if text := patternFault(r.Callers); text != "" {
		return &ruleFault{"callers", "callers " + text}
	}
	if text := patternFault(r.Targets); text != "" {
		return &ruleFault{"targets", "targets " + text}
	}
	left := maxConditionSize
	if !conditionsFit(r.Conditions, 0, &left) {
		return &ruleFault{"conditions", fmt.Sprintf("conditions are nested deeper than %d levels or hold more than %d values", maxConditionDepth, maxConditionSize)}
	}
	return nil
}

func checkDefault(e Effect) *ruleFault {
	if e != Allow && e != Deny {
		return &ruleFault{"default_effect", fmt.Sprintf("default_effect %.40q is neither allow nor deny", string(e))}
	}
	return nil
}
