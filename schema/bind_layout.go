package schema

import "reflect"

// form is how a Go type reads or writes itself as JSON.
type form uint8

const (
	formNone form = iota // no JSON form
	formBool
	formString
	formInt
	formUint
	formFloat32
	formFloat64
	formBytes
	formList
	formMap
	formStruct
	formPointer
	formAny
	formNumber // json.Number
	formJSON   // its own MarshalJSON or UnmarshalJSON
	formText   // its own MarshalText or UnmarshalText
)

// layout is what converting values of one type needs to know about it.
type layout struct {
	typ     reflect.Type
	out, in form
	// byAddress is true when the methods that write the type sit on its pointer.
	byAddress bool
	elem      *layout // of pointers, lists and maps
	key       form    // of maps
	members   []member
}

// member is one JSON member of a struct.
type member struct {
	field
	layout *layout
}

// layouts finds and remembers layouts. known is shared and only read.
type layouts struct {
	known, own map[reflect.Type]*layout
}

func (s *layouts) of(t reflect.Type) *layout {
	if sh, ok := s.known[t]; ok {
		return sh
	}
	if sh, ok := s.own[t]; ok {
		return sh
	}
	if s.own == nil {
		s.own = map[reflect.Type]*layout{}
	}
	sh := &layout{typ: t}
	s.own[t] = sh // before its parts, which may contain t again
	sh.out, sh.byAddress = writes(t)
	sh.in = reads(t)
	if sh.out >= formNumber && sh.in >= formNumber {
		return sh
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		sh.elem = s.of(t.Elem())
	case reflect.Map:
		sh.elem, sh.key = s.of(t.Elem()), keyForm(t.Key())
	case reflect.Struct:
		fields := structFields(t)
		sh.members = make([]member, len(fields))
		for i, f := range fields {
			sh.members[i] = member{field: f, layout: s.of(f.typ)}
		}
	}
	return sh
}

// writes says how JSON is made of a t.
func writes(t reflect.Type) (f form, byAddress bool) {
	switch {
	case t == numberType:
		return formNumber, false
	case t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface: // what they hold decides
	case !mayHaveMethods(t):
	case implements(t, marshalerType):
		return formJSON, !t.Implements(marshalerType)
	case implements(t, textMarshalerType):
		return formText, !t.Implements(textMarshalerType)
	}
	return kindForm(t), false
}

// reads says how a t is made of JSON.
func reads(t reflect.Type) form {
	switch {
	case t == numberType:
		return formNumber
	case t == timeType: // it reads JSON too, by way of more text
		return formText
	case t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface, !mayHaveMethods(t):
	case implements(t, unmarshalerType):
		return formJSON
	case implements(t, textUnmarshalerType):
		return formText
	}
	return kindForm(t)
}

// mayHaveMethods is false for built-in types and lists and maps without a name.
func mayHaveMethods(t reflect.Type) bool { return t.PkgPath() != "" || t.Kind() == reflect.Struct }

func kindForm(t reflect.Type) form {
	switch t.Kind() {
	case reflect.Bool:
		return formBool
	case reflect.String:
		return formString
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return formInt
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return formUint
	case reflect.Float32:
		return formFloat32
	case reflect.Float64:
		return formFloat64
	case reflect.Slice:
		if isBytes(t) {
			return formBytes
		}
		return formList
	case reflect.Array:
		return formList
	case reflect.Map:
		return formMap
	case reflect.Struct:
		return formStruct
	case reflect.Pointer:
		return formPointer
	case reflect.Interface:
		return formAny
	}
	return formNone
}

// keyForm says how the keys of a map become member names.
func keyForm(t reflect.Type) form {
	switch {
	case t.Kind() == reflect.String:
		return formString
	case t.Implements(textMarshalerType):
		return formText
	}
	if f := kindForm(t); f == formInt || f == formUint {
		return f
	}
	return formNone
}
