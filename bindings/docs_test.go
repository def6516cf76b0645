package bindings_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apbus/apbus/bindings"
	"github.com/apbus/apbus/module"
)

// fenced returns the blocks of a page that begin with ```yaml and ```text, in order,
// each with its kind before it.
func fenced(page string) (kinds, blocks []string) {
	for rest := page; ; {
		_, after, ok := strings.Cut(rest, "\n```")
		if !ok {
			return kinds, blocks
		}
		kind, body, _ := strings.Cut(after, "\n")
		block, next, _ := strings.Cut(body, "\n```")
		if kind == "yaml" || kind == "text" {
			kinds, blocks = append(kinds, kind), append(blocks, block+"\n")
		}
		rest = next
	}
}

// TestDocumentedExamples runs what docs/bindings.md shows.
func TestDocumentedExamples(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := map[string]any{"method": r.Method}
		if body, _ := io.ReadAll(r.Body); len(body) > 0 {
			out["body"] = json.RawMessage(body)
		}
		if r.URL.RawQuery != "" {
			out["query"] = r.URL.RawQuery
		}
		if (r.URL.Path == "/price") != (r.Header.Get("Authorization") == "Bearer t") {
			w.WriteHeader(http.StatusUnauthorized)
		}
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(out)
	}))
	defer srv.Close()
	page, err := os.ReadFile(filepath.Join("..", "docs", "bindings.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(page), "http://prices.example", srv.URL)
	mods := map[string]*bindings.Module{}
	calls := 0
	kinds, blocks := fenced(text)
	for i, block := range blocks {
		if kinds[i] == "yaml" {
			list, err := bindings.Load([]string{write(t, t.TempDir(), "b.yaml", block)}, bindings.Options{
				Logger: slog.New(slog.DiscardHandler),
				Env: func(name string) (string, bool) {
					v, ok := map[string]string{"PATH": os.Getenv("PATH"), "PRICES_TOKEN": "Bearer t"}[name]
					return v, ok
				},
			})
			if err != nil {
				t.Fatalf("%v in\n%s", err, block)
			}
			for _, m := range list {
				mods[m.ID()] = m
			}
			continue
		}
		for _, group := range examples(block) {
			calls++
			if got := perform(t, mods[group.id], group.inputs); got != group.want {
				t.Errorf("%s %s gives\n%swant\n%s", group.id, group.inputs, got, group.want)
			}
		}
	}
	if calls < 8 {
		t.Errorf("only %d calls were found", calls)
	}
	// Its answer is the machine's own.
	out, err := execute(t, t.Context(), mods["host.disk"], nil)
	if _, isInt := out["free_kb"].(int64); err != nil || !isInt {
		t.Errorf("host.disk: %v, %v", out, err)
	}
}

type example struct{ id, inputs, want string }

// examples reads calls, "module {inputs}", with what comes of them below.
func examples(block string) []example {
	var out []example
	for line := range strings.Lines(block) {
		id, inputs, isCall := strings.Cut(strings.TrimSpace(line), " {")
		if isCall && module.ValidateID(id) == nil {
			out = append(out, example{id: id, inputs: "{" + inputs})
			continue
		}
		out[len(out)-1].want += line
	}
	return out
}

// perform makes a call and shows its chunks, or its error.
func perform(t *testing.T, m *bindings.Module, inputs string) string {
	t.Helper()
	if m == nil {
		return "no such module\n"
	}
	dec := json.NewDecoder(strings.NewReader(inputs))
	dec.UseNumber()
	in := map[string]any{}
	if err := dec.Decode(&in); err != nil {
		t.Fatal(err)
	}
	in, err := module.NormalizeMap(in)
	if err != nil {
		t.Fatal(err)
	}
	var got []module.Chunk
	if _, streams := m.Registrable().(module.Streamer); streams {
		got, err = chunks(t, t.Context(), m, in, 0)
	} else {
		var out map[string]any
		out, err = execute(t, t.Context(), m, in)
		got = []module.Chunk{out}
	}
	if e := module.AsError(err); e != nil {
		if r, ok := reason(err).(string); ok {
			return string(e.Code) + ": " + r + "\n"
		}
		return string(e.Code) + ": " + e.Message + "\n"
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for _, c := range got {
		if err := enc.Encode(c); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}
