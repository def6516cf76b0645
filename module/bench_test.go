package module_test

import (
	"context"
	"encoding/json"
	"reflect"
	"strconv"
	"testing"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// wide is a struct type of n members of mixed kinds, and a value for it.
func wide(n int) (reflect.Type, map[string]any) {
	kinds := []reflect.Type{reflect.TypeFor[int64](), reflect.TypeFor[string](), reflect.TypeFor[float64](), reflect.TypeFor[bool]()}
	values := []any{int64(123_456), "some text", 1.5, true}
	fields := make([]reflect.StructField, n)
	m := make(map[string]any, n)
	for i := range fields {
		name := "f" + strconv.Itoa(i)
		fields[i] = reflect.StructField{Name: "F" + strconv.Itoa(i), Type: kinds[i%4], Tag: reflect.StructTag(`json:"` + name + `"`)}
		m[name] = values[i%4]
	}
	return reflect.StructOf(fields), m
}

// viaJSON is what a typed module would cost by way of text.
func viaJSON(b *testing.B, t reflect.Type, m map[string]any) {
	b.ReportAllocs()
	for b.Loop() {
		raw, err := json.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		v := reflect.New(t)
		if err := json.Unmarshal(raw, v.Interface()); err != nil {
			b.Fatal(err)
		}
		if raw, err = json.Marshal(v.Interface()); err != nil {
			b.Fatal(err)
		}
		var out map[string]any
		if err := json.Unmarshal(raw, &out); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTyped moves a map into a struct and back, as each call of a typed
// module does.
func BenchmarkTyped(b *testing.B) {
	add := module.New("math.add", "", func(_ context.Context, in AddIn) (AddOut, error) { return AddOut{in.A + in.B}, nil })
	inputs := map[string]any{"a": 1.5, "b": 2.5}
	b.Run("add/direct", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := add.Execute(b.Context(), inputs); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("add/encoding-json", func(b *testing.B) { viaJSON(b, reflect.TypeFor[AddIn](), inputs) })

	t, m := wide(1000)
	b.Run("1000/direct", func(b *testing.B) {
		bound := schema.Bind(t)
		b.ReportAllocs()
		for b.Loop() {
			v := reflect.New(t).Elem()
			if err := bound.Decode(m, v); err != nil {
				b.Fatal(err)
			}
			if _, err := bound.Encode(v, 64); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("1000/encoding-json", func(b *testing.B) { viaJSON(b, t, m) })
}

func BenchmarkNormalize(b *testing.B) {
	_, m := wide(1000)
	b.Run("already normal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := module.NormalizeMap(m); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkFromMap has no place to keep what it learnt about the type.
func BenchmarkFromMap(b *testing.B) {
	inputs := map[string]any{"a": 1.5, "b": 2.5}
	b.ReportAllocs()
	for b.Loop() {
		var in AddIn
		if err := module.FromMap(inputs, &in); err != nil {
			b.Fatal(err)
		}
	}
}
