package schema

import (
	"cmp"
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"
)

var (
	marshalerType       = reflect.TypeFor[json.Marshaler]()
	textMarshalerType   = reflect.TypeFor[encoding.TextMarshaler]()
	unmarshalerType     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshalerType = reflect.TypeFor[encoding.TextUnmarshaler]()
	byteType            = reflect.TypeFor[byte]()
	timeType            = reflect.TypeFor[time.Time]()
	numberType          = reflect.TypeFor[json.Number]()
	rawType             = reflect.TypeFor[json.RawMessage]()
	providerType        = reflect.TypeFor[Provider]()
)

// field is one JSON member of a struct after embedding has been flattened.
type field struct {
	name      string
	typ       reflect.Type
	index     []int
	tag       reflect.StructTag
	tagged    bool // the name comes from a json tag
	omitEmpty bool
	omitZero  bool
	quoted    bool // the ",string" option, which only scalars obey
	viaPtr    bool // reached through an embedded pointer, so it may be absent
}

func (f field) optional() bool {
	return f.omitEmpty || f.omitZero || f.viaPtr || f.typ.Kind() == reflect.Pointer
}

// structFields lists the members of t in declaration order, by the rules of
// encoding/json: the shallowest field of a name wins, then the tagged one, and a
// tie hides the name.
func structFields(t reflect.Type) []field {
	all := collectFields(t, nil, false, nil)
	if distinct(all) {
		return all
	}
	byName := make(map[string][]field, len(all))
	for _, f := range all {
		byName[f.name] = append(byName[f.name], f)
	}
	out := make([]field, 0, len(byName))
	for _, group := range byName {
		if f, ok := dominant(group); ok {
			out = append(out, f)
		}
	}
	slices.SortFunc(out, func(a, b field) int { return slices.Compare(a.index, b.index) })
	return out
}

// distinct reports whether a short list has no name twice, as is usual.
func distinct(fields []field) bool {
	if len(fields) > 16 {
		return false
	}
	for i, f := range fields {
		for _, g := range fields[:i] {
			if f.name == g.name {
				return false
			}
		}
	}
	return true
}

func dominant(group []field) (field, bool) {
	slices.SortStableFunc(group, func(a, b field) int {
		if c := cmp.Compare(len(a.index), len(b.index)); c != 0 {
			return c
		}
		switch {
		case a.tagged && !b.tagged:
			return -1
		case b.tagged && !a.tagged:
			return 1
		}
		return 0
	})
	if len(group) > 1 && len(group[0].index) == len(group[1].index) && group[0].tagged == group[1].tagged {
		return field{}, false
	}
	return group[0], true
}

func collectFields(t reflect.Type, index []int, viaPtr bool, seen []reflect.Type) []field {
	if slices.Contains(seen, t) {
		return nil // a struct that embeds itself through a pointer
	}
	seen = append(slices.Clip(seen), t)
	out := make([]field, 0, t.NumField())
	for i := range t.NumField() {
		sf := t.Field(i)
		tag := sf.Tag.Get("json")
		if tag == "-" {
			continue
		}
		name, opts, _ := strings.Cut(tag, ",")
		at := append(slices.Clone(index), i)
		if sf.Anonymous {
			et, ptr := sf.Type, false
			if et.Kind() == reflect.Pointer {
				et, ptr = et.Elem(), true
			}
			// encoding/json cannot set an embedded pointer to an unexported struct.
			if !sf.IsExported() && (et.Kind() != reflect.Struct || ptr) {
				continue
			}
			if name == "" && et.Kind() == reflect.Struct && !hasOwnForm(et) {
				out = append(out, collectFields(et, at, viaPtr || ptr, seen)...)
				continue
			}
		}
		if !sf.IsExported() {
			continue
		}
		f := field{name: name, typ: sf.Type, index: at, tag: sf.Tag, tagged: name != "", viaPtr: viaPtr}
		if name == "" {
			f.name = sf.Name
		}
		for opt := range strings.SplitSeq(opts, ",") {
			switch opt {
			case "omitempty":
				f.omitEmpty = true
			case "omitzero":
				f.omitZero = true
			case "string":
				f.quoted = isScalar(sf.Type)
			}
		}
		out = append(out, f)
	}
	return out
}

// hasOwnForm reports whether t is described by something other than its structure.
func hasOwnForm(t reflect.Type) bool {
	return t == timeType || implements(t, marshalerType) || implements(t, textMarshalerType) || implements(t, providerType)
}

func implements(t, iface reflect.Type) bool {
	return t.Implements(iface) || (t.Kind() != reflect.Interface && reflect.PointerTo(t).Implements(iface))
}

// isBytes reports whether t is a byte slice that JSON writes as base64.
func isBytes(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 && (t.Elem() == byteType ||
		!implements(t.Elem(), marshalerType) && !implements(t.Elem(), textMarshalerType))
}
