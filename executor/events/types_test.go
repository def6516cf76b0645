package events_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/executor/events"
	"github.com/apbus/apbus/module"
)

func TestTypesBuild(t *testing.T) {
	ms := time.Millisecond
	for _, tt := range []struct {
		name   string
		config string
		want   events.SubscribeOptions
	}{
		{"stdout", `{"type":"stdout","id":"out","event_pattern":"apcore.*","format":"json","level_filter":"warn"}`, events.SubscribeOptions{ID: "out", Pattern: "apcore.*"}},
		{"file", `{"type":"file","path":"x","append":false,"format":"text","rotate_bytes":1048576}`, events.SubscribeOptions{}},
		{"webhook", `{"type":"webhook","url":"https://h.test","headers":{"a":"b"},"retry_count":0}`, events.SubscribeOptions{
			Timeout: 5 * time.Second, Retry: events.RetryPolicy{MaxAttempts: 1},
		}},
		{"retry wins over retry_count", `{"type":"webhook","url":"https://h.test","timeout_ms":250,"retry_count":9,"retry":{"max_attempts":2,"initial_backoff_ms":5,"max_backoff_ms":50,"multiplier":1.5}}`, events.SubscribeOptions{
			Timeout: 250 * ms, Retry: events.RetryPolicy{MaxAttempts: 2, InitialBackoff: 5 * ms, MaxBackoff: 50 * ms, Multiplier: 1.5},
		}},
		{"a2a", `{"type":"a2a","platform_url":"https://a.test","auth":"tok","skill_id":"s"}`, events.SubscribeOptions{Timeout: 5 * time.Second}},
		{"a2a with headers", `{"type":"a2a","platform_url":"https://a.test","auth":{"X-Key":"k"}}`, events.SubscribeOptions{Timeout: 5 * time.Second}},
		{"filter", `{"type":"filter","delegate_type":"stdout","delegate_config":{"format":"json"},"include_events":["a.*"],"exclude_events":[]}`, events.SubscribeOptions{}},
		{"a filter has its delegate's limits", `{"type":"filter","delegate_type":"webhook","delegate_config":{"url":"https://h.test","timeout_ms":9,"retry_count":1,"id":"x"}}`, events.SubscribeOptions{
			Timeout: 9 * ms, Retry: events.RetryPolicy{MaxAttempts: 2},
		}},
		{"unless it has its own", `{"type":"filter","retry":{"max_attempts":4},"delegate_type":"webhook","delegate_config":{"url":"https://h.test","retry_count":1}}`, events.SubscribeOptions{
			Timeout: 5 * time.Second, Retry: events.RetryPolicy{MaxAttempts: 4},
		}},
		{"null is absent", `{"type":"stdout","format":null,"retry":null}`, events.SubscribeOptions{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config := decode(t, tt.config)
			before := maps.Clone(config)
			s, o, err := events.NewTypes(&bytes.Buffer{}).Build(config)
			if err != nil || s == nil {
				t.Fatalf("%v, %v", s, err)
			}
			equal(t, "options", o, tt.want)
			equal(t, "the configuration afterwards", config, before)
			e, _ := emitter(t, events.Options{})
			subscribe(t, e, s, o)
		})
	}
}

func TestTypesBuildRefuses(t *testing.T) {
	for config, key := range map[string]string{
		`{}`:                               "type",
		`{"type":"pigeon"}`:                "type",
		`{"type":7}`:                       "type",
		`{"type":"stdout","colour":"red"}`: "colour",
		`{"type":"stdout","format":"xml"}`: "format",
		`{"type":"stdout","level_filter":"loud"}`:                                "level_filter",
		`{"type":"file"}`:                                                        "path",
		`{"type":"file","path":"x","append":"yes"}`:                              "append",
		`{"type":"file","path":"x","rotate_bytes":-1}`:                           "rotate_bytes",
		`{"type":"file","path":"x","rotate_bytes":1.5}`:                          "rotate_bytes",
		`{"type":"webhook"}`:                                                     "url",
		`{"type":"webhook","url":"https://h.test","headers":{"a":1}}`:            "headers",
		`{"type":"webhook","url":"https://h.test","timeout_ms":99999999999}`:     "timeout_ms",
		`{"type":"webhook","url":"https://h.test","retry":{"tries":1}}`:          "retry.tries",
		`{"type":"webhook","url":"https://h.test","retry":{"max_attempts":0}}`:   "retry.max_attempts",
		`{"type":"stdout","retry":"often"}`:                                      "retry",
		`{"type":"stdout","retry_count":1}`:                                      "retry_count",
		`{"type":"filter"}`:                                                      "delegate_type",
		`{"type":"filter","delegate_type":"stdout","include_events":"a"}`:        "include_events",
		`{"type":"filter","delegate_type":"stdout","include_events":[1]}`:        "include_events",
		`{"type":"filter","delegate_type":"file"}`:                               "path",
		`{"type":"a2a","platform_url":"https://a.test","auth":["secret-value"]}`: "auth",
	} {
		_, _, err := events.NewTypes(&bytes.Buffer{}).Build(decode(t, config))
		e := module.AsError(err)
		if e == nil || e.Code != module.CodeConfigInvalid || e.Details["key"] != key {
			t.Errorf("%s: %v, want key %s", config, err, key)
		} else if strings.Contains(e.Error(), "secret") {
			t.Errorf("%s: the error shows a value", config)
		}
	}
	if _, _, err := events.NewTypes(&bytes.Buffer{}).Build(decode(t, `{"type":"stdout","retry":{"multiplier":0.5}}`)); module.CodeOf(err) != module.CodeConfigInvalid {
		t.Errorf("multiplier: %v", err)
	}
}

func TestTypesRegister(t *testing.T) {
	types := events.NewTypes(&bytes.Buffer{})
	var seen obj
	build := func(c map[string]any) (events.Subscriber, error) { seen = c; return &inbox{}, nil }
	for _, name := range []string{"pager", "stdout"} {
		if err := types.Register(name, build); err != nil {
			t.Fatal(err)
		}
	}
	if err := types.Register("", build); module.CodeOf(err) != module.CodeInvalidInput {
		t.Errorf("no name: %v", err)
	}
	if err := types.Register("x", nil); module.CodeOf(err) != module.CodeInvalidInput {
		t.Errorf("no function: %v", err)
	}
	equal(t, "names", types.Names(), []string{"a2a", "file", "filter", "pager", "stdout", "webhook"})
	if _, o, err := types.Build(obj{"type": "pager", "id": "p", "number": "112"}); err != nil || o.ID != "p" {
		t.Errorf("%v, %v", o, err)
	}
	equal(t, "its part", seen, obj{"number": "112"})
	if s, _, _ := types.Build(obj{"type": "stdout"}); s == nil || !types.Unregister("stdout") || types.Unregister("stdout") {
		t.Error("a built-in type could not be replaced and be back")
	} else if _, ours := s.(*inbox); !ours {
		t.Errorf("got %T", s)
	}
	if s, _, err := types.Build(obj{"type": "stdout"}); err != nil {
		t.Error(err)
	} else if _, ours := s.(*inbox); ours {
		t.Error("the built-in type is not back")
	}
	types.Reset()
	if slices.Contains(types.Names(), "pager") {
		t.Error("reset kept a type")
	}
}

func FuzzTypesBuild(f *testing.F) {
	f.Add(`{"type":"webhook","url":"https://h.test","retry":{"max_attempts":2}}`)
	f.Add(`{"type":"filter","delegate_type":"filter","delegate_config":{"delegate_type":"stdout"}}`)
	f.Add(`{"type":"file","path":"x","rotate_bytes":1e300}`)
	f.Fuzz(func(t *testing.T, text string) {
		var config obj
		if json.Unmarshal([]byte(text), &config) != nil {
			return
		}
		s, _, err := events.NewTypes(&bytes.Buffer{}).Build(config)
		if err != nil && module.CodeOf(err) != module.CodeConfigInvalid {
			t.Errorf("%v", err)
		}
		if (s == nil) == (err == nil) {
			t.Errorf("%v and %v", s, err)
		}
	})
}

func decode(t testing.TB, text string) obj {
	t.Helper()
	var m obj
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	if p, ok := m["path"].(string); ok {
		m["path"] = filepath.Join(t.TempDir(), p)
	}
	return m
}
