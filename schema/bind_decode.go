package schema

import (
	"encoding"
	"encoding/base64"
	"encoding/json"
	"math"
	"reflect"
	"strconv"
)

// filler sets Go values from one value of the value model.
type filler struct{ left int }

// decode sets dst, whose layout is s, from v, which lies inside depth containers.
func (f *filler) decode(s *layout, v any, dst reflect.Value, depth int) *MisfitError {
	if f.left--; f.left < 0 || depth > MaxDepth {
		return s.misfit()
	}
	if v == nil && s.in != formJSON {
		dst.SetZero()
		return nil
	}
	switch s.in {
	case formBool:
		if b, ok := v.(bool); ok {
			dst.SetBool(b)
			return nil
		}
	case formString:
		if str, ok := v.(string); ok {
			dst.SetString(str)
			return nil
		}
	case formInt:
		if n, ok := asInt(v); ok && !dst.OverflowInt(n) {
			dst.SetInt(n)
			return nil
		}
	case formUint:
		if n, ok := asUint(v); ok && !dst.OverflowUint(n) {
			dst.SetUint(n)
			return nil
		}
	case formFloat32, formFloat64:
		if n, ok := asFloat(v); ok && !dst.OverflowFloat(n) {
			dst.SetFloat(n)
			return nil
		}
	case formNumber:
		if _, ok := asFloat(v); ok {
			if raw, err := CanonicalJSON(v); err == nil {
				dst.SetString(string(raw))
				return nil
			}
		}
	case formAny:
		if dst.NumMethod() == 0 {
			dst.Set(reflect.ValueOf(v))
			return nil
		}
	case formPointer:
		p := reflect.New(s.typ.Elem())
		if err := f.decode(s.elem, v, p.Elem(), depth+1); err != nil {
			return err
		}
		dst.Set(p)
		return nil
	case formBytes:
		if text, ok := v.(string); ok {
			if raw, err := base64.StdEncoding.DecodeString(text); err == nil {
				dst.SetBytes(raw)
				return nil
			}
			return s.misfit()
		}
		return f.list(s, v, dst, depth)
	case formList:
		return f.list(s, v, dst, depth)
	case formMap:
		return f.mapping(s, v, dst, depth)
	case formStruct:
		return f.structure(s, v, dst, depth)
	case formJSON:
		if raw, err := CanonicalJSON(v); err == nil && dst.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(raw) == nil {
			return nil
		}
	case formText:
		if text, ok := v.(string); ok && dst.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text)) == nil {
			return nil
		}
	}
	return s.misfit()
}

func (s *layout) misfit() *MisfitError { return &MisfitError{Type: s.typ} }

func (f *filler) list(s *layout, v any, dst reflect.Value, depth int) *MisfitError {
	list, ok := v.([]any)
	if !ok || (s.typ.Kind() == reflect.Array && len(list) != s.typ.Len()) {
		return s.misfit()
	}
	if s.typ.Kind() == reflect.Slice {
		dst.Set(reflect.MakeSlice(s.typ, len(list), len(list)))
	}
	for i, e := range list {
		if err := f.decode(s.elem, e, dst.Index(i), depth+1); err != nil {
			return err.under(strconv.Itoa(i))
		}
	}
	return nil
}

func (f *filler) mapping(s *layout, v any, dst reflect.Value, depth int) *MisfitError {
	m, ok := v.(map[string]any)
	if !ok {
		return s.misfit()
	}
	if direct, same := dst.Addr().Interface().(*map[string]any); same {
		*direct = m
		return nil
	}
	out := reflect.MakeMapWithSize(s.typ, len(m))
	elem := reflect.New(s.typ.Elem()).Elem() // SetMapIndex copies it
	for k, e := range m {
		key, ok := s.keyOf(k)
		if !ok {
			return s.misfit().under(k)
		}
		elem.SetZero()
		if err := f.decode(s.elem, e, elem, depth+1); err != nil {
			return err.under(k)
		}
		out.SetMapIndex(key, elem)
	}
	dst.Set(out)
	return nil
}

// keyOf is the map key of a member name.
func (s *layout) keyOf(name string) (key reflect.Value, ok bool) {
	key = reflect.New(s.typ.Key()).Elem()
	switch s.key {
	case formString:
		key.SetString(name)
		return key, true
	case formInt:
		n, err := strconv.ParseInt(name, 10, 64)
		if err != nil || key.OverflowInt(n) {
			return key, false
		}
		key.SetInt(n)
		return key, true
	case formUint:
		n, err := strconv.ParseUint(name, 10, 64)
		if err != nil || key.OverflowUint(n) {
			return key, false
		}
		key.SetUint(n)
		return key, true
	case formText:
		u, ok := key.Addr().Interface().(encoding.TextUnmarshaler)
		if key.Kind() == reflect.Pointer {
			key.Set(reflect.New(s.typ.Key().Elem()))
			u, ok = key.Interface().(encoding.TextUnmarshaler)
		}
		return key, ok && u.UnmarshalText([]byte(name)) == nil
	}
	return key, false
}

func (f *filler) structure(s *layout, v any, dst reflect.Value, depth int) *MisfitError {
	m, ok := v.(map[string]any)
	if !ok {
		return s.misfit()
	}
	for i := range s.members {
		mem := &s.members[i]
		e, present := m[mem.name]
		if !present {
			continue
		}
		if mem.quoted && e != nil {
			if e, ok = unquote(e); !ok {
				return mem.layout.misfit().under(mem.name)
			}
		}
		if err := f.decode(mem.layout, e, ensureField(dst, mem.index), depth+1); err != nil {
			return err.under(mem.name)
		}
	}
	return nil
}

// unquote undoes the ",string" option of a json tag.
func unquote(v any) (any, bool) {
	text, ok := v.(string)
	if !ok {
		return nil, false
	}
	scalar, err := decodeJSON([]byte(text))
	if n, isNumber := scalar.(json.Number); isNumber {
		scalar, err = number(string(n))
	}
	return scalar, err == nil
}

// ensureField follows index, making embedded pointers on the way.
func ensureField(v reflect.Value, index []int) reflect.Value {
	if len(index) == 1 {
		return v.Field(index[0])
	}
	for i, x := range index {
		if i > 0 && v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.Field(x)
	}
	return v
}

func asInt(v any) (int64, bool) {
	switch n := v.(type) {
	case int64:
		return n, true
	case float64: // 4.0 is an integer to JSON Schema
		if n == math.Trunc(n) && n >= -(1<<63) && n < 1<<63 {
			return int64(n), true
		}
	}
	return 0, false
}

func asUint(v any) (uint64, bool) {
	switch n := v.(type) {
	case int64:
		return uint64(n), n >= 0 //nolint:gosec // the second value says whether it fits
	case uint64:
		return n, true
	case float64:
		if n == math.Trunc(n) && n >= 0 && n < 1<<64 {
			return uint64(n), true
		}
	}
	return 0, false
}

func asFloat(v any) (float64, bool) {
	switch n := v.(type) {
	case float64:
		return n, true
	case int64:
		return float64(n), true
	case uint64:
		return float64(n), true
	}
	return 0, false
}
