package contextwire_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/google/go-cmp/cmp"
)

func head(extra ...string) contextwire.Header {
	h := contextwire.Header{"apbus-version": {"1"}, "apbus-call": {callID}}
	for i := 0; i < len(extra); i += 2 {
		h[extra[i]] = []string{extra[i+1]}
	}
	return h
}

func TestParseHead(t *testing.T) {
	base := contextwire.Head{
		CallID: callID, Attempt: 1, ModuleID: "m.x", Credit: contextwire.DefaultCredit(),
		ContentType: contextwire.JSON, Accept: contextwire.JSON,
	}
	with := func(change func(*contextwire.Head)) contextwire.Head {
		h := base
		change(&h)
		return h
	}
	tests := []struct {
		name string
		in   contextwire.Header
		want contextwire.Head
	}{
		{"least", head(), base},
		{"unknown headers and modes of spelling", contextwire.Header{"Apbus-Version": {"1"}, "APBUS-CALL": {callID}, "x-y": {"z"}, "empty": nil}, base},
		{"first value wins", contextwire.Header{"apbus-version": {"1", "9"}, "apbus-call": {callID, "x"}}, base},
		{"lower case wins", contextwire.Header{"apbus-version": {"1"}, "apbus-call": {callID}, "Apbus-Call": {"x"}}, base},
		{"msgpack with parameters", head("content-type", " Application/MsgPack; v=1"), with(func(h *contextwire.Head) { h.ContentType, h.Accept = contextwire.MsgPack, contextwire.MsgPack })},
		{"accept another", head("content-type", "application/msgpack", "accept", "text/html, application/json;q=0.5"), with(func(h *contextwire.Head) { h.ContentType = contextwire.MsgPack })},
		{"accept anything", head("content-type", "application/msgpack", "accept", "*/*"), with(func(h *contextwire.Head) { h.ContentType, h.Accept = contextwire.MsgPack, contextwire.MsgPack })},
		{"budget", head("apbus-budget-ms", "1500"), with(func(h *contextwire.Head) { h.Budget = 1500 * time.Millisecond })},
		{"no budget left", head("apbus-budget-ms", "0"), with(func(h *contextwire.Head) { h.BudgetExhausted = true })},
		{"less than none left", head("apbus-budget-ms", "-20"), with(func(h *contextwire.Head) { h.BudgetExhausted = true })},
		{"budget of ages", head("apbus-budget-ms", "9223372036854775807"), with(func(h *contextwire.Head) { h.Budget = 9223372036854 * time.Millisecond })},
		{"stream", head("apbus-mode", "stream", "apbus-credit", "1/1"), with(func(h *contextwire.Head) { h.Stream, h.Credit = true, contextwire.Credit{Frames: 1, Bytes: 1} })},
		{"unary", head("apbus-mode", "unary"), base},
		{"other trace value", head("apbus-trace", "0"), base},
		{"malformed traceparent", head("traceparent", "00-zz"), base},
		{"body ref", head("apbus-body-ref", "b;size=3;sha256="+strings.Repeat("0a", 32)), with(func(h *contextwire.Head) {
			h.BodyRef = &contextwire.BodyRef{Name: "b", Size: 3, SHA256: strings.Repeat("0a", 32)}
		})},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := contextwire.ParseHead("m.x", tt.in, contextwire.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, *got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseHeadRefuses(t *testing.T) {
	digest := strings.Repeat("0a", 32)
	tests := []struct {
		name string
		in   contextwire.Header
		code module.Code
	}{
		{"version 2", contextwire.Header{"apbus-version": {"2"}, "apbus-call": {callID}}, module.CodeBusVersionUnsupported},
		{"version empty", contextwire.Header{"apbus-version": {""}, "apbus-call": {callID}}, module.CodeBusVersionUnsupported},
		{"version before all else", contextwire.Header{"apbus-version": {"x"}, "content-type": {"x"}}, module.CodeBusVersionUnsupported},
		{"content type", head("content-type", "text/plain"), module.CodeBusUnsupportedType},
		{"accept", head("accept", "text/plain"), module.CodeBusUnsupportedType},
		{"bare msgpack", contextwire.Header{"content-type": {"application/msgpack"}}, module.CodeBusUnsupportedType},
		{"no call", contextwire.Header{"apbus-version": {"1"}}, module.CodeBusBadMessage},
		{"short call", head("apbus-call", "123456789012345"), module.CodeBusBadMessage},
		{"long call", head("apbus-call", strings.Repeat("x", 65)), module.CodeBusBadMessage},
		{"call with dot", head("apbus-call", "1234567890123456."), module.CodeBusBadMessage},
		{"root", head("apbus-root", "x"), module.CodeBusBadMessage},
		{"empty parent", head("apbus-parent", ""), module.CodeBusBadMessage},
		{"attempt 0", head("apbus-attempt", "0"), module.CodeBusBadMessage},
		{"attempt 1000", head("apbus-attempt", "1000"), module.CodeBusBadMessage},
		{"attempt text", head("apbus-attempt", "one"), module.CodeBusBadMessage},
		{"attempt with sign", head("apbus-attempt", "+1"), module.CodeBusBadMessage},
		{"budget fraction", head("apbus-budget-ms", "1.5"), module.CodeBusBadMessage},
		{"budget empty", head("apbus-budget-ms", ""), module.CodeBusBadMessage},
		{"budget over 64 bits", head("apbus-budget-ms", "99999999999999999999"), module.CodeBusBadMessage},
		{"mode", head("apbus-mode", "batch"), module.CodeBusBadMessage},
		{"credit zero", head("apbus-credit", "0/1"), module.CodeBusBadMessage},
		{"credit without bytes", head("apbus-credit", "64"), module.CodeBusBadMessage},
		{"constraint of several lines", head("apbus-module-version", "^1\n"), module.CodeBusBadMessage},
		{"long constraint", head("apbus-module-version", strings.Repeat("1", 129)), module.CodeBusBadMessage},
		{"long idempotency key", head("apbus-idempotency", strings.Repeat("1", 257)), module.CodeBusBadMessage},
		{"idempotency key not ASCII", head("apbus-idempotency", "é"), module.CodeBusBadMessage},
		{"body ref", head("apbus-body-ref", "b"), module.CodeBusBadMessage},
		{"body ref digest", head("apbus-body-ref", "b;size=1;sha256=00"), module.CodeBusBadMessage},
		{"body ref size", head("apbus-body-ref", "b;size=-1;sha256="+digest), module.CodeBusBadMessage},
		{"body ref too large", head("apbus-body-ref", "b;size=67108865;sha256="+digest), module.CodeBusPayloadTooLarge},
		{"header block", head("x", strings.Repeat("x", 16<<10)), module.CodeBusBadMessage},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := contextwire.ParseHead("m.x", tt.in, contextwire.Limits{})
			if got != nil || module.CodeOf(err) != tt.code {
				t.Errorf("got %v, error %v, want %s", got, err, tt.code)
			}
		})
	}
}

func TestDecodeBody(t *testing.T) {
	parent := "00-" + traceID + "-" + spanID + "-00"
	tests := []struct {
		name  string
		h     contextwire.Header
		body  string
		want  map[string]any // of the context; absent keys are not compared
		input map[string]any
	}{
		{"nothing", head(), `{}`, map[string]any{"caller_id": nil, "identity": nil, "call_chain": []any{}, "data": map[string]any{}}, map[string]any{}},
		{"nulls", head("traceparent", parent), `{"context":null,"inputs":null}`, map[string]any{"trace_id": traceID, "identity": nil}, map[string]any{}},
		{"null parts", head("traceparent", parent), `{"context":{"trace_id":null,"caller_id":null,"call_chain":null,"identity":null,"data":null,"redacted_inputs":null}}`,
			map[string]any{"trace_id": traceID, "caller_id": nil, "call_chain": []any{}, "identity": nil, "data": map[string]any{}}, map[string]any{}},
		{"own trace wins", head("traceparent", parent), `{"context":{"trace_id":"550e8400-e29b-41d4-a716-446655440000"}}`, map[string]any{"trace_id": "550e8400-e29b-41d4-a716-446655440000"}, map[string]any{}},
		{"newer version and unknown keys", head(), `{"context":{"_context_version":7,"new":1,"call_chain":["a.b"]},"inputs":{"_x":1},"extra":[]}`,
			map[string]any{"_context_version": int64(1), "call_chain": []any{"a.b"}}, map[string]any{"_x": int64(1)}},
		{"private data is dropped again", head(), `{"context":{"data":{"_secret_a":1,"_apcore.x":2,"b":3}}}`, map[string]any{"data": map[string]any{"b": int64(3)}}, map[string]any{}},
		{"identity defaults", head(), `{"context":{"identity":{"id":"svc"}}}`, map[string]any{"identity": map[string]any{"id": "svc", "type": "user", "roles": []any{}, "attrs": map[string]any{}}}, map[string]any{}},
		{"bare and empty", contextwire.Header{"traceparent": {parent}}, ``, map[string]any{"trace_id": traceID, "caller_id": nil, "identity": nil}, map[string]any{}},
		{"bare inputs named like an envelope", nil, `{"context":1,"inputs":2}`, nil, map[string]any{"context": int64(1), "inputs": int64(2)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := decodeRequest("m.x", tt.h, []byte(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			got := contextwire.ContextMap(r.Context)
			for k, v := range tt.want {
				if diff := cmp.Diff(v, got[k]); diff != "" {
					t.Errorf("context %s (-want +got):\n%s", k, diff)
				}
			}
			if got["trace_id"] == "" {
				t.Error("no trace id")
			}
			if diff := cmp.Diff(tt.input, r.Inputs); diff != "" {
				t.Errorf("inputs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeBodyRefuses(t *testing.T) {
	long := strings.Repeat("a", 193)
	chain, _ := json.Marshal(strings.Split(strings.Repeat("a,", 1024)+"a", ","))
	tests := []struct{ name, body string }{
		{"empty", ``}, {"list", `[]`}, {"inputs list", `{"inputs":[]}`}, {"inputs text", `{"inputs":"secret"}`},
		{"context text", `{"context":"secret"}`}, {"version text", `{"context":{"_context_version":"1"}}`},
		{"version negative", `{"context":{"_context_version":-1}}`},
		{"trace number", `{"context":{"trace_id":1}}`}, {"trace long", `{"context":{"trace_id":"` + strings.Repeat("a", 257) + `"}}`},
		{"caller number", `{"context":{"caller_id":1}}`}, {"caller long", `{"context":{"caller_id":"` + long + `"}}`},
		{"chain text", `{"context":{"call_chain":"a"}}`}, {"chain of numbers", `{"context":{"call_chain":[1]}}`},
		{"chain with null", `{"context":{"call_chain":[null]}}`}, {"chain with empty", `{"context":{"call_chain":[""]}}`},
		{"chain item long", `{"context":{"call_chain":["` + long + `"]}}`}, {"chain long", `{"context":{"call_chain":` + string(chain) + `}}`},
		{"identity text", `{"context":{"identity":"secret"}}`}, {"identity without id", `{"context":{"identity":{}}}`},
		{"identity roles", `{"context":{"identity":{"id":"a","roles":["secret",1]}}}`}, {"identity attrs", `{"context":{"identity":{"id":"a","attrs":[]}}}`},
		{"data list", `{"context":{"data":["secret"]}}`}, {"redacted text", `{"context":{"redacted_output":"secret"}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := decodeRequest("m.x", head(), []byte(tt.body))
			if r != nil || module.CodeOf(err) != module.CodeBusBadMessage {
				t.Fatalf("got %v, error %v", r, err)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("error quotes data: %v", err)
			}
		})
	}
}

func TestBodyRefIsChecked(t *testing.T) {
	body := []byte(`{"inputs":{"a":1}}`)
	h := head(contextwire.HeaderBodyRef, contextwire.NewBodyRef("b", body).String())
	if r, err := decodeRequest("m.x", h, body); err != nil || r.Inputs["a"] != int64(1) {
		t.Errorf("got %v, %v", r, err)
	}
	for name, other := range map[string]string{"size": `{}`, "digest": `{"inputs":{"a":2}}`} {
		if _, err := decodeRequest("m.x", h, []byte(other)); module.CodeOf(err) != module.CodeBusBadMessage {
			t.Errorf("other %s: %v", name, err)
		}
	}
}

func TestEncodeRequestContext(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	data := map[string]any{"ok": int64(1), "_private": "secret", "chan": make(chan int), "text": "secret\xff"}
	for i := range 20 { // beyond the short msgpack header
		data["k"+strings.Repeat("x", i)] = true
	}
	c := module.NewContext(module.ContextOptions{Data: data})
	c.SetRedactedInputs(func() map[string]any { t.Error("redacted copy was made"); return nil })
	for _, ct := range codecs {
		h, body, err := contextwire.EncodeRequest(&contextwire.Request{CallID: callID, Context: c}, ct)
		if err != nil {
			t.Fatal(err)
		}
		r, err := decodeRequest("m.x", h, body)
		if err != nil {
			t.Fatal(err)
		}
		got := r.Context.Data().Public()
		if got["ok"] != int64(1) || len(got) != 21 {
			t.Errorf("%s: data is %v", ct, got)
		}
		if r.Context.TraceID() != c.TraceID() || !strings.Contains(h.Get("traceparent"), c.TraceID()) {
			t.Errorf("%s: trace id is lost: %v", ct, h)
		}
	}
	if strings.Contains(log.String(), "secret") || strings.Count(log.String(), "key=chan") != 2 || strings.Count(log.String(), "level=WARN") != 4 {
		t.Errorf("log is %s", &log)
	}
}

func TestEncodeRequestTrace(t *testing.T) {
	c := module.NewContext(module.ContextOptions{TraceParent: &module.TraceParent{
		TraceID: traceID, ParentID: spanID, Flags: "00", State: []module.TraceState{{Key: "k", Value: "v"}},
	}})
	h, body, err := contextwire.EncodeRequest(&contextwire.Request{CallID: callID, Context: c}, contextwire.JSON)
	if err != nil {
		t.Fatal(err)
	}
	if got := h.Get("traceparent"); !strings.HasPrefix(got, "00-"+traceID+"-") || !strings.HasSuffix(got, "-00") || h.Get("tracestate") != "k=v" {
		t.Errorf("headers are %v", h)
	}
	r, err := decodeRequest("m.x", h, body)
	if err != nil {
		t.Fatal(err)
	}
	if flags, _ := r.Context.Data().Get(module.DataTraceFlags); flags != "00" {
		t.Errorf("flags did not survive the hop: %v", flags)
	}
	if state, _ := r.Context.Data().Get(module.DataTraceState); !cmp.Equal(state, []module.TraceState{{Key: "k", Value: "v"}}) {
		t.Errorf("state did not survive the hop: %v", state)
	}
	foreign := module.RestoreContext(module.ContextWire{TraceID: "550e8400-e29b-41d4-a716-446655440000"})
	if h, _, err = contextwire.EncodeRequest(&contextwire.Request{CallID: callID, Context: foreign}, contextwire.JSON); err != nil || h.Has("traceparent") {
		t.Errorf("headers are %v (%v), want no traceparent", h, err)
	}
}

func TestEncodeRequestRefuses(t *testing.T) {
	tests := []struct {
		name string
		r    contextwire.Request
		code module.Code
	}{
		{"no call id", contextwire.Request{}, module.CodeBusBadMessage},
		{"root", contextwire.Request{CallID: callID, Root: "a b"}, module.CodeBusBadMessage},
		{"attempt", contextwire.Request{CallID: callID, Attempt: -1}, module.CodeBusBadMessage},
		{"budget", contextwire.Request{CallID: callID, Budget: -1}, module.CodeBusBudgetExhausted},
		{"version", contextwire.Request{CallID: callID, Version: "1\r\nx: y"}, module.CodeBusBadMessage},
		{"idempotency", contextwire.Request{CallID: callID, IdempotencyKey: "\n"}, module.CodeBusBadMessage},
		{"credit", contextwire.Request{CallID: callID, Stream: true, Credit: contextwire.Credit{Frames: 1}}, module.CodeBusBadMessage},
		{"inputs", contextwire.Request{CallID: callID, Inputs: map[string]any{"f": func() {}}}, module.CodeBusBadMessage},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, _, err := contextwire.EncodeRequest(&tt.r, contextwire.MsgPack); module.CodeOf(err) != tt.code {
				t.Errorf("error is %v, want %s", err, tt.code)
			}
		})
	}
	if h, _, _ := contextwire.EncodeRequest(&contextwire.Request{CallID: callID, Budget: 1}, contextwire.JSON); h.Get("apbus-budget-ms") != "1" {
		t.Errorf("a nanosecond is sent as %v", h)
	}
}

func TestCallIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := contextwire.NewCallID()
		if len(id) != 22 || !contextwire.ValidCallID(id) || seen[id] {
			t.Fatalf("bad id %q", id)
		}
		seen[id] = true
	}
	call, attempt, ok := contextwire.ParseKey(contextwire.FormatKey(callID, 3))
	if call != callID || attempt != 3 || !ok {
		t.Errorf("got %s %d %v", call, attempt, ok)
	}
	for _, bad := range []string{"", callID, callID + "/", callID + "/0", callID + "/x", callID + "/1/1", "short/1", callID + "/1000"} {
		if _, _, ok := contextwire.ParseKey(bad); ok {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestHeader(t *testing.T) {
	h := contextwire.Header{"Apbus-Call": {"a"}, "NATS-Expected": {"1"}, "x-own": {"2"}}
	if h.Get("apbus-call") != "a" || h.Has("apbus-root") {
		t.Errorf("lookup in %v", h)
	}
	h.Set("apbus-call", "b")
	if len(h) != 3 || h.Get("APBUS-CALL") != "b" {
		t.Errorf("after Set: %v", h)
	}
	h.StripReserved()
	if diff := cmp.Diff(contextwire.Header{"x-own": {"2"}}, h); diff != "" {
		t.Errorf("after StripReserved:\n%s", diff)
	}
}

func TestRequestLogValue(t *testing.T) {
	var out bytes.Buffer
	r := &contextwire.Request{CallID: callID, Attempt: 1, ModuleID: "m.x", Context: plainContext(), Inputs: map[string]any{"card": "secret"}, IdempotencyKey: "secret"}
	slog.New(slog.NewTextHandler(&out, nil)).Info("call", "request", r)
	if s := out.String(); strings.Contains(s, "secret") || !strings.Contains(s, "request.call_id="+callID) || !strings.Contains(s, "request.trace_id="+traceID) {
		t.Errorf("log is %s", s)
	}
}
