package module

import (
	"encoding"
	"encoding/base64"
	"encoding/json"
	"math"
	"reflect"
	"strconv"
)

// encodeValue converts any Go value to the JSON data model by the rules of
// encoding/json, with two differences: a nil slice or map is empty, not null,
// and 64-bit integers and integral floats keep their kind.
func encodeValue(v any, depth int) (any, bool, error) {
	out, err := encodeReflect(reflect.ValueOf(v), depth)
	return out, true, err
}

func encodeReflect(rv reflect.Value, depth int) (any, error) {
	if depth > maxDepth {
		return nil, Errorf(CodeInvalidInput, "value is nested deeper than %d levels", maxDepth)
	}
	if !rv.IsValid() {
		return nil, nil
	}
	if (rv.Kind() == reflect.Pointer || rv.Kind() == reflect.Interface) && rv.IsNil() {
		return nil, nil
	}
	if rv.CanInterface() {
		switch m := rv.Interface().(type) {
		case json.Number:
			return number(string(m))
		case json.Marshaler:
			return encodeMarshaler(m)
		case encoding.TextMarshaler:
			text, err := m.MarshalText()
			if err != nil {
				return nil, Errorf(CodeInvalidInput, "cannot encode %s: %w", rv.Type(), err)
			}
			return string(text), nil
		}
	}
	switch rv.Kind() {
	case reflect.Pointer, reflect.Interface:
		return encodeReflect(rv.Elem(), depth+1)
	case reflect.Bool:
		return rv.Bool(), nil
	case reflect.String:
		return rv.String(), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return rv.Int(), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		if u := rv.Uint(); u > math.MaxInt64 {
			return u, nil
		}
		return int64(rv.Uint()), nil //nolint:gosec // checked above
	case reflect.Float32, reflect.Float64:
		f := rv.Float()
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, Errorf(CodeInvalidInput, "number is NaN or infinite")
		}
		return f, nil
	case reflect.Slice, reflect.Array:
		return encodeList(rv, depth)
	case reflect.Map:
		return encodeMap(rv, depth)
	case reflect.Struct:
		out := make(map[string]any, rv.NumField())
		return out, encodeFields(rv, out, depth)
	default:
		return nil, Errorf(CodeInvalidInput, "a value of type %s has no JSON form", rv.Type())
	}
}

// encodeMarshaler goes through JSON text, because the type insists on it.
func encodeMarshaler(m json.Marshaler) (any, error) {
	raw, err := m.MarshalJSON()
	if err != nil {
		return nil, Errorf(CodeInvalidInput, "cannot encode %T: %w", m, err)
	}
	return decodeJSONText(raw)
}

func encodeList(rv reflect.Value, depth int) (any, error) {
	if rv.Kind() == reflect.Slice && rv.Type().Elem().Kind() == reflect.Uint8 {
		return base64.StdEncoding.EncodeToString(rv.Bytes()), nil
	}
	out := make([]any, rv.Len())
	for i := range out {
		v, err := encodeReflect(rv.Index(i), depth+1)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

func encodeMap(rv reflect.Value, depth int) (any, error) {
	out := make(map[string]any, rv.Len())
	for iter := rv.MapRange(); iter.Next(); {
		key, err := mapKey(iter.Key())
		if err != nil {
			return nil, err
		}
		v, err := encodeReflect(iter.Value(), depth+1)
		if err != nil {
			return nil, err
		}
		out[key] = v
	}
	return out, nil
}

func mapKey(k reflect.Value) (string, error) {
	if k.Kind() == reflect.String {
		return k.String(), nil
	}
	if m, ok := k.Interface().(encoding.TextMarshaler); ok {
		text, err := m.MarshalText()
		return string(text), err
	}
	switch k.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.FormatInt(k.Int(), 10), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.FormatUint(k.Uint(), 10), nil
	}
	return "", Errorf(CodeInvalidInput, "a map key of type %s has no JSON form", k.Type())
}

func encodeFields(rv reflect.Value, out map[string]any, depth int) error {
	for _, f := range structFields(rv.Type()) {
		fv, ok := fieldByIndex(rv, f.index)
		if !ok || (f.omitEmpty && isEmpty(fv)) || (f.omitZero && fv.IsZero()) {
			continue
		}
		v, err := encodeReflect(fv, depth+1)
		if err != nil {
			return err
		}
		out[f.name] = v
	}
	return nil
}

// fieldByIndex follows index through embedded pointers; ok is false at a nil one.
func fieldByIndex(rv reflect.Value, index []int) (reflect.Value, bool) {
	for i, n := range index {
		if i > 0 && rv.Kind() == reflect.Pointer {
			if rv.IsNil() {
				return reflect.Value{}, false
			}
			rv = rv.Elem()
		}
		rv = rv.Field(n)
	}
	return rv, true
}

func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	default:
		return v.IsZero()
	}
}
