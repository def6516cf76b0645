package schema_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/schema"
)

func TestCanonicalJSON(t *testing.T) {
	for _, tc := range []struct {
		name string
		v    any
		want string
	}{
		{"keys by code point", map[string]any{"é": 1, "b": 2, "a": 3, "Z": 4, "🦀": 5, "\uffff": 6}, `{"Z":4,"a":3,"b":2,"é":1,"` + "\uffff" + `":6,"🦀":5}`},
		{"float stays float", 1.0, `1.0`},
		{"int stays int", int64(1), `1`},
		{"negative zero", math.Copysign(0, -1), `-0.0`},
		{"largest plain float", 9999999999999998.0, `9999999999999998.0`},
		{"large float", 1e16, `1e+16`},
		{"small float", 0.00001, `1e-05`},
		{"smallest plain float", 0.0001, `0.0001`},
		{"beyond 2^53", int64(9007199254740993), `9007199254740993`},
		{"uint64", uint64(math.MaxUint64), `18446744073709551615`},
		{"no HTML escapes", "<a&b>\u2028", "\"<a&b>\u2028\""},
		{"escapes", "\"\\\b\f\n\r\t\x00\x1f\x7f", `"\"\\\b\f\n\r\t\u0000\u001f` + "\x7f" + `"`},
		{"invalid UTF-8", "a\xffb", "\"a\uFFFDb\""},
		{"nested", map[string]any{"a": []any{nil, true, map[string]any{}}}, `{"a":[null,true,{}]}`},
		{"Go types", map[string]int{"b": 1, "a": 2}, `{"a":2,"b":1}`},
		{"json.Number keeps its kind", []any{json.Number("4.0"), json.Number("4")}, `[4.0,4]`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := schema.CanonicalJSON(tc.v)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestCanonicalJSONRefuses(t *testing.T) {
	loop := map[string]any{}
	loop["a"] = loop
	for name, v := range map[string]any{"NaN": math.NaN(), "channel": make(chan int), "loop": loop, "inner infinity": []any{math.Inf(1)}} {
		if raw, err := schema.CanonicalJSON(v); err == nil {
			t.Errorf("%s: got %s", name, raw)
		}
		if h := schema.ContentHash(v); h != "" {
			t.Errorf("%s: ContentHash = %q, want none", name, h)
		}
	}
}

func TestContentHash(t *testing.T) {
	// printf '{"a":1}' | sha256sum
	const want = "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
	if got := schema.ContentHash(map[string]any{"a": int64(1)}); got != want {
		t.Errorf("ContentHash = %s, want %s", got, want)
	}
	if schema.ContentHash(map[string]any{"a": 1.0}) == want {
		t.Error("1 and 1.0 have one hash")
	}
}

// TestCanonicalRoundTrip: the bytes are JSON, mean the same value, and are stable.
func TestCanonicalRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := anyValue(3).Draw(t, "value")
		first, err := schema.CanonicalJSON(v)
		if err != nil {
			t.Fatal(err)
		}
		dec := json.NewDecoder(strings.NewReader(string(first)))
		dec.UseNumber()
		var raw any
		if err := dec.Decode(&raw); err != nil {
			t.Fatalf("not JSON: %v in %s", err, first)
		}
		back, err := schema.Normalize(raw)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(v, back); diff != "" {
			t.Fatalf("value changed (-want +got):\n%s", diff)
		}
		second, err := schema.CanonicalJSON(back)
		if err != nil || string(first) != string(second) {
			t.Fatalf("not stable: %s then %s (%v)", first, second, err)
		}
	})
}

func anyValue(depth int) *rapid.Generator[any] {
	scalars := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Int64().AsAny(), rapid.Uint64Min(1 << 63).AsAny(),
		rapid.Float64().Filter(func(f float64) bool { return f != 0 }).AsAny(), rapid.String().AsAny(),
	}
	if depth == 0 {
		return rapid.OneOf(scalars...)
	}
	return rapid.OneOf(append(scalars,
		rapid.SliceOfN(anyValue(depth-1), 0, 4).AsAny(),
		rapid.MapOfN(rapid.String(), anyValue(depth-1), 0, 4).AsAny())...)
}
