package module

import (
	"encoding"
	"encoding/base64"
	"encoding/json"
	"math"
	"reflect"
	"strconv"
)

// decoder fills Go values from the JSON data model. It remembers the fields of
// the struct types it met, so a typed module makes one and keeps it; it is then
// read by many goroutines, hence filled up front by prepare.
type decoder struct {
	fields map[reflect.Type][]field
}

func newDecoder() *decoder { return &decoder{fields: map[reflect.Type][]field{}} }

// prepare collects the fields of every struct type reachable from t.
func (d *decoder) prepare(t reflect.Type) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		d.prepare(t.Elem())
	case reflect.Struct:
		if _, seen := d.fields[t]; seen {
			return
		}
		fields := structFields(t)
		d.fields[t] = fields
		for _, f := range fields {
			d.prepare(t.FieldByIndex(f.index).Type)
		}
	}
}

func (d *decoder) structFields(t reflect.Type) []field {
	if f, ok := d.fields[t]; ok {
		return f
	}
	return structFields(t)
}

func misfit(path string, want reflect.Type) error {
	if path == "" {
		path = "/"
	}
	return Errorf(CodeInvalidInput, "the value at %s does not fit %s", path, want)
}

func (d *decoder) decode(v any, dst reflect.Value, path string) error {
	t := dst.Type()
	if t.Kind() == reflect.Pointer {
		if v == nil {
			dst.SetZero()
			return nil
		}
		p := reflect.New(t.Elem())
		if err := d.decode(v, p.Elem(), path); err != nil {
			return err
		}
		dst.Set(p)
		return nil
	}
	if handled, err := decodeUnmarshaler(v, dst, path); handled {
		return err
	}
	if v == nil {
		dst.SetZero()
		return nil
	}
	switch t.Kind() {
	case reflect.Interface:
		if t.NumMethod() > 0 {
			return misfit(path, t)
		}
		dst.Set(reflect.ValueOf(v))
	case reflect.Bool:
		b, ok := v.(bool)
		if !ok {
			return misfit(path, t)
		}
		dst.SetBool(b)
	case reflect.String:
		s, ok := v.(string)
		if !ok {
			return misfit(path, t)
		}
		dst.SetString(s)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, ok := asInt(v)
		if !ok || dst.OverflowInt(n) {
			return misfit(path, t)
		}
		dst.SetInt(n)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, ok := asUint(v)
		if !ok || dst.OverflowUint(n) {
			return misfit(path, t)
		}
		dst.SetUint(n)
	case reflect.Float32, reflect.Float64:
		f, ok := asFloat(v)
		if !ok || dst.OverflowFloat(f) {
			return misfit(path, t)
		}
		dst.SetFloat(f)
	case reflect.Slice, reflect.Array:
		return d.decodeList(v, dst, path)
	case reflect.Map:
		return d.decodeMap(v, dst, path)
	case reflect.Struct:
		return d.decodeStruct(v, dst, path)
	default:
		return misfit(path, t)
	}
	return nil
}

// decodeUnmarshaler serves types that read themselves from text or JSON.
func decodeUnmarshaler(v any, dst reflect.Value, path string) (handled bool, err error) {
	if !dst.CanAddr() || (dst.Kind() != reflect.Struct && dst.Type().PkgPath() == "") {
		return false, nil // built-in types have no methods
	}
	switch u := dst.Addr().Interface().(type) {
	case json.Unmarshaler:
		raw, err := json.Marshal(v)
		if err == nil {
			err = u.UnmarshalJSON(raw)
		}
		if err != nil {
			return true, misfit(path, dst.Type())
		}
		return true, nil
	case encoding.TextUnmarshaler:
		s, ok := v.(string)
		if !ok || u.UnmarshalText([]byte(s)) != nil {
			return true, misfit(path, dst.Type())
		}
		return true, nil
	}
	return false, nil
}

func (d *decoder) decodeList(v any, dst reflect.Value, path string) error {
	t := dst.Type()
	if s, isText := v.(string); isText && t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 {
		raw, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			return misfit(path, t)
		}
		dst.SetBytes(raw)
		return nil
	}
	list, ok := v.([]any)
	if !ok || (t.Kind() == reflect.Array && len(list) != t.Len()) {
		return misfit(path, t)
	}
	if t.Kind() == reflect.Slice {
		dst.Set(reflect.MakeSlice(t, len(list), len(list)))
	}
	for i, e := range list {
		if err := d.decode(e, dst.Index(i), path+"/"+strconv.Itoa(i)); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) decodeMap(v any, dst reflect.Value, path string) error {
	t := dst.Type()
	m, ok := v.(map[string]any)
	if !ok || t.Key().Kind() != reflect.String {
		return misfit(path, t)
	}
	if direct, same := dst.Addr().Interface().(*map[string]any); same {
		*direct = m
		return nil
	}
	out := reflect.MakeMapWithSize(t, len(m))
	for k, e := range m {
		ev := reflect.New(t.Elem()).Elem()
		if err := d.decode(e, ev, path+"/"+k); err != nil {
			return err
		}
		out.SetMapIndex(reflect.ValueOf(k).Convert(t.Key()), ev)
	}
	dst.Set(out)
	return nil
}

func (d *decoder) decodeStruct(v any, dst reflect.Value, path string) error {
	m, ok := v.(map[string]any)
	if !ok {
		return misfit(path, dst.Type())
	}
	for _, f := range d.structFields(dst.Type()) {
		e, present := m[f.name]
		if !present {
			continue
		}
		if err := d.decode(e, ensureField(dst, f.index), path+"/"+f.name); err != nil {
			return err
		}
	}
	return nil
}

// ensureField follows index, making embedded pointers on the way.
func ensureField(rv reflect.Value, index []int) reflect.Value {
	for i, n := range index {
		if i > 0 && rv.Kind() == reflect.Pointer {
			if rv.IsNil() {
				rv.Set(reflect.New(rv.Type().Elem()))
			}
			rv = rv.Elem()
		}
		rv = rv.Field(n)
	}
	return rv
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
