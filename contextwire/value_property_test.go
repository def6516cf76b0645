package contextwire_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"strings"
	"testing"

	"github.com/apbus/apbus/contextwire"
	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"
)

// drawValue makes any value of the JSON data model.
func drawValue(t *rapid.T, depth int) any {
	kinds := 10
	if depth == 0 {
		kinds = 8
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return nil
	case 1:
		return rapid.Bool().Draw(t, "bool")
	case 2:
		return rapid.Int64().Draw(t, "int")
	case 3:
		return rapid.Uint64Min(math.MaxInt64+1).Draw(t, "uint")
	case 4:
		return rapid.Float64().Draw(t, "float")
	case 5:
		return float64(rapid.IntRange(-1000, 1000).Draw(t, "integral float"))
	case 6:
		return strings.ToValidUTF8(rapid.String().Draw(t, "text"), "")
	case 7:
		return strings.Repeat("é\"", rapid.IntRange(0, 4000).Draw(t, "repeat"))
	case 8:
		list := make([]any, rapid.IntRange(0, 20).Draw(t, "length"))
		for i := range list {
			list[i] = drawValue(t, depth-1)
		}
		return list
	default:
		m := map[string]any{}
		for range rapid.IntRange(0, 20).Draw(t, "size") {
			m[strings.ToValidUTF8(rapid.String().Draw(t, "key"), "")] = drawValue(t, depth-1)
		}
		return m
	}
}

// TestRoundTripProperty: a value read from JSON and written as msgpack, and the
// other way round, stays deeply equal, and so does it through the msgpack library.
func TestRoundTripProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawValue(t, 4)
		v := want
		for _, ct := range []contextwire.ContentType{contextwire.JSON, contextwire.MsgPack, contextwire.JSON} {
			body, err := contextwire.Encode(ct, v)
			if err != nil {
				t.Fatalf("encode %s: %v", ct, err)
			}
			if v, err = contextwire.Decode(ct, body, contextwire.Limits{}); err != nil {
				t.Fatalf("decode %s: %v", ct, err)
			}
			if !reflect.DeepEqual(v, want) {
				t.Fatalf("%s: got %#v, want %#v", ct, v, want)
			}
			if ct == contextwire.JSON {
				if err := sameAsEncodingJSON(body, v); err != nil {
					t.Fatal(err)
				}
			}
		}
		theirs, err := msgpack.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := contextwire.Decode(contextwire.MsgPack, theirs, contextwire.Limits{})
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("of the library's bytes: got %#v (%v), want %#v", got, err, want)
		}
		ours, err := contextwire.Encode(contextwire.MsgPack, want)
		if err != nil {
			t.Fatal(err)
		}
		var back any
		if err := msgpack.Unmarshal(ours, &back); err != nil {
			t.Fatalf("the library refuses our bytes: %v", err)
		}
		if err := sameNumbers(back, want); err != nil {
			t.Fatalf("the library reads our bytes differently: %v", err)
		}
	})
}

// TestUnknownKeysProperty: keys that a reader does not know never change what it
// reads.
func TestUnknownKeysProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		extra := func(m map[string]any) map[string]any {
			for range rapid.IntRange(0, 5).Draw(t, "extra") {
				m["zz_"+strings.ToValidUTF8(rapid.String().Draw(t, "key"), "")] = drawValue(t, 2)
			}
			return m
		}
		ct := rapid.SampledFrom(codecs).Draw(t, "codec")
		want := pong()
		body, err := contextwire.Encode(ct, extra(want.Map()))
		if err != nil {
			t.Fatal(err)
		}
		got, err := contextwire.DecodePong(body, ct, contextwire.Limits{})
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v (%v), want %+v", got, err, want)
		}
		c := fullContext()
		body, err = contextwire.Encode(ct, extra(map[string]any{"context": extra(contextwire.ContextMap(c)), "inputs": map[string]any{"a": int64(1)}}))
		if err != nil {
			t.Fatal(err)
		}
		h := contextwire.Header{"apbus-version": {"1"}, "apbus-call": {callID}, "content-type": {string(ct)}, "x-unknown": {"1"}}
		r, err := decodeRequest("math.add", h, body)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(contextwire.ContextMap(r.Context), contextwire.ContextMap(c)) {
			t.Fatalf("context differs: %v", contextwire.ContextMap(r.Context))
		}
	})
}

// sameAsEncodingJSON compares v with what the standard library reads from body.
func sameAsEncodingJSON(body []byte, v any) error {
	dec := json.NewDecoder(strings.NewReader(string(body)))
	dec.UseNumber()
	var std any
	if err := dec.Decode(&std); err != nil {
		return fmt.Errorf("encoding/json refuses: %w", err)
	}
	return sameNumbers(std, v)
}

// sameNumbers compares theirs with ours, where numbers of theirs may have another
// Go type.
func sameNumbers(theirs, ours any) error {
	switch o := ours.(type) {
	case map[string]any:
		m, ok := theirs.(map[string]any)
		if !ok || len(m) != len(o) {
			return fmt.Errorf("map of %d is %T", len(o), theirs)
		}
		for k, v := range o {
			if err := sameNumbers(m[k], v); err != nil {
				return err
			}
		}
		return nil
	case []any:
		list, ok := theirs.([]any)
		if !ok || len(list) != len(o) {
			return fmt.Errorf("list of %d is %T", len(o), theirs)
		}
		for i, v := range o {
			if err := sameNumbers(list[i], v); err != nil {
				return err
			}
		}
		return nil
	case int64, uint64:
		n, ok := new(big.Int).SetString(fmt.Sprint(theirs), 10)
		if !ok || n.String() != fmt.Sprint(o) {
			return fmt.Errorf("integer %v is %v", o, theirs)
		}
		return nil
	case float64:
		if n, ok := theirs.(json.Number); ok {
			f, err := n.Float64()
			if err != nil || f != o {
				return fmt.Errorf("float %v is %v", o, n)
			}
			return nil
		}
	}
	if !reflect.DeepEqual(theirs, ours) {
		return fmt.Errorf("%#v is %#v", ours, theirs)
	}
	return nil
}
