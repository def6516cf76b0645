//go:build conformance

package conformance_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/module"
)

// effect is a default effect as options take it.
func effect(s string) *acl.Effect { return new(acl.Effect(s)) }

// ruleOf builds a rule in Go. It reports false when Go's types cannot hold it.
func ruleOf(n *node) (r acl.Rule, representable bool) {
	for _, key := range n.keys() {
		v := n.at(key)
		switch key {
		case "callers":
			r.Callers = v.strs()
		case "targets":
			r.Targets = v.strs()
		case "effect":
			r.Effect = acl.Effect(v.str())
		case "approval":
			r.Approval = acl.Approval(v.str())
		case "description":
			r.Description = v.str()
		case "conditions":
			r.Conditions = v.raw()
		default:
			v.raw()
			return r, false
		}
	}
	return r, true
}

// fileOf writes a rule file; JSON is YAML.
func fileOf(c *run, defaultEffect any, rules any, extra map[string]any) []byte {
	doc := map[string]any{"rules": rules}
	if defaultEffect != nil {
		doc["default_effect"] = defaultEffect
	}
	maps.Copy(doc, extra)
	b, err := json.Marshal(doc)
	if err != nil {
		c.Fatalf("driver: %v", err)
	}
	return b
}

// policyOf builds the policy of a case through the file door.
func policyOf(c *kase, rules, defaultEffect any, o acl.Options) *acl.Policy {
	o.Logger = quiet()
	p, err := acl.Parse("case", fileOf(c.run, defaultEffect, rules, nil), o)
	if err != nil {
		c.Fatalf("the rules are refused: %v", err)
	}
	return p
}

// callContext is the Context of a check, nil when the case gives none.
func callContext(c *kase) *module.Context {
	w := module.ContextWire{TraceID: module.NewTraceID(), CallerID: c.opt("caller_id").text()}
	given := false
	if id := c.opt("caller_identity").fields(); id != nil {
		w.Identity, given = identityOf(w.CallerID, id), true
	}
	if c.has("call_depth") {
		given = true
		for range c.at("call_depth").number() {
			w.CallChain = append(w.CallChain, "chain.step")
		}
	}
	if !given {
		return nil
	}
	return module.RestoreContext(w)
}

func identityOf(id string, m map[string]any) *module.Identity {
	if s, ok := m["id"].(string); ok {
		id = s
	}
	typ, _ := m["type"].(string)
	attrs, _ := m["attrs"].(map[string]any)
	return module.NewIdentity(id, typ, stringsOf(m["roles"]), attrs)
}

func stringsOf(v any) []string {
	l, _ := v.([]any)
	out := make([]string, 0, len(l))
	for _, e := range l {
		s, _ := e.(string)
		out = append(out, s)
	}
	return out
}

func driveACLEvaluation(c *kase) {
	p := policyOf(c, c.at("rules").raw(), c.at("default_effect").raw(), acl.Options{})
	checkAllowed(c, p)
}

func driveACLAgentScoping(c *kase) {
	p := policyOf(c, c.file.at("rules").raw(), c.file.at("default_effect").raw(), acl.Options{})
	checkAllowed(c, p)
}

func checkAllowed(c *kase, p *acl.Policy) {
	q := acl.Query{CallerID: c.opt("caller_id").text(), TargetID: c.at("target_id").str(), Context: callContext(c)}
	want := c.at("expected").flag()
	if d := p.Authorize(c.t.Context(), q); d.Allowed != want {
		c.Errorf("allowed = %t (%+v), want %t", d.Allowed, d, want)
	}
	if got := p.Check(c.t.Context(), q); got != want {
		c.Errorf("check = %t, want %t", got, want)
	}
}

// doors offers rules at every door of a case and returns what each says. An
// empty default effect is one that was given, unlike an absent one.
func doors(c *kase, n *node, defaultEffect string) map[string]error {
	one := n.has("rule")
	var items []*node
	if one {
		items = []*node{n.at("rule")}
	} else {
		items = n.at("rules").list()
	}
	var rules []acl.Rule
	var raw []any
	inGo := true
	for _, item := range items {
		r, ok := ruleOf(item)
		inGo = inGo && ok
		rules, raw = append(rules, r), append(raw, item.raw())
	}
	said := make(map[string]error)
	entries := []string{"load"}
	if n.has("entry_points") {
		entries = n.at("entry_points").strs()
	}
	for _, door := range entries {
		if door != "load" && !inGo {
			c.Fatalf("driver: door %s for a rule that Go cannot hold", door)
		}
		switch door {
		case "load":
			_, said[door] = acl.Parse("case", fileOf(c.run, defaultEffect, raw, nil), acl.Options{Logger: quiet()})
		case "construct":
			_, said[door] = acl.New(rules, acl.Options{DefaultEffect: effect(defaultEffect), Logger: quiet()})
		case "add_rule":
			p, err := acl.New(nil, acl.Options{DefaultEffect: effect(defaultEffect), Logger: quiet()})
			if err != nil {
				c.Fatalf("driver: %v", err)
			}
			said[door] = p.AddRule(rules[0])
			if got := len(p.Rules()); (said[door] == nil) != (got == 1) {
				c.Errorf("door add_rule: error %v, yet %d rules", said[door], got)
			}
		default:
			c.Fatalf("driver: unknown door %s", door)
		}
	}
	return said
}

// judgeDoors compares what the doors said with expected_load.
func judgeDoors(c *kase, said map[string]error) {
	want := c.at("expected_load").str()
	for door, err := range said {
		switch {
		case want == "ok" && err != nil:
			c.Errorf("door %s refuses: %v", door, err)
		case want == "reject" && module.CodeOf(err) != module.CodeACLRuleError:
			c.Errorf("door %s: %v, want ACL_RULE_ERROR", door, err)
		case want != "ok" && want != "reject":
			c.Fatalf("driver: unknown expected_load %s", want)
		}
	}
}

func driveACLEffectClosure(c *kase) {
	said := doors(c, c.node, c.at("default_effect").str())
	judgeDoors(c, said)
	if effect := c.at("rule").at("effect").str(); said["load"] != nil && effect != "allow" && effect != "deny" && effect != "" {
		for door, err := range said {
			if !strings.Contains(err.Error(), effect) {
				c.Errorf("door %s does not name the value: %v", door, err)
			}
		}
	}
}

func driveACLKeyClosure(c *kase) {
	said := doors(c, c.node, c.at("default_effect").str())
	judgeDoors(c, said)
	closed, reserved := c.file.at("closed_rule_keys").strs(), c.file.at("reserved_rule_keys").strs()
	if said["load"] == nil {
		return
	}
	for key := range c.at("rule").object() {
		if slices.Contains(closed, key) {
			continue
		}
		text := said["load"].Error()
		if !strings.Contains(text, key) {
			c.Errorf("the error does not name %s: %s", key, text)
		}
		if slices.Contains(reserved, key) && !strings.Contains(text, "reserved") {
			c.Errorf("the error does not say that %s is reserved: %s", key, text)
		}
	}
}

func driveACLPatternArity(c *kase) {
	switch kind := c.at("kind").str(); kind {
	case "closure":
		def := c.at("default_effect").str()
		said := doors(c, c.node, def)
		judgeDoors(c, said)
		if c.has("expected_refused_axis") {
			axis, index := c.at("expected_refused_axis").str(), int64(-1)
			if c.has("expected_refused_rule_index") {
				index = int64(c.at("expected_refused_rule_index").number())
			}
			for door, err := range said {
				judgeRefusal(c, door, err, axis, index)
			}
		}
		if c.has("expected_validation_finding_paths") {
			r, _ := ruleOf(c.at("rule"))
			p, err := acl.New([]acl.Rule{r}, acl.Options{DefaultEffect: effect(def), Logger: quiet()})
			if err != nil {
				c.Fatalf("construct: %v", err)
			}
			judgeFindings(c, p, c.at("expected_validation_finding_paths").strs())
		}
	case "backstop":
		driveACLBackstop(c)
	default:
		c.Fatalf("driver: unknown kind %s", kind)
	}
}

func judgeRefusal(c *kase, door string, err error, axis string, index int64) {
	e := module.AsError(err)
	if e == nil {
		c.Errorf("door %s: %v, want a refusal for %s", door, err, axis)
		return
	}
	switch axis {
	case "effect", "approval", "callers", "targets", "default_effect":
	default:
		c.Fatalf("driver: unknown axis %s", axis)
	}
	if e.Details["field"] != axis || !strings.Contains(e.Message, axis) {
		c.Errorf("door %s refuses for %v (%s), want %s", door, e.Details["field"], e.Message, axis)
	}
	if index >= 0 && e.Details["rule_index"] != index {
		c.Errorf("door %s refuses rule %v, want %d", door, e.Details["rule_index"], index)
	}
}

func judgeFindings(c *kase, p *acl.Policy, want []string) {
	got := []string{}
	for _, f := range p.Validate() {
		got = append(got, f.ConditionPath)
		if f.SyncResolvable || f.AsyncResolvable {
			c.Errorf("finding %s says that a handler could be found", f.ConditionPath)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		c.Errorf("findings (-want +got):\n%s", diff)
	}
}

// driveACLBackstop: a Go policy copies rules in and out, so an installed rule
// cannot be mutated. As the file asks of such an implementation, the closure is
// asserted: a mutated original and a mutated copy change nothing, and every door
// refuses the mutated rule. The backstop itself has tests inside package acl.
func driveACLBackstop(c *kase) {
	if route := c.at("mutation_route").str(); route != "installed_rule" {
		c.Fatalf("driver: unknown route %s", route)
	}
	rule, ok := ruleOf(c.at("rule"))
	if !ok {
		c.Fatalf("driver: rule that Go cannot hold")
	}
	sound := acl.Rule{Callers: slices.Clone(rule.Callers), Targets: slices.Clone(rule.Targets), Effect: rule.Effect,
		Approval: rule.Approval, Conditions: rule.Conditions}
	var entries []acl.AuditEntry
	p, err := acl.New([]acl.Rule{rule}, acl.Options{DefaultEffect: effect(c.at("default_effect").str()), Logger: quiet(),
		Audit: func(_ context.Context, e acl.AuditEntry) error { entries = append(entries, e); return nil }})
	if err != nil {
		c.Fatalf("construct: %v", err)
	}
	q := acl.Query{CallerID: c.at("caller_id").str(), TargetID: c.at("target_id").str()}
	if !c.has("mutate") {
		d := p.Authorize(c.t.Context(), q)
		if access := accessOf(d); access != c.at("expected_access").str() {
			c.Errorf("access %s, want %s", access, c.at("expected_access").str())
		}
		if got := p.Check(c.t.Context(), q); got != c.at("expected_legacy_check").flag() {
			c.Errorf("check = %t", got)
		}
		if got := entries[0].HandlerError != ""; got != c.at("expected_audit_handler_error_present").flag() {
			c.Errorf("handler error %q", entries[0].HandlerError)
		}
		if diff := cmp.Diff(c.at("expected_handler_error_paths").strs(), pathsOf(entries[0].HandlerError)); diff != "" {
			c.Errorf("handler error paths (-want +got):\n%s", diff)
		}
		judgeFindings(c, p, c.at("expected_validation_finding_paths").strs())
		return
	}
	before := p.Authorize(c.t.Context(), q)
	mutate := func(r *acl.Rule) {
		edits := []*node{c.at("mutate")}
		if _, list := c.at("mutate").v.([]any); list {
			edits = c.at("mutate").list()
		}
		for _, e := range edits {
			switch value := e.at("value").strs(); e.at("field").str() {
			case "targets":
				overwrite(r.Targets)
				r.Targets = value
			case "callers":
				overwrite(r.Callers)
				r.Callers = value
			default:
				c.Fatalf("driver: unknown field")
			}
		}
	}
	mutate(&rule)
	copies := p.Rules()
	mutate(&copies[0])
	if diff := cmp.Diff(before, p.Authorize(c.t.Context(), q)); diff != "" {
		c.Errorf("a rule was changed from outside (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]acl.Rule{sound}, p.Rules()); diff != "" {
		c.Errorf("an installed rule was changed from outside (-want +got):\n%s", diff)
	}
	if err := p.AddRule(rule); module.CodeOf(err) != module.CodeACLRuleError {
		c.Errorf("add_rule of the mutated rule: %v, want ACL_RULE_ERROR", err)
	}
	if _, err := acl.New([]acl.Rule{rule}, acl.Options{Logger: quiet()}); module.CodeOf(err) != module.CodeACLRuleError {
		c.Errorf("construction with the mutated rule: %v, want ACL_RULE_ERROR", err)
	}
	for _, key := range []string{"expected_access", "expected_legacy_check", "expected_audit_handler_error_present",
		"expected_handler_error_paths", "expected_validation_finding_paths"} {
		c.at(key).raw() // cannot come about
	}
	c.opt("expected_matched_rule_index").raw()
	c.opt("expected_approval_required").raw()
}

func overwrite(list []string) {
	for i := range list {
		list[i] = "$not"
	}
}

func accessOf(d acl.Decision) string {
	if d.Allowed {
		return "allow"
	}
	return "deny"
}

// pathsOf takes the paths out of "path: reason; path: reason".
func pathsOf(handlerError string) []string {
	paths := []string{}
	if handlerError == "" {
		return paths
	}
	for part := range strings.SplitSeq(handlerError, "; ") {
		path, _, _ := strings.Cut(part, ": ")
		paths = append(paths, path)
	}
	return paths
}

// untyped puts callers_raw and targets_raw in the place of the lists, for the one
// door where such a value can be written.
func untyped(c *kase) []any {
	var rules []any
	for _, n := range c.at("rules").list() {
		r := maps.Clone(n.fields())
		for _, key := range []string{"callers", "targets"} {
			if v, ok := r[key+"_raw"]; ok {
				delete(r, key+"_raw")
				r[key] = v
			}
		}
		rules = append(rules, r)
	}
	return rules
}

func driveACLHandlerError(c *kase) {
	var entries []acl.AuditEntry
	throwing, unknown := c.file.at("throwing_condition_key").str(), c.file.at("unknown_condition_key").str()
	o := acl.Options{
		DefaultEffect: effect(c.at("default_effect").str()),
		Logger:        quiet(),
		Audit:         func(_ context.Context, e acl.AuditEntry) error { entries = append(entries, e); return nil },
		Conditions: map[string]acl.ConditionFunc{throwing: func(context.Context, any, acl.Query) (bool, error) {
			return false, errors.New("the condition fails")
		}},
	}
	if _, known := o.Conditions[unknown]; known {
		c.Fatalf("driver: %s must not be registered", unknown)
	}
	var rules []acl.Rule
	for _, n := range c.at("rules").list() {
		r, ok := ruleOf(n)
		if !ok {
			_, err := acl.Parse("case", fileOf(c.run, c.at("default_effect").raw(), untyped(c), nil), o)
			c.Fatalf("Go cannot hold this rule, and a file with it is refused: %v", err)
		}
		rules = append(rules, r)
	}
	for _, fails := range []acl.ConditionFunc{o.Conditions[throwing],
		func(context.Context, any, acl.Query) (bool, error) { panic("the condition panics") }} {
		entries = nil
		o.Conditions[throwing] = fails
		p, err := acl.New(rules, o)
		if err != nil {
			c.Fatalf("construct: %v", err)
		}
		q := acl.Query{CallerID: c.at("caller_id").str(), TargetID: c.at("target_id").str()}
		identity := c.opt("context_identity").fields()
		if c.at("with_context").flag() {
			q.Context = module.NewContext(module.ContextOptions{Identity: identityOf("", identity)})
		}
		if d := p.Authorize(c.t.Context(), q); d.Allowed != c.at("expected").flag() {
			c.Errorf("allowed = %t", d.Allowed)
		}
		judgeHandlerError(c, entries, "expected_audit_handler_error_present")
		if c.has("expected_handler_error_paths") && len(entries) == 1 {
			if diff := cmp.Diff(c.at("expected_handler_error_paths").strs(), pathsOf(entries[0].HandlerError)); diff != "" {
				c.Errorf("handler error paths (-want +got):\n%s", diff)
			}
		}
	}
}

func judgeHandlerError(c *kase, entries []acl.AuditEntry, key string) {
	if len(entries) != 1 {
		c.Errorf("%d audit entries, want 1", len(entries))
		return
	}
	if got := entries[0].HandlerError != ""; got != c.at(key).flag() {
		c.Errorf("%s: handler error %q", key, entries[0].HandlerError)
	}
}

func driveACLArguments(c *kase) {
	def := c.at("default_effect").str()
	var entries []acl.AuditEntry
	o := acl.Options{DefaultEffect: effect(def), Logger: quiet(),
		Audit: func(_ context.Context, e acl.AuditEntry) error { entries = append(entries, e); return nil }}
	var rules []acl.Rule
	for _, n := range c.at("rules").list() {
		r, ok := ruleOf(n)
		if !ok {
			_, err := acl.Parse("case", fileOf(c.run, def, untyped(c), nil), o)
			c.Fatalf("Go cannot hold this rule, and a file with it is refused: %v", err)
		}
		rules = append(rules, r)
	}
	p, err := acl.New(rules, o)
	if err != nil {
		c.Fatalf("construct: %v", err)
	}
	arguments := c.at("arguments").fields()
	for _, suffix := range []string{"", "_no_projection"} {
		q := acl.Query{CallerID: c.at("caller_id").text(), TargetID: c.at("target_id").str(),
			Context: module.NewContext(module.ContextOptions{})}
		if suffix == "" && arguments != nil {
			q.ArgumentKeys = acl.ArgumentKeys(arguments)
		}
		entries = nil
		d := p.Authorize(c.t.Context(), q)
		if got := accessOf(d); got != c.at("expected_access"+suffix).str() {
			c.Errorf("access%s = %s", suffix, got)
		}
		if d.ApprovalRequired != c.at("expected_approval_required"+suffix).flag() {
			c.Errorf("approval required%s = %t", suffix, d.ApprovalRequired)
		}
		want := -1
		if n := c.at("expected_matched_rule_index" + suffix); !n.null() {
			want = n.number()
		}
		if d.RuleIndex != want {
			c.Errorf("rule index%s = %d, want %d", suffix, d.RuleIndex, want)
		}
		judgeHandlerError(c, entries, "expected_audit_handler_error_present"+suffix)
		if got := p.Check(c.t.Context(), q); got != c.at("expected_legacy_check"+suffix).flag() {
			c.Errorf("check%s = %t", suffix, got)
		}
	}
	var paths []string
	for _, f := range p.Validate() {
		paths = append(paths, f.ConditionPath)
	}
	if path := c.at("expected_validation_finding_path").text(); path != "" && !slices.Contains(paths, path) {
		c.Errorf("findings %q, want %s among them", paths, path)
	}
	if n := c.at("expected_validation_finding_paths"); !n.null() {
		if diff := cmp.Diff(n.strs(), paths); diff != "" {
			c.Errorf("findings (-want +got):\n%s", diff)
		}
	}
}
