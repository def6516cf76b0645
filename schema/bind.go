package schema

import (
	"reflect"
)

// Binding converts between one Go type and the value model, by the rules that
// [Of] describes the type with: what Encode makes fits the inferred schema, and
// what fits the schema is what Decode reads. The types it can know are studied
// once, by [Bind]; a Binding is safe for concurrent use.
type Binding struct {
	root  *layout
	known map[reflect.Type]*layout
}

// Bind prepares a Binding for t; nil means any.
func Bind(t reflect.Type) *Binding {
	if t == nil {
		t = reflect.TypeFor[any]()
	}
	s := layouts{}
	root := s.of(t)
	return &Binding{root: root, known: s.own}
}

// Encode is [NormalizeWithin] for a value of the bound type.
func (b *Binding) Encode(v reflect.Value, levels int) (any, error) {
	n := normalizer{layouts: layouts{known: b.known}, left: maxValueNodes, levels: levels}
	if !v.IsValid() {
		return nil, nil
	}
	s := b.root
	if v.Type() != s.typ {
		s = n.of(v.Type())
	}
	return n.encode(s, v, 0)
}

// Decode fills dst, a settable value of the bound type, from a value of the
// value model, without a detour through text. Members that v does not have keep
// what dst holds; unknown ones are ignored; null gives the zero value. An
// integral float fits an integer, as it does in JSON Schema. Maps and elements
// that are any hold the very values of v. What does not fit is a [*MisfitError].
func (b *Binding) Decode(v any, dst reflect.Value) error {
	f := filler{left: maxValueNodes}
	s := b.root
	if dst.Type() != s.typ {
		n := layouts{known: b.known}
		s = n.of(dst.Type())
	}
	if err := f.decode(s, v, dst, 0); err != nil {
		return err
	}
	return nil
}

// MisfitError says that a value does not fit the Go type it is meant for. It
// names the place and never the value.
type MisfitError struct {
	// Path is the RFC 6901 pointer to the value, "" for the root.
	Path string
	Type reflect.Type
}

// Error says where the value does not fit which type, and never the value.
func (e *MisfitError) Error() string {
	if e.Path == "" {
		return "the value does not fit " + e.Type.String()
	}
	return "the value at " + e.Path + " does not fit " + e.Type.String()
}

// under moves the misfit below one more member, on the way back to the root.
func (e *MisfitError) under(token string) *MisfitError {
	e.Path = "/" + escapePointer(token) + e.Path
	return e
}
