package contextwire

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/apbus/apbus/module"
)

// The quick reader accepts nothing that the other refuses, and reads the same, be the
// bytes as they were written or changed.
func TestQuickReaderOfEvidenceAgrees(t *testing.T) {
	text := rapid.OneOf(rapid.StringN(0, 12, 40), rapid.SampledFrom([]string{"", `"quoted" \ and`, "tab\there", "é€😀", "\u202e"}))
	agree := func(t *rapid.T, body []byte) (quick bool) {
		var got Evidence
		quick = scanEvidence(body, &got, false)
		if !quick {
			return false
		}
		r, err := readRecord("evidence", body, JSON, Limits{MaxBody: MaxEvidence})
		if err != nil {
			t.Fatalf("accepted, and refused by the other: %v\n%s", err, body)
		}
		want, err := readEvidence(r)
		if err != nil {
			t.Fatalf("accepted, and refused by the other: %v\n%s", err, body)
		}
		if !reflect.DeepEqual(&got, want) {
			t.Fatalf("got %+v\nwant %+v\n%s", got, want, body)
		}
		var brief Evidence
		if !scanEvidence(body, &brief, true) {
			t.Fatalf("refused when inputs are passed over: %s", body)
		}
		if want.Inputs = nil; !reflect.DeepEqual(&brief, want) {
			t.Fatalf("without inputs: got %+v\nwant %+v\n%s", brief, want, body)
		}
		return true
	}
	rapid.Check(t, func(t *rapid.T) {
		e := &Evidence{
			Type: rapid.SampledFrom(EvidenceTypes()).Draw(t, "type"), At: time.UnixMilli(rapid.Int64Range(1, 4e12).Draw(t, "at")).UTC(),
			ModuleID: "m", Message: text.Draw(t, "message"), Text: text.Draw(t, "text"), IdentityID: text.Draw(t, "id"), IdentityType: text.Draw(t, "idtype"),
			CallChain: rapid.SliceOfN(text, 0, 3).Draw(t, "chain"), N: rapid.Uint64().Draw(t, "n"), Attempt: rapid.IntRange(0, 3).Draw(t, "attempt"),
			Retryable: module.Tri(rapid.IntRange(0, 2).Draw(t, "retryable")), Unexecuted: rapid.Bool().Draw(t, "unexecuted"),
			Duration: time.Duration(rapid.Int64Range(0, 1e14).Draw(t, "duration")), Timeout: time.Duration(rapid.Int64Range(0, 1e14).Draw(t, "timeout")),
			Inputs: map[string]any{text.Draw(t, "k"): []any{text.Draw(t, "v"), int64(1), map[string]any{"}": "{"}}},
		}
		body, err := EncodeEvidence(e)
		if err != nil {
			t.Fatal(err)
		}
		if !agree(t, body) {
			t.Fatalf("what is written is not read quickly: %s", body)
		}
		for range 8 { // changed
			at := rapid.IntRange(0, len(body)-1).Draw(t, "place")
			changed := append([]byte{}, body...)
			switch rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				changed[at] = rapid.SampledFrom([]byte(`"\{}[],:0159-.eEtfn `)).Draw(t, "byte")
			case 1:
				changed = append(changed[:at], changed[at+1:]...)
			default:
				changed = append(changed[:at], append([]byte{rapid.SampledFrom([]byte(`"\{}[],:019`)).Draw(t, "more")}, changed[at:]...)...)
			}
			agree(t, changed)
		}
	})
}
