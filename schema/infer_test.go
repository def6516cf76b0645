package schema_test

import (
	"encoding/json"
	"math/big"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/schema"
)

type UUID [16]byte

func (u UUID) MarshalText() ([]byte, error) { return []byte("uuid"), nil }

type level string

func (level) JSONSchema() map[string]any {
	return map[string]any{"type": "string", "enum": []string{"low", "high"}}
}

type base struct {
	ID     string `json:"id" description:"who"`
	Hidden string `json:"-"`
	name   string //nolint:unused // inference must not see it
}

type Audit struct {
	By string `json:"by"`
	ID int    `json:"id"` // ties with base.ID, which hides both
}

type page[T any] struct {
	Items []T `json:"items"`
	Next  *T  `json:"next,omitempty"`
}

type node struct {
	Value string           `json:"value"`
	Kids  []node           `json:"kids,omitempty"`
	By    map[string]*node `json:"by,omitempty"`
}

type forest struct {
	Root  node  `json:"root"`
	Other *node `json:"other"`
}

func TestFor(t *testing.T) {
	type limits struct {
		Name  string   `json:"name" minLength:"1" maxLength:"9" pattern:"^a" format:"email" title:"T"`
		Qty   int      `json:"qty" minimum:"0" exclusiveMaximum:"10" multipleOf:"2" default:"4"`
		Price float64  `json:"price" exclusiveMinimum:"0" maximum:"1e3"`
		Kind  string   `json:"kind" enum:"a, b"`
		Size  *int     `json:"size" enum:"1,2"`
		Tags  []string `json:"tags" minItems:"1" maxItems:"3" uniqueItems:"true" enum:"x,y" maxLength:"1" default:"[\"x\"]"`
		Card  string   `json:"card" sensitive:"true" deprecated:"true"`
	}
	type embedded struct {
		base
		*Audit
		Extra  bool `json:"extra"`
		Quoted int  `json:"quoted,string"`
	}
	type optional struct {
		A string  `json:"a,omitempty"`
		B int     `json:"b,omitzero"`
		C *string `json:"c"`
		D *base   `json:"d,omitempty"`
		E string  `json:"e" required:"false"`
		F *bool   `json:"f" required:"true"`
		G string
	}
	for _, tc := range []struct {
		name string
		of   func() (map[string]any, error)
		want string
	}{
		{"string", schema.For[string], `{"type":"string"}`},
		{"bool", schema.For[bool], `{"type":"boolean"}`},
		{"int", schema.For[int], `{"type":"integer"}`},
		{"int8", schema.For[int8], `{"type":"integer","minimum":-128,"maximum":127}`},
		{"uint32", schema.For[uint32], `{"type":"integer","minimum":0,"maximum":4294967295}`},
		{"uint64", schema.For[uint64], `{"type":"integer","minimum":0}`},
		{"duration", schema.For[time.Duration], `{"type":"integer"}`},
		{"float", schema.For[float32], `{"type":"number"}`},
		{"any", schema.For[any], `{}`},
		{"raw", schema.For[json.RawMessage], `{}`},
		{"number", schema.For[json.Number], `{"type":"number"}`},
		{"big", schema.For[big.Int], `{}`},
		{"time", schema.For[time.Time], `{"type":"string","format":"date-time"}`},
		{"text", schema.For[netip.Addr], `{"type":"string"}`},
		{"uuid", schema.For[UUID], `{"type":"string","format":"uuid"}`},
		{"provider", schema.For[level], `{"type":"string","enum":["low","high"]}`},
		{"bytes", schema.For[[]byte], `{"type":"string","contentEncoding":"base64"}`},
		{"byte array", schema.For[[3]byte], `{"type":"array","items":{"type":"integer","minimum":0,"maximum":255},"minItems":3,"maxItems":3}`},
		{"slice", schema.For[[]string], `{"type":"array","items":{"type":"string"}}`},
		{"slice of pointers", schema.For[[]*int], `{"type":"array","items":{"type":["integer","null"]}}`},
		{"map", schema.For[map[string]int], `{"type":"object","additionalProperties":{"type":"integer"}}`},
		{"map of any", schema.For[map[int]any], `{"type":"object"}`},
		{"pointer at the top", schema.For[*base], `{"type":"object","properties":{"id":{"type":"string","description":"who"}},"required":["id"]}`},
		{"empty struct", schema.For[struct{}], `{"type":"object","properties":{}}`},
		{"optional", schema.For[optional], `{"type":"object","properties":{
			"a":{"type":"string"},"b":{"type":"integer"},"c":{"type":["string","null"]},
			"d":{"type":["object","null"],"properties":{"id":{"type":"string","description":"who"}},"required":["id"]},
			"e":{"type":"string"},"f":{"type":["boolean","null"]},"G":{"type":"string"}},"required":["f","G"]}`},
		{"embedded", schema.For[embedded], `{"type":"object","properties":{
			"extra":{"type":"boolean"},"quoted":{"type":"string"},"by":{"type":"string"}},"required":["extra","quoted"]}`},
		{"generic", schema.For[page[base]], `{"type":"object","properties":{
			"items":{"type":"array","items":{"type":"object","properties":{"id":{"type":"string","description":"who"}},"required":["id"]}},
			"next":{"type":["object","null"],"properties":{"id":{"type":"string","description":"who"}},"required":["id"]}},"required":["items"]}`},
		{"recursive", schema.For[node], `{"type":"object","properties":{"value":{"type":"string"},
			"kids":{"type":"array","items":{"$ref":"#"}},
			"by":{"type":"object","additionalProperties":{"anyOf":[{"$ref":"#"},{"type":"null"}]}}},"required":["value"]}`},
		{"recursive below", schema.For[forest], `{"type":"object","properties":{"root":{"$ref":"#/$defs/node"},
			"other":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["root"],
			"$defs":{"node":{"type":"object","properties":{"value":{"type":"string"},
			"kids":{"type":"array","items":{"$ref":"#/$defs/node"}},
			"by":{"type":"object","additionalProperties":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}}},"required":["value"]}}}`},
		{"recursive generic", schema.For[list[int]], `{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["v"]}`},
		{"constraints", schema.For[limits], `{"type":"object","properties":{
			"name":{"type":"string","minLength":1,"maxLength":9,"pattern":"^a","format":"email","title":"T"},
			"qty":{"type":"integer","minimum":0,"exclusiveMaximum":10,"multipleOf":2,"default":4},
			"price":{"type":"number","exclusiveMinimum":0,"maximum":1e3},
			"kind":{"type":"string","enum":["a","b"]},
			"size":{"type":["integer","null"],"enum":[1,2,null]},
			"tags":{"type":"array","minItems":1,"maxItems":3,"uniqueItems":true,"items":{"type":"string","enum":["x","y"],"maxLength":1},"default":["x"]},
			"card":{"type":"string","x-sensitive":true,"deprecated":true}},
			"required":["name","qty","price","kind","tags","card"]}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := tc.of()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(doc(t, tc.want), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if _, err := schema.Compile(got); err != nil {
				t.Errorf("the inferred schema does not compile: %v", err)
			}
			again, err := tc.of()
			if err != nil || schema.ContentHash(again) != schema.ContentHash(got) {
				t.Errorf("two calls differ (%v)", err)
			}
		})
	}
}

type list[T any] struct {
	V    T        `json:"v"`
	Next *list[T] `json:"next"`
}

func TestForErrors(t *testing.T) {
	type inner struct {
		C chan int `json:"c"`
	}
	type outer struct {
		In []inner `json:"in"`
	}
	type badTag struct {
		N int `json:"n" minimum:"many"`
	}
	type badCount struct {
		N string `json:"n" minLength:"-1"`
	}
	type badEnum struct {
		N int `json:"n" enum:"1,two"`
	}
	type badFlag struct {
		N int `json:"n" sensitive:"si"`
	}
	for _, tc := range []struct {
		name string
		of   func() (map[string]any, error)
		says string
	}{
		{"channel", schema.For[outer], "field in: items: field c: chan int"},
		{"func", schema.For[func()], "func()"},
		{"complex", schema.For[complex128], "complex128"},
		{"map key", schema.For[map[float64]int], "map key float64"},
		{"number tag", schema.For[badTag], "field n: tag minimum"},
		{"count tag", schema.For[badCount], "field n: tag minLength"},
		{"enum tag", schema.For[badEnum], "field n: tag enum"},
		{"flag tag", schema.For[badFlag], "field n: tag sensitive"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := tc.of()
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error = %v, want it to say %q", err, tc.says)
			}
		})
	}
}
