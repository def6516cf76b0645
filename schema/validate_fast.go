package schema

import (
	"math"
	"unicode/utf8"
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
