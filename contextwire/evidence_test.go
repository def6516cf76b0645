package contextwire_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

func fullEvidence() *contextwire.Evidence {
	return &contextwire.Evidence{
		Type: contextwire.EvidenceCall, At: time.Date(2026, 5, 1, 12, 0, 0, 123e6, time.UTC),
		NS: "default", Node: "n1", Boot: "abc", N: 7, ModuleID: "pay.refund", Version: "1.2.0",
		Call: "call-0000000000001", Attempt: 2, Root: "root-0000000000001", Parent: "root-0000000000001",
		TraceID: strings.Repeat("a", 32), CallerID: "shop.order", CallChain: []string{"shop.order", "pay.refund"},
		IdentityID: "ana", IdentityType: "user", Mode: contextwire.ModeUnary, TaskID: "t-1", TaskAttempt: 3,
		Outcome: contextwire.OutcomeError, Code: "PAY_NO", Message: "no \"money\"\n", Origin: "bank.debit",
		Retryable: module.False, Unexecuted: true, MadeHere: true, Duration: 1234 * time.Microsecond,
		Timeout: 30 * time.Second, Budget: 12 * time.Second, Retries: 1, Chunks: 4,
		Inputs: map[string]any{"order": "o-1", "n": int64(1), "f": 1.0}, InputBytes: 0,
		Side: contextwire.SideInput, Fields: []string{"/order"}, By: "bob", Role: "user", Text: "because",
		Guidance: []string{strings.Repeat("0", 64)},
	}
}

// The bytes are canonical, so these are the hash of the record for ever.
func TestEvidenceGolden(t *testing.T) {
	const want = `{"attempt":2,"boot":"abc","budget_ms":12000,"by":"bob","call":"call-0000000000001","call_chain":["shop.order","pay.refund"],` +
		`"caller_id":"shop.order","chunks":4,"code":"PAY_NO","duration_ms":1.234,"fields":["/order"],` +
		`"guidance":["0000000000000000000000000000000000000000000000000000000000000000"],"identity":{"id":"ana","type":"user"},` +
		`"inputs":{"f":1.0,"n":1,"order":"o-1"},"made_here":true,"message":"no \"money\"\n","mode":"unary","module_id":"pay.refund",` +
		`"n":7,"node":"n1","ns":"default","origin":"bank.debit","outcome":"error","parent":"root-0000000000001","retries":1,"retryable":false,` +
		`"role":"user","root":"root-0000000000001","side":"input","task_attempt":3,"task_id":"t-1","text":"because","time":"2026-05-01T12:00:00.123Z",` +
		`"timeout_ms":30000,"trace_id":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","type":"call","unexecuted":true,"v":1,"version":"1.2.0"}`
	body, err := contextwire.EncodeEvidence(fullEvidence())
	if err != nil || string(body) != want {
		t.Fatalf("got %v\n%s\nwant\n%s", err, body, want)
	}
	if got := contextwire.EvidenceHash(body); got != "6a80b7b3d92f8554f3e1cc55f401ddc06d1c19932de099cc20a420ca71bcd2fa" {
		t.Errorf("hash %s", got)
	}
	v, err := contextwire.Decode(contextwire.JSON, body, contextwire.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	again, err := contextwire.EncodeCanonical(contextwire.JSON, v)
	if err != nil || !bytes.Equal(again, body) {
		t.Errorf("keys are not in byte order:\n%s", again)
	}
	e, hash, err := contextwire.DecodeEvidence(body)
	if err != nil || hash != contextwire.EvidenceHash(body) {
		t.Fatalf("decode: %v, hash %s", err, hash)
	}
	if diff := cmp.Diff(fullEvidence(), e); diff != "" {
		t.Errorf("round trip (-want +got):\n%s", diff)
	}
}

func TestEvidenceRefuses(t *testing.T) {
	at := `"time":"2026-05-01T12:00:00Z"`
	tests := []struct{ name, body string }{
		{"nothing", ``}, {"no json", `{`}, {"a list", `[]`},
		{"no version", `{"type":"call","module_id":"m",` + at + `}`},
		{"newer version", `{"v":2,"type":"call","module_id":"m",` + at + `}`},
		{"unknown type", `{"v":1,"type":"bogus","module_id":"m",` + at + `}`},
		{"no module", `{"v":1,"type":"call",` + at + `}`},
		{"no time", `{"v":1,"type":"call","module_id":"m"}`},
		{"bad time", `{"v":1,"type":"call","module_id":"m","time":"yesterday"}`},
		{"negative duration", `{"v":1,"type":"call","module_id":"m","duration_ms":-1.5,` + at + `}`},
		{"endless duration", `{"v":1,"type":"call","module_id":"m","duration_ms":1e300,` + at + `}`},
		{"text as number", `{"v":1,"type":"call","module_id":"m","attempt":"1",` + at + `}`},
		{"retryable as text", `{"v":1,"type":"call","module_id":"m","retryable":"no",` + at + `}`},
		{"inputs as list", `{"v":1,"type":"call","module_id":"m","inputs":[],` + at + `}`},
		{"identity as text", `{"v":1,"type":"call","module_id":"m","identity":"ana",` + at + `}`},
		{"identity of a number", `{"v":1,"type":"call","module_id":"m","identity":{"id":1},` + at + `}`},
		{"key twice", `{"v":1,"v":1,"type":"call","module_id":"m",` + at + `}`},
		{"deep", `{"v":1,"type":"call","module_id":"m",` + at + `,"inputs":{"a":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}}`},
		{"large", `{"v":1,"type":"call","module_id":"m",` + at + `,"text":"` + strings.Repeat("x", contextwire.MaxEvidence) + `"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, _, err := contextwire.DecodeEvidence([]byte(tt.body))
			if code := module.CodeOf(err); e != nil || (code != module.CodeBusBadMessage && code != module.CodeBusPayloadTooLarge) {
				t.Errorf("got %+v, %v", e, err)
			}
		})
	}
	note := `{"v":1,"type":"note","future":{"x":1},"text":"slow today",` + at + `}`
	if e, _, err := contextwire.DecodeEvidence([]byte(note)); err != nil || e.Text != "slow today" {
		t.Errorf("a note without module and with an unknown key: %+v, %v", e, err)
	}
	for name, e := range map[string]*contextwire.Evidence{"no type": {At: time.Now(), ModuleID: "m"}, "no time": {Type: contextwire.EvidenceCall, ModuleID: "m"}} {
		if _, err := contextwire.EncodeEvidence(e); module.CodeOf(err) != module.CodeBusBadMessage {
			t.Errorf("%s is written: %v", name, err)
		}
	}
}

// Whatever the fields hold, a record is written within its limits and reads back to
// one that is written alike.
func TestEvidenceProperties(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.Just("\xff\xfe"), rapid.Just(strings.Repeat("é", 3000)), rapid.StringN(0, 20, 60))
	list := rapid.SliceOfN(text, 0, 70)
	rapid.Check(t, func(t *rapid.T) {
		e := &contextwire.Evidence{
			Type: rapid.SampledFrom(contextwire.EvidenceTypes()).Draw(t, "type"),
			At:   contextwire.EvidenceTime(time.UnixMilli(rapid.Int64Range(0, 4e12).Draw(t, "at"))), ModuleID: "m",
			N: rapid.Uint64().Draw(t, "n"), Call: text.Draw(t, "call"), Message: text.Draw(t, "message"), Text: text.Draw(t, "text"),
			CallChain: list.Draw(t, "chain"), Fields: list.Draw(t, "fields"), Attempt: rapid.IntRange(0, 9).Draw(t, "attempt"),
			Duration: time.Duration(rapid.Int64Range(0, 1e15).Draw(t, "duration")), Retryable: module.Tri(rapid.IntRange(0, 2).Draw(t, "retryable")),
			Inputs: map[string]any{text.Draw(t, "key"): text.Draw(t, "value")},
		}
		body, err := contextwire.EncodeEvidence(e)
		if module.CodeOf(err) == module.CodeBusPayloadTooLarge {
			return
		}
		if err != nil || len(body) > contextwire.MaxEvidence {
			t.Fatalf("encode: %v, %d bytes", err, len(body))
		}
		back, hash, err := contextwire.DecodeEvidence(body)
		if err != nil || hash != contextwire.EvidenceHash(body) {
			t.Fatalf("decode: %v", err)
		}
		again, err := contextwire.EncodeEvidence(back)
		if err != nil || !bytes.Equal(again, body) {
			t.Fatalf("%v\n%s\n%s", err, body, again)
		}
	})
}

func FuzzDecodeEvidence(f *testing.F) {
	body, err := contextwire.EncodeEvidence(fullEvidence())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Add([]byte(`{"v":1,"type":"note","time":"2026-05-01T12:00:00Z"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		e, hash, err := contextwire.DecodeEvidence(body)
		if err != nil {
			return
		}
		if len(hash) != 64 {
			t.Errorf("hash %q", hash)
		}
		if _, err := contextwire.EncodeEvidence(e); err != nil && module.CodeOf(err) != module.CodeBusPayloadTooLarge {
			t.Errorf("what was read cannot be written: %v", err)
		}
	})
}

func BenchmarkEvidenceCodec(b *testing.B) {
	e := fullEvidence()
	body, err := contextwire.EncodeEvidence(e)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("encode and hash", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			body, _ := contextwire.EncodeEvidence(e)
			_ = contextwire.EvidenceHash(body)
		}
	})
	b.Run("decode and hash", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := contextwire.DecodeEvidence(body); err != nil {
				b.Fatal(err)
			}
		}
	})
}
