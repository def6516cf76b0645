package bus_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/module"
)

// FuzzNode feeds a node whatever headers and body on one of its subjects: every
// answer is a frame or a bare reply, and the node goes on.
func FuzzNode(f *testing.F) {
	for _, m := range garbage() {
		var lines []string
		for k, values := range m.Header {
			for _, v := range values {
				lines = append(lines, k+": "+v)
			}
		}
		for kind := range byte(6) {
			f.Add(kind, strings.Join(lines, "\n"), m.Data)
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, headers string, body []byte) {
		onWire(t, func(w *wire) {
			n := w.node("n1", newStubHost().add("mod.x", module.Annotations{}, echo))
			p := w.peer()
			subjects := []string{
				anyHost("mod.x"), directed(n, "mod.x"), "apbus.v1.check.default._.mod.x",
				control(n, "ping"), control(n, "cancel"), "apbus.v1.cancel.default._all",
			}
			m := &nats.Msg{Subject: subjects[int(kind)%len(subjects)], Reply: p.inbox + ".1", Data: body, Header: nats.Header{}}
			for line := range strings.SplitSeq(headers, "\n") {
				k, v, _ := strings.Cut(line, ":")
				m.Header[k] = append(m.Header[k], strings.TrimSpace(v))
			}
			if err := p.Publish(m); err != nil {
				return // no broker takes it
			}
			pass(0)
			for len(p.got) > 0 {
				judge(w.t, m.Subject, <-p.got)
			}
			reply, err := p.Request(w.t.Context(), &nats.Msg{Subject: anyHost("mod.x")})
			if err != nil || reply.Header.Get("Nats-Service-Error") != "" {
				w.t.Fatalf("afterwards: %v %v", reply, err)
			}
		})
	})
}
