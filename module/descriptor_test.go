package module_test

import (
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/apbus/apbus/module"
)

func full() module.Descriptor {
	limit := 90 * time.Second
	return module.Descriptor{
		ID: "orders.place", Name: "Place", Description: "Place an order", Documentation: "Long.", Version: "2.1.0",
		Tags:         []string{"shop", "write"},
		InputSchema:  obj{"type": "object", "properties": obj{"n": obj{"type": "integer", "minimum": int64(1), "maximum": 2.5}}},
		OutputSchema: obj{"type": "object"},
		Annotations:  module.Annotations{Destructive: true, PaginationStyle: "cursor", Extra: obj{"a.b": int64(1)}},
		Examples: []module.Example{
			{Title: "one", Inputs: obj{"n": int64(1)}, Output: obj{}, Description: "d"},
			{Title: "two", Inputs: obj{}},
		},
		Metadata: obj{"x-sla": "99.9"},
		Timeout:  &limit,
	}
}

func TestDescriptorRoundTrip(t *testing.T) {
	none := time.Duration(0)
	for _, tt := range []struct {
		name string
		d    module.Descriptor
	}{
		{"full", full()},
		{"least", module.Descriptor{ID: "a", Version: "1.0.0", Annotations: module.Annotations{PaginationStyle: "cursor"}}},
		{"timeout 0", module.Descriptor{ID: "a", Version: "1.0.0", Timeout: &none, Annotations: module.Annotations{PaginationStyle: "cursor"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sent := hop(t, tt.d.Map())
			got, err := module.DescriptorFromMap(sent)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.d, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDescriptorMap(t *testing.T) {
	equal(t, "least", module.Descriptor{ID: "a"}.Map(), obj{
		"module_id": "a", "name": nil, "description": "", "documentation": nil, "version": "1.0.0", "tags": []any{},
		"input_schema": obj{}, "output_schema": obj{}, "annotations": canonical(nil), "examples": []any{}, "metadata": obj{},
	})
	m := full().Map()
	equal(t, "resources", m["resources"].(obj), obj{"timeout": int64(90_000)})
	equal(t, "examples", m["examples"].([]any), []any{
		obj{"title": "one", "inputs": obj{"n": int64(1)}, "output": obj{}, "description": "d"},
		obj{"title": "two", "inputs": obj{}},
	})
}

func TestDescriptorFromMap(t *testing.T) {
	got, err := module.DescriptorFromMap(obj{
		"module_id": "a.b", "description": int64(1), "version": nil, "tags": []any{"x", int64(2)}, "input_schema": "none",
		"annotations": "none", "metadata": nil, "resources": obj{"timeout": "5s"}, "new_field": true,
		"examples": []any{"x", obj{"title": int64(1), "inputs": []any{}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "malformed fields", got, module.Descriptor{ID: "a.b", Examples: []module.Example{{}}})
	if got.EffectiveVersion() != module.DefaultVersion {
		t.Error(got.EffectiveVersion())
	}
	for _, id := range []any{nil, "", "A", "a-b", int64(1)} {
		_, err := module.DescriptorFromMap(obj{"module_id": id})
		hasCode(t, err, module.CodeInvalidModuleID)
	}
}

func TestDescriptorTimeout(t *testing.T) {
	for _, tt := range []struct {
		name string
		d    time.Duration
		ms   int64
	}{
		{"zero is no limit", 0, 0},
		{"whole", 5 * time.Second, 5000},
		{"below a millisecond is not no limit", time.Microsecond, 1},
		{"rounded up", 1500 * time.Microsecond, 2},
		{"negative stays negative", -time.Nanosecond, -1},
		{"largest", 1<<63 - 1, 9223372036855},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := module.Descriptor{ID: "a", Timeout: &tt.d}.Map()
			equal(t, "resources", m["resources"].(obj), obj{"timeout": tt.ms})
		})
	}
	for _, tt := range []struct {
		name string
		ms   any
		want time.Duration
	}{
		{"float", 250.0, 250 * time.Millisecond},
		{"no overflow", int64(1 << 62), (1<<63 - 1) / time.Millisecond * time.Millisecond},
		{"no underflow", int64(-1 << 62), -(1<<63 - 1) / time.Millisecond * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, err := module.DescriptorFromMap(obj{"module_id": "a", "resources": obj{"timeout": tt.ms}})
			if err != nil || d.Timeout == nil || *d.Timeout != tt.want {
				t.Errorf("timeout %v, error %v", d.Timeout, err)
			}
		})
	}
}

func TestDescriptorHash(t *testing.T) {
	hash := full().Hash()
	if !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(hash) {
		t.Fatalf("hash %q", hash)
	}
	if again := full().Hash(); again != hash {
		t.Error("two equal descriptors differ")
	}
	// The other side computes it from what it received.
	d := full()
	d.InputSchema = obj{"type": "object", "properties": obj{"n": obj{"type": "integer", "minimum": 1}}} // an int, not an int64
	got, err := module.DescriptorFromMap(hop(t, d.Map()))
	if err != nil || got.Hash() != d.Hash() {
		t.Errorf("hash after a hop %s, want %s (%v)", got.Hash(), d.Hash(), err)
	}
	seen := map[string]string{hash: "the original"}
	other := time.Second
	for name, change := range map[string]func(*module.Descriptor){
		"id": func(d *module.Descriptor) { d.ID = "orders.placed" }, "version": func(d *module.Descriptor) { d.Version = "2.1.1" },
		"schema": func(d *module.Descriptor) { d.InputSchema = nil }, "annotations": func(d *module.Descriptor) { d.Annotations.Readonly = true },
		"timeout": func(d *module.Descriptor) { d.Timeout = &other }, "no timeout": func(d *module.Descriptor) { d.Timeout = nil },
		"example": func(d *module.Descriptor) { d.Examples = d.Examples[:1] }, "metadata": func(d *module.Descriptor) { d.Metadata = nil },
		"tags": func(d *module.Descriptor) { d.Tags = []string{"write", "shop"} }, "name": func(d *module.Descriptor) { d.Name = "" },
	} {
		d := full()
		change(&d)
		if same, taken := seen[d.Hash()]; taken {
			t.Errorf("%s hashes like %s", name, same)
		}
		seen[d.Hash()] = name
	}
	if (module.Descriptor{ID: "a"}).Hash() != (module.Descriptor{ID: "a", Version: "1.0.0", Tags: []string{}, Metadata: obj{}}).Hash() {
		t.Error("defaults spelt out must hash alike")
	}
	if h := (module.Descriptor{ID: "a", Metadata: obj{"f": func() {}}}).Hash(); h != "" {
		t.Errorf("hash of what has no JSON form: %q", h)
	}
}
