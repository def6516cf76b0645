package schema_test

import (
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/schema"
)

type leaky struct{}

func (leaky) MarshalJSON() ([]byte, error) { return nil, errors.New("cannot marshal") }

func TestNormalize(t *testing.T) {
	type inner struct {
		N int     `json:"n"`
		F float64 `json:"f"`
	}
	type outer struct {
		base
		*Audit
		Tags  []string       `json:"tags"`
		M     map[string]int `json:"m"`
		P     *inner         `json:"p"`
		Q     *inner         `json:"q,omitempty"`
		Z     time.Time      `json:"z,omitzero"`
		S     int            `json:"s,string"`
		Bytes []byte         `json:"bytes"`
		U     UUID           `json:"u"`
	}
	for _, tc := range []struct {
		name string
		v    any
		want any
	}{
		{"nil", nil, nil},
		{"int", 3, int64(3)},
		{"small uint64", uint64(3), int64(3)},
		{"large uint64", uint64(math.MaxUint64), uint64(math.MaxUint64)},
		{"float stays float", 1.0, 1.0},
		{"float32 as it reads", float32(0.1), 0.1},
		{"number int", json.Number("12"), int64(12)},
		{"number float", json.Number("12.0"), 12.0},
		{"number exponent", json.Number("1e2"), 100.0},
		{"number beyond 64 bits", json.Number("18446744073709551616"), 18446744073709551616.0},
		{"named string", level("low"), "low"},
		{"nil slice", []string(nil), []any{}},
		{"nil map", map[string]any(nil), map[string]any{}},
		{"nil pointer", (*inner)(nil), nil},
		{"int keys", map[int]bool{2: true}, map[string]any{"2": true}},
		{"time", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), "2026-01-02T03:04:05Z"},
		{"pointer methods on a value", *big.NewInt(7), int64(7)},
		{"struct", outer{P: &inner{1, 2}}, map[string]any{
			"tags": []any{}, "m": map[string]any{}, "p": map[string]any{"n": int64(1), "f": 2.0}, "s": "0", "bytes": "", "u": "uuid",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := schema.Normalize(tc.v)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNormalizeRefuses(t *testing.T) {
	loop := []any{nil}
	loop[0] = loop
	type cycle struct{ Next *cycle }
	ring := &cycle{}
	ring.Next = ring
	for name, v := range map[string]any{
		"NaN": math.NaN(), "infinity": float32(math.Inf(1)), "channel": make(chan int), "func": func() {}, "complex": 1i,
		"loop": loop, "ring": ring, "huge number": json.Number("1e400"), "marshal error": leaky{}, "map key": map[float64]int{1: 1},
	} {
		if got, err := schema.Normalize(v); err == nil {
			t.Errorf("%s: got %v, want an error", name, got)
		}
	}
	// A graph that doubles at every level ends by size, long before 2^100 steps.
	twin := any("x")
	for range 100 {
		twin = []any{twin, twin}
	}
	if _, err := schema.Normalize(twin); err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("error = %v", err)
	}
}

func TestNormalizeCopies(t *testing.T) {
	in := map[string]any{"a": []any{map[string]any{"b": int64(1)}}}
	got, err := schema.NormalizeMap(in)
	if err != nil {
		t.Fatal(err)
	}
	got["a"].([]any)[0].(map[string]any)["b"] = "changed"
	if in["a"].([]any)[0].(map[string]any)["b"] != int64(1) {
		t.Error("the copy shares a map with its source")
	}
	if _, err := schema.NormalizeMap([]int{1}); err == nil {
		t.Error("NormalizeMap must refuse an array")
	}
}
