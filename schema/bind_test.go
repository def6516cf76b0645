package schema_test

import (
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/schema"
)

type color int

func (c color) MarshalText() ([]byte, error) { return []byte([]string{"red", "blue"}[c]), nil }

func (c *color) UnmarshalText(b []byte) error {
	switch string(b) {
	case "red":
		*c = 0
	case "blue":
		*c = 1
	default:
		return errors.New("no color")
	}
	return nil
}

// celsius has its methods on the pointer, as many types do.
type celsius struct{ degrees float64 }

func (c *celsius) MarshalJSON() ([]byte, error) { return json.Marshal(c.degrees) }
func (c *celsius) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &c.degrees) }

type Inner struct {
	Deep string `json:"deep"`
	Both string `json:"both"`
}

type lower struct {
	Low string `json:"low"`
}

type Optional struct {
	Maybe string `json:"maybe"`
}

// all holds one of everything that has a JSON form.
type all struct {
	Inner
	lower
	*Optional
	Both string `json:"both"` // hides Inner's

	Bool   bool           `json:"bool"`
	Int    int            `json:"int"`
	Int8   int8           `json:"int8"`
	Uint   uint           `json:"uint"`
	Uint64 uint64         `json:"uint64"`
	F32    float32        `json:"f32"`
	F64    float64        `json:"f64"`
	Text   string         `json:"text"`
	Named  level          `json:"named"`
	Bytes  []byte         `json:"bytes"`
	Array  [2]int16       `json:"array"`
	Raw3   [3]byte        `json:"raw3"`
	Slice  []Inner        `json:"slice"`
	Ptr    *int           `json:"ptr"`
	PtrPtr **Inner        `json:"ptrptr"`
	Map    map[string]int `json:"map"`
	ByInt  map[int8]bool  `json:"byint"`
	ByUint map[uint]bool  `json:"byuint"`
	ByText map[color]int  `json:"bytext"`
	Any    any            `json:"any"`
	AnyMap map[string]any `json:"anymap"`
	Time   time.Time      `json:"time"`
	TimeP  *time.Time     `json:"timep"`
	Since  time.Duration  `json:"since"`
	Addr   netip.Addr     `json:"addr"`
	Color  color          `json:"color"`
	Temp   celsius        `json:"temp"`
	Temps  []celsius      `json:"temps"`
	Number json.Number    `json:"number"`
	RawMsg json.RawMessage
	Quoted int     `json:"quoted,string"`
	QFloat float64 `json:"qfloat,string"`
	QText  string  `json:"qtext,string"`
	QPtr   *bool   `json:"qptr,string"`
	QList  []int   `json:"qlist,string"` //nolint:staticcheck // lists do not obey it, which is the point
	Empty  string  `json:"empty,omitempty"`
	Kids   []*all  `json:"kids,omitempty"`
	Skip   string  `json:"-"`
	Dash   string  `json:"-,"` //nolint:staticcheck // named "-", as encoding/json has it
}

func everything() all {
	n, yes, when := 7, true, time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	in := &Inner{"d", "b"}
	return all{
		Inner: Inner{Deep: "deep"}, lower: lower{"low"}, Optional: &Optional{"m"}, Both: "outer",
		Bool: true, Int: -1 << 62, Int8: -128, Uint: 1 << 63, Uint64: math.MaxUint64, F32: 0.1, F64: 2, Text: "t", Named: "low",
		Bytes: []byte{0, 255}, Array: [2]int16{1, -2}, Raw3: [3]byte{1, 2, 255}, Slice: []Inner{{"x", "y"}}, Ptr: &n, PtrPtr: &in,
		Map: map[string]int{"a/b": 1}, ByInt: map[int8]bool{-3: true}, ByUint: map[uint]bool{3: true}, ByText: map[color]int{1: 5},
		Any: []any{int64(1), nil}, AnyMap: map[string]any{"k": 1.0}, Time: when, TimeP: &when, Since: time.Hour,
		Addr: netip.MustParseAddr("10.0.0.1"), Color: 1, Temp: celsius{36.6}, Temps: []celsius{{1}, {2}}, Number: "12.0", RawMsg: json.RawMessage(`{"a":1.0}`),
		Quoted: 5, QFloat: 1, QText: `a "b"`, QPtr: &yes, QList: []int{1}, Empty: "e", Kids: []*all{{Text: "kid", Addr: netip.MustParseAddr("::1"), Number: "0", RawMsg: json.RawMessage(`null`), Named: "high"}, nil},
		Dash: "dash",
	}
}

// The schema, the encoder and the decoder must speak of the same members.
func TestBindingAgreesWithSchema(t *testing.T) {
	doc, err := schema.For[all]()
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := schema.Compile(doc)
	if err != nil {
		t.Fatal(err)
	}
	b := schema.Bind(reflect.TypeFor[all]())
	in := everything()
	v, err := b.Encode(reflect.ValueOf(&in).Elem(), 64)
	if err != nil {
		t.Fatal(err)
	}
	if err := compiled.Validate(v); err != nil {
		t.Errorf("what the encoder makes does not fit the schema: %v", err)
	}
	members, props := v.(map[string]any), doc["properties"].(map[string]any)
	for name := range props {
		if _, ok := members[name]; !ok {
			t.Errorf("the encoder does not know %s", name)
		}
	}
	for name := range members {
		if _, ok := props[name]; !ok {
			t.Errorf("the schema does not know %s", name)
		}
	}
	var out all
	if err := b.Decode(v, reflect.ValueOf(&out).Elem()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(in, out, cmp.AllowUnexported(all{}, celsius{}), cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Normalize, which studies types as it meets them, gives the same.
	again, err := schema.Normalize(in)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(v, again); diff != "" {
		t.Errorf("Normalize differs (-Encode +Normalize):\n%s", diff)
	}
	// So does encoding/json, but for empty lists and maps and for 2.0.
	raw, err := json.Marshal(&in)
	if err != nil {
		t.Fatal(err)
	}
	var std all
	if err := json.Unmarshal(raw, &std); err != nil {
		t.Fatal(err)
	}
	std.Any, std.AnyMap, std.RawMsg = out.Any, out.AnyMap, out.RawMsg
	if diff := cmp.Diff(out, std, cmp.AllowUnexported(all{}, celsius{}), cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}),
		cmp.FilterPath(func(p cmp.Path) bool { return p.Last().Type() == reflect.TypeFor[json.RawMessage]() }, cmp.Ignore())); diff != "" {
		t.Errorf("encoding/json reads something else (-Decode +json):\n%s", diff)
	}
}

func TestBindingZeroValueFitsItsSchema(t *testing.T) {
	type zero struct {
		L []int          `json:"l"`
		M map[string]any `json:"m"`
		P *int           `json:"p"`
		T time.Time      `json:"t"`
		*Optional
	}
	doc, err := schema.For[zero]()
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := schema.Compile(doc)
	if err != nil {
		t.Fatal(err)
	}
	v, err := schema.Bind(reflect.TypeFor[zero]()).Encode(reflect.ValueOf(zero{}), 64)
	if err != nil {
		t.Fatal(err)
	}
	if err := compiled.Validate(v); err != nil {
		t.Error(err)
	}
	if _, there := v.(map[string]any)["maybe"]; there {
		t.Error("a member of a nil embedded pointer was written")
	}
}

func TestDecodeMisfits(t *testing.T) {
	type m = map[string]any
	for _, tt := range []struct {
		name string
		v    any
		path string
	}{
		{"bool", m{"bool": "true"}, "/bool"},
		{"int from text", m{"int": "1"}, "/int"},
		{"int from a fraction", m{"int": 1.5}, "/int"},
		{"int beyond 64 bits", m{"int": uint64(1 << 63)}, "/int"},
		{"int beyond floats", m{"int": 1e19}, "/int"},
		{"int8", m{"int8": int64(128)}, "/int8"},
		{"negative uint", m{"uint": int64(-1)}, "/uint"},
		{"uint beyond 64 bits", m{"uint": 1e20}, "/uint"},
		{"float32", m{"f32": 1e300}, "/f32"},
		{"text", m{"text": int64(1)}, "/text"},
		{"bytes", m{"bytes": "?"}, "/bytes"},
		{"short array", m{"array": []any{int64(1)}}, "/array"},
		{"no list", m{"slice": m{}}, "/slice"},
		{"no object", m{"slice": []any{m{}, "x"}}, "/slice/1"},
		{"below pointers", m{"ptrptr": m{"deep": int64(1)}}, "/ptrptr/deep"},
		{"int key", m{"byint": m{"128": true}}, "/byint/128"},
		{"uint key", m{"byuint": m{"-1": true}}, "/byuint/-1"},
		{"text key", m{"bytext": m{"green": int64(1)}}, "/bytext/green"},
		{"map value", m{"map": m{"a/~": "x"}}, "/map/a~1~0"},
		{"time", m{"time": "yesterday"}, "/time"},
		{"time from a number", m{"time": int64(1)}, "/time"},
		{"color", m{"color": "green"}, "/color"},
		{"own JSON", m{"temp": "warm"}, "/temp"},
		{"number", m{"number": "12"}, "/number"},
		{"quoted without quotes", m{"quoted": int64(5)}, "/quoted"},
		{"quoted rubbish", m{"quoted": "x"}, "/quoted"},
		{"quoted, other type", m{"qtext": "5"}, "/qtext"},
		{"embedded", m{"maybe": false}, "/maybe"},
		{"root", []any{}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out all
			err := schema.Bind(reflect.TypeFor[all]()).Decode(tt.v, reflect.ValueOf(&out).Elem())
			misfit, ok := errors.AsType[*schema.MisfitError](err)
			if !ok || misfit.Path != tt.path {
				t.Fatalf("error %v, want one at %q", err, tt.path)
			}
			if !strings.Contains(err.Error(), tt.path) || !strings.Contains(err.Error(), misfit.Type.String()) {
				t.Errorf("message %q", err)
			}
		})
	}
	type odd struct {
		C chan int
		F interface{ Foo() }
	}
	for _, v := range []any{m{"C": int64(1)}, m{"F": int64(1)}} {
		var out odd
		if err := schema.Bind(reflect.TypeFor[odd]()).Decode(v, reflect.ValueOf(&out).Elem()); err == nil {
			t.Errorf("%v fits %T", v, out)
		}
	}
}

func TestDecodeNull(t *testing.T) {
	b := schema.Bind(reflect.TypeFor[all]())
	out := everything()
	nulls := map[string]any{}
	for name := range mustEncode(t, b, &out) {
		nulls[name] = nil
	}
	if err := b.Decode(nulls, reflect.ValueOf(&out).Elem()); err != nil {
		t.Fatal(err)
	}
	out.Temp, out.RawMsg = celsius{}, nil // what their own methods make of null is theirs
	if diff := cmp.Diff(all{Optional: &Optional{}}, out, cmp.AllowUnexported(all{}, celsius{}), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func mustEncode(t *testing.T, b *schema.Binding, v *all) map[string]any {
	t.Helper()
	m, err := b.Encode(reflect.ValueOf(v).Elem(), 64)
	if err != nil {
		t.Fatal(err)
	}
	return m.(map[string]any)
}

func TestBindingBounds(t *testing.T) {
	type tree struct {
		Kids []tree `json:"kids,omitempty"`
	}
	deep := tree{}
	for range 40 {
		deep = tree{[]tree{deep}}
	}
	b := schema.Bind(reflect.TypeFor[tree]())
	if _, err := b.Encode(reflect.ValueOf(deep), 64); err == nil || !strings.Contains(err.Error(), "64 levels") {
		t.Errorf("error %v", err)
	}
	if _, err := b.Encode(reflect.ValueOf(deep), 81); err != nil {
		t.Errorf("81 levels are 40 lists in 41 structs: %v", err)
	}
	type loop *loop
	var p loop
	p = &p
	if _, err := schema.Normalize(p); err == nil {
		t.Error("a pointer to itself has no JSON form")
	}
	if _, err := schema.Normalize(new([1 << 40]struct{})); err == nil {
		t.Error("a huge list of nothing must be refused before it is made")
	}
	ring := map[string]any{}
	ring["kids"] = []any{ring}
	var out tree
	if err := b.Decode(ring, reflect.ValueOf(&out).Elem()); err == nil {
		t.Error("a value that contains itself must be refused")
	}
	// Values of other types than the bound one are served too.
	if v, err := b.Encode(reflect.ValueOf(3), 64); err != nil || v != int64(3) {
		t.Errorf("%v, %v", v, err)
	}
	var n int
	if err := b.Decode(int64(3), reflect.ValueOf(&n).Elem()); err != nil || n != 3 {
		t.Errorf("%d, %v", n, err)
	}
	if v, err := b.Encode(reflect.Value{}, 64); v != nil || err != nil {
		t.Errorf("%v, %v", v, err)
	}
	if v, err := schema.NormalizeWithin([]any{[]any{}}, 2); err != nil || len(v.([]any)) != 1 {
		t.Errorf("two levels: %v, %v", v, err)
	}
	if _, err := schema.NormalizeWithin([]any{[]any{[]any{}}}, 2); err == nil {
		t.Error("three levels passed")
	}
}

func TestMarshalErrorsAreMute(t *testing.T) {
	cause := errors.New("hunter2")
	_, err := schema.Normalize(map[string]any{"v": failing{cause}})
	if err == nil || strings.Contains(err.Error(), "hunter2") || !errors.Is(err, cause) {
		t.Errorf("error %v", err)
	}
}

type failing struct{ err error }

func (f failing) MarshalText() ([]byte, error) { return nil, f.err }

func TestOmitZeroAsksTheType(t *testing.T) {
	type item struct {
		When time.Time  `json:"when,omitzero"`
		Big  *big.Int   `json:"big,omitzero"`
		N    int        `json:"n,omitzero"`
		Addr netip.Addr `json:"addr,omitzero"`
	}
	local := time.Time{}.In(time.FixedZone("x", 3600)) // zero to IsZero, not to reflect
	got, err := schema.Normalize(item{When: local})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBindingRoundTrip(t *testing.T) {
	type leaf struct {
		N int64             `json:"n"`
		U uint32            `json:"u"`
		F float64           `json:"f"`
		S string            `json:"s"`
		L []string          `json:"l"`
		M map[string]*int64 `json:"m"`
		Q *uint8            `json:"q,string"`
	}
	b := schema.Bind(reflect.TypeFor[[]leaf]())
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) leaf {
			return leaf{
				rapid.Int64().Draw(t, "n"), rapid.Uint32().Draw(t, "u"), rapid.Float64Range(-1e300, 1e300).Draw(t, "f"), rapid.String().Draw(t, "s"),
				rapid.SliceOf(rapid.String()).Draw(t, "l"),
				rapid.MapOf(rapid.String(), rapid.Ptr(rapid.Int64(), true)).Draw(t, "m"),
				rapid.Ptr(rapid.Uint8(), true).Draw(t, "q"),
			}
		}), 0, 3).Draw(t, "in")
		v, err := b.Encode(reflect.ValueOf(in), 64)
		if err != nil {
			t.Fatal(err)
		}
		var out []leaf
		if err := b.Decode(v, reflect.ValueOf(&out).Elem()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(in, out, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

func TestBindingKeys(t *testing.T) {
	type keys struct {
		ByPtr map[*color]int `json:"byptr"`
		ByNum map[level]int  `json:"bynum"`
	}
	blue := color(1)
	b := schema.Bind(reflect.TypeFor[keys]())
	v, err := b.Encode(reflect.ValueOf(keys{ByPtr: map[*color]int{&blue: 1, nil: 2}, ByNum: map[level]int{"low": 3}}), 64)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"byptr": map[string]any{"blue": int64(1), "": int64(2)}, "bynum": map[string]any{"low": int64(3)}}
	if diff := cmp.Diff(want, v); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var out keys
	if err := b.Decode(map[string]any{"byptr": map[string]any{"blue": int64(1)}, "bynum": map[string]any{"low": int64(3)}}, reflect.ValueOf(&out).Elem()); err != nil {
		t.Fatal(err)
	}
	for k, n := range out.ByPtr {
		if *k != blue || n != 1 {
			t.Errorf("key %v", *k)
		}
	}
	if len(out.ByPtr) != 1 || out.ByNum["low"] != 3 {
		t.Errorf("%v", out)
	}
	// A key that can write itself but not read.
	var oneWay map[failing]int
	if err := schema.Bind(reflect.TypeOf(oneWay)).Decode(map[string]any{"k": int64(1)}, reflect.ValueOf(&oneWay).Elem()); err == nil {
		t.Error("a key without UnmarshalText was read")
	}
	if _, err := schema.Normalize(map[failing]int{{errors.New("hunter2")}: 1}); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error %v", err)
	}
}
