package examples_test

import (
	"math"
	"math/big"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/examples"
	"github.com/apbus/apbus/module"
)

func TestAdd(t *testing.T) {
	x := newDirect(t, examples.Options{Groups: []string{"math"}})
	for _, tt := range []struct {
		name       string
		a, b, want any
	}{
		{"small", 1, 2, int64(3)},
		{"beyond float precision", int64(1<<53 + 1), int64(2), int64(1<<53 + 3)},
		{"most negative", int64(math.MinInt64), int64(0), int64(math.MinInt64)},
		{"into the unsigned range", int64(math.MaxInt64), int64(1), uint64(1 << 63)},
		{"back from the unsigned range", uint64(math.MaxUint64), int64(math.MinInt64), int64(math.MaxInt64)},
		{"above 64 bits", uint64(math.MaxUint64), int64(1), float64(1 << 64)},
		{"below 64 bits", int64(math.MinInt64), int64(-1), -float64(1 << 63)},
		{"fractions", 0.5, 0.25, 0.75},
		{"an integer and a float", 1, 2.0, 3.0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := mustCall(t, x, "math.add", obj("a", tt.a, "b", tt.b))
			if d := cmp.Diff(obj("sum", tt.want), got); d != "" {
				t.Error(d)
			}
		})
	}
	_, err := x.Call(t.Context(), "math.add", obj("a", math.MaxFloat64, "b", math.MaxFloat64))
	wantCode(t, err, module.CodeInvalidInput)
}

func TestAddIsExactForIntegers(t *testing.T) {
	x := newDirect(t, examples.Options{Groups: []string{"math"}})
	integer := rapid.OneOf(
		rapid.Map(rapid.Int64(), func(n int64) any { return n }),
		rapid.Map(rapid.Uint64Min(1<<63), func(n uint64) any { return n }),
	)
	wide := func(v any) *big.Int {
		if n, ok := v.(int64); ok {
			return big.NewInt(n)
		}
		return new(big.Int).SetUint64(v.(uint64))
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := integer.Draw(t, "a"), integer.Draw(t, "b")
		out, err := x.Call(t.Context(), "math.add", obj("a", a, "b", b))
		if err != nil {
			t.Fatal(err)
		}
		want := new(big.Int).Add(wide(a), wide(b))
		switch {
		case want.IsInt64():
			if out["sum"] != want.Int64() {
				t.Fatalf("sum = %v, want %v", out["sum"], want)
			}
		case want.IsUint64():
			if out["sum"] != want.Uint64() {
				t.Fatalf("sum = %v, want %v", out["sum"], want)
			}
		default:
			if _, isFloat := out["sum"].(float64); !isFloat {
				t.Fatalf("sum = %T, want a float for %v", out["sum"], want)
			}
		}
	})
}
