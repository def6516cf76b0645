package contextwire_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/google/go-cmp/cmp"
)

// wantRefused checks that err is a BUS_BAD_MESSAGE whose details name limit and
// that nothing in it quotes secret.
func wantRefused(t *testing.T, err error, limit, secret string) {
	t.Helper()
	e := module.AsError(err)
	if e == nil || e.Code != module.CodeBusBadMessage {
		t.Fatalf("error is %v, want %s", err, module.CodeBusBadMessage)
	}
	if got := e.Details["limit"]; got != limit {
		t.Errorf("limit is %v (%v), want %s", got, err, limit)
	}
	if secret != "" && strings.Contains(fmt.Sprint(e, e.Details, e.CauseText()), secret) {
		t.Errorf("error quotes data: %v %v", e, e.Details)
	}
}

func raw(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDecodeRefusesJSON(t *testing.T) {
	tests := []struct {
		name, body, limit string
	}{
		{"empty", ``, "truncated"},
		{"blank", " \n", "truncated"},
		{"duplicate key", `{"secret":1,"secret":2}`, "duplicate-key"},
		{"duplicate key by escape", `{"a":1,"\u0061":2}`, "duplicate-key"},
		{"duplicate key deep", `[{"x":{"b":1,"c":2,"b":3}}]`, "duplicate-key"},
		{"NaN", `NaN`, "syntax"},
		{"infinity", `[Infinity]`, "syntax"},
		{"float over range", `1e400`, "number"},
		{"negative float over range", `-1e400`, "number"},
		{"integer over uint64", `18446744073709551616`, "number"},
		{"integer under int64", `-9223372036854775809`, "number"},
		{"huge integer", strings.Repeat("9", 5000), "number"},
		{"leading zero", `01`, "syntax"},
		{"leading zeros", `-00`, "syntax"},
		{"plus", `+1`, "syntax"},
		{"bare minus", `-`, "truncated"},
		{"dot without fraction", `[1.]`, "syntax"},
		{"fraction without integer", `.5`, "syntax"},
		{"exponent without digits", `[1e]`, "syntax"},
		{"hexadecimal", `0x10`, "trailing"},
		{"underscore", `1_0`, "trailing"},
		{"trailing value", `{} {}`, "trailing"},
		{"trailing text", `1secret`, "trailing"},
		{"trailing nul", "{}\x00", "trailing"},
		{"trailing comma in list", `[1,]`, "syntax"},
		{"trailing comma in map", `{"a":1,}`, "syntax"},
		{"only comma", `[,]`, "syntax"},
		{"two commas", `[1,,2]`, "syntax"},
		{"no comma", `[1 2]`, "syntax"},
		{"no colon", `{"a" 1}`, "syntax"},
		{"comma for colon", `{"a",1}`, "syntax"},
		{"colon in list", `["a":1]`, "syntax"},
		{"number key", `{1:2}`, "syntax"},
		{"no value", `{"a":}`, "syntax"},
		{"single quotes", `{'a':1}`, "syntax"},
		{"comment", `{/**/}`, "syntax"},
		{"byte order mark", "\ufeff{}", "syntax"},
		{"wrong bracket", `[1}`, "syntax"},
		{"closing only", `]`, "syntax"},
		{"open list", `[1`, "truncated"},
		{"open map", `{"a":1`, "truncated"},
		{"open string", `"secret`, "truncated"},
		{"escape at the end", `"secret\`, "truncated"},
		{"escaped end quote", `"secret\"`, "truncated"},
		{"half literal", `tru`, "syntax"},
		{"literal with tail", `nullx`, "trailing"},
		{"capital literal", `True`, "syntax"},
		{"raw newline in string", "\"a\nb\"", "syntax"},
		{"raw control after escape", "\"\\n\x01\"", "syntax"},
		{"unknown escape", `"\x41"`, "syntax"},
		{"short unicode escape", `"\u12"`, "syntax"},
		{"bad unicode escape", `"\u12G4"`, "syntax"},
		{"high surrogate alone", `"\ud834"`, "utf-8"},
		{"low surrogate alone", `"\udd1e"`, "utf-8"},
		{"two high surrogates", `"\ud834\ud834"`, "utf-8"},
		{"surrogate then text", `"\ud834abcdef"`, "utf-8"},
		{"invalid UTF-8", "\"\xff\"", "utf-8"},
		{"invalid UTF-8 after escape", "\"\\n\xc3\"", "utf-8"},
		{"invalid UTF-8 key", "{\"\xc0\xaf\":1}", "utf-8"},
		{"encoded surrogate", "\"\xed\xa0\x80\"", "utf-8"},
		{"65 lists", strings.Repeat("[", 65) + strings.Repeat("]", 65), "depth"},
		{"65 maps", strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65), "depth"},
		{"10000 lists", strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000), "depth"},
		{"10000 open lists", strings.Repeat("[", 10_000), "depth"},
		{"10000 closed lists", strings.Repeat("]", 10_000), "syntax"},
		{"1,000,001 items", "[0" + strings.Repeat(",0", 1_000_000) + "]", "elements"},
		{"1,000,001 commas", "[" + strings.Repeat(",", 1_000_001) + "]", "elements"},
		{"1,000,001 elements in all", "[" + strings.TrimSuffix(strings.Repeat("[0],", 500_001), ",") + "]", "elements"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := contextwire.Decode(contextwire.JSON, []byte(tt.body), contextwire.Limits{})
			wantRefused(t, err, tt.limit, "secret")
		})
	}
}

func TestDecodeRefusesMsgpack(t *testing.T) {
	tests := []struct {
		name, body, limit string
	}{
		{"empty", "", "truncated"},
		{"never used byte", "c1", "syntax"},
		{"duplicate key", "82 a161 01 a161 02", "duplicate-key"},
		{"duplicate key in two forms", "82 a161 01 d90161 02", "duplicate-key"},
		{"NaN", "cb 7ff8000000000001", "number"},
		{"infinity", "cb 7ff0000000000000", "number"},
		{"negative infinity", "cb fff0000000000000", "number"},
		{"NaN in 32 bits", "ca 7fc00000", "number"},
		{"infinity in 32 bits", "ca ff800000", "number"},
		{"fixext 1", "d4 01 00", "ext"},
		{"fixext 16", "d8 01 00000000000000000000000000000000", "ext"},
		{"ext 8", "c7 01 05 00", "ext"},
		{"ext 32", "c9 00000001 05 00", "ext"},
		{"timestamp", "d6 ff 00000000", "ext"},
		{"integer key", "81 01 02", "key"},
		{"nil key", "81 c0 02", "key"},
		{"bin key", "81 c40161 02", "key"},
		{"map key", "81 80 02", "key"},
		{"ext key", "81 d40100 02", "key"},
		{"invalid UTF-8", "a1 ff", "utf-8"},
		{"invalid UTF-8 key", "81 a1 ff 01", "utf-8"},
		{"trailing bytes", "80 80", "trailing"},
		{"cut int", "cd 01", "truncated"},
		{"cut float", "cb 00", "truncated"},
		{"cut header", "dc 00", "truncated"},
		{"cut string", "a3 6162", "length"},
		{"cut list", "92 01", "length"},
		{"cut map", "81 a161", "truncated"},
		{"string of 4 GiB", "db ffffffff 61", "length"},
		{"bin of 4 GiB", "c6 ffffffff 61", "length"},
		{"list of 4 Gi", "dd ffffffff 01", "length"},
		{"map of 4 Gi", "df ffffffff a161 01", "length"},
		{"map that fits as a list only", "de 0002 a0 c0", "length"},
		{"65 lists", strings.Repeat("91", 64) + "90", "depth"},
		{"65 maps", strings.Repeat("81a161", 65) + "c0", "depth"},
		{"10000 lists", strings.Repeat("91", 10_000) + "90", "depth"},
		{"1,000,001 items", "dd 000f4241" + strings.Repeat("c0", 1_000_001), "elements"},
		{"1,000,001 elements in all", "dd 0007a121" + strings.Repeat("91c0", 500_001), "elements"},
		{"1,000,000 empty maps", "dd 000f4240" + strings.Repeat("80", 1_000_000), "memory"},
		{"300,000 maps of one", "dd 000493e0" + strings.Repeat("81a0c0", 300_000), "memory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := contextwire.Decode(contextwire.MsgPack, raw(t, tt.body), contextwire.Limits{})
			wantRefused(t, err, tt.limit, "")
		})
	}
}

func TestDecode(t *testing.T) {
	deepList := func(n int) any {
		var v any = []any{}
		for range n - 1 {
			v = []any{v}
		}
		return v
	}
	tests := []struct {
		name string
		ct   contextwire.ContentType
		body string // hex for msgpack
		want any
	}{
		{"white space", contextwire.JSON, " \t\r\n[ 1 , {\"a\" : null} ] \n", []any{int64(1), map[string]any{"a": nil}}},
		{"escapes", contextwire.JSON, `"\u0041\u00e9\ud834\udd1e\/\b\f\n\r\t\"\\\u0000\uFFFD"`, "Aé𝄞/\b\f\n\r\t\"\\\x00\uFFFD"},
		{"minus zero is an integer", contextwire.JSON, `-0`, int64(0)},
		{"integral float", contextwire.JSON, `[1.0,1e0,1E+2,-2.50]`, []any{1.0, 1.0, 100.0, -2.5}},
		{"underflow", contextwire.JSON, `1e-400`, 0.0},
		{"extremes", contextwire.JSON, `[9223372036854775807,-9223372036854775808,9223372036854775808,18446744073709551615]`,
			[]any{int64(math.MaxInt64), int64(math.MinInt64), uint64(math.MaxInt64) + 1, uint64(math.MaxUint64)}},
		{"eighteen and nineteen digits", contextwire.JSON, `[999999999999999999,-99999999999999999,1000000000000000000]`,
			[]any{int64(999999999999999999), int64(-99999999999999999), int64(1000000000000000000)}},
		{"64 deep", contextwire.JSON, strings.Repeat("[", 64) + strings.Repeat("]", 64), deepList(64)},
		{"empty containers", contextwire.JSON, `[{},[]]`, []any{map[string]any{}, []any{}}},
		{"float32 is widened", contextwire.MsgPack, "ca 3fc00000", 1.5},
		{"long forms of small numbers", contextwire.MsgPack, "94 cf0000000000000001 d3ffffffffffffffff d30000000000000005 ce000000ff", []any{int64(1), int64(-1), int64(5), int64(255)}},
		{"unsigned above int64", contextwire.MsgPack, "cf 8000000000000000", uint64(1) << 63},
		{"bin is base64", contextwire.MsgPack, "92 c403 000102 c500 01 ff", []any{"AAEC", "/w=="}},
		{"long forms of short containers", contextwire.MsgPack, "df00000001 db0000000161 dd00000001 da0000", map[string]any{"a": []any{""}}},
		{"64 deep", contextwire.MsgPack, strings.Repeat("91", 63) + "90", deepList(64)},
	}
	for _, tt := range tests {
		t.Run(tt.name+" "+string(tt.ct), func(t *testing.T) {
			body := []byte(tt.body)
			if tt.ct == contextwire.MsgPack {
				body = raw(t, tt.body)
			}
			got, err := contextwire.Decode(tt.ct, body, contextwire.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(tt.want, got) { // cmp takes forever on deep nesting
				t.Errorf("got %#v\nwant %#v", got, tt.want)
			}
		})
	}
}

func TestDecodeLimits(t *testing.T) {
	tests := []struct {
		name string
		body string
		lim  contextwire.Limits
		code module.Code
		want map[string]any
	}{
		{"body", `{"a":"secret"}`, contextwire.Limits{MaxBody: 13}, module.CodeBusPayloadTooLarge, map[string]any{"size": int64(14), "limit": int64(13)}},
		{"depth", `[[[]]]`, contextwire.Limits{MaxDepth: 2}, module.CodeBusBadMessage, map[string]any{"limit": "depth", "max": int64(2)}},
		{"elements", `[1,{"a":1,"b":2}]`, contextwire.Limits{MaxElements: 3}, module.CodeBusBadMessage, map[string]any{"limit": "elements", "max": int64(3)}},
		{"memory", `[{},{},{},{},{},{}]`, contextwire.Limits{MaxOverhead: 1}, module.CodeBusBadMessage, map[string]any{"limit": "memory", "max": int64(153)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v, err := contextwire.Decode(contextwire.JSON, []byte(tt.body), contextwire.Limits{})
			if err != nil {
				t.Fatalf("with default limits: %v", err)
			}
			packed, err := contextwire.Encode(contextwire.MsgPack, v)
			if err != nil {
				t.Fatal(err)
			}
			_, err = contextwire.Decode(contextwire.JSON, []byte(tt.body), tt.lim)
			if e := module.AsError(err); e == nil || e.Code != tt.code || !cmp.Equal(e.Details, tt.want) {
				t.Errorf("error is %v, details %v, want %s %v", err, module.AsError(err).Details, tt.code, tt.want)
			}
			if tt.lim.MaxBody != 0 {
				tt.lim.MaxBody = len(packed) - 1
			}
			_, err = contextwire.Decode(contextwire.MsgPack, packed, tt.lim)
			if module.CodeOf(err) != tt.code {
				t.Errorf("msgpack: error is %v, want %s", err, tt.code)
			}
		})
	}
	if _, err := contextwire.Decode("text/plain", []byte("{}"), contextwire.Limits{}); module.CodeOf(err) != module.CodeBusUnsupportedType {
		t.Errorf("unknown type: %v", err)
	}
	if _, err := contextwire.DecodeMap(contextwire.JSON, []byte("[]"), contextwire.Limits{}); module.CodeOf(err) != module.CodeBusBadMessage {
		t.Errorf("list where a map must be: %v", err)
	}
}

// TestTruncated cuts every vector at every byte.
func TestTruncated(t *testing.T) {
	for name, g := range goldens(t) {
		for ct, body := range g.bodies {
			for n := range body {
				if _, err := contextwire.Decode(ct, body[:n], contextwire.Limits{}); module.CodeOf(err) != module.CodeBusBadMessage {
					t.Fatalf("%s %s cut at %d of %d: %v", name, ct, n, len(body), err)
				}
			}
		}
	}
}

type point struct {
	X int     `json:"x"`
	Y float32 `json:"y,omitempty"`
}

func TestEncodeGoValues(t *testing.T) {
	var nilMap map[string]any
	var nilList []any
	tests := []struct {
		name string
		in   any
		want any
	}{
		{"int", 7, int64(7)},
		{"int8", int8(-7), int64(-7)},
		{"int32", int32(-7), int64(-7)},
		{"uint16", uint16(7), int64(7)},
		{"small uint64", uint64(7), int64(7)},
		{"float32", float32(1.5), 1.5},
		{"bytes", []byte{0, 1, 2}, "AAEC"},
		{"strings", []string{"a", "b"}, []any{"a", "b"}},
		{"string map", map[string]string{"a": "b"}, map[string]any{"a": "b"}},
		{"maps", []map[string]any{{"a": 1}}, []any{map[string]any{"a": int64(1)}}},
		{"nil map", nilMap, map[string]any{}},
		{"nil list", nilList, []any{}},
		{"nil strings", []string(nil), []any{}},
		{"json number", json.Number("12"), int64(12)},
		{"struct", point{X: 1}, map[string]any{"x": int64(1)}},
		{"pointer", &point{X: 1, Y: 0.5}, map[string]any{"x": int64(1), "y": 0.5}},
		{"time", at, at.Format(time.RFC3339Nano)},
	}
	for _, tt := range tests {
		for _, ct := range codecs {
			t.Run(tt.name+" "+string(ct), func(t *testing.T) {
				body, err := contextwire.Encode(ct, tt.in)
				if err != nil {
					t.Fatal(err)
				}
				got, err := contextwire.Decode(ct, body, contextwire.Limits{})
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	cycle := map[string]any{}
	cycle["self"] = cycle
	var deep any = "x"
	for range 65 {
		deep = []any{deep}
	}
	tests := []struct {
		name  string
		in    any
		limit string
	}{
		{"NaN", []any{math.NaN()}, "number"},
		{"infinity", math.Inf(-1), "number"},
		{"float32 NaN", float32(math.NaN()), "number"},
		{"invalid UTF-8", "secret\xff", "utf-8"},
		{"invalid UTF-8 key", map[string]any{"secret\xff": 1}, "utf-8"},
		{"channel", make(chan int), "type"},
		{"function", func() {}, "type"},
		{"complex", complex(1, 2), "type"},
		{"cycle", cycle, "depth"},
		{"65 deep", deep, "depth"},
		{"too many elements", make([]any, 1_000_001), "elements"},
	}
	for _, tt := range tests {
		for _, ct := range codecs {
			t.Run(tt.name+" "+string(ct), func(t *testing.T) {
				dst := []byte("kept")
				got, err := contextwire.Append(dst, ct, tt.in)
				wantRefused(t, err, tt.limit, "secret")
				if string(got) != "kept" {
					t.Errorf("dst became %q", got)
				}
			})
		}
	}
	if _, err := contextwire.Encode("", 1); module.CodeOf(err) != module.CodeBusUnsupportedType {
		t.Errorf("unknown type: %v", err)
	}
}

func TestEncodeJSONText(t *testing.T) {
	got, err := contextwire.Append([]byte("x"), contextwire.JSON, []any{"<a&b>", "\u2028", "\x7f\x1f", 1e6, 123456789.0, -0.000001, 1e-7})
	if err != nil {
		t.Fatal(err)
	}
	want := `x["<a&b>","` + "\u2028" + `","` + "\x7f" + `\u001f",1000000.0,123456789.0,-0.000001,1e-07]`
	if string(got) != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func TestEncodeCanonical(t *testing.T) {
	m := map[string]any{}
	for i := range 50 {
		m[fmt.Sprint("k", i)] = map[string]string{"b": "1", "a": "2"}
	}
	for _, ct := range codecs {
		first, err := contextwire.EncodeCanonical(ct, m)
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			again, err := contextwire.EncodeCanonical(ct, m)
			if err != nil || !bytes.Equal(first, again) {
				t.Fatalf("%s: canonical forms differ (%v)", ct, err)
			}
		}
	}
	got, _ := contextwire.EncodeCanonical(contextwire.JSON, map[string]any{"b": 1, "a": map[string]any{"d": 1, "c": 2}})
	if want := `{"a":{"c":2,"d":1},"b":1}`; string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestDecodedValuesAreOwned checks that decoded values do not alias the body.
func TestDecodedValuesAreOwned(t *testing.T) {
	for _, size := range []int{10, 10_000} {
		want := map[string]any{"key": strings.Repeat("v", size)}
		for _, ct := range codecs {
			body, err := contextwire.Encode(ct, want)
			if err != nil {
				t.Fatal(err)
			}
			got, err := contextwire.Decode(ct, body, contextwire.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			clear(body)
			if !cmp.Equal(want, got) {
				t.Errorf("%s: value of %d bytes changed with its body", ct, size)
			}
		}
	}
}
