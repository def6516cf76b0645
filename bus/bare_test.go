package bus_test

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

func TestBareRequests(t *testing.T) {
	host := func() *stubHost {
		return newStubHost().add("mod.echo", module.Annotations{}, func(_ context.Context, req *contextwire.Request) (map[string]any, error) {
			id := "none"
			if req.Context.Identity() != nil {
				id = req.Context.Identity().ID()
			}
			return map[string]any{"inputs": req.Inputs, "trace": req.Context.TraceID(), "caller": req.Context.CallerID(), "identity": id}, nil
		}).add("mod.fails", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
			return nil, module.Errorf(module.CodeModuleExecuteError, "it broke")
		}).add("mod.big", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
			return map[string]any{"body": strings.Repeat("x", 2<<20)}, nil
		})
	}
	const trace = "0af7651916cd43dd8448eb211c80319c"
	for _, tt := range []struct {
		name, subject, body string
		header              nats.Header
		want                map[string]any // nil for an error
		code                module.Code
		status              string
	}{
		{"json", anyHost("mod.echo"), `{"a":1,"b":[2,null]}`, nil, map[string]any{"a": int64(1), "b": []any{int64(2), nil}}, "", ""},
		{"empty body", anyHost("mod.echo"), "", nil, map[string]any{}, "", ""},
		{"spaces and a foreign header", anyHost("mod.echo"), ` {} `, nats.Header{"X-Foreign": {"1"}, "Nats-Rollup": {"all"}}, map[string]any{}, "", ""},
		{"by major version", "apbus.v1.call.default.1.mod.echo", `{}`, nil, map[string]any{}, "", ""},
		{"traceparent", anyHost("mod.echo"), `{}`, nats.Header{"traceparent": {"00-" + trace + "-b7ad6b7169203331-01"}}, map[string]any{}, "", ""},
		{"64 bits", anyHost("mod.echo"), `{"i":-9223372036854775808,"u":18446744073709551615}`, nil, map[string]any{"i": int64(math.MinInt64), "u": uint64(math.MaxUint64)}, "", ""},
		{"failure", anyHost("mod.fails"), `{}`, nil, nil, module.CodeModuleExecuteError, "500"},
		{"answer too large", anyHost("mod.big"), `{}`, nil, nil, module.CodeBusPayloadTooLarge, "413"},
		{"not json", anyHost("mod.echo"), `{"a":`, nil, nil, module.CodeBusBadMessage, "400"},
		{"not a map", anyHost("mod.echo"), `[1]`, nil, nil, module.CodeBusBadMessage, "400"},
		{"duplicate keys", anyHost("mod.echo"), `{"a":1,"a":2}`, nil, nil, module.CodeBusBadMessage, "400"},
		{"unknown type", anyHost("mod.echo"), `{}`, nats.Header{"content-type": {"text/xml"}}, nil, module.CodeBusUnsupportedType, "415"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onMesh(t, func(m *mesh) {
				m.node("n1", host())
				reply, err := m.connect().RequestMsgWithContext(m.within(5e9), &nats.Msg{Subject: tt.subject, Data: []byte(tt.body), Header: tt.header})
				if err != nil {
					m.t.Fatal(err)
				}
				got, err := contextwire.DecodeMap(contextwire.JSON, reply.Data, contextwire.DefaultLimits())
				if err != nil {
					m.t.Fatalf("the answer is not a JSON map: %v in %.200q", err, reply.Data)
				}
				if tt.want == nil {
					if got["code"] != string(tt.code) || reply.Header.Get("Nats-Service-Error-Code") != tt.status || reply.Header.Get("Nats-Service-Error") == "" {
						m.t.Errorf("got %v with headers %v", got, reply.Header)
					}
					return
				}
				if len(reply.Header) != 0 {
					m.t.Errorf("a bare answer has headers %v", reply.Header)
				}
				if diff := cmp.Diff(tt.want, got["inputs"]); diff != "" {
					m.t.Errorf("inputs (-want +got):\n%s", diff)
				}
				if tt.header["traceparent"] != nil && got["trace"] != trace {
					m.t.Errorf("trace %v, want that of traceparent", got["trace"])
				}
				if got["caller"] != "" || got["identity"] != "none" || len(got["trace"].(string)) != 32 {
					m.t.Errorf("caller %q, identity %q, trace %q", got["caller"], got["identity"], got["trace"])
				}
			})
		})
	}
}

func TestCheck(t *testing.T) {
	onMesh(t, func(m *mesh) {
		ran := 0
		n := m.node("n1", newStubHost().add("mod.x", module.Annotations{}, func(context.Context, *contextwire.Request) (map[string]any, error) {
			ran++
			return map[string]any{}, nil
		}))
		c := m.client()
		m.wait(c, "mod.x")
		for inputs, want := range map[string]bool{`{}`: true, `{"bad":1}`: false} {
			var in map[string]any
			if err := json.Unmarshal([]byte(inputs), &in); err != nil {
				m.t.Fatal(err)
			}
			res, err := c.Check(m.t.Context(), &contextwire.Request{ModuleID: "mod.x", Inputs: in})
			if err != nil || res.Valid != want || len(res.Checks) != 1 || res.Checks[0].Check != "module_id" {
				m.t.Errorf("%s: %+v, %v", inputs, res, err)
			}
			for _, subject := range []string{
				"apbus.v1.check.default._.mod.x", "apbus.v1.check.default.1.mod.x",
				"apbus.v1.check.default.@.n1." + n.Boot() + ".mod.x",
			} {
				reply, err := m.connect().RequestMsgWithContext(m.within(5e9), &nats.Msg{Subject: subject, Data: []byte(inputs)})
				if err != nil {
					m.t.Fatal(err)
				}
				got, err := contextwire.DecodeMap(contextwire.JSON, reply.Data, contextwire.DefaultLimits())
				if err != nil || got["valid"] != want {
					m.t.Errorf("%s to %s: %v, %v", inputs, subject, got, err)
				}
			}
		}
		if ran != 0 {
			m.t.Errorf("checks ran the module %d times", ran)
		}
		if _, err := c.Check(m.t.Context(), &contextwire.Request{ModuleID: "no.such"}); module.CodeOf(err) != module.CodeModuleNotFound {
			m.t.Errorf("check of an unknown module: %v", err)
		}
	})
}

func TestValuesKeepTheirWidth(t *testing.T) {
	onMesh(t, func(m *mesh) {
		m.node("n1", newStubHost().add("mod.x", module.Annotations{}, echo))
		c := m.client()
		m.wait(c, "mod.x")
		in := map[string]any{
			"min": int64(math.MinInt64), "max": int64(math.MaxInt64), "umax": uint64(math.MaxUint64),
			"f": 0.1, "s": "héllo \u0000", "n": nil, "b": true, "l": []any{int64(1), map[string]any{}},
		}
		out, err := c.Call(m.t.Context(), "mod.x", in)
		if err != nil {
			m.t.Fatal(err)
		}
		if diff := cmp.Diff(in, out["inputs"]); diff != "" {
			m.t.Errorf("inputs (-want +got):\n%s", diff)
		}
	})
}

// withoutJetStream connects like a process on a bus that has none.
func (m *mesh) withoutJetStream() *bus.Conns {
	return bus.NewConns(bus.WrapNATS(m.connect()), bus.WrapNATS(m.connect()), nil, bus.Options{Logger: quiet()})
}

func TestWithoutJetStreamTooLargeIsRefusedBeforeItIsSent(t *testing.T) {
	onMesh(t, func(m *mesh) {
		ran := make(chan string, 1)
		m.nodeOn(m.withoutJetStream(), "n1", newStubHost().add("mod.x", module.Annotations{}, func(_ context.Context, req *contextwire.Request) (map[string]any, error) {
			ran <- req.CallID
			return map[string]any{"body": strings.Repeat("x", 2<<20)}, nil
		}))
		c := m.clientOn(m.withoutJetStream())
		_, err := c.Call(m.t.Context(), "mod.x", map[string]any{"body": strings.Repeat("x", 2<<20)})
		if e := wantCode(m.t, err, module.CodeBusPayloadTooLarge); !e.Unexecuted || e.Remote || e.Details["limit"] != int64(1<<20) || len(ran) != 0 {
			m.t.Errorf("unexecuted %v, remote %v, details %v, ran %d times", e.Unexecuted, e.Remote, e.Details, len(ran))
		}
		_, err = c.Call(m.t.Context(), "mod.x", nil)
		if e := wantCode(m.t, err, module.CodeBusPayloadTooLarge); e.Unexecuted || !e.Remote {
			m.t.Errorf("an answer that is too large: unexecuted %v, remote %v", e.Unexecuted, e.Remote)
		}
	})
}
