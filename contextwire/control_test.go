package contextwire_test

import (
	"strings"
	"testing"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// decoders are the control decoders by the name of the message.
func decoders() map[string]func([]byte, contextwire.ContentType, contextwire.Limits) (any, error) {
	return map[string]func([]byte, contextwire.ContentType, contextwire.Limits) (any, error){
		"cancel":        erase(contextwire.DecodeCancelNotice),
		"cancel-answer": erase(contextwire.DecodeCancelAnswer),
		"ping":          erase(contextwire.DecodePing),
		"pong":          erase(contextwire.DecodePong),
		"probe":         erase(contextwire.DecodeProbe),
		"probe-answer":  erase(decodeProbeAnswer),
		"drain":         erase(contextwire.DecodeDrainRequest),
		"drain-answer":  erase(contextwire.DecodeDrainAnswer),
		"describe":      erase(contextwire.DecodeDescribeRequest),
		"calls":         erase(contextwire.DecodeCallsRequest),
		"call-list":     erase(contextwire.DecodeCallList),
		"node-record":   erase(contextwire.DecodeNodeRecord),
		"stats":         erase(contextwire.DecodeNodeStats),
	}
}

func erase[T any](decode func([]byte, contextwire.ContentType, contextwire.Limits) (*T, error)) func([]byte, contextwire.ContentType, contextwire.Limits) (any, error) {
	return func(body []byte, ct contextwire.ContentType, lim contextwire.Limits) (any, error) {
		v, err := decode(body, ct, lim)
		if v == nil {
			return nil, err
		}
		return v, err
	}
}

func TestDecodeControl(t *testing.T) {
	long := `"` + strings.Repeat("x", 4097) + `"`
	many := "[" + strings.TrimSuffix(strings.Repeat(`"`+callID+`/1",`, 100_001), ",") + "]"
	call := `"call":"` + callID + `"`
	tests := []struct {
		message, name, body string
		ok                  bool
	}{
		{"cancel", "call", `{` + call + `}`, true},
		{"cancel", "unknown key", `{` + call + `,"x":[]}`, true},
		{"cancel", "trace of any form", `{"trace":"550e8400-e29b-41d4-a716-446655440000","at":"2026-11-30T13:00:00+01:00"}`, true},
		{"cancel", "nothing", `{}`, false},
		{"cancel", "empty", ``, false},
		{"cancel", "two selectors", `{` + call + `,"root":"` + callID + `"}`, false},
		{"cancel", "attempt without call", `{"root":"` + callID + `","attempt":1}`, false},
		{"cancel", "bad call id", `{"call":"x"}`, false},
		{"cancel", "call of another type", `{"call":1}`, false},
		{"cancel", "attempt fraction", `{` + call + `,"attempt":1.0}`, false},
		{"cancel", "attempt over range", `{` + call + `,"attempt":18446744073709551615}`, false},
		{"cancel", "bad time", `{` + call + `,"at":"yesterday"}`, false},
		{"cancel", "long reason", `{` + call + `,"reason":` + long + `}`, false},
		{"cancel", "list", `[]`, false},
		{"cancel-answer", "state of the future", `{"node":"n1","calls":[],"state":"pondering"}`, true},
		{"cancel-answer", "no node", `{"calls":[],"state":"finished"}`, false},
		{"ping", "no changes", `{"client":"_INBOX.a"}`, true},
		{"ping", "no client", `{"open":[]}`, false},
		{"ping", "bad key", `{"client":"a","open":["x/1"]}`, false},
		{"ping", "open is a map", `{"client":"a","open":{}}`, false},
		{"ping", "item is a number", `{"client":"a","open":[1]}`, false},
		{"ping", "too many items", `{"client":"a","open":` + many + `}`, false},
		{"pong", "least", `{"node":"n1","boot":"b"}`, true},
		{"pong", "draining text", `{"node":"n1","boot":"b","draining":"no"}`, false},
		{"pong", "negative count", `{"node":"n1","boot":"b","in_flight":-1}`, false},
		{"probe", "no boot", `{"node":"n1"}`, false},
		{"probe", "bad key", `{"node":"n1","boot":"b","calls":["x"]}`, false},
		{"probe-answer", "alive", `{}`, true},
		{"probe-answer", "bad key", `{"unknown":["x"]}`, false},
		{"drain", "empty", ``, true},
		{"drain", "negative grace", `{"grace_ms":-1}`, false},
		{"drain", "grace beyond a duration", `{"grace_ms":9223372036855}`, false},
		{"drain-answer", "empty", `{}`, true},
		{"describe", "empty", ``, true},
		{"describe", "module number", `{"module":1}`, false},
		{"calls", "empty", `{}`, true},
		{"calls", "bad root", `{"root":"x"}`, false},
		{"call-list", "no calls", `{"node":"n1","calls":null}`, true},
		{"call-list", "call is text", `{"node":"n1","calls":["x"]}`, false},
		{"call-list", "call without module", `{"node":"n1","calls":[{` + call + `}]}`, false},
		{"call-list", "call with bad time", `{"node":"n1","calls":[{` + call + `,"module_id":"a.b","started_at":1}]}`, false},
		{"node-record", "least", `{"protocol":1,"node":"n1","boot":"b","ns":"default"}`, true},
		{"node-record", "newer protocol", `{"protocol":2,"node":"n1","boot":"b","ns":"default","x":1}`, true},
		{"node-record", "no protocol is protocol 0", `{"protocol":0,"node":"n1","boot":"b","ns":"default"}`, false},
		{"node-record", "bad node", `{"protocol":1,"node":"n.1","boot":"b","ns":"default"}`, false},
		{"stats", "an older node", `{"node":"n1","boot":"b","in_flight":3,"calls":9}`, true},
		{"stats", "no node", `{"boot":"b"}`, false},
		{"stats", "errors are a list", `{"node":"n1","modules":[{"module_id":"a.b","errors":[1]}]}`, false},
		{"stats", "an error count is text", `{"node":"n1","modules":[{"module_id":"a.b","errors":{"X":"1"}}]}`, false},
		{"stats", "latency is a number", `{"node":"n1","modules":[{"module_id":"a.b","latency_us":[1]}]}`, false},
		{"stats", "latency of three", `{"node":"n1","modules":[{"module_id":"a.b","latency_us":[[1,2,3]]}]}`, false},
		{"stats", "latency out of order", `{"node":"n1","modules":[{"module_id":"a.b","latency_us":[[9,1],[8,1]]}]}`, false},
		{"stats", "negative latency count", `{"node":"n1","modules":[{"module_id":"a.b","latency_us":[[9,-1]]}]}`, false},
		{"stats", "module without id", `{"node":"n1","modules":[{}]}`, false},
		{"node-record", "module without id", `{"protocol":1,"node":"n1","boot":"b","ns":"default","modules":[{"version":"1"}]}`, false},
	}
	for _, tt := range tests {
		t.Run(tt.message+" "+tt.name, func(t *testing.T) {
			v, err := decoders()[tt.message]([]byte(tt.body), contextwire.JSON, contextwire.Limits{})
			switch {
			case tt.ok && (err != nil || v == nil):
				t.Errorf("refused: %v", err)
			case !tt.ok && (v != nil || module.CodeOf(err) != module.CodeBusBadMessage):
				t.Errorf("got %v, error %v", v, err)
			}
		})
	}
}

func TestAnswersFromFrames(t *testing.T) {
	want := &contextwire.CallList{Node: "n1", Boot: "b", Calls: []contextwire.CallRecord{{Call: callID, ModuleID: "a.b", StartedAt: at}}}
	h, body, err := contextwire.EncodeFrame(&contextwire.Frame{Kind: contextwire.FrameResult, Node: "n1", Boot: "b", Body: want.Map()}, contextwire.JSON)
	if err != nil {
		t.Fatal(err)
	}
	f, err := contextwire.DecodeFrame(h, body, contextwire.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := contextwire.CallListFromMap(f.Body)
	if err != nil || len(got.Calls) != 1 || got.Calls[0] != want.Calls[0] {
		t.Errorf("got %+v, %v", got, err)
	}
	for name, err := range map[string]error{
		"pong":          second(contextwire.PongFromMap(f.Body)),
		"cancel answer": second(contextwire.CancelAnswerFromMap(f.Body)),
		"node record":   second(contextwire.NodeRecordFromMap(f.Body)),
		"drain answer":  second(contextwire.DrainAnswerFromMap(f.Body)),
	} {
		if wantErr := name != "pong" && name != "drain answer"; (err != nil) != wantErr {
			t.Errorf("%s read from a call list: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
