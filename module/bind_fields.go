package module

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"strings"
)

// field is one JSON property of a struct type.
type field struct {
	name      string
	index     []int
	omitEmpty bool
	omitZero  bool
}

// structFields lists the JSON properties of a struct type as encoding/json
// would: exported fields, named by their tag, embedded structs flattened, the
// shallowest field of a name winning.
func structFields(t reflect.Type) []field {
	var out []field
	depthOf := map[string]int{}
	at := map[string]int{}
	for _, f := range reflect.VisibleFields(t) {
		tag := f.Tag.Get("json")
		if tag == "-" {
			continue
		}
		name, opts, _ := strings.Cut(tag, ",")
		if f.Anonymous && name == "" && isStruct(f.Type) {
			continue // its fields are visible on their own
		}
		if !f.IsExported() || hiddenParent(t, f.Index) {
			continue
		}
		if name == "" {
			name = f.Name
		}
		fd := field{name: name, index: f.Index}
		for opt := range strings.SplitSeq(opts, ",") {
			fd.omitEmpty = fd.omitEmpty || opt == "omitempty"
			fd.omitZero = fd.omitZero || opt == "omitzero"
		}
		if prev, seen := depthOf[name]; seen {
			if prev <= len(f.Index) {
				continue
			}
			out[at[name]] = fd
			depthOf[name] = len(f.Index)
			continue
		}
		depthOf[name], at[name] = len(f.Index), len(out)
		out = append(out, fd)
	}
	return out
}

func isStruct(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct
}

// hiddenParent reports whether a field reached through embedding sits below a
// field that is not flattened: one with a tag name of its own, or one tagged "-".
func hiddenParent(t reflect.Type, index []int) bool {
	for _, n := range index[:len(index)-1] {
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		f := t.Field(n)
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			return true
		}
		t = f.Type
	}
	return false
}

// decodeJSONText reads JSON text into the data model.
func decodeJSONText(raw []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, Errorf(CodeInvalidInput, "not JSON: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF { //nolint:errorlint // the decoder returns io.EOF itself
		return nil, Errorf(CodeInvalidInput, "more than one JSON value")
	}
	return Normalize(v)
}
