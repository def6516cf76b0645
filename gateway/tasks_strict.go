package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// strictly reads a body into a form whose keys it must not exceed. What is wrong is
// named by key and never by value.
func strictly(body map[string]any, into any) error {
	if err := exactly(body, reflect.TypeOf(into)); err != nil {
		return err
	}
	raw, err := contextwire.Encode(contextwire.JSON, body)
	if err != nil {
		return module.Errorf(module.CodeInternal, "encode the body again: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	err = dec.Decode(into)
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &wrong):
		return invalid("%s: want %s, not %s", wrong.Field, jsonName(wrong.Type.Kind().String()), wrong.Value)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return module.Errorf(module.CodeInternal, "decode the body again: %w", err)
	}
	return invalid("the body is not as expected: %s", trimPackage(err))
}

// exactly refuses keys that a form does not have. encoding/json does not care about
// upper and lower case, so that two keys of a body could mean the same.
func exactly(v any, form reflect.Type) error {
	for form.Kind() == reflect.Pointer {
		form = form.Elem()
	}
	switch v := v.(type) {
	case []any:
		if form.Kind() != reflect.Slice {
			return nil // of another type, which decoding says
		}
		for _, item := range v {
			if err := exactly(item, form.Elem()); err != nil {
				return err
			}
		}
	case map[string]any:
		if form.Kind() != reflect.Struct {
			return nil
		}
		fields := map[string]reflect.Type{}
		for _, f := range reflect.VisibleFields(form) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
				fields[name] = f.Type
			}
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			f, ok := fields[key]
			if !ok {
				return invalid("unknown field %q", key[:min(len(key), 64)])
			}
			if err := exactly(v[key], f); err != nil {
				return err
			}
		}
	}
	return nil
}

// jsonName says in JSON's words what a Go type is in the API.
func jsonName(kind string) string {
	switch kind {
	case "int", "int64":
		return "an integer"
	case "float64":
		return "a number"
	case "bool":
		return "true or false"
	case "slice":
		return "a list"
	case "struct", "map", "ptr":
		return "an object"
	}
	return "a text"
}

func trimPackage(err error) string {
	return string(bytes.TrimPrefix([]byte(err.Error()), []byte("json: ")))
}
