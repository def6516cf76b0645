package module

import (
	"errors"
	"math"
	"reflect"

	"github.com/apbus/apbus/schema"
)

const (
	// maxDepth bounds how deep lists and maps may be nested, so that a cyclic Go
	// value is an error and not a crash. It matches the depth limit of the wire.
	maxDepth = 64
	// maxElements bounds a walk over one value, which a graph of shared maps could
	// otherwise make exponential.
	maxElements = 1 << 21
)

// Normalize returns v in the JSON data model (see the package comment). A value
// that is already normal is returned as it is, without copying; otherwise only
// what must change is copied. Structs, pointers and other Go types are converted
// as [schema.Normalize] does, by their json tags. NaN and infinities, keys and
// values without a JSON form, nesting beyond 64 lists and maps and more than two
// million elements fail with GENERAL_INVALID_INPUT; the error never quotes a value.
func Normalize(v any) (any, error) {
	w := walk{left: maxElements}
	out, _, err := w.value(v, 0)
	return out, err
}

// NormalizeMap is [Normalize] for a map; nil becomes an empty map.
func NormalizeMap(m map[string]any) (map[string]any, error) {
	if m == nil {
		return map[string]any{}, nil
	}
	w := walk{left: maxElements}
	out, _, err := w.mapping(m, 0)
	return out, err
}

// walk looks for what is not normal in one value.
type walk struct{ left int }

// value normalises v, which lies inside depth lists and maps.
func (w *walk) value(v any, depth int) (out any, changed bool, err error) {
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
	case int:
		return int64(x), true, nil
	case map[string]any:
		if x == nil {
			return map[string]any{}, true, nil
		}
		m, changed, err := w.mapping(x, depth)
		return either(v, m, changed, err)
	case []any:
		if x == nil {
			return []any{}, true, nil
		}
		list, changed, err := w.list(x, depth)
		return either(v, list, changed, err)
	}
	out, err = schema.NormalizeWithin(v, maxDepth-depth)
	if err != nil {
		return nil, false, noJSONForm(err)
	}
	return out, true, nil
}

func noJSONForm(err error) *Error {
	return Errorf(CodeInvalidInput, "value is not of the JSON data model: %w", err)
}

// either is v itself, which costs nothing, unless its copy differs.
func either[T any](v any, changed T, differs bool, err error) (any, bool, error) {
	switch {
	case err != nil:
		return nil, false, err
	case differs:
		return changed, true, nil
	}
	return v, false, nil
}

// enter checks that a container of n elements may lie inside depth others.
func (w *walk) enter(n, depth int) error {
	if depth >= maxDepth {
		return Errorf(CodeInvalidInput, "value is nested deeper than %d levels", maxDepth)
	}
	if w.left -= n; w.left < 0 {
		return Errorf(CodeInvalidInput, "value has more than %d elements", maxElements)
	}
	return nil
}

func (w *walk) mapping(m map[string]any, depth int) (map[string]any, bool, error) {
	if err := w.enter(len(m), depth); err != nil {
		return nil, false, err
	}
	var copied map[string]any
	for k, v := range m {
		n, changed, err := w.value(v, depth+1)
		if err != nil {
			return nil, false, err
		}
		if !changed {
			continue
		}
		if copied == nil {
			copied = make(map[string]any, len(m))
			for k2, v2 := range m {
				copied[k2] = v2
			}
		}
		copied[k] = n
	}
	if copied != nil {
		return copied, true, nil
	}
	return m, false, nil
}

func (w *walk) list(list []any, depth int) ([]any, bool, error) {
	if err := w.enter(len(list), depth); err != nil {
		return nil, false, err
	}
	var copied []any
	for i, v := range list {
		n, changed, err := w.value(v, depth+1)
		if err != nil {
			return nil, false, err
		}
		if !changed {
			continue
		}
		if copied == nil {
			copied = append(make([]any, 0, len(list)), list...)
		}
		copied[i] = n
	}
	if copied != nil {
		return copied, true, nil
	}
	return list, false, nil
}

// ToMap turns a struct, a map or nil into a map of the JSON data model. A nil
// slice becomes an empty list and a nil map an empty map, unless the field says
// omitempty; nil and a nil pointer give an empty map. What is no object fails with
// GENERAL_INVALID_INPUT.
func ToMap(v any) (map[string]any, error) {
	out, err := Normalize(v)
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

// FromMap fills *out, a struct or map, from a map of the JSON data model. Members
// that m lacks keep what *out holds. A value that does not fit its field is
// GENERAL_INVALID_INPUT naming the path, never the value.
func FromMap(m map[string]any, out any) error {
	rv := reflect.ValueOf(out)
	if rv.Kind() != reflect.Pointer || rv.IsNil() {
		return Errorf(CodeInternal, "FromMap needs a non-nil pointer, got %T", out)
	}
	return decode(schema.Bind(rv.Type().Elem()), m, rv.Elem())
}

// decode fills dst from m and codes the failure.
func decode(b *schema.Binding, m map[string]any, dst reflect.Value) error {
	if m == nil {
		m = map[string]any{}
	}
	err := b.Decode(m, dst)
	if err == nil {
		return nil
	}
	coded := Errorf(CodeInvalidInput, "%w", err)
	if misfit, ok := errors.AsType[*schema.MisfitError](err); ok {
		coded.Details = map[string]any{"path": misfit.Path}
	}
	return coded
}
