package approval

import (
	"maps"
	"slices"
	"strings"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// Policy overrides, per module, what needs approval (ExecutionPolicy, protocol
// §7.9). It sees module IDs only, neither inputs nor callers. It must not be
// changed once an executor has it; a nil Policy overrides nothing.
type Policy struct {
	Rules []PolicyRule
	// GateDestructive asks for approval of every effectively destructive module.
	GateDestructive bool
	// Strict denies a call that needs approval while no handler is configured;
	// otherwise it runs with a warning.
	Strict bool
}

// PolicyRule applies to the modules that match Pattern (algorithm A08).
type PolicyRule struct {
	Pattern string
	// RequiresApproval and Destructive replace the module's annotations unless
	// they are Unset.
	RequiresApproval, Destructive module.Tri
	Reason                        string
}

// Resolve returns the one rule that applies to moduleID: the most specific by
// algorithm A10; among equals the more restrictive (approval required, then
// destructive), then the earlier.
func (p *Policy) Resolve(moduleID string) (PolicyRule, bool) {
	if p == nil {
		return PolicyRule{}, false
	}
	best := -1
	for i := range p.Rules {
		if schema.MatchPattern(p.Rules[i].Pattern, moduleID) && (best < 0 || p.Rules[i].beats(&p.Rules[best])) {
			best = i
		}
	}
	if best < 0 {
		return PolicyRule{}, false
	}
	return p.Rules[best], true
}

func (r *PolicyRule) beats(o *PolicyRule) bool {
	if a, b := Specificity(r.Pattern), Specificity(o.Pattern); a != b {
		return a > b
	}
	if r.RequiresApproval != o.RequiresApproval {
		return restrictive(r.RequiresApproval) > restrictive(o.RequiresApproval)
	}
	return restrictive(r.Destructive) > restrictive(o.Destructive)
}

// restrictive orders the answers: no lets through what unset leaves to the module.
func restrictive(t module.Tri) int {
	switch t {
	case module.True:
		return 2
	case module.Unset:
		return 1
	}
	return 0
}

// Specificity is algorithm A10: 0 for "*" alone, otherwise the sum over
// dot-separated segments of 0 for "*", 1 for one that holds a star, 2 for an
// exact one.
func Specificity(pattern string) int {
	if pattern == "*" {
		return 0
	}
	score := 0
	for segment := range strings.SplitSeq(pattern, ".") {
		switch {
		case segment == "*":
		case strings.Contains(segment, "*"):
			score++
		default:
			score += 2
		}
	}
	return score
}

// Requirement is the answer to "does this call need approval, and why".
type Requirement struct {
	Needed bool
	// Override is the policy rule that applied, nil when none did.
	Override *PolicyRule
	// RequiresApproval and Destructive are the effective annotations.
	RequiresApproval, Destructive bool
	// Reason is the rule's reason when a rule applied, else "".
	Reason string
}

// Require combines every source (protocol §6.9, §7.9.1): the module's
// annotations, which the caller has united with the declared ones, the policy
// and the ACL. A rule may replace an annotation either way; nothing takes back
// what the ACL asked for, and a destructive module that the policy gates needs
// approval whatever the annotation says.
func (p *Policy) Require(moduleID string, a module.Annotations, aclRequired bool) Requirement {
	r := Requirement{RequiresApproval: a.RequiresApproval, Destructive: a.Destructive}
	if rule, ok := p.Resolve(moduleID); ok {
		r.Override, r.Reason = &rule, rule.Reason
		if v, said := rule.RequiresApproval.Bool(); said {
			r.RequiresApproval = v
		}
		if v, said := rule.Destructive.Bool(); said {
			r.Destructive = v
		}
	}
	gated := p != nil && p.GateDestructive && r.Destructive
	r.Needed = r.RequiresApproval || aclRequired || gated
	return r
}

// Validate refuses a rule with an empty pattern, with GENERAL_INVALID_INPUT.
func (p *Policy) Validate() error {
	if p == nil {
		return nil
	}
	for i, r := range p.Rules {
		if r.Pattern == "" {
			return module.Errorf(module.CodeInvalidInput, "policy rule %d has no pattern", i)
		}
	}
	return nil
}

// PolicyFromMap reads {rules, gate_destructive, strict} with rules of {pattern,
// requires_approval?, destructive?, reason?}. Unknown keys, wrong types and a
// missing pattern are GENERAL_INVALID_INPUT; all unknown keys of one object are
// named.
func PolicyFromMap(m map[string]any) (*Policy, error) {
	if err := onlyKeys("policy", m, "rules", "gate_destructive", "strict"); err != nil {
		return nil, err
	}
	p := &Policy{}
	flags := map[string]*bool{"gate_destructive": &p.GateDestructive, "strict": &p.Strict}
	for key, dst := range flags {
		if v, present := m[key]; present {
			b, ok := v.(bool)
			if !ok {
				return nil, module.Errorf(module.CodeInvalidInput, "policy %s is not a boolean", key)
			}
			*dst = b
		}
	}
	list, ok := m["rules"].([]any)
	if !ok && m["rules"] != nil {
		return nil, module.Errorf(module.CodeInvalidInput, "policy rules is not a list")
	}
	for i, item := range list {
		rm, ok := item.(map[string]any)
		if !ok {
			return nil, module.Errorf(module.CodeInvalidInput, "policy rule %d is not an object", i)
		}
		r, err := policyRuleFromMap(i, rm)
		if err != nil {
			return nil, err
		}
		p.Rules = append(p.Rules, r)
	}
	return p, p.Validate()
}

func policyRuleFromMap(i int, m map[string]any) (PolicyRule, error) {
	bad := func(what string) (PolicyRule, error) {
		return PolicyRule{}, module.Errorf(module.CodeInvalidInput, "policy rule %d: %s", i, what)
	}
	if err := onlyKeys("policy rule", m, "pattern", "requires_approval", "destructive", "reason"); err != nil {
		return PolicyRule{}, err
	}
	var r PolicyRule
	var ok bool
	if r.Pattern, ok = m["pattern"].(string); !ok || r.Pattern == "" {
		return bad("pattern is missing or not a string")
	}
	if v, present := m["reason"]; present && v != nil {
		if r.Reason, ok = v.(string); !ok {
			return bad("reason is not a string")
		}
	}
	for key, dst := range map[string]*module.Tri{"requires_approval": &r.RequiresApproval, "destructive": &r.Destructive} {
		if v, present := m[key]; present && v != nil {
			b, ok := v.(bool)
			if !ok {
				return bad(key + " is not a boolean")
			}
			*dst = module.TriOf(b)
		}
	}
	return r, nil
}

func onlyKeys(what string, m map[string]any, known ...string) error {
	var unknown []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(known, k) {
			unknown = append(unknown, k)
		}
	}
	if unknown == nil {
		return nil
	}
	return module.Errorf(module.CodeInvalidInput, "%s has unknown keys: %s", what, strings.Join(unknown, ", "))
}
