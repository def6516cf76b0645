package acl

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/apbus/apbus/module"
	yaml "go.yaml.in/yaml/v3"
)

// document is a parsed file: the values decide, the nodes say where they stand.
type document struct {
	name string
	root *yaml.Node
}

func parse(name string, raw []byte) (*content, error) {
	d := document{name: name}
	values, err := d.decode(raw)
	if err != nil {
		return nil, err
	}
	c := &content{defaultEffect: Deny}
	if v, present := values["default_effect"]; present {
		text, ok := v.(string)
		if !ok {
			return nil, (&ruleFault{"default_effect", "default_effect is not a string"}).err(-1, d.at("default_effect"))
		}
		c.defaultEffect = Effect(text)
		if f := checkDefault(c.defaultEffect); f != nil {
			return nil, f.err(-1, d.at("default_effect"))
		}
	}
	list, ok := values["rules"].([]any)
	if !ok {
		text := "rules is missing"
		if _, present := values["rules"]; present {
			text = "rules is not a list"
		}
		return nil, (&ruleFault{"rules", text}).err(-1, d.at("rules"))
	}
	for i, item := range list {
		r, f := ruleFromValue(item)
		if f != nil {
			return nil, f.err(i, d.at("rules", i, f.axis))
		}
		c.rules = append(c.rules, r)
	}
	if v, present := values["audit"]; present {
		if c.audit, err = d.auditBlock(v); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (d *document) decode(raw []byte) (map[string]any, error) {
	fail := func(format string, args ...any) (map[string]any, error) {
		return nil, module.Errorf(module.CodeACLRuleError, "ACL file "+d.name+": "+format, args...)
	}
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return fail("%w", err)
	}
	var values any
	if err := doc.Decode(&values); err != nil {
		return fail("%w", err)
	}
	m, ok := values.(map[string]any)
	if !ok {
		return fail("the document is not a mapping")
	}
	var more yaml.Node
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return fail("more than one document")
	}
	if len(doc.Content) > 0 {
		d.root = doc.Content[0]
	}
	return m, nil
}

// at gives the place of a path of keys and indexes, as far as it exists.
func (d *document) at(path ...any) string {
	n, line := d.root, 0
	for _, step := range path {
		if n != nil && n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		if n == nil {
			break
		}
		var next *yaml.Node
		switch s := step.(type) {
		case string:
			if n.Kind != yaml.MappingNode {
				break
			}
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == s {
					next, line = n.Content[i+1], n.Content[i].Line
				}
			}
		case int:
			if n.Kind == yaml.SequenceNode && s < len(n.Content) {
				next, line = n.Content[s], n.Content[s].Line
			}
		}
		n = next
	}
	return place(d.name, line)
}

func ruleFromValue(v any) (Rule, *ruleFault) {
	m, ok := v.(map[string]any)
	if !ok {
		return Rule{}, &ruleFault{"", "rule is not a mapping"}
	}
	if f := unknownRuleKeys(m); f != nil {
		return Rule{}, f
	}
	var r Rule
	effect, f := textField(m, "effect", true)
	if f != nil {
		return Rule{}, f
	}
	approval, f := textField(m, "approval", false)
	if f != nil {
		return Rule{}, f
	}
	if _, present := m["approval"]; present && approval == "" {
		return Rule{}, &ruleFault{"approval", `approval "" is neither required nor not_required`}
	}
	r.Effect, r.Approval = Effect(effect), Approval(approval)
	// The value of effect and approval comes before the type of the patterns.
	if f := (Rule{Effect: r.Effect, Approval: r.Approval, Callers: []string{"*"}, Targets: []string{"*"}}).check(); f != nil {
		return Rule{}, f
	}
	if r.Callers, f = patternField(m, "callers"); f != nil {
		return Rule{}, f
	}
	if r.Targets, f = patternField(m, "targets"); f != nil {
		return Rule{}, f
	}
	if r.Description, f = textField(m, "description", false); f != nil {
		return Rule{}, f
	}
	if c, present := m["conditions"]; present {
		if r.Conditions, ok = c.(map[string]any); !ok {
			return Rule{}, &ruleFault{"conditions", "conditions is not a mapping"}
		}
	}
	return r, r.check()
}

func unknownRuleKeys(m map[string]any) *ruleFault {
	var texts []string
	first := ""
	for _, k := range slices.Sorted(maps.Keys(m)) {
		switch k {
		case "callers", "targets", "effect", "approval", "description", "conditions":
			continue
		case "id", "actions", "priority":
			texts = append(texts, fmt.Sprintf("%q (reserved, nothing evaluates it)", k))
		default:
			texts = append(texts, fmt.Sprintf("%.60q", k))
		}
		if first == "" {
			first = k
		}
	}
	if texts == nil {
		return nil
	}
	return &ruleFault{first, "unknown keys: " + strings.Join(texts, ", ")}
}

func textField(m map[string]any, key string, required bool) (string, *ruleFault) {
	v, present := m[key]
	if !present {
		if required {
			return "", &ruleFault{key, key + " is missing"}
		}
		return "", nil
	}
	s, ok := v.(string)
	if !ok {
		return "", &ruleFault{key, key + " is not a string"}
	}
	return s, nil
}

func patternField(m map[string]any, key string) ([]string, *ruleFault) {
	v, present := m[key]
	if !present {
		return nil, &ruleFault{key, key + " is missing"}
	}
	list, ok := v.([]any)
	if !ok {
		return nil, &ruleFault{key, key + " is not a list"}
	}
	out := make([]string, len(list))
	for i, e := range list {
		if out[i], ok = e.(string); !ok {
			return nil, &ruleFault{key, fmt.Sprintf("%s element %d is not a string", key, i)}
		}
	}
	if text := patternFault(out); text != "" {
		return nil, &ruleFault{key, key + " " + text}
	}
	return out, nil
}

// auditBlock reads audit; null declares it with every default.
func (d *document) auditBlock(v any) (auditBlock, error) {
	b := auditBlock{declared: true, enabled: true, includeDenied: true, level: slog.LevelInfo}
	bad := func(key, text string) (auditBlock, error) {
		path := []any{"audit"}
		name := "audit"
		if key != "" {
			path, name = append(path, key), "audit."+key
		}
		return auditBlock{}, module.Errorf(module.CodeConfigInvalid, "ACL file %s: %s %s", d.at(path...), name, text).
			WithDetail("key", name)
	}
	if v == nil {
		return b, nil
	}
	m, ok := v.(map[string]any)
	if !ok {
		return bad("", "is not a mapping")
	}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		switch key {
		case "enabled", "include_denied":
			on, ok := m[key].(bool)
			if !ok {
				return bad(key, "is not a boolean")
			}
			if key == "enabled" {
				b.enabled, b.enabledSet = on, true
			} else {
				b.includeDenied, b.deniedSet = on, true
			}
		case "log_level":
			text, _ := m[key].(string)
			level, ok := auditLevel(text)
			if !ok {
				return bad(key, "is none of trace, debug, info, warn, error")
			}
			b.level, b.lvlSet = level, true
		default:
			return bad(key, "is not known")
		}
	}
	return b, nil
}

func auditLevel(text string) (slog.Level, bool) {
	switch text {
	case "trace":
		return LevelTrace, true
	case "debug":
		return slog.LevelDebug, true
	case "info":
		return slog.LevelInfo, true
	case "warn":
		return slog.LevelWarn, true
	case "error":
		return slog.LevelError, true
	}
	return 0, false
}
