package backend_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/loop/backend"
	"github.com/apbus/apbus/schema"
	"github.com/google/go-cmp/cmp"
)

type chat struct {
	Model    string `json:"model"`
	Messages []struct{ Role, Content string }
	Temp     *float64 `json:"temperature"`
	Format   *struct {
		Type   string
		Schema struct {
			Strict bool
			Schema map[string]any
		} `json:"json_schema"`
	} `json:"response_format"`
}

// serve makes a backend over a server that answers with handle.
func serve(t *testing.T, handle func(w http.ResponseWriter, r *http.Request, c chat)) *backend.HTTP {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		var c chat
		if err := json.Unmarshal(raw, &c); err != nil {
			t.Error(err)
		}
		handle(w, r, c)
	}))
	t.Cleanup(srv.Close)
	h, err := backend.NewHTTP(backend.HTTPOptions{BaseURL: srv.URL + "/v1/", Model: "m", Key: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func say(w io.Writer, content string) {
	_ = json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"finish_reason": "stop", "message": map[string]any{"content": content}}}})
}

const request = `{"loop":1,"op":"ground","instructions":"Judge <this>.","claims":[{"id":0,"claim":"a & b"}]}`

func TestHTTPSplitsTheRequest(t *testing.T) {
	h := serve(t, func(w http.ResponseWriter, r *http.Request, c chat) {
		if r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("%s with %q", r.URL.Path, r.Header.Get("Authorization"))
		}
		want := []struct{ Role, Content string }{{"system", "Judge <this>."}, {"user", `{"claims":[{"id":0,"claim":"a & b"}],"loop":1,"op":"ground"}`}}
		if diff := cmp.Diff(want, c.Messages); diff != "" {
			t.Error(diff)
		}
		if c.Temp == nil || *c.Temp != 0 || c.Format == nil || c.Format.Type != "json_schema" || !c.Format.Schema.Strict {
			t.Errorf("request %+v", c)
		}
		say(w, `{"results":[]}`)
	})
	got, err := h.Complete(t.Context(), request)
	if err != nil || got != `{"results":[]}` {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := h.Complete(t.Context(), loop.ProbeRequest); err != nil || got != `{"model":"m"}` {
		t.Errorf("probe: %q, %v", got, err)
	}
}

func TestHTTPAsksForLessWhenRefused(t *testing.T) {
	calls := 0
	h := serve(t, func(w http.ResponseWriter, _ *http.Request, c chat) {
		calls++
		if c.Format != nil || c.Temp != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		say(w, "{}")
	})
	for range 2 {
		if got, err := h.Complete(t.Context(), request); err != nil || got != "{}" {
			t.Errorf("%q, %v", got, err)
		}
	}
	if calls != 4 { // schema, json, plain; then plain at once
		t.Errorf("%d requests, want 4", calls)
	}
}

func TestHTTPFailures(t *testing.T) {
	for name, handle := range map[string]func(w http.ResponseWriter){
		"status":         func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
		"always refused": func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadRequest) },
		"redirect": func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(http.StatusFound)
		},
		"not JSON":  func(w http.ResponseWriter) { _, _ = io.WriteString(w, "hello") },
		"no choice": func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"choices":[]}`) },
		"cut off": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `{"choices":[{"finish_reason":"length","message":{"content":"{"}}]}`)
		},
		"body over limit": func(w http.ResponseWriter) { _, _ = io.WriteString(w, strings.Repeat(" ", 11<<20)) },
	} {
		t.Run(name, func(t *testing.T) {
			h := serve(t, func(w http.ResponseWriter, _ *http.Request, _ chat) { handle(w) })
			_, err := h.Complete(t.Context(), request)
			wantBackend(t, err)
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Error("the key is in the error")
			}
		})
	}
	for _, o := range []backend.HTTPOptions{{}, {BaseURL: "https://h/v1"}, {BaseURL: "ftp://h", Model: "m"}, {BaseURL: "https://u:p@h", Model: "m"}} {
		if _, err := backend.NewHTTP(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

// The schemas take what the protocol takes, the proposals of every kind among it.
func TestResponseSchemas(t *testing.T) {
	compiled, err := schema.Compile(backend.ResponseSchema(loop.OpDiscover))
	if err != nil {
		t.Fatal(err)
	}
	for name, proposal := range map[string]any{
		"none":   nil,
		"lesson": map[string]any{"kind": "lesson", "lesson": "x"},
		"plan": map[string]any{
			"kind": "plan", "description": "d", "when_to_use": "w",
			"nodes": []any{map[string]any{"id": "a", "tool": "t", "step": "s"}},
			"edges": []any{map[string]any{"src": "a", "dst": "a", "cond": nil, "max_cycles": int64(1)}},
		},
		"plan_revision": map[string]any{"kind": "plan_revision", "edits": []any{map[string]any{"path": "p", "from": nil, "to": int64(2)}}},
	} {
		v := map[string]any{"recommendations": []any{map[string]any{
			"summary": "s", "target": "t", "guidance": "", "evidence": []any{"e1"}, "confidence": 0.8, "lesson": "", "proposal": proposal,
		}}}
		if err := compiled.Validate(v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
