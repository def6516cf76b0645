package schema

import (
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// mark is where a schema says x-sensitive: the part of the document's structure
// that leads to a marked schema, with references and branches resolved. Schemas
// that lead to none have no mark.
type mark struct {
	sensitive bool
	props     map[string][]*mark
	declared  map[string]bool // property names that additionalProperties does not cover
	patterns  []patternMark
	known     []jsonschema.Regexp // every patternProperties pattern, for the same reason
	extra     []*mark
	uneval    []*mark // unevaluatedProperties, taken to cover every property
	prefix    [][]*mark
	items     []*mark // items beyond the prefix
	every     []*mark // contains and unevaluatedItems, taken to cover every item
}

type patternMark struct {
	re    jsonschema.Regexp
	marks []*mark
}

// marks builds the marks of the document's root, nil when nothing is marked. A
// mark in any branch counts, whichever branch a value fits.
func (g *graph) marks() []*mark {
	leads := g.sensitiveReach()
	if !leads[g.order[0]] {
		return nil
	}
	built := make(map[*jsonschema.Schema]*mark, len(leads))
	for s := range leads {
		built[s] = &mark{}
	}
	// at lists the marks of all schemas that judge a value s judges.
	at := func(s *jsonschema.Schema) []*mark {
		if s == nil || !leads[s] {
			return nil
		}
		var out []*mark
		for _, same := range inPlaceClosure(s) {
			if m := built[same]; m != nil {
				out = append(out, m)
			}
		}
		return out
	}
	for s, m := range built {
		m.fill(s, g.isMarked(s), at)
	}
	return at(g.order[0])
}

// isMarked reports whether s itself carries x-sensitive.
func (g *graph) isMarked(s *jsonschema.Schema) bool {
	src := g.source(s)
	return src != nil && src["x-sensitive"] == true
}

// sensitiveReach finds the schemas from which a marked one can be reached.
func (g *graph) sensitiveReach() map[*jsonschema.Schema]bool {
	parents := make(map[*jsonschema.Schema][]*jsonschema.Schema, len(g.order))
	leads := map[*jsonschema.Schema]bool{}
	var pending []*jsonschema.Schema
	for _, s := range g.order {
		for _, next := range slices.Concat(inPlace(s), descending(s)) {
			parents[next] = append(parents[next], s)
		}
		if g.isMarked(s) {
			leads[s] = true
			pending = append(pending, s)
		}
	}
	for len(pending) > 0 {
		s := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		for _, p := range parents[s] {
			if !leads[p] {
				leads[p] = true
				pending = append(pending, p)
			}
		}
	}
	return leads
}

func (m *mark) fill(s *jsonschema.Schema, sensitive bool, at func(*jsonschema.Schema) []*mark) {
	m.sensitive = sensitive
	m.props = map[string][]*mark{}
	m.declared = map[string]bool{}
	for name, sub := range s.Properties {
		m.declared[name] = true
		if marks := at(sub); marks != nil {
			m.props[name] = marks
		}
	}
	for re, sub := range s.PatternProperties {
		m.known = append(m.known, re)
		if marks := at(sub); marks != nil {
			m.patterns = append(m.patterns, patternMark{re, marks})
		}
	}
	if sub, ok := s.AdditionalProperties.(*jsonschema.Schema); ok {
		m.extra = at(sub)
	}
	m.uneval = at(s.UnevaluatedProperties)
	prefix, rest := s.PrefixItems, s.Items2020
	switch items := s.Items.(type) {
	case *jsonschema.Schema:
		rest = items
	case []*jsonschema.Schema:
		prefix = items
		rest, _ = s.AdditionalItems.(*jsonschema.Schema)
	}
	for _, sub := range prefix {
		m.prefix = append(m.prefix, at(sub))
	}
	m.items = at(rest)
	m.every = append(at(s.Contains), at(s.UnevaluatedItems)...)
}

// markSet is every mark that applies to one value.
type markSet []*mark

func (ms markSet) sensitive() bool {
	return slices.ContainsFunc(ms, func(m *mark) bool { return m.sensitive })
}

// member returns the marks that apply to the property name.
func (ms markSet) member(name string) markSet {
	var out markSet
	for _, m := range ms {
		out = out.with(m.props[name])
		for _, p := range m.patterns {
			if p.re.MatchString(name) {
				out = out.with(p.marks)
			}
		}
		if m.extra != nil && !m.covers(name) {
			out = out.with(m.extra)
		}
		out = out.with(m.uneval)
	}
	return out
}

// covers reports whether properties or patternProperties speak about name.
func (m *mark) covers(name string) bool {
	return m.declared[name] || slices.ContainsFunc(m.known, func(re jsonschema.Regexp) bool { return re.MatchString(name) })
}

// item returns the marks that apply to the item at i.
func (ms markSet) item(i int) markSet {
	var out markSet
	for _, m := range ms {
		if i < len(m.prefix) {
			out = out.with(m.prefix[i])
		} else {
			out = out.with(m.items)
		}
		out = out.with(m.every)
	}
	return out
}

func (ms markSet) with(more []*mark) markSet {
	for _, m := range more {
		if !slices.Contains(ms, m) {
			ms = append(ms, m)
		}
	}
	return ms
}
