package contextwire_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/google/go-cmp/cmp"
)

func frameHead(kind string, extra ...string) contextwire.Header {
	h := contextwire.Header{"apbus-frame": {kind}, "apbus-call": {callID}, "apbus-node": {"n1.b"}, "content-type": {"application/json"}}
	for i := 0; i < len(extra); i += 2 {
		if extra[i+1] == "" {
			delete(h, extra[i])
		} else {
			h[extra[i]] = []string{extra[i+1]}
		}
	}
	return h
}

func TestDecodeFrameRefuses(t *testing.T) {
	tests := []struct {
		name string
		h    contextwire.Header
		body string
		code module.Code
	}{
		{"no headers", nil, `{}`, module.CodeBusBadMessage},
		{"no node", frameHead("result", "apbus-node", ""), `{}`, module.CodeBusBadMessage},
		{"node without boot", frameHead("result", "apbus-node", "n1"), `{}`, module.CodeBusBadMessage},
		{"malformed node", frameHead("result", "apbus-node", "N 1.b"), `{}`, module.CodeBusBadMessage},
		{"accept without call", frameHead("accept", "apbus-call", ""), ``, module.CodeBusBadMessage},
		{"malformed call", frameHead("result", "apbus-call", "x"), `{}`, module.CodeBusBadMessage},
		{"accept with wildcard subject", frameHead("accept", "apbus-credit-to", "a.>"), ``, module.CodeBusBadMessage},
		{"data without seq", contextwire.Header{"apbus-frame": {"data"}}, `{}`, module.CodeBusBadMessage},
		{"end without seq", frameHead("end"), `{}`, module.CodeBusBadMessage},
		{"negative seq", frameHead("end", "apbus-seq", "-1"), `{}`, module.CodeBusBadMessage},
		{"unknown type", frameHead("result", "content-type", "text/plain"), `{}`, module.CodeBusUnsupportedType},
		{"empty result", frameHead("result"), ``, module.CodeBusBadMessage},
		{"result list", frameHead("result"), `[]`, module.CodeBusBadMessage},
		{"error without code", frameHead("error"), `{"message":"x"}`, module.CodeBusBadMessage},
		{"progress without done", frameHead("progress"), `{"total":1}`, module.CodeBusBadMessage},
		{"progress of text", frameHead("progress"), `{"done":"1"}`, module.CodeBusBadMessage},
		{"body ref", frameHead("result", "apbus-body-ref", "x"), ``, module.CodeBusBadMessage},
		{"body ref too large", frameHead("result", "apbus-body-ref", "x;size=99999999999;sha256="+strings.Repeat("0", 64)), ``, module.CodeBusPayloadTooLarge},
		{"header block", frameHead("result", "x", strings.Repeat("x", 17<<10)), `{}`, module.CodeBusBadMessage},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, err := contextwire.DecodeFrame(tt.h, []byte(tt.body), contextwire.Limits{})
			if f != nil || module.CodeOf(err) != tt.code {
				t.Errorf("got %v, error %v, want %s", f, err, tt.code)
			}
		})
	}
}

func TestDecodeFrame(t *testing.T) {
	t.Run("unknown kind", func(t *testing.T) {
		f, err := contextwire.DecodeFrame(contextwire.Header{"apbus-frame": {"hint"}}, []byte("garbage"), contextwire.Limits{})
		if err != nil || f.Kind != "hint" || f.Kind.Known() || f.Kind.Terminal() {
			t.Errorf("got %+v, %v", f, err)
		}
	})
	t.Run("code from the header", func(t *testing.T) {
		f, err := contextwire.DecodeFrame(frameHead("error", "apbus-error", "X_Y", "retry-after-ms", "soon"), []byte(`{}`), contextwire.Limits{})
		if err != nil || f.Err.Code != "X_Y" || !f.Err.Remote || f.Err.Unexecuted || f.RetryAfter != 0 {
			t.Errorf("got %+v, %v", f, err)
		}
	})
	t.Run("body wins over the header", func(t *testing.T) {
		f, err := contextwire.DecodeFrame(frameHead("error", "apbus-error", "X"), []byte(`{"code":"Y"}`), contextwire.Limits{})
		if err != nil || f.Err.Code != "Y" {
			t.Errorf("got %+v, %v", f, err)
		}
	})
	t.Run("body in the store", func(t *testing.T) {
		body := []byte(`{"code":"X","message":"m"}`)
		h := frameHead("error", "apbus-unexecuted", "1", "apbus-body-ref", contextwire.NewBodyRef("b", body).String())
		f, err := contextwire.DecodeFrame(h, nil, contextwire.Limits{})
		if err != nil || f.BodyRef == nil {
			t.Fatalf("got %+v, %v", f, err)
		}
		if err := f.DecodeBody(body[1:], contextwire.Limits{}); module.CodeOf(err) != module.CodeBusBadMessage {
			t.Errorf("another body: %v", err)
		}
		if err := f.DecodeBody(body, contextwire.Limits{}); err != nil || f.Err.Code != "X" || !f.Err.Unexecuted {
			t.Errorf("got %+v, %v", f.Err, err)
		}
	})
	t.Run("data in the store, without a type", func(t *testing.T) {
		chunk := contextwire.Frame{Kind: contextwire.FrameData, Seq: 1, Body: map[string]any{"a": int64(1)}}
		_, body, err := contextwire.EncodeFrame(&chunk, contextwire.MsgPack)
		if err != nil {
			t.Fatal(err)
		}
		chunk.BodyRef = contextwire.NewBodyRef("b", body)
		h, _, err := contextwire.EncodeFrame(&chunk, contextwire.MsgPack)
		if err != nil {
			t.Fatal(err)
		}
		f, err := contextwire.DecodeFrame(h, nil, contextwire.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.DecodeBody(body, contextwire.Limits{}); err != nil || !cmp.Equal(f.Body, chunk.Body) || f.ContentType != contextwire.MsgPack {
			t.Errorf("got %+v, %v", f, err)
		}
	})
	t.Run("integer progress", func(t *testing.T) {
		f, err := contextwire.DecodeFrame(frameHead("progress"), []byte(`{"done":1,"total":4}`), contextwire.Limits{})
		if err != nil || *f.Progress != (module.ProgressReport{Done: 1, Total: 4}) {
			t.Errorf("got %+v, %v", f, err)
		}
	})
}

func TestEncodeFrameError(t *testing.T) {
	encode := func(e *module.Error) (contextwire.Header, *module.Error) {
		t.Helper()
		h, body, err := contextwire.EncodeFrame(&contextwire.Frame{Kind: contextwire.FrameError, CallID: callID, Node: "n1", Boot: "b", Err: e}, contextwire.MsgPack)
		if err != nil {
			t.Fatal(err)
		}
		f, err := contextwire.DecodeFrame(h, body, contextwire.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		return h, f.Err
	}
	t.Run("whatever it holds it arrives", func(t *testing.T) {
		h, e := encode(module.Errorf("ODD\nCODE", "bad \xff text\r\nInjected: yes %s", strings.Repeat("é", 600)).
			WithDetails(map[string]any{"f": math.NaN(), "ok": int64(1), "c": make(chan int)}))
		if !cmp.Equal(e.Details, map[string]any{"ok": int64(1)}) || !strings.HasPrefix(e.Message, "bad \uFFFD text\r\n") {
			t.Errorf("got %v %v", e, e.Details)
		}
		for name, values := range h {
			for _, v := range values {
				if len(v) > 512 || strings.ContainsFunc(v, func(r rune) bool { return r < 0x20 || r > 0x7e }) {
					t.Errorf("header %s is %q", name, v)
				}
			}
		}
		if h.Get("apbus-error") != "ODD CODE" || h.Get("Nats-Service-Error-Code") != "500" {
			t.Errorf("headers are %v", h)
		}
	})
	t.Run("no message", func(t *testing.T) {
		if h, _ := encode(&module.Error{Code: module.CodeACLDenied}); h.Get("Nats-Service-Error") != "ACL_DENIED" || h.Get("Nats-Service-Error-Code") != "403" {
			t.Errorf("headers are %v", h)
		}
	})
	t.Run("a forwarded error says nothing about this call", func(t *testing.T) {
		nested := module.Errorf(module.CodeBusOverloaded, "full").NotExecuted()
		if _, e := encode(nested); !e.Unexecuted {
			t.Error("own error lost its mark")
		}
		nested.Remote = true
		if h, e := encode(nested); e.Unexecuted || h.Has("apbus-unexecuted") {
			t.Error("forwarded error kept its mark")
		}
	})
	t.Run("details too deep", func(t *testing.T) {
		var v any = "x"
		for range 63 {
			v = []any{v}
		}
		if _, e := encode(module.Errorf("X", "m").WithDetail("deep", v)); e.Message != "m" || len(e.Details) != 0 {
			t.Errorf("got %v %v", e, e.Details)
		}
	})
}

func TestEncodeFrameRefuses(t *testing.T) {
	ok := contextwire.Frame{CallID: callID, Node: "n1", Boot: "b"}
	with := func(change func(*contextwire.Frame)) contextwire.Frame {
		f := ok
		change(&f)
		return f
	}
	tests := []struct {
		name string
		f    contextwire.Frame
	}{
		{"no kind", ok},
		{"no node", contextwire.Frame{Kind: contextwire.FrameResult, CallID: callID}},
		{"no call", contextwire.Frame{Kind: contextwire.FrameEnd, Node: "n1", Boot: "b"}},
		{"no error", with(func(f *contextwire.Frame) { f.Kind = contextwire.FrameError })},
		{"no progress", with(func(f *contextwire.Frame) { f.Kind = contextwire.FrameProgress })},
		{"NaN progress", with(func(f *contextwire.Frame) {
			f.Kind, f.Progress = contextwire.FrameProgress, &module.ProgressReport{Done: math.NaN()}
		})},
		{"credit subject", with(func(f *contextwire.Frame) { f.Kind, f.CreditTo = contextwire.FrameAccept, "a\r\nb" })},
		{"result", with(func(f *contextwire.Frame) { f.Kind, f.Body = contextwire.FrameResult, map[string]any{"x": math.Inf(1)} })},
		{"data", with(func(f *contextwire.Frame) { f.Kind, f.Body = contextwire.FrameData, map[string]any{"x": "\xff"} })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if h, body, err := contextwire.EncodeFrame(&tt.f, contextwire.JSON); err == nil {
				t.Errorf("got %v %s", h, body)
			}
		})
	}
}

func TestLongTextIsClipped(t *testing.T) {
	long := strings.Repeat("é", 4000)
	_, body, err := contextwire.EncodeFrame(&contextwire.Frame{
		Kind: contextwire.FrameProgress, CallID: callID, Node: "n1", Boot: "b", Progress: &module.ProgressReport{Done: 1, Note: long},
	}, contextwire.JSON)
	if err != nil {
		t.Fatal(err)
	}
	f, err := contextwire.DecodeFrame(frameHead("progress"), body, contextwire.Limits{})
	if err != nil || !strings.HasPrefix(long, f.Progress.Note) || len(f.Progress.Note) != 4096 {
		t.Errorf("note of %d bytes, %v", len(f.Progress.Note), err)
	}
	body, err = contextwire.EncodeControl(&contextwire.CancelNotice{Call: callID, Reason: "x" + long + "\xff", By: "\xffana", At: time.Now()}, contextwire.JSON)
	if err != nil {
		t.Fatal(err)
	}
	n, err := contextwire.DecodeCancelNotice(body, contextwire.JSON, contextwire.Limits{})
	if err != nil || n.By != "ana" || len(n.Reason) != 4095 {
		t.Errorf("got %v, %v", n, err)
	}
}

func TestDecodeBareReply(t *testing.T) {
	tests := []struct {
		name string
		h    contextwire.Header
		body string
		code module.Code
	}{
		{"output", nil, `{"a":1}`, ""},
		{"error", contextwire.Header{"nats-service-error-code": {"403"}}, `{"code":"ACL_DENIED","message":"no"}`, module.CodeACLDenied},
		{"error without code", contextwire.Header{"Nats-Service-Error": {"x"}}, `{}`, module.CodeBusBadMessage},
		{"empty", nil, ``, module.CodeBusBadMessage},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := contextwire.DecodeBareReply(tt.h, []byte(tt.body), contextwire.Limits{})
			if module.CodeOf(err) != tt.code || (err == nil) == (out == nil) {
				t.Errorf("got %v, %v", out, err)
			}
		})
	}
}

// A client is no node: its answer to a probe names neither node nor call. Every
// other frame says who sent it.
func TestFrameOfAClient(t *testing.T) {
	h, body, err := contextwire.EncodeFrame(&contextwire.Frame{Kind: contextwire.FrameResult, Body: map[string]any{}}, contextwire.JSON)
	if err != nil {
		t.Fatal(err)
	}
	if h.Has(contextwire.HeaderNode) || h.Has(contextwire.HeaderCall) {
		t.Errorf("headers %v name a node or a call", h)
	}
	f, err := contextwire.DecodeFrame(h, body, contextwire.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	if f.Kind != contextwire.FrameResult || f.Node != "" || f.Boot != "" {
		t.Errorf("decoded %+v", f)
	}
	for _, tt := range []struct {
		name  string
		frame contextwire.Frame
	}{
		{"result of a call", contextwire.Frame{Kind: contextwire.FrameResult, CallID: callID, Body: map[string]any{}}},
		{"error", contextwire.Frame{Kind: contextwire.FrameError, Err: module.Errorf(module.CodeInternal, "x")}},
		{"node without boot", contextwire.Frame{Kind: contextwire.FrameResult, Node: "n1", Body: map[string]any{}}},
		{"boot without node", contextwire.Frame{Kind: contextwire.FrameResult, Boot: "b", Body: map[string]any{}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, _, err := contextwire.EncodeFrame(&tt.frame, contextwire.JSON); module.CodeOf(err) != module.CodeInternal {
				t.Errorf("err = %v, want %s", err, module.CodeInternal)
			}
		})
	}
	for _, header := range []contextwire.Header{
		{"apbus-frame": {"result"}, "apbus-node": {""}},
		{"apbus-frame": {"error"}, "apbus-error": {"X"}},
	} {
		if _, err := contextwire.DecodeFrame(header, []byte(`{}`), contextwire.DefaultLimits()); module.CodeOf(err) != module.CodeBusBadMessage {
			t.Errorf("%v: err = %v, want %s", header, err, module.CodeBusBadMessage)
		}
	}
}

// The encoder of a stream makes what EncodeFrame makes, also after a large chunk and
// after one that cannot be encoded.
