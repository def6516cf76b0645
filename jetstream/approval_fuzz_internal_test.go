package jetstream

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
)

// What is in the bucket may be anything. What is read as a record is written and
// read as the same record again.
func FuzzDecodeApproval(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `{"v":1}`, `{"v":2,"id":"a"}`, `{"v":1,"id":"a","state":"pending","binding":{"module_id":"m","digest":"d"}}`,
		`{"v":1,"id":"a","state":"approved","binding":{"module_id":"m","digest":"d","identity":{"id":"ann","type":"user"}},"inputs":{"n":9007199254740993},` +
			`"changes":[{"action":"a","target":"t","summary":"s","before":null,"x-k":1}],"warnings":["w"],"tags":["t"],"annotations":{"destructive":true},` +
			`"created_at":"2026-01-02T03:04:05.123456789Z","expires_at":"2026-01-02T03:04:05+02:00","token_expires_ms":3600000,` +
			`"decided":{"at":"2026-01-02T03:04:05Z","by":"bob","type":"user","because":"r"},"later":"key"}`,
		`{"v":1,"id":"a","state":"pending","binding":{"module_id":"m","digest":"d"},"created_at":"yesterday"}`,
		`{"v":1,"id":1,"state":"pending","binding":[],"changes":[1],"tags":[2]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := decodeApproval(raw)
		if err != nil {
			return
		}
		if r.ID == "" || r.Binding.ModuleID == "" || r.Binding.Digest == "" {
			t.Fatalf("a record without what decides about a call: %+v", r)
		}
		again, err := contextwire.EncodeCanonical(contextwire.JSON, r.Map())
		if err != nil {
			t.Fatalf("encode what was decoded: %v", err)
		}
		back, err := decodeApproval(again)
		if err != nil {
			t.Fatalf("decode %s: %v", again, err)
		}
		if d := cmp.Diff(r.Map(), back.Map()); d != "" {
			t.Errorf("(-first +second):\n%s", d)
		}
	})
}
