package plan

import (
	"maps"

	"github.com/apbus/apbus/schema"
)

// sensitiveKey is how a schema marks what is sensitive.
const sensitiveKey = "x-sensitive"

// marked is the schema of something of which nothing may be shown.
func marked() map[string]any { return map[string]any{sensitiveKey: true} }

// marks are schemas of a plan's inputs and of its nodes' outputs that say what may not
// be shown of them, which is what the nodes' modules say, and nothing else. Of a module
// whose schemas are not known nothing may be shown. Without a redaction they are nil.
func (p *Plan) marks(hide *Redaction) (input, outputs map[string]any) {
	if hide == nil || hide.Schemas == nil {
		return nil, nil
	}
	for _, n := range p.Nodes {
		in, out := marked(), marked()
		if i, o, known := hide.Schemas(n.Tool, nil); known {
			in, out = marksOf(docOf(i)), marksOf(docOf(o))
		}
		outputs = join(outputs, within([]string{n.ID}, out))
		bindings, bound := p.Bindings[n.ID]
		if !bound {
			input = join(input, join(in, within([]string{n.ID}, in))) // an object of its own, or all inputs
			continue
		}
		for name, from := range bindings {
			path, ok := parsePath(from)
			if !ok {
				continue
			}
			if m := memberOf(in, name); path[0] == stateInput {
				input = join(input, within(path[1:], m))
			} else {
				outputs = join(outputs, within(path, m))
			}
		}
	}
	return input, outputs
}

func docOf(c *schema.Compiled) map[string]any {
	if c == nil {
		return nil
	}
	return c.Doc()
}

// marksOf is a schema with the marks of doc and nothing else, nil for none. Marks that
// are reached otherwise than by properties and items hide all of it.
func marksOf(doc map[string]any) map[string]any {
	if doc[sensitiveKey] == true {
		return marked()
	}
	var out map[string]any
	for key, v := range doc {
		switch key {
		case "properties":
			properties, _ := v.(map[string]any)
			for name, sub := range properties {
				m, _ := sub.(map[string]any)
				out = join(out, within([]string{name}, marksOf(m)))
			}
		case "items":
			m, ok := v.(map[string]any)
			if !ok && holdsMark(v) {
				return marked()
			}
			if sub := marksOf(m); sub != nil {
				out = join(out, map[string]any{"items": sub})
			}
		default:
			if holdsMark(v) {
				return marked()
			}
		}
	}
	return out
}

// holdsMark reports whether there is a mark anywhere in v.
func holdsMark(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		if v[sensitiveKey] == true {
			return true
		}
		for _, e := range v {
			if holdsMark(e) {
				return true
			}
		}
	case []any:
		for _, e := range v {
			if holdsMark(e) {
				return true
			}
		}
	}
	return false
}

// memberOf are the marks of one property.
func memberOf(marks map[string]any, name string) map[string]any {
	if marks[sensitiveKey] == true {
		return marked()
	}
	properties, _ := marks["properties"].(map[string]any)
	m, _ := properties[name].(map[string]any)
	return m
}

// within puts marks under a path of properties.
func within(path []string, marks map[string]any) map[string]any {
	for i := len(path) - 1; i >= 0 && marks != nil; i-- {
		marks = map[string]any{"properties": map[string]any{path[i]: marks}}
	}
	return marks
}

// join hides what either hides. It modifies neither.
func join(a, b map[string]any) map[string]any {
	switch {
	case len(a) == 0:
		return b
	case len(b) == 0:
		return a
	}
	out := maps.Clone(a)
	for key, v := range b {
		have, ok := out[key].(map[string]any)
		sub, _ := v.(map[string]any)
		if !ok {
			out[key] = v
			continue
		}
		if key == "items" {
			out[key] = join(have, sub)
			continue
		}
		properties := maps.Clone(have)
		for name, m := range sub {
			one, _ := properties[name].(map[string]any)
			two, _ := m.(map[string]any)
			properties[name] = join(one, two)
		}
		out[key] = properties
	}
	return out
}
