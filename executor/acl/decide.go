package acl

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apbus/apbus/module"
)

// Query is one call to be checked.
type Query struct {
	// CallerID is the calling module, "" for the null caller.
	CallerID string
	TargetID string
	// Context may be nil; rules with conditions then do not match.
	Context *module.Context
	// ArgumentKeys are the call's top-level input names, see [ArgumentKeys]. Nil
	// means that none are known, which is not the same as an empty list.
	ArgumentKeys []string
}

// Reasons of a [Decision].
const (
	ReasonRuleMatch     = "rule_match"
	ReasonDefaultEffect = "default_effect"
	ReasonNoRules       = "no_rules"
)

// Decision is the answer to a [Query].
type Decision struct {
	// Allowed is about access alone; with ApprovalRequired the call must pass the
	// approval gate too.
	Allowed, ApprovalRequired bool
	// RuleIndex is the deciding rule, -1 when none did.
	RuleIndex int
	Reason    string
	// HandlerError names every condition that could not be evaluated as
	// "path: reason", sorted by path and joined by "; ". Empty when there is none.
	HandlerError string
}

// compiledRule is a rule ready to be evaluated.
type compiledRule struct {
	index            int
	allow, approval  bool
	description      string
	callers, targets patternSet
	// patternFaults make the scope unknown; doors refuse such rules, so they are a
	// backstop. conditionFaults gate the rule within its scope.
	patternFaults, conditionFaults []fault
	condition                      *condition

	warnedContext atomic.Bool
	warnedFault   atomic.Int64 // unix nanoseconds of the last warning
}

func (r *compiledRule) compile(index int, rule Rule, c *conditionCompiler) {
	r.index, r.description = index, rule.Description
	r.allow, r.approval = rule.Effect == Allow, rule.Approval == Required
	for field, list := range map[string][]string{"callers": rule.Callers, "targets": rule.Targets} {
		if text := patternFault(list); text != "" {
			r.patternFaults = append(r.patternFaults, fault{path: field, reason: text})
		}
	}
	if r.patternFaults == nil {
		r.callers, r.targets = compilePatterns(rule.Callers, false), compilePatterns(rule.Targets, true)
	}
	r.condition = c.compile(rule.Conditions)
	r.conditionFaults = c.faults
}

// Authorize decides one call and writes one audit entry. It never fails: bad
// rules and failing handlers become a decision. ctx bounds the conditions of the
// application and reaches the audit sink.
func (p *Policy) Authorize(ctx context.Context, q Query) Decision {
	s := p.current.Load()
	d, matched := s.decide(ctx, p.o.Logger, &q)
	if s.sink != nil {
		s.audit(ctx, &q, d, matched)
	}
	return d
}

func (s *snapshot) decide(ctx context.Context, logger *slog.Logger, q *Query) (Decision, *compiledRule) {
	caller := q.CallerID
	if caller == "" {
		caller = External
	}
	var faults []fault
	pending := false
	for i := range s.rules {
		r := &s.rules[i]
		var o outcome
		switch {
		case r.patternFaults != nil:
			o = unevaluable
			faults = append(faults, r.patternFaults...)
			r.warn(ctx, logger, r.patternFaults)
		case !r.callers.matches(caller, q) || !r.targets.matches(q.TargetID, q):
			continue
		case r.conditionFaults != nil:
			o = unevaluable
			faults = append(faults, r.conditionFaults...)
			r.warn(ctx, logger, r.conditionFaults)
		case r.condition == nil:
			o = satisfied
		case q.Context == nil:
			r.warnNoContext(ctx, logger)
			continue
		default:
			before := len(faults)
			o = r.condition.eval(ctx, q, &faults)
			if len(faults) > before {
				r.warn(ctx, logger, faults[before:])
			}
		}
		switch {
		case o == satisfied && r.allow:
			return Decision{Allowed: true, ApprovalRequired: r.approval || pending, RuleIndex: i,
				Reason: ReasonRuleMatch, HandlerError: joinFaults(faults)}, r
		case o != unsatisfied && !r.allow:
			return Decision{RuleIndex: i, Reason: ReasonRuleMatch, HandlerError: joinFaults(faults)}, r
		case o == unevaluable && r.approval:
			pending = true // whoever grants later, a person was asked for (protocol §6.1.1)
		}
	}
	d := Decision{Allowed: s.defaultEffect == Allow, RuleIndex: -1, Reason: ReasonDefaultEffect, HandlerError: joinFaults(faults)}
	d.ApprovalRequired = d.Allowed && pending
	if len(s.rules) == 0 {
		d.Reason = ReasonNoRules
	}
	return d, nil
}

// joinFaults does not depend on evaluation order.
func joinFaults(faults []fault) string {
	if len(faults) == 0 {
		return ""
	}
	texts := make([]string, len(faults))
	sorted := slices.Clone(faults)
	slices.SortStableFunc(sorted, func(a, b fault) int {
		return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.reason, b.reason))
	})
	for i, f := range sorted {
		texts[i] = f.path + ": " + f.reason
	}
	return strings.Join(slices.Compact(texts), "; ")
}

// warn is limited to one record per rule and second: a broken rule on a busy
// path must not drown the log. The audit trail has every occurrence.
func (r *compiledRule) warn(ctx context.Context, logger *slog.Logger, faults []fault) {
	now := time.Now().UnixNano()
	last := r.warnedFault.Load()
	if (last != 0 && now-last < int64(time.Second)) || !r.warnedFault.CompareAndSwap(last, now) {
		return
	}
	logger.LogAttrs(ctx, slog.LevelWarn, "ACL rule cannot be evaluated",
		slog.Int("rule_index", r.index), slog.String("effect", string(r.effect())),
		slog.Bool("pending_approval", r.allow && r.approval), slog.String("cause", joinFaults(faults)))
}

func (r *compiledRule) warnNoContext(ctx context.Context, logger *slog.Logger) {
	if r.warnedContext.CompareAndSwap(false, true) {
		logger.LogAttrs(ctx, slog.LevelWarn, "ACL rule has conditions but the check has no context, rule skipped",
			slog.Int("rule_index", r.index), slog.String("effect", string(r.effect())))
	}
}

func (r *compiledRule) effect() Effect {
	if r.allow {
		return Allow
	}
	return Deny
}

func (s *snapshot) audit(ctx context.Context, q *Query, d Decision, matched *compiledRule) {
	e := AuditEntry{
		Timestamp: time.Now().UTC(), CallerID: q.CallerID, TargetID: q.TargetID, Decision: Deny,
		Reason: d.Reason, MatchedRuleIndex: d.RuleIndex, Roles: []string{}, CallDepth: -1,
		HandlerError: d.HandlerError, ApprovalRequired: d.ApprovalRequired,
	}
	if e.CallerID == "" {
		e.CallerID = External
	}
	if d.Allowed {
		e.Decision = Allow
	}
	if matched != nil {
		e.MatchedRule = matched.description
	}
	if c := q.Context; c != nil {
		e.CallDepth, e.TraceID = len(c.ChainView()), c.TraceID()
		if id := c.Identity(); id != nil {
			e.IdentityType = id.Type()
			e.Roles = append(e.Roles, id.Roles()...)
		}
	}
	s.sink.deliver(ctx, &e)
}
