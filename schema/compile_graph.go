package schema

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// maxInPlace bounds how many schemas may judge one value when every branch is
// followed: doubling chains of allOf reach 2^n with n definitions.
const maxInPlace = 50_000

// graph is what one walk over the compiled schemas learns.
type graph struct {
	doc     map[string]any
	order   []*jsonschema.Schema
	state   map[*jsonschema.Schema]visit
	cost    map[*jsonschema.Schema]int // schemas judging one value, branches multiplied out
	hops    map[*jsonschema.Schema]int // longest chain of references in place
	dynamic bool                       // $dynamicRef or an older draft: only the library can judge
}

type visit int8

const (
	unvisited visit = iota
	active          // on the current in-place chain
	done
)

// survey walks everything reachable from root, refuses what could not be
// evaluated in bounded time, and takes from the library what this package
// decides otherwise: format is an annotation in every draft.
func survey(root *jsonschema.Schema, doc map[string]any) (*graph, error) {
	g := &graph{
		doc:   doc,
		state: map[*jsonschema.Schema]visit{},
		cost:  map[*jsonschema.Schema]int{},
		hops:  map[*jsonschema.Schema]int{},
	}
	pending := []*jsonschema.Schema{root}
	seen := map[*jsonschema.Schema]bool{root: true}
	for len(pending) > 0 {
		s := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		g.order = append(g.order, s)
		if len(g.order) > MaxSubschemas {
			return nil, &ParseError{Code: CodeMaxDepthExceeded, Message: fmt.Sprintf("more than %d subschemas", MaxSubschemas)}
		}
		for _, next := range slices.Concat(inPlace(s), descending(s)) {
			if !seen[next] {
				seen[next] = true
				pending = append(pending, next)
			}
		}
	}
	for _, s := range g.order {
		if err := g.chain(s, nil); err != nil {
			return nil, err
		}
		if s.DraftVersion < 2020 || s.DynamicRef != nil || s.RecursiveRef != nil {
			g.dynamic = true
		}
	}
	for _, s := range g.order {
		s.Format = nil
		if s.PropertyNames != nil {
			s.Extensions = append(s.Extensions, propertyNames{s.PropertyNames})
			s.PropertyNames = nil
		}
	}
	return g, nil
}

// chain follows the schemas that judge the same value as s.
func (g *graph) chain(s *jsonschema.Schema, path []string) error {
	switch g.state[s] {
	case done:
		return nil
	case active:
		return &ParseError{
			Code:    CodeCircularRef,
			Message: "references loop without descending into the data at " + fragment(s.Location),
			RefPath: append(path, fragment(s.Location)),
		}
	}
	if len(path) > MaxDepth {
		return &ParseError{Code: CodeMaxDepthExceeded, Message: "too many schemas apply to one value at " + fragment(s.Location)}
	}
	g.state[s] = active
	cost, hops := 1, 0
	path = append(path, fragment(s.Location))
	for _, next := range inPlace(s) {
		if err := g.chain(next, path); err != nil {
			return err
		}
		cost += g.cost[next]
		h := g.hops[next]
		if next == s.Ref || next == s.RecursiveRef || (s.DynamicRef != nil && next == s.DynamicRef.Ref) {
			h++
		}
		hops = max(hops, h)
	}
	if hops > MaxRefHops {
		return &ParseError{Code: CodeMaxDepthExceeded, Message: fmt.Sprintf("more than %d references in a row at %s", MaxRefHops, fragment(s.Location))}
	}
	if cost > maxInPlace {
		return &ParseError{Code: CodeMaxDepthExceeded, Message: "too many schemas apply to one value at " + fragment(s.Location)}
	}
	g.state[s], g.cost[s], g.hops[s] = done, cost, hops
	return nil
}

// inPlace lists the schemas s applies to the value it judges itself.
func inPlace(s *jsonschema.Schema) []*jsonschema.Schema {
	var out []*jsonschema.Schema
	add := func(list ...*jsonschema.Schema) {
		for _, x := range list {
			if x != nil {
				out = append(out, x)
			}
		}
	}
	add(s.Ref, s.RecursiveRef, s.Not, s.If, s.Then, s.Else)
	if s.DynamicRef != nil {
		add(s.DynamicRef.Ref)
	}
	add(s.AllOf...)
	add(s.AnyOf...)
	add(s.OneOf...)
	for _, name := range slices.Sorted(maps.Keys(s.DependentSchemas)) {
		add(s.DependentSchemas[name])
	}
	for _, name := range slices.Sorted(maps.Keys(s.Dependencies)) {
		if sub, ok := s.Dependencies[name].(*jsonschema.Schema); ok {
			add(sub)
		}
	}
	return out
}

// descending lists the schemas s applies to what is inside the value it judges.
func descending(s *jsonschema.Schema) []*jsonschema.Schema {
	var out []*jsonschema.Schema
	add := func(v any) {
		switch v := v.(type) {
		case *jsonschema.Schema:
			if v != nil {
				out = append(out, v)
			}
		case []*jsonschema.Schema:
			out = append(out, v...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		add(s.Properties[name])
	}
	for _, sub := range s.PatternProperties {
		add(sub)
	}
	add(s.AdditionalProperties)
	add(s.PropertyNames)
	add(s.UnevaluatedProperties)
	add(s.Items)
	add(s.AdditionalItems)
	add(s.PrefixItems)
	add(s.Items2020)
	add(s.Contains)
	add(s.UnevaluatedItems)
	add(s.ContentSchema)
	return out
}

// inPlaceClosure lists s and every schema that judges the same value.
func inPlaceClosure(s *jsonschema.Schema) []*jsonschema.Schema {
	out := []*jsonschema.Schema{s}
	seen := map[*jsonschema.Schema]bool{s: true}
	for i := 0; i < len(out); i++ {
		for _, next := range inPlace(out[i]) {
			if !seen[next] {
				seen[next] = true
				out = append(out, next)
			}
		}
	}
	return out
}

// source returns the part of the document s was compiled from.
func (g *graph) source(s *jsonschema.Schema) map[string]any {
	base, frag, _ := strings.Cut(s.Location, "#")
	if base != docURL {
		return nil
	}
	frag, err := url.PathUnescape(frag)
	if err != nil {
		return nil
	}
	var at any = g.doc
	if frag != "" {
		for tok := range strings.SplitSeq(frag[1:], "/") {
			tok = unescapePointer(tok)
			switch v := at.(type) {
			case map[string]any:
				at = v[tok]
			case []any:
				i, err := strconv.Atoi(tok)
				if err != nil || i < 0 || i >= len(v) {
					return nil
				}
				at = v[i]
			default:
				return nil
			}
		}
	}
	m, _ := at.(map[string]any)
	return m
}

func fragment(location string) string {
	_, frag, _ := strings.Cut(location, "#")
	return "#" + frag
}

func unescapePointer(tok string) string {
	return strings.ReplaceAll(strings.ReplaceAll(tok, "~1", "/"), "~0", "~")
}

func escapePointer(tok string) string {
	return strings.ReplaceAll(strings.ReplaceAll(tok, "~", "~0"), "/", "~1")
}
