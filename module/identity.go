package module

import (
	"log/slog"
	"maps"
	"reflect"
	"slices"
)

// Identity is who a call acts for (protocol §5.7). It is immutable: what goes in
// and what comes out are copies, nested lists and maps included. A nil
// *Identity means nobody said; it stays nil on every hop (decision D-103).
type Identity struct {
	id    string
	typ   string
	roles []string
	attrs map[string]any
}

// NewIdentity copies its arguments. An empty typ is "user"; other well-known
// types are service, agent, api_key, system and ai. Attributes are brought into
// the JSON data model, so that an identity stays equal to itself across a hop; one
// without a JSON form is left out with a WARN.
func NewIdentity(id, typ string, roles []string, attrs map[string]any) *Identity {
	if typ == "" {
		typ = "user"
	}
	i := &Identity{id: id, typ: typ, roles: slices.Clone(roles), attrs: maps.Clone(attrs)}
	for k, v := range i.attrs {
		normal, err := Normalize(v)
		if err != nil {
			slog.Default().Warn("identity attribute has no JSON form, left out", slog.String("attribute", k))
			delete(i.attrs, k)
			continue
		}
		i.attrs[k] = copyValue(normal)
	}
	return i
}

// RestoreIdentity is [NewIdentity] for what a decoder has just made: it takes over
// roles and attrs, which must hold nothing but the JSON data model.
func RestoreIdentity(id, typ string, roles []string, attrs map[string]any) *Identity {
	if typ == "" {
		typ = "user"
	}
	return &Identity{id: id, typ: typ, roles: roles, attrs: attrs}
}

// ID returns the identity's ID.
func (i *Identity) ID() string { return i.id }

// Type returns the kind of identity.
func (i *Identity) Type() string { return i.typ }

// Roles returns a copy of the roles.
func (i *Identity) Roles() []string { return slices.Clone(i.roles) }

// RolesView returns the roles themselves, which must not be modified.
func (i *Identity) RolesView() []string { return i.roles }

// HasRole reports whether role is among the roles.
func (i *Identity) HasRole(role string) bool { return slices.Contains(i.roles, role) }

// Attrs returns a copy of the attributes.
func (i *Identity) Attrs() map[string]any { return copyMap(i.attrs) }

// AttrsView returns the attributes themselves, which must not be modified at any
// depth.
func (i *Identity) AttrsView() map[string]any { return i.attrs }

// Attr returns one attribute, nil when it is absent.
func (i *Identity) Attr(name string) any { return copyValue(i.attrs[name]) }

func copyMap(m map[string]any) map[string]any {
	out := maps.Clone(m)
	for k, v := range out {
		out[k] = copyValue(v)
	}
	return out
}

// copyValue copies a value of the JSON data model.
func copyValue(v any) any {
	switch x := v.(type) {
	case map[string]any:
		return copyMap(x)
	case []any:
		out := make([]any, len(x))
		for i, e := range x {
			out[i] = copyValue(e)
		}
		return out
	}
	return v
}

// Equal compares by value; two nil identities are equal.
func (i *Identity) Equal(o *Identity) bool {
	if i == nil || o == nil {
		return i == o
	}
	return i.id == o.id && i.typ == o.typ && slices.Equal(i.roles, o.roles) &&
		len(i.attrs) == len(o.attrs) && (len(i.attrs) == 0 || reflect.DeepEqual(i.attrs, o.attrs))
}

// Map returns the wire form {id, type, roles, attrs}; roles and attrs are never
// null. A nil identity gives nil.
func (i *Identity) Map() map[string]any {
	if i == nil {
		return nil
	}
	roles := make([]any, len(i.roles))
	for k, r := range i.roles {
		roles[k] = r
	}
	attrs := i.Attrs()
	if attrs == nil {
		attrs = map[string]any{}
	}
	return map[string]any{"id": i.id, "type": i.typ, "roles": roles, "attrs": attrs}
}

// IdentityFromMap reads the wire form. A missing type is "user"; a missing or
// non-string id, a role that is no string, or attrs that are no map are refused
// with GENERAL_INVALID_INPUT.
func IdentityFromMap(m map[string]any) (*Identity, error) {
	i, err := RestoreIdentityMap(m)
	if err != nil {
		return nil, err
	}
	return NewIdentity(i.id, i.typ, i.roles, i.attrs), nil
}

// RestoreIdentityMap is [IdentityFromMap] for what a decoder has just made: it takes
// over the attributes, which must hold nothing but the JSON data model.
func RestoreIdentityMap(m map[string]any) (*Identity, error) {
	id, ok := m["id"].(string)
	if !ok {
		return nil, Errorf(CodeInvalidInput, "identity has no id")
	}
	typ := ""
	if v, present := m["type"]; present && v != nil {
		if typ, ok = v.(string); !ok {
			return nil, Errorf(CodeInvalidInput, "identity type is not a string")
		}
	}
	var roles []string
	if v, present := m["roles"]; present && v != nil {
		list, ok := v.([]any)
		if !ok {
			return nil, Errorf(CodeInvalidInput, "identity roles is not a list")
		}
		roles = make([]string, len(list))
		for k, r := range list {
			if roles[k], ok = r.(string); !ok {
				return nil, Errorf(CodeInvalidInput, "identity role %d is not a string", k)
			}
		}
	}
	var attrs map[string]any
	if v, present := m["attrs"]; present && v != nil {
		if attrs, ok = v.(map[string]any); !ok {
			return nil, Errorf(CodeInvalidInput, "identity attrs is not a map")
		}
	}
	return RestoreIdentity(id, typ, roles, attrs), nil
}
