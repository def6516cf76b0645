package gateway_test

import (
	"slices"
	"testing"
	"time"

	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

func someModules() []gateway.Module {
	limit := 90 * time.Second
	return []gateway.Module{
		{Descriptor: module.Descriptor{ID: "hidden.one", Tags: []string{"math"}, Annotations: module.Annotations{Hidden: true}}},
		{
			Descriptor: module.Descriptor{
				ID: "math.add", Name: "Add", Description: "Add two numbers", Version: "1.2.0", Tags: []string{"math", "pure"},
				InputSchema:  map[string]any{"type": "object", "properties": map[string]any{"a": map[string]any{"type": "number"}}},
				OutputSchema: map[string]any{"type": "object"},
				Annotations:  module.Annotations{Readonly: true, Idempotent: true},
				Examples:     []module.Example{{Title: "one", Inputs: map[string]any{"a": int64(1)}}},
				Timeout:      &limit,
			},
			Hash:  "abc123",
			Hosts: []gateway.Host{{Node: "n1", Boot: "b1", Version: "1.2.0"}, {Node: "n2", Boot: "b2", Version: "1.1.0", Draining: true}},
		},
		{Descriptor: module.Descriptor{ID: "math.mul", Description: "Multiply", Tags: []string{"math"}}},
		{Descriptor: module.Descriptor{ID: "text.words", Description: "Split TEXT", Tags: []string{"text", "pure"}}},
	}
}

func withModules(o *gateway.Options) { o.Catalog = gateway.CatalogFunc(someModules) }

func TestListModules(t *testing.T) {
	g := newGateway(t, withModules)
	tests := []struct {
		name, query string
		want        []string
	}{
		{"all that are discoverable", "", []string{"math.add", "math.mul", "text.words"}},
		{"prefix", "?prefix=math.", []string{"math.add", "math.mul"}},
		{"tag", "?tag=pure", []string{"math.add", "text.words"}},
		{"all of several tags", "?tag=pure&tag=math", []string{"math.add"}},
		{"empty tag", "?tag=", []string{"math.add", "math.mul", "text.words"}},
		{"text in the ID", "?q=WORDS", []string{"text.words"}},
		{"text in the name", "?q=add", []string{"math.add"}},
		{"text in the description", "?q=split+text", []string{"text.words"}},
		{"text in a tag", "?q=pur", []string{"math.add", "text.words"}},
		{"together", "?prefix=math&tag=math&q=mult", []string{"math.mul"}},
		{"none", "?prefix=x", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := record(g, "GET", "/v1/modules"+tt.query, "")
			list, ok := res.fields(t)["modules"].([]any)
			if res.status != 200 || !ok {
				t.Fatalf("got %d %s", res.status, res.body)
			}
			var got []string
			for _, m := range list {
				got = append(got, m.(map[string]any)["module_id"].(string))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
	golden(t, "modules", record(g, "GET", "/v1/modules?prefix=math.mul", "").body)
}

func TestShowModule(t *testing.T) {
	g := newGateway(t, withModules)
	res := record(g, "GET", "/v1/modules/math.add", "")
	if res.status != 200 {
		t.Fatalf("got %d %s", res.status, res.body)
	}
	golden(t, "module", res.body)
	if res := record(g, "GET", "/v1/modules/hidden.one", ""); res.status != 200 {
		t.Errorf("a hidden module by its ID: %d", res.status)
	}
	record(g, "GET", "/v1/modules/no.such", "").wantFault(t, 404, module.CodeModuleNotFound)
	record(g, "GET", "/v1/modules/No-Such", "").wantFault(t, 400, module.CodeInvalidModuleID)
}
