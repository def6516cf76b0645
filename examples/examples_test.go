package examples_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/examples"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

func TestModulesOfGroups(t *testing.T) {
	demo := []string{"demo.whoami", "demo.sleep", "demo.chain", "demo.fail", "demo.effect"}
	near := []string{"near.whoami", "near.sleep", "near.chain"}
	far := []string{"far.whoami", "far.sleep", "far.chain"}
	for _, tt := range []struct {
		name   string
		groups []string
		want   []string
	}{
		{"none is all", nil, slices.Concat([]string{"math.add", "text.wordcount", "text.words"}, demo, near, far, []string{
			"orders.place", "inventory.reserve", "inventory.release", "inventory.stock", "payments.charge", "payments.refund",
		})},
		{"one", []string{"math"}, []string{"math.add"}},
		{"order does not matter", []string{"far", "text"}, append([]string{"text.wordcount", "text.words"}, far...)},
		{"twice is once", []string{"near", "near"}, near},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, m := range modulesOf(t, examples.Options{Groups: tt.groups}) {
				got = append(got, m.Descriptor().ID)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestUnknownGroupNamesTheKnownOnes(t *testing.T) {
	_, err := examples.Modules(examples.Options{Groups: []string{"math", "nope"}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range append(examples.Groups(), `"nope"`) {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not name %s", err, part)
		}
	}
}

func TestAnnotations(t *testing.T) {
	type behaviour struct{ Readonly, Idempotent, Destructive, RequiresApproval, Streaming bool }
	want := map[string]behaviour{
		"math.add":          {Readonly: true, Idempotent: true},
		"text.wordcount":    {Readonly: true, Idempotent: true},
		"text.words":        {Readonly: true, Streaming: true},
		"demo.whoami":       {Readonly: true},
		"demo.sleep":        {Readonly: true, Idempotent: true},
		"demo.chain":        {},
		"demo.fail":         {},
		"demo.effect":       {},
		"near.whoami":       {Readonly: true},
		"near.sleep":        {Readonly: true, Idempotent: true},
		"near.chain":        {},
		"far.whoami":        {Readonly: true},
		"far.sleep":         {Readonly: true, Idempotent: true},
		"far.chain":         {},
		"orders.place":      {},
		"inventory.reserve": {},
		"inventory.release": {Idempotent: true},
		"inventory.stock":   {Readonly: true, Idempotent: true},
		"payments.charge":   {Destructive: true},
		"payments.refund":   {Destructive: true, RequiresApproval: true},
	}
	got := map[string]behaviour{}
	for _, m := range modulesOf(t, examples.Options{}) {
		d := m.Descriptor()
		a := d.Annotations
		got[d.ID] = behaviour{a.Readonly, a.Idempotent, a.Destructive, a.RequiresApproval, a.Streaming}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestDescriptors(t *testing.T) {
	for _, m := range modulesOf(t, examples.Options{Node: "n1"}) {
		d := m.Descriptor()
		t.Run(d.ID, func(t *testing.T) {
			if err := module.ValidateID(d.ID); err != nil {
				t.Error(err)
			}
			if err := m.(module.Checker).Check(); err != nil {
				t.Error(err)
			}
			if d.Name == "" || d.Description == "" || len(d.Tags) == 0 || len(d.Examples) == 0 {
				t.Errorf("incomplete: %+v", d)
			}
			for _, doc := range []map[string]any{d.InputSchema, d.OutputSchema} {
				if _, err := schema.Compile(doc); err != nil {
					t.Error(err)
				}
			}
			for name, p := range d.InputSchema["properties"].(map[string]any) {
				if text, _ := p.(map[string]any)["description"].(string); text == "" {
					t.Errorf("input %s has no description", name)
				}
			}
			round, err := module.DescriptorFromMap(d.Map())
			if err != nil {
				t.Fatal(err)
			}
			if round.Hash() != d.Hash() {
				t.Error("the descriptor changes on the wire")
			}
		})
	}
}

func TestCardsAreSensitive(t *testing.T) {
	sensitive := map[string][]string{}
	for _, m := range modulesOf(t, examples.Options{}) {
		d := m.Descriptor()
		for name, p := range d.InputSchema["properties"].(map[string]any) {
			if on, _ := p.(map[string]any)["x-sensitive"].(bool); on {
				sensitive[d.ID] = append(sensitive[d.ID], name)
			}
		}
	}
	want := map[string][]string{"orders.place": {"card"}, "payments.charge": {"card"}}
	if d := cmp.Diff(want, sensitive); d != "" {
		t.Error(d)
	}
}

// TestSampleCalls runs the examples of every descriptor.
func TestSampleCalls(t *testing.T) {
	for _, m := range modulesOf(t, examples.Options{}) {
		d := m.Descriptor()
		for _, e := range d.Examples {
			t.Run(d.ID+"/"+e.Title, func(t *testing.T) {
				x := newDirect(t, examples.Options{})
				out, err := x.Call(t.Context(), d.ID, e.Inputs)
				switch {
				case d.ID == "demo.fail":
					if module.AsError(err) == nil {
						t.Errorf("err = %v, want a coded one", err)
					}
				case d.ID == "payments.refund":
					wantCode(t, err, module.CodeInvalidInput) // there is no such charge
				case err != nil:
					t.Error(err)
				case e.Output != nil:
					if diff := cmp.Diff(e.Output, out); diff != "" {
						t.Error(diff)
					}
				}
			})
		}
	}
}

func TestStateBelongsToOneCallOfModules(t *testing.T) {
	a, b := newDirect(t, examples.Options{}), newDirect(t, examples.Options{})
	mustCall(t, a, "demo.effect", obj("key", "k"))
	if got := mustCall(t, b, "demo.effect", obj("key", "k"))["count"]; got != int64(1) {
		t.Errorf("count = %v, want 1", got)
	}
}

func TestSchemasRefuse(t *testing.T) {
	x := newDirect(t, examples.Options{})
	for _, tt := range []struct {
		name, id string
		inputs   map[string]any
	}{
		{"add without b", "math.add", obj("a", 1)},
		{"add of text", "math.add", obj("a", 1, "b", "2")},
		{"wordcount without text", "text.wordcount", obj()},
		{"negative sleep", "demo.sleep", obj("ms", -1)},
		{"no steps", "demo.sleep", obj("ms", 1, "steps", 0)},
		{"fractional sleep", "demo.sleep", obj("ms", 1.5)},
		{"lower-case code", "demo.fail", obj("code", "nope")},
		{"white space in a key", "demo.effect", obj("key", "a b")},
		{"line break in a key", "demo.effect", obj("key", "a\nb 1 n9")},
		{"chain without path", "demo.chain", obj()},
		{"order without items", "orders.place", obj("customer", "ana", "items", []any{}, "card", "4111")},
		{"order of nothing", "orders.place", obj("customer", "ana", "items", items("tea", 0), "card", "4111")},
		{"order without card", "orders.place", obj("customer", "ana", "items", items("tea", 1))},
		{"charge of nothing", "payments.charge", obj("order_id", "o", "amount_cents", 0, "card", "4111")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := x.Call(context.Background(), tt.id, tt.inputs)
			wantCode(t, err, module.CodeSchemaValidation)
		})
	}
}
