package schema

import (
	"encoding"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
)

// encode copies v, whose layout is s and which lies inside depth containers, into
// the value model.
func (n *normalizer) encode(s *layout, v reflect.Value, depth int) (any, error) {
	if err := n.visit(); err != nil {
		return nil, err
	}
	switch s.out {
	case formBool:
		return v.Bool(), nil
	case formString:
		return v.String(), nil
	case formInt:
		return v.Int(), nil
	case formUint:
		return unsigned(v.Uint()), nil
	case formFloat32:
		// The shortest decimal that means this float32, as encoding/json writes it.
		f, _ := strconv.ParseFloat(strconv.FormatFloat(v.Float(), 'g', -1, 32), 64)
		return finite(f)
	case formFloat64:
		return finite(v.Float())
	case formBytes:
		return base64.StdEncoding.EncodeToString(v.Bytes()), nil
	case formNumber:
		return number(v.String())
	case formPointer:
		return n.pointer(s, v, depth)
	case formAny:
		if v.IsNil() {
			return nil, nil
		}
		if v.CanInterface() { // scalars of the value model need no layout
			switch x := v.Interface().(type) {
			case bool, string, int64:
				return x, nil
			case float64:
				return finite(x)
			}
		}
		v = v.Elem()
		return n.encode(n.of(v.Type()), v, depth)
	case formList:
		return n.list(s, v, depth)
	case formMap:
		return n.mapping(s, v, depth)
	case formStruct:
		return n.structure(s, v, depth)
	case formJSON, formText:
		return n.marshaled(s, v, depth)
	}
	return nil, fmt.Errorf("%s has no JSON form", s.typ)
}

func (n *normalizer) pointer(s *layout, v reflect.Value, depth int) (any, error) {
	if v.IsNil() {
		return nil, nil
	}
	if n.hops++; n.hops > MaxDepth {
		return nil, errTooDeep
	}
	out, err := n.encode(s.elem, v.Elem(), depth)
	n.hops--
	return out, err
}

// marshaled uses a type's own JSON or text form, as encoding/json would.
func (n *normalizer) marshaled(s *layout, v reflect.Value, depth int) (any, error) {
	if s.byAddress {
		if !v.CanAddr() {
			p := reflect.New(s.typ) // a copy has an address
			p.Elem().Set(v)
			v = p.Elem()
		}
		v = v.Addr()
	}
	if s.out == formText {
		raw, err := v.Interface().(encoding.TextMarshaler).MarshalText()
		if err != nil {
			return nil, &marshalError{s.typ, err}
		}
		return string(raw), nil
	}
	raw, err := v.Interface().(json.Marshaler).MarshalJSON()
	if err != nil {
		return nil, &marshalError{s.typ, err}
	}
	decoded, err := decodeJSON(raw)
	if err != nil {
		return nil, &marshalError{s.typ, err}
	}
	return n.value(decoded, depth)
}

// marshalError keeps what a type's own method said out of the message, since it
// may quote the value.
type marshalError struct {
	typ reflect.Type
	err error
}

func (e *marshalError) Error() string { return e.typ.String() + " cannot be marshalled" }

func (e *marshalError) Unwrap() error { return e.err }

func (n *normalizer) list(s *layout, v reflect.Value, depth int) (any, error) {
	if err := n.enter(v.Len(), depth); err != nil {
		return nil, err
	}
	out := make([]any, v.Len())
	for i := range out {
		c, err := n.encode(s.elem, v.Index(i), depth+1)
		if err != nil {
			return nil, err
		}
		out[i] = c
	}
	return out, nil
}

func (n *normalizer) mapping(s *layout, v reflect.Value, depth int) (any, error) {
	if err := n.enter(v.Len(), depth); err != nil {
		return nil, err
	}
	out := make(map[string]any, v.Len())
	for it := v.MapRange(); it.Next(); {
		key, err := s.keyText(it.Key())
		if err != nil {
			return nil, err
		}
		if out[key], err = n.encode(s.elem, it.Value(), depth+1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// keyText is the member name of a map key.
func (s *layout) keyText(k reflect.Value) (string, error) {
	switch s.key {
	case formString:
		return k.String(), nil
	case formInt:
		return strconv.FormatInt(k.Int(), 10), nil
	case formUint:
		return strconv.FormatUint(k.Uint(), 10), nil
	case formText:
		if (k.Kind() == reflect.Pointer || k.Kind() == reflect.Interface) && k.IsNil() {
			return "", nil
		}
		raw, err := k.Interface().(encoding.TextMarshaler).MarshalText()
		if err != nil {
			return "", &marshalError{k.Type(), err}
		}
		return string(raw), nil
	}
	return "", fmt.Errorf("map key %s has no JSON form", k.Type())
}

func (n *normalizer) structure(s *layout, v reflect.Value, depth int) (any, error) {
	if err := n.enter(0, depth); err != nil {
		return nil, err
	}
	out := make(map[string]any, len(s.members))
	for i := range s.members {
		m := &s.members[i]
		fv, ok := fieldAt(v, m.index)
		if !ok || (m.omitEmpty && isEmpty(fv)) || (m.omitZero && isZero(fv)) {
			continue
		}
		c, err := n.encode(m.layout, fv, depth+1)
		if err == nil && m.quoted && c != nil {
			c, err = quoteScalar(c)
		}
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", m.name, err)
		}
		out[m.name] = c
	}
	return out, nil
}

// quoteScalar applies the ",string" option of a json tag.
func quoteScalar(v any) (any, error) {
	raw, err := CanonicalJSON(v)
	return string(raw), err
}

// fieldAt follows index through embedded pointers; false when one is nil.
func fieldAt(v reflect.Value, index []int) (reflect.Value, bool) {
	if len(index) == 1 {
		return v.Field(index[0]), true
	}
	for i, x := range index {
		if i > 0 && v.Kind() == reflect.Pointer {
			if v.IsNil() {
				return reflect.Value{}, false
			}
			v = v.Elem()
		}
		v = v.Field(x)
	}
	return v, true
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

// isZero is the test of omitzero: a type's own IsZero, else the zero value.
func isZero(v reflect.Value) bool {
	type zeroer interface{ IsZero() bool }
	k := v.Kind()
	if (k == reflect.Pointer || k == reflect.Interface) && v.IsNil() {
		return true
	}
	if v.Type().PkgPath() != "" || k == reflect.Pointer || k == reflect.Interface {
		if z, ok := v.Interface().(zeroer); ok {
			return z.IsZero()
		}
		if v.CanAddr() {
			if z, ok := v.Addr().Interface().(zeroer); ok {
				return z.IsZero()
			}
		}
	}
	return v.IsZero()
}
