package bindings_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/bindings"
	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/module"
)

// endpoint is the binding x.y of a test server.
func endpoint(t *testing.T, more string, h http.HandlerFunc) *bindings.Module {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	top, below, _ := strings.Cut(more, "|")
	mods, _ := load(t, "bindings:\n- module_id: x.y\n  description: an endpoint\n"+top+
		"  http:\n    url: "+srv.URL+"/do?fixed=1\n    max_response: 4096\n"+below)
	return mods["x.y"]
}

func answer(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestEndpointRequest(t *testing.T) {
	for _, tt := range []struct {
		name, more string
		inputs     map[string]any
		want       string
	}{
		{
			name: "POST", more: "|    headers: {Authorization: {env: API_KEY}, X-Plain: yes-please}\n", inputs: map[string]any{"a": int64(9007199254740993)},
			want: `POST /do?fixed=1 {"a":9007199254740993} application/json geheim yes-please 4bf92f3577b34da6a3ce929d0e0e4736 0123456789abcdef`,
		},
		{
			name: "GET", more: "|    method: GET\n", inputs: map[string]any{"q": "a&b", "n": int64(1), "l": []any{true}},
			want: `GET /do?fixed=1&l=%5Btrue%5D&n=1&q=a%26b    4bf92f3577b34da6a3ce929d0e0e4736 0123456789abcdef`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got string
			m := endpoint(t, tt.more, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				_, trace, _ := strings.Cut(r.Header.Get("Traceparent"), "-")
				trace, _, _ = strings.Cut(trace, "-")
				got = strings.Join([]string{
					r.Method, r.URL.RequestURI(), strings.TrimSpace(string(body)), r.Header.Get("Content-Type"),
					r.Header.Get("Authorization"), r.Header.Get("X-Plain"), trace, r.Header.Get("Apbus-Call"),
				}, " ")
				_, _ = io.WriteString(w, `{"ok":true}`)
			})
			out, err := execute(t, t.Context(), m, tt.inputs)
			if err != nil || out["ok"] != true {
				t.Fatalf("%v, %v", out, err)
			}
			if strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(tt.want), " ") {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestEndpointAnswers(t *testing.T) {
	for _, tt := range []struct {
		name       string
		h          http.HandlerFunc
		want       map[string]any
		wantReason string
		wantCode   module.Code
		retryable  module.Tri
	}{
		{name: "an object", h: answer(200, "application/json", `{"n":1}`), want: map[string]any{"n": int64(1)}},
		{name: "created", h: answer(201, "text/plain", `{}`), want: map[string]any{}},
		{name: "no JSON", h: answer(200, "text/html", `<p>secret</p>`), wantReason: bindings.ReasonNotJSON},
		{name: "no object", h: answer(200, "application/json", `"secret"`), wantReason: bindings.ReasonNotJSON},
		{name: "nothing", h: answer(200, "application/json", ``), wantReason: bindings.ReasonNotJSON},
		{name: "too much", h: answer(200, "application/json", `{"secret":"`+strings.Repeat("x", 5000)+`"}`), wantReason: bindings.ReasonTooLarge},
		{name: "refused", h: answer(404, "text/plain", `secret`), wantReason: bindings.ReasonStatus},
		{name: "unavailable", h: answer(503, "text/plain", `secret`), wantReason: bindings.ReasonStatus, retryable: module.True},
		{name: "a redirect", h: http.RedirectHandler("/elsewhere", http.StatusTemporaryRedirect).ServeHTTP, wantReason: bindings.ReasonRedirect},
		{name: "its own error", h: answer(409, "application/json", `{"error":{"code":"OUT_OF_TEA","message":"no tea"}}`), wantCode: "OUT_OF_TEA"},
		{name: "broken off", h: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"secret":`)
		}, wantReason: bindings.ReasonUnreachable, retryable: module.True},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := execute(t, t.Context(), endpoint(t, "", tt.h), nil)
			e := module.AsError(err)
			switch {
			case tt.wantCode != "":
				if e == nil || e.Code != tt.wantCode {
					t.Errorf("err = %v", err)
				}
			case tt.wantReason != "":
				if e == nil || e.Code != module.CodeModuleExecuteError || reason(err) != tt.wantReason || e.Retryable != tt.retryable {
					t.Fatalf("err = %v, reason %v", err, reason(err))
				}
				if strings.Contains(fmt.Sprint(e.Error(), e.CauseText(), e.Details), "secret") {
					t.Errorf("the error quotes the answer: %v", e)
				}
			default:
				if d := cmp.Diff(tt.want, out); err != nil || d != "" {
					t.Errorf("err = %v %s", err, d)
				}
			}
		})
	}
}

func TestEndpointStream(t *testing.T) {
	one, two := module.Chunk{"i": int64(0)}, module.Chunk{"i": int64(1)}
	for _, tt := range []struct {
		name, contentType, body string
		want                    []module.Chunk
		wantReason              string
	}{
		{"lines", "application/x-ndjson", "{\"i\":0}\n\n{\"i\":1}", []module.Chunk{one, two}, ""},
		{"events", "text/event-stream; charset=utf-8", ": hello\nevent: x\nid: 1\ndata: {\"i\":\ndata: 0}\n\ndata:{\"i\":1}\r\n\r\ndata: {\"i\":2}", []module.Chunk{one, two}, ""},
		{"one object", "application/json", "{\n\"i\":\n0}", []module.Chunk{one}, ""},
		{"a bad line", "application/x-ndjson", "{\"i\":0}\nsecret\n", []module.Chunk{one}, bindings.ReasonNotJSON},
		{"a long line", "application/x-ndjson", "{\"i\":0}\n" + strings.Repeat("x", 9000), []module.Chunk{one}, bindings.ReasonTooLarge},
		{"nothing", "text/event-stream", "", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := endpoint(t, streams, answer(200, tt.contentType, tt.body))
			got, err := chunks(t, t.Context(), m, nil, 0)
			if tt.wantReason != bindings.ReasonTooLarge { // how much came before is the transport's business
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Error(d)
				}
			}
			if (err != nil) != (tt.wantReason != "") || (err != nil && reason(err) != tt.wantReason) {
				t.Errorf("err = %v, want reason %q", err, tt.wantReason)
			}
		})
	}
}

// The end of a call, and a reader that leaves, close the connection.
func TestEndpointConnectionIsClosed(t *testing.T) {
	for _, tt := range []struct{ name, more string }{{"cancelled", ""}, {"left by its reader", streams}} {
		t.Run(tt.name, func(t *testing.T) {
			begun, gone := make(chan struct{}), make(chan struct{})
			m := endpoint(t, tt.more, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/x-ndjson")
				_, _ = io.WriteString(w, "{\"i\":0}\n")
				_ = http.NewResponseController(w).Flush()
				close(begun)
				<-r.Context().Done()
				close(gone)
			})
			ctx, stop := context.WithCancelCause(t.Context())
			defer stop(nil)
			why := cancel.Because(cancel.Caller, "ana", "enough")
			if tt.more == "" {
				go func() {
					<-begun
					stop(why)
				}()
				if _, err := execute(t, ctx, m, nil); !errors.Is(err, why) {
					t.Errorf("err = %v, want the cause of the end", err)
				}
			} else if _, err := chunks(t, ctx, m, nil, 1); err != nil {
				t.Error(err)
			}
			select {
			case <-gone:
			case <-time.After(10 * time.Second):
				t.Error("the endpoint was left alone with its work")
			}
		})
	}
}

func TestEndpointUnreachable(t *testing.T) {
	mods, _ := load(t, "bindings:\n- {module_id: x.y, description: d, http: {url: 'http://127.0.0.1:1/secret'}}\n")
	_, err := execute(t, t.Context(), mods["x.y"], nil)
	if e := module.AsError(err); reason(err) != bindings.ReasonUnreachable || e.Retryable != module.True || strings.Contains(e.Error()+e.CauseText(), "secret") {
		t.Errorf("err = %v", err)
	}
}
