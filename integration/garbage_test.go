package integration_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/contextwire"
)

// envelope is the least that makes an enveloped request.
func envelope(more ...string) nats.Header {
	h := nats.Header{"apbus-version": {"1"}, "apbus-call": {contextwire.NewCallID()}, "apbus-attempt": {"1"}}
	for i := 0; i+1 < len(more); i += 2 {
		if more[i+1] == "" {
			delete(h, more[i])
			continue
		}
		h[more[i]] = []string{more[i+1]}
	}
	return h
}

// badRequest is what a call subject may get from anybody.
type badRequest struct {
	name   string
	header nats.Header
	body   string
	code   string // "" is a result
}

func badRequests() []badRequest {
	const fits = `{"a":1,"b":2}`
	deep := strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000)
	deepList := `{"a":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `,"b":2}`
	inContext := func(context string) string { return `{"context":` + context + `,"inputs":` + fits + `}` }
	const bad, schema = "BUS_BAD_MESSAGE", "SCHEMA_VALIDATION_ERROR"
	return []badRequest{
		{"empty", nil, "", schema},
		{"truncated", nil, `{"a":1`, bad},
		{"binary", nil, "\x00\xff\x13\x37", bad},
		{"not UTF-8", nil, "{\"a\":\"\xff\xfe\",\"b\":2}", bad},
		{"deep objects", nil, deep, bad},
		{"deep lists", nil, deepList, bad},
		{"wrong types", nil, `{"a":"x","b":[]}`, schema},
		{"list", nil, `[1,2]`, bad},
		{"null", nil, `null`, bad},
		{"number beyond all", nil, `{"a":1e999,"b":2}`, bad},
		{"integer beyond 64 bits", nil, `{"a":99999999999999999999,"b":2}`, bad},
		{"not a number", nil, `{"a":NaN,"b":2}`, bad},
		{"key twice", nil, `{"a":1,"a":1,"b":2}`, bad},
		{"something behind it", nil, fits + fits, bad},
		{"many elements", nil, `{"a":[` + strings.Repeat("0,", 400_000) + `0],"b":2}`, schema},
		{"foreign content type", nats.Header{"content-type": {"text/plain"}}, fits, "BUS_UNSUPPORTED_TYPE"},
		{"foreign headers", nats.Header{"Nats-Msg-Id": {"1"}, "X-Other": {"2", "3"}, "apbus-unheard-of": {"4"}}, fits, ""},
		{"huge header", nats.Header{"X-Huge": {strings.Repeat("h", 40_000)}}, fits, bad},

		{"enveloped and well", envelope(), inContext(`{}`), ""},
		{"unknown version", envelope("apbus-version", "2"), inContext(`{}`), "BUS_VERSION_UNSUPPORTED"},
		{"version that is none", envelope("apbus-version", "one"), inContext(`{}`), "BUS_VERSION_UNSUPPORTED"},
		{"no call ID", envelope("apbus-call", ""), inContext(`{}`), bad},
		{"short call ID", envelope("apbus-call", "short"), inContext(`{}`), bad},
		{"call ID with spaces", envelope("apbus-call", "0123456789 abcdef"), inContext(`{}`), bad},
		{"attempt zero", envelope("apbus-attempt", "0"), inContext(`{}`), bad},
		{"attempt that is none", envelope("apbus-attempt", "first"), inContext(`{}`), bad},
		{"no budget left", envelope("apbus-budget-ms", "-5"), inContext(`{}`), "BUS_BUDGET_EXHAUSTED"},
		{"budget that is none", envelope("apbus-budget-ms", "soon"), inContext(`{}`), bad},
		{"mode that is none", envelope("apbus-mode", "sideways"), inContext(`{}`), bad},
		{"trace that is none", envelope("traceparent", "zz"), inContext(`{}`), ""},
		{"no body", envelope(), "", bad},
		{"body without inputs", envelope(), `{}`, schema},
		{"context is a list", envelope(), inContext(`[]`), bad},
		{"chain of numbers", envelope(), inContext(`{"call_chain":[1,2]}`), bad},
		{"identity is text", envelope(), inContext(`{"identity":"root"}`), bad},
		{"data is text", envelope(), inContext(`{"data":"x"}`), bad},
		{"trace ID that is none", envelope(), inContext(`{"trace_id":7}`), bad},
		{"endless chain", envelope(), inContext(`{"call_chain":[` + strings.Repeat(`"a.b",`, 1000) + `"a.c"]}`), "CALL_DEPTH_EXCEEDED"},
		{"a circle", envelope(), inContext(`{"caller_id":"a.b","call_chain":["math.add","a.b"]}`), "CIRCULAR_CALL"},
		{"inputs are a list", envelope(), `{"context":{},"inputs":[]}`, bad},
		{"msgpack that is JSON", envelope("content-type", "application/msgpack"), inContext(`{}`), bad},
		{"msgpack of four billion entries", envelope("content-type", "application/msgpack"), "\xdf\xff\xff\xff\xff", bad},
		{"msgpack text of four gigabytes", envelope("content-type", "application/msgpack"), "\x81\xdb\xff\xff\xff\xffxx", bad},
		{"msgpack extension", envelope("content-type", "application/msgpack"), "\x82\xa7context\x80\xa6inputs\xd4\x01\x01", bad},
		{"msgpack 10,000 deep", envelope("content-type", "application/msgpack"), strings.Repeat("\x91", 10_000) + "\x01", bad},
		{"answer in a foreign type", envelope("accept", "text/html"), inContext(`{}`), "BUS_UNSUPPORTED_TYPE"},
		{"version constraint that is none", envelope("apbus-module-version", ">>1"), inContext(`{}`), "VERSION_CONSTRAINT_INVALID"},
		{"version that nobody has", envelope("apbus-module-version", "^99"), inContext(`{}`), "BUS_VERSION_MISMATCH"},
	}
}

// codeOf is the code of an answer, "" for a result; ok is false when it is
// neither a frame nor a bare answer.
func codeOf(m *nats.Msg) (code string, ok bool) {
	switch frame := m.Header.Get("apbus-frame"); {
	case frame == "result":
		return "", true
	case frame == "error":
		return m.Header.Get("apbus-error"), m.Header.Get("apbus-error") != ""
	case frame != "":
		return frame, false
	case m.Header.Get("Nats-Service-Error") == "":
		return "", json.Valid(m.Data)
	}
	var e struct{ Code string }
	return e.Code, json.Unmarshal(m.Data, &e) == nil && e.Code != ""
}

// TestGarbageOnEverySubject sends to every subject of a node, and to those of
// its clients and the catalogue, what nobody should. Each message gets a coded
// error or is ignored; afterwards the node serves and holds nothing more than
// one that never saw any of it.
func TestGarbageOnEverySubject(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	n := s.startNode("n1", "math,demo")
	serves := func(t *testing.T) {
		t.Helper()
		m, err := s.in(t).request(n.direct("call", "math.add"), nil, []byte(`{"a":1,"b":2}`))
		if err != nil || string(m.Data) != `{"sum":3}` {
			t.Fatalf("the node no longer serves: %v, %v", m, err)
		}
	}
	serves(t)
	before := memoryOf(t, n.process)

	for _, on := range []struct{ name, subject string }{
		{"directed call", n.direct("call", "math.add")}, {"directed check", n.direct("check", "math.add")},
		{"call", "apbus.v1.call.default._.math.add"}, {"call of a major version", "apbus.v1.call.default.1.math.add"},
		{"check", "apbus.v1.check.default._.math.add"},
	} {
		t.Run(on.name, func(t *testing.T) {
			subject := on.subject
			s := s.in(t)
			for _, tt := range badRequests() {
				m, err := s.request(subject, tt.header, []byte(tt.body))
				if err != nil {
					t.Errorf("%s: %v", tt.name, err)
					continue
				}
				got, ok := codeOf(m)
				if strings.Contains(subject, ".check.") && got == "" && tt.code != "" {
					var res struct{ Valid *bool }
					if json.Unmarshal(m.Data, &res) != nil || res.Valid == nil || *res.Valid {
						t.Errorf("check of %s: %s, want not valid", tt.name, m.Data)
					}
					continue // a check answers what is wrong with a call that can be read
				}
				if !ok || got != tt.code {
					t.Errorf("%s: answered %.60v %.200s, want %q", tt.name, m.Header, m.Data, tt.code)
				}
			}
			serves(t)
		})
	}

	t.Run("modules that are none", func(t *testing.T) {
		s := s.in(t)
		for id, code := range map[string]string{
			"math.subtract": "MODULE_NOT_FOUND", "Math.Add": "INVALID_MODULE_ID", "math.add.9x": "INVALID_MODULE_ID",
			"math." + strings.Repeat("long", 100): "INVALID_MODULE_ID",
		} {
			m, err := s.request(n.direct("call", id), envelope(), []byte(`{"context":{},"inputs":{}}`))
			if err != nil {
				t.Errorf("%s: %v", id, err)
			} else if got, ok := codeOf(m); !ok || got != code {
				t.Errorf("%s: answered %v %s, want %s", id, m.Header, m.Data, code)
			}
		}
		serves(t)
	})

	t.Run("control", func(t *testing.T) {
		s := s.in(t)
		bodies := map[string]string{
			"empty": "", "truncated": `{"call":"01234567`, "binary": "\x00\xff", "list": `[]`, "text": `"x"`, "null": `null`,
			"deep":               strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000),
			"wrong types":        `{"client":1,"open":"x","closed":{},"call":[],"root":7,"grace_ms":"x","module":[],"limit":"all"}`,
			"two selectors":      `{"call":"0123456789abcdef","root":"0123456789abcdef","grace_ms":-5}`,
			"no selector":        `{"reason":"x","grace_ms":1e999}`,
			"keys that are none": `{"client":"` + strings.Repeat("x", 5000) + `","open":["",":","a/b/c","0123456789abcdef/x"],"closed":["/1"],"grace_ms":1.5,"call":"!"}`,
		}
		lenient := map[string]bool{"stats": true, "describe": true, "calls": true, "ping": true}
		for _, verb := range []string{"ping", "cancel", "calls", "drain", "describe", "stats"} {
			for name, body := range bodies {
				if verb == "drain" && name == "empty" {
					continue // no garbage: it means {}, a drain with the node's own grace
				}
				for _, header := range []nats.Header{nil, {"content-type": {"text/plain"}}, {"content-type": {"application/msgpack"}}} {
					m, err := s.request(n.subject(verb), header, []byte(body))
					if err != nil {
						t.Errorf("%s, %s: %v", verb, name, err)
						continue
					}
					if code, ok := codeOf(m); !ok || code == "" && !lenient[verb] {
						t.Errorf("%s, %s %v: answered %v %.200s, want a coded error", verb, name, header, m.Header, m.Data)
					}
				}
			}
		}
		for name, body := range bodies {
			for _, subject := range []string{"apbus.v1.cancel.default._all", "apbus.v1.cancel.default.math.add"} {
				if err := s.peer().Publish(subject, []byte(body)); err != nil {
					t.Errorf("%s on %s: %v", name, subject, err)
				}
			}
		}
		if _, err := s.request(n.subject("reboot"), nil, nil); !errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("a verb that is none: %v, want nobody to listen", err)
		}
		serves(t)
		if st := s.stats(n); st["draining"] != false {
			t.Error("garbage started a drain")
		}
	})

	t.Run("replies that lead nowhere", func(t *testing.T) {
		s := s.in(t)
		effect := []byte(`{"key":"nowhere"}`)
		if err := s.peer().Publish(n.direct("call", "demo.effect"), effect); err != nil {
			t.Error(err)
		}
		for _, reply := range []string{n.direct("call", "math.add"), "apbus.v1.call.default._.math.add", n.subject("ping"), "nobody.*", "nobody.>", "x"} {
			for _, h := range []nats.Header{nil, envelope()} {
				if err := s.peer().PublishMsg(&nats.Msg{
					Subject: n.direct("call", "math.add"), Reply: reply, Header: h, Data: []byte(`{"a":1,"b":2}`),
				}); err != nil {
					t.Errorf("reply to %s: %v", reply, err)
				}
			}
		}
		serves(t)
		if lines := s.effectLines(); len(lines) != 0 {
			t.Errorf("a call that nobody waits for had its effect: %q", lines)
		}
	})

	t.Run("clients", func(t *testing.T) {
		s := s.in(t)
		garbageForClients(t, s, n)
		serves(t)
	})

	t.Run("catalogue", func(t *testing.T) {
		s := s.in(t)
		for i, body := range []string{"", "x", `[]`, `{"node":7}`, `{"protocol":1,"node":"evil","boot":"b","ns":"default","modules":"all"}`, strings.Repeat("[", 10_000)} {
			for _, key := range []string{"$KV.APBUS_NODES.default.evil.b" + strconv.Itoa(i), "$KV.APBUS_MODULES." + strings.Repeat("a", 64)} {
				if err := s.peer().Publish(key, []byte(body)); err != nil {
					t.Error(err)
				}
			}
		}
		if a := s.call("math.add", `{"a":1,"b":2}`); a.doc["sum"] != 3.0 {
			t.Errorf("a call afterwards: %v", a)
		}
		for _, known := range list(s.get("/v1/nodes").doc, "nodes") {
			if known["node"] == "evil" {
				t.Errorf("the catalogue believes %v", known)
			}
		}
		serves(t)
	})

	// Nothing is left of it.
	s.waitIdle(cancelLimit, n)
	if calls := s.calls(); len(calls) != 0 {
		t.Errorf("still in flight: %v", calls)
	}
	after := memoryOf(t, n.process)
	t.Logf("memory before %v, after %v", before, after)
	if limit := before.rss + 96<<10; after.rss > limit && !raceEnabled {
		t.Errorf("resident memory went from %d KiB to %d KiB", before.rss, after.rss)
	}
	if after.threads > before.threads+16 {
		t.Errorf("threads went from %d to %d", before.threads, after.threads)
	}
	fresh := s.startNode("fresh", "math,demo")
	if a := s.call("math.add", `{"a":1,"b":2}`); a.status != 200 {
		t.Errorf("a call before the comparison: %v", a)
	}
	// Goroutines that wait for another call go home after a second without one.
	select {
	case <-time.After(3 * time.Second): // what is waited for is time itself
	case <-t.Context().Done():
	}
	got, want := goroutinesOf(n.process), goroutinesOf(fresh.process)
	t.Logf("%d goroutines after the garbage, %d in a fresh node", got, want)
	if got > want+5 {
		t.Errorf("%d goroutines are left, a fresh node has %d:\n%s", got, want, n.log())
	}
}

// garbageForClients answers the router's call with frames it must ignore.
func garbageForClients(t *testing.T, s *system, n *node) {
	t.Helper()
	var once sync.Once
	inbox := make(chan string, 1)
	sub, err := s.peer().Subscribe("apbus.v1.call.default.@.>", func(m *nats.Msg) {
		if strings.HasSuffix(m.Subject, ".demo.sleep") {
			once.Do(func() { inbox <- m.Reply })
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := s.peer().Flush(); err != nil {
		t.Fatal(err)
	}
	c := s.begin("demo.sleep", `{"ms":1500}`)
	var reply string
	select {
	case reply = <-inbox:
	case <-time.After(startLimit):
		t.Fatal("no call was seen")
	}
	prefix := reply[:strings.LastIndexByte(reply, '.')]
	for _, frame := range []string{"", "rumour", "data", "result", "error", "accept", "progress"} {
		for _, body := range []string{"", "x", `{}`, "\xc1", strings.Repeat("[", 10_000)} {
			h := nats.Header{"content-type": {"application/json"}}
			if frame != "" {
				h["apbus-frame"] = []string{frame}
			}
			for _, subject := range []string{prefix + ".unheard-of", prefix + ".probe"} {
				if err := s.peer().PublishMsg(&nats.Msg{Subject: subject, Header: h, Data: []byte(body)}); err != nil {
					t.Error(err)
				}
			}
			if frame == "rumour" { // a kind of a later version, on a call that is open
				h["apbus-node"] = []string{n.id + "." + n.boot}
				if err := s.peer().PublishMsg(&nats.Msg{Subject: reply, Header: h, Data: []byte(body)}); err != nil {
					t.Error(err)
				}
			}
		}
	}
	if a := c.wait(1500*time.Millisecond + slack); a.doc["slept_ms"] != 1500.0 {
		t.Errorf("the call among the garbage: %v", a)
	}
}

// memory is what the system says about a process.
type memory struct {
	rss     int // KiB
	threads int
}

func memoryOf(t *testing.T, p *process) memory {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	field := func(name string) int {
		m := regexp.MustCompile(`(?m)^` + name + `:\s+(\d+)`).FindSubmatch(raw)
		if m == nil {
			t.Fatalf("no %s in %s", name, raw)
		}
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return memory{rss: field("VmRSS"), threads: field("Threads")}
}

// goroutinesOf ends a process with the signal on which the Go runtime writes
// down every goroutine, and counts them.
func goroutinesOf(p *process) int {
	p.t.Helper()
	p.signal(syscall.SIGQUIT)
	p.exit(10 * time.Second)
	n := len(regexp.MustCompile(`(?m)^goroutine \d+ .*\[`).FindAllString(p.log(), -1))
	if n < 5 {
		p.t.Errorf("%s wrote down %d goroutines, too few to be true:\n%s", p.name, n, p.log())
	}
	return n
}
