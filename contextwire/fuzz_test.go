package contextwire_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// refusals are the only codes that a decoder may answer with.
func checkRefusal(t *testing.T, err error) {
	t.Helper()
	switch module.CodeOf(err) {
	case module.CodeBusBadMessage, module.CodeBusUnsupportedType, module.CodeBusVersionUnsupported, module.CodeBusPayloadTooLarge:
	default:
		t.Errorf("refused with %v", err)
	}
}

// checkStable encodes v in both codecs and expects to read v again.
func checkStable(t *testing.T, v any) {
	t.Helper()
	for _, ct := range codecs {
		body, err := contextwire.Encode(ct, v)
		if err != nil {
			t.Fatalf("%s: decoded value cannot be encoded: %v", ct, err)
		}
		again, err := contextwire.Decode(ct, body, contextwire.Limits{MaxOverhead: 1 << 30})
		if err != nil {
			t.Fatalf("%s: own bytes are refused: %v", ct, err)
		}
		if !reflect.DeepEqual(v, again) {
			t.Fatalf("%s: got %#v, want %#v", ct, again, v)
		}
	}
}

func FuzzDecodeJSON(f *testing.F) {
	for _, g := range goldens(f) {
		f.Add(g.bodies[contextwire.JSON])
	}
	for _, s := range []string{`[1e400]`, `"\ud834\udd1e"`, `"\ud834"`, `{"a":1,"a":2}`, `18446744073709551616`, `-0`, `[1,]`, "\"\xff\"", ` [ ] `} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		v, err := contextwire.Decode(contextwire.JSON, body, contextwire.Limits{})
		if err == nil {
			if err := sameAsEncodingJSON(body, v); err != nil {
				t.Fatal(err)
			}
			checkStable(t, v)
			return
		}
		checkRefusal(t, err)
		if !json.Valid(body) {
			return
		}
		// What the standard library accepts we refuse for these reasons only.
		switch limit := module.AsError(err).Details["limit"]; limit {
		case "duplicate-key", "number", "utf-8", "depth", "elements", "memory":
		default:
			t.Errorf("valid JSON is refused for %v: %v", limit, err)
		}
	})
}

func FuzzDecodeMsgpack(f *testing.F) {
	for _, g := range goldens(f) {
		f.Add(g.bodies[contextwire.MsgPack])
	}
	for _, s := range []string{"\xdd\xff\xff\xff\xff", "\xd4\x00\x00", "\x82\xa1a\x01\xa1a\x02", "\xca\x7f\xc0\x00\x00", "\xc4\x02ab"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		v, err := contextwire.Decode(contextwire.MsgPack, body, contextwire.Limits{})
		if err != nil {
			checkRefusal(t, err)
			return
		}
		checkStable(t, v)
	})
}

// addMessages seeds a target that takes a header block, as lines, and a body.
func addMessages(f *testing.F) {
	for _, g := range goldens(f) {
		for ct, body := range g.bodies {
			f.Add(headerText(g.headers[ct]), body)
		}
		for ct, h := range g.headers {
			if g.bodies[ct] == nil {
				f.Add(headerText(h), []byte{})
			}
		}
	}
}

func headerText(h contextwire.Header) string {
	var b strings.Builder
	for k, values := range h {
		for _, v := range values {
			b.WriteString(k + ":" + v + "\n")
		}
	}
	return b.String()
}

func parseHeader(text string) contextwire.Header {
	h := contextwire.Header{}
	for line := range strings.Lines(text) {
		k, v, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		h[k] = append(h[k], v)
	}
	return h
}

func FuzzRequest(f *testing.F) {
	addMessages(f)
	f.Fuzz(func(t *testing.T, header string, body []byte) {
		r, err := decodeRequest("math.add", parseHeader(header), body)
		if err != nil {
			checkRefusal(t, err)
			return
		}
		if r.Context == nil || r.Inputs == nil || !contextwire.ValidCallID(r.CallID) || r.Attempt < 1 || r.Context.TraceID() == "" {
			t.Fatalf("incomplete request %+v", r)
		}
		for k := range contextwire.ContextMap(r.Context)["data"].(map[string]any) {
			if strings.HasPrefix(k, "_") {
				t.Fatalf("private key %q", k)
			}
		}
		h, body, err := contextwire.EncodeRequest(r, r.ContentType)
		if err != nil {
			t.Fatalf("cannot be sent on: %v", err)
		}
		again, err := decodeRequest("math.add", h, body)
		if err != nil {
			if e := module.AsError(err); e.Details["limit"] == "memory" || e.Details["limit"] == "header" {
				return
			}
			t.Fatalf("own bytes are refused: %v", err)
		}
		if !reflect.DeepEqual(again.Inputs, r.Inputs) || again.Budget != r.Budget || again.Credit != r.Credit && r.Stream ||
			!reflect.DeepEqual(contextwire.ContextMap(again.Context)["data"], contextwire.ContextMap(r.Context)["data"]) {
			t.Fatalf("got %+v, want %+v", again, r)
		}
	})
}

func FuzzFrame(f *testing.F) {
	addMessages(f)
	f.Fuzz(func(t *testing.T, header string, body []byte) {
		h := parseHeader(header)
		if _, err := contextwire.DecodeBareReply(h, body, contextwire.Limits{}); err != nil && !module.AsError(err).Remote {
			checkRefusal(t, err)
		}
		if _, err := contextwire.DecodeCredit(h); err != nil {
			checkRefusal(t, err)
		}
		frame, err := contextwire.DecodeFrame(h, body, contextwire.Limits{})
		if err != nil {
			checkRefusal(t, err)
			return
		}
		if !frame.Kind.Known() || frame.BodyRef != nil {
			return
		}
		if frame.Err != nil {
			frame.Err.Remote = false // as if it were our own, so that all of it is written
		}
		ct := frame.ContentType
		if ct == "" {
			ct = contextwire.JSON
		}
		h, body, err = contextwire.EncodeFrame(frame, ct)
		if err != nil {
			t.Fatalf("%+v cannot be sent on: %v", frame, err)
		}
		again, err := contextwire.DecodeFrame(h, body, contextwire.Limits{MaxOverhead: 1 << 30})
		if err != nil {
			t.Fatalf("own bytes are refused: %v", err)
		}
		if again.Kind != frame.Kind || again.CallID != frame.CallID || again.Seq != frame.Seq || again.CreditTo != frame.CreditTo ||
			again.Grace != frame.Grace || again.RetryAfter != frame.RetryAfter || !reflect.DeepEqual(again.Body, frame.Body) {
			t.Fatalf("got %+v, want %+v", again, frame)
		}
		if frame.Err != nil && (again.Err.Code != frame.Err.Code || again.Err.Unexecuted != frame.Err.Unexecuted) {
			t.Fatalf("got %+v, want %+v", again.Err, frame.Err)
		}
	})
}

func FuzzControl(f *testing.F) {
	for _, g := range goldens(f) {
		f.Add(g.bodies[contextwire.JSON], false)
		f.Add(g.bodies[contextwire.MsgPack], true)
	}
	f.Fuzz(func(t *testing.T, body []byte, packed bool) {
		ct := contextwire.JSON
		if packed {
			ct = contextwire.MsgPack
		}
		for name, decode := range decoders() {
			v, err := decode(body, ct, contextwire.Limits{})
			if err != nil {
				checkRefusal(t, err)
				continue
			}
			text, err := contextwire.EncodeControl(v.(contextwire.ControlMessage), contextwire.JSON)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if _, err := decode(text, contextwire.JSON, contextwire.Limits{MaxOverhead: 1 << 30}); err != nil {
				t.Fatalf("%s: own bytes are refused: %v\n%s", name, err, text)
			}
		}
		m, err := contextwire.DecodeMap(ct, body, contextwire.Limits{})
		if err != nil {
			return
		}
		if _, err := module.PreflightFromMap(m); err != nil && module.CodeOf(err) != module.CodeBusBadMessage {
			t.Errorf("preflight: %v", err)
		}
		if c, err := contextwire.ContextFromMap(m); err != nil {
			checkRefusal(t, err)
		} else if c.TraceID() == "" {
			t.Error("no trace id")
		}
	})
}
