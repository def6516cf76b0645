package acl

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
)

// Finding is one thing wrong with a rule that a check would only show when a
// call meets it (protocol §6.1.3).
type Finding struct {
	RuleIndex int
	// ConditionPath is where, ConditionKey which condition key, "" (null) for a
	// structural fault.
	ConditionPath, ConditionKey string
	Effect                      Effect
	// SyncResolvable and AsyncResolvable say whether a handler could be found on
	// either path. Go has one path, so they are equal, and false for every fault
	// found today.
	SyncResolvable, AsyncResolvable bool
	// Reason says what is wrong, for people.
	Reason string
}

// Validate lists what is wrong with the rules, by index, then path, without a
// call and without running a handler. It changes no decision.
func (p *Policy) Validate() []Finding {
	s := p.current.Load()
	var out []Finding
	for i := range s.rules {
		r, rule := &s.rules[i], &s.source[i]
		add := func(path, key, reason string) {
			out = append(out, Finding{RuleIndex: i, ConditionPath: path, ConditionKey: key, Effect: r.effect(), Reason: reason})
		}
		for _, field := range []struct {
			name string
			list []string
		}{{"callers", rule.Callers}, {"targets", rule.Targets}} {
			if reason := fieldFinding(field.list, field.name == "targets"); reason != "" {
				add(field.name, "", reason)
			}
		}
		for _, f := range r.conditionFaults {
			add(f.path, f.key, f.reason)
		}
	}
	slices.SortStableFunc(out, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.RuleIndex, b.RuleIndex), cmp.Compare(a.ConditionPath, b.ConditionPath))
	})
	return out
}

// fieldFinding returns at most one finding: a shape fault first, then a list
// that can never match, then a '?', which is no wildcard here.
func fieldFinding(list []string, targets bool) string {
	if text := patternFault(list); text != "" {
		return text
	}
	if neverMatches(list, targets) {
		return "matches no module"
	}
	if slices.ContainsFunc(list, func(p string) bool { return strings.Contains(p, "?") }) {
		return "has a ?, which is not a wildcard in ACL patterns"
	}
	return ""
}

// warnAtLoad tells of rules [from, to) what is legal and yet probably a mistake.
func (s *snapshot) warnAtLoad(logger *slog.Logger, from, to int) {
	for i := from; i < to; i++ {
		r, rule := &s.rules[i], &s.source[i]
		for _, f := range r.conditionFaults {
			if f.unregistered {
				logger.Warn("ACL condition has no handler yet", "rule_index", i, "key", f.key, "effect", string(r.effect()))
			}
		}
		for field, list := range map[string][]string{"callers": rule.Callers, "targets": rule.Targets} {
			for _, p := range list {
				if strings.Contains(p, "?") {
					logger.Warn("ACL pattern has a ?, which is not a wildcard", "rule_index", i, "field", field, "pattern", p)
				}
			}
		}
	}
}
