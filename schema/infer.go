package schema

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Provider lets a type describe itself: Of uses what JSONSchema returns instead
// of looking at the type. It is called on a zero value.
type Provider interface {
	JSONSchema() map[string]any
}

// For infers the draft 2020-12 schema of T; see [Of].
func For[T any]() (map[string]any, error) { return Of(reflect.TypeFor[T]()) }

// Of infers the draft 2020-12 schema of t, in the value model of this package.
// It describes the JSON that encoding/json reads into t and [Normalize] makes
// of it:
//
//   - Member names, "-" and ",string" come from json tags; embedded structs are
//     flattened by the rules of encoding/json.
//   - A member is required unless its tag says omitempty or omitzero, its type is
//     a pointer, or it is reached through an embedded pointer. The tag
//     required:"true" or required:"false" overrides this.
//   - A pointer is nullable: its type list gains "null", or a schema without a
//     type is wrapped in anyOf. A top-level pointer is described as its element.
//   - Objects stay open: additionalProperties is not set, unknown members are
//     accepted.
//   - Integers are {"type":"integer"}, with the bounds of the Go type where it is
//     unsigned or narrower than 64 bits; floats are number; any is {}.
//   - time.Time is a date-time string; other types with MarshalText are strings
//     (a 16-byte array named UUID with format uuid); types with MarshalJSON are {}
//     unless they are a [Provider]; []byte is a base64 string; [N]T has exactly N
//     items; maps are objects.
//   - A type that contains itself lives in $defs and is referenced; if it is t
//     itself, it is referenced as "#".
//
// Struct tags add keywords: description, title, format, pattern, minLength,
// maxLength, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf,
// minItems, maxItems, uniqueItems:"true", enum:"a,b", default (an annotation: no
// validator ever fills it in), deprecated:"true" and sensitive:"true", which
// becomes x-sensitive. On a slice or array the value keywords (enum, format,
// pattern, lengths, numeric bounds) constrain the items. Values in enum and
// default are read as the JSON type of the member.
//
// Channels, functions, complex numbers, unsafe pointers, map keys without a text
// form and tags that do not parse are errors naming the path to the field. Two
// calls with one type return equal documents.
func Of(t reflect.Type) (map[string]any, error) {
	if t == nil {
		return map[string]any{}, nil
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	in := &inference{root: t, names: map[string]reflect.Type{}, refs: map[reflect.Type]string{}, defs: map[string]any{}}
	doc, err := in.define(t)
	if err != nil {
		return nil, fmt.Errorf("infer schema of %s: %w", t, err)
	}
	if len(in.defs) > 0 {
		doc["$defs"] = in.defs
	}
	return doc, nil
}

type inference struct {
	root  reflect.Type
	names map[string]reflect.Type // definition name, taken by
	refs  map[reflect.Type]string // recursive types already placed
	defs  map[string]any
	depth int
}

// of returns the schema of t, by reference when t contains itself.
func (in *inference) of(t reflect.Type) (map[string]any, error) {
	if in.depth++; in.depth > MaxDepth {
		return nil, fmt.Errorf("types are nested deeper than %d levels", MaxDepth)
	}
	defer func() { in.depth-- }()
	if t == in.root && containsItself(t) {
		return map[string]any{"$ref": "#"}, nil
	}
	if ref, ok := in.refs[t]; ok {
		return map[string]any{"$ref": ref}, nil
	}
	if t.Name() == "" || t.Kind() == reflect.Interface || !containsItself(t) {
		return in.define(t)
	}
	name := in.name(t)
	ref := "#/$defs/" + name
	in.refs[t] = ref
	doc, err := in.define(t)
	if err != nil {
		return nil, err
	}
	in.defs[name] = doc
	return map[string]any{"$ref": ref}, nil
}

// name picks the key of t in $defs; a generic type keeps its arguments readable.
func (in *inference) name(t reflect.Type) string {
	base := strings.Map(func(r rune) rune {
		if r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, t.Name())
	name := base
	for i := 2; in.names[name] != nil; i++ {
		name = base + strconv.Itoa(i)
	}
	in.names[name] = t
	return name
}

func (in *inference) define(t reflect.Type) (map[string]any, error) {
	if implements(t, providerType) && t.Kind() != reflect.Interface {
		doc, err := NormalizeMap(reflect.New(t).Interface().(Provider).JSONSchema())
		if err != nil {
			return nil, fmt.Errorf("JSONSchema of %s: %w", t, err)
		}
		return doc, nil
	}
	switch {
	case t == timeType:
		return map[string]any{"type": "string", "format": "date-time"}, nil
	case t == numberType:
		return map[string]any{"type": "number"}, nil
	case t == rawType || t.Kind() == reflect.Interface:
		return map[string]any{}, nil
	case implements(t, textMarshalerType):
		if t.Kind() == reflect.Array && t.Len() == 16 && t.Name() == "UUID" {
			return map[string]any{"type": "string", "format": "uuid"}, nil
		}
		if !implements(t, marshalerType) {
			return map[string]any{"type": "string"}, nil
		}
	}
	if implements(t, marshalerType) {
		return map[string]any{}, nil
	}
	switch t.Kind() {
	case reflect.Bool:
		return map[string]any{"type": "boolean"}, nil
	case reflect.String:
		return map[string]any{"type": "string"}, nil
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}, nil
	case reflect.Pointer:
		elem, err := in.of(t.Elem())
		if err != nil {
			return nil, err
		}
		return nullable(elem), nil
	case reflect.Slice, reflect.Array:
		return in.list(t)
	case reflect.Map:
		return in.mapping(t)
	case reflect.Struct:
		return in.structure(t)
	}
	return integer(t)
}

func integer(t reflect.Type) (map[string]any, error) {
	doc := map[string]any{"type": "integer"}
	switch t.Kind() {
	case reflect.Int, reflect.Int64:
	case reflect.Int8, reflect.Int16, reflect.Int32:
		doc["minimum"] = int64(math.MinInt64) >> (64 - t.Bits())
		doc["maximum"] = int64(math.MaxInt64) >> (64 - t.Bits())
	case reflect.Uint, reflect.Uint64, reflect.Uintptr:
		doc["minimum"] = int64(0)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		doc["minimum"] = int64(0)
		doc["maximum"] = int64(uint64(math.MaxUint64) >> (64 - t.Bits()))
	default:
		return nil, fmt.Errorf("%s has no JSON form", t)
	}
	return doc, nil
}

func (in *inference) list(t reflect.Type) (map[string]any, error) {
	if isBytes(t) {
		return map[string]any{"type": "string", "contentEncoding": "base64"}, nil
	}
	items, err := in.of(t.Elem())
	if err != nil {
		return nil, fmt.Errorf("items: %w", err)
	}
	doc := map[string]any{"type": "array"}
	if len(items) > 0 {
		doc["items"] = items
	}
	if t.Kind() == reflect.Array {
		doc["minItems"], doc["maxItems"] = int64(t.Len()), int64(t.Len())
	}
	return doc, nil
}

func (in *inference) mapping(t reflect.Type) (map[string]any, error) {
	switch k := t.Key(); {
	case k.Kind() == reflect.String, k.Implements(textMarshalerType):
	case k.Kind() >= reflect.Int && k.Kind() <= reflect.Uintptr:
	default:
		return nil, fmt.Errorf("map key %s has no JSON form", k)
	}
	elem, err := in.of(t.Elem())
	if err != nil {
		return nil, fmt.Errorf("map values: %w", err)
	}
	doc := map[string]any{"type": "object"}
	if len(elem) > 0 {
		doc["additionalProperties"] = elem
	}
	return doc, nil
}

func (in *inference) structure(t reflect.Type) (map[string]any, error) {
	fields := structFields(t)
	props := make(map[string]any, len(fields))
	required := make([]any, 0, len(fields))
	for _, f := range fields {
		doc, err := in.of(f.typ)
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", f.name, err)
		}
		if f.quoted {
			doc = map[string]any{"type": "string"}
			if f.typ.Kind() == reflect.Pointer {
				doc = nullable(doc)
			}
		}
		if err := applyTags(doc, f); err != nil {
			return nil, fmt.Errorf("field %s: %w", f.name, err)
		}
		props[f.name] = doc
		need, err := isRequired(f)
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", f.name, err)
		}
		if need {
			required = append(required, f.name)
		}
	}
	doc := map[string]any{"type": "object", "properties": props}
	if len(required) > 0 {
		doc["required"] = required
	}
	return doc, nil
}

// isScalar reports whether JSON writes t, or what it points to, as one scalar
// by its kind.
func isScalar(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == numberType {
		return true
	}
	k := t.Kind()
	return (k == reflect.Bool || k == reflect.String || k >= reflect.Int && k <= reflect.Float64) &&
		!implements(t, marshalerType) && !implements(t, textMarshalerType)
}

// nullable returns doc widened to accept null.
func nullable(doc map[string]any) map[string]any {
	if len(doc) == 0 {
		return doc
	}
	if typ, ok := withNull(doc["type"]); ok {
		doc["type"] = typ
		return doc
	}
	return map[string]any{"anyOf": []any{doc, map[string]any{"type": "null"}}}
}

// withNull adds "null" once to the value of a type keyword; false when there is
// no type to extend.
func withNull(typ any) (any, bool) {
	switch typ := typ.(type) {
	case string:
		if typ == "null" {
			return typ, true
		}
		return []any{typ, "null"}, true
	case []any:
		if slices.Contains(typ, any("null")) {
			return typ, true
		}
		return append(slices.Clone(typ), "null"), true
	}
	return nil, false
}

// containsItself reports whether a value of type t can hold another one.
func containsItself(t reflect.Type) bool {
	seen := map[reflect.Type]bool{}
	var reach func(reflect.Type) bool
	reach = func(u reflect.Type) bool {
		for _, next := range parts(u) {
			if next == t {
				return true
			}
			if !seen[next] {
				seen[next] = true
				if reach(next) {
					return true
				}
			}
		}
		return false
	}
	return reach(t)
}

// parts lists the types a schema of t is made of.
func parts(t reflect.Type) []reflect.Type {
	if hasOwnForm(t) {
		return nil
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return []reflect.Type{t.Elem()}
	case reflect.Struct:
		fields := structFields(t)
		out := make([]reflect.Type, len(fields))
		for i, f := range fields {
			out[i] = f.typ
		}
		return out
	}
	return nil
}
