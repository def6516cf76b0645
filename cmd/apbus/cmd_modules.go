package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/apbus/apbus/module"
)

// modulesCmd lists modules or shows one.
type modulesCmd struct {
	ID     string `arg:"" optional:"" help:"Show this module with its schemas."`
	Prefix string `local:"" placeholder:"TEXT" help:"Only modules whose ID begins with this."`
	Tag    string `local:"" placeholder:"TAG" help:"Only modules with this tag."`
	Query  string `local:"" name:"q" placeholder:"TEXT" help:"Only modules with this text in ID, name, description or tags."`
}

// Run lists or shows.
func (c *modulesCmd) Run(s *session) error {
	return s.with(func(b backend) error {
		if c.ID != "" {
			m, err := b.Module(s.ctx, c.ID)
			if err != nil {
				return err
			}
			if s.stdout.json {
				return s.stdout.document(m)
			}
			return showModule(s.stdout, m)
		}
		all, err := b.Modules(s.ctx)
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(m map[string]any) bool {
			return !strings.HasPrefix(text(m["module_id"]), c.Prefix) ||
				c.Tag != "" && !slices.Contains(texts(m["tags"]), c.Tag) ||
				!hasText(m, strings.ToLower(c.Query))
		})
		if s.stdout.json {
			return s.stdout.document(map[string]any{"modules": anyMaps(all)})
		}
		rows := make([][]string, 0, len(all))
		for _, m := range all {
			rows = append(rows, []string{
				text(m["module_id"]), text(m["version"]), hostsOf(m), behaviour(m), text(m["description"]),
			})
		}
		return s.stdout.table([]string{"MODULE", "VERSION", "NODES", "BEHAVIOUR", "DESCRIPTION"}, rows)
	})
}

// hasText reports whether a module has a text, in lower case, where people look.
func hasText(m map[string]any, query string) bool {
	return slices.ContainsFunc(append([]string{text(m["module_id"]), text(m["name"]), text(m["description"])}, texts(m["tags"])...),
		func(s string) bool { return strings.Contains(strings.ToLower(s), query) })
}

func anyMaps(list []map[string]any) []any {
	out := make([]any, len(list))
	for i, m := range list {
		out[i] = m
	}
	return out
}

// hostsOf lists the nodes that host a module, sorted; one that only drains is in
// brackets.
func hostsOf(m map[string]any) string {
	list, _ := m["hosts"].([]any)
	takesCalls := map[string]bool{}
	for _, h := range list {
		host, _ := h.(map[string]any)
		name := text(host["node"])
		takesCalls[name] = takesCalls[name] || host["draining"] != true
	}
	nodes := slices.Sorted(maps.Keys(takesCalls))
	for i, name := range nodes {
		if !takesCalls[name] {
			nodes[i] = "(" + name + ")"
		}
	}
	return strings.Join(nodes, ",")
}

// behaviour shows the annotations that decide how a module may be called.
func behaviour(m map[string]any) string {
	doc, _ := m["annotations"].(map[string]any)
	a := module.AnnotationsFromMap(doc)
	var words []string
	for _, w := range []struct {
		set  bool
		word string
	}{
		{a.Readonly, "readonly"}, {a.Idempotent, "idempotent"}, {a.Destructive, "destructive"},
		{a.RequiresApproval, "approval"}, {a.Streaming, "streaming"},
	} {
		if w.set {
			words = append(words, w.word)
		}
	}
	return strings.Join(words, ",")
}

func showModule(p *printer, m map[string]any) error {
	err := p.facts([][2]string{
		{text(m["module_id"]), text(m["version"])},
		{"", text(m["description"])},
		{"", text(m["documentation"])},
		{"behaviour", behaviour(m)},
		{"nodes", hostsOf(m)},
		{"tags", strings.Join(texts(m["tags"]), ", ")},
	})
	if err != nil {
		return err
	}
	for _, part := range []string{"input", "output"} {
		doc, _ := m[part+"_schema"].(map[string]any)
		if err := p.line("\n%s", p.bold(part)); err != nil {
			return err
		}
		if err := p.table([]string{"NAME", "TYPE", "REQUIRED", "DESCRIPTION"}, propertyRows(doc)); err != nil {
			return err
		}
	}
	return showGuidance(p, m)
}

func propertyRows(schema map[string]any) [][]string {
	root, _ := resolved(schema, schema).(map[string]any)
	properties, _ := root["properties"].(map[string]any)
	required := texts(root["required"])
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		needed := ""
		if slices.Contains(required, name) {
			needed = "yes"
		}
		doc, _ := resolved(schema, properties[name]).(map[string]any)
		note := text(doc["description"])
		if doc["x-sensitive"] == true {
			note = strings.TrimSpace(note + " (sensitive)")
		}
		rows = append(rows, []string{name, describeKinds(schema, properties[name]), needed, note})
	}
	return rows
}
