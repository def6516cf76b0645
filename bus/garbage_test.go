package bus_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// garbage is what hostile or broken peers send, by name.
func garbage() map[string]*nats.Msg {
	enveloped := func(h nats.Header, body string) *nats.Msg {
		all := nats.Header{
			contextwire.HeaderVersion: {"1"}, contextwire.HeaderCall: {"call-0123456789abcdef"}, contextwire.HeaderContentType: {"application/json"},
		}
		for k, v := range h {
			all[k] = v
		}
		return &nats.Msg{Header: all, Data: []byte(body)}
	}
	good := `{"context":{},"inputs":{}}`
	deep := strings.Repeat("[", 10_000)
	out := map[string]*nats.Msg{
		"empty":              {},
		"zeros":              {Data: make([]byte, 1000)},
		"bare, truncated":    {Data: []byte(`{"a":`)},
		"bare, deep":         {Data: []byte(`{"a":` + deep)},
		"bare, deep closed":  {Data: []byte(`{"a":` + deep + strings.Repeat("]", 10_000) + `}`)},
		"bare, a list":       {Data: []byte(`[]`)},
		"bare, null":         {Data: []byte(`null`)},
		"bare, bad utf-8":    {Data: []byte("{\"\xff\":1}")},
		"no responders":      {Header: nats.Header{"Status": {"503"}}},
		"foreign headers":    {Header: nats.Header{"X-A": {"b"}, "Nats-Msg-Id": {"1"}, "apbus-frame": {"result"}}, Data: []byte(`{}`)},
		"version 2":          enveloped(nats.Header{contextwire.HeaderVersion: {"2"}}, good),
		"version x":          enveloped(nats.Header{contextwire.HeaderVersion: {"x"}}, good),
		"no call id":         enveloped(nats.Header{contextwire.HeaderCall: {""}}, good),
		"call id too long":   enveloped(nats.Header{contextwire.HeaderCall: {strings.Repeat("x", 65)}}, good),
		"call id with stars": enveloped(nats.Header{contextwire.HeaderCall: {"call.*.>456789abcdef"}}, good),
		"attempt 0":          enveloped(nats.Header{contextwire.HeaderAttempt: {"0"}}, good),
		"attempt huge":       enveloped(nats.Header{contextwire.HeaderAttempt: {"99999999999999999999"}}, good),
		"budget a word":      enveloped(nats.Header{contextwire.HeaderBudget: {"soon"}}, good),
		"mode":               enveloped(nats.Header{contextwire.HeaderMode: {"duplex"}}, good),
		"credit":             enveloped(nats.Header{contextwire.HeaderMode: {"stream"}, contextwire.HeaderCredit: {"0/0"}}, good),
		"stream":             enveloped(nats.Header{contextwire.HeaderMode: {"stream"}}, good),
		"body ref":           enveloped(nats.Header{contextwire.HeaderBodyRef: {"x;size=1;sha256=zz"}}, ""),
		"type":               enveloped(nats.Header{contextwire.HeaderContentType: {"text/plain"}}, good),
		"accept":             enveloped(nats.Header{contextwire.HeaderAccept: {"text/plain"}}, good),
		"huge header":        enveloped(nats.Header{"x-filler": {strings.Repeat("x", 20_000)}}, good),
		"many headers":       enveloped(nats.Header{"x": strings.Split(strings.Repeat("y,", 9_000), ",")}, good),
		"no body":            enveloped(nil, ""),
		"body a list":        enveloped(nil, `[]`),
		"inputs a list":      enveloped(nil, `{"context":{},"inputs":[]}`),
		"context a string":   enveloped(nil, `{"context":"x","inputs":{}}`),
		"chain of numbers":   enveloped(nil, `{"context":{"call_chain":[1]},"inputs":{}}`),
		"deep":               enveloped(nil, `{"inputs":{"a":`+deep),
		"msgpack cut off":    enveloped(nats.Header{contextwire.HeaderContentType: {"application/msgpack"}}, "\x82\xa7context\xdf\xff\xff\xff\xff"),
		"msgpack huge map":   enveloped(nats.Header{contextwire.HeaderContentType: {"application/msgpack"}}, "\xdf\xff\xff\xff\xff"),
		"msgpack huge bin":   enveloped(nats.Header{contextwire.HeaderContentType: {"application/msgpack"}}, "\x81\xa6inputs\xc6\xff\xff\xff\xff"),
		"msgpack ext":        enveloped(nats.Header{contextwire.HeaderContentType: {"application/msgpack"}}, "\x81\xa6inputs\xd4\x01\x00"),
		"frame":              {Header: nats.Header{"apbus-frame": {"end"}, "apbus-seq": {"-1"}}},
		"unknown frame":      {Header: nats.Header{"apbus-frame": {"party"}}},
		"error without body": {Header: nats.Header{"apbus-frame": {"error"}}},
		"control strings":    {Data: []byte(`{"client":1,"open":"x","call":{},"grace_ms":"soon","module":[],"node":null}`)},
		"control lists":      {Data: []byte(`{"client":"x","open":["nokey","a/b/c",""],"closed":["/"]}`)},
		"control two":        {Data: []byte(`{"call":"call-0123456789abcdef","root":"call-0123456789abcdef"}`)},
	}
	return out
}

// Garbage on every subject gets a coded error or nothing; the node goes on, and
// what it cost is given back.
func TestGarbageOnEverySubject(t *testing.T) {
	onWire(t, func(w *wire) {
		n := w.node("n1", newStubHost().add("mod.x", module.Annotations{}, echo))
		c := w.client()
		p := w.peer()
		base := []string{
			anyHost("mod.x"), "apbus.v1.call.default.1.mod.x", directed(n, "mod.x"), directed(n, "no.such"), directed(n, "Bad..Id"),
			"apbus.v1.check.default._.mod.x", strings.Replace(directed(n, "mod.x"), ".call.", ".check.", 1),
			"apbus.v1.cancel.default.mod.x", "apbus.v1.cancel.default._all",
		}
		for _, verb := range []string{"ping", "cancel", "describe", "calls", "stats"} {
			base = append(base, control(n, verb))
		}
		round := func() {
			for _, subject := range base {
				if strings.Contains(subject, "..") {
					continue // no broker takes it
				}
				for name, m := range garbage() {
					one := *m
					one.Subject, one.Reply = subject, ""
					p.send(&one) // nobody can be answered
					one.Reply = p.inbox + ".1"
					p.send(&one)
					pass(0)
					for len(p.got) > 0 {
						answer := <-p.got
						judge(w.t, name+" to "+subject, answer)
					}
				}
			}
			if _, err := c.Call(w.t.Context(), "mod.x", nil); err != nil {
				w.t.Fatalf("after the garbage: %v", err)
			}
			pass(10 * time.Minute) // tombstones and kept frames go
		}
		round()
		goroutines, before := runtime.NumGoroutine(), heap()
		for range 3 {
			round()
		}
		if after := runtime.NumGoroutine(); after > goroutines+2 {
			w.t.Errorf("%d goroutines, %d before", after, goroutines)
		}
		if after := heap(); after > before+1<<20 {
			w.t.Errorf("%d bytes more than before", after-before)
		}
	})
}

// judge accepts a frame or a bare answer; what says that it failed has a code.
func judge(t *testing.T, name string, m *nats.Msg) {
	t.Helper()
	h := contextwire.Header(m.Header)
	if h.Has(contextwire.HeaderFrame) {
		f, err := contextwire.DecodeFrame(h, m.Data, contextwire.DefaultLimits())
		if err != nil {
			t.Errorf("%s: the answer cannot be read: %v", name, err)
		} else if f.Kind == contextwire.FrameError && f.Err.Code.Info().Status == 0 {
			t.Errorf("%s: code %q", name, f.Err.Code)
		}
		return
	}
	body, err := contextwire.DecodeMap(contextwire.JSON, m.Data, contextwire.DefaultLimits())
	if err != nil {
		t.Errorf("%s: the bare answer cannot be read: %v", name, err)
		return
	}
	if h.Has("Nats-Service-Error") && body["code"] == nil {
		t.Errorf("%s: an error without a code: %v", name, body)
	}
}

// Garbage in a client's inbox ends at most the call it was sent to, and that
// call is then cancelled where it runs.
func TestGarbageForAClient(t *testing.T) {
	for name, m := range garbage() {
		t.Run(name, func(t *testing.T) {
			onWire(t, func(w *wire) {
				started, ended := make(chan string, 1), make(chan error, 1)
				w.node("n1", newStubHost().add("mod.x", module.Annotations{}, untilDone(started, ended)))
				c := w.client()
				var reply string
				if _, err := w.mem.Open().Subscribe("apbus.v1.call.>", "", func(m *nats.Msg) { reply = m.Reply }); err != nil {
					w.t.Fatal(err)
				}
				ctx, stop := context.WithCancelCause(w.t.Context())
				defer stop(nil)
				done := invoke(ctx, c, &contextwire.Request{ModuleID: "mod.x"})
				<-started
				pass(100 * time.Millisecond)
				p := w.peer()
				prefix := reply[:strings.LastIndexByte(reply, '.')+1]
				for _, to := range []string{prefix + "probe", prefix + "nobody", reply} {
					one := *m
					one.Subject, one.Reply = to, ""
					p.send(&one)
					one.Reply = p.inbox + ".1"
					p.send(&one)
				}
				pass(time.Second)
				select {
				case end := <-done:
					if module.AsError(end.err) == nil && name != "foreign headers" {
						w.t.Errorf("the call ended with %+v, %v", end.reply, end.err)
					}
				default:
					stop(errors.New("enough"))
					<-done
				}
				if contextwire.Header(m.Header).Get(contextwire.HeaderFrame) == "result" {
					return // to the caller that is the end
				}
				select {
				case <-ended:
				case <-time.After(time.Second):
					w.t.Error("the call is over here and runs on there")
				}
			})
		})
	}
}

// Cancels that match nothing are remembered, but not without limit and not for
// ever.
func TestFloodOfCancelsIsBounded(t *testing.T) {
	onWire(t, func(w *wire) {
		n := w.node("n1", newStubHost().add("mod.x", module.Annotations{}, echo))
		p := w.peer()
		before := heap()
		flood := func() {
			for range 30_000 {
				raw, err := contextwire.EncodeControl(&contextwire.CancelNotice{Call: contextwire.NewCallID(), Reason: "caller", By: "ana", At: time.Now()}, contextwire.JSON)
				if err != nil {
					w.t.Fatal(err)
				}
				p.send(&nats.Msg{Subject: control(n, "cancel"), Data: raw})
			}
			pass(0)
		}
		flood()
		f := p.ask(control(n, "describe"), &contextwire.DescribeRequest{})
		if got, _ := f.Body["tombstones"].(int64); got < 1000 || got > 10_000 {
			w.t.Errorf("%d tombstones after 30,000 cancels of one issuer, want up to 10,000", got)
		}
		pass(3 * time.Minute)
		p.ask(control(n, "cancel"), &contextwire.CancelNotice{Call: contextwire.NewCallID(), Reason: "caller", By: "ana", At: time.Now()})
		if after := heap(); after > before+2<<20 {
			w.t.Errorf("%d bytes more, 3 minutes later", after-before)
		}
	})
}
