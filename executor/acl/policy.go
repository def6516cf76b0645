package acl

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/apbus/apbus/module"
)

// approvalToken is never part of a projection (protocol §6.1.8).
const approvalToken = "_approval_token"

// Options configures a [Policy]. The zero value is usable.
type Options struct {
	// DefaultEffect decides when no rule does; nil means Deny, and an empty one is
	// refused like any other value outside the set (protocol §6.1.5). It is for
	// [New]; a rule file has its own.
	DefaultEffect *Effect
	// Conditions are the application's conditions by key. Built-in keys cannot be
	// replaced.
	Conditions map[string]ConditionFunc
	// Audit receives every check instead of the default sink; nil leaves the
	// choice to the file's audit block.
	Audit AuditFunc
	// AuditLogger is the default sink, Logger when nil.
	AuditLogger *slog.Logger
	// Logger hears of faults, slog.Default when nil.
	Logger *slog.Logger
}

// Policy answers checks. Make it with [New], [Parse], [Load] or [Discover].
type Policy struct {
	o       Options
	path    string // of the file, "" when there is none
	current atomic.Pointer[snapshot]

	mu       sync.Mutex // serialises writers
	handlers map[string]ConditionFunc
}

// snapshot is one immutable state of a policy.
type snapshot struct {
	source         []Rule
	rules          []compiledRule
	defaultEffect  Effect
	sink           *sink
	needsArguments bool
	custom         bool
}

// New makes a policy from rules. Errors have code ACL_RULE_ERROR and name the
// rule index and field; the default effect is judged first, then the lowest
// faulty rule.
func New(rules []Rule, o Options) (*Policy, error) {
	defaultEffect := Deny
	if o.DefaultEffect != nil {
		defaultEffect = *o.DefaultEffect
	}
	if f := checkDefault(defaultEffect); f != nil {
		return nil, f.err(-1, "")
	}
	for i, r := range rules {
		if f := r.check(); f != nil {
			return nil, f.err(i, "")
		}
	}
	p, err := newPolicy(o)
	if err != nil {
		return nil, err
	}
	p.install(&content{rules: rules, defaultEffect: defaultEffect})
	return p, nil
}

func newPolicy(o Options) (*Policy, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.AuditLogger == nil {
		o.AuditLogger = o.Logger
	}
	for key, h := range o.Conditions {
		if err := checkCondition(key, h); err != nil {
			return nil, err
		}
	}
	handlers := maps.Clone(o.Conditions)
	if handlers == nil {
		handlers = map[string]ConditionFunc{}
	}
	return &Policy{o: o, handlers: handlers}, nil
}

// content is what a source says: a file or the arguments of New.
type content struct {
	rules         []Rule
	defaultEffect Effect
	audit         auditBlock
}

// install makes c the current state in one step.
func (p *Policy) install(c *content) {
	rules := make([]Rule, len(c.rules))
	for i, r := range c.rules {
		rules[i] = r.clone()
	}
	p.mu.Lock()
	s := p.compileLocked(rules, c.defaultEffect)
	if old := p.current.Load(); old != nil && p.o.Audit != nil {
		s.sink = old.sink
	} else {
		s.sink = sinkFor(p.o, c.audit)
	}
	p.current.Store(s)
	p.mu.Unlock()
	c.audit.warn(p.o)
	s.warnAtLoad(p.o.Logger, 0, len(rules))
}

// AddRule puts r before every other rule. Errors have code ACL_RULE_ERROR and
// name no index.
func (p *Policy) AddRule(r Rule) error {
	if f := r.check(); f != nil {
		return f.err(-1, "")
	}
	s := p.edit(func(rules []Rule) []Rule { return slices.Insert(rules, 0, r.clone()) })
	s.warnAtLoad(p.o.Logger, 0, 1)
	return nil
}

// RemoveRule removes the first rule with exactly these pattern lists and reports
// whether there was one.
func (p *Policy) RemoveRule(callers, targets []string) bool {
	s := p.edit(func(rules []Rule) []Rule {
		i := slices.IndexFunc(rules, func(r Rule) bool {
			return slices.Equal(r.Callers, callers) && slices.Equal(r.Targets, targets)
		})
		if i < 0 {
			return nil
		}
		return slices.Delete(rules, i, i+1)
	})
	return s != nil
}

// RegisterCondition makes a condition known, or replaces its handler. Built-in
// keys, an empty key and a nil handler are GENERAL_INVALID_INPUT.
func (p *Policy) RegisterCondition(key string, h ConditionFunc) error {
	if err := checkCondition(key, h); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handlers[key] = h
	old := p.current.Load()
	s := p.compileLocked(old.source, old.defaultEffect)
	s.sink = old.sink
	p.current.Store(s)
	return nil
}

func checkCondition(key string, h ConditionFunc) error {
	switch {
	case key == "" || h == nil:
		return module.Errorf(module.CodeInvalidInput, "an ACL condition needs a key and a handler")
	case builtinCondition(key):
		return module.Errorf(module.CodeInvalidInput, "ACL condition %s is built in and cannot be replaced", key)
	}
	return nil
}

// edit installs changed rules and returns the new state. f gets a slice of its
// own; when it returns nil nothing happens.
func (p *Policy) edit(f func([]Rule) []Rule) *snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.current.Load()
	rules := f(slices.Clone(old.source))
	if rules == nil {
		return nil
	}
	s := p.compileLocked(rules, old.defaultEffect)
	s.sink = old.sink
	p.current.Store(s)
	return s
}

func (p *Policy) compileLocked(rules []Rule, def Effect) *snapshot {
	s := &snapshot{source: rules, rules: make([]compiledRule, len(rules)), defaultEffect: def}
	for i := range rules {
		c := conditionCompiler{handlers: p.handlers}
		s.rules[i].compile(i, rules[i], &c)
		s.needsArguments = s.needsArguments || c.needsArguments || c.custom
		s.custom = s.custom || c.custom
	}
	return s
}

// Rules returns a copy of the rules.
func (p *Policy) Rules() []Rule {
	source := p.current.Load().source
	out := make([]Rule, len(source))
	for i, r := range source {
		out[i] = r.clone()
	}
	return out
}

// DefaultEffect returns what decides when no rule does.
func (p *Policy) DefaultEffect() Effect { return p.current.Load().defaultEffect }

// NeedsArguments reports whether any rule looks at [Query.ArgumentKeys]; when
// not, the executor may leave them out.
func (p *Policy) NeedsArguments() bool { return p.current.Load().needsArguments }

// MayBlock reports whether any rule runs an application's condition; when not, a
// check takes microseconds at most and needs no time limit.
func (p *Policy) MayBlock() bool { return p.current.Load().custom }

// ArgumentKeys builds the projection of inputs: the top-level names without the
// approval token, never nil.
func ArgumentKeys(inputs map[string]any) []string {
	keys := make([]string, 0, len(inputs))
	for k := range inputs {
		if k != approvalToken {
			keys = append(keys, k)
		}
	}
	return keys
}

// Check is the boolean answer: allowed and without need of approval (protocol §6.8.1).
func (p *Policy) Check(ctx context.Context, q Query) bool {
	d := p.Authorize(ctx, q)
	return d.Allowed && !d.ApprovalRequired
}
