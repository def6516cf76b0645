package schema

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
)

// MaxDepth is how deeply values and schema documents may nest. Deeper ones are
// refused (and, when redacted, masked) rather than walked.
const MaxDepth = 256

// maxValueNodes bounds a walk over one value. A tree that came over the wire is
// bounded by its message; this stops Go values that contain themselves.
const maxValueNodes = 1 << 21

var (
	errTooDeep  = fmt.Errorf("value is nested deeper than %d levels", MaxDepth)
	errTooLarge = errors.New("value has too many elements")
)

// Normalize returns v in the value model of this package, as a deep copy that
// shares no map or slice with v. Structs follow the json tags exactly as the
// schema inferred by [Of] describes them; a nil slice becomes an empty array
// and a nil map an empty object, so that a Go zero value fits its own schema; a
// nil pointer becomes nil. json.Number becomes int64, uint64 or float64. Types
// with MarshalJSON or MarshalText use it. Channels, functions, complex and
// non-finite numbers, values nested deeper than [MaxDepth] and values that
// contain themselves are errors; the error never quotes the value.
func Normalize(v any) (any, error) {
	n := normalizer{left: maxValueNodes}
	return n.value(v, 0)
}

// NormalizeMap is [Normalize] for values that must be JSON objects.
func NormalizeMap(v any) (map[string]any, error) {
	got, err := Normalize(v)
	if err != nil {
		return nil, err
	}
	m, ok := got.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("want a JSON object, got %s", typeName(got))
	}
	return m, nil
}

type normalizer struct{ left int }

func (n *normalizer) enter(depth int) error {
	if depth > MaxDepth {
		return errTooDeep
	}
	if n.left--; n.left < 0 {
		return errTooLarge
	}
	return nil
}

func (n *normalizer) value(v any, depth int) (any, error) {
	if err := n.enter(depth); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case nil, bool, string, int64:
		return v, nil
	case int:
		return int64(v), nil
	case uint64:
		return unsigned(v), nil
	case float64:
		return finite(v)
	case json.Number:
		return number(string(v))
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			c, err := n.value(e, depth+1)
			if err != nil {
				return nil, err
			}
			out[k] = c
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			c, err := n.value(e, depth+1)
			if err != nil {
				return nil, err
			}
			out[i] = c
		}
		return out, nil
	}
	return n.reflected(reflect.ValueOf(v), depth)
}

// reflected converts what the fast switch of value does not know.
func (n *normalizer) reflected(v reflect.Value, depth int) (any, error) {
	if err := n.enter(depth); err != nil {
		return nil, err
	}
	if !v.IsValid() {
		return nil, nil
	}
	if k := v.Kind(); (k == reflect.Pointer || k == reflect.Interface) && v.IsNil() {
		return nil, nil
	}
	if v.CanInterface() {
		if out, done, err := n.marshaled(v, depth); done {
			return out, err
		}
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return n.reflected(v.Elem(), depth+1)
	case reflect.Bool:
		return v.Bool(), nil
	case reflect.String:
		return v.String(), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return v.Int(), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return unsigned(v.Uint()), nil
	case reflect.Float32:
		// The shortest decimal that means this float32, as encoding/json writes it.
		f, _ := strconv.ParseFloat(strconv.FormatFloat(v.Float(), 'g', -1, 32), 64)
		return finite(f)
	case reflect.Float64:
		return finite(v.Float())
	case reflect.Slice, reflect.Array:
		return n.list(v, depth)
	case reflect.Map:
		return n.mapping(v, depth)
	case reflect.Struct:
		return n.structure(v, depth)
	}
	return nil, fmt.Errorf("%s has no JSON form", v.Kind())
}

// marshaled uses a type's own JSON or text form, as encoding/json would.
func (n *normalizer) marshaled(v reflect.Value, depth int) (out any, done bool, err error) {
	x := v.Interface()
	if t := v.Type(); t.Kind() != reflect.Pointer && t.Kind() != reflect.Interface && !t.Implements(marshalerType) &&
		!t.Implements(textMarshalerType) && hasMarshalMethod(reflect.PointerTo(t)) {
		// The methods sit on the pointer; a copy has an address.
		p := reflect.New(t)
		p.Elem().Set(v)
		x = p.Interface()
	}
	switch x := x.(type) {
	case json.Number:
		out, err = number(string(x))
		return out, true, err
	case json.Marshaler:
		raw, err := x.MarshalJSON()
		if err != nil {
			return nil, true, fmt.Errorf("marshal %s: %w", v.Type(), err)
		}
		decoded, err := decodeJSON(raw)
		if err != nil {
			return nil, true, fmt.Errorf("decode JSON of %s: %w", v.Type(), err)
		}
		out, err = n.value(decoded, depth+1)
		return out, true, err
	case encoding.TextMarshaler:
		raw, err := x.MarshalText()
		if err != nil {
			return nil, true, fmt.Errorf("marshal %s: %w", v.Type(), err)
		}
		return string(raw), true, nil
	}
	return nil, false, nil
}

func (n *normalizer) list(v reflect.Value, depth int) (any, error) {
	if isBytes(v.Type()) {
		return base64.StdEncoding.EncodeToString(v.Bytes()), nil
	}
	out := make([]any, v.Len())
	for i := range out {
		c, err := n.reflected(v.Index(i), depth+1)
		if err != nil {
			return nil, err
		}
		out[i] = c
	}
	return out, nil
}

func (n *normalizer) mapping(v reflect.Value, depth int) (any, error) {
	out := make(map[string]any, v.Len())
	for it := v.MapRange(); it.Next(); {
		key, err := mapKey(it.Key())
		if err != nil {
			return nil, err
		}
		if out[key], err = n.reflected(it.Value(), depth+1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (n *normalizer) structure(v reflect.Value, depth int) (any, error) {
	fields := structFields(v.Type())
	out := make(map[string]any, len(fields))
	for _, f := range fields {
		fv, ok := fieldAt(v, f.index)
		if !ok || (f.omitEmpty && isEmpty(fv)) || (f.omitZero && fv.IsZero()) {
			continue
		}
		c, err := n.reflected(fv, depth+1)
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", f.name, err)
		}
		if f.quoted && c != nil {
			if c, err = quoteScalar(c); err != nil {
				return nil, fmt.Errorf("field %s: %w", f.name, err)
			}
		}
		out[f.name] = c
	}
	return out, nil
}

// quoteScalar applies the ",string" option of a json tag.
func quoteScalar(v any) (any, error) {
	raw, err := CanonicalJSON(v)
	return string(raw), err
}

func mapKey(k reflect.Value) (string, error) {
	if k.Kind() == reflect.String {
		return k.String(), nil
	}
	if tm, ok := k.Interface().(encoding.TextMarshaler); ok {
		raw, err := tm.MarshalText()
		if err != nil {
			return "", fmt.Errorf("marshal map key %s: %w", k.Type(), err)
		}
		return string(raw), nil
	}
	switch {
	case k.CanInt():
		return strconv.FormatInt(k.Int(), 10), nil
	case k.CanUint():
		return strconv.FormatUint(k.Uint(), 10), nil
	}
	return "", fmt.Errorf("map key %s has no JSON form", k.Type())
}

func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

func unsigned(u uint64) any {
	if u <= math.MaxInt64 {
		return int64(u)
	}
	return u
}

func finite(f float64) (any, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, errors.New("a non-finite number has no JSON form")
	}
	return f, nil
}

// number reads a JSON number literal. Integers beyond 64 bits become float64;
// literals beyond float64 are refused, which also keeps exponents like 1e999999999
// away from arbitrary-precision arithmetic.
func number(lit string) (any, error) {
	if !strings.ContainsAny(lit, ".eE") {
		if i, err := strconv.ParseInt(lit, 10, 64); err == nil {
			return i, nil
		}
		if u, err := strconv.ParseUint(lit, 10, 64); err == nil {
			return u, nil
		}
	}
	f, err := strconv.ParseFloat(lit, 64)
	if err != nil {
		return nil, errors.New("number is outside the range of a 64-bit float")
	}
	return finite(f)
}

func decodeJSON(raw []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("data after the JSON value")
	}
	return v, nil
}

// typeName is the JSON type of a normalised value.
func typeName(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	}
	return "number"
}

// clone copies a normalised value.
func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = clone(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = clone(e)
		}
		return out
	}
	return v
}
