package module_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/module"
)

func TestIdentityRoundTrip(t *testing.T) {
	for _, tt := range []struct {
		name string
		id   *module.Identity
		want obj
	}{
		{"full", module.NewIdentity("u1", "service", []string{"admin", "editor"}, obj{"tenant_id": "t-456", "level": 3}),
			obj{"id": "u1", "type": "service", "roles": []any{"admin", "editor"}, "attrs": obj{"tenant_id": "t-456", "level": int64(3)}}},
		{"defaults", module.NewIdentity("u1", "", nil, nil), obj{"id": "u1", "type": "user", "roles": []any{}, "attrs": obj{}}},
		{"custom type", module.NewIdentity("", "anonymous", []string{}, obj{}), obj{"id": "", "type": "anonymous", "roles": []any{}, "attrs": obj{}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			equal(t, "map", tt.id.Map(), tt.want)
			got, err := module.IdentityFromMap(hop(t, tt.id.Map()))
			if err != nil {
				t.Fatal(err)
			}
			if !got.Equal(tt.id) || !tt.id.Equal(got) {
				t.Errorf("got %v, want %v", got.Map(), tt.id.Map())
			}
		})
	}
	if (*module.Identity)(nil).Map() != nil {
		t.Error("nobody has no map")
	}
}

func TestIdentityFromMap(t *testing.T) {
	for _, tt := range []struct {
		name  string
		m     obj
		valid bool
	}{
		{"id only", obj{"id": "a"}, true},
		{"nulls", obj{"id": "a", "type": nil, "roles": nil, "attrs": nil}, true},
		{"unknown key", obj{"id": "a", "x": 1}, true},
		{"nothing", nil, false},
		{"id of another type", obj{"id": int64(1)}, false},
		{"type of another type", obj{"id": "a", "type": true}, false},
		{"roles no list", obj{"id": "a", "roles": "admin"}, false},
		{"role no string", obj{"id": "a", "roles": []any{"x", int64(1)}}, false},
		{"attrs no map", obj{"id": "a", "attrs": []any{}}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id, err := module.IdentityFromMap(tt.m)
			if (err == nil) != tt.valid {
				t.Fatalf("error %v", err)
			}
			if !tt.valid {
				hasCode(t, err, module.CodeInvalidInput)
			} else if id.ID() != "a" || id.Type() != "user" {
				t.Errorf("%s %s", id.ID(), id.Type())
			}
		})
	}
}

func TestIdentityIsImmutable(t *testing.T) {
	roles, attrs := []string{"r"}, obj{"deep": obj{"list": []any{"x"}}}
	id := module.NewIdentity("a", "user", roles, attrs)
	want := id.Map()
	roles[0] = "changed"
	attrs["deep"].(obj)["list"].([]any)[0] = "changed"
	id.Roles()[0] = "changed"
	id.Attrs()["new"] = true
	id.Attrs()["deep"].(obj)["list"].([]any)[0] = "changed"
	id.Attr("deep").(obj)["list"] = nil
	m := id.Map()
	m["roles"].([]any)[0] = "changed"
	m["attrs"].(obj)["deep"].(obj)["list"] = nil
	if diff := cmp.Diff(want, id.Map()); diff != "" {
		t.Errorf("the identity changed (-want +got):\n%s", diff)
	}
	if id.Attr("none") != nil || !id.HasRole("r") || id.HasRole("changed") {
		t.Error("attributes and roles")
	}
}

func TestIdentityAttributeWithoutJSONForm(t *testing.T) {
	log := logged(t)
	ring := obj{}
	ring["self"] = ring
	id := module.NewIdentity("a", "", nil, obj{"ring": ring, "fn": func() {}, "ok": "yes"})
	equal(t, "attrs", id.Attrs(), obj{"ok": "yes"})
	if warnings(log) != 2 {
		t.Errorf("log: %s", log)
	}
}

func TestIdentityEqual(t *testing.T) {
	base := module.NewIdentity("a", "user", []string{"r"}, obj{"k": "v"})
	for _, tt := range []struct {
		name string
		a, b *module.Identity
		want bool
	}{
		{"nil and nil", nil, nil, true},
		{"nil and somebody", nil, base, false},
		{"somebody and nil", base, nil, false},
		{"same value", base, module.NewIdentity("a", "", []string{"r"}, obj{"k": "v"}), true},
		{"id", base, module.NewIdentity("b", "user", []string{"r"}, obj{"k": "v"}), false},
		{"type", base, module.NewIdentity("a", "agent", []string{"r"}, obj{"k": "v"}), false},
		{"roles", base, module.NewIdentity("a", "user", nil, obj{"k": "v"}), false},
		{"attrs", base, module.NewIdentity("a", "user", []string{"r"}, obj{"k": "w"}), false},
		{"none and empty", module.NewIdentity("a", "", nil, nil), module.NewIdentity("a", "", []string{}, obj{}), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.a.Equal(tt.b); got != tt.want {
				t.Errorf("Equal = %v", got)
			}
		})
	}
}
