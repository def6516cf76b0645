package contextwire_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/apbus/apbus/contextwire"
	"github.com/vmihailenco/msgpack/v5"
)

// typical is the body of an ordinary request.
func typical() map[string]any {
	return map[string]any{"context": contextwire.ContextMap(plainContext()), "inputs": map[string]any{
		"customer": "c-1042", "items": []any{
			map[string]any{"sku": "A-1", "qty": int64(2)}, map[string]any{"sku": "B-7", "qty": int64(1)},
		}, "total": 39.98, "note": "leave at the door", "express": true,
	}}
}

func rows() map[string]any {
	list := make([]any, 1000)
	for i := range list {
		list[i] = map[string]any{"id": int64(i), "name": fmt.Sprint("row ", i), "score": float64(i) / 7, "ok": i%2 == 0}
	}
	return map[string]any{"rows": list}
}

// BenchmarkCodec compares our codecs with the msgpack library and encoding/json.
func BenchmarkCodec(b *testing.B) {
	for name, v := range map[string]map[string]any{
		"typical": typical(), "rows": rows(), "text1M": {"text": strings.Repeat("some words \n", 87_381)},
	} {
		jsonBody, err := contextwire.Encode(contextwire.JSON, v)
		if err != nil {
			b.Fatal(err)
		}
		packed, err := contextwire.Encode(contextwire.MsgPack, v)
		if err != nil {
			b.Fatal(err)
		}
		for _, bench := range []struct {
			name string
			size int
			run  func() error
		}{
			{"json/encode/ours", len(jsonBody), func() error { _, err := contextwire.Encode(contextwire.JSON, v); return err }},
			{"json/encode/std", len(jsonBody), func() error { _, err := json.Marshal(v); return err }},
			{"json/decode/ours", len(jsonBody), func() error {
				_, err := contextwire.Decode(contextwire.JSON, jsonBody, contextwire.Limits{})
				return err
			}},
			{"json/decode/std", len(jsonBody), func() error { var out any; return json.Unmarshal(jsonBody, &out) }},
			{"msgpack/encode/ours", len(packed), func() error { _, err := contextwire.Encode(contextwire.MsgPack, v); return err }},
			{"msgpack/encode/lib", len(packed), func() error { _, err := msgpack.Marshal(v); return err }},
			{"msgpack/decode/ours", len(packed), func() error {
				_, err := contextwire.Decode(contextwire.MsgPack, packed, contextwire.Limits{})
				return err
			}},
			{"msgpack/decode/lib", len(packed), func() error { var out any; return msgpack.Unmarshal(packed, &out) }},
		} {
			b.Run(name+"/"+bench.name, func(b *testing.B) {
				b.SetBytes(int64(bench.size))
				b.ReportAllocs()
				for b.Loop() {
					if err := bench.run(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkRequest is what one hop costs in this package.
func BenchmarkRequest(b *testing.B) {
	for _, ct := range codecs {
		r := &contextwire.Request{CallID: callID, Context: plainContext(), Inputs: typical()["inputs"].(map[string]any)}
		h, body, err := contextwire.EncodeRequest(r, ct)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(string(ct)+"/encode", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := contextwire.EncodeRequest(r, ct); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(string(ct)+"/decode", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := decodeRequest("math.add", h, body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
