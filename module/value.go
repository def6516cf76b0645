package module

import (
	"encoding/json"
	"math"
	"reflect"
	"strconv"
)

// maxDepth bounds recursion into values, so that a cyclic Go value is an error
// and not a crash. It matches the depth limit of the wire.
const maxDepth = 64

// Normalize returns v in the JSON data model (see the package comment). A value
// that is already normal is returned as it is, without copying; otherwise only
// what must change is copied. Structs, pointers and other Go types are
// converted by their json tags. NaN and infinities, non-string keys, and values
// without a JSON form fail with GENERAL_INVALID_INPUT, as does nesting beyond 64.
func Normalize(v any) (any, error) {
	out, _, err := normalize(v, 0)
	return out, err
}

// NormalizeMap is [Normalize] for a map; nil becomes an empty map.
func NormalizeMap(m map[string]any) (map[string]any, error) {
	if m == nil {
		return map[string]any{}, nil
	}
	out, _, err := normalizeMap(m, 0)
	return out, err
}

func normalize(v any, depth int) (out any, changed bool, err error) {
	if depth > maxDepth {
		return nil, false, Errorf(CodeInvalidInput, "value is nested deeper than %d levels", maxDepth)
	}
	switch x := v.(type) {
	case nil, bool, string, int64:
		return v, false, nil
	case float64:
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return nil, false, Errorf(CodeInvalidInput, "number is NaN or infinite")
		}
		return v, false, nil
	case uint64:
		if x <= math.MaxInt64 {
			return int64(x), true, nil
		}
		return v, false, nil
	case map[string]any:
		return retype(normalizeMap(x, depth))
	case []any:
		return retype(normalizeList(x, depth))
	case int:
		return int64(x), true, nil
	case json.Number:
		n, err := number(string(x))
		return n, true, err
	default:
		return encodeValue(v, depth)
	}
}

func retype[T any](v T, changed bool, err error) (any, bool, error) {
	if err != nil {
		return nil, false, err
	}
	return v, changed, nil
}

func normalizeMap(m map[string]any, depth int) (map[string]any, bool, error) {
	var copied map[string]any
	for k, v := range m {
		n, changed, err := normalize(v, depth+1)
		if err != nil {
			return nil, false, err
		}
		if changed && copied == nil {
			copied = make(map[string]any, len(m))
			for k2, v2 := range m {
				copied[k2] = v2
			}
		}
		if changed {
			copied[k] = n
		}
	}
	if copied != nil {
		return copied, true, nil
	}
	return m, false, nil
}

func normalizeList(list []any, depth int) ([]any, bool, error) {
	var copied []any
	for i, v := range list {
		n, changed, err := normalize(v, depth+1)
		if err != nil {
			return nil, false, err
		}
		if changed {
			if copied == nil {
				copied = append(make([]any, 0, len(list)), list...)
			}
			copied[i] = n
		}
	}
	if copied != nil {
		return copied, true, nil
	}
	return list, false, nil
}

// number reads a JSON number: an integer literal that fits 64 bits stays one,
// everything else is a float64.
func number(s string) (any, error) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, nil
	}
	if n, err := strconv.ParseUint(s, 10, 64); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return nil, Errorf(CodeInvalidInput, "number does not fit 64 bits")
	}
	return f, nil
}

// ToMap turns a struct, a map or nil into a map of the JSON data model. A nil
// slice becomes an empty list and a nil map an empty map, unless the field says
// omitempty.
func ToMap(v any) (map[string]any, error) {
	switch x := v.(type) {
	case nil:
		return map[string]any{}, nil
	case map[string]any:
		return NormalizeMap(x)
	}
	out, _, err := encodeValue(v, 0)
	if err != nil {
		return nil, err
	}
	switch m := out.(type) {
	case map[string]any:
		return m, nil
	case nil:
		return map[string]any{}, nil
	}
	return nil, Errorf(CodeInvalidInput, "%s is not an object", reflect.TypeOf(v))
}

// FromMap fills *out, a struct or map, from a map of the JSON data model. A
// value that does not fit its field is GENERAL_INVALID_INPUT naming the path,
// never the value.
func FromMap(m map[string]any, out any) error {
	rv := reflect.ValueOf(out)
	if rv.Kind() != reflect.Pointer || rv.IsNil() {
		return Errorf(CodeInternal, "FromMap needs a non-nil pointer, got %T", out)
	}
	return newDecoder().decode(m, rv.Elem(), "")
}
