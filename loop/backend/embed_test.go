package backend_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/loop/backend"
	"github.com/apbus/apbus/module"
)

func TestEmbedder(t *testing.T) {
	for _, tt := range []struct {
		name, answer string
		status       int
		want         [][]float64
	}{
		{"in another order", `{"data":[{"index":1,"embedding":[0,2]},{"index":0,"embedding":[1,0.5]}]}`, 200, [][]float64{{1, 0.5}, {0, 2}}},
		{"one is missing", `{"data":[{"index":1,"embedding":[0,2]}]}`, 200, [][]float64{nil, {0, 2}}},
		{"one too many", `{"data":[{"index":2,"embedding":[0,2]}]}`, 200, nil},
		{"one twice", `{"data":[{"index":0,"embedding":[0]},{"index":0,"embedding":[1]}]}`, 200, nil},
		{"no JSON", `<html>`, 200, nil},
		{"refused", `{}`, 400, nil},
		{"no right", `{}`, 401, nil},
		{"a redirect", `{}`, 302, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var got map[string]any
				raw, _ := io.ReadAll(r.Body)
				if err := json.Unmarshal(raw, &got); err != nil || r.URL.Path != "/v1/embeddings" || r.Header.Get("Authorization") != "Bearer secret" {
					t.Errorf("%s %s: %v", r.URL.Path, raw, err)
				}
				if diff := cmp.Diff(map[string]any{"model": "m", "input": []any{"a", "b"}, "encoding_format": "float"}, got); diff != "" {
					t.Errorf("request (-want +got):\n%s", diff)
				}
				w.Header().Set("Location", "http://127.0.0.1:1/")
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.answer)
			}))
			defer srv.Close()
			e, err := backend.NewEmbedder(backend.HTTPOptions{BaseURL: srv.URL + "/v1", Model: "m", Key: "secret"})
			if err != nil {
				t.Fatal(err)
			}
			got, err := e.Embed(t.Context(), []string{"a", "b"})
			if diff := cmp.Diff(tt.want, got); diff != "" || (err != nil) != (tt.want == nil) {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
			if err != nil && (module.CodeOf(err) != module.CodeLoopBackend || strings.Contains(err.Error(), "secret")) {
				t.Errorf("error %v", err)
			}
		})
	}
}
