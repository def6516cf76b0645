package schema

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// reporter turns the library's error tree into violations.
type reporter struct {
	out       []Violation
	noMatch   int
	ambiguous int
	other     int
}

func (r *reporter) add(e *jsonschema.ValidationError, keyword, message string) {
	r.addAt(e.InstanceLocation, keyword, message)
}

func (r *reporter) addAt(at []string, keyword, message string) {
	r.other++
	r.out = append(r.out, Violation{Path: pointer(at), Keyword: keyword, Message: message})
}

// result sorts, removes repetitions and decides the code.
func (r *reporter) result() *ValidationError {
	slices.SortFunc(r.out, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Keyword, b.Keyword), cmp.Compare(a.Message, b.Message))
	})
	r.out = slices.Compact(r.out)
	if len(r.out) > MaxViolations {
		r.out = r.out[:MaxViolations]
	}
	code := CodeValidationError
	if r.other == 0 {
		switch {
		case r.noMatch > 0:
			code = CodeUnionNoMatch
		case r.ambiguous > 0:
			code = CodeUnionAmbiguous
		}
	}
	return &ValidationError{Code: code, Violations: slices.Clip(r.out)}
}

func (r *reporter) visit(e *jsonschema.ValidationError) {
	switch k := e.ErrorKind.(type) {
	case *kind.Schema, *kind.Group, *kind.Reference, *kind.AllOf:
		for _, cause := range e.Causes {
			r.visit(cause)
		}
	case *kind.AnyOf:
		r.union(e, "anyOf")
	case *kind.OneOf:
		if len(k.Subschemas) == 0 {
			r.union(e, "oneOf")
			return
		}
		r.ambiguous++
		r.out = append(r.out, Violation{pointer(e.InstanceLocation), "oneOf", "must match exactly one of the alternatives, matches several"})
	case *kind.FalseSchema:
		r.falseSchema(e)
	default:
		r.leaf(e)
	}
}

// union reports a value that fits no branch. When all branches but one want
// another JSON type, what that one misses is reported too, since it is what the
// author of the value meant.
func (r *reporter) union(e *jsonschema.ValidationError, keyword string) {
	r.noMatch++
	r.out = append(r.out, Violation{pointer(e.InstanceLocation), keyword, fmt.Sprintf("matches none of the %d alternatives", len(e.Causes))})
	var meant *jsonschema.ValidationError
	for _, cause := range e.Causes {
		if otherType(cause, len(e.InstanceLocation)) {
			continue
		}
		if meant != nil {
			return
		}
		meant = cause
	}
	if meant != nil {
		// Details of the branch do not decide the code.
		before := *r
		r.visit(meant)
		r.other, r.noMatch, r.ambiguous = before.other, before.noMatch, before.ambiguous
	}
}

// otherType reports whether a branch failed because the value at depth has another type.
func otherType(e *jsonschema.ValidationError, depth int) bool {
	switch e.ErrorKind.(type) {
	case *kind.Type:
		return len(e.InstanceLocation) == depth
	case *kind.Reference, *kind.Group:
		return slices.ContainsFunc(e.Causes, func(c *jsonschema.ValidationError) bool { return otherType(c, depth) })
	}
	return false
}

// falseSchema names the keyword that said no; the property it forbids is an
// extra one of the object that holds it.
func (r *reporter) falseSchema(e *jsonschema.ValidationError) {
	_, frag, _ := strings.Cut(e.SchemaURL, "#")
	toks := strings.Split(frag, "/")
	keyword := "false"
	for i := len(toks) - 1; i >= 0 && i >= len(toks)-2; i-- {
		if keywordShape(toks[i]) != holdsData {
			keyword = toks[i]
			break
		}
	}
	at := e.InstanceLocation
	switch keyword {
	case "unevaluatedProperties", "additionalProperties", "properties", "patternProperties":
		if len(at) > 0 {
			r.addAt(at[:len(at)-1], keyword, "additional properties are not allowed: "+safeNames(at[len(at)-1:]))
			return
		}
	}
	r.add(e, keyword, "is not allowed here")
}

func (r *reporter) leaf(e *jsonschema.ValidationError) {
	switch k := e.ErrorKind.(type) {
	case *kind.Type:
		r.add(e, "type", fmt.Sprintf("must be %s, is %s", oneOf(k.Want), k.Got))
	case *kind.Required:
		for _, name := range k.Missing {
			r.add(e, "required", fmt.Sprintf("property %q is required", name))
		}
	case *kind.DependentRequired:
		r.add(e, "dependentRequired", fmt.Sprintf("needs %s because %q is present", quoted(k.Missing), k.Prop))
	case *kind.Dependency:
		r.add(e, "dependencies", fmt.Sprintf("needs %s because %q is present", quoted(k.Missing), k.Prop))
	case *kind.AdditionalProperties:
		r.add(e, "additionalProperties", "additional properties are not allowed: "+safeNames(k.Properties))
	case *kind.AdditionalItems:
		r.add(e, "additionalItems", fmt.Sprintf("has %d items too many", k.Count))
	case *propertyNamesKind:
		r.add(e, "propertyNames", "property names are not allowed: "+safeNames(k.names))
	case *kind.Enum:
		r.add(e, "enum", "must be one of "+alternatives(k.Want))
	case *kind.Const:
		r.add(e, "const", "must be "+alternatives([]any{k.Want}))
	case *kind.Not:
		r.add(e, "not", "must not match the schema under not")
	case *kind.RefCycle:
		r.add(e, "$ref", "references loop without descending into the data")
	default:
		r.limit(e)
	}
}

// limit reports the checks that compare with a number or a pattern of the schema.
func (r *reporter) limit(e *jsonschema.ValidationError) {
	switch k := e.ErrorKind.(type) {
	case *kind.Minimum:
		r.add(e, "minimum", "must be at least "+rational(k.Want))
	case *kind.Maximum:
		r.add(e, "maximum", "must be at most "+rational(k.Want))
	case *kind.ExclusiveMinimum:
		r.add(e, "exclusiveMinimum", "must be greater than "+rational(k.Want))
	case *kind.ExclusiveMaximum:
		r.add(e, "exclusiveMaximum", "must be less than "+rational(k.Want))
	case *kind.MultipleOf:
		r.add(e, "multipleOf", "must be a multiple of "+rational(k.Want))
	case *kind.MinLength:
		r.add(e, "minLength", fmt.Sprintf("must have at least %d characters", k.Want))
	case *kind.MaxLength:
		r.add(e, "maxLength", fmt.Sprintf("must have at most %d characters", k.Want))
	case *kind.Pattern:
		if len(k.Want) > 200 {
			r.add(e, "pattern", "must match the pattern of the schema")
			return
		}
		r.add(e, "pattern", "must match the pattern "+k.Want)
	case *kind.MinItems:
		r.add(e, "minItems", fmt.Sprintf("must have at least %d items", k.Want))
	case *kind.MaxItems:
		r.add(e, "maxItems", fmt.Sprintf("must have at most %d items", k.Want))
	case *kind.UniqueItems:
		r.add(e, "uniqueItems", fmt.Sprintf("items %d and %d are equal", k.Duplicates[0], k.Duplicates[1]))
	case *kind.Contains:
		r.add(e, "contains", "must contain a matching item")
	case *kind.MinContains:
		r.add(e, "minContains", fmt.Sprintf("must contain at least %d matching items", k.Want))
	case *kind.MaxContains:
		r.add(e, "maxContains", fmt.Sprintf("must contain at most %d matching items", k.Want))
	case *kind.MinProperties:
		r.add(e, "minProperties", fmt.Sprintf("must have at least %d properties", k.Want))
	case *kind.MaxProperties:
		r.add(e, "maxProperties", fmt.Sprintf("must have at most %d properties", k.Want))
	case *kind.InvalidJsonValue:
		r.add(e, "type", "value has no JSON form")
	default:
		keyword := "type"
		if e.ErrorKind != nil {
			if path := e.ErrorKind.KeywordPath(); len(path) > 0 {
				keyword = path[0]
			}
		}
		r.add(e, keyword, "does not satisfy "+keyword)
	}
}

func pointer(at []string) string {
	var b strings.Builder
	for _, tok := range at {
		b.WriteByte('/')
		b.WriteString(escapePointer(tok))
	}
	return b.String()
}

func oneOf(types []string) string {
	if len(types) <= 1 {
		return strings.Join(types, "")
	}
	return strings.Join(types[:len(types)-1], ", ") + " or " + types[len(types)-1]
}

func quoted(names []string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = strconv.Quote(n)
	}
	return strings.Join(out, ", ")
}

// safeNames lists property names that came with the value only if each is a
// short identifier; a name may itself be data, and then only the count is told.
func safeNames(names []string) string {
	const most = 8
	names = slices.Sorted(slices.Values(names))
	if len(names) > most || slices.ContainsFunc(names, func(n string) bool { return !isIdentifier(n) }) {
		return fmt.Sprintf("%d found", len(names))
	}
	return quoted(names)
}

func isIdentifier(s string) bool {
	if s == "" || len(s) > 32 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !(c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || i > 0 && (c >= '0' && c <= '9')) {
			return false
		}
	}
	return true
}

// alternatives lists the values a schema allows, when they are few and short.
func alternatives(want []any) string {
	const most, longest = 10, 200
	if len(want) > most {
		return fmt.Sprintf("the %d values the schema lists", len(want))
	}
	out := make([]string, len(want))
	size := 0
	for i, v := range want {
		switch v.(type) {
		case map[string]any, []any:
			return "the values the schema lists"
		}
		raw, err := CanonicalJSON(v)
		if size += len(raw); err != nil || size > longest {
			return "the values the schema lists"
		}
		out[i] = string(raw)
	}
	return strings.Join(out, ", ")
}

func rational(r *big.Rat) string {
	if r.IsInt() && r.Num().BitLen() <= 64 {
		return r.Num().String()
	}
	f, _ := r.Float64()
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// propertyNames takes the keyword over from the library, which reports it with a
// location that later siblings overwrite.
type propertyNames struct{ names *jsonschema.Schema }

func (p propertyNames) Validate(ctx *jsonschema.ValidatorContext, v any) {
	obj, ok := v.(map[string]any)
	if !ok {
		return
	}
	var bad []string
	for name := range obj {
		if p.names.Validate(name) != nil {
			bad = append(bad, name)
		}
	}
	if len(bad) > 0 {
		ctx.AddError(&propertyNamesKind{names: bad})
	}
}

// propertyNamesKind carries every rejected name; the embedded kind completes the
// library's interface.
type propertyNamesKind struct {
	kind.PropertyNames
	names []string
}
