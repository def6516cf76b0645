package module_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apbus/apbus/module"
)

func TestReservedCodePrefixes(t *testing.T) {
	got := module.ReservedCodePrefixes()
	equal(t, "prefixes", strings.Join(got, " "),
		"ACL_ APPROVAL_ BINDING_ CALL_ CIRCULAR_ CONFIG_ DEPENDENCY_ ERROR_CODE_ FUNC_ GENERAL_ MIDDLEWARE_ MODULE_ SCHEMA_ VERSION_")
	got[0] = "X_"
	if module.ReservedCodePrefixes()[0] != "ACL_" {
		t.Error("the list can be changed from outside")
	}
}

func TestCodeRegistryRegister(t *testing.T) {
	for _, tt := range []struct {
		name   string
		codes  []module.Code
		want   module.Code
		reason string
	}{
		{"own code", []module.Code{"ORDERS_EMPTY"}, "", ""},
		{"several", []module.Code{"ORDERS_EMPTY", "ORDERS_2"}, "", ""},
		{"none", nil, "", ""},
		{"a framework code", []module.Code{"MODULE_TIMEOUT"}, module.CodeErrorCodeCollision, "framework"},
		{"a framework code outside the prefixes", []module.Code{"CIRCUIT_BREAKER_OPEN"}, module.CodeErrorCodeCollision, "framework"},
		{"a code of the bus", []module.Code{"BUS_OVERLOADED"}, module.CodeErrorCodeCollision, "framework"},
		{"beside a framework code", []module.Code{"CIRCUIT_CUSTOM", "PIPELINE_CUSTOM", "STEP_CUSTOM", "BUS_CUSTOM"}, "", ""},
		{"a reserved prefix", []module.Code{"GENERAL_MINE"}, module.CodeErrorCodeCollision, "prefix"},
		{"taken", []module.Code{"TAKEN"}, module.CodeErrorCodeCollision, "module"},
		{"one bad spoils all", []module.Code{"ORDERS_EMPTY", "TAKEN"}, module.CodeErrorCodeCollision, "module"},
		{"lower case", []module.Code{"orders_empty"}, module.CodeInvalidInput, ""},
		{"leading digit", []module.Code{"2FAST"}, module.CodeInvalidInput, ""},
		{"empty", []module.Code{""}, module.CodeInvalidInput, ""},
		{"too long", []module.Code{module.Code(strings.Repeat("A", 129))}, module.CodeInvalidInput, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := module.NewCodeRegistry()
			if err := r.Register("other.mod", "TAKEN"); err != nil {
				t.Fatal(err)
			}
			before := r.All()
			err := r.Register("shop.orders", tt.codes...)
			if got := module.CodeOf(err); got != tt.want {
				t.Fatalf("err = %v, want %q", err, tt.want)
			}
			if err != nil {
				if tt.reason != "" {
					equal(t, "reason", module.AsError(err).Details["reason"], any(tt.reason))
					equal(t, "module", module.AsError(err).Details["module_id"], any("shop.orders"))
				}
				equal(t, "codes after a refusal", r.All(), before)
				return
			}
			for _, c := range tt.codes {
				if owner, ok := r.Owner(c); !ok || owner != "shop.orders" {
					t.Errorf("%s belongs to %q", c, owner)
				}
				if !slices.Contains(r.All(), c) {
					t.Errorf("%s is not among all", c)
				}
			}
		})
	}
}

func TestCodeRegistryLife(t *testing.T) {
	var r module.CodeRegistry
	for range 2 { // one's own code again is fine
		if err := r.Register("a", "TEMP"); err != nil {
			t.Fatal(err)
		}
	}
	hasCode(t, r.Register("b", "TEMP"), module.CodeErrorCodeCollision)
	hasCode(t, r.Register("", "X"), module.CodeInvalidInput)
	r.Unregister("b")
	hasCode(t, r.Register("b", "TEMP"), module.CodeErrorCodeCollision)
	r.Unregister("a")
	if _, ok := r.Owner("TEMP"); ok {
		t.Error("unregistering left the code")
	}
	if err := r.Register("b", "TEMP"); err != nil {
		t.Error(err)
	}
	all := r.All()
	if !slices.IsSorted(all) || !slices.Contains(all, module.CodeACLDenied) || !slices.Contains(all, "TEMP") {
		t.Errorf("all = %v", all)
	}
}

// One code goes to one module, however many ask at once.
func TestCodeRegistryConcurrent(t *testing.T) {
	var r module.CodeRegistry
	var wg sync.WaitGroup
	won := make(chan string, 16)
	for i := range 16 {
		wg.Go(func() {
			id := fmt.Sprintf("mod.m%d", i)
			if r.Register(id, "ONLY_ONE") == nil {
				won <- id
			}
			r.All()
		})
	}
	wg.Wait()
	close(won)
	owner, _ := r.Owner("ONLY_ONE")
	for id := range won {
		if id != owner {
			t.Errorf("%s was told it has the code of %s", id, owner)
		}
	}
}

func TestFormatterRegistry(t *testing.T) {
	r := module.NewFormatterRegistry()
	cli := func(e *module.Error, _ *module.Context) map[string]any {
		return obj{"exit": int64(1), "text": e.Message}
	}
	if err := r.Register("cli", cli); err != nil {
		t.Fatal(err)
	}
	hasCode(t, r.Register("cli", cli), module.CodeErrorFormatterDuplicate)
	hasCode(t, r.Register("", cli), module.CodeInvalidInput)
	hasCode(t, r.Register("mcp", nil), module.CodeInvalidInput)
	if r.IsRegistered("mcp") || !r.IsRegistered("cli") {
		t.Error("IsRegistered")
	}
	if f, ok := r.Get("cli"); !ok || f == nil {
		t.Error("Get does not find it")
	}
	_ = r.Register("bad", func(*module.Error, *module.Context) map[string]any { panic("x") })
	_ = r.Register("nil", func(*module.Error, *module.Context) map[string]any { return nil })
	e := module.Errorf("ORDERS_EMPTY", "nothing in it")
	for _, tt := range []struct {
		adapter string
		want    obj
	}{
		{"cli", obj{"exit": int64(1), "text": "nothing in it"}},
		{"none", e.Map()}, {"bad", e.Map()}, {"nil", e.Map()},
	} {
		equal(t, tt.adapter, r.Format(tt.adapter, e, nil), tt.want)
	}
	if r.Format("cli", nil, nil) != nil {
		t.Error("no error has a form")
	}
}

func TestGuidance(t *testing.T) {
	e := module.Errorf(module.CodeSchemaValidation, "x")
	if e.Map()["ai_guidance"] != nil {
		t.Error("guidance that nobody gave is on the wire")
	}
	if e.GuidanceOr() == "" || e.WithGuidance("mine").GuidanceOr() != "mine" {
		t.Error("GuidanceOr")
	}
	for c := range module.Codes() {
		if g := c.Guidance(); g != "" && !strings.HasSuffix(g, ".") {
			t.Errorf("%s: %q is no sentence", c, g)
		}
	}
	if module.Code("OWN").Guidance() != "" {
		t.Error("guidance for an unknown code")
	}
}

func ExampleCodeRegistry() {
	codes := module.NewCodeRegistry()
	fmt.Println(codes.Register("shop.orders", "ORDERS_EMPTY"))
	fmt.Println(codes.Register("shop.carts", "ORDERS_EMPTY"))
	fmt.Println(codes.Register("shop.carts", "SCHEMA_TOO_ODD"))
	// Output:
	// <nil>
	// ERROR_CODE_COLLISION: error code ORDERS_EMPTY of module shop.carts is declared by module shop.orders
	// ERROR_CODE_COLLISION: error code SCHEMA_TOO_ODD of module shop.carts begins with the reserved prefix SCHEMA_
}
