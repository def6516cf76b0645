package schema

import (
	"math"
	"math/big"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

type typeSet uint8

const (
	isNull typeSet = 1 << iota
	isBool
	isNumber
	isInteger
	isString
	isArray
	isObject
)

// rule is a schema prepared for the quick check.
type rule struct {
	fixed  verdict // of a boolean schema; unsure otherwise
	opaque bool    // has a keyword only the library judges
	types  typeSet // 0 allows every type
	enum   *enumRule

	min, max, above, below *bound
	multiple               int64 // 0: none

	minLength, maxLength int
	pattern              jsonschema.Regexp

	minItems, maxItems       int
	unique                   bool
	prefix                   []*rule
	items                    *rule
	contains                 *rule
	minContains, maxContains int

	minProps, maxProps int
	required           []string
	props              map[string]*rule
	patterns           []patternRule
	extra              *rule // additionalProperties
	names              *rule // propertyNames
	needs              map[string][]string
	dependents         map[string]*rule

	all                   []*rule // $ref and allOf
	any, one              []*rule
	not                   *rule
	cond, then, otherwise *rule
}

type patternRule struct {
	re   jsonschema.Regexp
	rule *rule
}

// rules prepares the quick check, nil where the library alone can judge.
func (g *graph) rules() *rule {
	if g.dynamic {
		return nil
	}
	built := make(map[*jsonschema.Schema]*rule, len(g.order))
	for _, s := range g.order {
		built[s] = &rule{}
	}
	get := func(s *jsonschema.Schema) *rule {
		if s == nil {
			return nil
		}
		return built[s]
	}
	list := func(in []*jsonschema.Schema) []*rule {
		var out []*rule
		for _, s := range in {
			out = append(out, get(s))
		}
		return out
	}
	for _, s := range g.order {
		r := built[s]
		r.scalars(s)
		r.all = list(s.AllOf)
		if s.Ref != nil {
			r.all = append(r.all, get(s.Ref))
		}
		r.any, r.one = list(s.AnyOf), list(s.OneOf)
		r.not, r.cond, r.then, r.otherwise = get(s.Not), get(s.If), get(s.Then), get(s.Else)
		r.prefix, r.items, r.contains = list(s.PrefixItems), get(s.Items2020), get(s.Contains)
		if len(s.Properties) > 0 {
			r.props = make(map[string]*rule, len(s.Properties))
			for name, sub := range s.Properties {
				r.props[name] = get(sub)
			}
		}
		for re, sub := range s.PatternProperties {
			r.patterns = append(r.patterns, patternRule{re, get(sub)})
		}
		switch extra := s.AdditionalProperties.(type) {
		case bool:
			if !extra {
				r.extra = &rule{fixed: misfit}
			}
		case *jsonschema.Schema:
			r.extra = get(extra)
		}
		if len(s.DependentSchemas) > 0 {
			r.dependents = make(map[string]*rule, len(s.DependentSchemas))
			for name, sub := range s.DependentSchemas {
				r.dependents[name] = get(sub)
			}
		}
		for _, ext := range s.Extensions {
			if p, ok := ext.(propertyNames); ok {
				r.names = get(p.names)
			} else {
				r.opaque = true
			}
		}
	}
	return built[g.order[0]]
}

// scalars copies everything but the subschemas.
func (r *rule) scalars(s *jsonschema.Schema) {
	r.fixed = unsure
	if s.Bool != nil {
		r.fixed = misfit
		if *s.Bool {
			r.fixed = fits
		}
	}
	r.opaque = s.UnevaluatedItems != nil || s.UnevaluatedProperties != nil || s.Dependencies != nil ||
		s.Items != nil || s.AdditionalItems != nil || s.ContentEncoding != nil || s.ContentMediaType != nil
	if s.Types != nil {
		for _, name := range s.Types.ToStrings() {
			r.types |= typeBit(name)
		}
	}
	switch {
	case s.Enum != nil && s.Const != nil:
		r.opaque = true
	case s.Enum != nil:
		r.enum = newEnumRule(s.Enum.Values)
	case s.Const != nil:
		r.enum = newEnumRule([]any{*s.Const})
	}
	r.min, r.max = newBound(s.Minimum), newBound(s.Maximum)
	r.above, r.below = newBound(s.ExclusiveMinimum), newBound(s.ExclusiveMaximum)
	if s.MultipleOf != nil {
		if b := newBound(s.MultipleOf); b.isInt && b.i > 0 {
			r.multiple = b.i
		} else {
			r.opaque = true
		}
	}
	r.minLength, r.maxLength = limits(s.MinLength, s.MaxLength)
	r.minItems, r.maxItems = limits(s.MinItems, s.MaxItems)
	r.minProps, r.maxProps = limits(s.MinProperties, s.MaxProperties)
	r.minContains, r.maxContains = limits(s.MinContains, s.MaxContains)
	if s.MinContains == nil {
		r.minContains = 1
	}
	r.pattern, r.unique, r.required, r.needs = s.Pattern, s.UniqueItems, s.Required, s.DependentRequired
}

func limits(lo, hi *int) (int, int) {
	l, h := 0, math.MaxInt
	if lo != nil {
		l = *lo
	}
	if hi != nil {
		h = *hi
	}
	return l, h
}

func typeBit(name string) typeSet {
	switch name {
	case "null":
		return isNull
	case "boolean":
		return isBool
	case "number":
		return isNumber
	case "integer":
		return isInteger
	case "string":
		return isString
	case "array":
		return isArray
	case "object":
		return isObject
	}
	return 0
}

// enumRule holds the scalar members of enum or const.
type enumRule struct {
	strings  map[string]bool
	literals []any // nil and booleans
	numbers  []*bound
}

func newEnumRule(values []any) *enumRule {
	e := &enumRule{strings: map[string]bool{}}
	for _, v := range values {
		switch v := v.(type) {
		case string:
			e.strings[v] = true
		case nil, bool:
			e.literals = append(e.literals, v)
		case int64:
			e.numbers = append(e.numbers, newBound(new(big.Rat).SetInt64(v)))
		case float64, uint64:
			raw, _ := CanonicalJSON(v)
			if rat, ok := new(big.Rat).SetString(string(raw)); ok {
				e.numbers = append(e.numbers, newBound(rat))
			}
		}
	}
	return e
}

func (e *enumRule) literal(v any) verdict {
	if slices.Contains(e.literals, v) {
		return fits
	}
	return misfit
}

func (e *enumRule) number(compare func(*bound) (int, bool)) verdict {
	for _, b := range e.numbers {
		c, ok := compare(b)
		if !ok {
			return unsure
		}
		if c == 0 {
			return fits
		}
	}
	return misfit
}

// bound is a number of the schema, ready to be compared with 64-bit values.
type bound struct {
	i     int64
	isInt bool // i is the exact value
	f     float64
	exact bool // f is the exact value
}

// exactFloat is where float64 stops telling neighbouring integers apart.
const exactFloat = 1 << 53

func newBound(r *big.Rat) *bound {
	if r == nil {
		return nil
	}
	b := &bound{}
	b.f, b.exact = r.Float64()
	if r.IsInt() && r.Num().IsInt64() {
		b.i, b.isInt = r.Num().Int64(), true
	}
	return b
}

// compareInt orders i against the bound; false where 64 bits cannot tell.
func (b *bound) compareInt(i int64) (int, bool) {
	if b.isInt {
		return order(i, b.i), true
	}
	f := float64(i)
	if i > exactFloat || i < -exactFloat || f == b.f && !b.exact {
		return 0, false
	}
	return order(f, b.f), true
}

// compareFloat is compareInt for floats. Rounding keeps order, so two different
// floats compare like the decimals they came from; equal ones need an exact bound.
func (b *bound) compareFloat(f float64) (int, bool) {
	if f == b.f && (!b.exact || math.Abs(f) > exactFloat) {
		return 0, false
	}
	return order(f, b.f), true
}

func order[T int64 | float64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
