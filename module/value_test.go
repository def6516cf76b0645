package module_test

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/module"
)

type secretive struct{}

func (secretive) MarshalJSON() ([]byte, error) { return nil, leak{} }

type leak struct{}

func (leak) Error() string { return "cannot write hunter2" }

// nest puts v into n lists.
func nest(v any, n int) any {
	for range n {
		v = []any{v}
	}
	return v
}

func TestNormalize(t *testing.T) {
	type point struct {
		X int       `json:"x"`
		T time.Time `json:"t,omitzero"`
	}
	for _, tt := range []struct {
		name    string
		v, want any
	}{
		{"nil", nil, nil},
		{"int", 1, int64(1)},
		{"int8", int8(-1), int64(-1)},
		{"small uint64", uint64(7), int64(7)},
		{"large uint64", uint64(math.MaxUint64), uint64(math.MaxUint64)},
		{"integral float stays", 4.0, 4.0},
		{"float32 as it reads", float32(0.1), 0.1},
		{"number", json.Number("12"), int64(12)},
		{"large number", json.Number("18446744073709551615"), uint64(math.MaxUint64)},
		{"number with a fraction", json.Number("1.50"), 1.5},
		{"strings", []string{"a"}, []any{"a"}},
		{"bytes", []byte{1, 2}, "AQI="},
		{"nil list", []any(nil), []any{}},
		{"nil map", obj(nil), obj{}},
		{"nil slice", []int(nil), []any{}},
		{"nil pointer", (*point)(nil), nil},
		{"struct", point{X: 1}, obj{"x": int64(1)}},
		{"deep inside", obj{"a": []any{obj{"b": point{X: 2}}, int64(1)}}, obj{"a": []any{obj{"b": obj{"x": int64(2)}}, int64(1)}}},
		{"int keys", map[int]bool{1: true}, obj{"1": true}},
		{"64 levels", nest("x", 64), nest("x", 64)},
		{"64 levels of a Go type", nest([]string{"x"}, 63), nest("x", 64)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := module.Normalize(tt.v)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tt.want) { // cmp takes 2^64 steps for 64 lists
				t.Errorf("got %#v, want %#v", got, tt.want)
			}
			again, err := module.Normalize(got)
			if err != nil || !reflect.DeepEqual(again, got) {
				t.Errorf("a second time: %v, %v", again, err)
			}
		})
	}
}

func TestNormalizeRefuses(t *testing.T) {
	ring := obj{}
	ring["self"] = ring
	loop := []any{nil}
	loop[0] = loop
	type cycle struct{ Next *cycle }
	knot := &cycle{}
	knot.Next = knot
	twin := any(obj{})
	for range 60 { // 2^60 maps to walk, in 60 maps
		twin = obj{"a": twin, "b": twin}
	}
	for _, tt := range []struct {
		name string
		v    any
	}{
		{"NaN", math.NaN()},
		{"infinity", math.Inf(-1)},
		{"float32 infinity", float32(math.Inf(1))},
		{"channel", make(chan int)},
		{"func", obj{"f": func() {}}},
		{"complex", []any{1i}},
		{"odd keys", map[float64]int{1: 1}},
		{"number out of range", json.Number("1e999")},
		{"map in itself", ring},
		{"list in itself", loop},
		{"struct in itself", knot},
		{"65 levels", nest("x", 65)},
		{"65 levels, the last one empty", nest([]any{}, 64)},
		{"65 levels of a Go type", nest([]string{}, 64)},
		{"twins", twin},
		{"failing marshaler", obj{"s": secretive{}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := module.Normalize(tt.v)
			if got != nil {
				t.Errorf("got %v beside the error", reflect.TypeOf(got))
			}
			hasCode(t, err, module.CodeInvalidInput)
			if e := module.AsError(err); strings.Contains(e.Error()+e.CauseText(), "hunter2") {
				t.Errorf("the error quotes the value: %v", e)
			}
		})
	}
}

func TestNormalizeDoesNotCopyWhatIsNormal(t *testing.T) {
	inner := obj{"n": int64(1), "l": []any{1.5, nil, "x", true}}
	normal := obj{"inner": inner, "u": uint64(math.MaxUint64)}
	got, err := module.NormalizeMap(normal)
	if err != nil {
		t.Fatal(err)
	}
	if reflect.ValueOf(got).Pointer() != reflect.ValueOf(normal).Pointer() {
		t.Error("a normal map was copied")
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = module.NormalizeMap(normal) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	mixed := obj{"inner": inner, "n": 1}
	got, err = module.NormalizeMap(mixed)
	if err != nil {
		t.Fatal(err)
	}
	if mixed["n"] != 1 {
		t.Error("the original was written")
	}
	if reflect.ValueOf(got["inner"]).Pointer() != reflect.ValueOf(inner).Pointer() {
		t.Error("a normal part was copied")
	}
	list := []any{inner, 2}
	if _, err := module.Normalize(list); err != nil || list[1] != 2 {
		t.Error("the original list was written")
	}
	if empty, err := module.NormalizeMap(nil); err != nil || empty == nil || len(empty) != 0 {
		t.Errorf("nil map: %v, %v", empty, err)
	}
}

func TestToMap(t *testing.T) {
	type in struct {
		A []int `json:"a"`
	}
	for _, tt := range []struct {
		name  string
		v     any
		want  obj
		valid bool
	}{
		{"nil", nil, obj{}, true},
		{"nil map", obj(nil), obj{}, true},
		{"nil pointer", (*in)(nil), obj{}, true},
		{"struct", in{}, obj{"a": []any{}}, true},
		{"pointer to pointer", func() any { p := &in{A: []int{1}}; return &p }(), obj{"a": []any{int64(1)}}, true},
		{"typed map", map[string]int{"a": 1}, obj{"a": int64(1)}, true},
		{"list", []int{1}, nil, false},
		{"string", "x", nil, false},
		{"time", time.Time{}, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := module.ToMap(tt.v)
			if (err == nil) != tt.valid {
				t.Fatalf("error %v", err)
			}
			equal(t, "map", got, tt.want)
			if !tt.valid {
				hasCode(t, err, module.CodeInvalidInput)
			}
		})
	}
}

func TestFromMap(t *testing.T) {
	type in struct {
		A int               `json:"a"`
		M map[string][]int8 `json:"m/x"`
		S []struct {
			Card string `json:"card"`
		} `json:"s"`
	}
	kept := in{A: 7}
	if err := module.FromMap(obj{"s": []any{obj{"card": "c"}}, "unknown": 1}, &kept); err != nil || kept.A != 7 || kept.S[0].Card != "c" {
		t.Errorf("%+v, %v", kept, err)
	}
	if err := module.FromMap(nil, &kept); err != nil || kept.A != 7 {
		t.Errorf("nil map: %+v, %v", kept, err)
	}
	for _, tt := range []struct {
		name string
		m    obj
		path string
	}{
		{"scalar", obj{"a": "hunter2"}, "/a"},
		{"fraction", obj{"a": 1.5}, "/a"},
		{"escaped name", obj{"m/x": "hunter2"}, "/m~1x"},
		{"in a map", obj{"m/x": obj{"k~": []any{int64(1), int64(128)}}}, "/m~1x/k~0/1"},
		{"in a list", obj{"s": []any{obj{}, obj{"card": obj{"hunter2": 1}}}}, "/s/1/card"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := module.FromMap(tt.m, &in{})
			hasCode(t, err, module.CodeInvalidInput)
			if msg := err.Error(); !strings.Contains(msg, tt.path+" ") || strings.Contains(msg, "hunter2") {
				t.Errorf("message %q", msg)
			}
			equal(t, "details", module.AsError(err).Details, obj{"path": tt.path})
		})
	}
	for name, out := range map[string]any{"nil": nil, "no pointer": in{}, "nil pointer": (*in)(nil)} {
		if err := module.FromMap(obj{}, out); module.CodeOf(err) != module.CodeInternal {
			t.Errorf("%s: %v", name, err)
		}
	}
	var list []int
	hasCode(t, module.FromMap(obj{}, &list), module.CodeInvalidInput)
	var anything any
	if err := module.FromMap(obj{"a": "b"}, &anything); err != nil || !cmp.Equal(anything, any(obj{"a": "b"})) {
		t.Errorf("any: %v, %v", anything, err)
	}
}
