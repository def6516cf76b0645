package events_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/executor/events"
	"github.com/apbus/apbus/module"
)

func sampleEvent() module.Event {
	return module.Event{
		Type: "apcore.acl.denied", ModuleID: "shop.orders", Severity: module.SeverityWarn,
		At: time.Date(2026, 9, 16, 12, 30, 0, 123_987_654, time.FixedZone("", 7200)), Data: obj{"reason": "no\nrule"},
	}
}

const sampleJSON = `{"data":{"reason":"no\nrule"},"event_type":"apcore.acl.denied","module_id":"shop.orders","severity":"warn","timestamp":"2026-09-16T10:30:00.123Z"}`

func TestEnvelope(t *testing.T) {
	got, err := json.Marshal(events.Envelope(sampleEvent()))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "envelope", string(got), sampleJSON)
	bare := events.Envelope(module.Event{Type: "a"})
	equal(t, "bare data", bare["data"], any(obj{}))
	equal(t, "bare module", bare["module_id"], any(nil))
}

func TestStdout(t *testing.T) {
	for _, tt := range []struct {
		name string
		o    events.StdoutOptions
		e    module.Event
		want string
	}{
		{"text", events.StdoutOptions{}, sampleEvent(), `2026-09-16T10:30:00.123Z warn  apcore.acl.denied shop.orders {"reason":"no\nrule"}` + "\n"},
		{"json", events.StdoutOptions{JSON: true}, sampleEvent(), sampleJSON + "\n"},
		{"less severe", events.StdoutOptions{MinSeverity: "error"}, sampleEvent(), ""},
		{"as severe", events.StdoutOptions{MinSeverity: "warn"}, sampleEvent(), `2026-09-16T10:30:00.123Z warn  apcore.acl.denied shop.orders {"reason":"no\nrule"}` + "\n"},
		{"no forged lines", events.StdoutOptions{}, module.Event{Type: "a\nb", Severity: "info"}, `0001-01-01T00:00:00.000Z info  "a\nb" - {}` + "\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			if err := events.Stdout(&out, tt.o).OnEvent(t.Context(), tt.e); err != nil {
				t.Fatal(err)
			}
			equal(t, "line", out.String(), tt.want)
		})
	}
	if err := events.Stdout(io.Discard, events.StdoutOptions{JSON: true}).OnEvent(t.Context(), module.Event{Data: obj{"f": func() {}}}); err == nil {
		t.Error("an event without a json form was written")
	}
}

func TestFile(t *testing.T) {
	read := func(t *testing.T, path string) string {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, tt := range []struct {
		name string
		o    events.FileOptions
		n    int
		want string
		old  string // of <path>.1, "" for none
	}{
		{"appends", events.FileOptions{}, 2, "before\n" + sampleJSON + "\n" + sampleJSON + "\n", ""},
		{"truncates", events.FileOptions{Truncate: true}, 2, sampleJSON + "\n" + sampleJSON + "\n", ""},
		{"rotates", events.FileOptions{RotateBytes: 200}, 2, sampleJSON + "\n", "before\n" + sampleJSON + "\n"},
		{"one line is never too long", events.FileOptions{Truncate: true, RotateBytes: 10}, 1, sampleJSON + "\n", ""},
		{"text", events.FileOptions{Text: true, Truncate: true}, 1, `2026-09-16T10:30:00.123Z warn  apcore.acl.denied shop.orders {"reason":"no\nrule"}` + "\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "events.log")
			if err := os.WriteFile(path, []byte("before\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			e, _ := emitter(t, events.Options{})
			sub := subscribe(t, e, events.File(path, tt.o), events.SubscribeOptions{})
			for range tt.n {
				e.Emit(sampleEvent())
			}
			e.Flush(0)
			sub.Unsubscribe()
			<-sub.Done()
			equal(t, "file", read(t, path), tt.want)
			if tt.old != "" {
				equal(t, "rotated", read(t, path+".1"), tt.old)
			} else if _, err := os.Stat(path + ".1"); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("rotated: %v", err)
			}
		})
	}
	t.Run("truncates once", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "events.log")
		f := events.File(path, events.FileOptions{Truncate: true})
		for range 2 {
			if err := f.OnEvent(t.Context(), sampleEvent()); err != nil {
				t.Fatal(err)
			}
			if err := f.(io.Closer).Close(); err != nil {
				t.Fatal(err)
			}
		}
		equal(t, "file", read(t, path), sampleJSON+"\n"+sampleJSON+"\n")
	})
	t.Run("cannot be opened", func(t *testing.T) {
		f := events.File(filepath.Join(t.TempDir(), "no", "such"), events.FileOptions{})
		if err := f.OnEvent(t.Context(), sampleEvent()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("err = %v", err)
		}
		if err := f.(io.Closer).Close(); err != nil {
			t.Error(err)
		}
	})
}

// transport answers requests with the statuses given, the last one again and again.
type transport struct {
	statuses []int
	err      error
	bodies   []string
	headers  []http.Header
}

func (r *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	r.bodies, r.headers = append(r.bodies, string(body)), append(r.headers, req.Header)
	if r.err != nil {
		return nil, r.err
	}
	status := r.statuses[min(len(r.bodies), len(r.statuses))-1]
	return &http.Response{
		StatusCode: status, Header: http.Header{"Location": {"https://elsewhere.test/"}},
		Body: io.NopCloser(strings.NewReader("secret answer")), Request: req,
	}, nil
}

func TestWebhook(t *testing.T) {
	for _, tt := range []struct {
		name     string
		statuses []int
		err      error
		posts    int
		lost     bool
	}{
		{"ok", []int{200}, nil, 1, false},
		{"accepted", []int{204}, nil, 1, false},
		{"client error", []int{404}, nil, 1, true},
		{"too many", []int{429}, nil, 1, true},
		{"redirect is not followed", []int{302}, nil, 1, true},
		{"server error, then ok", []int{500, 503, 200}, nil, 3, false},
		{"server error", []int{500}, nil, 3, true},
		{"connection", nil, errBroken, 3, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, log := emitter(t, events.Options{})
				rt, letters := &transport{statuses: tt.statuses, err: tt.err}, &inbox{}
				hook, err := events.Webhook("https://hooks.test/in?key=hidden", events.WebhookOptions{
					Headers: map[string]string{"X-Key": "hidden"}, Client: &http.Client{Transport: rt},
				})
				if err != nil {
					t.Fatal(err)
				}
				sub := subscribe(t, e, hook, events.SubscribeOptions{Pattern: "apcore.acl.*"})
				subscribe(t, e, letters, events.SubscribeOptions{Pattern: events.DeliveryFailed})
				e.Emit(sampleEvent())
				e.Flush(time.Minute)
				if sub.ID() != "webhook-1" || len(rt.bodies) != tt.posts || (len(letters.types()) == 1) != tt.lost {
					t.Errorf("%s: %d posts, dead letters %v", sub.ID(), len(rt.bodies), letters.types())
				}
				equal(t, "body", rt.bodies[0], sampleJSON)
				if h := rt.headers[0]; h.Get("X-Key") != "hidden" || h.Get("Content-Type") != "application/json" {
					t.Errorf("headers %v", h)
				}
				for _, ev := range letters.events() {
					if text, _ := json.Marshal(ev.Data); strings.Contains(string(text), "hidden") || strings.Contains(string(text), "secret") {
						t.Errorf("the dead letter shows a secret: %s", text)
					}
				}
				if log.count("hidden")+log.count("secret") > 0 {
					t.Error("the log shows a secret")
				}
			})
		})
	}
	for _, address := range []string{"", "ftp://x", "hooks.test/in", "http://", "://"} {
		if _, err := events.Webhook(address, events.WebhookOptions{}); module.CodeOf(err) != module.CodeConfigInvalid {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestA2A(t *testing.T) {
	for _, tt := range []struct{ name, skill, want string }{
		{"default", "", "apevo.event_receiver"},
		{"own", "ops.listen", "ops.listen"},
	} {
		rt := &transport{statuses: []int{200}}
		s, err := events.A2A("http://agents.test", events.A2AOptions{Bearer: "tok", Skill: tt.skill, Client: &http.Client{Transport: rt}})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.OnEvent(t.Context(), sampleEvent()); err != nil {
			t.Fatal(err)
		}
		equal(t, tt.name, rt.bodies[0], `{"event":`+sampleJSON+`,"skillId":"`+tt.want+`"}`)
		equal(t, "auth", rt.headers[0].Get("Authorization"), "Bearer tok")
	}
}

func TestFilter(t *testing.T) {
	for _, tt := range []struct {
		name string
		o    events.FilterOptions
		want []string
	}{
		{"none", events.FilterOptions{}, []string{"a.x", "a.y", "b"}},
		{"include", events.FilterOptions{Include: []string{"a.*"}}, []string{"a.x", "a.y"}},
		{"exclude", events.FilterOptions{Exclude: []string{"a.y", "c"}}, []string{"a.x", "b"}},
		{"include decides", events.FilterOptions{Include: []string{"a.*"}, Exclude: []string{"a.x"}}, []string{"a.x", "a.y"}},
		{"include of nothing", events.FilterOptions{Include: []string{}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := &inbox{}
			f := events.Filter(in, tt.o)
			for _, typ := range []string{"a.x", "a.y", "b"} {
				if err := f.OnEvent(t.Context(), module.Event{Type: typ}); err != nil {
					t.Fatal(err)
				}
			}
			equal(t, "passed", in.types(), tt.want)
		})
	}
}
