package schema

import (
	"math"
	"math/big"
	"slices"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// The quick check accepts most values that fit without the arbitrary-precision
// arithmetic and the bookkeeping for error reports that the library does for each
// value. It never rejects: "misfit" and "unsure" both mean asking the library, so
// leaving a keyword out costs time, not correctness.

type verdict int8

const (
	misfit verdict = iota
	fits
	unsure
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

// judge is one run of the quick check.
type judge struct{ left int }

func (j *judge) value(r *rule, v any, depth int) verdict {
	if r.fixed != unsure {
		return r.fixed
	}
	if j.left--; r.opaque || j.left < 0 || depth > MaxDepth {
		return unsure
	}
	if got := j.own(r, v, depth); got != fits {
		return got
	}
	for _, sub := range r.all {
		if got := j.value(sub, v, depth); got != fits {
			return got
		}
	}
	if len(r.any) > 0 {
		if got := j.anyOf(r.any, v, depth); got != fits {
			return got
		}
	}
	if len(r.one) > 0 {
		if got := j.oneOf(r.one, v, depth); got != fits {
			return got
		}
	}
	if r.not != nil {
		switch j.value(r.not, v, depth) {
		case fits:
			return misfit
		case unsure:
			return unsure
		}
	}
	if r.cond != nil {
		return j.conditional(r, v, depth)
	}
	return fits
}

func (j *judge) anyOf(list []*rule, v any, depth int) verdict {
	out := misfit
	for _, sub := range list {
		switch j.value(sub, v, depth) {
		case fits:
			return fits
		case unsure:
			out = unsure
		}
	}
	return out
}

func (j *judge) oneOf(list []*rule, v any, depth int) verdict {
	out := misfit
	for _, sub := range list {
		switch j.value(sub, v, depth) {
		case fits:
			if out == fits {
				return misfit
			}
			out = fits
		case unsure:
			return unsure
		}
	}
	return out
}

func (j *judge) conditional(r *rule, v any, depth int) verdict {
	branch := r.otherwise
	switch j.value(r.cond, v, depth) {
	case fits:
		branch = r.then
	case unsure:
		return unsure
	}
	if branch == nil {
		return fits
	}
	return j.value(branch, v, depth)
}

// own applies the keywords that look at the value itself or into it.
func (j *judge) own(r *rule, v any, depth int) verdict {
	switch v := v.(type) {
	case string:
		return r.text(v)
	case float64:
		return r.float(v)
	case int64:
		return r.int(v)
	case int:
		return r.int(int64(v))
	case map[string]any:
		return j.object(r, v, depth)
	case []any:
		return j.array(r, v, depth)
	case bool:
		return r.literal(isBool, v)
	case nil:
		return r.literal(isNull, nil)
	case uint64:
		if r.types != 0 && r.types&(isNumber|isInteger) == 0 {
			return misfit
		}
		if r.enum == nil && r.min == nil && r.max == nil && r.above == nil && r.below == nil && r.multiple == 0 {
			return fits
		}
	}
	return unsure
}

func (r *rule) literal(t typeSet, v any) verdict {
	if r.types != 0 && r.types&t == 0 {
		return misfit
	}
	if r.enum != nil {
		return r.enum.literal(v)
	}
	return fits
}

func (r *rule) text(s string) verdict {
	if r.types != 0 && r.types&isString == 0 {
		return misfit
	}
	if r.enum != nil && !r.enum.strings[s] {
		return misfit
	}
	if r.minLength > 0 || r.maxLength < math.MaxInt {
		if n := utf8.RuneCountInString(s); n < r.minLength || n > r.maxLength {
			return misfit
		}
	}
	if r.pattern != nil && !r.pattern.MatchString(s) {
		return misfit
	}
	return fits
}

func (r *rule) int(i int64) verdict {
	if r.types != 0 && r.types&(isNumber|isInteger) == 0 {
		return misfit
	}
	if r.multiple != 0 && i%r.multiple != 0 {
		return misfit
	}
	if r.enum != nil {
		if got := r.enum.number(func(b *bound) (int, bool) { return b.compareInt(i) }); got != fits {
			return got
		}
	}
	if r.min == nil && r.max == nil && r.above == nil && r.below == nil {
		return fits
	}
	return r.bounds(func(b *bound) (int, bool) { return b.compareInt(i) })
}

func (r *rule) float(f float64) verdict {
	if math.IsNaN(f) || math.IsInf(f, 0) || r.multiple != 0 {
		return unsure
	}
	if r.types != 0 && r.types&isNumber == 0 && (r.types&isInteger == 0 || f != math.Trunc(f)) {
		return misfit
	}
	if r.enum != nil {
		if got := r.enum.number(func(b *bound) (int, bool) { return b.compareFloat(f) }); got != fits {
			return got
		}
	}
	if r.min == nil && r.max == nil && r.above == nil && r.below == nil {
		return fits
	}
	return r.bounds(func(b *bound) (int, bool) { return b.compareFloat(f) })
}

// bounds applies the four limits; compare orders the value against one of them.
func (r *rule) bounds(compare func(*bound) (int, bool)) verdict {
	for _, lim := range [...]struct {
		b      *bound
		lo, hi int // orders allowed
	}{{r.min, 0, 1}, {r.max, -1, 0}, {r.above, 1, 1}, {r.below, -1, -1}} {
		if lim.b == nil {
			continue
		}
		c, ok := compare(lim.b)
		if !ok {
			return unsure
		}
		if c < lim.lo || c > lim.hi {
			return misfit
		}
	}
	return fits
}

func (j *judge) object(r *rule, obj map[string]any, depth int) verdict {
	if r.types != 0 && r.types&isObject == 0 || len(obj) < r.minProps || len(obj) > r.maxProps {
		return misfit
	}
	if r.enum != nil {
		return unsure
	}
	for _, name := range r.required {
		if _, ok := obj[name]; !ok {
			return misfit
		}
	}
	for name, needs := range r.needs {
		if _, ok := obj[name]; !ok {
			continue
		}
		for _, need := range needs {
			if _, ok := obj[need]; !ok {
				return misfit
			}
		}
	}
	for name, sub := range r.dependents {
		if _, ok := obj[name]; ok {
			if got := j.value(sub, obj, depth); got != fits {
				return got
			}
		}
	}
	if r.names == nil && r.patterns == nil && r.extra == nil && len(r.props) < len(obj) {
		for name, sub := range r.props {
			if v, ok := obj[name]; ok {
				if got := j.value(sub, v, depth+1); got != fits {
					return got
				}
			}
		}
		return fits
	}
	for name, v := range obj {
		if got := j.member(r, name, v, depth); got != fits {
			return got
		}
	}
	return fits
}

func (j *judge) member(r *rule, name string, v any, depth int) verdict {
	if r.names != nil {
		if got := j.value(r.names, name, depth+1); got != fits {
			return got
		}
	}
	sub, known := r.props[name]
	if known {
		if got := j.value(sub, v, depth+1); got != fits {
			return got
		}
	}
	for _, p := range r.patterns {
		if p.re.MatchString(name) {
			known = true
			if got := j.value(p.rule, v, depth+1); got != fits {
				return got
			}
		}
	}
	if !known && r.extra != nil {
		return j.value(r.extra, v, depth+1)
	}
	return fits
}

func (j *judge) array(r *rule, arr []any, depth int) verdict {
	if r.types != 0 && r.types&isArray == 0 || len(arr) < r.minItems || len(arr) > r.maxItems {
		return misfit
	}
	if r.enum != nil || r.unique && len(arr) > 1 && !distinctStrings(arr) {
		return unsure
	}
	for i, v := range arr {
		sub := r.items
		if i < len(r.prefix) {
			sub = r.prefix[i]
		}
		if sub == nil {
			break
		}
		if got := j.value(sub, v, depth+1); got != fits {
			return got
		}
	}
	if r.contains == nil {
		return fits
	}
	found := 0
	for _, v := range arr {
		switch j.value(r.contains, v, depth+1) {
		case fits:
			found++
		case unsure:
			return unsure
		}
	}
	if found < r.minContains || found > r.maxContains {
		return misfit
	}
	return fits
}

func distinctStrings(arr []any) bool {
	seen := make(map[string]struct{}, len(arr))
	for _, v := range arr {
		s, ok := v.(string)
		if !ok {
			return false
		}
		seen[s] = struct{}{}
	}
	return len(seen) == len(arr)
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
