package schema

import (
	"bytes"
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
	return newNormalizer(maxValueNodes).value(v, 0)
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

// NormalizeWithin is [Normalize] for a value that may nest lists, maps and
// structs only so many levels deep.
func NormalizeWithin(v any, levels int) (any, error) {
	n := newNormalizer(maxValueNodes)
	n.levels = levels
	return n.value(v, 0)
}

// normalizer copies one value into the value model.
type normalizer struct {
	layouts
	left   int // elements it may still visit
	levels int // containers that may lie inside each other
	hops   int // pointers being followed
}

func newNormalizer(nodes int) *normalizer { return &normalizer{left: nodes, levels: MaxDepth} }

// visit counts one element.
func (n *normalizer) visit() error {
	if n.left--; n.left < 0 {
		return errTooLarge
	}
	return nil
}

// enter checks that a container of size elements may lie inside depth others.
func (n *normalizer) enter(size, depth int) error {
	switch {
	case depth >= n.levels && n.levels == MaxDepth:
		return errTooDeep
	case depth >= n.levels:
		return fmt.Errorf("value is nested deeper than %d levels", n.levels)
	case size > n.left:
		return errTooLarge
	}
	return nil
}

func (n *normalizer) value(v any, depth int) (any, error) {
	if err := n.visit(); err != nil {
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
		if err := n.enter(len(v), depth); err != nil {
			return nil, err
		}
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
		if err := n.enter(len(v), depth); err != nil {
			return nil, err
		}
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
	rv := reflect.ValueOf(v)
	return n.encode(n.of(rv.Type()), rv, depth)
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
