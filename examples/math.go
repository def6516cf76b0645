package examples

import (
	"context"
	"math"
	"math/bits"

	"github.com/apbus/apbus/module"
)

// addIn keeps the numbers as they came, so that 64-bit integers stay exact.
type addIn struct {
	A any `json:"a"`
	B any `json:"b"`
}

type addOut struct {
	Sum any `json:"sum"`
}

func mathAdd() module.Module {
	number := func(text string) map[string]any {
		return map[string]any{"type": "number", "description": text}
	}
	return module.New("math.add", "Add two numbers",
		func(_ context.Context, in addIn) (addOut, error) {
			sum, err := add(in.A, in.B)
			return addOut{Sum: sum}, err
		},
		module.WithName("Add"),
		module.WithDocumentation("Two integers add without loss as long as the sum fits 64 bits; everything else adds as 64-bit floating point."),
		module.WithTags("math"),
		module.WithInputSchema(map[string]any{
			"type":       "object",
			"properties": map[string]any{"a": number("The first number"), "b": number("The second number")},
			"required":   []any{"a", "b"},
		}),
		module.WithOutputSchema(map[string]any{
			"type":       "object",
			"properties": map[string]any{"sum": number("a + b")},
			"required":   []any{"sum"},
		}),
		module.WithAnnotations(module.Annotations{Readonly: true, Idempotent: true, ClosedWorld: true}),
		module.WithInline(),
		module.WithExamples(module.Example{
			Title:  "One and two",
			Inputs: map[string]any{"a": int64(1), "b": int64(2)},
			Output: map[string]any{"sum": int64(3)},
		}),
	)
}

// add keeps integers integers where the sum fits int64 or uint64.
func add(a, b any) (any, error) {
	if sum, ok := addIntegers(a, b); ok {
		return sum, nil
	}
	x, okX := asFloat(a)
	y, okY := asFloat(b)
	if !okX || !okY {
		return nil, module.Errorf(module.CodeInvalidInput, "a and b must be numbers")
	}
	sum := x + y
	if math.IsInf(sum, 0) {
		return nil, module.Errorf(module.CodeInvalidInput, "the sum is beyond the range of 64-bit floating point")
	}
	return sum, nil
}

// addIntegers adds in 128-bit two's complement; ok is false when one is no
// integer or the sum fits neither int64 nor uint64.
func addIntegers(a, b any) (sum any, ok bool) {
	aHigh, aLow, okA := widen(a)
	bHigh, bLow, okB := widen(b)
	if !okA || !okB {
		return nil, false
	}
	low, carry := bits.Add64(aLow, bLow, 0)
	high, _ := bits.Add64(aHigh, bHigh, carry)
	switch {
	case high == 0 && low <= math.MaxInt64:
		return int64(low), true //nolint:gosec // checked on this line
	case high == 0:
		return low, true
	case high == math.MaxUint64 && low >= 1<<63:
		return int64(low), true //nolint:gosec // two's complement of a negative sum
	}
	return nil, false
}

func widen(v any) (high, low uint64, ok bool) {
	switch n := v.(type) {
	case int64:
		return uint64(n >> 63), uint64(n), true //nolint:gosec // two's complement is what is wanted
	case uint64:
		return 0, n, true
	}
	return 0, 0, false
}

func asFloat(v any) (float64, bool) {
	switch n := v.(type) {
	case float64:
		return n, true
	case int64:
		return float64(n), true
	case uint64:
		return float64(n), true
	}
	return 0, false
}
